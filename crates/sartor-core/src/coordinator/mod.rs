//! The coordinator: keeps the cluster map, and knows from heartbeats who is alive.
//!
//! ```text
//!  node ── Heartbeat (incarnation, map epoch) ──▶ coordinator ── Persist (map) ──▶ disk
//!       ◀── Welcome (who is alive, newer map) ──              ◀── Persisted ──
//! ```
//!
//! A map is used only once it is on disk, so that no epoch is ever used twice. The data path never
//! asks the coordinator anything: it decides who should serve, the replicas themselves see to it that
//! nobody else does (`controlet/part/lease.rs`).

use crate::controlet::{Mode, Status, Succession, mode};
pub mod agent;
pub mod estranged;
mod pace;
mod remains;
pub mod repair;
mod reshape;
pub mod split;
pub mod switch;
pub mod tables;
pub mod wish;

use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use crate::keeper::Mark;
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Member, NodeEntry, Partition, Shard, Table, is_adopted};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use estranged::Estranged;
use pace::Pace;
use repair::{Known, succession_of};
use tables::Parts;
use wish::Wish;

/// The coordinator's address among workers.
pub const COORDINATOR: WorkerId = WorkerId { node: NodeId(u16::MAX), worker: 0 };

/// Node to coordinator, again and again: I am alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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
    /// How its replicas stand.
    pub replicas: Vec<ReplicaReport>,
    /// Of those it was asked to try: who answers.
    pub reached: Vec<NodeId>,
    /// What a user there wants.
    pub wish: Option<Wish>,
    /// What a former life of it left on its disks.
    pub held: Vec<Mark>,
    /// Shards of which it left there what cannot be read.
    pub unreadable: Vec<ShardId>,
}

/// How a replica stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplicaReport {
    /// The shard.
    pub shard: ShardId,
    /// The epoch of the view it is in.
    pub epoch: Epoch,
    /// How it stands.
    pub status: Status,
}

/// Coordinator to node: the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Welcome {
    /// The coordinator's process.
    pub pid: u32,
    /// Its address for nodes.
    pub addr: String,
    /// How all nodes stand.
    pub nodes: Vec<NodeReport>,
    /// The map, if the node has an older one.
    pub map: Option<ClusterMap>,
    /// What is not as it should be.
    pub care: Care,
}

/// What is not as it should be, beside dead nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Care {
    /// What is being repaired.
    pub repairs: Vec<Repair>,
    /// Nodes that could not reach each other, the lower number first: that one tries again and again.
    pub estranged: Vec<(NodeId, NodeId)>,
    /// Replicas that lack entries.
    pub lags: Vec<Lag>,
    /// Shards in whose present view, by the map of this epoch, not all members have served yet.
    pub unproven: Vec<ShardId>,
    /// See `unproven`.
    pub epoch: Epoch,
    /// All nodes that are heard have a map of this epoch, or a later one.
    pub known: Epoch,
    /// Shards that stay down, as all that is left of them are stores on these nodes' disks which cannot be read.
    pub stuck: Vec<(ShardId, NodeId)>,
}

/// A replica that lacks entries which another one sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lag {
    /// The shard.
    pub shard: ShardId,
    /// The replica's node.
    pub node: NodeId,
    /// For how long it has lacked the oldest one.
    pub us: Micros,
}

/// A replica that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The shard that lacks a copy.
    pub shard: ShardId,
    /// The node that gets it.
    pub node: NodeId,
    /// Records it has.
    pub done: u64,
    /// Records there are.
    pub total: u64,
}

/// How a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// How the first table is spread. By range it begins with one shard.
    pub partition: Partition,
    /// Shards of the first table, by hash.
    pub shards: u16,
    /// Copies of each shard.
    pub copies: u8,
    /// Its mode.
    pub mode: String,
    /// Its datalet kind.
    pub datalet: String,
}

