//! The coordinator: the shipped rules of repair, over what it could know.
//!
//! Reports are taken when it decides. An older report would lead to the same map: reports count only in the
//! epoch they are of, and what the rules look for in them does not come undone within an epoch; and what was decided earlier
//! and comes later is explored anyway, as each map reaches each node at any time.

use crate::local::SHARD;
use sartor_core::controlet::ms_sc;
use sartor_core::coordinator::estranged::Estranged;
use sartor_core::coordinator::repair::Known;
use sartor_core::coordinator::{NodeView, ReplicaReport};
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position};
use sartor_core::routing::map::{ClusterMap, Member, NodeEntry, Shard, Table};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nodes, the spare included.
pub const NODES: usize = 4;

/// What the coordinator decided, and whom it does not hear.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    /// All maps, in order of epoch from 1.
    pub maps: Vec<ClusterMap>,
    /// Nodes it takes for dead.
    pub silent: [bool; NODES],
    copies: u8,
}

impl Coordinator {
    /// The first map: the first nodes are members, the others spares.
    pub fn new(members: u8) -> Coordinator {
        let member = |node: u8| Member { node: NodeId(u16::from(node)), incarnation: Incarnation(1) };
        let shard = Shard {
            id: SHARD,
            epoch: Epoch(1),
            members: (0..members).map(member).collect(),
            born: Epoch(1),
            start: Position { epoch: Epoch(1), sequence: 0 },
            ..Shard::default()
        };
        let (mode, created) = (ms_sc::MODE.name.into(), Epoch(1));
        let table = Table { mode, created, copies: members, ..Table::default() };
        let node = |id: usize| NodeEntry { id: NodeId(id as u16), ..NodeEntry::default() };
        let map = ClusterMap {
            epoch: Epoch(1),
            workers: 1,
            nodes: (0..NODES).map(node).collect(),
            tables: vec![table],
            shards: vec![shard],
            ..ClusterMap::default()
        };
        Coordinator { maps: vec![map], silent: [false; NODES], copies: members }
    }

    /// The newest map's shard.
    pub fn shard(&self) -> &Shard {
        &self.maps[self.maps.len() - 1].shards[0]
    }

    /// How far its work is, for who wants to know that all of it was seen.
    pub fn stage(&self) -> &'static str {
        let (first, last) = (&self.maps[0].shards[0], self.shard());
        let spare = last.members.iter().find(|member| !first.members.contains(member));
        match (spare, last.joining) {
            (Some(_), None) => "a newcomer that counts",
            (Some(_), Some(_)) => "a newcomer that does not count yet",
            (None, Some(_)) => "a fill",
            (None, None) if last.members.len() + 1 < first.members.len() => "two removed",
            (None, None) => "none or one removed",
        }
    }

    /// A fault: who has joined counts at once.
    pub fn count_newcomers(&mut self) {
        for map in &mut self.maps {
            let shard = &mut map.shards[0];
            shard.joining = shard.joining.filter(|joining| !shard.members.contains(&joining.member));
        }
    }

    /// Decides until nothing more is to be done. True if something was.
    pub fn decide(&mut self, reports: &[Arc<Vec<ReplicaReport>>; NODES]) -> bool {
        let before = self.maps.len();
        while self.maps.len() < before + 4 && self.decide_once(reports) {}
        self.maps.len() > before
    }

    fn decide_once(&mut self, reports: &[Arc<Vec<ReplicaReport>>; NODES]) -> bool {
        let mut next = self.maps[self.maps.len() - 1].clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        let view = |node: usize| {
            // What it last said it said in an older epoch, or it would have counted then.
            let replicas = if self.silent[node] { Vec::new() } else { reports[node].to_vec() };
            let (incarnation, silent) = (Incarnation(1), self.silent[node]);
            (NodeId(node as u16), NodeView { incarnation, silent, replicas, ..NodeView::default() })
        };
        let nodes: BTreeMap<NodeId, NodeView> = (0..NODES).map(view).collect();
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        let shard = &mut next.shards[0];
        let joining = shard.joining.map(|joining| joining.member);
        let joining = joining.filter(|member| !shard.members.contains(member));
        for member in shard.members.iter().copied().chain(joining) {
            *load.entry(member.node).or_default() += 1;
        }
        // Links do not die in this world.
        let estranged = Estranged::new(0);
        let mut known = Known {
            datalet: "",
            nodes: &nodes,
            estranged: &estranged,
            heard_all: true,
            load,
            load_max: 1,
            epoch: next.epoch,
            copies: usize::from(self.copies),
            succession: ms_sc::MODE.succession,
        };
        let changed = known.repair(shard);
        if changed {
            self.maps.push(next);
        }
        changed
    }
}
