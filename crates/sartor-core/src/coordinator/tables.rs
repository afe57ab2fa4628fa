//! Tables come and go while the cluster serves.
//!
//! A new one begins empty, its shards in turn over the nodes that hold replicas, as at the cluster's beginning. Of one that is
//! deleted the shards stay in the map, vacant: its replicas end and remove what they stored, and requests that are on their way
//! find out. Neither its number nor theirs is used again.

use super::switch::TableShape;
use super::{Coordinator, NodeView};
use crate::controlet::mode;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::routing::map::{ClusterMap, Member, Partition, Shard, Table, even_slots, is_adopted};
use crate::routing::slot::SLOTS;
use crate::wire::codec::Wire;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;

/// Tables that there may be at a time.
pub const TABLES_MAX: usize = 1000;
/// Shards that a cluster may have in all its life.
pub const SHARDS_MAX: usize = 1 << 14;
/// Shards that it may have at a time: the coordinator looks at all of them again and again.
pub const SHARDS_PRESENT_MAX: usize = 2048;
/// The largest map, in bytes: all nodes get it, and etcd takes values of 1.5 MiB.
pub const MAP_BYTES_MAX: usize = 1 << 20;
/// The longest key at which a table in ranges is divided.
pub const BOUND_BYTES_MAX: usize = 1024;

/// A table that is to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewTable {
    /// Its name.
    pub name: String,
    /// Its mode, datalet and number of copies.
    pub shape: TableShape,
    /// Its shards.
    pub parts: Parts,
}

/// How a table is divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Parts {
    /// By hash, into so many.
    Hash(u16),
    /// By range, at these keys, in order: one part more than keys.
    Range(Vec<Bytes>),
}

impl Parts {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Parts::Hash(count) => usize::from(*count),
            Parts::Range(bounds) => bounds.len() + 1,
        }
    }

    /// Which way they are divided.
    pub fn partition(&self) -> Partition {
        match self {
            Parts::Hash(_) => Partition::Hash,
            Parts::Range(_) => Partition::Range,
        }
    }

    /// Slots and least key of each.
    pub(super) fn each(&self) -> Vec<(Vec<(u16, u16)>, Bytes)> {
        match self {
            Parts::Hash(count) => {
                even_slots(*count).into_iter().map(|slots| (vec![slots], Bytes::new())).collect()
            }
            Parts::Range(bounds) => {
                let lowers = core::iter::once(Bytes::new()).chain(bounds.iter().cloned());
                lowers.map(|lower| (Vec::new(), lower)).collect()
            }
        }
    }

    fn are_possible(&self) -> bool {
        match self {
            Parts::Hash(count) => (1..=SLOTS).contains(count),
            Parts::Range(bounds) => {
                bounds.is_sorted_by(|one, other| one < other)
                    && bounds.iter().all(|bound| (1..=BOUND_BYTES_MAX).contains(&bound.len()))
            }
        }
    }
}

impl NewTable {
    /// Whether a map has it, as it was wanted.
    pub fn is_in(&self, map: &ClusterMap) -> bool {
        let known = map.table_named(&self.name);
        known.is_some_and(|table| {
            TableShape::of(table) == self.shape
                && table.partition == self.parts.partition()
                && match &self.parts {
                    Parts::Hash(count) => map.shards_of(table.id).count() == usize::from(*count),
                    // It may be divided further by now.
                    Parts::Range(bounds) => {
                        let is_there =
                            |bound: &Bytes| map.shards_of(table.id).any(|shard| shard.lower == *bound);
                        bounds.iter().all(is_there)
                    }
                }
        })
    }
}

