//! What `sartor status` shows: the cluster map and what is known of the nodes, as JSON.

use sartor_core::controlet::{MODES, mode};
use sartor_core::coordinator::{Care, Lag, NodeReport, NodeState, Repair};
use sartor_core::ids::Incarnation;
use sartor_core::routing::map::{ClusterMap, Shard};
use serde::{Deserialize, Serialize};

/// The cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The map's number.
    pub epoch: u64,
    /// healthy, degraded or down.
    pub health: String,
    /// How many nodes may die one after another before a shard stops serving.
    pub tolerates: usize,
    /// The coordinator.
    pub coordinator: CoordinatorStatus,
    /// All coordinators, the one that leads among them.
    #[serde(default)]
    pub coordinators: Vec<CoordinatorStatus>,
    /// The nodes, in order of index.
    pub nodes: Vec<NodeStatus>,
    /// The shards.
    pub shards: Vec<ShardStatus>,
    /// Copies that are being made.
    #[serde(default)]
    pub repairs: Vec<RepairStatus>,
    /// Nodes that do not reach each other, so that no shard gets both.
    #[serde(default)]
    pub estranged: Vec<(u16, u16)>,
}

/// A copy that is being made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RepairStatus {
    /// The shard.
    pub shard: u16,
    /// The node that gets the copy.
    pub node: u16,
    /// Records it has.
    pub done: u64,
    /// Records there are.
    pub total: u64,
}

/// The coordinator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CoordinatorStatus {
    /// Its address for nodes.
    pub addr: String,
    /// Its process.
    pub pid: u32,
    /// up or down; among all: leads, candidate or down.
    pub state: String,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its index.
    pub id: u16,
    /// Its RESP address.
    pub addr: String,
    /// Its process.
    pub pid: u32,
    /// up, down, joining or standby.
    pub state: String,
}

/// A shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Its index.
    pub id: u16,
    /// Its table.
    pub table: String,
    /// Its mode.
    pub mode: String,
    /// The epoch of its members.
    #[serde(default)]
    pub epoch: u64,
    /// The epoch in which it lost all its copies and began anew, empty; 1 if that never was.
    #[serde(default)]
    pub empty_since: u64,
    /// Its slots, both ends included.
    pub slots: Vec<(u16, u16)>,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
}

/// A replica.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its node.
    pub node: u16,
    /// What it does in its mode.
    pub role: String,
    /// Its datalet kind.
    pub datalet: String,
    /// For how long it has lacked the oldest entry that it lacks, in ms; 0 if it lacks none.
    #[serde(default)]
    pub lag_ms: u64,
}

/// What is known of the coordinator.
#[derive(Clone, Debug, Default)]
pub struct CoordinatorNews {
    /// Its address for nodes.
    pub addr: String,
    /// Its process.
    pub pid: u32,
    /// Whether it was heard lately.
    pub is_up: bool,
}

impl CoordinatorNews {
    /// All coordinators: this one, if it leads, and the others that a node was told of.
    pub fn all(&self, addrs: &[String], failures: impl Iterator<Item = bool>) -> Vec<CoordinatorStatus> {
        let state = |leads: bool, failed: bool| match (leads, failed) {
            (true, _) => "leads",
            (false, true) => "down",
            (false, false) => "candidate",
        };
        let status = |(addr, failed): (&String, bool)| {
            let leads = self.is_up && *addr == self.addr;
            // Who does not lead answers nothing, so its process is not known.
            let pid = if leads { self.pid } else { 0 };
            CoordinatorStatus { addr: addr.clone(), pid, state: state(leads, failed).into() }
        };
        let mut all: Vec<CoordinatorStatus> = addrs.iter().zip(failures).map(status).collect();
        if self.is_up && !addrs.contains(&self.addr) {
            // It calls itself by another name than the node does.
            all.push(CoordinatorStatus { addr: self.addr.clone(), pid: self.pid, state: "leads".into() });
        }
        all
    }
}

/// Puts together what is known.
pub fn status(
    map: &ClusterMap,
    reports: &[NodeReport],
    care: &Care,
    coordinator: &CoordinatorNews,
) -> Status {
    let shards: Vec<Health> = map.shards.iter().map(|shard| Health::of(map, shard, reports)).collect();
    let health = if shards.iter().any(|shard| !shard.serves) {
        "down"
    } else if shards.iter().any(|shard| shard.alive < shard.wanted) {
        "degraded"
    } else {
        "healthy"
    };
    Status {
        epoch: map.epoch.0,
        health: health.into(),
        tolerates: shards.iter().map(|shard| shard.tolerates).min().unwrap_or(0),
        coordinator: CoordinatorStatus {
            addr: coordinator.addr.clone(),
            pid: coordinator.pid,
            state: if coordinator.is_up { "up" } else { "down" }.into(),
        },
        coordinators: coordinator.all(&[], std::iter::empty()),
        nodes: nodes(map, reports),
        shards: map.shards.iter().map(|shard| shard_status(map, shard, &care.lags)).collect(),
        repairs: map.shards.iter().filter_map(|shard| repair_status(shard, &care.repairs)).collect(),
        estranged: care.estranged.iter().map(|(one, other)| (one.0, other.0)).collect(),
    }
}

