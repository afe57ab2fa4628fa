//! A shard of a table in ranges becomes two while it serves, by three changes of the map.
//!
//! ```text
//!  made     the upper part is there, of no members: each replica of the whole fills a store for it, and goes on
//!  closed   a new view of the whole, which takes nothing more for the part; requests for it wait
//!  open     the part is a shard like any other, its members those of the whole
//! ```
//!
//! The part is closed when every member of the whole has a copy of it that follows what is written, and all nodes that are
//! heard know of it, so that none sends one request for keys on both sides. It opens when every member of the whole has done
//! all that was ordered for the part, and said so in the present view of the whole (`division.rs`). Until then the whole has
//! everything: when nodes die, or all of them, the part is made again of what they have. After that it has a life of its own.
//!
//! No copy moves between nodes: the part begins where the whole is, in the same order, and is repaired like any other.

use super::repair::is_heard;
use super::tables::{BOUND_BYTES_MAX, MAP_BYTES_MAX, SHARDS_MAX, SHARDS_PRESENT_MAX};
use super::{Coordinator, NodeView};
use crate::controlet::{Mode, mode, ms_sc};
use crate::ids::{NodeId, ShardId};
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Member, PartOf, Partition, Shard};
use crate::wire::codec::Wire;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// Whether a table in this mode can be divided: its controlet knows what is meant, and no locks outside are held for keys that are
/// in another shard a moment later.
pub fn can_divide(mode: &Mode) -> bool {
    mode.is_like(&ms_sc::MODE) && !mode.locks
}

/// Why a table cannot be divided at a key, if so.
pub fn refuses(map: &ClusterMap, table: u16, at: &Bytes) -> Option<String> {
    let known = map.table(table)?;
    let present = map.shards.iter().filter(|shard| !shard.is_vacant()).count();
    if known.partition == Partition::Hash {
        Some(format!("the table {} is spread by hash; a table by range can be divided at a key", known.name))
    } else if known.is_adopted() {
        Some(format!("the stores of the table {} are not ours, so it cannot get more of them", known.name))
    } else if !(1..=BOUND_BYTES_MAX).contains(&at.len()) {
        Some(format!("a key at which a table is divided has 1 to {BOUND_BYTES_MAX} bytes"))
    } else if present >= SHARDS_PRESENT_MAX {
        Some(format!("a cluster may have {SHARDS_PRESENT_MAX} shards; there are {present}"))
    } else if map.shards.len() + usize::from(map.workers) > SHARDS_MAX {
        Some(format!("a cluster may have {SHARDS_MAX} shards in its life, and had nearly all of them"))
    } else if map.to_bytes().len() + at.len() + 256 > MAP_BYTES_MAX {
        Some(format!("the cluster map would have more than {MAP_BYTES_MAX} bytes"))
    } else {
        None
    }
}

impl Coordinator {
    /// Begins to divide a table at a key, if it can be now.
    pub(super) fn maybe_split(
        &self,
        next: &mut ClusterMap,
        (table, at): (u16, &Bytes),
        nodes: &BTreeMap<NodeId, NodeView>,
    ) -> bool {
        let Some(known) = next.table(table) else { return false };
        let knows = mode(self.modes, &known.mode).is_some_and(can_divide);
        let taken = next.shards_of(table).any(|shard| shard.lower == *at || shard.part_of.is_some());
        if !knows || taken || refuses(next, table, at).is_some() {
            return false;
        }
        let below = next.shards_of(table).filter(|shard| shard.lower <= *at);
        let Some(whole) = below.max_by(|one, other| one.lower.cmp(&other.lower)) else { return false };
        if !self.may_divide(whole, nodes) {
            return false;
        }
        let (whole, worker, epoch) = (whole.id, next.worker_of(whole.id), next.epoch);
        // A replica and its part are on the same worker: numbers between are not used.
        while next.worker_of(ShardId(next.shards.len() as u16)) != worker {
            let id = ShardId(next.shards.len() as u16);
            next.shards.push(Shard { id, table, epoch, born: epoch, ..Shard::default() });
        }
        let mut part = Shard {
            id: ShardId(next.shards.len() as u16),
            table,
            epoch,
            born: epoch,
            lower: at.clone(),
            part_of: Some(PartOf { whole, closed: false }),
            ..Shard::default()
        };
        part.start = part.beginning();
        next.shards.push(part);
        true
    }

