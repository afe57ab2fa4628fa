//! One event loop: sockets on one side, the core's node on the other.
//!
//! A turn: wait; read every ready socket once and run what came; run the stores; wake the node, which
//! sends what the turn collected; write every socket once.

use crate::client::{Client, GATHER_US, READ_BYTES};
use crate::clock;
use crate::config::Timing;
use crate::front::plan::Cursors;
use crate::front::pool::Pool;
use crate::front::runs::Runs;
use crate::link::{KINDS, Links, OUT};
use crate::modes::modes;
use crate::node::Shared;
use crate::resp::parse::Args;
use crate::settings::Name;
use crate::socket::Listener;
use crate::stores::Stores;
use bytes::{Bytes, BytesMut};
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use sartor_core::coordinator::agent::Agent;
use sartor_core::coordinator::{COORDINATOR, Heartbeat};
use sartor_core::ids::{NodeId, ShardId, WorkerId};
use sartor_core::node::letters::Letter;
use sartor_core::node::{Actions, Event, Node, NodeSettings};
use sartor_core::operation::Request;
use sartor_core::routing::map::ClusterMap;
use sartor_core::routing::route::Routes;
use sartor_core::time::{Micros, Now, millis};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What planning and joining may see for a connection; not a method, so that the rest of the worker stays free.
macro_rules! env {
    ($worker:expr, $now:expr, $connection:expr) => {
        $crate::front::plan::Env {
            now: $now,
            map: $worker.map.as_deref(),
            routes: &$worker.routes,
            table: $connection.table,
            pools: $worker.pools,
            settings: &$worker.shared.settings,
            stats: &$worker.shared.stats,
            cursors: &mut $worker.cursors,
            config: &$worker.shared.config,
        }
    };
}

mod asks;
mod changes;
mod chores;
mod clients;
mod mail;
mod opening;
mod runs;
mod splitting;

use mail::mailbox;
pub use mail::{Inbox, Mail, Mailbox};

const CLIENTS: Token = Token(0);
const WAKER: Token = Token(KINDS);
const PEERS: Token = Token(2 * KINDS);
const CLIENT: usize = 1;

/// Tasks that one pass of the stores may hold: a few words can ask for large writes, and who orders
/// must see how full it is before it takes more.
const TASKS_MAX: usize = 16;
/// Tasks for a store with a thread wait until no socket is ready, so that it does many at once, but no more turns than so.
const HELD_MAX: u32 = 8;
const CHORES_EVERY_US: Micros = millis(100);
/// The coordinator is away when it was not heard for so long.
const COORDINATOR_SILENT_US: Micros = millis(1000);

/// What a worker is made with: where it waits, and its mail.
pub struct MailboxEnd {
    poll: Poll,
    inbox: Inbox,
}

impl Mailbox {
    /// A mailbox, and the worker's end of it.
    pub fn new() -> io::Result<(Mailbox, MailboxEnd)> {
        let poll = Poll::new()?;
        let (mailbox, inbox) = mailbox(&poll, WAKER)?;
        Ok((mailbox, MailboxEnd { poll, inbox }))
    }
}

#[cfg(test)]
impl MailboxEnd {
    /// How many tasks were done, as far as that came by mail.
    pub fn take_stored(&self) -> usize {
        let mail = std::iter::from_fn(|| self.inbox.take());
        mail.map(|mail| if let Mail::Stored(_, done) = mail { done.len() } else { 0 }).sum()
    }
}

/// An event loop.
pub struct Worker {
    me: WorkerId,
    shared: Shared,
    poll: Poll,
    listeners: Vec<Listener>,
    links: Links,
    inbox: Inbox,
    mailboxes: Vec<Mailbox>,
    node: Node,
    stores: Stores,
    actions: Actions,
    map: Option<Arc<ClusterMap>>,
    routes: Routes,
    /// Whether single commands are pooled.
    pools: bool,
    cursors: Cursors,
    clients: Vec<Option<Box<Client>>>,
    free: Vec<usize>,
    generations: Vec<u32>,
    next_id: u64,
    /// Clients to look at again without waiting for an event.
    again: Vec<usize>,
    dirty: Vec<usize>,
    requests: Vec<Request>,
    args: Args,
    runs: Runs,
    pool: Pool,
    scratch: Box<[u8]>,
    spare: BytesMut,
    charged: usize,
    /// About what our records take, as it is counted in the node's sum, and whether that is too much.
    stored: u64,
    full: bool,
    /// Copies of which it was said that they are not like the first one.
    differing: BTreeSet<ShardId>,
    /// For how many looks a log outside was sealed by others.
    sealed: BTreeMap<ShardId, u32>,
    /// For how many turns tasks were held back.
    held: u32,
    chores_at: Micros,
    accept_again: bool,
    changes: changes::Changes,
    splitting: splitting::Splitting,
    counts: Counts,
}

