//! `sartor up`: a real cluster of processes on this machine.

use crate::local::{self, Folder, HTTP, PEER, RPC, addr, check, check_stores, random_number};
use crate::sim::mode_help;
use crate::status;
use crate::supervise::{self, Supervised};
use crate::{Failed, say};
use clap::Args;
use sartor_core::ids::NodeId;
use sartor_core::routing::map::{is_adopted, kind_of};
use sartor_datalets::network::OWN_REDIS;
use sartor_server::config::{CoordinatorConfig, Fsync, NodeConfig, load, save};
use sartor_server::metadata::endpoints;
use sartor_server::settings::Settings;
use sartor_server::socket::bind_unix;
use sartor_server::status::Status;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Two ports each, below those of nodes for each other.
const COORDINATORS_MAX: u16 = 9;

/// Arguments of `sartor up`.
#[derive(Args)]
pub struct UpArgs {
    /// Parts of the key space [default: 3]
    #[arg(long)]
    shards: Option<u16>,
    /// Copies of each shard [default: 3]
    #[arg(long)]
    copies: Option<u8>,
    /// Nodes that wait to replace one that fails [default: 1]
    #[arg(long)]
    standbys: Option<u16>,
    /// All nodes, standbys included [default: copies + standbys]
    #[arg(long)]
    nodes: Option<u16>,
    /// Event loops a node [default: 1]
    #[arg(long)]
    workers: Option<u8>,
    /// How to replicate
    #[arg(long, help = mode_help("How to replicate") + " [default: ms+sc]")]
    mode: Option<String>,
    /// What to replicate [default: hash]
    #[arg(long)]
    datalet: Option<String>,
    /// When datalets on disk have what they acknowledge there: always, interval:MS or never [default: interval:100]
    #[arg(long, value_name = "WHEN")]
    fsync: Option<Fsync>,
    /// A node that is silent for so long is replaced, in ms [default: 500]
    #[arg(long)]
    detect_ms: Option<u64>,
    /// Records a node may hold, such as 512mb; writes beyond get OOM [default: no limit]
    #[arg(long, value_parser = bytes)]
    memory: Option<u64>,
    /// Where the cluster map is kept: file, or etcd://HOST:PORT,... [default: file]
    #[arg(long)]
    metadata: Option<String>,
    /// A log outside for the modes that write to one, such as nats://HOST:PORT,... (with ?replicas=N at the end for more than one copy of it)
    #[arg(long)]
    log: Option<String>,
    /// Locks outside for the modes that ask for them: etcd://HOST:PORT,... or redis://HOST:PORT,...
    #[arg(long)]
    locks: Option<String>,
    /// Coordinators, of which one leads; more than one need etcd [default: 1]
    #[arg(long, default_value_t = 1, hide_default_value = true)]
    coordinators: u16,
    /// Another value for a setting of the nodes, by the names of CONFIG GET; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, u64)>,
    /// The first node's RESP port; others follow from it
    #[arg(long, default_value_t = 7379)]
    port: u16,
    /// Clients on this machine may also connect to Unix sockets in this folder: node-0.sock and so on
    #[arg(long, value_name = "DIR")]
    unix: Option<PathBuf>,
    /// Where to keep things [default: a temporary folder, removed at the end]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Leave dead processes dead
    #[arg(long)]
    no_restart: bool,
}

/// Runs the verb until a signal ends it.
pub fn run(args: &UpArgs) -> Result<(), Failed> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    let folder = Folder::open(args.dir.as_deref())?;
    let cluster = Cluster::shape(args, &folder.path)?;
    cluster.check_ports()?;
    let mut children = cluster.start(&folder.path)?;
    let done = cluster.attend(&mut children, &stop, !args.no_restart);
    // Not before: until then nobody here would wait for what nodes that die leave behind.
    supervise::adopt_orphans();
    supervise::end(&mut children);
    supervise::bury_orphans();
    cluster.sockets().for_each(|path| drop(std::fs::remove_file(path)));
    say(format_args!("ended"));
    done
}

/// A cluster to run.
struct Cluster {
    config: CoordinatorConfig,
    coordinators: u16,
    port: u16,
    unix: Option<PathBuf>,
    /// Where all of it is.
    dir: PathBuf,
    fsync: Fsync,
    settings: BTreeMap<String, u64>,
}

