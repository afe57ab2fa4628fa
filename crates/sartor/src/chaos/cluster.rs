//! The cluster that is hurt: its processes, and what it says of itself.

use super::net::{COORD, Net};
use crate::Failed;
use crate::local::Folder;
use crate::resp;
use crate::supervise::{self, Place, Supervised};
use rustix::process::Signal;
use sartor_server::config::{CoordinatorConfig, NodeConfig, save};
use sartor_server::status::Status;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A node that does not answer within this is not healthy.
const PATIENCE: Duration = Duration::from_millis(300);

/// A cluster of processes and the net between them.
pub struct Cluster {
    /// Its shape.
    pub config: CoordinatorConfig,
    /// Its net.
    pub net: Net,
    /// Where clients reach its nodes.
    pub endpoints: Vec<String>,
    /// Its files.
    pub dir: PathBuf,
    /// The coordinator, then the nodes.
    children: Vec<Supervised>,
}

impl Cluster {
    /// Starts all processes.
    pub fn start(mut config: CoordinatorConfig, folder: &Folder, hosts: bool) -> Result<Cluster, Failed> {
        let net = Net::open(&mut config, hosts)?;
        let dir = config.dir.clone();
        std::fs::create_dir_all(&dir)
            .map_err(|error| Failed::other(format!("cannot use {}: {error}", folder.path.display())))?;
        let mut cluster = Cluster { config, net, endpoints: Vec::new(), dir, children: Vec::new() };
        let file = cluster.dir.join("coordinator.toml");
        save(&file, &cluster.config).map_err(Failed::other)?;
        cluster.spawn(COORD, "coordinator", file)?;
        for node in 0..cluster.config.nodes {
            let dir = Some(cluster.dir.join(format!("node-{node}")));
            let config = NodeConfig { dir, ..cluster.net.node(&cluster.config, node) };
            cluster.endpoints.push(config.listen.clone());
            let file = cluster.dir.join(format!("node-{node}.toml"));
            save(&file, &config).map_err(Failed::other)?;
            cluster.spawn(node, "serve", file)?;
        }
        Ok(cluster)
    }

    fn spawn(&mut self, place: u16, verb: &'static str, config: PathBuf) -> Result<(), Failed> {
        let name = name_of(place);
        let log = Some(log_of(&self.dir, place));
        let place = Place { netns: self.net.netns(place), log };
        self.children.push(Supervised::start_at(place, name, verb, config)?);
        Ok(())
    }

    fn child(&mut self, place: u16) -> &mut Supervised {
        let index = if place == COORD { 0 } else { usize::from(place) + 1 };
        &mut self.children[index]
    }

    /// `kill -9`.
    pub fn kill(&mut self, place: u16) {
        self.child(place).kill();
    }

    /// Starts it again in a new life.
    pub fn revive(&mut self, place: u16) -> Result<(), Failed> {
        self.child(place).revive()
    }

    /// SIGSTOP.
    pub fn stop(&mut self, place: u16) {
        self.child(place).signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn wake(&mut self, place: u16) {
        self.child(place).signal(Signal::CONT);
    }

    /// Who died without having been killed, and how.
    pub fn dead(&mut self) -> Option<String> {
        self.children.iter_mut().find_map(|child| {
            let how = child.ended()?;
            Some(format!("{} ended: {how}", child.name))
        })
    }

    /// What each node says.
    pub fn statuses(&self) -> Vec<Result<Status, String>> {
        let ask = |endpoint: &String| {
            let json = resp::ask_within(endpoint, &["SARTOR.STATUS"], PATIENCE)?;
            serde_json::from_str(&json).map_err(|error| format!("{endpoint}: {error}"))
        };
        self.endpoints.iter().map(ask).collect()
    }

    /// That all nodes say that all is well, or who does not.
    pub fn healthy(&self) -> Result<Status, String> {
        let mut last: Option<Status> = None;
        for status in self.statuses() {
            let status = status?;
            let is_there = |state: &str| state == "up" || state == "standby";
            let copies = usize::from(self.config.copies);
            let whole = status.health == "healthy"
                && status.coordinator.state == "up"
                && status.repairs.is_empty()
                && status.nodes.iter().all(|node| is_there(&node.state))
                && status.shards.iter().all(|shard| shard.replicas.len() == copies);
            if !whole {
                return Err(brief(&status));
            }
            if last.as_ref().is_some_and(|last| last.epoch != status.epoch) {
                return Err(format!("not all nodes have the map of epoch {}", status.epoch));
            }
            last = Some(status);
        }
        last.ok_or_else(|| "no node".into())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        supervise::end(&mut self.children);
    }
}

/// A process, for people.
pub fn name_of(place: u16) -> String {
    if place == COORD { "coordinator".into() } else { format!("node {place}") }
}

/// What a process said.
pub fn log_of(dir: &Path, place: u16) -> PathBuf {
    dir.join(format!("{}.log", name_of(place).replace(' ', "-")))
}

/// A status in a line.
pub fn brief(status: &Status) -> String {
    let nodes: Vec<String> = status.nodes.iter().map(|node| format!("{}:{}", node.id, node.state)).collect();
    let shard = |shard: &sartor_server::status::ShardStatus| {
        let replicas: Vec<String> = shard.replicas.iter().map(|r| r.node.to_string()).collect();
        format!("{} on {} since epoch {}", shard.id, replicas.join(" "), shard.epoch)
    };
    let shards: Vec<String> = status.shards.iter().map(shard).collect();
    let coordinator = &status.coordinator.state;
    let (nodes, shards) = (nodes.join(" "), shards.join(", "));
    format!(
        "epoch {}; coordinator {coordinator}; nodes {nodes}; shards {shards}. {}",
        status.epoch,
        status.sentence()
    )
}
