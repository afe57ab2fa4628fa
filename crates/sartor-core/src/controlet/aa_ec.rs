//! `aa+ec`: every replica takes writes, a shared log orders them. (TPDS 4.4)
//!
//! ```text
//!  client ──1──▶ replica ──2──▶ sequencer ──3──▶ all replicas      1 request    2 append
//!         ◀──4──    │              │                  │            3 the operation, with its place in the log
//!                   ▼              ▼                  ▼            4 answer, once it was done here
//!                 store          store              store
//! ```
//!
//! The first member is the sequencer: it gives each operation the next place in the shard's history and passes it on at
//! once, without having done it. Every replica does all operations at their places, its own ones too, by the wall clock that
//! the sequencer wrote beside them; so all end equal, and the replica that has the client knows the answer. It is
//! told once two replicas have the operation, so it outlives each of them.
//!
//! The log is the stream of `part/stream.rs`: kept until all replicas have it, sent again when it got lost, trimmed behind the
//! slowest one, who is given up and filled when that takes too long. An epoch seals it: nobody takes a place of an older one,
//! and before a new sequencer gives the next, it has all that any member of its view had. An append that is
//! sent again is known by its number (`part/answers.rs`), at whatever sequencer.

use super::rules::{Answers, Carries, Rules, Topology};
use super::{Mode, Promise, Succession, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "aa+ec",
    about: "every replica takes writes; a shared log orders them, and all do them in that order",
    promise: Promise::Convergent,
    role: |place, _| if place == 0 { "sequencer" } else { "active" },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Star, answers: Answers::AtTwo, carries: Carries::Operations },
    locks: false,
    build: replicated::build,
};
