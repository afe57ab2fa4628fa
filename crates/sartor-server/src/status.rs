//! What `sartor status` shows: the cluster map and what is known of the nodes, as JSON.

use crate::modes::modes;
use sartor_core::controlet::mode;
use sartor_core::coordinator::{Care, Lag, NodeReport, NodeState, Repair};
use sartor_core::ids::Incarnation;
use sartor_core::routing::map::{ClusterMap, Partition, Shard, Table, kind_of};
use sartor_datalets::shown;
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
    /// The tables, in order of number.
    #[serde(default)]
    pub tables: Vec<TableStatus>,
    /// The shards.
    pub shards: Vec<ShardStatus>,
    /// Copies that are being made.
    #[serde(default)]
    pub repairs: Vec<RepairStatus>,
    /// Nodes that do not reach each other, so that no shard gets both.
    #[serde(default)]
    pub estranged: Vec<(u16, u16)>,
    /// Shards that stay down, as all that is left of them cannot be read.
    #[serde(default)]
    pub stuck: Vec<StuckStatus>,
}

/// A shard that stays down.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StuckStatus {
    /// The shard.
    pub shard: u16,
    /// A node that has on its disk what cannot be read.
    pub node: u16,
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

/// A table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TableStatus {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its mode.
    pub mode: String,
    /// Its datalet kinds.
    pub datalet: String,
    /// How many copies each shard should have.
    pub copies: u8,
    /// hash or range.
    pub partition: String,
    /// How many shards it has.
    pub shards: usize,
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
    /// Its slots, both ends included, in a table that is spread by hash.
    pub slots: Vec<(u16, u16)>,
    /// Its least key, in a table in ranges; what is not ASCII as in `\\xff`.
    #[serde(default)]
    pub lower: Option<String>,
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
    let present = || map.shards.iter().filter(|shard| !shard.members.is_empty());
    let shards: Vec<Health> = present().map(|shard| Health::of(map, shard, reports)).collect();
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
        tables: map.tables.iter().map(|table| table_status(map, table)).collect(),
        shards: in_order(map).map(|shard| shard_status(map, shard, &care.lags)).collect(),
        repairs: present().filter_map(|shard| repair_status(shard, &care.repairs)).collect(),
        estranged: care.estranged.iter().map(|(one, other)| (one.0, other.0)).collect(),
        stuck: care.stuck.iter().map(|(shard, node)| StuckStatus { shard: shard.0, node: node.0 }).collect(),
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
        let mode = table.and_then(|table| mode(modes(), &table.mode));
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

/// Shards that there are, table by table, those of ranges in the order of keys.
fn in_order(map: &ClusterMap) -> impl Iterator<Item = &Shard> {
    let mut shards: Vec<&Shard> = map.shards.iter().filter(|shard| !shard.members.is_empty()).collect();
    shards.sort_by_key(|shard| (shard.table, &shard.lower, shard.id));
    shards.into_iter()
}

fn table_status(map: &ClusterMap, table: &Table) -> TableStatus {
    let shown: Vec<String> = table.datalet.split(',').map(shown).collect();
    TableStatus {
        id: table.id,
        name: table.name.clone(),
        mode: table.mode.clone(),
        datalet: shown.join(","),
        copies: table.copies,
        partition: table.partition.name().into(),
        shards: map.shards_of(table.id).filter(|shard| shard.part_of.is_none()).count(),
    }
}

fn shard_status(map: &ClusterMap, shard: &Shard, lags: &[Lag]) -> ShardStatus {
    let table = map.table_of(shard);
    let name = |get: fn(&Table) -> &String| table.map(get).cloned().unwrap_or_default();
    let mode_name = name(|table| &table.mode);
    let role =
        mode(modes(), &mode_name).map_or((|_, _| "member") as fn(usize, usize) -> &'static str, |m| m.role);
    let lag_ms = |node| {
        let lags = lags.iter().filter(|lag| lag.shard == shard.id && lag.node == node);
        lags.map(|lag| lag.us / 1000).max().unwrap_or(0)
    };
    let replicas = shard.members.iter().enumerate().map(|(place, member)| ReplicaStatus {
        node: member.node.0,
        role: role(place, shard.members.len()).into(),
        datalet: {
            let kinds = match shard.outdated.contains(member) {
                true => name(|table| &table.datalet_before),
                false => name(|table| &table.datalet),
            };
            shown(kind_of(&kinds, member.node))
        },
        lag_ms: lag_ms(member.node),
    });
    ShardStatus {
        id: shard.id.0,
        table: name(|table| &table.name),
        mode: mode_name,
        epoch: shard.epoch.0,
        empty_since: match table {
            Some(table) if shard.born > table.created && !shard.inherited => shard.born.0,
            _ => 1,
        },
        slots: shard.slots.clone(),
        lower: table
            .filter(|table| table.partition == Partition::Range)
            .map(|_| shard.lower.escape_ascii().to_string()),
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
        let (repairs, losses, stuck) =
            (self.repairs_sentence(), self.losses_sentence(), self.stuck_sentence());
        format!("{state}{missing}{repairs}{losses}{stuck}{coordinator}")
    }

    /// Which shards stay down until a person does something, and what.
    fn stuck_sentence(&self) -> String {
        let mut said = String::new();
        for group in self.stuck.chunk_by(|one, other| one.shard == other.shard) {
            let shard = group[0].shard;
            let nodes: Vec<String> = group.iter().map(|stuck| stuck.node.to_string()).collect();
            said += &format!(
                " Shard {shard} stays down: no copy of it can be read (nodes {} said why when they started). Put a copy that can be read in the place of stores/{shard}-... in one of these nodes' folders, and start that node again; or, to begin the shard anew, empty, remove stores/{shard}-... from all of them, and start them again.",
                nodes.join(", ")
            );
        }
        said
    }

    /// Which shards are empty because all their copies died.
    fn losses_sentence(&self) -> String {
        let adopted =
            |shard: &&ShardStatus| shard.replicas.iter().any(|replica| replica.datalet.contains("://"));
        let (adopted, empty): (Vec<&ShardStatus>, Vec<&ShardStatus>) =
            self.shards.iter().filter(|shard| shard.empty_since > 1).partition(adopted);
        let told = |lost: &[&ShardStatus], with: &str| {
            let lost: Vec<String> = lost
                .iter()
                .map(|shard| format!("shard {} (epoch {})", shard.id, shard.empty_since))
                .collect();
            match lost.is_empty() {
                true => String::new(),
                false => format!(" All copies died and were begun anew, {with}: {}.", lost.join(", ")),
            }
        };
        told(&empty, "empty") + &told(&adopted, "with what was in the first one's store")
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
