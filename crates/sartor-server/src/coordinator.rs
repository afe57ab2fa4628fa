//! A coordinator's process: one event loop around the core's coordinator, a store that keeps its map, and a
//! few pages of HTTP.
//!
//! The core's coordinator exists only while this process leads, and is made anew, from the map that is kept, each
//! time it begins to. Who does not lead hears heartbeats and says nothing.

use crate::clock;
use crate::config::{CoordinatorConfig, Timing};
use crate::link::{IN, KINDS, Links, OUT};
use crate::metadata::{Leader, MetadataStore, Notice, Term, open};
use crate::modes::{modes, names};
use crate::socket::bind;
use crate::status::{CoordinatorNews, status};
use bytes::Bytes;
use mio::net::TcpListener;
use mio::{Events, Poll, Token, Waker};
use sartor_core::controlet::mode;
use sartor_core::coordinator::{Action, Coordinator, CoordinatorSettings, Event, Heartbeat, Spec};
use sartor_core::ids::{Position, WorkerId};

use sartor_core::routing::map::{ClusterMap, Joining, Partition, Shard, Table, kind_of};
use sartor_core::time::{Micros, Now};
use sartor_core::wire::codec::Wire;
use sartor_core::wire::frame::Header;
use sartor_datalets::shown;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(KINDS);

/// Runs a coordinator until the process ends.
pub fn run(config: &CoordinatorConfig) -> Result<(), String> {
    if mode(modes(), &config.mode).is_none() {
        return Err(format!("this program knows no mode '{}'; it knows: {}", config.mode, names()));
    }
    let listener = TcpListener::from_std(bind(&config.listen, config.unprotected)?);
    let page = Arc::new(Mutex::new(String::from("{}")));
    serve_http(&config.http, page.clone())?;
    let failed = |error: std::io::Error| format!("cannot start the event loop: {error}");
    let poll = Poll::new().map_err(failed)?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(failed)?);
    let store = open(config, waker)?;
    let mut links = Links::new(config.cluster, 0, Some(listener));
    links.register(poll.registry(), LISTENER).map_err(failed)?;
    let settings = Timing::of(config.detect_ms).coordinator;
    let (config, log) = (config.clone(), logger().map_err(failed)?);
    let (lead, leader, ticked_us) = (None, None, 0);
    let mut process = Process { config, poll, links, store, settings, lead, leader, page, ticked_us, log };
    process.run().map_err(|error| format!("the coordinator ends: {error}"))
}

