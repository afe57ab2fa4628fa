//! Newer maps: replicas here go on, end, or begin.

use super::{Actions, Node};
use crate::controlet::{Input, Mode, mode};
use crate::ids::{ShardId, WorkerId};
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Member, Shard};
use crate::seat::{Seat, view_of};
use crate::time::Now;
use crate::wire::frame::Kind;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl Node {
    pub(super) fn adopt(&mut self, now: Now, map: Arc<ClusterMap>, out: &mut Actions) {
        if self.map.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        let old = self.map.replace(map.clone());
        self.seats.resize_with(map.shards.len().max(self.seats.len()), || None);
        for shard in &map.shards {
            let known = old.as_ref().and_then(|old| old.shard(shard.id));
            if known.is_none_or(|known| known.epoch != shard.epoch || known.joining != shard.joining) {
                self.reseat(now, &map, shard, out);
            }
            if known.is_none_or(|known| known.epoch != shard.epoch) {
                self.restart_line(shard.id);
            }
        }
        let locks = |shard: &Shard| self.mode_of(&map, shard).is_some_and(|mode| mode.locks);
        let locked: Vec<bool> = map.shards.iter().map(locks).collect();
        self.locked = if locked.contains(&true) { locked } else { Vec::new() };
        out.adopted = true;
        if let Some(agent) = &mut self.agent {
            agent.on_map(&map);
        }
        for frame in core::mem::take(&mut self.held) {
            self.held_bytes -= frame.len();
            self.on_frame(now, frame, out);
        }
    }

    /// A shard has other members than before, or another one joins: a replica here goes on, ends, or begins.
    pub(super) fn reseat(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        let Some(mode) = self.mode_of(map, shard) else { return };
        let me = Member { node: self.me.node, incarnation: self.incarnation };
        let view = view_of(shard, mode.rules, me);
        let mut outbox = core::mem::take(&mut self.outbox);
        if let Some(seat) = &mut self.seats[usize::from(shard.id.0)] {
            let leaves = seat.view.is_member() && !seat.goes_on(&view);
            if !(leaves && planted(Fault::LeaveWithoutStopping)) {
                seat.on_view(now, view, &mut outbox);
            }
            self.perform(now, shard.id, shard.epoch, &mut outbox, out);
            if leaves {
                let header = self.header(Kind::Left, shard.id, shard.epoch);
                let worker = self.me.worker;
                let others = shard.members.iter().filter(|member| member.node != me.node);
                let left = |member: &Member| (WorkerId { node: member.node, worker }, header.frame(|_| {}));
                out.sends.extend(others.map(left));
            }
            self.clear_seat(now, shard.id, out);
        } else {
            self.open_seat(now, map, shard, out);
        }
        self.outbox = outbox;
    }

    fn mode_of(&self, map: &ClusterMap, shard: &Shard) -> Option<&'static Mode> {
        map.table_of(shard).and_then(|table| mode(self.settings.modes, &table.mode))
    }

    /// A replica begins, empty.
    pub(super) fn open_seat(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        // A mode that this node does not know has no replica here.
        let Some(mode) = self.mode_of(map, shard) else { return };
        let me = Member { node: self.me.node, incarnation: self.incarnation };
        let view = view_of(shard, mode.rules, me);
        if view.includes_me() && map.worker_of(shard.id) == self.me.worker {
            self.seats[usize::from(shard.id.0)] = Some(Seat::new(now, mode, view, &self.settings));
            out.opened.push((shard.id, shard.born));
            self.step_seat(now, shard.id, Input::Full(self.full), out);
        }
    }

    /// Lets a replica go that has ended, and makes place for the one that the map wants.
    pub(super) fn clear_seat(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let place = usize::from(shard.0);
        if self.seats[place].as_ref().is_some_and(Seat::is_over) {
            self.seats[place] = None;
            out.dropped.push(shard);
            if let Some(map) = self.map.clone()
                && let Some(shard) = map.shard(shard)
            {
                self.open_seat(now, &map, shard, out);
            }
        }
    }
}
