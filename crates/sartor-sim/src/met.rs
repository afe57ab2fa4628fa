//! Which faults met whom in which phase: what a set of seeds has really tried.

use crate::plan::FaultKind;
use crate::world::World;
use sartor_core::controlet::mode;
use sartor_core::coordinator::COORDINATOR;
use sartor_core::routing::map::Shard;
use std::collections::{BTreeMap, BTreeSet};

/// Counts by fault, role and phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met(BTreeMap<(&'static str, &'static str, &'static str), u64>);

/// The phases of a shard, in the order of a repair.
pub const PHASES: [&str; 4] = ["steady", "taking over", "filling", "joining"];

impl Met {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Met) {
        for (what, count) in &other.0 {
            *self.0.entry(*what).or_default() += count;
        }
    }

    /// One line for each fault and role, with a number for each of [`PHASES`].
    pub fn rows(&self) -> Vec<(&'static str, &'static str, [u64; 4])> {
        let pairs: BTreeSet<_> = self.0.keys().map(|(fault, role, _)| (*fault, *role)).collect();
        let count = |fault, role| PHASES.map(|phase| self.0.get(&(fault, role, phase)).copied().unwrap_or(0));
        pairs.into_iter().map(|(fault, role)| (fault, role, count(fault, role))).collect()
    }

    fn note(&mut self, fault: &'static str, role: &'static str, phase: &'static str) {
        *self.0.entry((fault, role, phase)).or_default() += 1;
    }
}

/// A fault begins: notes whom it meets.
pub fn meet(world: &mut World, kind: FaultKind) {
    let shards = world.map().map(|map| map.shards.clone()).unwrap_or_default();
    let phases: Vec<&str> = shards.iter().map(|shard| phase(world, shard)).collect();
    let worst = phases.iter().copied().find(|phase| *phase != PHASES[0]).unwrap_or(PHASES[0]);
    let nodes = kind.nodes();
    if nodes.is_empty() {
        world.met.note(kind.name(), "all", worst);
    }
    for node in nodes {
        if node == COORDINATOR.node.0 {
            world.met.note(kind.name(), "coordinator", worst);
            continue;
        }
        let mut is_idle = true;
        for (shard, phase) in shards.iter().zip(&phases) {
            if let Some(role) = role(world, shard, node) {
                is_idle = false;
                world.met.note(kind.name(), role, phase);
            }
        }
        if is_idle {
            world.met.note(kind.name(), "standby", worst);
        }
    }
}

fn role(world: &World, shard: &Shard, node: u16) -> Option<&'static str> {
    let place = shard.members.iter().position(|member| member.node.0 == node);
    let joins = shard.joining.is_some_and(|joining| joining.member.node.0 == node);
    let name = mode(world.config.modes, world.config.mode)?.role;
    match (place, joins) {
        (_, true) => Some("newcomer"),
        (Some(place), false) => Some(name(place, shard.members.len())),
        (None, false) => None,
    }
}

fn phase(world: &World, shard: &Shard) -> &'static str {
    let proven = |node: u16| {
        let node = world.machines.get(usize::from(node)).and_then(|machine| machine.node.as_ref());
        let reports = node.map(sartor_core::node::Node::reports).unwrap_or_default();
        reports
            .iter()
            .any(|report| report.shard == shard.id && report.epoch == shard.epoch && report.status.proven)
    };
    let joining = shard.joining.map(|joining| joining.member);
    if joining.is_some_and(|member| shard.members.contains(&member)) {
        PHASES[3]
    } else if !shard.members.iter().all(|member| proven(member.node.0)) {
        PHASES[1]
    } else if joining.is_some() {
        PHASES[2]
    } else {
        PHASES[0]
    }
}
