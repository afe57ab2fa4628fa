//! One event loop: sockets on one side, the core's node on the other.
//!
//! A turn: wait; read every ready socket once and run what came; run the stores; wake the node, which
//! sends what the turn collected; write every socket once.

use crate::client::{Client, GATHER_US, READ_BYTES};
use crate::clock;
use crate::config::Timing;
use crate::front::plan::{Cursors, Env};
use crate::front::pool::Pool;
use crate::front::runs::Runs;
use crate::link::{KINDS, Links, OUT};
use crate::node::Shared;
use crate::resp::parse::Args;
use crate::settings::Name;
use crate::socket::Listener;
use bytes::{Bytes, BytesMut};
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use sartor_core::coordinator::agent::Agent;
use sartor_core::coordinator::{COORDINATOR, Heartbeat};
use sartor_core::ids::{NodeId, ShardId, WorkerId};
use sartor_core::keeper::{Keeper, KeeperLimits};
use sartor_core::node::letters::Letter;
use sartor_core::node::{Actions, Event, Node, NodeSettings};
use sartor_core::operation::Request;
use sartor_core::record::Layout;
use sartor_core::routing::map::ClusterMap;
use sartor_core::stores::Stores;
use sartor_core::time::{Micros, Now, millis};
use sartor_datalets::{Options, drop_aside, engine};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

mod asks;
mod chores;
mod clients;
mod mail;
mod runs;
mod switches;

use mail::mailbox;
pub use mail::{Inbox, Mail, Mailbox};

const CLIENTS: Token = Token(0);
const WAKER: Token = Token(KINDS);
const PEERS: Token = Token(2 * KINDS);
const CLIENT: usize = 1;

/// Tasks that one pass of the stores may hold: a few words can ask for large writes, and who orders
/// must see how full it is before it takes more.
const TASKS_MAX: usize = 16;
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
    slots: Vec<ShardId>,
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
    chores_at: Micros,
    accept_again: bool,
    switches: switches::Switches,
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
            slots: Vec::new(),
            pools: true,
            cursors: Cursors::default(),
            // The pool has the first place.
            clients: vec![None],
            free: Vec::new(),
            generations: vec![0],
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
            chores_at: 0,
            accept_again: false,
            switches: switches::Switches::default(),
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
            let awake = busy || timeout.is_zero() || !self.inbox.may_sleep();
            let polled = self.poll.poll(&mut events, Some(if awake { Duration::ZERO } else { timeout }));
            self.inbox.is_awake();
            match polled {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("epoll failed: {error}"),
                Ok(()) => {}
            }
            if !events.is_empty() {
                busy_until = now.steady_us + self.shared.settings.get(Name::BusyPollUs);
            } else if busy && !self.inbox.has_mail() {
                continue;
            }
            self.turn(&events);
        }
    }

    fn timeout(&self, now: Now) -> Duration {
        if !self.again.is_empty() || !self.actions.replies.is_empty() {
            return Duration::ZERO;
        }
        let gather_at = if self.dirty.is_empty() { Micros::MAX } else { now.steady_us + GATHER_US };
        let wake_at = self.node.wake_at().unwrap_or(Micros::MAX).min(self.chores_at).min(gather_at);
        let wake_at = wake_at.min(self.switches.wake_at());
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
        self.tend_switches(now);
        if self.node.wake_at().is_some_and(|at| at <= now.steady_us) {
            self.node.step(now, Event::Wake, &mut self.actions);
            self.run_stores(now);
        }
        self.answer(now);
        self.send(now);
        self.write_clients(now);
        if now.steady_us >= self.chores_at {
            self.chores(now);
        }
        self.count();
    }

    /// Runs tasks until there are none; replicas come and go before theirs.
    fn run_stores(&mut self, now: Now) {
        let mut ran = false;
        while !self.actions.tasks.is_empty()
            || !self.actions.opened.is_empty()
            || !self.actions.dropped.is_empty()
        {
            for shard in std::mem::take(&mut self.actions.dropped) {
                drop_aside(self.stores.remove(shard));
            }
            if self.actions.adopted {
                self.adopt_map();
            }
            for (shard, epoch) in std::mem::take(&mut self.actions.opened) {
                self.open_store(shard, epoch);
            }
            ran = true;
            let mut tasks = std::mem::take(&mut self.actions.tasks);
            self.stores.expect(&tasks);
            for (shard, task) in tasks.drain(..) {
                let done = self.stores.run(now, shard, task);
                self.node.step(now, Event::Stored(shard, done), &mut self.actions);
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

    fn open_store(&mut self, shard: ShardId, epoch: sartor_core::ids::Epoch) {
        let Some(map) = &self.map else { return };
        let table = map.shard(shard).and_then(|shard| map.table_of(shard));
        let Some(engine) = table.and_then(|table| engine(&table.datalet)) else {
            return eprintln!("sartor: shard {} wants an engine that this node does not have", shard.0);
        };
        let value_bytes_max = self.shared.settings.size(Name::ValueBytesMax);
        let limits = KeeperLimits { value_bytes_max, ..KeeperLimits::default() };
        let options = Options { seed: map.seed };
        let keeper = (engine.open)(&options).and_then(|store| {
            Ok(match engine.layout {
                Layout::Envelope => Keeper::enveloped(store, limits),
                Layout::Beside => Keeper::beside(store, (engine.open)(&options)?, limits),
            })
        });
        match keeper {
            Ok(mut keeper) => {
                keeper.set_full(self.full);
                self.stores.insert(shard, keeper.starting_in(epoch));
            }
            Err(error) => eprintln!("sartor: shard {} cannot open its store: {error}", shard.0),
        }
    }

    /// The node has a newer map: routes and addresses follow, and the other workers learn of it.
    fn adopt_map(&mut self) {
        self.actions.adopted = false;
        let Some(map) = self.node.map().cloned() else { return };
        self.slots = map.slot_table(0);
        self.pools = !self.node.has_locks();
        if self.slots.iter().all(|shard| *shard == self.slots[0]) {
            // One shard has them all: no need to look which.
            self.slots.truncate(1);
        }
        for node in map.nodes.iter().filter(|node| node.id != self.me.node) {
            for worker in 0..map.workers.max(1) {
                self.links.set_addr(WorkerId { node: node.id, worker }, &node.peer_addr);
            }
        }
        if self.me.worker == 0 {
            for mailbox in self.mailboxes.iter().skip(1) {
                mailbox.post(Mail::Map(map.clone()));
            }
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
                Mail::Corrupt(shard, key) => drop(self.corrupt(shard, &key)),
                Mail::Wish(table, shape) => self.wish(now, table, &shape),
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

/// What planning and joining may see.
fn env<'a>(
    now: Now,
    shared: &'a Shared,
    map: Option<&'a ClusterMap>,
    (slots, pools): (&'a [ShardId], bool),
    cursors: &'a mut Cursors,
) -> Env<'a> {
    let (settings, stats, config) = (&shared.settings, &*shared.stats, &*shared.config);
    Env { now, map, slots, pools, settings, stats, cursors, config }
}

fn node_settings(shared: &Shared, timing: &Timing) -> NodeSettings {
    let mut settings = NodeSettings::default();
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
        ..Heartbeat::default()
    }
}
