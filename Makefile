# make test: everything within 15 minutes on 2 cores. make test-full: the long tier.
export RUSTDOCFLAGS = -D warnings
.PHONY: test test-full lint unit seeds processes release

test: lint unit seeds processes

# Format, lints and docs: a warning is an error.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo doc --workspace --no-deps

unit:
	cargo test --workspace

release:
	cargo build --release

# Fixed seeds of every mode, then fresh ones; a failure prints the seed that shows it again.
seeds: release
	target/release/sartor sim --mode ms+ec --seeds 1000
	target/release/sartor sim --mode ms+ec --seeds 1000 --first $$(date +%s)

# Real processes, real clients, a real Redis to compare with.
processes: release
	tests/setup
	target/venv/bin/pytest -q tests

test-full: test
	target/release/sartor sim --mode ms+ec --seeds 50000 --first $$(date +%s)
