//! What a seed means: the cluster's shape, and which faults meet it when.

use sartor_core::coordinator::COORDINATOR;
use sartor_core::random::Random;
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
    /// Whether stores finish later than they are asked.
    pub slow_stores: bool,
    /// Bounds so small that they are reached.
    pub tight: bool,
    /// The engine.
    pub datalet: &'static str,
    /// What goes wrong, in order of time.
    pub faults: Vec<Fault>,
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
    /// A node hears nobody and nobody hears it.
    Isolation(u16),
    /// One node's messages to another get lost; the other way is open.
    OneWayCut(u16, u16),
    /// A node does nothing, then goes on as if no time had passed.
    Pause(u16),
    /// A node loses all it had and starts again.
    Crash(u16),
    /// The coordinator loses all but its disk and starts again.
    CoordinatorCrash,
    /// The coordinator does nothing, then goes on as if no time had passed.
    CoordinatorPause,
    /// A node's wall clock jumps by so many milliseconds.
    ClockJump(u16, i64),
    /// All nodes lose all they had at once.
    Blackout,
}

impl Plan {
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
            slow_stores: random.percent(50),
            tight: random.percent(50),
            datalet: if random.percent(50) { "hash" } else { "tree" },
            faults: Vec::new(),
        };
        let nodes = u64::from(holders + standbys);
        for _ in 0..random.between(3, 8) {
            let at = random.between(millis(500), millis(run_ms * 8 / 10));
            let until = at + random.between(millis(50), millis(4000));
            let kind = FaultKind::random(random, nodes);
            plan.faults.push(Fault { at, until: until.min(millis(run_ms)), kind });
            // Often another one follows while the first is being repaired.
            if random.percent(40) {
                let at = at + random.below(millis(1500));
                let until = (at + random.between(millis(50), millis(2000))).min(millis(run_ms));
                plan.faults.push(Fault { at, until, kind: FaultKind::random(random, nodes) });
            }
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }
}

impl FaultKind {
    fn random(random: &mut Random, nodes: u64) -> FaultKind {
        let node = random.below(nodes) as u16;
        match random.below(100) {
            0..11 => FaultKind::Loss(random.between(5, 50)),
            11..22 => FaultKind::Duplication(random.between(5, 50)),
            22..33 => FaultKind::Delay(random.between(millis(1), millis(400))),
            33..45 => FaultKind::Isolation(node),
            45..57 => FaultKind::OneWayCut(node, node_or_coordinator(random, nodes)),
            57..72 => FaultKind::Pause(node),
            72..86 => FaultKind::Crash(node),
            86..91 => FaultKind::CoordinatorCrash,
            91..94 => FaultKind::CoordinatorPause,
            94..99 => FaultKind::ClockJump(node, random.between(0, 20_000) as i64 - 10_000),
            _ => FaultKind::Blackout,
        }
    }
}

/// The other end of a cut.
fn node_or_coordinator(random: &mut Random, nodes: u64) -> u16 {
    match random.below(nodes + 1) {
        other if other == nodes => COORDINATOR.node.0,
        other => other as u16,
    }
}
