//! The coordinator: keeps the cluster map, and knows from heartbeats who is alive.
//!
//! ```text
//!  node ── Heartbeat (incarnation, map epoch) ──▶ coordinator ── Persist (map) ──▶ disk
//!       ◀── Welcome (who is alive, newer map) ──              ◀── Persisted ──
//! ```
//!
//! A map is used only once it is on disk, so that no epoch is ever used twice. The data path never
//! asks the coordinator anything.

pub mod agent;

use crate::ids::{Epoch, Incarnation, NodeId, ShardId, WorkerId};
use crate::routing::map::{ClusterMap, Member, NodeEntry, Shard, Table, even_slots};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;

/// The coordinator's address among workers.
pub const COORDINATOR: WorkerId = WorkerId { node: NodeId(u16::MAX), worker: 0 };

/// Node to coordinator, again and again: I am alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The process.
    pub pid: u32,
    /// The newest map it has.
    pub map_epoch: Epoch,
    /// Its RESP address.
    pub client_addr: String,
    /// Its address for other nodes.
    pub peer_addr: String,
}

/// Coordinator to node: the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The coordinator's process.
    pub pid: u32,
    /// Its address for nodes.
    pub addr: String,
    /// How all nodes stand.
    pub nodes: Vec<NodeReport>,
    /// The map, if the node has an older one.
    pub map: Option<ClusterMap>,
}

/// How a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Which.
    pub node: NodeId,
    /// Its process.
    pub pid: u32,
    /// Its latest life.
    pub incarnation: Incarnation,
    /// How it stands.
    pub state: NodeState,
}

/// How a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It holds replicas and is heard.
    Up,
    /// It is not heard.
    Down,
    /// It is being filled.
    Joining,
    /// It is heard and holds no replica.
    Standby,
}

/// What the cluster should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// A number for this cluster, random at its creation.
    pub cluster: u64,
    /// The seed of key hashing, random at its creation.
    pub seed: u64,
    /// Nodes, standbys included; those are the last ones.
    pub nodes: u16,
    /// Nodes that hold no replica at the start.
    pub standbys: u16,
    /// Event loops a node.
    pub workers: u8,
    /// Shards of the first table.
    pub shards: u16,
    /// Copies of each shard.
    pub copies: u8,
    /// Its mode.
    pub mode: String,
    /// Its datalet kind.
    pub datalet: String,
}

/// Times of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorSettings {
    /// A node not heard for so long is down.
    pub down_after_us: Micros,
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        CoordinatorSettings { down_after_us: millis(500) }
    }
}

/// What happens to the coordinator.
#[derive(Clone, Debug)]
pub enum Event {
    /// A frame of a node.
    Frame(Bytes),
    /// The map of this epoch is on disk.
    Persisted(Epoch),
}

/// What it wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Put this map on disk, then say so.
    Persist(ClusterMap),
    /// Send a frame, which may get lost.
    Send(WorkerId, Bytes),
}

/// The coordinator's state.
pub struct Coordinator {
    spec: Spec,
    settings: CoordinatorSettings,
    addr: String,
    pid: u32,
    started_us: Micros,
    map: Option<ClusterMap>,
    /// Decided, and on its way to disk.
    next: Option<ClusterMap>,
    nodes: BTreeMap<NodeId, Registered>,
}

#[derive(Clone, Debug)]
struct Registered {
    heartbeat: Heartbeat,
    heard_us: Micros,
}

impl Coordinator {
    /// Starts with the map that was on disk, if any.
    pub fn new(
        now: Now,
        spec: Spec,
        settings: CoordinatorSettings,
        addr: String,
        pid: u32,
        map: Option<ClusterMap>,
    ) -> Coordinator {
        let nodes = BTreeMap::new();
        Coordinator { spec, settings, addr, pid, started_us: now.steady_us, map, next: None, nodes }
    }

    /// The map in force.
    pub fn map(&self) -> Option<&ClusterMap> {
        self.map.as_ref()
    }

