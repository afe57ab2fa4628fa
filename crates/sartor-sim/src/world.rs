//! The world: time, the network, nodes with their stores, the coordinator with its disk, clients.

use crate::client::Client;
use crate::net::Net;
use crate::once::Again;
use crate::plan::{Fault, FaultKind, Plan};
use crate::{Config, Summary};
use bytes::Bytes;
use sartor_core::coordinator::agent::{Agent, AgentSettings};
use sartor_core::coordinator::{
    Action as Order, COORDINATOR, Coordinator, CoordinatorSettings, Event as Notice, Heartbeat, Spec,
};
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::{Done, Entry, Keeper, KeeperLimits, Task};
use sartor_core::node::{Actions, Event, Node, NodeSettings};
use sartor_core::operation::{Op, SessionId};
use sartor_core::random::{Random, mix};
use sartor_core::routing::map::{ClusterMap, Member};
use sartor_core::stores::Stores;
use sartor_core::time::{Micros, Now, millis};
use sartor_datalets::{Options, engine};
use std::collections::{BTreeMap, VecDeque};

/// When all began, on the wall clock.
const UNIX_START_MS: u64 = 1_700_000_000_000;
/// A run with fewer operations shows too little.
const OPERATIONS_MIN: usize = 500;
/// How long a healed cluster may take until everything is answered and equal.
const HEAL_US: Micros = millis(12_000);

/// One simulated cluster.
pub struct World {
    /// What the seed means.
    pub plan: Plan,
    /// What is simulated.
    pub config: Config,
    random: Random,
    now_us: Micros,
    queue: BTreeMap<(Micros, u64), Happening>,
    happenings: u64,
    net: Net,
    /// The nodes.
    pub machines: Vec<Machine>,
    coordinator: Option<Coordinator>,
    disk: Option<ClusterMap>,
    /// The connections, closed ones too.
    pub clients: Vec<Client>,
    open: Vec<usize>,
    /// What clients may ask for again.
    again: Again,
    /// What the ordering replica of each shard did, by the epoch of its entries.
    pub history: BTreeMap<(ShardId, Epoch), Segment>,
    /// When a shard's members changed.
    pub views: Vec<(ShardId, Micros)>,
    trace: u64,
    faults: u64,
    error: Option<String>,
    /// What would have happened to the coordinator meanwhile, while it stands still.
    coordinator_paused: Option<Vec<Happening>>,
}

/// What one epoch added to a shard's history.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What the ordering replica had when it began.
    pub parent: Position,
    /// The entries, in order.
    pub records: Vec<Record>,
}

/// An entry as it was ordered.
#[derive(Clone, Debug)]
pub struct Record {
    /// The entry.
    pub entry: Entry,
    /// The operation it came from; none for expiry.
    pub op: Option<Op>,
    /// The wall clock by which it was decided.
    pub unix_ms: u64,
}

/// A node and what surrounds it.
pub struct Machine {
    /// The state machine; none while it is down.
    pub node: Option<Node>,
    /// Its stores.
    pub stores: Stores,
    /// Its life.
    pub incarnation: Incarnation,
    tasks: VecDeque<(ShardId, Task)>,
    paused: Option<Vec<Happening>>,
    clock_offset_ms: i64,
    /// How fast its steady clock runs, in millionths, and what it showed at the beginning.
    clock_rate: u64,
    clock_start: Micros,
    turn_at: Option<Micros>,
}

#[derive(Clone, Debug)]
enum Happening {
    Arrive(WorkerId, Bytes),
    Turn(u16),
    Stores(u16),
    Client,
    Begin(usize),
    End(usize),
    Persisted(Epoch),
    Tick,
    Probe,
    StartNode(u16),
    StartCoordinator,
}

