//! The stores that Sartor brings along, one file each, and the suite that every store must pass.
//!
//! A new one is a file that implements [`Datalet`] and a line in
//! [`ENGINES`]; the [`conformance`] suite then runs against it. A program of a user's own adds its engines by [`register`].

pub mod btree;
pub mod conformance;
mod folder;
pub mod hash;
mod header;
mod kinds;
mod latched;
pub mod log;
pub mod lsm;
pub mod network;
mod registry;
pub mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod tree;

pub use kinds::{Wanted, bounds, can, durable, find, is_ordered, kinds, shown};
use latched::Latched;
pub use network::{Launcher, launch_by};
pub use registry::{engine, engines, register};
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::record::Layout;
use std::path::PathBuf;

/// What an engine needs to open a store.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cluster's seed of key hashing.
    pub seed: u64,
    /// A folder for this store alone, which a durable engine makes if it is not there.
    pub dir: PathBuf,
    /// Where the store is, for one over the network: what follows `://`.
    pub address: String,
}

impl Options {
    /// These, for a store in a folder.
    #[must_use]
    pub fn in_dir(self, dir: impl Into<PathBuf>) -> Options {
        Options { dir: dir.into(), ..self }
    }
}

/// A kind of datalet.
pub struct Engine {
    /// What users call it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether it can scan in key order.
    pub ordered: bool,
    /// Whether it can do so from the last one on, too.
    pub descending: bool,
    /// Whether its data outlive the process.
    pub durable: bool,
    /// Whether its calls may block, so that it needs a thread of its own.
    pub blocking: bool,
    /// How records are kept in it.
    pub layout: Layout,
    /// Opens a store: a durable one as of its last commit, one over the network as it is, any other one empty.
    pub open: fn(&Options) -> Result<Box<dyn Datalet>, DataletError>,
    /// Whether it works in a folder of its own, though its data do not outlive the process; a durable one does anyway.
    pub works_in_folder: bool,
    /// What it is where no address is given, for one that needs an address otherwise.
    pub own: Option<&'static Engine>,
    /// Whether it is somewhere else, and is opened by its address. Who opens one address twice has one store.
    pub remote: bool,
    /// What the store at an address says of itself, where that tells more than this line.
    pub declared: fn(&Options) -> Result<Option<Engine>, DataletError>,
    /// Says what is wrong with an address, or, for one without an address, what this machine lacks for it.
    pub check: fn(&str) -> Result<(), String>,
    /// Whether pairs vanish where memory is short.
    pub evicting: bool,
    /// Whether it can be walked: only then can a copy be filled from it, verified or counted.
    pub walks: bool,
    /// Whether it removes pairs at a deadline by itself.
    pub expiring: bool,
    /// The shortest key that it keeps.
    pub key_bytes_min: usize,
    /// The longest key of any bytes that it keeps, as far as it was tried.
    pub key_bytes_max: usize,
    /// The largest value that it keeps, what the layout puts in front of it included, as far as it was tried.
    pub value_bytes_max: usize,
}

impl Engine {
    /// What most engines have in common, for `..Engine::BUILT_IN`.
    pub const BUILT_IN: Engine = Engine {
        name: "",
        about: "",
        ordered: false,
        descending: false,
        durable: false,
        blocking: false,
        layout: Layout::Envelope,
        open: |_| Err(DataletError::Unsupported("this engine cannot be opened")),
        works_in_folder: false,
        own: None,
        remote: false,
        declared: |_| Ok(None),
        check: |_| Ok(()),
        evicting: false,
        walks: true,
        expiring: false,
        key_bytes_min: 0,
        key_bytes_max: 64 << 10,
        value_bytes_max: 16 << 20,
    };
}

