//! `aa+sc-locks`: like `aa+sc`, with the locks of a service in front: etcd, or several Redis (Redlock). (TPDS 4.3)
//!
//! ```text
//!  client ──1──▶ node ──2──▶ lock service          1 request   2 the locks of its keys   3 held
//!         ◀──5──    │ ◀──3──                       4 as in aa+sc                         5 answer; the locks go back
//!                   └──4──▶ replicas
//! ```
//!
//! The paper's way, to compare with, or for keys that programs beside the cluster lock as well. It costs two
//! round trips more and promises nothing more: a lock of such a service runs out while its holder stands still, so what
//! protects the data is the place of each operation, as in `aa+sc` (`node/locking.rs`).

use super::{Mode, aa_sc};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "aa+sc-locks",
    about: "aa+sc with locks of etcd or Redlock in front, as in the paper",
    locks: true,
    ..aa_sc::MODE
};