/// Times of the coordinator, and what it knows of datalets.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorSettings {
    /// A node not heard for so long is down.
    pub down_after_us: Micros,
    /// How often it looks.
    pub tick_us: Micros,
    /// Whether datalets of these kinds can be a table of so many nodes, copies and shards. Nodes say why not; a wish that comes
    /// from one which knows other datalets is not fulfilled.
    pub can: fn(kinds: &str, nodes: u16, copies: u8, parts: &Parts) -> bool,
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        CoordinatorSettings { down_after_us: millis(500), tick_us: millis(50), can: |_, _, _, _| true }
    }
}

/// What happens to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A frame of a node.
    Frame(Bytes),
    /// The map of this epoch is on disk.
    Persisted(Epoch),
    /// Time has passed: comes every `tick_us`, or as soon as can be.
    Tick,
}

/// What it wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Put this map on disk, then say so.
    Persist(ClusterMap),
    /// Send a frame, which may get lost.
    Send(WorkerId, Bytes),
}

/// The coordinator's state.
#[derive(Clone)]
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
    modes: &'static [Mode],
    /// When something last happened here.
    attended_us: Micros,
    /// A node has a newer map than the one on disk here: somebody restored an old one.
    outdated: Option<Epoch>,
    estranged: Estranged,
    pace: Pace,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Registered {
    heartbeat: Heartbeat,
    heard_us: Micros,
    /// When this life was first heard.
    since_us: Micros,
}

