//! Where the cluster map outlives the coordinator, and who of several coordinators leads.
//!
//! ```text
//!  coordinator's loop ── save (term, map) ──▶ MetadataStore: a file, or etcd
//!                     ◀── Leads, Saved, Deposed, Follows ──
//! ```
//!
//! A store never makes the loop wait for a network: it works on threads of its own and wakes the loop.

mod campaign;
mod etcd;
mod file;
pub(crate) mod gateway;

use crate::config::CoordinatorConfig;
use mio::Waker;
use sartor_core::ids::Epoch;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::Now;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use file::load_map;

/// Numbers the times in which a coordinator leads; each is higher than all before it.
pub type Term = i64;

/// A coordinator, as the one that leads describes itself to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Where nodes connect.
    pub addr: String,
    /// Where its HTTP pages are.
    pub http: String,
    /// Its process.
    pub pid: u32,
}

/// What a store tells.
#[derive(Debug)]
pub enum Notice {
    /// This coordinator leads from now on, from this map.
    Leads(Term, Option<ClusterMap>),
    /// The map of this epoch is kept.
    Saved(Term, Epoch),
    /// That term is over, for this reason.
    Deposed(Term, String),
    /// Another one leads; none, as far as known.
    Follows(Option<Leader>),
    /// A line for people.
    Trouble(String),
}

/// Keeps the map, and lets one coordinator at a time change it.
pub trait MetadataStore {
    /// What happened since the last call.
    fn news(&mut self) -> Vec<Notice>;

    /// Keeps this map; ends in `Saved`, or in `Deposed` if the term was over before. An error ends the process.
    fn save(&mut self, term: Term, map: &ClusterMap) -> std::io::Result<()>;

    /// Whether nobody else can lead at this moment, judged by our clock alone.
    fn is_certain(&self, now: Now) -> bool;

    /// The loop has stopped leading in this term.
    fn resign(&mut self, term: Term);

    /// Where the map is kept, for people.
    fn place(&self) -> String;
}

/// Opens what the configuration names; `waker` wakes the loop when there are news.
pub fn open(config: &CoordinatorConfig, waker: Arc<Waker>) -> Result<Box<dyn MetadataStore>, String> {
    match endpoints(&config.metadata)? {
        None => Ok(Box::new(file::FileStore::open(&config.dir)?)),
        Some(endpoints) => Ok(Box::new(etcd::EtcdStore::open(config, endpoints, waker)?)),
    }
}

/// The addresses of etcd in `etcd://host:port,...`; none for `file`.
pub fn endpoints(metadata: &str) -> Result<Option<Vec<String>>, String> {
    if metadata == "file" {
        return Ok(None);
    }
    let wrong = || format!("metadata '{metadata}' is not possible; it must be file or etcd://HOST:PORT,...");
    let list = metadata.strip_prefix("etcd://").ok_or_else(wrong)?;
    addresses(list).map(Some).ok_or_else(wrong)
}

/// The addresses in `host:port,...`; none if it is not that.
pub(crate) fn addresses(list: &str) -> Option<Vec<String>> {
    let is_addr = |addr: &&str| {
        let port = addr.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(['@', '/']));
        port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    let addrs: Vec<&str> = list.split(',').map(str::trim).collect();
    addrs.iter().all(is_addr).then(|| addrs.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_metadata_may_be() {
        assert_eq!(endpoints("file"), Ok(None));
        assert_eq!(endpoints("etcd://a:1,b:2").unwrap().unwrap(), ["a:1", "b:2"]);
        for wrong in
            ["", "etcd", "etcd://", "etcd://a", "etcd://a:x", "etcd://a:1,", "etcd://u:p@a:1", "zk://a:1"]
        {
            assert!(endpoints(wrong).unwrap_err().contains("etcd://HOST:PORT"), "{wrong}");
        }
    }
}
