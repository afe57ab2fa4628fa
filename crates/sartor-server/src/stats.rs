//! Counters of a node, for INFO.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters shared by a node's workers, which add to them once a turn.
        #[derive(Debug)]
        pub struct Stats {
            /// When the node started.
            pub started: Instant,
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Default for Stats {
            fn default() -> Self {
                Stats { started: Instant::now(), $($name: AtomicU64::new(0),)* }
            }
        }
    };
}

counters! {
    /// Open client connections.
    clients,
    /// Connections accepted.
    connections,
    /// Connections refused because there were too many.
    rejected,
    /// Commands of clients.
    commands,
    /// Bytes read from clients.
    bytes_in,
    /// Bytes written to clients.
    bytes_out,
    /// Reads that found their key.
    hits,
    /// Reads that did not.
    misses,
    /// Turns of the event loops.
    turns,
    /// About how many bytes all records take.
    stored,
}

/// Shared counters.
pub type SharedStats = Arc<Stats>;

/// Adds to a counter.
pub fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Reads a counter.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// CPU seconds of this process in user and system mode, and resident bytes.
pub fn usage() -> (f64, f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields after the command, which may itself hold spaces.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks =
        |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default() / 100.0;
    let pages = fields.get(21).and_then(|f| f.parse::<u64>().ok()).unwrap_or_default();
    (ticks(11), ticks(12), pages * 4096)
}
