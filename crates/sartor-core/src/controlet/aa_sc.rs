//! `aa+sc`: every replica takes writes, and all have one before it is acknowledged. (TPDS 4.3)
//!
//! ```text
//!  client ──1──▶ replica ──2──▶ first ──3──▶ all replicas     1 request   2 for a place, which locks its keys
//!         ◀──5──    ▲            │ ▲             │            3 the operation and its place
//!                   └─────4──────┘ └──────3──────┘            4 all have it: its keys are free   5 answer
//! ```
//!
//! The paper takes a lock from a service, writes to all replicas, and gives the lock back. Here the place that the first
//! member gives is the lock: from then on every replica that has the operation holds back what it would tell of its keys, until
//! all have it. Places are given in the order asked for, so nobody starves, and operations on the same key do not wait for one
//! another, they queue up; the place is the fencing token, as no replica does anything out of its place. A first member that
//! dies leaves nothing half done: what any member of the next view has, all have before that view serves.
//!
//! Every replica answers reads from its own store, and the client of a write where it asked.

use super::rules::{Answers, Carries, Rules, Topology};
use super::{Mode, Promise, Succession, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "aa+sc",
    about: "every replica takes writes and reads; all replicas have a write before it is acknowledged",
    promise: Promise::Linearizable,
    role: |place, _| if place == 0 { "orderer" } else { "active" },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Star, answers: Answers::AtAll, carries: Carries::Operations },
    locks: false,
    build: replicated::build,
};