/// All engines that Sartor brings along. The tests and the docs read this table; [`engines`] has those of the user too.
pub const ENGINES: &[Engine] = &[
    Engine {
        name: "hash",
        about: "in memory, a hash table that grows without pauses",
        ordered: false,
        durable: false,
        blocking: false,
        layout: Layout::Envelope,
        open: |options| Ok(Box::new(hash::Hash::new(options.seed))),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "tree",
        about: "in memory, ordered",
        ordered: true,
        descending: true,
        durable: false,
        blocking: false,
        layout: Layout::Envelope,
        open: |_| Ok(Box::new(tree::Tree::default())),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "log",
        about: "on disk, ordered: files that are only appended to, keys in memory",
        ordered: true,
        descending: true,
        durable: true,
        blocking: true,
        layout: Layout::Envelope,
        open: |options| log::open(&options.dir),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "lsm",
        about: "on disk, ordered, a log-structured merge tree (fjall): for many writes",
        ordered: true,
        descending: true,
        durable: true,
        blocking: true,
        layout: Layout::Envelope,
        open: |options| Ok(Box::new(Latched::new(lsm::Lsm::open(options)?))),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "btree",
        about: "on disk, ordered, a B+tree in one file (redb): for many reads",
        ordered: true,
        descending: true,
        durable: true,
        blocking: true,
        layout: Layout::Envelope,
        open: |options| Ok(Box::new(Latched::new(btree::BTree::open(options)?))),
        ..Engine::BUILT_IN
    },
    #[cfg(feature = "sqlite")]
    Engine {
        name: "sqlite",
        about: "on disk, ordered, a SQLite database that other tools can read",
        ordered: true,
        descending: true,
        durable: true,
        blocking: true,
        layout: Layout::Envelope,
        open: |options| Ok(Box::new(Latched::new(sqlite::Sqlite::open(options)?))),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "redis",
        about: "values as they are: in a Redis that runs, with what is in it, or in one that Sartor starts for each copy",
        own: Some(&network::OWN_REDIS),
        blocking: true,
        layout: Layout::Beside,
        open: network::open_redis,
        remote: true,
        check: |address| network::check_address("redis", address),
        ..Engine::BUILT_IN
    },
    Engine {
        name: "ssdb",
        about: "an SSDB that is running; the same, and ordered",
        ordered: true,
        blocking: true,
        layout: Layout::Beside,
        open: network::open_ssdb,
        remote: true,
        check: |address| network::check_address("ssdb", address),
        key_bytes_min: 1,
        key_bytes_max: network::SSDB_KEY_BYTES_MAX,
        ..Engine::BUILT_IN
    },
    Engine {
        name: "memcached",
        about: "a memcached that is running; evicts, and cannot be walked",
        blocking: true,
        open: network::open_memcached,
        remote: true,
        check: |address| network::check_address("memcached", address),
        evicting: true,
        walks: false,
        key_bytes_min: 1,
        key_bytes_max: network::MEMCACHED_KEY_BYTES_MAX,
        value_bytes_max: network::MEMCACHED_VALUE_BYTES_MAX,
        ..Engine::BUILT_IN
    },
    remote::ENGINE,
];

/// Frees something large on a thread of its own: millions of records take long enough to free that a node which waits for
/// it would be taken for dead.
pub fn drop_aside<T: Send + 'static>(value: T) {
    // Where no thread can be had, it is freed here.
    let _ = std::thread::Builder::new().name("free".into()).spawn(move || drop(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_and_what_is_wrong_with_one_is_said() {
        let (engine, address) = find("redis://:p@h:1/2").unwrap();
        assert_eq!((engine.name, &*address), ("redis", ":p@h:1/2"));
        assert_eq!(find("tree").unwrap().0.name, "tree");
        assert!(!find("redis").unwrap().0.remote && find("redis://h").unwrap().0.remote);
        for (kind, why) in [
            ("", "unknown datalet ''; there is: hash, tree,"),
            ("redsi://h", "unknown datalet 'redsi'; there is: "),
            ("tree://h", "write tree"),
            ("ssdb", "as in ssdb://127.0.0.1"),
            ("memcached://", "the host is missing"),
            ("redis://h:x", "'x' is no port"),
        ] {
            let said = find(kind).err().unwrap();
            assert!(said.contains(why) && !said.contains('\n'), "{kind}: {said}");
        }
    }
}
