//! Configuration of one process, as TOML. `sartor up` writes these files; on real machines people do.

use sartor_core::controlet::part::lease::LeaseSettings;
use sartor_core::coordinator::CoordinatorSettings;
use sartor_core::coordinator::agent::AgentSettings;
use sartor_core::time::millis;
use sartor_datalets::can;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// `sartor serve`: one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The number of the cluster, the same in all its processes.
    pub cluster: u64,
    /// This node's index, from 0.
    pub node: u16,
    /// Event loops.
    #[serde(default = "one")]
    pub workers: u8,
    /// Where clients connect, `host:port`.
    pub listen: String,
    /// Where clients on this machine may connect as well: the path of a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// Where other nodes connect, `host:port`.
    pub peer_listen: String,
    /// The address that clients are told, where it differs from `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<String>,
    /// The address that other nodes are told, where it differs from `peer_listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_announce: Option<String>,
    /// The coordinators' RPC addresses, `host:port`; one as it is, or a list.
    #[serde(deserialize_with = "one_or_more")]
    pub coordinator: Vec<String>,
    /// Whether it may listen beyond this machine although nobody has to authenticate.
    #[serde(default)]
    pub unprotected: bool,
    /// A node that is silent for so long is replaced, in ms; the same in all processes.
    #[serde(default = "detect_ms")]
    pub detect_ms: u64,
    /// A log outside, for the modes that write to one: `nats://[user:password@]host:port,...[?replicas=N]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// A lock service outside, for the modes that ask one: `etcd://host:port,...` or `redis://host:port,...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<String>,
    /// The node's folder, for datalets that keep their records on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// When what is acknowledged is on disk: `always`, `interval:MS` or `never`.
    #[serde(default)]
    pub fsync: Fsync,
    /// Changed settings, by the names that CONFIG GET knows.
    #[serde(default)]
    pub settings: BTreeMap<String, u64>,
}

/// When what a durable datalet has acknowledged is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Fsync {
    /// Before it is acknowledged.
    Always,
    /// So many ms later at most.
    Interval(u64),
    /// When the system likes to.
    Never,
}

impl Default for Fsync {
    fn default() -> Fsync {
        Fsync::Interval(100)
    }
}

impl Fsync {
    /// How often what is done is brought to disk, where that is not always or never.
    pub fn every(self) -> Option<Duration> {
        match self {
            Fsync::Interval(ms) => Some(Duration::from_millis(ms)),
            Fsync::Always | Fsync::Never => None,
        }
    }
}

impl From<Fsync> for String {
    fn from(fsync: Fsync) -> String {
        match fsync {
            Fsync::Always => "always".into(),
            Fsync::Interval(ms) => format!("interval:{ms}"),
            Fsync::Never => "never".into(),
        }
    }
}

impl TryFrom<String> for Fsync {
    type Error = String;

    fn try_from(text: String) -> Result<Fsync, String> {
        text.parse()
    }
}

impl FromStr for Fsync {
    type Err = String;

    fn from_str(text: &str) -> Result<Fsync, String> {
        let interval = text.strip_prefix("interval:").and_then(|ms| ms.parse().ok());
        match (text, interval) {
            ("always", _) => Ok(Fsync::Always),
            ("never", _) => Ok(Fsync::Never),
            (_, Some(ms)) if (1..=60_000).contains(&ms) => Ok(Fsync::Interval(ms)),
            _ => Err(format!("fsync is always, interval:MS with 1 to 60000 ms, or never, not {text}")),
        }
    }
}

