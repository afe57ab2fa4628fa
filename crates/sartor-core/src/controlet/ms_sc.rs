//! `ms+sc`: chain replication. (TPDS 4.1; reads at every replica as in CRAQ)
//!
//! ```text
//!  client ──1──▶ head ──2──▶ middle ──2──▶ tail         1 request   2 entries, in order, in batches
//!         ◀──4──  ▲             ▲◀────3──────┤          3 everything up to here is at the tail
//!                 └──────────────────3───────┘          4 answer
//! ```
//!
//! The head decides every operation against its own newest state and numbers what changed. Each replica applies in
//! sequence, then passes on; so what the tail has, all have, and that is what an answer waits for. Every replica keeps what
//! the tail has not acknowledged: when another one dies, its neighbours go on from there.
//!
//! Every replica answers reads. An answer that tells of entries in flight waits until the tail has them: then it is the
//! newest committed state at that moment. An answer leaves only while all other members have promised not to
//! be in another view (`part/lease.rs`), judged by a clock that was read after the store was.

use super::rules::{Answers, Carries, Rules, Topology};
use super::{Mode, Promise, Succession, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "ms+sc",
    about: "chain replication: all replicas have a write before it is acknowledged; every replica serves reads",
    promise: Promise::Linearizable,
    role: |place, count| match place {
        0 => "head",
        _ if place + 1 == count => "tail",
        _ => "middle",
    },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::Next,
    rules: Rules { topology: Topology::Chain, answers: Answers::AtAll, carries: Carries::Entries },
    locks: false,
    build: replicated::build,
};
