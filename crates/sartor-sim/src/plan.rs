//! What a seed means: the cluster's shape, and which faults meet it when.

use sartor_core::coordinator::COORDINATOR;
use sartor_core::random::{Random, mix};
use sartor_core::time::{Micros, millis};

/// The shape of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes that hold replicas.
    pub holders: u16,
    /// Nodes beside them.
    pub standbys: u16,
    /// Shards.
    pub shards: u16,
    /// Copies of each.
    pub copies: u8,
    /// Client connections.
    pub clients: u32,
    /// Keys that they use.
    pub keys: u64,
    /// Whether stores finish later than they are asked.
    pub slow_stores: bool,
    /// Bounds so small that they are reached.
    pub tight: bool,
    /// Whether reads ask for more or less than the mode promises.
    pub levels: bool,
    /// The engine.
    pub datalet: &'static str,
    /// Whether clients read ranges.
    pub ranges: bool,
    /// Its records outlive the node.
    pub durable: bool,
    /// The table is in ranges.
    pub split: bool,
    /// What goes wrong, in order of time. Blows are added as they strike.
    pub faults: Vec<Fault>,
    /// What goes wrong in the middle of a repair.
    pub blows: Vec<Blow>,
    /// When a member is first given up as too slow, the others of its shard crash so many messages later.
    pub forsaken: Option<u64>,
    /// A link that is dead, at least one way, from this time on for ever.
    pub lasting: Option<Fault>,
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins.
    pub at: Micros,
    /// When it is over.
    pub until: Micros,
    /// What it is.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// This share of messages is lost, in percent.
    Loss(u64),
    /// This share of messages comes twice, in percent.
    Duplication(u64),
    /// Messages take up to so much longer.
    Delay(Micros),
    /// This share of messages comes seconds later, when much has changed, in percent.
    Late(u64),
    /// A node hears nobody and nobody hears it.
    Isolation(u16),
    /// The same, of several nodes one after the other, and they come back in another order.
    Swizzle(u16),
    /// Two nodes do not hear each other.
    Cut(u16, u16),
    /// One node's messages to another get lost; the other way is open.
    OneWayCut(u16, u16),
    /// A node does nothing, then goes on as if no time had passed.
    Pause(u16),
    /// A node loses all it had and starts again.
    Crash(u16),
    /// The stores of a node come back empty, and the node lives on.
    StoreLoss(u16),
    /// The stores of a node fail from now on.
    StoreFailure(u16),
    /// The stores of a node do nothing meanwhile.
    StoreStall(u16),
    /// The coordinator loses all but its disk and starts again; what was not synced may be lost too.
    CoordinatorCrash,
    /// The coordinator does nothing, then goes on as if no time had passed.
    CoordinatorPause,
    /// A node's wall clock jumps by so many milliseconds.
    ClockJump(u16, i64),
    /// A node's steady clock runs at another rate, in millionths.
    Drift(u16, u64),
    /// All nodes lose all they had at once.
    Blackout,
}

/// A second failure: it strikes when a shard's members have just changed, or are just about to be filled.
#[derive(Clone, Copy, Debug)]
pub struct Blow {
    /// The change of the map that it waits for, counted from the start.
    pub change: u64,
    /// How many messages later it strikes.
    pub messages: u64,
    /// Whom.
    pub target: Target,
    /// How.
    pub way: Way,
    /// For how long.
    pub lasts: Micros,
}

/// Whom a blow strikes, in the shard that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Who is being filled or has just joined, else the last member.
    Newcomer,
    /// The first member.
    First,
    /// The last member.
    Last,
    /// Who is a member no longer.
    Removed,
    /// The coordinator.
    Coordinator,
}

/// How a blow strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It crashes.
    Crash,
    /// It stands still.
    Pause,
    /// Nobody hears it.
    Isolate,
    /// Its stores come back empty.
    Empty,
    /// Its stores do nothing.
    Stall,
}

impl Plan {
    /// The table is one in ranges.
    pub fn in_ranges(&mut self) {
        (self.shards, self.keys, self.split) = (1, self.keys.max(4) * 3, true);
        if !self.datalet.contains("tree") {
            self.datalet = "tree";
        }
    }