    fn may_divide(&self, whole: &Shard, nodes: &BTreeMap<NodeId, NodeView>) -> bool {
        self.is_well(whole, nodes) && whole.joining.is_none() && whole.outdated.is_empty()
    }

    /// Takes divisions a step further.
    pub(super) fn divide(&self, next: &mut ClusterMap, nodes: &BTreeMap<NodeId, NodeView>) -> bool {
        let parts: Vec<(usize, PartOf)> =
            (0..).zip(&next.shards).filter_map(|(place, shard)| Some((place, shard.part_of?))).collect();
        let mut changed = false;
        for (place, part_of) in parts {
            let Some(whole) = next.shard(part_of.whole).cloned() else { continue };
            let part = &next.shards[place];
            let closes = !part_of.closed
                && self.known() >= part.epoch
                && self.may_divide(&whole, nodes)
                && all(nodes, &whole, part, |ready, _| ready);
            let opens = part_of.closed
                && whole.joining.is_none()
                && all(nodes, &whole, part, |_, sealed| sealed || planted(Fault::SealEarly));
            let (epoch, table) = (next.epoch, whole.table);
            let part = &mut next.shards[place];
            if closes {
                (part.born, part.epoch) = (epoch, epoch);
                part.part_of = Some(PartOf { closed: true, ..part_of });
                part.start = part.beginning();
                next.shards[usize::from(whole.id.0)].epoch = epoch;
            } else if opens {
                (part.members, part.epoch, part.part_of) = (whole.members, epoch, None);
                part.inherited = true;
            } else {
                continue;
            }
            note_divided(next, table);
            changed = true;
        }
        changed
    }
}

fn note_divided(next: &mut ClusterMap, table: u16) {
    let epoch = next.epoch;
    next.tables.iter_mut().filter(|known| known.id == table).for_each(|table| table.divided = epoch);
}

/// Whether every member of the whole is heard, and its copy of the part is as wanted, in the present view of the whole.
fn all(
    nodes: &BTreeMap<NodeId, NodeView>,
    whole: &Shard,
    part: &Shard,
    wanted: impl Fn(bool, bool) -> bool,
) -> bool {
    let stands = |member: &Member| {
        let node = nodes.get(&member.node).filter(|_| is_heard(nodes, *member))?;
        let of_part = |report: &&super::ReplicaReport| (report.shard, report.epoch) == (part.id, whole.epoch);
        let report = node.replicas.iter().find(of_part)?;
        Some(wanted(report.status.fill.is_some_and(|fill| fill.ready), report.status.proven))
    };
    whole.members.iter().all(|member| stands(member) == Some(true))
}

/// The wholes that take nothing more for a part. Who would be filled from one now might get all of it or not.
pub(super) fn closed(map: &ClusterMap) -> Vec<ShardId> {
    let closed = |shard: &Shard| shard.part_of.filter(|part| part.closed).map(|part| part.whole);
    map.shards.iter().filter_map(closed).collect()
}

/// Wholes that begin again, with what was on disk or empty, have other parts: what was sealed is not true of them.
pub(super) fn begin_again(map: &mut ClusterMap, wholes: &[ShardId]) {
    let epoch = map.epoch;
    for part in &mut map.shards {
        if part.part_of.is_some_and(|part| wholes.contains(&part.whole)) {
            (part.born, part.epoch) = (epoch, epoch);
            part.start = part.beginning();
        }
    }
}

/// Whether a table is divided at a key.
pub fn is_split(map: &ClusterMap, table: u16, at: &Bytes) -> bool {
    map.shards_of(table).any(|shard| shard.lower == *at && shard.part_of.is_none())
}

/// Whether that has begun, or cannot be any more.
pub(super) fn is_begun(map: &ClusterMap, table: u16, at: &Bytes) -> bool {
    map.table(table).is_none() || map.shards_of(table).any(|shard| shard.lower == *at)
}