fn repair_status(shard: &Shard, repairs: &[Repair]) -> Option<RepairStatus> {
    let joining = shard.joining.filter(|joining| !shard.members.contains(&joining.member))?;
    let node = joining.member.node;
    let known = repairs.iter().find(|repair| repair.shard == shard.id && repair.node == node);
    let (done, total) = known.map_or((0, 0), |repair| (repair.done, repair.total));
    Some(RepairStatus { shard: shard.id.0, node: node.0, done, total })
}

struct Health {
    serves: bool,
    alive: usize,
    wanted: usize,
    tolerates: usize,
}

impl Health {
    fn of(map: &ClusterMap, shard: &Shard, reports: &[NodeReport]) -> Health {
        let alive: Vec<bool> = shard
            .members
            .iter()
            .map(|member| {
                let report = reports.iter().find(|report| report.node == member.node);
                // A coordinator that has just begun has not heard of this life yet, and misses nobody.
                let same = |life: Incarnation| life == member.incarnation || life == Incarnation(0);
                report.is_some_and(|r| r.state != NodeState::Down && same(r.incarnation))
            })
            .collect();
        let table = map.table_of(shard);
        let mode = table.and_then(|table| mode(MODES, &table.mode));
        Health {
            serves: mode.is_none_or(|mode| (mode.serves)(&alive)),
            alive: alive.iter().filter(|alive| **alive).count(),
            wanted: table.map_or(0, |table| usize::from(table.copies)),
            tolerates: mode.map_or(0, |mode| (mode.tolerates)(&alive)),
        }
    }
}

fn nodes(map: &ClusterMap, reports: &[NodeReport]) -> Vec<NodeStatus> {
    let state = |state| match state {
        NodeState::Up => "up",
        NodeState::Down => "down",
        NodeState::Joining => "joining",
        NodeState::Standby => "standby",
    };
    let status = |node: &sartor_core::routing::map::NodeEntry| {
        let report = reports.iter().find(|report| report.node == node.id);
        NodeStatus {
            id: node.id.0,
            addr: node.client_addr.clone(),
            pid: report.map_or(0, |report| report.pid),
            state: state(report.map_or(NodeState::Down, |report| report.state)).into(),
        }
    };
    map.nodes.iter().map(status).collect()
}

fn shard_status(map: &ClusterMap, shard: &Shard, lags: &[Lag]) -> ShardStatus {
    let table = map.table_of(shard);
    let name =
        |get: fn(&sartor_core::routing::map::Table) -> &String| table.map(get).cloned().unwrap_or_default();
    let mode_name = name(|table| &table.mode);
    let role =
        mode(MODES, &mode_name).map_or((|_, _| "member") as fn(usize, usize) -> &'static str, |m| m.role);
    let lag_ms = |node| {
        let lags = lags.iter().filter(|lag| lag.shard == shard.id && lag.node == node);
        lags.map(|lag| lag.us / 1000).max().unwrap_or(0)
    };
    let replicas = shard.members.iter().enumerate().map(|(place, member)| ReplicaStatus {
        node: member.node.0,
        role: role(place, shard.members.len()).into(),
        datalet: match shard.outdated.contains(member) {
            true => name(|table| &table.datalet_before),
            false => name(|table| &table.datalet),
        },
        lag_ms: lag_ms(member.node),
    });
    ShardStatus {
        id: shard.id.0,
        table: name(|table| &table.name),
        mode: mode_name,
        epoch: shard.epoch.0,
        empty_since: shard.born.0,
        slots: shard.slots.clone(),
        replicas: replicas.collect(),
    }
}

impl Status {
    /// Health in one sentence.
    pub fn sentence(&self) -> String {
        let down: Vec<String> =
            self.nodes.iter().filter(|node| node.state == "down").map(|node| node.id.to_string()).collect();
        let missing = match down.len() {
            0 => String::new(),
            1 => format!(" Node {} is down.", down[0]),
            _ => format!(" Nodes {} are down.", down.join(", ")),
        };
        let state = match self.health.as_str() {
            "healthy" => "Healthy: every shard has all its copies.",
            "degraded" => "Degraded: every shard serves, some with fewer copies.",
            _ => "Down: some shard does not serve all requests.",
        };
        let coordinator = match self.coordinator.state.as_str() {
            "down" => " The coordinator is away: nothing is repaired until it is back.",
            _ => "",
        };
        format!("{state}{missing}{}{}{coordinator}", self.repairs_sentence(), self.losses_sentence())
    }

    /// Which shards are empty because all their copies died.
    fn losses_sentence(&self) -> String {
        let lost = self.shards.iter().filter(|shard| shard.empty_since > 1);
        let lost: Vec<String> =
            lost.map(|shard| format!("shard {} (epoch {})", shard.id, shard.empty_since)).collect();
        if lost.is_empty() {
            return String::new();
        }
        format!(" All copies died and were begun anew, empty: {}.", lost.join(", "))
    }

    /// What is being repaired, how far it is, and when it is safe again.
    fn repairs_sentence(&self) -> String {
        if self.repairs.is_empty() {
            return String::new();
        }
        let (done, total) = self
            .repairs
            .iter()
            .fold((0, 0), |(done, total), repair| (done + repair.done, total + repair.total));
        let copies: Vec<String> = self
            .repairs
            .iter()
            .map(|repair| format!("shard {} at node {}", repair.shard, repair.node))
            .collect();
        let percent = (done * 100).checked_div(total).unwrap_or(0);
        format!(
            " Making copies of {}: {done} of {total} records ({percent} %); safe again when they are complete.",
            copies.join(", ")
        )
    }
}
