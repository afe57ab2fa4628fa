//! The world: time, the network, nodes with their stores, the coordinator with its disk, clients.

mod blame;
mod control;
mod faults;
mod load;
mod machine;
mod outside;
mod splits;
mod switches;

use crate::client::Client;
use crate::disk::Disk;
use crate::flaky::Mishaps;
use crate::met::Met;
use crate::net::Net;
use crate::once::Again;
use crate::plan::Plan;
use crate::{Config, Summary};
use bytes::Bytes;
use sartor_core::controlet::part::log::{LogCall, LogEvent};
use sartor_core::coordinator::split::can_divide;
use sartor_core::coordinator::{COORDINATOR, Coordinator, CoordinatorSettings, Event as Notice};
use sartor_core::entry::Entry;
use sartor_core::ids::{Epoch, Incarnation, Position, ShardId, WorkerId};
use sartor_core::keeper::Task;
use sartor_core::node::locking::LockEvent;
use sartor_core::node::{Event, Node};
use sartor_core::operation::{Op, SessionId};
use sartor_core::random::{Random, mix};
use sartor_core::routing::map::{ClusterMap, Member, Shard};
use sartor_core::stores::Stores;
use sartor_core::time::{Micros, millis};
pub use splits::Part;
use std::collections::{BTreeMap, VecDeque};
use switches::Modes;
use switches::Wanted;

/// So many lost messages to the coordinator are remembered.
const UNHEARD_MAX: usize = 32;
/// A run with fewer operations shows too little.
const OPERATIONS_MIN: usize = 500;
/// How long a healed cluster may take until everything is answered and equal.
const HEAL_US: Micros = millis(12_000);
/// How much longer, where nodes that did not reach each other must be well for a while first.
const CALM_US: Micros = millis(20_000);

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
    /// On its way to the disk.
    writing: Option<ClusterMap>,
    coordinator_life: u64,
    /// The connections, closed ones too.
    pub clients: Vec<Client>,
    open: Vec<usize>,
    /// What clients may ask for again.
    again: Again,
    /// What the ordering replica of each shard did, by the epoch of its entries.
    pub history: BTreeMap<(ShardId, Epoch), Segment>,
    /// The members of each shard in each of its epochs.
    pub members: BTreeMap<(ShardId, Epoch), Vec<Member>>,
    /// The epochs in which a shard began again with what was on disk.
    pub resumed: BTreeMap<ShardId, Vec<Epoch>>,
    /// The shards as they were when all nodes last died at once, until they begin again.
    blackout: BTreeMap<ShardId, Shard>,
    /// Which coordinator lived then.
    blackout_life: u64,
    /// When a shard's members changed.
    pub views: Vec<(ShardId, Micros)>,
    trace: u64,
    faults: u64,
    /// Which faults met whom.
    pub met: Met,
    /// How often the map has changed.
    changes: u64,
    /// Blows of the plan that wait for their message: how many are left, and in which shard.
    armed: Vec<(usize, u64, ShardId)>,
    /// Members that were given up, of which shard, after how many messages to strike the others.
    forsaken: Option<(u64, ShardId, u16)>,
    /// Who was last removed from each shard.
    removed: BTreeMap<ShardId, Member>,
    error: Option<String>,
    /// Messages to the coordinator that got lost, the last ones first.
    unheard: VecDeque<(Micros, u16)>,
    /// Which modes the table had when.
    pub modes: Modes,
    /// Shards that were parts of others.
    pub parts: BTreeMap<ShardId, Part>,
    /// When those that are being made were first closed.
    closed: BTreeMap<ShardId, (Epoch, Micros)>,
    /// The logs outside of the cluster.
    outside: outside::Outside,
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
    /// When it began to run at that rate.
    clock_since: Micros,
    turn_at: Option<Micros>,
    mishaps: Mishaps,
    disk: Disk,
    /// Its stores do nothing until then.
    stalled_until: Micros,
}

