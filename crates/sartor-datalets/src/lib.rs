//! The stores that Sartor brings along, one file each, and the suite that every store must pass.
//!
//! A new one is a file that implements [`Datalet`] and a line in
//! [`ENGINES`]; the [`conformance`] suite then runs against it.

pub mod conformance;
pub mod hash;
pub mod tree;

use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::record::Layout;

/// What an engine needs to open a store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cluster's seed of key hashing.
    pub seed: u64,
}

/// A kind of datalet.
pub struct Engine {
    /// What users call it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether it can scan in key order.
    pub ordered: bool,
    /// Whether its data outlive the process.
    pub durable: bool,
    /// Whether its calls may block, so that it needs a thread of its own.
    pub blocking: bool,
    /// How records are kept in it.
    pub layout: Layout,
    /// Opens a store, empty if it is not durable.
    pub open: fn(&Options) -> Result<Box<dyn Datalet>, DataletError>,
}

/// All engines. The command line, the tests and the docs read this table.
pub const ENGINES: &[Engine] = &[
    Engine {
        name: "hash",
        about: "in memory, a hash table that grows without pauses",
        ordered: false,
        durable: false,
        blocking: false,
        layout: Layout::Envelope,
        open: |options| Ok(Box::new(hash::Hash::new(options.seed))),
    },
    Engine {
        name: "tree",
        about: "in memory, ordered",
        ordered: true,
        durable: false,
        blocking: false,
        layout: Layout::Envelope,
        open: |_| Ok(Box::new(tree::Tree::default())),
    },
];

/// An engine by name.
pub fn engine(name: &str) -> Option<&'static Engine> {
    ENGINES.iter().find(|engine| engine.name == name)
}

/// Frees something large on a thread of its own: millions of records take long enough to free that a node which waits for
/// it would be taken for dead.
pub fn drop_aside<T: Send + 'static>(value: T) {
    // Where no thread can be had, it is freed here.
    let _ = std::thread::Builder::new().name("free".into()).spawn(move || drop(value));
}
