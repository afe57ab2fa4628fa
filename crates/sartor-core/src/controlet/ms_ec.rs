//! `ms+ec`: one primary, replicas that follow. (TPDS 4.2)
//!
//! ```text
//!  client ──1──▶ primary ──2──▶ its store        1 request   2 evaluate
//!         ◀──3──    │                            3 answer, at once
//!                   └──4──▶ secondaries          4 entries, in batches
//!                   ◀──5──                       5 acknowledgement, cumulative
//! ```
//!
//! The primary decides every write against its own newest state and numbers what changed; the
//! secondaries apply those entries in order. They answer reads as long as the asking connection
//! has seen nothing newer; everything else is the primary's.
//!
//! An acknowledged write that no secondary has yet is lost if the primary dies then; nothing else is, because the
//! primary acknowledges only under the promises of all members (`part/lease.rs`). After its death the most
//! advanced secondary becomes primary; if another one turns out to know more, it tells the new primary before
//! that one orders anything. So there is one history, and every replica holds a beginning of it.

use super::rules::{Answers, Carries, Rules, Topology};
use super::{Mode, Promise, Succession, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "ms+ec",
    about: "one primary answers after its own write; replicas follow and serve reads",
    promise: Promise::Convergent,
    role: |place, _| if place == 0 { "primary" } else { "secondary" },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Star, answers: Answers::Here, carries: Carries::Entries },
    locks: false,
    build: replicated::build,
};
