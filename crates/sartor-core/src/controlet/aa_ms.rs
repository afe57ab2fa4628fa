//! `aa-ms`: the hybrid of the paper, active replicas that have replicas of their own. (TPDS 6.4)
//!
//! ```text
//!                ┌──▶ active ──▶ replica
//!  sequencer ────┤
//!   (active)     └──▶ replica
//! ```
//!
//! [`aa_ec`](super::aa_ec) among the active ones, half of the members; each of the others follows one of them. So who orders
//! speaks to few, and there can be many copies. An active one tells how far the slowest of its own is: what it acknowledges,
//! all of them have. All else is as in `aa+ec`: every replica takes requests, does the operations in the order of the
//! log, and answers its own clients; when one is gone, the others find their places in the next view.

use super::rules::{Answers, Carries, Rules, Topology, active};
use super::{Mode, Promise, Succession, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "aa-ms",
    about: "aa+ec among half of the replicas; each of the others follows one of those",
    promise: Promise::Convergent,
    role: |place, count| match place {
        0 => "sequencer",
        _ if place < active(count) => "active",
        _ => "replica",
    },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Tree, answers: Answers::AtTwo, carries: Carries::Operations },
    locks: false,
    build: replicated::build,
};