/// Why there is no room for one more table like that, if so.
pub fn lacks_room(map: &ClusterMap, new: &NewTable) -> Option<String> {
    let (count, had) = (new.parts.count(), map.shards.len());
    let present = map.shards.iter().filter(|shard| !shard.is_vacant()).count();
    let bounds: usize = match &new.parts {
        Parts::Hash(_) => 0,
        Parts::Range(bounds) => bounds.iter().map(Bytes::len).sum(),
    };
    // About what a shard takes beside its bound.
    let bytes = map.to_bytes().len() + bounds + count * (64 + 16 * usize::from(new.shape.copies));
    if map.tables.len() >= TABLES_MAX {
        Some(format!("there may be {TABLES_MAX} tables; delete one first"))
    } else if present + count > SHARDS_PRESENT_MAX {
        Some(format!("a cluster may have {SHARDS_PRESENT_MAX} shards; there are {present}"))
    } else if had + count > SHARDS_MAX {
        Some(format!(
            "a cluster may have {SHARDS_MAX} shards in its life, those of deleted tables included; this one had {had}"
        ))
    } else if bytes > MAP_BYTES_MAX {
        Some(format!(
            "the cluster map would have more than {MAP_BYTES_MAX} bytes: fewer or shorter SPLIT-AT keys"
        ))
    } else {
        None
    }
}

/// The number of the next table: no table had it before.
fn next_number(map: &ClusterMap) -> Option<u16> {
    let known = map.tables.iter().map(|table| table.id).chain(map.shards.iter().map(|shard| shard.table));
    known.max().map_or(Some(0), |last| last.checked_add(1))
}

impl Coordinator {
    /// Begins a table, if it can be.
    pub(super) fn maybe_create(
        &self,
        next: &mut ClusterMap,
        (new, since): (&NewTable, Epoch),
        nodes: &BTreeMap<NodeId, NodeView>,
    ) -> bool {
        // A wish from before a table was deleted may have been for that one, and fulfilled.
        let vacant = next.shards.iter().filter(|shard| shard.is_vacant());
        let is_old = vacant.map(|shard| shard.born).max().is_some_and(|deleted| since < deleted);
        let known = next.table_named(&new.name).is_some() || mode(self.modes, &new.shape.mode).is_none();
        let copies = (1..=next.nodes.len()).contains(&usize::from(new.shape.copies));
        let holders = self.holders(next, nodes);
        let can =
            (self.settings.can)(&new.shape.datalet, next.nodes.len() as u16, new.shape.copies, &new.parts);
        let adopted = is_adopted(&new.shape.datalet);
        // What is in the first node's store is the table, so that node must be there.
        let begins = match holders.first() {
            Some(first) => {
                !adopted || (first.node == NodeId(0) && next.table_at(&new.shape.datalet).is_none())
            }
            None => false,
        };
        let possible = new.parts.are_possible() && lacks_room(next, new).is_none();
        if is_old || known || !copies || !possible || !can || !begins {
            return false;
        }
        let Some(id) = next_number(next) else { return false };
        let TableShape { mode, datalet, copies } = new.shape.clone();
        let first = if adopted { 0 } else { next.shards.len() };
        for (i, (slots, lower)) in new.parts.each().into_iter().enumerate() {
            let place = |copy: usize| holders[(first + i + copy) % holders.len()];
            // Where there are too few nodes now, or what there is must be the first one's, the others are filled later.
            let count = if adopted { 1 } else { usize::from(copies).min(holders.len()) };
            let mut shard = Shard {
                id: ShardId(next.shards.len() as u16),
                table: id,
                epoch: next.epoch,
                born: next.epoch,
                slots,
                lower,
                members: (0..count).map(place).collect(),
                ..Shard::default()
            };
            shard.start = shard.beginning();
            next.shards.push(shard);
        }
        next.tables.push(Table {
            id,
            name: new.name.clone(),
            mode,
            datalet,
            copies,
            created: next.epoch,
            divided: Epoch(0),
            switched: next.epoch,
            datalet_before: String::new(),
            partition: new.parts.partition(),
        });
        true
    }

    /// Nodes that are heard, but for standbys unless there are too few others.
    fn holders(&self, map: &ClusterMap, nodes: &BTreeMap<NodeId, NodeView>) -> Vec<Member> {
        let holds = |node: NodeId| {
            let mut members = map.shards.iter().flat_map(|shard| &shard.members);
            node.0 < self.spec.nodes - self.spec.standbys || members.any(|member| member.node == node)
        };
        let heard = nodes.iter().filter(|(_, node)| !node.silent);
        let member = |(id, node): (&NodeId, &NodeView)| Member { node: *id, incarnation: node.incarnation };
        let (holding, standing_by): (Vec<Member>, Vec<Member>) =
            heard.map(member).partition(|member| holds(member.node));
        if holding.is_empty() { standing_by } else { holding }
    }

