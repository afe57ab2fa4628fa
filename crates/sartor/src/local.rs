//! A cluster on this machine: its folder, its ports, its files. What `sartor up` and `sartor chaos` share.

use crate::Failed;
use crate::sim::unknown_mode;
use sartor_core::controlet::mode;
use sartor_core::datalet::DataletError;
use sartor_core::routing::map::is_adopted;
use sartor_datalets::{Options, Wanted, find};
use sartor_server::config::{CoordinatorConfig, Fsync, NodeConfig};
use sartor_server::locks;
use sartor_server::log::Logs;
use sartor_server::modes::modes;
use sartor_server::outside::missing;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// SCAN cursors have ten bits for the shard.
pub const SHARDS_MAX: u16 = 1023;
/// Ports of nodes must not reach those of the coordinator.
pub const NODES_MAX: u16 = 99;
/// The coordinator's pages, as an offset to the first port.
pub const HTTP: u16 = 200;
/// Where nodes reach the coordinator.
pub const RPC: u16 = 201;
/// Where nodes reach the first node.
pub const PEER: u16 = 300;

/// The folder of a cluster, locked while it runs.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    temporary: bool,
    _lock: File,
}

impl Folder {
    /// Lets it be there at the end.
    pub fn keep(&mut self) {
        self.temporary = false;
    }

    /// Makes it, and locks it.
    pub fn open(dir: Option<&Path>) -> Result<Folder, Failed> {
        let temporary = dir.is_none();
        let default = || std::env::temp_dir().join(format!("sartor-{}", std::process::id()));
        let path = dir.map_or_else(default, Path::to_path_buf);
        let failed = |error: std::io::Error| {
            Failed::input(format!("cannot use the folder {}: {error}", path.display()))
        };
        std::fs::create_dir_all(&path).map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(Failed::input(format!("another cluster runs in {}", path.display())));
        }
        Ok(Folder { path, temporary, _lock: lock })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// An address on this machine.
pub fn addr(port: u16, offset: u16) -> String {
    format!("127.0.0.1:{}", u32::from(port) + u32::from(offset))
}

/// The file of a node on this machine.
pub fn node(config: &CoordinatorConfig, port: u16, node: u16) -> NodeConfig {
    NodeConfig {
        cluster: config.cluster,
        node,
        workers: config.workers,
        listen: addr(port, node),
        unix: None,
        peer_listen: addr(port, PEER + node),
        announce: None,
        peer_announce: None,
        coordinator: vec![config.listen.clone()],
        unprotected: config.unprotected,
        detect_ms: config.detect_ms,
        log: config.log.clone(),
        locks: config.locks.clone(),
        dir: None,
        fsync: Fsync::default(),
        settings: BTreeMap::new(),
    }
}

/// Says what is wrong with a cluster that was asked for.
pub fn check(config: &CoordinatorConfig, port: u16) -> Result<(), Failed> {
    let mode = mode(modes(), &config.mode).ok_or_else(|| unknown_mode(&config.mode))?;
    let wrong = |error: String| Failed::input(error);
    config.log.as_deref().map_or(Ok(()), Logs::check).map_err(wrong)?;
    config.locks.as_deref().map_or(Ok(()), locks::check).map_err(wrong)?;
    if let Some(text) = missing(mode, config.log.is_some(), config.locks.is_some()) {
        return Err(Failed::input(text));
    }
    let (datalet, nodes, copies, shards) = (&config.datalet, config.nodes, config.copies, config.shards);
    Wanted { datalet, nodes, copies, shards, ranges: false }.check_here().map_err(wrong)?;
    let within = |name: &str, value: u32, min: u32, max: u32| {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Failed::input(format!("--{name} {value} is not possible; it must be from {min} to {max}")))
    };
    within("shards", u32::from(config.shards), 1, u32::from(SHARDS_MAX))?;
    within("copies", u32::from(config.copies), 1, u32::from(NODES_MAX))?;
    within("workers", u32::from(config.workers), 1, 64)?;
    within("nodes", u32::from(config.nodes), 1, u32::from(NODES_MAX))?;
    within("detect-ms", u32::try_from(config.detect_ms).unwrap_or(u32::MAX), 50, 600_000)?;
    let needed = u32::from(config.copies) + u32::from(config.standbys);
    if u32::from(config.nodes) < needed {
        return Err(Failed::input(format!(
            "{} copies and {} standbys need {needed} nodes, not {}",
            config.copies, config.standbys, config.nodes
        )));
    }
    within("port", u32::from(port), 1, 65_535 - u32::from(PEER) - u32::from(config.nodes))
}

/// Of stores that run already: they answer, can be used, and all but the first are empty, as they are filled from it.
pub fn check_stores(config: &CoordinatorConfig) -> Result<(), Failed> {
    if !is_adopted(&config.datalet) {
        return Ok(());
    }
    for (place, kind) in config.datalet.split(',').enumerate() {
        let (engine, address) = find(kind).map_err(Failed::input)?;
        if !engine.remote {
            continue;
        }
        let said = |error: DataletError| Failed::input(format!("{kind}: {error}"));
        let mut store = (engine.open)(&Options { address, ..Options::default() }).map_err(said)?;
        let pairs = if engine.walks { store.len().map_err(said)? } else { 0 };
        if place > 0 && pairs > 0 {
            return Err(Failed::input(format!(
                "{kind} has {pairs} keys, which would be lost: it is to be filled from the first one, so empty it, or name another"
            )));
        }
    }
    Ok(())
}

/// A random number that TOML can hold.
pub fn random_number() -> Result<u64, String> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(|error| format!("no randomness: {error}"))?;
    Ok(u64::from_le_bytes(bytes) >> 1)
}