/// `sartor coordinator`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorConfig {
    /// The number of the cluster, the same in all its processes.
    pub cluster: u64,
    /// The secret seed of key hashing.
    pub seed: u64,
    /// Where nodes connect, `host:port`.
    pub listen: String,
    /// The address that nodes and other coordinators are told, where it differs from `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announce: Option<String>,
    /// Where HTTP is served, `host:port`.
    pub http: String,
    /// Whether it may listen beyond this machine although nobody has to authenticate.
    #[serde(default)]
    pub unprotected: bool,
    /// Where the cluster map is kept: `file`, in `dir`; or `etcd://host:port,...`, where several
    /// coordinators of one cluster find each other.
    #[serde(default = "file")]
    pub metadata: String,
    /// The folder of the file.
    #[serde(default)]
    pub dir: PathBuf,
    /// Nodes, standbys included.
    pub nodes: u16,
    /// Nodes without replicas at the start; the last ones.
    pub standbys: u16,
    /// Event loops a node.
    #[serde(default = "one")]
    pub workers: u8,
    /// Shards.
    pub shards: u16,
    /// Copies of each shard.
    pub copies: u8,
    /// The mode of the table.
    pub mode: String,
    /// Its datalet kind.
    pub datalet: String,
    /// The log outside that the nodes know, if any: the table's mode may need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The same of locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<String>,
    /// A node that is silent for so long is replaced, in ms; the same in all processes.
    #[serde(default = "detect_ms")]
    pub detect_ms: u64,
}

impl CoordinatorConfig {
    /// Its address, as nodes know it.
    pub fn addr(&self) -> &str {
        self.announce.as_ref().unwrap_or(&self.listen)
    }
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an address host:port or a list of them was expected")]
    enum Addrs {
        One(String),
        More(Vec<String>),
    }
    let addrs = match Addrs::deserialize(from)? {
        Addrs::One(addr) => vec![addr],
        Addrs::More(addrs) => addrs,
    };
    if addrs.is_empty() {
        return Err(D::Error::custom("coordinator must name at least one address"));
    }
    Ok(addrs)
}

fn file() -> String {
    "file".into()
}

fn one() -> u8 {
    1
}

fn detect_ms() -> u64 {
    500
}

/// The times that follow from how soon a silent node is to be replaced.
pub struct Timing {
    /// The coordinator's.
    pub coordinator: CoordinatorSettings,
    /// Of heartbeats.
    pub agent: AgentSettings,
    /// Of the promises among replicas.
    pub lease: LeaseSettings,
}

impl Timing {
    /// Promises end before a node is replaced, so that its successors need not wait for them; four
    /// heartbeats or promises in a row may be late.
    pub fn of(detect_ms: u64) -> Timing {
        let detect_us = millis(detect_ms);
        Timing {
            coordinator: CoordinatorSettings { down_after_us: detect_us, tick_us: detect_us / 10, can },
            agent: AgentSettings { heartbeat_every_us: detect_us / 5 },
            lease: LeaseSettings {
                lease_us: detect_us * 7 / 10,
                renew_us: detect_us * 4 / 25,
                lax_us: detect_us * 4,
            },
        }
    }
}

/// Reads a file, or says in a line what is wrong with it.
pub fn load<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    toml::from_str(&text).map_err(|error| format!("{}: {}", path.display(), one_line(&error.to_string())))
}

/// Writes a file as TOML.
pub fn save<T: Serialize>(path: &Path, config: &T) -> Result<(), String> {
    let text = toml::to_string(config).map_err(|error| error.to_string())?;
    replace(path, text.as_bytes()).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Replaces a file: all of it or nothing, whatever happens meanwhile.
pub fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_added_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The new name must be on disk too.
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_a_line() {
        let path = std::env::temp_dir().join(format!("sartor-config-{}.toml", std::process::id()));
        std::fs::write(&path, "cluster = 1\nnoise = 2\n").unwrap();
        let error = load::<NodeConfig>(&path).unwrap_err();
        assert!(error.contains("noise") && !error.contains('\n'), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_coordinator_or_several() {
        let config = |coordinator: &str| {
            let text = format!(
                "cluster = 1\nnode = 0\nlisten = \"\"\npeer_listen = \"\"\ncoordinator = {coordinator}\n"
            );
            toml::from_str::<NodeConfig>(&text).map(|config| config.coordinator)
        };
        assert_eq!(config("\"a:1\"").unwrap(), ["a:1"]);
        assert_eq!(config("[\"a:1\", \"b:2\"]").unwrap(), ["a:1", "b:2"]);
        assert!(config("[]").unwrap_err().to_string().contains("at least one address"));
        assert!(config("7").unwrap_err().to_string().contains("host:port"));
    }
}