#[derive(Clone, Debug)]
enum Happening {
    Arrive(WorkerId, Bytes),
    Turn(u16),
    Stores(u16),
    Client,
    Begin(usize),
    End(usize),
    Persisted(u64, Epoch),
    Tick,
    /// A link dies for ever.
    Part,
    Probe,
    /// By now all must be repaired.
    Inspect,
    StartNode(u16),
    /// A store on disk failed here a while ago.
    Reopen(u16),
    StartCoordinator,
    /// A call comes to a log outside, of that node in that life.
    Ask(WorkerId, Incarnation, ShardId, u64, LogCall),
    /// Its answer comes back.
    Told(WorkerId, Incarnation, ShardId, u64, LogEvent),
    /// An answer of the lock service outside.
    Lock(WorkerId, Incarnation, LockEvent),
    /// A user begins to want another mode, or wants it still.
    Wish(Wanted),
}

/// Kinds of datalets where ranges are read.
const MIXED: [&str; 3] = ["hash,tree", "tree,hash,hash", "tree"];

/// What a seed means in a configuration.
fn plan_of(seed: u64, config: &mut Config, random: &mut Random) -> Plan {
    // By the seed alone, so that all others mean what they meant.
    let levels = matches!(seed % 16, 9..=11);
    let mut plan = Plan { levels, ..Plan::new(random, config.run_ms) };
    if matches!(seed % 16, 4..=7) {
        (plan.datalet, plan.ranges) = (MIXED[(seed / 16 % 3) as usize], true);
    }
    if config.disks && matches!(seed % 16, 12..=15) {
        plan.on_disk(seed, config.run_ms);
    }
    if config.splits {
        let modes: Vec<&str> =
            config.modes.iter().filter(|mode| can_divide(mode)).map(|mode| mode.name).collect();
        config.mode = modes[(seed % modes.len() as u64) as usize];
        plan.in_ranges();
    }
    plan
}