    /// Something happened.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Frame(frame) => {
                if let Ok((Header { kind: Kind::Heartbeat, .. }, payload)) = Header::parse(frame)
                    && let Ok(heartbeat) = Heartbeat::from_bytes(payload)
                {
                    self.on_heartbeat(now, heartbeat, out);
                }
            }
            Event::Persisted(epoch) => self.on_persisted(now, epoch, out),
        }
    }

    fn on_heartbeat(&mut self, now: Now, heartbeat: Heartbeat, out: &mut Vec<Action>) {
        let node = heartbeat.node;
        let known = self.nodes.get(&node).map(|known| known.heartbeat.incarnation);
        if node.0 >= self.spec.nodes || known.is_some_and(|known| known > heartbeat.incarnation) {
            return;
        }
        let map = self.map.as_ref().filter(|map| map.epoch > heartbeat.map_epoch);
        out.push(self.welcome(now, node, map));
        let reborn = known != Some(heartbeat.incarnation);
        self.nodes.insert(node, Registered { heartbeat, heard_us: now.steady_us });
        if reborn {
            self.maybe_change(out);
        }
    }

    /// Makes the next map, if the nodes that registered call for one.
    fn maybe_change(&mut self, out: &mut Vec<Action>) {
        if self.next.is_some() {
            return;
        }
        let next = match &self.map {
            None => self.first_map(),
            Some(map) => self.next_map(map),
        };
        if let Some(map) = next {
            out.push(Action::Persist(map.clone()));
            self.next = Some(map);
        }
    }

    fn on_persisted(&mut self, now: Now, epoch: Epoch, out: &mut Vec<Action>) {
        if self.next.as_ref().is_none_or(|next| next.epoch != epoch) {
            return;
        }
        self.map = self.next.take();
        for node in self.nodes.keys() {
            out.push(self.welcome(now, *node, self.map.as_ref()));
        }
        self.maybe_change(out);
    }

    fn member(&self, node: NodeId) -> Option<Member> {
        let registered = self.nodes.get(&node)?;
        Some(Member { node, incarnation: registered.heartbeat.incarnation })
    }

    /// Once all nodes are there: shards over the nodes in turn, so that each orders its share.
    fn first_map(&self) -> Option<ClusterMap> {
        let spec = &self.spec;
        if self.nodes.len() < usize::from(spec.nodes) {
            return None;
        }
        let holders = spec.nodes - spec.standbys;
        let mut shards = Vec::new();
        for (i, slots) in even_slots(spec.shards).into_iter().enumerate() {
            let places = (0..u16::from(spec.copies)).map(|copy| NodeId((i as u16 + copy) % holders));
            let members = places.map(|node| self.member(node)).collect::<Option<Vec<_>>>()?;
            shards.push(Shard {
                id: ShardId(i as u16),
                table: 0,
                epoch: Epoch(1),
                slots: vec![slots],
                members,
            });
        }
        let entry = |registered: &Registered| NodeEntry {
            id: registered.heartbeat.node,
            client_addr: registered.heartbeat.client_addr.clone(),
            peer_addr: registered.heartbeat.peer_addr.clone(),
        };
        Some(ClusterMap {
            cluster: spec.cluster,
            epoch: Epoch(1),
            seed: spec.seed,
            workers: spec.workers,
            nodes: self.nodes.values().map(entry).collect(),
            tables: vec![Table {
                id: 0,
                name: "default".into(),
                mode: spec.mode.clone(),
                datalet: spec.datalet.clone(),
                copies: spec.copies,
            }],
            shards,
        })
    }

    /// The map that follows from what the nodes told, if it differs.
    fn next_map(&self, map: &ClusterMap) -> Option<ClusterMap> {
        let mut next = map.clone();
        next.epoch = Epoch(map.epoch.0 + 1);
        let moved = self.follow_addresses(&mut next);
        let readmitted = self.readmit_lost_shards(&mut next);
        (moved || readmitted).then_some(next)
    }

    /// Nodes may come back at other addresses.
    fn follow_addresses(&self, next: &mut ClusterMap) -> bool {
        let mut changed = false;
        for entry in &mut next.nodes {
            let Some(Registered { heartbeat, .. }) = self.nodes.get(&entry.id) else { continue };
            if entry.client_addr != heartbeat.client_addr || entry.peer_addr != heartbeat.peer_addr {
                entry.client_addr = heartbeat.client_addr.clone();
                entry.peer_addr = heartbeat.peer_addr.clone();
                changed = true;
            }
        }
        changed
    }

    /// A shard of which every member began another life has lost its data: it begins anew, empty,
    /// on the same nodes. A shard of which any member may still live is left alone.
    fn readmit_lost_shards(&self, next: &mut ClusterMap) -> bool {
        let mut changed = false;
        for shard in &mut next.shards {
            let reborn = shard
                .members
                .iter()
                .map(|member| self.member(member.node).filter(|now| now.incarnation > member.incarnation));
            if let Some(members) = reborn.collect::<Option<Vec<_>>>() {
                shard.members = members;
                shard.epoch = next.epoch;
                changed = true;
            }
        }
        changed
    }

    /// How all nodes stand.
    pub fn reports(&self, now: Now) -> Vec<NodeReport> {
        (0..self.spec.nodes).map(|index| self.report(now, NodeId(index))).collect()
    }

    fn report(&self, now: Now, node: NodeId) -> NodeReport {
        let registered = self.nodes.get(&node);
        // Silence counts from our own start: before it we could not hear.
        let heard_us = registered.map_or(self.started_us, |registered| registered.heard_us);
        let silent = now.steady_us.saturating_sub(heard_us) > self.settings.down_after_us;
        let (pid, incarnation) =
            registered.map_or((0, Incarnation(0)), |r| (r.heartbeat.pid, r.heartbeat.incarnation));
        let holds = self.map.as_ref().is_some_and(|map| {
            let mut members = map.shards.iter().flat_map(|shard| &shard.members);
            members.any(|m| m.node == node && (registered.is_none() || m.incarnation == incarnation))
        });
        let state = match (silent || (registered.is_none() && !holds), holds) {
            (true, _) => NodeState::Down,
            (false, true) => NodeState::Up,
            (false, false) => NodeState::Standby,
        };
        NodeReport { node, pid, incarnation, state }
    }

    fn welcome(&self, now: Now, node: NodeId, map: Option<&ClusterMap>) -> Action {
        let welcome =
            Welcome { pid: self.pid, addr: self.addr.clone(), nodes: self.reports(now), map: map.cloned() };
        let header = Header {
            kind: Kind::Welcome,
            from: COORDINATOR,
            incarnation: Incarnation(0),
            shard: ShardId(0),
            epoch: Epoch(0),
        };
        Action::Send(WorkerId { node, worker: 0 }, header.frame(|frame| welcome.encode(frame)))
    }
}