impl Cluster {
    /// The shape asked for, or the one that the folder holds, which must be the same.
    fn shape(args: &UpArgs, dir: &Path) -> Result<Cluster, Failed> {
        let file = dir.join("cluster.toml");
        let old: Option<CoordinatorConfig> =
            if file.exists() { Some(load(&file).map_err(Failed::input)?) } else { None };
        let copies = args.copies.or(old.as_ref().map(|old| old.copies)).unwrap_or(3);
        let standbys = args.standbys.or(old.as_ref().map(|old| old.standbys)).unwrap_or(1);
        let nodes = u16::from(copies).saturating_add(standbys);
        let random = || random_number().map_err(Failed::other);
        let config = CoordinatorConfig {
            cluster: old.as_ref().map_or_else(random, |old| Ok(old.cluster))?,
            seed: old.as_ref().map_or_else(random, |old| Ok(old.seed))?,
            listen: addr(args.port, RPC),
            announce: None,
            http: addr(args.port, HTTP),
            unprotected: false,
            metadata: args
                .metadata
                .clone()
                .or(old.as_ref().map(|old| old.metadata.clone()))
                .unwrap_or("file".into()),
            dir: dir.join("coordinator"),
            nodes: args.nodes.or(old.as_ref().map(|old| old.nodes)).unwrap_or(nodes),
            standbys,
            workers: args.workers.or(old.as_ref().map(|old| old.workers)).unwrap_or(1),
            shards: args.shards.or(old.as_ref().map(|old| old.shards)).unwrap_or(3),
            copies,
            mode: args.mode.clone().or(old.as_ref().map(|old| old.mode.clone())).unwrap_or("ms+sc".into()),
            datalet: args
                .datalet
                .clone()
                .or(old.as_ref().map(|old| old.datalet.clone()))
                .unwrap_or("hash".into()),
            log: args.log.clone().or(old.as_ref().and_then(|old| old.log.clone())),
            locks: args.locks.clone().or(old.as_ref().and_then(|old| old.locks.clone())),
            detect_ms: args.detect_ms.or(old.as_ref().map(|old| old.detect_ms)).unwrap_or(500),
        };
        check(&config, args.port)?;
        check_metadata(&config.metadata, args.coordinators)?;
        if old.is_none() {
            check_stores(&config)?;
        }
        if let Some(old) = old {
            same_shape(&old, &config, dir)?;
        }
        save(&file, &config).map_err(Failed::input)?;
        let memory = args.memory.map(|bytes| ("maxmemory".to_owned(), bytes));
        let settings = args.settings.iter().cloned().chain(memory).collect();
        let unix = args.unix.as_deref().map(folder_of_sockets).transpose()?;
        let (coordinators, port, fsync) = (args.coordinators, args.port, args.fsync.unwrap_or_default());
        let dir = std::path::absolute(dir).map_err(|error| Failed::input(error.to_string()))?;
        Ok(Cluster { config, coordinators, port, unix, dir, fsync, settings })
    }

    /// The configuration of each coordinator.
    fn coordinators(&self) -> impl Iterator<Item = CoordinatorConfig> {
        (0..self.coordinators).map(|index| CoordinatorConfig {
            listen: addr(self.port, RPC + 2 * index),
            http: addr(self.port, HTTP + 2 * index),
            ..self.config.clone()
        })
    }

    fn node_addr(&self, node: u16) -> String {
        addr(self.port, node)
    }

