//! The coordinator's process: one event loop around the core's coordinator, its map on disk, and a
//! few pages of HTTP.

use crate::clock;
use crate::config::{CoordinatorConfig, Timing, replace};
use crate::link::{IN, KINDS, Links, OUT};
use crate::node::bind;
use crate::status::{CoordinatorNews, status};
use bytes::Bytes;
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use sartor_core::controlet::MODES;
use sartor_core::coordinator::{Action, Coordinator, Event, Heartbeat, Spec};
use sartor_core::ids::WorkerId;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::{Micros, Now};
use sartor_core::wire::codec::Wire;
use sartor_core::wire::frame::Header;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LISTENER: Token = Token(0);
const MAP_FILE: &str = "cluster.map";

/// Runs the coordinator until the process ends.
pub fn run(config: &CoordinatorConfig) -> Result<(), String> {
    let listener = TcpListener::from_std(bind(&config.listen, config.unprotected)?);
    let page = Arc::new(Mutex::new(String::from("{}")));
    serve_http(&config.http, page.clone())?;
    let map = load_map(&config.dir)?;
    let failed = |error: std::io::Error| format!("cannot start the event loop: {error}");
    let poll = Poll::new().map_err(failed)?;
    let mut links = Links::new(config.cluster, 0, Some(listener));
    links.register(poll.registry(), LISTENER).map_err(failed)?;
    let settings = Timing::of(config.detect_ms).coordinator;
    let (addr, pid, now) = (config.listen.clone(), std::process::id(), clock::now());
    let core = Coordinator::new(now, spec(config), settings, addr, pid, map, MODES);
    let (config, tick_us, log) = (config.clone(), settings.tick_us, logger().map_err(failed)?);
    let mut process = Process { config, poll, links, core, page, tick_us, ticked_us: 0, log, warned: false };
    process.run().map_err(|error| format!("the coordinator ends: {error}"))
}

fn spec(config: &CoordinatorConfig) -> Spec {
    Spec {
        cluster: config.cluster,
        seed: config.seed,
        nodes: config.nodes,
        standbys: config.standbys,
        workers: config.workers,
        shards: config.shards,
        copies: config.copies,
        mode: config.mode.clone(),
        datalet: config.datalet.clone(),
    }
}

struct Process {
    config: CoordinatorConfig,
    poll: Poll,
    links: Links,
    core: Coordinator,
    page: Arc<Mutex<String>>,
    tick_us: Micros,
    ticked_us: Micros,
    log: SyncSender<String>,
    warned: bool,
}

impl Process {
    fn run(&mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(256);
        self.publish(clock::now());
        loop {
            match self.poll.poll(&mut events, Some(Duration::from_micros(self.tick_us))) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            let now = clock::now();
            let mut frames = Vec::new();
            for event in &events {
                let token = event.token();
                match token.0 % KINDS {
                    OUT => self.links.on_out_event(now.steady_us, token, event.is_read_closed()),
                    IN => self.links.on_in_event(self.poll.registry(), token, &mut frames),
                    _ => self.links.accept(self.poll.registry()),
                }
            }
            for frame in frames {
                self.learn_addr(&frame);
                self.step(now, Event::Frame(frame))?;
            }
            // After everything that was heard: who has spoken is not silent.
            if now.steady_us >= self.ticked_us + self.tick_us {
                self.ticked_us = now.steady_us;
                self.step(now, Event::Tick)?;
                self.warn();
            }
            self.links.flush(now.steady_us, self.poll.registry());
            self.publish(now);
        }
    }

    fn warn(&mut self) {
        if let Some(epoch) = self.core.outdated().filter(|_| !self.warned) {
            self.warned = true;
            let (path, epoch) = (self.config.dir.join(MAP_FILE), epoch.0);
            let _ = self.log.try_send(format!(
                "{} is older than the map of the nodes (epoch {epoch}); nothing will be repaired. Put its newest copy back, or stop all nodes and begin with an empty folder",
                path.display()
            ));
        }
    }

    /// Nodes tell their addresses themselves.
    fn learn_addr(&mut self, frame: &Bytes) {
        if let Ok((header, payload)) = Header::parse(frame.clone())
            && let Ok(heartbeat) = Heartbeat::from_bytes(payload)
        {
            self.links.set_addr(WorkerId { node: header.from.node, worker: 0 }, &heartbeat.peer_addr);
        }
    }

