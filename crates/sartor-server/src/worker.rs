//! One event loop: sockets on one side, the core's node on the other.
//!
//! A turn: wait; read every ready socket once and run what came; run the stores; wake the node, which
//! sends what the turn collected; write every socket once.

use crate::client::{Client, READ_BYTES};
use crate::clock;
use crate::config::Timing;
use crate::front::admin::client_line;
use crate::front::connection::{Connection, Joined};
use crate::front::plan::{Ask, Cursors, Env, KillBy};
use crate::front::pool::{POOL, Pool, Pooled};
use crate::front::runs::Runs;
use crate::link::{Handover, KINDS, Links, OUT};
use crate::node::{News, Shared};
use crate::resp::parse::{Args, Parsed};
use crate::resp::reply::Reply;
use crate::settings::Name;
use crate::stats::add;
use crate::status::CoordinatorNews;
use bytes::{Buf, Bytes, BytesMut};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use sartor_core::coordinator::agent::Agent;
use sartor_core::coordinator::{COORDINATOR, Heartbeat, ReplicaReport};
use sartor_core::ids::{NodeId, ShardId, WorkerId};
use sartor_core::keeper::{Keeper, KeeperLimits};
use sartor_core::node::{Actions, Event, Node, NodeSettings, Reply as Answered};
use sartor_core::operation::{Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::record::Layout;
use sartor_core::routing::map::ClusterMap;
use sartor_core::stores::Stores;
use sartor_core::time::{Micros, Now, millis};
use sartor_datalets::{Options, drop_aside, engine};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

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

/// What workers of a node send each other, once a turn.
pub enum Mail {
    /// Frames for your node.
    Frames(Vec<Bytes>),
    /// A newer map.
    Map(Arc<ClusterMap>),
    /// How the replicas of that worker stand.
    Reports(u8, Vec<ReplicaReport>),
    /// A link that is for you.
    Link(Handover),
    /// Damage the record of this key in your copy.
    Corrupt(ShardId, Bytes),
}

/// Where a worker gets its mail.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Mail>,
    waker: Arc<Waker>,
}

/// The receiving end.
pub struct MailboxEnd {
    poll: Poll,
    receiver: Receiver<Mail>,
}

