//! What users want changed: said to a node, told with its heartbeats, fulfilled by one change of the map.

use super::split::{is_begun, is_split};
use super::switch::TableShape;
use super::tables::NewTable;
use super::{Coordinator, NodeView};
use crate::ids::{Epoch, NodeId};
use crate::routing::map::ClusterMap;
use alloc::collections::BTreeMap;
use bytes::Bytes;

/// What a node's user wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    /// What.
    pub change: Change,
    /// The map's epoch when it was wished: a change since then has fulfilled it, or was wished later.
    pub since: Epoch,
}

/// A change of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The table of this number should have another shape.
    Reshape(u16, TableShape),
    /// There should be such a table.
    Create(NewTable),
    /// The table of this number should be gone.
    Delete(u16),
    /// The table of this number should be divided at this key.
    Split(u16, Bytes),
}

impl Change {
    /// Whether the map is as it is wanted.
    pub fn is_in(&self, map: &ClusterMap) -> bool {
        match self {
            Change::Reshape(table, shape) => {
                map.table(*table).is_some_and(|table| TableShape::of(table) == *shape)
            }
            Change::Create(new) => new.is_in(map),
            Change::Delete(table) => map.table(*table).is_none(),
            Change::Split(table, at) => is_split(map, *table, at),
        }
    }
}

impl Wish {
    /// Whether nothing is left to be wished: it is so, or somebody wished otherwise later, or it cannot be any more.
    pub fn is_over(&self, map: &ClusterMap) -> bool {
        match &self.change {
            Change::Reshape(table, _) => map.table(*table).is_none_or(|table| table.switched > self.since),
            Change::Create(new) => map.table_named(&new.name).is_some(),
            Change::Delete(_) => self.change.is_in(map),
            Change::Split(table, at) => is_begun(map, *table, at),
        }
    }
}

impl Coordinator {
    /// Fulfils what is wished and can be.
    pub(super) fn fulfil_wishes(&self, next: &mut ClusterMap, nodes: &BTreeMap<NodeId, NodeView>) -> bool {
        // Who is silent may have given up long ago.
        let heard = |id: &NodeId| nodes.get(id).is_some_and(|node| !node.silent);
        let wishing = self.nodes.iter().filter(|(id, _)| heard(id));
        let wishes = wishing.filter_map(|(_, node)| node.heartbeat.wish.as_ref());
        let mut changed = false;
        for Wish { change, since } in wishes {
            changed |= match change {
                Change::Reshape(table, shape) => self.maybe_reshape(next, (*table, shape, *since), nodes),
                Change::Create(new) => self.maybe_create(next, (new, *since), nodes),
                Change::Delete(table) => self.maybe_delete(next, *table),
                Change::Split(table, at) => self.maybe_split(next, (*table, at), nodes),
            };
        }
        changed
    }
}