/// Counted during a turn, added to the shared counters at its end.
#[derive(Default)]
struct Counts {
    commands: u64,
    bytes_in: u64,
    bytes_out: u64,
    hits: u64,
    misses: u64,
}

impl Worker {
    /// A worker of a node.
    pub fn new(
        index: u8,
        shared: Shared,
        mut listeners: Vec<Listener>,
        peers: Option<TcpListener>,
        end: MailboxEnd,
        mailboxes: Vec<Mailbox>,
    ) -> io::Result<Worker> {
        let MailboxEnd { poll, inbox } = end;
        listeners.iter_mut().try_for_each(|listener| listener.register(poll.registry(), CLIENTS))?;
        let mut links = Links::new(shared.config.cluster, index, peers);
        links.register(poll.registry(), PEERS)?;
        links.set_addrs(COORDINATOR, &shared.config.coordinator);
        let me = WorkerId { node: NodeId(shared.config.node), worker: index };
        let timing = Timing::of(shared.config.detect_ms);
        let agent = (index == 0).then(|| Agent::new(heartbeat(&shared), timing.agent));
        let settings = node_settings(&shared, &timing);
        Ok(Worker {
            me,
            poll,
            listeners,
            links,
            inbox,
            mailboxes,
            node: Node::new(me, shared.incarnation, settings, agent),
            stores: Stores::default(),
            actions: Actions::default(),
            map: None,
            routes: Routes::default(),
            pools: true,
            cursors: Cursors::default(),
            // The pool has the first place, who divides shards the second.
            clients: vec![None, None],
            free: Vec::new(),
            generations: vec![0, 0],
            next_id: u64::from(index) << 48,
            again: Vec::new(),
            dirty: Vec::new(),
            requests: Vec::new(),
            args: Args::default(),
            runs: Runs::default(),
            pool: Pool::default(),
            scratch: vec![0; READ_BYTES].into(),
            spare: BytesMut::new(),
            charged: 0,
            stored: 0,
            full: false,
            differing: BTreeSet::new(),
            sealed: BTreeMap::new(),
            held: 0,
            chores_at: 0,
            accept_again: false,
            changes: changes::Changes::default(),
            splitting: splitting::Splitting::default(),
            counts: Counts::default(),
            shared,
        })
    }