impl World {
    /// The world of a seed, at its beginning.
    pub fn new(seed: u64, config: &Config) -> World {
        let (mut random, mut config) = (Random::new(seed), *config);
        let plan = plan_of(seed, &mut config, &mut random);
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
            clock_since: 0,
            clock_offset_ms: 0,
            turn_at: None,
            mishaps: Mishaps::default(),
            disk: Disk::default(),
            stalled_until: 0,
        };
        let mut world = World {
            config,
            now_us: 0,
            queue: BTreeMap::new(),
            happenings: 0,
            net: Net::default(),
            machines: (0..nodes).map(machine).collect(),
            coordinator: None,
            disk: None,
            writing: None,
            coordinator_life: 0,
            clients: Vec::new(),
            open: Vec::new(),
            again: Again::default(),
            history: BTreeMap::new(),
            members: BTreeMap::new(),
            resumed: BTreeMap::new(),
            blackout: BTreeMap::new(),
            blackout_life: 0,
            views: Vec::new(),
            trace: seed,
            faults: 0,
            met: Met::default(),
            changes: 0,
            armed: Vec::new(),
            forsaken: None,
            removed: BTreeMap::new(),
            error: None,
            unheard: VecDeque::new(),
            modes: Modes::default(),
            parts: BTreeMap::new(),
            closed: BTreeMap::new(),
            outside: outside::Outside::new(seed, config.run_ms),
            coordinator_paused: None,
            plan,
            random,
        };
        world.begin_with(nodes);
        world.plan_switches(seed);
        world.plan_splits();
        world
    }

    fn begin_with(&mut self, nodes: u16) {
        for index in 0..self.plan.clients {
            self.connect(SessionId { index, generation: 0 });
            self.open.push(index as usize);
        }
        self.start_coordinator();
        for node in 0..nodes {
            self.start_node(node);
        }
        for (index, fault) in self.plan.faults.clone().into_iter().enumerate() {
            self.at(fault.at, Happening::Begin(index));
            self.at(fault.until, Happening::End(index));
        }
        if let Some(fault) = &self.plan.lasting {
            let at = fault.at;
            self.at(at, Happening::Part);
        }
        self.at(millis(50), Happening::Client);
        self.at(0, Happening::Tick);
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
        let estranged = self.coordinator.as_ref().map(|c| c.care().estranged).unwrap_or_default();
        if !estranged.is_empty() || self.plan.lasting.is_some() {
            end += CALM_US;
        }
        // Long before the end, everything must work again.
        self.at(end + HEAL_US / 2, Happening::Probe);
        self.at(end + HEAL_US * 3 / 4, Happening::Inspect);
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
            switches: self.modes.switched,
            simulated_ms: self.now_us / 1000,
            met: self.met.clone(),
            trace: self.trace,
        }
    }

    /// How often the shard had begun again with what was on disk before that place.
    pub fn life_of(&self, shard: ShardId, at: Position) -> usize {
        let resumed = self.resumed.get(&shard).into_iter().flatten();
        resumed.filter(|epoch| **epoch <= at.epoch).count()
    }

    /// How often any shard had.
    pub fn lives_max(&self) -> usize {
        self.resumed.values().map(Vec::len).max().unwrap_or(0)
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
        if matches!(happening, Happening::Arrive(COORDINATOR, _) | Happening::Tick | Happening::Persisted(..))
            && let Some(deferred) = &mut self.coordinator_paused
        {
            deferred.push(happening);
            return;
        }
        if matches!(happening, Happening::Arrive(..)) {
            self.strike();
        }
        match happening {
            Happening::Arrive(COORDINATOR, frame) => {
                self.note_ghost(&frame);
                self.notify(Notice::Frame(frame));
            }
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
            Happening::Persisted(life, epoch) => self.on_written(life, epoch),
            Happening::Part => self.part(),
            Happening::Tick => {
                let tick_us = CoordinatorSettings::default().tick_us;
                self.at(self.now_us + tick_us, Happening::Tick);
                self.notify(Notice::Tick);
                self.compare_digests();
            }
            Happening::Probe => self.probe(),
            Happening::Inspect => self.inspect(),
            Happening::Reopen(node) => self.maybe_restart(node),
            Happening::StartNode(node) => self.start_node(node),
            Happening::StartCoordinator => self.start_coordinator(),
            Happening::Wish(wanted) => self.want(wanted),
            Happening::Lock(to, life, event) => {
                if self.machines[usize::from(to.node.0)].incarnation == life {
                    self.step(to.node.0, Event::Lock(event));
                }
            }
            Happening::Ask(from, life, shard, number, call) => {
                self.ask_log((from, life), shard, number, call);
            }
            Happening::Told(to, life, shard, number, event) => {
                if self.machines[usize::from(to.node.0)].incarnation == life {
                    self.step(to.node.0, Event::Log(shard, number, event));
                }
            }
        }
    }
}

impl Happening {
    /// The node it happens to, if to one.
    fn node(&self) -> Option<u16> {
        match self {
            Happening::Arrive(to, _) if *to != COORDINATOR => Some(to.node.0),
            Happening::Turn(node) | Happening::Stores(node) => Some(*node),
            Happening::Told(to, ..) | Happening::Lock(to, ..) => Some(to.node.0),
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
            Happening::Persisted(life, epoch) => 6 << 32 | life << 24 | epoch.0,
            Happening::Reopen(node) => 15 << 32 | u64::from(*node),
            Happening::StartNode(node) => 7 << 32 | u64::from(*node),
            Happening::StartCoordinator => 8 << 32,
            Happening::Tick => 9 << 32,
            Happening::Probe => 10 << 32,
            Happening::Part => 11 << 32,
            Happening::Inspect => 12 << 32,
            Happening::Ask(from, _, shard, number, _) => {
                14 << 32 | u64::from(from.node.0) << 24 | u64::from(shard.0) << 16 | number & 0xffff
            }
            Happening::Told(to, _, shard, number, _) => {
                15 << 32 | u64::from(to.node.0) << 24 | u64::from(shard.0) << 16 | number & 0xffff
            }
            Happening::Lock(to, ..) => 16 << 32 | u64::from(to.node.0),
            Happening::Wish(wanted) => 13 << 32 | u64::from(wanted.node) << 8 | u64::from(wanted.tries),
        }
    }
}