impl World {
    /// The world of a seed, at its beginning.
    pub fn new(seed: u64, config: &Config) -> World {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random, config.run_ms);
        let nodes = plan.holders + plan.standbys;
        let clock = |random: &mut Random| (random.between(920_000, 1_080_000), random.below(1 << 40));
        let clocks: Vec<(u64, Micros)> = (0..nodes).map(|_| clock(&mut random)).collect();
        let machine = |node: u16| Machine {
            clock_rate: clocks[usize::from(node)].0,
            clock_start: clocks[usize::from(node)].1,
            node: None,
            stores: Stores::default(),
            incarnation: Incarnation(0),
            tasks: VecDeque::new(),
            paused: None,
            clock_offset_ms: 0,
            turn_at: None,
        };
        let mut world = World {
            config: *config,
            now_us: 0,
            queue: BTreeMap::new(),
            happenings: 0,
            net: Net::default(),
            machines: (0..nodes).map(machine).collect(),
            coordinator: None,
            disk: None,
            clients: Vec::new(),
            open: Vec::new(),
            again: Again::default(),
            history: BTreeMap::new(),
            views: Vec::new(),
            trace: seed,
            faults: 0,
            error: None,
            coordinator_paused: None,
            plan,
            random,
        };
        for index in 0..world.plan.clients {
            let client = Client::new(&mut world.random, index, 0, u64::from(nodes));
            world.open.push(world.clients.len());
            world.clients.push(client);
        }
        world.start_coordinator();
        for node in 0..nodes {
            world.start_node(node);
        }
        for (index, fault) in world.plan.faults.clone().into_iter().enumerate() {
            world.at(fault.at, Happening::Begin(index));
            world.at(fault.until, Happening::End(index));
        }
        world.at(millis(50), Happening::Client);
        world.at(0, Happening::Tick);
        world
    }

    /// Runs to the end: faults and load, then peace until all is answered.
    pub fn run(&mut self) -> Result<(), String> {
        let mut end = millis(self.config.run_ms);
        self.run_until(end)?;
        // Where faults kept clients waiting, they get more time.
        while self.clients.iter().map(|client| client.asked.len()).sum::<usize>() < OPERATIONS_MIN {
            end += millis(1000);
            self.run_until(end)?;
        }
        self.heal();
        // Long before the end, everything must work again.
        self.at(end + HEAL_US / 2, Happening::Probe);
        self.run_until(end + HEAL_US)
    }

    /// What happened.
    pub fn summary(&self) -> Summary {
        let asked = || self.clients.iter().flat_map(|client| &client.asked);
        let succeeded = |asked: &&crate::client::Asked| {
            asked
                .answer
                .as_ref()
                .is_some_and(|(outcome, _)| !matches!(outcome, sartor_core::operation::Outcome::Failed(_)))
        };
        Summary {
            operations: asked().count() as u64,
            succeeded: asked().filter(succeeded).count() as u64,
            faults: self.faults,
            simulated_ms: self.now_us / 1000,
            trace: self.trace,
        }
    }

    /// The map in force.
    pub fn map(&self) -> Option<&ClusterMap> {
        self.coordinator.as_ref().and_then(Coordinator::map)
    }

    fn at(&mut self, at: Micros, happening: Happening) {
        self.happenings += 1;
        self.queue.insert((at, self.happenings), happening);
    }

    fn run_until(&mut self, end: Micros) -> Result<(), String> {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, number), happening) = entry.remove_entry();
            self.now_us = at;
            self.trace = mix(self.trace ^ at.wrapping_mul(31) ^ number ^ happening.fingerprint());
            self.happen(happening);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        self.now_us = end;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(node) = happening.node()
            && let Some(deferred) = &mut self.machines[usize::from(node)].paused
        {
            deferred.push(happening);
            return;
        }
        if matches!(happening, Happening::Arrive(COORDINATOR, _) | Happening::Tick | Happening::Persisted(_))
            && let Some(deferred) = &mut self.coordinator_paused
        {
            deferred.push(happening);
            return;
        }
        match happening {
            Happening::Arrive(COORDINATOR, frame) => self.notify(Notice::Frame(frame)),
            Happening::Arrive(to, frame) => self.step(to.node.0, Event::Frame(frame)),
            Happening::Turn(node) => {
                let turn_at = &mut self.machines[usize::from(node)].turn_at;
                // One that was planned before an earlier one was is over.
                if turn_at.is_some_and(|at| at <= self.now_us) {
                    *turn_at = None;
                    self.step(node, Event::Wake);
                }
            }
            Happening::Stores(node) => self.run_stores(node),
            Happening::Client => self.client(),
            Happening::Begin(index) => self.begin(index),
            Happening::End(index) => self.end(index),
            Happening::Persisted(epoch) => self.notify(Notice::Persisted(epoch)),
            Happening::Tick => {
                let tick_us = CoordinatorSettings::default().tick_us;
                self.at(self.now_us + tick_us, Happening::Tick);
                self.notify(Notice::Tick);
            }
            Happening::Probe => self.probe(),
            Happening::StartNode(node) => self.start_node(node),
            Happening::StartCoordinator => self.start_coordinator(),
        }
    }

    fn now(&self, node: u16) -> Now {
        let machine = self.machines.get(usize::from(node));
        let offset = machine.map_or(0, |machine| machine.clock_offset_ms);
        let unix_ms = (UNIX_START_MS + self.now_us / 1000).saturating_add_signed(offset);
        let steady = |machine: &Machine| machine.clock_start + self.now_us * machine.clock_rate / 1_000_000;
        Now { steady_us: machine.map_or(self.now_us, steady), unix_ms }
    }

    fn step(&mut self, node: u16, event: Event) {
        let now = self.now(node);
        let mut actions = Actions::default();
        let machine = &mut self.machines[usize::from(node)];
        let Some(state) = &mut machine.node else { return };
        state.step(now, event, &mut actions);
        self.perform(node, actions);
        self.plan_turn(node);
    }

    fn perform(&mut self, node: u16, actions: Actions) {
        let machine = &mut self.machines[usize::from(node)];
        for shard in actions.dropped {
            machine.stores.remove(shard);
            machine.tasks.retain(|(of, _)| *of != shard);
        }
        for (shard, epoch) in actions.opened {
            let open = engine(self.plan.datalet).expect("a known engine").open;
            let store = open(&Options { seed: 9 }).expect("an engine that opens");
            let keeper = Keeper::enveloped(store, KeeperLimits::default()).starting_in(epoch);
            machine.tasks.retain(|(of, _)| *of != shard);
            machine.stores.insert(shard, keeper);
        }
        let was_idle = machine.tasks.is_empty();
        machine.tasks.extend(actions.tasks);
        if was_idle && !machine.tasks.is_empty() {
            let delay = if self.plan.slow_stores { self.random.below(3000) } else { 0 };
            self.at(self.now_us + delay, Happening::Stores(node));
        }
        for reply in actions.replies {
            let client = self.clients.iter_mut().rev().find(|client| client.session == reply.session);
            let Some(client) = client else { continue };
            if let Err(error) = client.on_reply(reply.tag, reply.outcome, reply.position, self.now_us) {
                self.error = Some(error);
            }
        }
        for (to, frame) in actions.sends {
            self.send(node, to, frame);
        }
    }

    fn send(&mut self, from: u16, to: WorkerId, frame: Bytes) {
        for delay in self.net.copies(&mut self.random, from, to.node.0) {
            self.at(self.now_us + delay, Happening::Arrive(to, frame.clone()));
        }
    }

    /// Says what happens, if that was asked for.
    fn tell(&self, what: impl Fn() -> String) {
        if self.config.trace {
            println!("{:>6} ms  {}", self.now_us / 1000, what());
        }
    }

    /// Runs the tasks that are there, in order; their ends are events of a later turn.
    fn run_stores(&mut self, node: u16) {
        let now = self.now(node);
        let count = self.machines[usize::from(node)].tasks.len();
        // A slow store stops between tasks.
        let count =
            if self.plan.slow_stores { self.random.between(1, count.max(1) as u64) as usize } else { count };
        for _ in 0..count {
            let Some((shard, task)) = self.machines[usize::from(node)].tasks.pop_front() else { return };
            let machine = &mut self.machines[usize::from(node)];
            let before = machine.stores.get_mut(shard).map(|keeper| keeper.position());
            let done = machine.stores.run(now, shard, task);
            self.record(shard, &done, now.unix_ms, before.unwrap_or_default());
            self.step(node, Event::Stored(shard, done));
        }
        if !self.machines[usize::from(node)].tasks.is_empty() {
            let delay = if self.plan.slow_stores { self.random.below(3000) } else { 0 };
            self.at(self.now_us + delay, Happening::Stores(node));
        }
    }

    /// Remembers what was ordered, and that nobody else orders at the same place.
    fn record(&mut self, shard: ShardId, done: &Done, unix_ms: u64, before: Position) {
        let (entry, op) = match done {
            Done::Evaluated(request, _, Some(entry)) => (entry, Some(request.op.clone())),
            Done::Expired(Some(entry), _) => (entry, None),
            _ => return,
        };
        let segment = || Segment { parent: before, records: Vec::new() };
        let segment = self.history.entry((shard, entry.position.epoch)).or_insert_with(segment);
        let last = segment.records.last().map_or(segment.parent, |record| record.entry.position);
        if before != last || entry.position.sequence != last.sequence + 1 {
            let place = entry.position;
            self.error = Some(format!("shard {} ordered {place} after {last}, with {before}", shard.0));
        }
        segment.records.push(Record { entry: entry.clone(), op, unix_ms });
    }

    /// A turn ends soon if the node has something to send, else when its next timer is due.
    fn plan_turn(&mut self, node: u16) {
        let machine = &self.machines[usize::from(node)];
        let Some(wake_at) = machine.node.as_ref().and_then(Node::wake_at) else { return };
        let planned = machine.turn_at;
        let due = wake_at.saturating_sub(machine.clock_start);
        let due = (due * 1_000_000).div_ceil(machine.clock_rate);
        let at = if due <= self.now_us { self.now_us + self.random.below(300) } else { due };
        if planned.is_none_or(|planned| at < planned) {
            self.machines[usize::from(node)].turn_at = Some(at);
            self.at(at, Happening::Turn(node));
        }
    }

    fn notify(&mut self, notice: Notice) {
        let now = self.now(u16::MAX);
        let mut orders = Vec::new();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.step(now, notice, &mut orders);
        }
        for order in orders {
            match order {
                Order::Persist(map) => {
                    let epoch = map.epoch;
                    self.judge_restarts(&map);
                    self.tell(|| format!("map {}: {}", map.epoch.0, describe(&map)));
                    self.disk = Some(map);
                    let delay = self.random.between(100, 20_000);
                    self.at(self.now_us + delay, Happening::Persisted(epoch));
                }
                Order::Send(to, frame) => self.send(COORDINATOR.node.0, to, frame),
            }
        }
    }

    /// A shard may begin anew only when nobody has its data any more; and no epoch is used twice.
    fn judge_restarts(&mut self, map: &ClusterMap) {
        let Some(old) = &self.disk else { return };
        if map.epoch <= old.epoch {
            self.error = Some(format!("epoch {} follows {}", map.epoch.0, old.epoch.0));
        }
        for (shard, old) in map.shards.iter().zip(&old.shards) {
            if shard.epoch != old.epoch {
                self.views.push((shard.id, self.now_us));
            }
            let newcomer = old.joining.map(|joining| joining.member);
            let knowing = || old.members.iter().filter(|member| Some(**member) != newcomer);
            let stays = knowing().any(|member| shard.members.contains(member));
            let lives = |member: &&Member| {
                let machine = &self.machines[usize::from(member.node.0)];
                machine.node.is_some() && machine.incarnation == member.incarnation
            };
            if !stays && knowing().any(|member| lives(&member)) {
                self.error = Some(format!("shard {} begins anew while {:?} lives", shard.id.0, old.members));
            }
        }
    }

    /// A healed cluster must take a write for each shard at each node.
    fn probe(&mut self) {
        let Some(map) = self.map().cloned() else { return };
        for node in 0..self.machines.len() as u16 {
            let generation = self.clients.len() as u32;
            let session = SessionId { index: crate::client::PROBES + u32::from(node), generation };
            let mut client = Client::at(session, node);
            let deadline_us = self.now(node).steady_us + crate::client::TIMEOUT_US;
            let requests: Vec<_> =
                map.shards.iter().map(|shard| client.probe(shard.id, self.now_us, deadline_us)).collect();
            self.clients.push(client);
            for request in requests {
                self.step(node, Event::Request(request));
            }
        }
    }

    /// One client sends one request; then the next one is due.
    fn client(&mut self) {
        if self.net.healed {
            return;
        }
        let pause = self.random.between(500, 20_000);
        self.at(self.now_us + pause, Happening::Client);
        let Some(map) = self.map().cloned() else { return };
        let place = self.random.below(self.open.len() as u64) as usize;
        let index = self.open[place];
        if self.random.percent(1) {
            self.reconnect(place);
            return;
        }
        let unique = self.happenings;
        let client = &mut self.clients[index];
        let up =
            self.machines[usize::from(client.node)].node.as_ref().is_some_and(|node| node.map().is_some());
        if up && client.is_ready() {
            let node = client.node;
            let machine = &self.machines[usize::from(node)];
            let steady_us = machine.clock_start + self.now_us * machine.clock_rate / 1_000_000;
            let deadline_us = steady_us + crate::client::TIMEOUT_US;
            let times = (self.now_us, deadline_us);
            let again = self.again.pick(&mut self.random, &self.clients, &self.open);
            let client = &mut self.clients[index];
            let request = match again {
                Some((shard, op)) => client.send(shard, op, times),
                None => client.ask(&mut self.random, &map, times, unique),
            };
            self.again.note(index, client);
            self.step(node, Event::Request(request));
        }
    }

    /// The client hangs up and comes again, perhaps to another node.
    fn reconnect(&mut self, place: usize) {
        let old = &self.clients[self.open[place]];
        let (session, node) = (old.session, old.node);
        self.step(node, Event::Closed(session));
        let nodes = self.machines.len() as u64;
        let client = Client::new(&mut self.random, session.index, session.generation + 1, nodes);
        self.open[place] = self.clients.len();
        self.clients.push(client);
    }

    fn begin(&mut self, index: usize) {
        let Fault { kind, .. } = self.plan.faults[index];
        self.tell(|| format!("{kind:?} until {}", self.plan.faults[index].until / 1000));
        self.faults += 1;
        self.net.begin(kind);
        match kind {
            FaultKind::Pause(node) => {
                self.machines[usize::from(node)].paused.get_or_insert_with(Vec::new);
            }
            FaultKind::Crash(node) => self.crash(node),
            FaultKind::Blackout => (0..self.machines.len() as u16).for_each(|node| self.crash(node)),
            FaultKind::CoordinatorCrash => {
                self.coordinator = None;
                self.coordinator_paused = None;
                let delay = self.random.between(millis(100), millis(5000));
                self.at(self.now_us + delay, Happening::StartCoordinator);
            }
            FaultKind::CoordinatorPause => {
                self.coordinator_paused.get_or_insert_with(Vec::new);
            }
            FaultKind::ClockJump(node, by) => self.machines[usize::from(node)].clock_offset_ms += by,
            _ => {}
        }
    }

    fn end(&mut self, index: usize) {
        let Fault { kind, .. } = self.plan.faults[index];
        self.net.end(kind);
        match kind {
            FaultKind::Pause(node) => self.resume(node),
            FaultKind::CoordinatorPause => self.resume_coordinator(),
            _ => {}
        }
    }

    fn resume_coordinator(&mut self) {
        for happening in self.coordinator_paused.take().unwrap_or_default() {
            self.at(self.now_us, happening);
        }
    }

    fn resume(&mut self, node: u16) {
        for happening in self.machines[usize::from(node)].paused.take().unwrap_or_default() {
            self.at(self.now_us, happening);
        }
    }

    fn crash(&mut self, node: u16) {
        let machine = &mut self.machines[usize::from(node)];
        if machine.node.take().is_none() {
            return;
        }
        machine.stores = Stores::default();
        machine.tasks.clear();
        machine.paused = None;
        for place in 0..self.open.len() {
            if self.clients[self.open[place]].node == node {
                self.reconnect(place);
            }
        }
        let delay = self.random.between(millis(50), millis(2000));
        self.at(self.now_us + delay, Happening::StartNode(node));
    }

    fn start_node(&mut self, node: u16) {
        let machine = &mut self.machines[usize::from(node)];
        machine.incarnation = Incarnation(machine.incarnation.0 + 1);
        machine.turn_at = None;
        let heartbeat = Heartbeat {
            node: NodeId(node),
            incarnation: machine.incarnation,
            pid: 1,
            client_addr: format!("client:{node}"),
            peer_addr: format!("peer:{node}"),
            ..Heartbeat::default()
        };
        let agent = Agent::new(heartbeat, AgentSettings::default());
        let me = WorkerId { node: NodeId(node), worker: 0 };
        let settings = self.node_settings();
        let machine = &mut self.machines[usize::from(node)];
        machine.node = Some(Node::new(me, machine.incarnation, settings, Some(agent)));
        self.plan_turn(node);
    }

    fn node_settings(&self) -> NodeSettings {
        let mut settings = NodeSettings { modes: self.config.modes, ..NodeSettings::default() };
        settings.controlet.page_bytes_max = 300;
        if self.plan.tight {
            settings.controlet.batch_bytes_max = 100;
            settings.controlet.window_bytes_max = 300;
            settings.controlet.stream_bytes_max = 2000;
            settings.controlet.expire_batch_max = 2;
            settings.controlet.waiters_max = 2;
            settings.controlet.page_bytes_max = 64;
            settings.controlet.answer_bytes_max = 200;
            settings.controlet.answers_bytes_max = 500;
            settings.controlet.once_bytes_max = 5000;
            settings.forward.pending_max = 16;
            settings.forward.batch_requests_max = 3;
            settings.forward.batch_bytes_max = 200;
            settings.forward.answers_bytes_max = 50;
        }
        settings
    }

    fn start_coordinator(&mut self) {
        let spec = Spec {
            cluster: 1,
            seed: 9,
            nodes: self.plan.holders + self.plan.standbys,
            standbys: self.plan.standbys,
            workers: 1,
            shards: self.plan.shards,
            copies: self.plan.copies,
            mode: self.config.mode.into(),
            datalet: self.plan.datalet.into(),
        };
        let (now, settings) = (self.now(u16::MAX), CoordinatorSettings::default());
        let (disk, modes) = (self.disk.clone(), self.config.modes);
        self.coordinator = Some(Coordinator::new(now, spec, settings, "coordinator".into(), 1, disk, modes));
    }

    fn heal(&mut self) {
        self.net.healed = true;
        self.resume_coordinator();
        for node in 0..self.machines.len() as u16 {
            self.resume(node);
        }
    }
}

