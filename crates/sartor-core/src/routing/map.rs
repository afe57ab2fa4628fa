//! The cluster map: who holds what, under one epoch.

use crate::ids::{Epoch, Incarnation, NodeId, ShardId, WorkerId};
use crate::routing::slot::SLOTS;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// All that a node must know to route and serve. Only the coordinator makes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterMap {
    /// Tells this cluster from every other.
    pub cluster: u64,
    /// Raised by every change.
    pub epoch: Epoch,
    /// The seed of key hashing: secret, the same in all replicas.
    pub seed: u64,
    /// Event loops a node.
    pub workers: u8,
    /// All nodes, in order of index, standbys included.
    pub nodes: Vec<NodeEntry>,
    /// All tables.
    pub tables: Vec<Table>,
    /// All shards of all tables, in order of index.
    pub shards: Vec<Shard>,
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeEntry {
    /// Its index.
    pub id: NodeId,
    /// Its RESP address, `host:port`.
    pub client_addr: String,
    /// Its address for other nodes, `host:port`.
    pub peer_addr: String,
}

/// A named key space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// Its index.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its mode, a name of [`MODES`](crate::controlet::MODES).
    pub mode: String,
    /// Its datalet kind, a name of the engine registry.
    pub datalet: String,
    /// How many copies each of its shards should have.
    pub copies: u8,
    /// The epoch in which it was last given another mode, datalet or number of copies.
    pub switched: Epoch,
    /// The datalet that it had before, in which there may be copies yet.
    pub datalet_before: String,
}

/// A part of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Its index.
    pub id: ShardId,
    /// The table's index.
    pub table: u16,
    /// The map's epoch at this shard's last change: what its frames carry.
    pub epoch: Epoch,
    /// Its slots, as inclusive ranges.
    pub slots: Vec<(u16, u16)>,
    /// Its replicas in the order that the mode gives a meaning; the first orders writes.
    pub members: Vec<Member>,
    /// The epoch in which it began, empty: a later one than the first where all copies were lost.
    pub born: Epoch,
    /// Members whose store is of the table's former datalet.
    pub outdated: Vec<Member>,
    /// The replica that is being filled, or that has joined and is not proven yet.
    pub joining: Option<Joining>,
}

/// A replica on its way into a shard. While it is filled it is no member; once it is one, it stays
/// listed here until a member has seen all others in the new view. Until then the view before is
/// the one whose members know everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Joining {
    /// Who.
    pub member: Member,
    /// The map's epoch when this fill began: tells one attempt from another.
    pub since: Epoch,
}

/// A replica's place: one life of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The life of it that holds the data.
    pub incarnation: Incarnation,
}

impl ClusterMap {
    /// A shard by index.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.get(usize::from(id.0))
    }

    /// A node by index.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.get(usize::from(id.0))
    }

    /// A shard's table.
    pub fn table_of(&self, shard: &Shard) -> Option<&Table> {
        self.tables.get(usize::from(shard.table))
    }

    /// The worker that holds a shard's replica on each of its nodes.
    pub fn worker_of(&self, shard: ShardId) -> u8 {
        (shard.0 % u16::from(self.workers.max(1))) as u8
    }

    /// The worker that orders a shard's writes.
    pub fn head_of(&self, shard: ShardId) -> Option<WorkerId> {
        let head = self.shard(shard)?.members.first()?;
        Some(WorkerId { node: head.node, worker: self.worker_of(shard) })
    }

    /// The shard of each slot of a table.
    pub fn slot_table(&self, table: u16) -> Vec<ShardId> {
        let mut slots = vec![ShardId(0); usize::from(SLOTS)];
        for shard in self.shards.iter().filter(|shard| shard.table == table) {
            for &(first, last) in &shard.slots {
                slots[usize::from(first)..=usize::from(last)].fill(shard.id);
            }
        }
        slots
    }
}

/// `count` ranges that cover all slots, sizes differing by one at most.
pub fn even_slots(count: u16) -> Vec<(u16, u16)> {
    let bound = |i: u16| (u32::from(i) * u32::from(SLOTS) / u32::from(count)) as u16;
    (0..count).map(|i| (bound(i), bound(i + 1) - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_slots_cover_everything_once() {
        for count in [1, 2, 3, 7, 64, 16_384] {
            let ranges = even_slots(count);
            assert_eq!(ranges.first().map(|r| r.0), Some(0));
            assert_eq!(ranges.last().map(|r| r.1), Some(SLOTS - 1));
            assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
        }
    }
}
