//! A node: a process with one or more workers.

use crate::config::NodeConfig;
use crate::outside::Outside;
use crate::settings::Settings;
use crate::socket::{Bound, bind, bind_unix};
use crate::stats::SharedStats;
use crate::status::{CoordinatorNews, CoordinatorStatus, Status, status};
use crate::stores::disks::Disks;
use crate::survey::Surveys;
use crate::worker::{Mailbox, Worker};
use mio::net::TcpListener;
use sartor_core::coordinator::{Care, NodeReport, NodeState};
use sartor_core::ids::Incarnation;
use sartor_core::routing::map::ClusterMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What the workers of a node share. None of it is on the data path.
#[derive(Clone)]
pub struct Shared {
    /// The configuration.
    pub config: Arc<NodeConfig>,
    /// This life of the node.
    pub incarnation: Incarnation,
    /// Limits.
    pub settings: Settings,
    /// Counters.
    pub stats: SharedStats,
    /// What the copies here found when they were surveyed.
    pub surveys: Surveys,
    /// Services outside.
    pub outside: Arc<Outside>,
    /// Stores on disk.
    pub disks: Arc<Disks>,
    news: Arc<Mutex<News>>,
}

/// What the first worker last heard of the cluster.
#[derive(Clone, Default)]
pub struct News {
    /// How the nodes stand.
    pub reports: Vec<NodeReport>,
    /// The coordinator.
    pub coordinator: CoordinatorNews,
    /// All of them, as far as they can be told apart.
    pub coordinators: Vec<CoordinatorStatus>,
    /// What is not as it should be.
    pub care: Care,
    /// While the coordinator is away: nodes that our own links find dead.
    pub unreachable: Vec<u16>,
}

impl Shared {
    /// Takes note of news.
    pub fn publish(&self, news: News) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = news;
    }

    /// What was not as it should be when the coordinator was last heard.
    pub fn care(&self) -> Care {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).care.clone()
    }

    /// The cluster as known here.
    pub fn status(&self, map: &ClusterMap) -> Status {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for report in &mut news.reports {
            if news.unreachable.contains(&report.node.0) {
                report.state = NodeState::Down;
            }
        }
        let status = status(map, &news.reports, &news.care, &news.coordinator);
        Status { coordinators: news.coordinators, ..status }
    }
}

/// Runs a node until the process ends.
pub fn run(config: NodeConfig) -> Result<(), String> {
    raise_file_limit();
    let settings = Settings::default();
    for (name, value) in &config.settings {
        settings.set(name, *value)?;
    }
    let clients = doors(&config)?;
    let peers = bind(&config.peer_listen, config.unprotected)?;
    let failed = |error: std::io::Error| format!("cannot start the event loop: {error}");
    let mut mailboxes = Vec::new();
    let mut parts = Vec::new();
    for _ in 0..config.workers.max(1) {
        let (mailbox, part) = Mailbox::new().map_err(failed)?;
        mailboxes.push(mailbox);
        parts.push(part);
    }
    end_on_panic();
    let incarnation = Disks::next_life(config.dir.as_deref(), crate::clock::now().unix_ms);
    let disks = Disks::open(config.dir.as_deref(), config.cluster, incarnation, config.fsync, 0)?;
    let shared = Shared {
        incarnation,
        disks: Arc::new(disks),
        settings,
        stats: SharedStats::default(),
        surveys: Surveys::default(),
        outside: Arc::new(Outside::open(&config, &mailboxes)?),
        news: Arc::default(),
        config: Arc::new(config),
    };
    let mut first = None;
    for (index, part) in parts.into_iter().enumerate() {
        let listeners = clients.iter().map(Bound::listener).collect::<Result<_, _>>().map_err(failed)?;
        let peers = if index == 0 { Some(peers.try_clone().map_err(failed)?) } else { None };
        let worker = Worker::new(
            index as u8,
            shared.clone(),
            listeners,
            peers.map(TcpListener::from_std),
            part,
            mailboxes.clone(),
        );
        let mut worker = worker.map_err(failed)?;
        if index == 0 {
            first = Some(worker);
        } else {
            let name = format!("worker-{index}");
            std::thread::Builder::new().name(name).spawn(move || worker.run()).map_err(failed)?;
        }
    }
    if let Some(mut worker) = first {
        worker.run();
    }
    Ok(())
}

/// Where clients connect.
fn doors(config: &NodeConfig) -> Result<Vec<Bound>, String> {
    let mut doors = vec![Bound::Tcp(bind(&config.listen, config.unprotected)?)];
    if let Some(path) = &config.unix {
        doors.push(Bound::Unix(bind_unix(path)?, path.clone()));
    }
    Ok(doors)
}

/// A thread that panics takes the process with it: without it some of the node would hang for ever, and others take its place.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// As many open files as the system allows: one a connection.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
