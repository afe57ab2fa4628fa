# make test: everything within 15 minutes on 2 cores. make test-full: the long tier.
export RUSTDOCFLAGS = -D warnings
.PHONY: test lint unit

test: lint unit

# Format, lints and docs: a warning is an error.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo doc --workspace --no-deps

unit:
	cargo test --workspace