    fn step(&mut self, now: Now, event: Event) -> std::io::Result<()> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.core.step(now, event, &mut actions);
            for action in actions {
                match action {
                    Action::Persist(map) => {
                        save_map(&self.config.dir, &map)
                            .map_err(|error| cannot_write(&self.config.dir, &error))?;
                        for line in changes(self.core.map(), &map) {
                            // Whoever does not read our messages must not stop us.
                            let _ = self.log.try_send(line);
                        }
                        events.push(Event::Persisted(map.epoch));
                    }
                    Action::Send(to, frame) => self.links.send(to, &frame),
                }
            }
        }
        Ok(())
    }

    fn publish(&self, now: Now) {
        let Some(map) = self.core.map() else { return };
        let news = CoordinatorNews { addr: self.config.listen.clone(), pid: std::process::id(), is_up: true };
        let status = status(map, &self.core.reports(now), &self.core.repairs(), &news);
        if let Ok(json) = serde_json::to_string(&status) {
            *self.page.lock().unwrap_or_else(PoisonError::into_inner) = json;
        }
    }
}

/// What happens to the shards, a line for each that changes.
fn changes(old: Option<&ClusterMap>, new: &ClusterMap) -> Vec<String> {
    let mut lines = Vec::new();
    for shard in &new.shards {
        let Some(before) = old.and_then(|old| old.shard(shard.id)) else { continue };
        if before.members == shard.members && before.joining == shard.joining {
            continue;
        }
        if before.born != shard.born {
            lines.push(format!("shard {} lost all its copies; it begins anew, empty", shard.id.0));
        }
        let members: Vec<String> = shard.members.iter().map(|member| member.node.0.to_string()).collect();
        let joining = match shard.joining {
            Some(joining) if shard.members.contains(&joining.member) => ", the last one new".into(),
            Some(joining) => format!(", node {} is being filled", joining.member.node.0),
            None => String::new(),
        };
        let (epoch, shard, members) = (new.epoch.0, shard.id.0, members.join(" "));
        lines.push(format!("epoch {epoch}: shard {shard} on nodes {members}{joining}"));
    }
    lines
}

/// Writes lines to stderr on a thread of its own.
fn logger() -> std::io::Result<SyncSender<String>> {
    let (log, lines) = sync_channel::<String>(1024);
    let write = move || lines.iter().for_each(|line| eprintln!("sartor: {line}"));
    std::thread::Builder::new().name("log".into()).spawn(write)?;
    Ok(log)
}

/// The map that was on disk, if any.
pub fn load_map(dir: &Path) -> Result<Option<ClusterMap>, String> {
    let path = dir.join(MAP_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let map = ClusterMap::from_bytes(bytes.into());
    map.map(Some)
        .map_err(|error| format!("{} is damaged ({}); restore it from a copy", path.display(), error.0))
}

fn cannot_write(dir: &Path, error: &std::io::Error) -> std::io::Error {
    let text = format!(
        "cannot write the cluster map to {}: {error}; nothing is repaired until that works",
        dir.display()
    );
    std::io::Error::new(error.kind(), text)
}

fn save_map(dir: &Path, map: &ClusterMap) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    replace(&dir.join(MAP_FILE), &map.to_bytes())
}

fn serve_http(addr: &str, page: Arc<Mutex<String>>) -> Result<(), String> {
    let server =
        tiny_http::Server::http(addr).map_err(|error| format!("cannot listen on {addr}: {error}"))?;
    let answer = move || {
        for request in server.incoming_requests() {
            let (code, body) = match request.url() {
                "/status" => (200, page.lock().unwrap_or_else(PoisonError::into_inner).clone()),
                "/health" => (200, "{\"ok\":true}".into()),
                _ => (404, "{\"error\":\"try /status or /health\"}".into()),
            };
            let kind = tiny_http::Header::from_bytes("Content-Type", "application/json");
            let mut response = tiny_http::Response::from_string(body).with_status_code(code);
            if let Ok(kind) = kind {
                response.add_header(kind);
            }
            let _ = request.respond(response);
        }
    };
    let spawned = std::thread::Builder::new().name("http".into()).spawn(answer);
    spawned.map(drop).map_err(|error| format!("cannot start the HTTP thread: {error}"))
}
