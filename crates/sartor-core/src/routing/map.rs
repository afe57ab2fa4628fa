//! The cluster map: who holds what, under one epoch.

use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use crate::keeper::Mark;
use crate::routing::slot::SLOTS;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

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
    /// All tables, in order of number; the first one is there from the beginning and stays.
    pub tables: Vec<Table>,
    /// All shards of all tables, in order of index. Those of deleted tables are vacant: a number is not used again, as requests
    /// on their way carry it.
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
    /// Its number, which no other table ever has.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its mode, a name of [`MODES`](crate::controlet::MODES).
    pub mode: String,
    /// Its datalet kind, a name of the engine registry.
    pub datalet: String,
    /// How many copies each of its shards should have.
    pub copies: u8,
    /// The epoch in which it began.
    pub created: Epoch,
    /// The epoch in which it was last given another mode, datalet or number of copies.
    pub switched: Epoch,
    /// The datalet that it had before, in which there may be copies yet.
    pub datalet_before: String,
    /// What its shards are parts of.
    pub partition: Partition,
    /// The epoch in which one of its shards was last divided, or got further on the way.
    pub divided: Epoch,
}

/// How the keys of a table are spread over its shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partition {
    /// By the slots that they hash to.
    #[default]
    Hash,
    /// By their order: each shard has the keys from its `lower` one up to the next shard's.
    Range,
}

impl Partition {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Partition::Hash => "hash",
            Partition::Range => "range",
        }
    }
}

/// A part of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Its index.
    pub id: ShardId,
    /// The table's number.
    pub table: u16,
    /// The map's epoch at this shard's last change: what its frames carry.
    pub epoch: Epoch,
    /// Its slots, as inclusive ranges, in a table that is spread by hash.
    pub slots: Vec<(u16, u16)>,
    /// Its least key, in a table that is spread by range.
    pub lower: Bytes,
    /// Its replicas in the order that the mode gives a meaning; the first orders writes.
    pub members: Vec<Member>,
    /// The epoch in which it began, empty: a later one than the first where all copies were lost.
    pub born: Epoch,
    /// Where its members stood when it last began: at an empty beginning, or with what had outlived them on disk.
    pub start: Position,
    /// Members whose store is of the table's former datalet.
    pub outdated: Vec<Member>,
    /// The replica that is being filled, or that has joined and is not proven yet.
    pub joining: Option<Joining>,
    /// Whose upper part it is to be. It has no members yet: each member of that one prepares a copy.
    pub part_of: Option<PartOf>,
    /// It began as such a part, with records: an empty copy is none of its beginning.
    pub inherited: bool,
}

/// A shard that is being divided (`coordinator/split.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartOf {
    /// It.
    pub whole: ShardId,
    /// It takes no request for the part any more.
    pub closed: bool,
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
    /// How far the copy stands that is on its disk, from an earlier life: what came later is all that it needs, if that place
    /// is in the history. Zero where there is none.
    pub held: Position,
}

/// A replica's place: one life of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The life of it that holds the data.
    pub incarnation: Incarnation,
}

impl Table {
    /// Whether its stores are somewhere already, and what is in the first one is the table.
    pub fn is_adopted(&self) -> bool {
        is_adopted(&self.datalet)
    }
}

/// Of several datalet kinds, separated by commas, the one of a node: they take turns.
pub fn kind_of(kinds: &str, node: NodeId) -> &str {
    let count = kinds.split(',').count();
    kinds.split(',').nth(usize::from(node.0) % count).unwrap_or(kinds)
}

/// Whether stores of these kinds are somewhere already: they have addresses.
pub fn is_adopted(datalet: &str) -> bool {
    datalet.contains("://")
}

impl Shard {
    /// Where an empty copy stands: in the epoch in which the shard began, later than all that was seen of one that lost its
    /// data, and the same at all members, whenever they come to it.
    pub fn beginning(&self) -> Position {
        Position { epoch: self.born, sequence: 0 }
    }

    /// Whether a copy that a node's former life left on its disk may be needed yet: the node is to have one, or there are fewer
    /// than there should be.
    pub fn may_need(&self, node: NodeId, copies: u8) -> bool {
        let joining = self.joining.iter().map(|joining| &joining.member);
        let concerned = self.members.iter().chain(joining).any(|member| member.node == node);
        !self.is_vacant() && (concerned || self.members.len() < usize::from(copies))
    }

    /// Whether its table was deleted, or its number is not used.
    pub fn is_vacant(&self) -> bool {
        self.members.is_empty() && self.part_of.is_none()
    }