impl Mailbox {
    /// A mailbox, and the worker's end of it.
    pub fn new() -> io::Result<(Mailbox, MailboxEnd)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, receiver) = channel();
        Ok((Mailbox { sender, waker }, MailboxEnd { poll, receiver }))
    }

    fn post(&self, mail: Mail) {
        if self.sender.send(mail).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

/// An event loop.
pub struct Worker {
    me: WorkerId,
    shared: Shared,
    poll: Poll,
    listener: TcpListener,
    links: Links,
    mail: Receiver<Mail>,
    mailboxes: Vec<Mailbox>,
    node: Node,
    stores: Stores,
    actions: Actions,
    map: Option<Arc<ClusterMap>>,
    slots: Vec<ShardId>,
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
    chores_at: Micros,
    accept_again: bool,
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
        mut listener: TcpListener,
        peers: Option<TcpListener>,
        end: MailboxEnd,
        mailboxes: Vec<Mailbox>,
    ) -> io::Result<Worker> {
        let MailboxEnd { poll, receiver } = end;
        poll.registry().register(&mut listener, CLIENTS, Interest::READABLE)?;
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
            listener,
            links,
            mail: receiver,
            mailboxes,
            node: Node::new(me, shared.incarnation, settings, agent),
            stores: Stores::default(),
            actions: Actions::default(),
            map: None,
            slots: Vec::new(),
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
            chores_at: 0,
            accept_again: false,
            counts: Counts::default(),
            shared,
        })
    }

    /// Turns until the process ends.
    pub fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            let timeout = self.timeout(clock::now());
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("epoll failed: {error}"),
                Ok(()) => {}
            }
            self.turn(&events);
        }
    }

    fn timeout(&self, now: Now) -> Duration {
        if !self.again.is_empty() || !self.actions.replies.is_empty() {
            return Duration::ZERO;
        }
        let wake_at = self.node.wake_at().unwrap_or(Micros::MAX).min(self.chores_at);
        Duration::from_micros(wake_at.saturating_sub(now.steady_us))
    }

    fn turn(&mut self, events: &Events) {
        let mut now = clock::now();
        let mut frames = Vec::new();
        for event in events {
            let token = event.token();
            match (token, token.0 % KINDS) {
                (CLIENTS, _) => self.accept(now),
                (WAKER, _) => self.read_mail(now, &mut frames),
                (PEERS, _) => self.links.accept(self.poll.registry()),
                (_, CLIENT) => self.on_client_event(token.0 / KINDS, event),
                (_, OUT) => self.links.on_out_event(now.steady_us, token, event.is_read_closed()),
                (_, _) => self.links.on_in_event(self.poll.registry(), token, &mut frames),
            }
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
        self.run_stores(now);
        now = clock::now();
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

    fn read_mail(&mut self, now: Now, frames: &mut Vec<Bytes>) {
        while let Ok(mail) = self.mail.try_recv() {
            match mail {
                Mail::Frames(more) => frames.extend(more),
                Mail::Map(map) => {
                    self.node.step(now, Event::Map(map), &mut self.actions);
                    self.run_stores(now);
                }
                Mail::Reports(worker, reports) => {
                    self.node.step(now, Event::Reports(worker, reports), &mut self.actions);
                }
                Mail::Corrupt(shard, key) => drop(self.corrupt(shard, &key)),
                Mail::Link(handover) => self.links.adopt(self.poll.registry(), handover, frames),
            }
        }
    }

    fn accept(&mut self, now: Now) {
        loop {
            let (mut stream, addr) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) => {
                    // Out of file descriptors: who waits is not announced again, so we ask again.
                    self.accept_again = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if self.clients.len() - 1 - self.free.len() >= self.shared.settings.size(Name::ClientsMax) {
                let _ = stream.write(b"-ERR max number of clients reached (clients-max)\r\n");
                add(&self.shared.stats.rejected, 1);
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.generations.push(0);
                self.clients.len() - 1
            });
            let token = Token(index * KINDS + CLIENT);
            let _ = stream.set_nodelay(true);
            if self
                .poll
                .registry()
                .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
                .is_err()
            {
                self.free.push(index);
                continue;
            }
            self.next_id += 1;
            self.generations[index] = self.generations[index].wrapping_add(1);
            let session = SessionId { index: index as u32, generation: self.generations[index] };
            let connection = Connection::new(session, self.next_id, addr.to_string());
            self.clients[index] = Some(Box::new(Client::new(stream, connection, now)));
            add(&self.shared.stats.connections, 1);
            add(&self.shared.stats.clients, 1);
        }
    }

    fn on_client_event(&mut self, index: usize, event: &mio::event::Event) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        client.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        client.ended |= event.is_read_closed() || event.is_error();
        if event.is_writable() && client.connection.out.len() > client.written && !client.dirty {
            client.dirty = true;
            self.dirty.push(index);
        }
        self.queue(index);
    }

    /// Has a client looked at in this turn, or the next.
    fn queue(&mut self, index: usize) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && !client.queued
        {
            client.queued = true;
            self.again.push(index);
        }
    }

    /// Reads once and runs what is complete.
    fn serve(&mut self, now: Now, index: usize) {
        let Some(slot) = self.clients.get_mut(index) else { return };
        let Some(mut client) = slot.take() else { return };
        client.queued = false;
        let alive = self.read(now, &mut client);
        self.run_requests(now, &mut client);
        // Its side is closed: it still gets the answers to what it asked.
        client.connection.closing |= !alive;
        self.charge(&mut client);
        let out = client.connection.out.len() - client.written;
        let over = self.charged > self.shared.settings.size(Name::ClientBytesMax) && client.charged > 1 << 20;
        if over {
            client
                .connection
                .error("ERR all connections together buffer more than client-bytes-max; retry later");
            client.connection.closing = true;
        }
        let mark = out > 0 || client.connection.closing;
        let goes_on = client.goes_on(self.shared.settings.size(Name::PipelineMax));
        let broken = client.broken;
        self.clients[index] = Some(client);
        if broken {
            return self.close(index);
        }
        if mark {
            self.mark_dirty(index);
        }
        if goes_on {
            self.queue(index);
        }
    }

    /// False when there will be nothing more to read.
    fn read(&mut self, now: Now, client: &mut Client) -> bool {
        if !client.readable
            || client.stalled
            || client.is_blocked(self.shared.settings.size(Name::PipelineMax))
        {
            return true;
        }
        match client.stream.read(&mut self.scratch) {
            Ok(0) => return false,
            Ok(read) => {
                if client.buffer.is_empty() {
                    std::mem::swap(&mut client.buffer, &mut self.spare);
                    client.buffer.clear();
                }
                client.buffer.extend_from_slice(&self.scratch[..read]);
                // A short read has emptied the socket; the next bytes are a new event.
                client.readable = read == self.scratch.len() || client.ended;
                client.last_read = now.steady_us;
                self.counts.bytes_in += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => client.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                // Nobody will read the answers.
                client.broken = true;
                return false;
            }
        }
        true
    }

    /// Runs complete requests as far as the limits allow.
    fn run_requests(&mut self, now: Now, client: &mut Client) {
        let pipeline_max = self.shared.settings.size(Name::PipelineMax);
        let mut args = std::mem::take(&mut self.args);
        let was_stalled = std::mem::replace(&mut client.stalled, true);
        while !client.is_blocked(pipeline_max) {
            match self.join_pool(now, client) {
                Joined::Bytes(_) => continue,
                Joined::Full => {
                    self.close_pool(now);
                    continue;
                }
                Joined::No => {}
            }
            client.waits = client.connection.is_pooled() && !client.buffer.is_empty();
            if client.waits {
                continue;
            }
            if self.join_runs(now, client, pipeline_max) {
                continue;
            }
            let parsed = match client.held.take() {
                Some(held) => {
                    args = held;
                    Parsed::Request
                }
                None => client.parser.next(&mut client.buffer, &self.shared.settings, &mut args),
            };
            match parsed {
                Parsed::Incomplete => {
                    if was_stalled {
                        // It was us who did not read.
                        client.last_read = now.steady_us;
                    }
                    client.stalled = false;
                    break;
                }
                Parsed::Request if args.is_empty() => {}
                Parsed::Request | Parsed::Inline if client.connection.must_wait(&args) => {
                    client.held = Some(args.clone());
                }
                Parsed::Request => self.command(now, client, &args),
                Parsed::Inline => self.inline(now, client, &args),
                Parsed::TooLarge(text) => client.connection.refuse(&format!("ERR {text}")),
                Parsed::Broken(text) => {
                    client.connection.error(&format!("ERR {text}"));
                    client.connection.closing = true;
                }
            }
        }
        self.args = args;
        self.close_runs(now, client);
        if client.buffer.is_empty() {
            // Idle connections need no room of their own.
            self.spare = std::mem::take(&mut client.buffer);
        }
    }

    /// Takes the requests at the front of the buffer as steps of runs, as far as possible: whether there were any.
    fn join_runs(&mut self, now: Now, client: &mut Client, pipeline_max: usize) -> bool {
        if client.held.is_some() || !client.parser.is_idle() {
            return false;
        }
        let env = env(now, &self.shared, self.map.as_deref(), &self.slots, &mut self.cursors);
        let max = client.room(pipeline_max);
        let (bytes, commands) =
            client.connection.join_hot(&client.buffer, max, &env, &mut self.runs, &mut self.requests);
        client.buffer.advance(bytes);
        self.counts.commands += commands as u64;
        if !self.requests.is_empty() {
            self.step_requests(now);
        }
        commands > 0
    }

    /// Takes the request at the front of the buffer into the pool, if that is its place.
    fn join_pool(&mut self, now: Now, client: &mut Client) -> Joined {
        if client.held.is_some() || !client.parser.is_idle() {
            return Joined::No;
        }
        let env = env(now, &self.shared, self.map.as_deref(), &self.slots, &mut self.cursors);
        let node = &mut self.node;
        let floor = |session, shard| node.seen(session, shard);
        let joined = client.connection.join_pool(&client.buffer, &env, &mut self.pool, floor);
        if let Joined::Bytes(len) = joined {
            client.buffer.advance(len);
            self.counts.commands += 1;
        }
        joined
    }

    /// Sends what is in the pool.
    fn close_pool(&mut self, now: Now) {
        while let Some(Pooled { tag, shard, run, floor }) = self.pool.close() {
            let from = From::Session { session: POOL, tag };
            let deadline_us = now.steady_us + millis(self.shared.settings.get(Name::RequestTimeoutMs));
            let consistency = Consistency::Mode;
            self.requests.push(Request { from, shard, op: Op::Run(run), floor, consistency, deadline_us });
        }
        self.step_requests(now);
    }

    /// An answer to a run of the pool: each connection gets its part.
    fn answer_pooled(&mut self, reply: &Answered) {
        let owners = self.pool.land(reply.tag);
        let mut at = 0;
        for (session, tag) in &owners {
            let answer = match &reply.outcome {
                Outcome::Run(answers) => answers.take(&mut at),
                _ => None,
            };
            let index = session.index as usize;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.connection.session != *session {
                continue;
            }
            self.node.note_seen(*session, reply.shard, reply.position);
            client.connection.on_pooled(*tag, answer.as_ref(), &reply.outcome);
            let (hits, misses) = std::mem::take(&mut client.connection.hits);
            (self.counts.hits, self.counts.misses) = (self.counts.hits + hits, self.counts.misses + misses);
            self.mark_dirty(index);
        }
        self.pool.give_back(owners);
    }

    fn close_runs(&mut self, now: Now, client: &mut Client) {
        if !self.runs.is_empty() {
            let env = env(now, &self.shared, self.map.as_deref(), &self.slots, &mut self.cursors);
            client.connection.close_runs(&env, &mut self.runs, &mut self.requests);
            self.step_requests(now);
        }
    }

    fn step_requests(&mut self, now: Now) {
        for request in self.requests.drain(..) {
            self.node.step(now, Event::Request(request), &mut self.actions);
        }
        if self.actions.tasks.len() >= TASKS_MAX {
            self.run_stores(now);
        }
    }

    /// A plain line: harmless commands always, others if the setting allows. HTTP is shown the door.
    fn inline(&mut self, now: Now, client: &mut Client, args: &Args) {
        let word = args.get(0).to_ascii_lowercase();
        let allowed = self.shared.settings.get(Name::InlineCommands) == 1;
        match word.as_slice() {
            b"" => {}
            b"post" | b"host:" => client.connection.closing = true,
            b"ping" | b"echo" | b"quit" => self.command(now, client, args),
            _ if allowed => self.command(now, client, args),
            _ => {
                let text =
                    "ERR Protocol error: expected '*'; plain lines are off (CONFIG SET inline-commands 1)";
                client.connection.error(text);
                client.connection.closing = true;
            }
        }
    }

    fn command(&mut self, now: Now, client: &mut Client, args: &Args) {
        self.counts.commands += 1;
        let mut env = env(now, &self.shared, self.map.as_deref(), &self.slots, &mut self.cursors);
        let ask = client.connection.run(args, &mut env, &mut self.runs, &mut self.requests);
        self.step_requests(now);
        if let Some(ask) = ask {
            self.ask(client, &ask);
        }
    }

    fn ask(&mut self, client: &mut Client, ask: &Ask) {
        let mut reply = Vec::new();
        match ask {
            Ask::ClientList => {
                let mut lines = client_line(&client.connection);
                self.clients.iter().flatten().for_each(|other| lines += &client_line(&other.connection));
                reply.bulk(lines.as_bytes());
            }
            Ask::ClientKill(by, counts) => {
                let fits = |c: &Connection| match by {
                    KillBy::Id(id) => c.id == *id,
                    KillBy::Addr(addr) => c.addr == *addr,
                };
                let found = self.clients.iter().position(|c| c.as_ref().is_some_and(|c| fits(&c.connection)));
                if fits(&client.connection) {
                    client.connection.closing = true;
                }
                if let Some(index) = found {
                    if let Some(other) = &mut self.clients[index] {
                        other.connection.closing = true;
                    }
                    self.mark_dirty(index);
                }
                let killed = found.is_some() || client.connection.closing;
                match (counts, killed) {
                    (true, killed) => reply.integer(i64::from(killed)),
                    (false, true) => reply.simple("OK"),
                    (false, false) => reply.error("ERR No such client"),
                }
            }
            Ask::Status => match self.map.as_ref().map(|map| self.shared.status(map)) {
                Some(status) => match serde_json::to_string(&status) {
                    Ok(json) => reply.bulk(json.as_bytes()),
                    Err(error) => reply.error(&format!("ERR internal: {error}")),
                },
                None => reply.error("LOADING this node has no cluster map yet; is the coordinator up?"),
            },
            Ask::Surveyed(shard, at) => match serde_json::to_string(&self.shared.surveys.result(*shard, *at))
            {
                Ok(json) => reply.bulk(json.as_bytes()),
                Err(error) => reply.error(&format!("ERR internal: {error}")),
            },
            Ask::Corrupt(shard, key) => self.ask_to_corrupt(*shard, key, &mut reply),
        }
        client.connection.reply_now(reply);
    }

    fn ask_to_corrupt(&mut self, shard: ShardId, key: &Bytes, reply: &mut Vec<u8>) {
        let worker = self.map.as_ref().map_or(0, |map| map.worker_of(shard));
        match self.mailboxes.get(usize::from(worker)) {
            Some(mailbox) if worker != self.me.worker => {
                mailbox.post(Mail::Corrupt(shard, key.clone()));
                reply.simple("QUEUED");
            }
            _ => match self.corrupt(shard, key) {
                Ok(found) => reply.integer(i64::from(found)),
                Err(error) => reply.error(&format!("ERR {error}")),
            },
        }
    }

    fn corrupt(&mut self, shard: ShardId, key: &[u8]) -> Result<bool, String> {
        let keeper = self.stores.get_mut(shard);
        let keeper = keeper.ok_or_else(|| format!("this node has no copy of shard {}", shard.0))?;
        keeper.corrupt(key).map_err(|error| error.to_string())
    }

    /// Gives shards' answers to the connections that wait for them.
    fn answer(&mut self, now: Now) {
        let mut replies = std::mem::take(&mut self.actions.replies);
        for reply in replies.drain(..) {
            if reply.session == POOL {
                self.answer_pooled(&reply);
                continue;
            }
            let index = reply.session.index as usize;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.connection.session != reply.session {
                continue;
            }
            let mut env = env(now, &self.shared, self.map.as_deref(), &self.slots, &mut self.cursors);
            client.connection.on_reply(reply.tag, reply.outcome, &mut env, &mut self.requests);
            let (hits, misses) = std::mem::take(&mut client.connection.hits);
            (self.counts.hits, self.counts.misses) = (self.counts.hits + hits, self.counts.misses + misses);
            if !client.dirty {
                client.dirty = true;
                self.dirty.push(index);
            }
            for request in self.requests.drain(..) {
                self.node.step(now, Event::Request(request), &mut self.actions);
            }
        }
        // The list goes back with its room, unless answers to a WAIT's next question are there already.
        if self.actions.replies.is_empty() {
            self.actions.replies = replies;
        }
    }

    fn mark_dirty(&mut self, index: usize) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && !client.dirty
        {
            client.dirty = true;
            self.dirty.push(index);
        }
    }

    fn send(&mut self, now: Now) {
        let mut near: BTreeMap<u8, Vec<Bytes>> = BTreeMap::new();
        for (to, frame) in self.actions.sends.drain(..) {
            if to.node == self.me.node {
                near.entry(to.worker).or_default().push(frame);
            } else {
                self.links.send(to, &frame);
            }
        }
        for (worker, frames) in near {
            if let Some(mailbox) = self.mailboxes.get(usize::from(worker)) {
                mailbox.post(Mail::Frames(frames));
            }
        }
        for handover in self.links.handovers.drain(..) {
            if let Some(mailbox) = self.mailboxes.get(usize::from(handover.worker)) {
                mailbox.post(Mail::Link(handover));
            }
        }
        self.links.flush(now.steady_us, self.poll.registry());
    }

    fn write_clients(&mut self, now: Now) {
        let pipeline_max = self.shared.settings.size(Name::PipelineMax);
        for index in std::mem::take(&mut self.dirty) {
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            client.dirty = false;
            let open = client.write(now, &mut self.counts.bytes_out);
            let bytes = client.bytes();
            self.charged = self.charged + bytes - client.charged;
            client.charged = bytes;
            let waits = client.connection.out.len() - client.written;
            let too_much = waits > self.shared.settings.size(Name::OutputBytesMax);
            let done = client.connection.closing && waits == 0 && client.connection.in_flight() == 0;
            if !open || too_much || done {
                self.close(index);
                continue;
            }
            if client.goes_on(pipeline_max) {
                self.queue(index);
            }
        }
    }

    /// Keeps the sum of all buffers.
    fn charge(&mut self, client: &mut Client) {
        let now = client.bytes();
        self.charged = self.charged + now - client.charged;
        client.charged = now;
    }

    fn close(&mut self, index: usize) {
        if let Some(mut client) = self.clients[index].take() {
            let _ = self.poll.registry().deregister(&mut client.stream);
            self.charged -= client.charged;
            self.free.push(index);
            let now = clock::now();
            self.node.step(now, Event::Closed(client.connection.session), &mut self.actions);
            self.shared.stats.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What is done now and then: timeouts, and news of the cluster.
    fn chores(&mut self, now: Now) {
        self.chores_at = now.steady_us + CHORES_EVERY_US;
        // Other workers of this node may have made room, or the limit may be another one.
        self.weigh(now);
        if self.accept_again {
            self.accept(now);
        }
        self.links.accept(self.poll.registry());
        self.shared.surveys.publish(self.me.worker, &self.stores);
        let stall = millis(self.shared.settings.get(Name::StallTimeoutMs));
        let idle = self.shared.settings.get(Name::IdleTimeoutMs);
        for index in 0..self.clients.len() {
            let Some(client) = &mut self.clients[index] else { continue };
            let silent = now.steady_us.saturating_sub(client.last_read);
            let half_a_request = !client.stalled
                && client.parser.is_inside(&client.buffer)
                && client.connection.in_flight() == 0;
            let unread = client.connection.out.len() > client.written;
            let stuck = now.steady_us.saturating_sub(client.last_progress) > stall;
            let is_idle = idle > 0 && silent > millis(idle) && client.connection.in_flight() == 0;
            if (half_a_request && silent > stall) || (unread && stuck) || is_idle {
                self.close(index);
            } else if !unread {
                client.last_progress = now.steady_us;
            }
        }
        if self.me.worker != 0
            && let Some(first) = self.mailboxes.first()
        {
            first.post(Mail::Reports(self.me.worker, self.node.reports()));
        }
        if let Some(agent) = self.node.agent() {
            let (addr, pid) = agent.coordinator();
            let is_up = agent.heard_us().is_some_and(|at| now.steady_us - at < COORDINATOR_SILENT_US);
            if !is_up {
                self.links.probe(now.steady_us, self.poll.registry());
            }
            let dead = |node: &u16| self.links.is_unreachable(WorkerId { node: NodeId(*node), worker: 0 });
            let nodes = self.map.as_ref().map_or(0, |map| map.nodes.len() as u16);
            let unreachable = if is_up { Vec::new() } else { (0..nodes).filter(dead).collect() };
            let coordinator = CoordinatorNews { addr: addr.to_owned(), pid, is_up };
            let coordinators =
                coordinator.all(&self.shared.config.coordinator, self.links.failures(COORDINATOR));
            let (reports, care) = (agent.reports().to_vec(), agent.care().clone());
            self.shared.publish(News { reports, coordinator, coordinators, care, unreachable });
        }
    }

    fn count(&mut self) {
        let (counts, stats) = (std::mem::take(&mut self.counts), &self.shared.stats);
        add(&stats.turns, 1);
        if counts.commands + counts.bytes_in + counts.bytes_out > 0 {
            add(&stats.commands, counts.commands);
            add(&stats.bytes_in, counts.bytes_in);
            add(&stats.bytes_out, counts.bytes_out);
            add(&stats.hits, counts.hits);
            add(&stats.misses, counts.misses);
        }
    }
}

/// What planning and joining may see.
fn env<'a>(
    now: Now,
    shared: &'a Shared,
    map: Option<&'a ClusterMap>,
    slots: &'a [ShardId],
    cursors: &'a mut Cursors,
) -> Env<'a> {
    let (settings, stats, config) = (&shared.settings, &*shared.stats, &*shared.config);
    Env { now, map, slots, settings, stats, cursors, config }
}

fn node_settings(shared: &Shared, timing: &Timing) -> NodeSettings {
    let mut settings = NodeSettings::default();
    settings.controlet.lease = timing.lease;
    settings.controlet.patience_us = millis(shared.settings.get(Name::FailoverWaitMs));
    settings.forward.patience_us = settings.controlet.patience_us;
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