impl Happening {
    /// The node it happens to, if to one.
    fn node(&self) -> Option<u16> {
        match self {
            Happening::Arrive(to, _) if *to != COORDINATOR => Some(to.node.0),
            Happening::Turn(node) | Happening::Stores(node) => Some(*node),
            _ => None,
        }
    }

    fn fingerprint(&self) -> u64 {
        match self {
            Happening::Arrive(to, frame) => {
                let word = |chunk: &[u8]| chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
                frame.chunks(8).fold(u64::from(to.node.0), |sum, chunk| mix(sum ^ word(chunk)))
            }
            Happening::Turn(node) => 1 << 32 | u64::from(*node),
            Happening::Stores(node) => 2 << 32 | u64::from(*node),
            Happening::Client => 3 << 32,
            Happening::Begin(index) => 4 << 32 | *index as u64,
            Happening::End(index) => 5 << 32 | *index as u64,
            Happening::Persisted(epoch) => 6 << 32 | epoch.0,
            Happening::StartNode(node) => 7 << 32 | u64::from(*node),
            Happening::StartCoordinator => 8 << 32,
            Happening::Tick => 9 << 32,
            Happening::Probe => 10 << 32,
        }
    }
}

/// The members of each shard, with their lives where those are not the first.
fn describe(map: &ClusterMap) -> String {
    let name = |member: &Member| match member.incarnation.0 {
        1 => format!("{}", member.node.0),
        life => format!("{}'{life}", member.node.0),
    };
    let shard = |shard: &sartor_core::routing::map::Shard| {
        let members: Vec<String> = shard.members.iter().map(name).collect();
        let joining =
            shard.joining.map_or_else(String::new, |joining| format!(" +{}", name(&joining.member)));
        format!("shard {} at {}: {}{joining}", shard.id.0, shard.epoch.0, members.join(" "))
    };
    map.shards.iter().map(shard).collect::<Vec<_>>().join("; ")
}
