//! `aa+ec-log`: like `aa+ec`, with a log outside of the cluster: NATS JetStream, for who runs one. (TPDS 4.4)
//!
//! ```text
//!  client ──1──▶ replica ──2──▶ sequencer ──3──▶ all replicas      1 request    2 append
//!         ◀──5──    │              │  ▲               │            3 the operation, with its place
//!                   ▼            3 ▼  │ 4             ▼            4 the log has it
//!                 store          log outside        store          5 answer, once it was done here
//! ```
//!
//! The first member gives places as in `aa+ec`, and writes what it ordered to the log, in the same order. A write is acknowledged
//! once the log has it, however many replicas have it: who becomes first reads what it lacks from there, and
//! seals it, so that an older sequencer can append nothing any more (`part/log.rs`). While the log is out of reach nothing is
//! acknowledged; reads go on.

use super::rules::{Answers, Carries, Rules, Topology};
use super::{Mode, Promise, Succession, aa_ec, replicated};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "aa+ec-log",
    about: "aa+ec with a log outside (NATS JetStream), which has a write before it is acknowledged",
    promise: Promise::Convergent,
    role: aa_ec::MODE.role,
    serves: aa_ec::MODE.serves,
    tolerates: aa_ec::MODE.tolerates,
    succession: Succession::MostAdvanced,
    rules: Rules { topology: Topology::Star, answers: Answers::AtLog, carries: Carries::Operations },
    locks: false,
    build: replicated::build,
};