/// A node as the rules of repair see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeView {
    /// Its latest life.
    pub incarnation: Incarnation,
    /// It was not heard for too long.
    pub silent: bool,
    /// When that life was first heard.
    pub since_us: Micros,
    /// When it was last heard.
    pub heard_us: Micros,
    /// How its replicas stand.
    pub replicas: Vec<ReplicaReport>,
    /// What a former life of it left on its disks.
    pub held: Vec<Mark>,
    /// Shards of which it left there what cannot be read.
    pub unreadable: Vec<ShardId>,
    /// Shards of which it is to get no copy for now, as one could not be filled a moment ago.
    pub resting: Vec<ShardId>,
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
        modes: &'static [Mode],
    ) -> Coordinator {
        let nodes = BTreeMap::new();
        let (started_us, attended_us, outdated) = (now.steady_us, now.steady_us, None);
        Coordinator {
            spec,
            settings,
            addr,
            pid,
            started_us,
            map,
            next: None,
            nodes,
            modes,
            attended_us,
            outdated,
            estranged: Estranged::new(settings.down_after_us),
            pace: Pace::default(),
        }
    }

    /// The epoch of a newer map that a node has. Nothing is changed then: an old map was put back on disk, and its
    /// next epochs were used before.
    pub fn outdated(&self) -> Option<Epoch> {
        self.outdated
    }

    /// The map in force.
    pub fn map(&self) -> Option<&ClusterMap> {
        self.map.as_ref()
    }

    /// Something happened.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Vec<Action>) {
        self.attend(now);
        match event {
            Event::Frame(frame) => {
                if let Ok((Header { kind: Kind::Heartbeat, .. }, payload)) = Header::parse(frame)
                    && let Ok(heartbeat) = Heartbeat::from_bytes(payload)
                {
                    self.on_heartbeat(now, heartbeat, out);
                }
            }
            Event::Persisted(epoch) => self.on_persisted(now, epoch, out),
            Event::Tick => self.maybe_change(now, out),
        }
    }

    fn on_heartbeat(&mut self, now: Now, heartbeat: Heartbeat, out: &mut Vec<Action>) {
        let node = heartbeat.node;
        let known = self.nodes.get(&node);
        if node.0 >= self.spec.nodes || known.is_some_and(|k| k.heartbeat.incarnation > heartbeat.incarnation)
        {
            return;
        }
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        let on_disk = heartbeat.held.iter().map(|mark| mark.born.max(mark.position.epoch)).max();
        let seen = heartbeat.map_epoch.max(on_disk.unwrap_or_default());
        if seen > epoch.max(self.next.as_ref().map_or(Epoch(0), |map| map.epoch)) {
            self.outdated = Some(seen);
        }
        // An old map that somebody put back must not tell anybody what to remove.
        let map = self.map.as_ref().filter(|map| map.epoch > heartbeat.map_epoch && self.outdated.is_none());
        out.push(self.welcome(now, node, map));
        let same = known.filter(|known| known.heartbeat.incarnation == heartbeat.incarnation);
        let since_us = same.map_or(now.steady_us, |known| known.since_us);
        // News of replicas need not wait for the next look.
        let news = same.is_none_or(|known| {
            known.heartbeat.replicas != heartbeat.replicas || known.heartbeat.wish != heartbeat.wish
        });
        self.estranged.on_heartbeat(now, &heartbeat);
        self.nodes.insert(node, Registered { heartbeat, heard_us: now.steady_us, since_us });
        if news {
            self.maybe_change(now, out);
        }
    }

    /// Where this process itself stood still, it could not hear anybody: that time does not count as silence.
    fn attend(&mut self, now: Now) {
        let late = now.steady_us.saturating_sub(self.attended_us).saturating_sub(2 * self.settings.tick_us);
        self.attended_us = now.steady_us;
        self.started_us += late;
        for node in self.nodes.values_mut() {
            node.heard_us = (node.heard_us + late).min(now.steady_us);
            node.since_us = (node.since_us + late).min(now.steady_us);
        }
    }

    /// Makes the next map, if what is known of the nodes calls for one.
    fn maybe_change(&mut self, now: Now, out: &mut Vec<Action>) {
        if self.next.is_some() || self.outdated.is_some() {
            return;
        }
        let next = match &self.map {
            None => self.first_map(),
            Some(map) => {
                let nodes = self.node_views(now);
                self.estranged.find(now, &nodes, map);
                self.next_map(now, map, &nodes)
            }
        };
        if let Some(map) = next {
            if planted(Fault::SendBeforePersist) {
                let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
                out.extend(nodes.into_iter().map(|node| self.welcome(now, node, Some(&map))));
            }
            if let Some(old) = &self.map {
                self.pace.on_next(now.steady_us, old, &map);
            }
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
        self.maybe_change(now, out);
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
        let parts = match spec.partition {
            Partition::Hash => Parts::Hash(spec.shards),
            Partition::Range => Parts::Range(Vec::new()),
        };
        for (i, (slots, lower)) in parts.each().into_iter().enumerate() {
            let places = (0..u16::from(spec.copies)).map(|copy| NodeId((i as u16 + copy) % holders));
            let mut members = places.map(|node| self.member(node)).collect::<Option<Vec<_>>>()?;
            if is_adopted(&spec.datalet) {
                // The others are filled from it.
                members.truncate(1);
            }
            shards.push(Shard {
                id: ShardId(i as u16),
                table: 0,
                epoch: Epoch(1),
                slots,
                lower,
                members,
                born: Epoch(1),
                start: Position { epoch: Epoch(1), sequence: 0 },
                joining: None,
                outdated: Vec::new(),
                part_of: None,
                inherited: false,
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
                created: Epoch(1),
                switched: Epoch(1),
                datalet_before: String::new(),
                partition: spec.partition,
                divided: Epoch(0),
            }],
            shards,
        })
    }

    /// The map that follows from what is known of the nodes, if it differs.
    fn next_map(&self, now: Now, map: &ClusterMap, nodes: &BTreeMap<NodeId, NodeView>) -> Option<ClusterMap> {
        let mut next = map.clone();
        next.epoch = Epoch(map.epoch.0 + 1);
        let moved = self.follow_addresses(&mut next);
        let repaired = self.repair_shards(now, &mut next, nodes);
        let divided = !repaired && self.divide(&mut next, nodes);
        let switched = !repaired && !divided && self.fulfil_wishes(&mut next, nodes);
        (moved || repaired || divided || switched).then_some(next)
    }

    fn repair_shards(&self, now: Now, next: &mut ClusterMap, nodes: &BTreeMap<NodeId, NodeView>) -> bool {
        let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
        for shard in &next.shards {
            let joining = shard.joining.map(|joining| joining.member);
            let joining = joining.filter(|member| !shard.members.contains(member));
            for member in shard.members.iter().copied().chain(joining) {
                *load.entry(member.node).or_default() += 1;
            }
        }
        let holders = usize::from(self.spec.nodes.saturating_sub(self.spec.standbys)).max(1);
        let wanted: usize =
            next.shards.iter().filter_map(|s| next.table_of(s)).map(|t| usize::from(t.copies)).sum();
        let (epoch, load_max) = (next.epoch, wanted.div_ceil(holders));
        let (heard_all, succession) = (self.is_silent(now, 0), Succession::Next);
        let estranged = &self.estranged;
        let mut known =
            Known { nodes, heard_all, load, load_max, epoch, copies: 0, succession, estranged, datalet: "" };
        let mut changed = false;
        let (tables, closed, mut began_again) = (next.tables.clone(), split::closed(next), Vec::new());
        for shard in next.shards.iter_mut().filter(|shard| shard.part_of.is_none()) {
            let Ok(place) = tables.binary_search_by_key(&shard.table, |table| table.id) else { continue };
            let table = &tables[place];
            known.copies = usize::from(table.copies);
            known.succession = succession_of(mode(self.modes, &table.mode));
            known.datalet = &table.datalet;
            let before = shard.clone();
            if !known.repair(shard) {
                continue;
            }
            let begins_fill = before.joining.is_none() && shard.joining.is_some();
            let waits = begins_fill && closed.contains(&shard.id);
            if waits || self.pace.holds_back(now.steady_us, &before, shard) {
                *shard = before;
                continue;
            }
            changed = true;
            if closed.contains(&shard.id) && (shard.born, shard.start) != (before.born, before.start) {
                began_again.push(shard.id);
            }
        }
        split::begin_again(next, &began_again);
        changed
    }

    fn node_views(&self, now: Now) -> BTreeMap<NodeId, NodeView> {
        self.nodes.iter().map(|(id, node)| (*id, self.node_view(now, node))).collect()
    }

    fn node_view(&self, now: Now, node: &Registered) -> NodeView {
        let id = node.heartbeat.node;
        let shards = || self.map.iter().flat_map(|map| &map.shards);
        // What it said before it knew of a fill is of an earlier one.
        let knows_fill = |report: &&ReplicaReport| {
            let shard = shards().find(|shard| shard.id == report.shard);
            let joining = shard.and_then(|shard| shard.joining).filter(|joining| joining.member.node == id);
            joining.is_none_or(|joining| node.heartbeat.map_epoch >= joining.since)
        };
        let rests = |shard: &ShardId| self.pace.is_early(now.steady_us, *shard, Some(id));
        NodeView {
            incarnation: node.heartbeat.incarnation,
            silent: self.is_silent(now, node.heard_us),
            since_us: node.since_us,
            heard_us: node.heard_us,
            replicas: node.heartbeat.replicas.iter().filter(knows_fill).cloned().collect(),
            held: node.heartbeat.held.clone(),
            unreadable: node.heartbeat.unreadable.clone(),
            resting: shards().map(|shard| shard.id).filter(rests).collect(),
        }
    }

    /// Silence counts from our own start: before it we could not hear.
    fn is_silent(&self, now: Now, heard_us: Micros) -> bool {
        now.steady_us.saturating_sub(heard_us.max(self.started_us)) > self.settings.down_after_us
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

    /// How all nodes stand.
    pub fn reports(&self, now: Now) -> Vec<NodeReport> {
        (0..self.spec.nodes).map(|index| self.report(now, NodeId(index))).collect()
    }

    fn report(&self, now: Now, node: NodeId) -> NodeReport {
        let registered = self.nodes.get(&node);
        let silent = self.is_silent(now, registered.map_or(0, |registered| registered.heard_us));
        let (pid, incarnation) =
            registered.map_or((0, Incarnation(0)), |r| (r.heartbeat.pid, r.heartbeat.incarnation));
        let holds = self.map.as_ref().is_some_and(|map| {
            let mut members = map.shards.iter().flat_map(|shard| &shard.members);
            members.any(|m| m.node == node && (registered.is_none() || m.incarnation == incarnation))
        });
        let joins = self.map.as_ref().is_some_and(|map| {
            let mut joining = map.shards.iter().filter_map(|shard| shard.joining);
            joining.any(|joining| joining.member == Member { node, incarnation })
        });
        let state = match (silent || (registered.is_none() && !holds), joins, holds) {
            (true, ..) => NodeState::Down,
            (false, true, _) => NodeState::Joining,
            (false, false, true) => NodeState::Up,
            (false, false, false) => NodeState::Standby,
        };
        NodeReport { node, pid, incarnation, state }
    }

    /// What is not as it should be.
    pub fn care(&self) -> Care {
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        let (repairs, lags, unproven) = (self.repairs(), self.lags(), self.unproven());
        let (estranged, known, stuck) = (self.estranged.pairs(), self.known(), self.stuck());
        Care { repairs, estranged, lags, unproven, epoch, known, stuck }
    }

    /// The oldest map that a node has of those that are heard.
    fn known(&self) -> Epoch {
        let now = Now { steady_us: self.attended_us, ..Now::default() };
        let heard = self.nodes.values().filter(|node| !self.is_silent(now, node.heard_us));
        heard.map(|node| node.heartbeat.map_epoch).min().unwrap_or_default()
    }

    fn stuck(&self) -> Vec<(ShardId, NodeId)> {
        if self.nodes.values().all(|node| node.heartbeat.unreadable.is_empty()) {
            return Vec::new();
        }
        let nodes = self.node_views(Now::default());
        let of = |shard: &Shard| {
            let id = shard.id;
            remains::stuck(&nodes, shard).into_iter().map(move |node| (id, node))
        };
        self.map.iter().flat_map(|map| &map.shards).flat_map(of).collect()
    }

    fn lags(&self) -> Vec<Lag> {
        let reports = self.nodes.values().flat_map(|node| &node.heartbeat.replicas);
        let shard = |report: &ReplicaReport| self.map.as_ref()?.shard(report.shard).map(|shard| shard.epoch);
        let present = reports.filter(|report| shard(report) == Some(report.epoch));
        let lags = |report: &ReplicaReport| {
            let shard = report.shard;
            let lags = report.status.lags.clone();
            lags.into_iter().map(move |(node, us)| Lag { shard, node, us })
        };
        present.flat_map(lags).collect()
    }

    /// What is being repaired, and how far it is.
    fn repairs(&self) -> Vec<Repair> {
        let shards = self.map.iter().flat_map(|map| &map.shards);
        let repair = |shard: &Shard| {
            if let Some(part) = shard.part_of {
                return self.division(shard, part.whole);
            }
            let joining = shard.joining.filter(|joining| !shard.members.contains(&joining.member))?;
            let told = shard.members.iter().filter_map(|member| self.nodes.get(&member.node));
            let mut fills = told
                .flat_map(|node| &node.heartbeat.replicas)
                .filter(|report| report.shard == shard.id)
                .filter_map(|report| report.status.fill);
            let fill = fills.find(|fill| fill.since == joining.since).unwrap_or_default();
            Some(Repair { shard: shard.id, node: joining.member.node, done: fill.done, total: fill.total })
        };
        shards.filter_map(repair).collect()
    }

    /// The least that a member of a whole has of its copy of a part, if it is not all.
    fn division(&self, part: &Shard, whole: ShardId) -> Option<Repair> {
        let members = &self.map.as_ref()?.shard(whole)?.members;
        let fill = |member: &Member| {
            let heartbeat = &self.nodes.get(&member.node)?.heartbeat;
            let report = heartbeat.replicas.iter().find(|report| report.shard == part.id);
            Some((member.node, report.and_then(|report| report.status.fill).unwrap_or_default()))
        };
        let (node, fill) = members.iter().filter_map(fill).min_by_key(|(_, fill)| (fill.ready, fill.done))?;
        (!fill.ready).then_some(Repair { shard: part.id, node, done: fill.done, total: fill.total })
    }

    fn welcome(&self, now: Now, node: NodeId, map: Option<&ClusterMap>) -> Action {
        let (addr, nodes, care) = (self.addr.clone(), self.reports(now), self.care());
        let welcome = Welcome { pid: self.pid, addr, nodes, map: map.cloned(), care };
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
