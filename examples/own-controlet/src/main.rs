//! Sartor with modes of one's own:
//!
//! ```text
//! cargo run -- up --mode semi-sync
//! cargo run -- sim --mode semi-sync --seeds 50
//! ```
//!
//! This program has all the verbs of `sartor`, and two modes more. On several machines, run it on every node and as the
//! coordinator. There are two ways to a mode:
//!
//! - `semi-sync` is other rules for the controlet of the built-in modes, so tables can be switched to it and from it.
//! - `first-only` (first_only.rs) is another controlet, here around a built-in one.

mod first_only;

use sartor::sartor_core::controlet::ms_ec;
use sartor::sartor_core::controlet::rules::{Answers, Carries, Rules, Topology};
use sartor::{Mode, Promise, Succession};
use std::process::ExitCode;

/// One primary that answers once another copy has what was written.
///
/// ```text
///  client ──1──▶ primary ──2──▶ secondaries     1 request   2 entries, in batches
///         ◀──4──    ▲ ◀──3──────┘               3 the first of them has it   4 answer
/// ```
///
/// A write waits for the fastest of the others only, however many there are, and outlives each of the two that have it:
/// after a death who has the most goes on. The slower ones show it a little later: a connection still sees its own writes
/// and never goes back, but not always what another one wrote, so it is `Convergent` that is promised, as by `ms+ec`.
const SEMI_SYNC: Mode = Mode {
    name: "semi-sync",
    about: "one primary answers once a second copy has a write; every replica serves reads",
    promise: Promise::Convergent,
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Star, answers: Answers::AtTwo, carries: Carries::Entries },
    ..ms_ec::MODE
};

fn main() -> ExitCode {
    sartor::with_modes([SEMI_SYNC, first_only::MODE]).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults, crashes and repairs, and all that the promise says is checked.
    #[test]
    fn the_modes_keep_their_promises() {
        for mode in [SEMI_SYNC, first_only::MODE] {
            let done = sartor::simulate(mode, 0..50, 20).unwrap_or_else(|why| panic!("{}: {why}", mode.name));
            assert!(done.succeeded > 1000 && done.faults > 100, "{done:?}");
        }
    }

    /// The same, where the mode promises what its rules do not keep: the simulator must see it.
    #[test]
    fn a_promise_that_is_not_kept_is_found() {
        let boastful = Mode { name: "boastful", promise: Promise::Linearizable, ..SEMI_SYNC };
        let why = sartor::simulate(boastful, 0..50, 20).map(|_| ()).unwrap_err();
        assert!(why.starts_with("seed "), "{why}");
    }
}
