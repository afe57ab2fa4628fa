//! Another mode for a table, another datalet, or another number of copies, while it serves.
//!
//! ```text
//!  user ──▶ node: wish ── in its heartbeats ──▶ coordinator: one map, with the new mode and a new view of every shard
//!                                                ◀── every member of every view is proven: done
//! ```
//!
//! A switch is one change of the map, so nobody can die in the middle of it: there is the old mode or the new one, and a
//! view of it that begins like any other. In that view nobody serves before all members have left the old one and have all
//! that any of them had (`controlet/part/lease.rs`); requests wait meanwhile. It is not begun while a shard is being repaired.
//! (TPDS 5 does the same with a second set of controlets.)
//!
//! Another datalet and other numbers of copies are views of repair afterwards, see `reshape.rs`.

use super::repair::report_of;
use super::tables::Parts;
use super::{Coordinator, NodeView};
use crate::controlet::mode;
use crate::controlet::rules::Answers;
use crate::ids::{Epoch, NodeId, Position, ShardId};
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Joining, Partition, Shard, Table};
use crate::time::{Micros, millis};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// What a table should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableShape {
    /// Its mode.
    pub mode: String,
    /// Its datalet kind.
    pub datalet: String,
    /// Copies of each shard.
    pub copies: u8,
}

impl TableShape {
    /// What a table is to be by the map.
    pub fn of(table: &Table) -> TableShape {
        TableShape { mode: table.mode.clone(), datalet: table.datalet.clone(), copies: table.copies }
    }
}

/// A copy that is further behind than this must catch up first, as requests would wait for that.
pub(super) const LAG_MAX_US: Micros = millis(100);

impl Coordinator {
    /// Gives a table another shape, if that is news, and the table is well.
    pub(super) fn maybe_reshape(
        &self,
        next: &mut ClusterMap,
        (table, shape, since): (u16, &TableShape, Epoch),
        nodes: &BTreeMap<NodeId, NodeView>,
    ) -> bool {
        let Some(known) = next.table(table) else { return false };
        let may = known.switched <= since
            && self.may(next, known, shape)
            && next.shards_of(table).all(|shard| self.is_well(shard, nodes));
        if may {
            reshape(next, table, shape);
        }
        may
    }

    /// Whether a table can have that shape, and has not.
    fn may(&self, next: &ClusterMap, table: &Table, shape: &TableShape) -> bool {
        let (old, new) = (mode(self.modes, &table.mode), mode(self.modes, &shape.mode));
        let alike = old.zip(new).is_some_and(|(old, new)| old.is_like(new));
        // One datalet after the other: it is known of each copy in which of two it is.
        let renewed = next.shards_of(table.id).all(|shard| shard.outdated.is_empty());
        let copies = (1..=next.nodes.len()).contains(&usize::from(shape.copies));
        // The only copy cannot be filled beside itself.
        let renews = table.datalet != shape.datalet;
        // Each copy leaves in turn, also the first one: what it alone has acknowledged would be lost.
        let alone = new.is_some_and(|mode| mode.rules.answers == Answers::Here);
        let parts = match table.partition {
            Partition::Hash => Parts::Hash(next.shards_of(table.id).count() as u16),
            Partition::Range => Parts::Range(Vec::new()),
        };
        let can = (self.settings.can)(&shape.datalet, next.nodes.len() as u16, shape.copies, &parts);
        // Another one's stores are not to be had.
        let free = !renews || next.table_at(&shape.datalet).is_none_or(|(other, _)| other.id == table.id);
        alike
            && free
            && copies
            && can
            && !(alone && (renews || !renewed))
            && (!renews || (renewed && next.nodes.len() > 1))
            && TableShape::of(table) != *shape
    }

    /// Whether all members serve, and none is far behind.
    pub(super) fn is_well(&self, shard: &Shard, nodes: &BTreeMap<NodeId, NodeView>) -> bool {
        let newcomer = shard.joining.is_some_and(|joining| shard.members.contains(&joining.member));
        let serves = |member| {
            let report = report_of(nodes, shard, member).map(|report| &report.status);
            report.is_some_and(|status| {
                status.proven
                    && !status.lost
                    && !status.differs
                    && status.lags.iter().all(|(_, lag)| *lag < LAG_MAX_US)
            })
        };
        let heard = |node: NodeId| nodes.get(&node).is_some_and(|node| !node.silent);
        !newcomer
            && shard.part_of.is_none()
            && shard.members.iter().all(|member| heard(member.node) && serves(*member))
    }

    /// Shards of which some member is not known to have served in the present view.
    pub(super) fn unproven(&self) -> Vec<ShardId> {
        let proven = |shard: &Shard| {
            shard.members.iter().all(|member| {
                let heartbeat = self.nodes.get(&member.node).map(|node| &node.heartbeat);
                heartbeat.filter(|heartbeat| heartbeat.incarnation == member.incarnation).is_some_and(
                    |heartbeat| {
                        let mut reports = heartbeat.replicas.iter();
                        reports.any(|r| r.shard == shard.id && r.epoch == shard.epoch && r.status.proven)
                    },
                )
            })
        };
        let shards = self.map.iter().flat_map(|map| &map.shards);
        shards.filter(|shard| !proven(shard)).map(|shard| shard.id).collect()
    }
}

/// In the map: a new mode at once, by a new view of each shard; what else is new, copy by copy.
fn reshape(next: &mut ClusterMap, id: u16, shape: &TableShape) {
    let epoch = next.epoch;
    let Some(table) = next.tables.iter_mut().find(|table| table.id == id) else { return };
    let TableShape { mode, datalet, copies } = shape.clone();
    let (other_mode, other_datalet) = (table.mode != mode, table.datalet != datalet);
    if other_datalet {
        table.datalet_before = core::mem::replace(&mut table.datalet, datalet);
    }
    (table.mode, table.copies, table.switched) = (mode, copies, epoch);
    for shard in next.shards.iter_mut().filter(|shard| shard.table == id) {
        if other_mode {
            shard.epoch = if planted(Fault::SwitchInPlace) { shard.epoch } else { epoch };
            // Who is being filled has another source now, or another stream: it starts over.
            shard.joining =
                shard.joining.map(|joining| Joining { since: epoch, held: Position::ZERO, ..joining });
        }
        if other_datalet {
            shard.outdated = shard.members.clone();
            // A store that was opened before is of the former datalet.
            shard.joining = None;
        }
    }
}