fn spec(config: &CoordinatorConfig) -> Spec {
    Spec {
        cluster: config.cluster,
        seed: config.seed,
        nodes: config.nodes,
        standbys: config.standbys,
        workers: config.workers,
        partition: Partition::Hash,
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
    store: Box<dyn MetadataStore>,
    settings: CoordinatorSettings,
    /// While this process leads.
    lead: Option<Lead>,
    /// Who else does.
    leader: Option<Leader>,
    page: Arc<Mutex<String>>,
    ticked_us: Micros,
    log: SyncSender<String>,
}

struct Lead {
    term: Term,
    core: Coordinator,
    warned: bool,
}

impl Process {
    fn run(&mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(256);
        let tick_us = self.settings.tick_us;
        loop {
            match self.poll.poll(&mut events, Some(Duration::from_micros(tick_us))) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            let now = clock::now();
            // First of all, as even a socket that becomes writable may let something out.
            self.hear_store(now)?;
            let mut frames = Vec::new();
            for event in &events {
                let token = event.token();
                match (token, token.0 % KINDS) {
                    (WAKER, _) => {}
                    (_, OUT) => self.links.on_out_event(now.steady_us, token, event.is_read_closed()),
                    (_, IN) => self.links.on_in_event(self.poll.registry(), token, &mut frames),
                    (_, _) => self.links.accept(self.poll.registry()),
                }
            }
            for frame in frames {
                self.learn_addr(&frame);
                self.step(now, Event::Frame(frame))?;
            }
            // After everything that was heard: who has spoken is not silent.
            if now.steady_us >= self.ticked_us + tick_us {
                self.ticked_us = now.steady_us;
                self.step(now, Event::Tick)?;
                self.warn();
            }
            // This process may have stood still since the turn began: then nothing of it may leave.
            let now = clock::now();
            self.hear_store(now)?;
            self.links.flush(now.steady_us, self.poll.registry());
            self.publish(now);
        }
    }

    /// Learns whether this process leads, and what is kept.
    fn hear_store(&mut self, now: Now) -> std::io::Result<()> {
        // Asked before the news are read, or it could be meant for a term that is told of only later.
        let doubtful =
            if self.store.is_certain(now) { None } else { self.lead.as_ref().map(|lead| lead.term) };
        loop {
            let news = self.store.news();
            if news.is_empty() {
                break;
            }
            for notice in news {
                self.on_notice(now, notice)?;
            }
        }
        if let Some(term) = doubtful.filter(|term| self.lead.as_ref().is_some_and(|lead| lead.term == *term))
        {
            self.store.resign(term);
            self.depose(term, "its lease could not be renewed in time");
        }
        Ok(())
    }

    fn on_notice(&mut self, now: Now, notice: Notice) -> std::io::Result<()> {
        match notice {
            Notice::Leads(term, map) => {
                let (spec, addr) = (spec(&self.config), self.config.addr().to_owned());
                // It has heard nobody yet, so the silence of all counts from now.
                let core = Coordinator::new(now, spec, self.settings, addr, std::process::id(), map, modes());
                self.lead = Some(Lead { term, core, warned: false });
                self.leader = None;
                if self.config.metadata != "file" {
                    self.tell(format!("the coordinator at {} leads (term {term})", self.config.addr()));
                }
            }
            Notice::Saved(term, epoch) => {
                if let Some(lead) = self.lead.as_ref().filter(|lead| lead.term == term) {
                    let old = lead.core.map().cloned();
                    self.step(now, Event::Persisted(epoch))?;
                    let new = self.lead.as_ref().and_then(|lead| lead.core.map());
                    let lines = new.map_or(Vec::new(), |new| changes(old.as_ref(), new));
                    lines.into_iter().for_each(|line| self.tell(line));
                }
            }
            Notice::Deposed(term, why) => self.depose(term, &why),
            Notice::Follows(leader) => self.leader = leader,
            Notice::Trouble(line) => self.tell(line),
        }
        Ok(())
    }

    /// That term is over: what was decided in it and is not kept is forgotten, and what was not sent stays here.
    fn depose(&mut self, term: Term, why: &str) {
        if self.lead.take_if(|lead| lead.term == term).is_some() {
            self.links.fall_silent();
            self.tell(format!("the coordinator at {} leads no longer: {why}", self.config.addr()));
        }
    }

    /// Whoever does not read our messages must not stop us.
    fn tell(&self, line: String) {
        let _ = self.log.try_send(line);
    }

    fn warn(&mut self) {
        let Some(lead) = self.lead.as_mut().filter(|lead| !lead.warned) else { return };
        if let Some(epoch) = lead.core.outdated() {
            lead.warned = true;
            let (place, epoch) = (self.store.place(), epoch.0);
            self.tell(format!(
                "{place} is older than the map of the nodes (epoch {epoch}); nothing will be repaired. Put its newest copy back, or stop all nodes and begin without it"
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
        let Some(lead) = &mut self.lead else { return Ok(()) };
        let mut actions = Vec::new();
        lead.core.step(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Persist(map) => self.store.save(lead.term, &map)?,
                Action::Send(to, frame) => self.links.send(to, &frame),
            }
        }
        Ok(())
    }

    fn publish(&self, now: Now) {
        let json = match &self.lead {
            None => serde_json::to_string(&serde_json::json!({ "leader": self.leader })),
            Some(Lead { core, .. }) => {
                let Some(map) = core.map() else { return };
                let (addr, pid) = (self.config.addr().to_owned(), std::process::id());
                let news = CoordinatorNews { addr, pid, is_up: true };
                serde_json::to_string(&status(map, &core.reports(now), &core.care(), &news))
            }
        };
        if let Ok(json) = json {
            *self.page.lock().unwrap_or_else(PoisonError::into_inner) = json;
        }
    }
}

/// What happens to tables, a line for each that changes.
fn tables(old: Option<&ClusterMap>, new: &ClusterMap) -> Vec<String> {
    let Some(old) = old else { return Vec::new() };
    let epoch = new.epoch.0;
    let news = |table: &Table| {
        let name = &table.name;
        match old.table(table.id) {
            None => Some(format!("epoch {epoch}: table {name} begins")),
            Some(before) if before.mode != table.mode => {
                Some(format!("epoch {epoch}: table {name} goes from {} to {}", before.mode, table.mode))
            }
            Some(_) => None,
        }
    };
    let ended = old.tables.iter().filter(|table| new.table(table.id).is_none());
    let ended = ended.map(|table| format!("epoch {epoch}: table {} is deleted", table.name));
    new.tables.iter().filter_map(news).chain(ended).collect()
}

/// What happens to tables and shards, a line for each that changes.
fn changes(old: Option<&ClusterMap>, new: &ClusterMap) -> Vec<String> {
    let mut lines = tables(old, new);
    for shard in new.shards.iter().filter(|shard| !shard.is_vacant()) {
        let before = old.and_then(|old| old.shard(shard.id));
        if let Some(line) = division(before, shard) {
            lines.push(format!("epoch {}: {line}", new.epoch.0));
        }
        let Some(before) = before.filter(|before| before.part_of.is_none()) else { continue };
        let same =
            (&before.members, before.joining, before.born) == (&shard.members, shard.joining, shard.born);
        if same {
            continue;
        }
        if before.born != shard.born {
            lines.push(format!(
                "shard {} lost all its copies; it begins anew, {}",
                shard.id.0,
                with_what(new, shard)
            ));
        }
        let members: Vec<String> = shard.members.iter().map(|member| member.node.0.to_string()).collect();
        let joining = match shard.joining {
            Some(joining) if shard.members.contains(&joining.member) => ", the last one new".into(),
            Some(Joining { member, held: Position::ZERO, .. }) => {
                format!(", node {} is being filled", member.node.0)
            }
            Some(Joining { member, held, .. }) => {
                format!(
                    ", node {} is back with what there was at {held}, and gets what it lacks",
                    member.node.0
                )
            }
            None => String::new(),
        };
        let (epoch, shard, members) = (new.epoch.0, shard.id.0, members.join(" "));
        lines.push(format!("epoch {epoch}: shard {shard} on nodes {members}{joining}"));
    }
    lines
}

/// How a division goes on.
fn division(before: Option<&Shard>, shard: &Shard) -> Option<String> {
    let (id, key) = (shard.id.0, shard.lower.escape_ascii());
    let was = before.map(|before| before.part_of);
    match (was, shard.part_of) {
        (None, Some(part)) => {
            Some(format!("shard {} is to be divided at '{key}': shard {id} is prepared", part.whole.0))
        }
        (Some(Some(old)), Some(part)) if part.closed && !old.closed => {
            Some(format!("shard {} takes no more for shard {id}", part.whole.0))
        }
        (Some(Some(_)), None) => Some(format!("shard {id} serves from '{key}' on")),
        _ => None,
    }
}

/// What there is in a shard of which all copies died.
fn with_what(map: &ClusterMap, shard: &Shard) -> String {
    let table = map.table_of(shard).filter(|table| table.is_adopted());
    match (table, shard.members.first()) {
        (Some(table), Some(first)) => {
            format!("with what is in {}", shown(kind_of(&table.datalet, first.node)))
        }
        _ => "empty".into(),
    }
}

/// Writes lines to stderr on a thread of its own.
fn logger() -> std::io::Result<SyncSender<String>> {
    let (log, lines) = sync_channel::<String>(1024);
    let write = move || lines.iter().for_each(|line| eprintln!("sartor: {line}"));
    std::thread::Builder::new().name("log".into()).spawn(write)?;
    Ok(log)
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