    /// Ends a table, unless it is the first one.
    pub(super) fn maybe_delete(&self, next: &mut ClusterMap, table: u16) -> bool {
        let epoch = next.epoch;
        let before = next.tables.len();
        next.tables.retain(|known| known.id != table || known.id == 0);
        if next.tables.len() == before {
            return false;
        }
        for shard in next.shards.iter_mut().filter(|shard| shard.table == table) {
            *shard = Shard { id: shard.id, table, epoch, born: epoch, ..Shard::default() };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CoordinatorSettings, Spec};
    use super::*;
    use crate::controlet::MODES;
    use crate::ids::Incarnation;
    use crate::time::Now;

    fn shape(datalet: &str, copies: u8) -> TableShape {
        TableShape { mode: "ms+sc".into(), datalet: datalet.into(), copies }
    }

    /// A coordinator of four nodes, the last a standby, a map with one table, and the nodes as they stand.
    fn world() -> (Coordinator, ClusterMap, BTreeMap<NodeId, NodeView>) {
        let spec = Spec {
            cluster: 1,
            seed: 1,
            nodes: 4,
            standbys: 1,
            workers: 1,
            partition: Partition::Hash,
            shards: 1,
            copies: 3,
            mode: "ms+sc".into(),
            datalet: "hash".into(),
        };
        let now = Now::default();
        let settings = CoordinatorSettings::default();
        let coordinator = Coordinator::new(now, spec, settings, String::new(), 1, None, MODES);
        let life = |node| Member { node: NodeId(node), incarnation: Incarnation(7) };
        let shard = Shard { members: (0..3).map(life).collect(), ..Shard::default() };
        let entry = |node| crate::routing::map::NodeEntry { id: NodeId(node), ..Default::default() };
        let map = ClusterMap {
            epoch: Epoch(5),
            nodes: (0..4).map(entry).collect(),
            tables: vec![Table { name: "default".into(), copies: 3, ..Table::default() }],
            shards: vec![shard],
            ..ClusterMap::default()
        };
        let view = |node| (NodeId(node), NodeView { incarnation: Incarnation(7), ..NodeView::default() });
        (coordinator, map, (0..4).map(view).collect())
    }

    fn create(name: &str, shape: TableShape, parts: Parts) -> NewTable {
        NewTable { name: name.into(), shape, parts }
    }

    fn nodes_of(shard: &Shard) -> Vec<u16> {
        shard.members.iter().map(|member| member.node.0).collect()
    }

    #[test]
    fn a_table_begins_spread_over_those_that_hold_replicas() {
        let (coordinator, mut map, mut nodes) = world();
        let bounds = ["g", "n"].map(|key| Bytes::from_static(key.as_bytes())).to_vec();
        let new = create("t", shape("tree", 2), Parts::Range(bounds));
        assert!(coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes) && new.is_in(&map));
        assert!(!coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes), "there is one of that name");
        let shards: Vec<&Shard> = map.shards_of(1).collect();
        assert_eq!(shards.iter().map(|s| nodes_of(s)).collect::<Vec<_>>(), [[1, 2], [2, 0], [0, 1]]);
        assert_eq!(shards.iter().map(|s| s.lower.len()).collect::<Vec<_>>(), [0, 1, 1]);
        assert!(shards.iter().all(|s| s.born == map.epoch && s.start == s.beginning()));
        for silent in [0, 2] {
            nodes.get_mut(&NodeId(silent)).unwrap().silent = true;
        }
        let fewer = create("fewer", shape("hash", 3), Parts::Hash(1));
        assert!(coordinator.maybe_create(&mut map, (&fewer, Epoch(5)), &nodes));
        assert_eq!(
            map.shards.last().map(nodes_of),
            Some(vec![1]),
            "the others are filled when they are there"
        );
    }

    #[test]
    fn what_cannot_be_is_not_begun() {
        let (coordinator, map, nodes) = world();
        let bound = |key: &'static str| Bytes::from_static(key.as_bytes());
        let mode = TableShape { mode: "nosuch".into(), ..shape("hash", 1) };
        let wrong = [
            create("t", shape("hash", 5), Parts::Hash(1)),
            create("t", shape("hash", 0), Parts::Hash(1)),
            create("t", shape("hash", 1), Parts::Hash(0)),
            create("t", shape("hash", 1), Parts::Range(vec![bound("b"), bound("a")])),
            create("t", shape("hash", 1), Parts::Range(vec![bound("")])),
            create("t", mode, Parts::Hash(1)),
            create("default", shape("hash", 1), Parts::Hash(1)),
        ];
        for new in wrong {
            let mut next = map.clone();
            assert!(!coordinator.maybe_create(&mut next, (&new, Epoch(5)), &nodes) && next == map, "{new:?}");
        }
        let new = create("t", shape("hash", 1), Parts::Hash(1));
        assert!(!coordinator.maybe_create(&mut map.clone(), (&new, Epoch(5)), &BTreeMap::new()));
    }

    #[test]
    fn a_table_over_stores_that_run_begins_at_the_first_node_and_has_them_alone() {
        let (coordinator, mut map, mut nodes) = world();
        let kinds = "redis://a,redis://b,redis://c,redis://d";
        let new = create("t", shape(kinds, 3), Parts::Hash(1));
        nodes.get_mut(&NodeId(0)).unwrap().silent = true;
        assert!(!coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes), "the first one has the data");
        nodes.get_mut(&NodeId(0)).unwrap().silent = false;
        assert!(coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes));
        assert_eq!(map.shards.last().map(nodes_of), Some(vec![0]));
        let again = create("again", shape("hash,redis://b", 1), Parts::Hash(1));
        assert!(!coordinator.maybe_create(&mut map, (&again, Epoch(5)), &nodes), "another table's store");
    }

    #[test]
    fn a_map_has_its_limits() {
        let (coordinator, mut map, nodes) = world();
        let long = |count: u16, bytes: usize| {
            Parts::Range(
                (0..count).map(|i| [&i.to_be_bytes()[..], &vec![1; bytes - 2]].concat().into()).collect(),
            )
        };
        for parts in [long(1, BOUND_BYTES_MAX + 1), long(1100, 1000), Parts::Hash(SHARDS_PRESENT_MAX as u16)]
        {
            let new = create("large", shape("tree", 1), parts);
            assert!(!coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes));
        }
        let new = create("fits", shape("tree", 1), long(900, BOUND_BYTES_MAX));
        assert!(coordinator.maybe_create(&mut map, (&new, Epoch(5)), &nodes));
        assert!(map.to_bytes().len() <= MAP_BYTES_MAX);
    }

    #[test]
    fn numbers_are_never_used_again() {
        let (coordinator, mut map, nodes) = world();
        for round in 1..4 {
            map.epoch = Epoch(10 + round);
            let new = create(&format!("t{round}"), shape("hash", 1), Parts::Hash(2));
            assert!(coordinator.maybe_create(&mut map, (&new, Epoch(10 + round)), &nodes));
            let id = map.tables.last().map(|table| table.id);
            assert_eq!((id, map.shards.len()), (Some(round as u16), 1 + 2 * round as usize));
            assert!(coordinator.maybe_delete(&mut map, round as u16));
            assert!(!coordinator.maybe_delete(&mut map, round as u16));
            assert_eq!(map.shards_of(round as u16).count(), 0);
            let old = create("again", shape("hash", 1), Parts::Hash(1));
            assert!(
                !coordinator.maybe_create(&mut map, (&old, Epoch(9 + round)), &nodes),
                "a wish from before"
            );
        }
        assert!(!coordinator.maybe_delete(&mut map, 0), "the first one stays");
        assert_eq!(ClusterMap::from_bytes(map.to_bytes()), Ok(map));
    }
}