    /// The nodes' Unix sockets.
    fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.config.nodes).filter_map(|node| self.socket(node))
    }

    fn socket(&self, node: u16) -> Option<PathBuf> {
        self.unix.as_ref().map(|dir| dir.join(format!("node-{node}.sock")))
    }

    /// Binds every port and path once, so that a taken one is said before anything starts.
    fn check_ports(&self) -> Result<(), Failed> {
        let nodes = (0..self.config.nodes).flat_map(|node| [node, PEER + node]);
        let coordinators = (0..self.coordinators).flat_map(|index| [HTTP + 2 * index, RPC + 2 * index]);
        for offset in nodes.chain(coordinators) {
            let addr = addr(self.port, offset);
            if let Err(error) = TcpListener::bind(&addr) {
                return Err(Failed::input(format!("{addr} is taken ({error}); choose another --port")));
            }
        }
        for path in self.sockets() {
            bind_unix(&path).map_err(|error| Failed::input(format!("{error}; choose another --unix")))?;
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }

    fn start(&self, dir: &Path) -> Result<Vec<Supervised>, Failed> {
        let mut children = Vec::new();
        for (index, config) in self.coordinators().enumerate() {
            let file = dir.join(format!("coordinator-{index}.toml"));
            save(&file, &config).map_err(Failed::other)?;
            let name =
                if self.coordinators == 1 { "coordinator".into() } else { format!("coordinator {index}") };
            children.push(Supervised::start(name, "coordinator", file)?);
        }
        for node in 0..self.config.nodes {
            let config = NodeConfig {
                coordinator: self.coordinators().map(|config| config.listen).collect(),
                settings: self.settings.clone(),
                unix: self.socket(node),
                dir: Some(dir.join(format!("node-{node}"))),
                fsync: self.fsync,
                ..local::node(&self.config, self.port, node)
            };
            let file = dir.join(format!("node-{node}.toml"));
            save(&file, &config).map_err(Failed::other)?;
            children.push(Supervised::start(format!("node {node}"), "serve", file)?);
        }
        Ok(children)
    }

    /// Waits until the cluster serves, says so, and keeps its processes alive until a signal.
    fn attend(&self, children: &mut [Supervised], stop: &AtomicBool, restart: bool) -> Result<(), Failed> {
        let (mut announced, started) = (false, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            for child in children.iter_mut() {
                child.tend(restart)?;
            }
            if !announced && let Some(status) = self.is_serving() {
                announced = true;
                self.announce(&status);
            }
            if !announced && started.elapsed() > Duration::from_secs(30) && !self.is_filling() {
                return Err(Failed::other(
                    "the cluster did not start within 30 s; its processes said why above",
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Whether what is in the first one of stores that ran already is served, and the others are being filled: that may take long.
    fn is_filling(&self) -> bool {
        let serves = |status: Status| status.health != "down";
        is_adopted(&self.config.datalet) && status::fetch(&self.node_addr(0)).is_ok_and(serves)
    }

    /// How it is, once it serves, or waits for a person to do something.
    fn is_serving(&self) -> Option<Status> {
        let mut first = None;
        for node in 0..self.config.nodes {
            let status = status::fetch(&self.node_addr(node)).ok()?;
            let serves = status.health == "healthy" || !status.stuck.is_empty();
            if !serves || status.nodes.iter().any(|node| node.state == "down") {
                return None;
            }
            first.get_or_insert(status);
        }
        first
    }

    fn announce(&self, status: &Status) {
        status::print(status);
        say(format_args!("\nHTTP         http://{}/status", self.config.http));
        say(format_args!("try          redis-cli -p {} set hello world", self.port));
        if self.config.nodes > 1 {
            say(format_args!("             redis-cli -p {} get hello", self.port + 1));
        }
        if let Some(dir) = &self.unix {
            say(format_args!("             redis-cli -s {}/node-0.sock get hello", dir.display()));
        }
        if let Some(place) = (0..self.config.nodes).find(|node| is_own_redis(&self.config, *node)) {
            // From its folder, as the path of a socket may not be long.
            let dir = self.dir.join(format!("node-{place}/running"));
            say(format_args!(
                "             cd {}/0-*-redis && redis-cli -s redis.sock --scan",
                dir.display()
            ));
        }
        say(format_args!("             sartor status --endpoint {}", self.node_addr(0)));
        say(format_args!("\nCtrl-C ends it."));
    }
}

/// Whether the copies at a node are in redis-servers that Sartor starts.
fn is_own_redis(config: &CoordinatorConfig, node: u16) -> bool {
    kind_of(&config.datalet, NodeId(node)) == OWN_REDIS.name
}

/// A folder holds one cluster: what was said of its shape must be what it has.
fn same_shape(old: &CoordinatorConfig, config: &CoordinatorConfig, dir: &Path) -> Result<(), Failed> {
    let place = |config: &CoordinatorConfig| CoordinatorConfig {
        listen: String::new(),
        http: String::new(),
        dir: PathBuf::new(),
        detect_ms: 0,
        log: None,
        locks: None,
        ..config.clone()
    };
    if place(old) != place(config) {
        return Err(Failed::input(format!(
            "{} holds a cluster of another shape (begun with {} nodes, {} standbys, {} workers, {} shards, {} copies, {}, {}, metadata {}); leave these options out, or choose another --dir. Copies, mode and datalet change while it runs: sartor switch",
            dir.display(),
            old.nodes,
            old.standbys,
            old.workers,
            old.shards,
            old.copies,
            old.mode,
            old.datalet,
            old.metadata
        )));
    }
    Ok(())
}

/// The whole path of a folder, which is made if it is not there: nodes run elsewhere.
fn folder_of_sockets(dir: &Path) -> Result<PathBuf, Failed> {
    let wrong = |error: std::io::Error| Failed::input(format!("--unix {}: {error}", dir.display()));
    std::fs::create_dir_all(dir).map_err(wrong)?;
    dir.canonicalize().map_err(wrong)
}

fn check_metadata(metadata: &str, coordinators: u16) -> Result<(), Failed> {
    let etcd = endpoints(metadata).map_err(|error| Failed::input(format!("--{error}")))?;
    if !(1..=COORDINATORS_MAX).contains(&coordinators) {
        return Err(Failed::input(format!(
            "--coordinators {coordinators} is not possible; it must be from 1 to {COORDINATORS_MAX}"
        )));
    }
    if coordinators > 1 && etcd.is_none() {
        return Err(Failed::input(format!(
            "--coordinators {coordinators} needs --metadata etcd://HOST:PORT,...: a file is for one only"
        )));
    }
    Ok(())
}

/// A number of bytes, as people write it: 1000, 64kb, 512mb, 2gb.
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.to_ascii_lowercase();
    let units = [("kb", 10), ("k", 10), ("mb", 20), ("m", 20), ("gb", 30), ("g", 30), ("b", 0), ("", 0)];
    let fits = |(unit, shift): &(&str, u32)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(1 << shift)
    };
    units.iter().find_map(fits).ok_or_else(|| "a number of bytes such as 1000, 64kb, 512mb or 2gb".into())
}

/// A setting's name and value.
fn setting(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    let value = value.parse().map_err(|_| format!("the value of {name} must be a number"))?;
    Settings::default().set(name, value)?;
    Ok((name.to_owned(), value))
}