    /// Turns until the process ends.
    pub fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        let mut busy_until = 0;
        loop {
            let now = clock::now();
            let timeout = self.timeout(now);
            let busy = now.steady_us < busy_until && !timeout.is_zero();
            let held = self.stores.holds();
            let awake = busy || held || timeout.is_zero() || !self.inbox.may_sleep();
            let polled = self.poll.poll(&mut events, Some(if awake { Duration::ZERO } else { timeout }));
            self.inbox.is_awake();
            match polled {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("epoll failed: {error}"),
                Ok(()) => {}
            }
            if events.is_empty() {
                self.flush_stores();
            }
            if !events.is_empty() {
                busy_until = now.steady_us + self.shared.settings.get(Name::BusyPollUs);
            } else if (busy || held) && !timeout.is_zero() && !self.inbox.has_mail() {
                continue;
            }
            self.turn(&events);
        }
    }

    fn timeout(&self, now: Now) -> Duration {
        if !self.again.is_empty() || !self.actions.replies.is_empty() || !self.actions.tasks.is_empty() {
            return Duration::ZERO;
        }
        let gather_at = if self.dirty.is_empty() { Micros::MAX } else { now.steady_us + GATHER_US };
        let wake_at = self.node.wake_at().unwrap_or(Micros::MAX).min(self.chores_at).min(gather_at);
        let wake_at = wake_at.min(self.changes.wake_at());
        Duration::from_micros(wake_at.saturating_sub(now.steady_us))
    }

    fn turn(&mut self, events: &Events) {
        let mut now = clock::now();
        let (mut frames, mut letters) = (Vec::new(), Vec::new());
        for event in events {
            let token = event.token();
            match (token, token.0 % KINDS) {
                (CLIENTS, _) => self.accept(now),
                (WAKER, _) => {}
                (PEERS, _) => self.links.accept(self.poll.registry()),
                (_, CLIENT) => self.on_client_event(token.0 / KINDS, event),
                (_, OUT) => self.links.on_out_event(now.steady_us, token, event.is_read_closed()),
                (_, _) => self.links.on_in_event(self.poll.registry(), token, &mut frames),
            }
        }
        if self.inbox.has_mail() {
            self.read_mail(now, &mut frames, &mut letters);
        }
        for index in std::mem::take(&mut self.again) {
            self.serve(now, index);
        }
        self.close_pool(now);
        // Stamps of other members count from when they came, so the clock must be younger than they are.
        now = clock::now();
        for frame in frames {
            self.node.step(now, Event::Frame(frame), &mut self.actions);
            self.run_stores(now);
        }
        for letter in letters {
            self.node.step(now, Event::Letter(letter), &mut self.actions);
            if self.actions.tasks.len() >= TASKS_MAX {
                self.run_stores(now);
            }
        }
        self.run_stores(now);
        now = clock::now();
        self.tend_changes(now);
        if self.node.wake_at().is_some_and(|at| at <= now.steady_us) {
            self.node.step(now, Event::Wake, &mut self.actions);
            self.run_stores(now);
        }
        self.answer(now);
        self.send(now);
        self.write_clients(now);
        self.held = if self.stores.holds() { self.held + 1 } else { 0 };
        if self.held >= HELD_MAX {
            self.flush_stores();
        }
        if now.steady_us >= self.chores_at {
            self.chores(now);
        }
        self.count();
    }

    fn flush_stores(&mut self) {
        self.stores.flush();
        self.held = 0;
    }

    /// Runs tasks until there are none; replicas come and go before theirs.
    fn run_stores(&mut self, now: Now) {
        let mut ran = false;
        while !self.actions.tasks.is_empty()
            || !self.actions.opened.is_empty()
            || !self.actions.dropped.is_empty()
            || !self.actions.filled.is_empty()
        {
            for shard in std::mem::take(&mut self.actions.dropped) {
                self.stores.remove(shard);
            }
            if self.actions.adopted {
                self.adopt_map();
            }
            for opened in std::mem::take(&mut self.actions.opened) {
                self.open_store(&opened);
            }
            for shard in std::mem::take(&mut self.actions.filled) {
                self.stores.become_whole(shard);
            }
            ran = true;
            let mut tasks = std::mem::take(&mut self.actions.tasks);
            self.stores.expect(&tasks);
            for (shard, task) in tasks.drain(..) {
                if let Some(done) = self.stores.run(now, shard, task) {
                    self.node.step(now, Event::Stored(shard, done), &mut self.actions);
                }
            }
            // The list goes back with its room, unless new tasks came meanwhile.
            if self.actions.tasks.is_empty() {
                self.actions.tasks = tasks;
            }
        }
        if self.actions.adopted {
            self.adopt_map();
        }
        if ran {
            self.weigh(now);
        }
    }

    /// Keeps the node's sum of records, and tells when there is no memory for more.
    fn weigh(&mut self, now: Now) {
        let stored = self.stores.bytes();
        let sum = &self.shared.stats.stored;
        if stored != self.stored {
            sum.fetch_add(stored.wrapping_sub(self.stored), Ordering::Relaxed);
            self.stored = stored;
        }
        let max = self.shared.settings.get(Name::MemoryMax);
        let full = max > 0 && sum.load(Ordering::Relaxed) >= max;
        if full != self.full {
            self.full = full;
            self.stores.set_full(full);
            self.node.step(now, Event::Full(full), &mut self.actions);
        }
    }

    /// The node has a newer map: routes and addresses follow, and the other workers learn of it.
    fn adopt_map(&mut self) {
        self.actions.adopted = false;
        let Some(map) = self.node.map().cloned() else { return };
        self.routes = Routes::of(&map);
        self.pools = !self.node.has_locks();
        for node in map.nodes.iter().filter(|node| node.id != self.me.node) {
            for worker in 0..map.workers.max(1) {
                self.links.set_addr(WorkerId { node: node.id, worker }, &node.peer_addr);
            }
        }
        if self.me.worker == 0 {
            self.shared.disks.follow(&map, self.me.node);
            for mailbox in self.mailboxes.iter().skip(1) {
                mailbox.post(Mail::Map(map.clone()));
            }
        }
        let value_bytes_max = self.shared.settings.size(Name::ValueBytesMax);
        for shard in &map.shards {
            self.stores.set_bounds(shard.id, opening::bounds_of(&self.node, &map, shard, value_bytes_max));
        }
        self.map = Some(map);
    }

    fn read_mail(&mut self, now: Now, frames: &mut Vec<Bytes>, letters: &mut Vec<Letter>) {
        while let Some(mail) = self.inbox.take() {
            match mail {
                Mail::Letters(more) => letters.extend(more),
                Mail::Frame(frame) => frames.push(frame),
                Mail::Map(map) => {
                    self.node.step(now, Event::Map(map), &mut self.actions);
                    self.run_stores(now);
                }
                Mail::Reports(worker, reports) => {
                    self.node.step(now, Event::Reports(worker, reports), &mut self.actions);
                }
                Mail::Log(shard, number, event) => {
                    self.node.step(now, Event::Log(shard, number, event), &mut self.actions);
                    self.run_stores(now);
                }
                Mail::Lock(event) => self.node.step(now, Event::Lock(event), &mut self.actions),
                Mail::Stored(shard, done) => {
                    for done in done {
                        self.node.step(now, Event::Stored(shard, done), &mut self.actions);
                    }
                    self.run_stores(now);
                }
                Mail::Corrupt(shard, key) => drop(self.stores.corrupt(shard, &key)),
                Mail::Wish(change) => self.wish(now, &change),
                Mail::Link(handover) => self.links.adopt(self.poll.registry(), handover, frames),
            }
        }
    }

    fn send(&mut self, now: Now) {
        for (shard, number, call) in self.actions.log.drain(..) {
            self.shared.outside.ask_log(shard, number, call);
        }
        for call in self.actions.locks.drain(..) {
            self.shared.outside.ask_locks(call);
        }
        for (to, frame) in self.actions.sends.drain(..) {
            if to.node != self.me.node {
                self.links.send(to, &frame);
            } else if let Some(mailbox) = self.mailboxes.get(usize::from(to.worker)) {
                mailbox.post(Mail::Frame(frame));
            }
        }
        for (worker, mailbox) in self.mailboxes.iter().enumerate() {
            let to_it = |(to, _): &mut (u8, Letter)| usize::from(*to) == worker;
            let letters: Vec<Letter> =
                self.actions.letters.extract_if(.., to_it).map(|(_, letter)| letter).collect();
            if !letters.is_empty() {
                mailbox.post(Mail::Letters(letters));
            }
        }
        for handover in self.links.handovers.drain(..) {
            if let Some(mailbox) = self.mailboxes.get(usize::from(handover.worker)) {
                mailbox.post(Mail::Link(handover));
            }
        }
        self.links.flush(now.steady_us, self.poll.registry());
    }
}

