# make test: everything, in about 27 minutes on 2 cores (aim: 15), half of it real processes. make test-full: the long tier.
export RUSTDOCFLAGS = -D warnings
MODES = ms+sc ms+ec aa+sc aa+ec aa-ms aa+sc-locks aa+ec-log switch split
.PHONY: test test-full lint unit seeds fresh mutants guard processes release

test: lint unit seeds guard processes

# Format, lints and docs: a warning is an error.
lint:
	cargo fmt --all --check
	cargo fmt --manifest-path examples/own-datalet/Cargo.toml --check
	cargo fmt --manifest-path examples/own-controlet/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo doc --workspace --no-deps

unit:
	cargo test --workspace
	cargo test --locked --manifest-path examples/own-datalet/Cargo.toml --target-dir target
	cargo test --locked --manifest-path examples/own-controlet/Cargo.toml --target-dir target

release:
	cargo build --release

# The same seeds of every mode each time: whether a change may land does not hang on luck.
seeds: release
	for mode in $(MODES); do target/release/sartor sim --mode $$mode --seeds 450 || exit 1; done

# Seeds that nobody has run before; a failure prints the one that shows it again.
fresh: release
	for mode in $(MODES); do \
		target/release/sartor sim --mode $$mode --seeds 2000 --first $$(date +%s) || exit 1; done

# What requests cost in instructions and allocations, beside what was recorded.
guard: release
	tests/setup
	bench/guard

# Protocol faults planted on purpose, one after the other: the simulator must find each.
mutants:
	cargo run --release --features mutants -- sim --mutants

# Real processes, real clients, a real Redis to compare with.
processes: release
	tests/setup
	target/venv/bin/pytest -q tests

test-full: test mutants
	cargo run --release -p sartor-model
	for mode in $(MODES); do \
		target/release/sartor sim --mode $$mode --seeds 50000 --first $$(date +%s) || exit 1; done
	FULL=1 target/venv/bin/pytest -q -s tests/test_failover.py tests/test_metadata.py tests/test_chaos.py tests/test_switch.py