    /// The plan of a seed.
    pub fn new(random: &mut Random, run_ms: u64) -> Plan {
        let copies = random.between(1, 3) as u8;
        let holders = random.between(u64::from(copies), 4) as u16;
        let standbys = random.below(2) as u16;
        let mut plan = Plan {
            holders,
            standbys,
            shards: random.between(1, 3) as u16,
            copies,
            clients: random.between(3, 8) as u32,
            keys: [2, 4, 12, 12][random.below(4) as usize],
            slow_stores: random.percent(50),
            tight: random.percent(50),
            levels: false,
            ranges: false,
            durable: false,
            split: false,
            datalet: if random.percent(50) { "hash" } else { "tree" },
            faults: Vec::new(),
            blows: Vec::new(),
            forsaken: None,
            lasting: None,
        };
        let nodes = u64::from(holders + standbys);
        // About one in five seconds.
        for _ in 0..random.between(3, 8).max(run_ms / 5000) {
            plan.add_fault(random, run_ms, nodes);
        }
        for change in 1..=random.below(5 + run_ms / 5000) {
            for _ in 0..2 {
                if random.percent(40) {
                    plan.blows.push(Blow::random(random, change));
                }
            }
        }
        if nodes > 1 && random.percent(15) {
            plan.lasting = Some(lasting(random, run_ms, nodes));
        }
        if random.percent(30) {
            plan.forsaken = Some(random.below(4));
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    fn add_fault(&mut self, random: &mut Random, run_ms: u64, nodes: u64) {
        let at = random.between(millis(500), millis(run_ms * 8 / 10));
        // Now and then longer than every patience.
        let longest = if random.percent(10) { millis(15_000) } else { millis(4000) };
        let until = at + random.between(millis(50), longest);
        let kind = FaultKind::random(random, nodes);
        self.push(run_ms, at, until, kind);
        if let FaultKind::Swizzle(first) = kind {
            return self.swizzle(random, run_ms, at, first, nodes);
        }
        // Often another one follows while the first is being repaired.
        if random.percent(40) {
            let at = at + random.below(millis(1500));
            let until = at + random.between(millis(50), millis(2000));
            let kind = FaultKind::random(random, nodes);
            self.push(run_ms, at, until, kind);
        }
    }

    /// Stores are on disk, and now and then the power fails for all at once.
    pub fn on_disk(&mut self, seed: u64, run_ms: u64) {
        let mut random = Random::new(mix(seed));
        self.durable = true;
        for _ in 0..random.between(1, 3) {
            let at = random.between(millis(1000), millis(run_ms * 9 / 10));
            self.push(run_ms, at, at, FaultKind::Blackout);
            if random.percent(30) {
                self.push(run_ms, at, at, FaultKind::CoordinatorCrash);
            }
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    fn push(&mut self, run_ms: u64, at: Micros, until: Micros, kind: FaultKind) {
        self.faults.push(Fault { at, until: until.min(millis(run_ms)), kind });
    }

    /// More nodes are cut off one by one, and come back in an order that has nothing to do with it.
    fn swizzle(&mut self, random: &mut Random, run_ms: u64, begin: Micros, first: u16, nodes: u64) {
        let mut at = begin;
        for node in (0..nodes as u16).filter(|node| *node != first) {
            if random.percent(70) {
                at += random.below(millis(300));
                let until = begin + random.between(millis(300), millis(4000));
                self.push(run_ms, at, until.max(at), FaultKind::Swizzle(node));
            }
        }
    }
}

fn lasting(random: &mut Random, run_ms: u64, nodes: u64) -> Fault {
    let one = random.below(nodes) as u16;
    let other = (one + 1 + random.below(nodes - 1) as u16) % nodes as u16;
    let kind = if random.percent(50) { FaultKind::Cut(one, other) } else { FaultKind::OneWayCut(one, other) };
    Fault { at: random.between(millis(500), millis(run_ms)), until: Micros::MAX, kind }
}

impl FaultKind {
    fn random(random: &mut Random, nodes: u64) -> FaultKind {
        let node = random.below(nodes) as u16;
        match random.below(100) {
            0..7 => FaultKind::Loss(random.between(5, 50)),
            7..14 => FaultKind::Duplication(random.between(5, 50)),
            14..20 => FaultKind::Delay(random.between(millis(1), millis(400))),
            20..28 => FaultKind::Late(random.between(2, 20)),
            28..33 => FaultKind::Isolation(node),
            33..36 => FaultKind::Swizzle(node),
            36..42 => FaultKind::Cut(node, node_or_coordinator(random, nodes)),
            42..52 => FaultKind::OneWayCut(node, node_or_coordinator(random, nodes)),
            52..65 => FaultKind::Pause(node),
            65..77 => FaultKind::Crash(node),
            77..80 => FaultKind::StoreLoss(node),
            80..82 => FaultKind::StoreFailure(node),
            82..85 => FaultKind::StoreStall(node),
            85..90 => FaultKind::CoordinatorCrash,
            90..93 => FaultKind::CoordinatorPause,
            93..96 => FaultKind::ClockJump(node, random.between(0, 20_000) as i64 - 10_000),
            96..99 => FaultKind::Drift(node, random.between(920_000, 1_080_000)),
            _ => FaultKind::Blackout,
        }
    }

    /// What it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Loss(_) => "loss",
            FaultKind::Duplication(_) => "duplication",
            FaultKind::Delay(_) => "delay, reorder",
            FaultKind::Late(_) => "very late",
            FaultKind::Isolation(_) => "isolation",
            FaultKind::Swizzle(_) => "swizzle",
            FaultKind::Cut(..) => "cut",
            FaultKind::OneWayCut(..) => "one-way cut",
            FaultKind::Pause(_) => "pause",
            FaultKind::Crash(_) => "crash",
            FaultKind::StoreLoss(_) => "store empty",
            FaultKind::StoreFailure(_) => "store fails",
            FaultKind::StoreStall(_) => "store stalls",
            FaultKind::CoordinatorCrash => "crash",
            FaultKind::CoordinatorPause => "pause",
            FaultKind::ClockJump(..) => "clock jump",
            FaultKind::Drift(..) => "clock drift",
            FaultKind::Blackout => "blackout",
        }
    }

    /// The nodes it meets; none where it meets the whole network.
    pub fn nodes(self) -> Vec<u16> {
        match self {
            FaultKind::Loss(_)
            | FaultKind::Duplication(_)
            | FaultKind::Delay(_)
            | FaultKind::Late(_)
            | FaultKind::Blackout => Vec::new(),
            FaultKind::CoordinatorCrash | FaultKind::CoordinatorPause => vec![COORDINATOR.node.0],
            FaultKind::Cut(one, other) | FaultKind::OneWayCut(one, other) => vec![one, other],
            FaultKind::Isolation(node)
            | FaultKind::Swizzle(node)
            | FaultKind::Pause(node)
            | FaultKind::Crash(node)
            | FaultKind::StoreLoss(node)
            | FaultKind::StoreFailure(node)
            | FaultKind::StoreStall(node)
            | FaultKind::ClockJump(node, _)
            | FaultKind::Drift(node, _) => vec![node],
        }
    }

    /// Whether it is a cut between these two.
    pub fn joins(self, one: u16, other: u16) -> bool {
        self.cuts(one, other) || self.cuts(other, one)
    }

    /// Whether messages from one node to another get lost because of it.
    pub fn cuts(self, from: u16, to: u16) -> bool {
        match self {
            FaultKind::Isolation(node) | FaultKind::Swizzle(node) => node == from || node == to,
            FaultKind::Cut(a, b) => (a, b) == (from, to) || (b, a) == (from, to),
            FaultKind::OneWayCut(a, b) => (a, b) == (from, to),
            _ => false,
        }
    }
}

impl Blow {
    fn random(random: &mut Random, change: u64) -> Blow {
        let target = match random.below(10) {
            0..4 => Target::Newcomer,
            4 => Target::First,
            5 => Target::Last,
            6..9 => Target::Removed,
            _ => Target::Coordinator,
        };
        let way = match random.below(10) {
            // Who was removed and does not hear of it.
            _ if target == Target::Removed && random.percent(80) => Way::Isolate,
            0..4 => Way::Crash,
            4..6 => Way::Pause,
            6 => Way::Isolate,
            7..9 => Way::Stall,
            _ => Way::Empty,
        };
        let messages = if random.percent(60) { random.below(8) } else { random.below(200) };
        Blow { change, messages, target, way, lasts: random.between(millis(50), millis(3000)) }
    }
}

/// The other end of a cut.
fn node_or_coordinator(random: &mut Random, nodes: u64) -> u16 {
    match random.below(nodes * 3 / 2 + 1) {
        other if other >= nodes => COORDINATOR.node.0,
        other => other as u16,
    }
}