fn node_settings(shared: &Shared, timing: &Timing) -> NodeSettings {
    let (durable, bounds_of) = (sartor_datalets::durable(), sartor_datalets::bounds as fn(&str) -> _);
    let is_ordered = sartor_datalets::is_ordered as fn(&str) -> bool;
    let modes = modes();
    let mut settings = NodeSettings { modes, durable, is_ordered, bounds_of, ..NodeSettings::default() };
    settings.controlet.lease = timing.lease;
    settings.controlet.patience_us = millis(shared.settings.get(Name::FailoverWaitMs));
    settings.forward.patience_us = settings.controlet.patience_us;
    settings.controlet.value_bytes_max = shared.settings.size(Name::ValueBytesMax);
    settings.controlet.once_ms = shared.settings.get(Name::OnceMs);
    settings.controlet.once_bytes_max = shared.settings.size(Name::OnceBytesMax);
    settings
}

fn heartbeat(shared: &Shared) -> Heartbeat {
    Heartbeat {
        node: NodeId(shared.config.node),
        incarnation: shared.incarnation,
        pid: std::process::id(),
        client_addr: shared.config.announce.as_ref().unwrap_or(&shared.config.listen).clone(),
        peer_addr: shared.config.peer_announce.as_ref().unwrap_or(&shared.config.peer_listen).clone(),
        held: shared.disks.marks(),
        unreadable: shared.disks.unreadable(),
        ..Heartbeat::default()
    }
}