    /// Whether requests for its keys go to it, and not to the shard that it is a part of yet.
    pub fn is_apart(&self) -> bool {
        !self.is_vacant() && self.part_of.is_none_or(|part| part.closed)
    }
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

    /// A table by number.
    pub fn table(&self, id: u16) -> Option<&Table> {
        self.tables.binary_search_by_key(&id, |table| table.id).ok().and_then(|place| self.tables.get(place))
    }

    /// A table by name.
    pub fn table_named(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// A shard's table; none of one that was deleted.
    pub fn table_of(&self, shard: &Shard) -> Option<&Table> {
        self.table(shard.table)
    }

    /// Whether what a node's disk holds of a shard is of no use any more. Of what is newer than this map it says nothing: somebody
    /// may have put an old one back.
    pub fn has_done_with(&self, mark: &Mark, node: NodeId) -> bool {
        let is_newer = mark.born.max(mark.position.epoch) > self.epoch;
        let copies = |shard| self.table_of(shard).map_or(0, |table| table.copies);
        !is_newer && self.shard(mark.shard).is_some_and(|shard| !shard.may_need(node, copies(shard)))
    }

    /// The table, if any, that has stores at an address of these datalet kinds.
    pub fn table_at<'a>(&'a self, kinds: &'a str) -> Option<(&'a Table, &'a str)> {
        let addresses = kinds.split(',').filter(|kind| is_adopted(kind));
        let has = |table: &&Table, address: &str| {
            table.datalet.split(',').chain(table.datalet_before.split(',')).any(|kind| kind == address)
        };
        addresses.into_iter().find_map(|address| {
            self.tables.iter().find(|table| has(table, address)).map(|table| (table, address))
        })
    }

    /// The shards of a table.
    pub fn shards_of(&self, table: u16) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(move |shard| shard.table == table && !shard.is_vacant())
    }

    /// In a table in ranges: the first key behind a shard's, if any, among shards that `counts`.
    fn end_among(&self, shard: &Shard, counts: impl Fn(&Shard) -> bool) -> Option<&Bytes> {
        if self.table_of(shard)?.partition == Partition::Hash {
            return None;
        }
        let lowers = self.shards_of(shard.table).filter(|other| counts(other)).map(|other| &other.lower);
        lowers.filter(|lower| **lower > shard.lower).min()
    }

    /// The first key that a shard takes no requests for, as another one does.
    pub fn upper_of(&self, shard: &Shard) -> Option<&Bytes> {
        self.end_among(shard, Shard::is_apart)
    }

    /// The first key of which a shard's copies need nothing any more.
    pub fn needless_from(&self, shard: &Shard) -> Option<&Bytes> {
        self.end_among(shard, |other| other.part_of.is_none())
    }

    /// For each shard, see [`ClusterMap::upper_of`]; empty where none has an end.
    pub fn ends(&self) -> Vec<Option<Bytes>> {
        let mut ends = Vec::new();
        for table in self.tables.iter().filter(|table| table.partition == Partition::Range) {
            let mut shards: Vec<&Shard> = self.takers_of(table.id).collect();
            shards.sort_by(|one, other| one.lower.cmp(&other.lower));
            if shards.len() > 1 {
                ends.resize(self.shards.len(), None);
            }
            for pair in shards.windows(2) {
                ends[usize::from(pair[0].id.0)] = Some(pair[1].lower.clone());
            }
        }
        ends
    }

    /// The shards of a table that take requests of their own.
    pub fn takers_of(&self, table: u16) -> impl Iterator<Item = &Shard> {
        self.shards_of(table).filter(|shard| shard.is_apart())
    }

    /// The shard that is being made of the upper part of another one.
    pub fn part_of(&self, whole: ShardId) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.part_of.is_some_and(|part| part.whole == whole))
    }

    /// The shard that takes the requests for a part: the part itself, or what it is a part of yet.
    pub fn taker_of(&self, shard: ShardId) -> ShardId {
        let part_of = self.shard(shard).and_then(|shard| shard.part_of);
        part_of.filter(|part| !part.closed).map_or(shard, |part| part.whole)
    }

    /// The kind of datalet that a shard's replica on a node is in.
    pub fn kind_at(&self, shard: &Shard, node: NodeId) -> Option<&str> {
        let table = self.table_of(shard)?;
        let is_outdated = shard.outdated.iter().any(|member| member.node == node);
        Some(kind_of(if is_outdated { &table.datalet_before } else { &table.datalet }, node))
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
