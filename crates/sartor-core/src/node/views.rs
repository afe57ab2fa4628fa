//! Newer maps: replicas here go on, end, or begin.

use super::aside::Scans;
use super::{Actions, Node, Opened};
use crate::controlet::{Input, Mode, View, mode};
use crate::ids::{Position, ShardId, WorkerId};
use crate::mutants::{Fault, planted};
use crate::record::Bounds;
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
        let scans: Vec<Scans> = map.shards.iter().map(|shard| self.scans_of(&map, shard)).collect();
        self.scans = if scans.iter().all(|scans| *scans == Scans::Usual) { Vec::new() } else { scans };
        self.open_parts(now, &map, out);
        for shard in &map.shards {
            let known = old.as_ref().and_then(|old| old.shard(shard.id));
            if known.is_none_or(|known| known.epoch != shard.epoch || known.joining != shard.joining) {
                self.reseat(now, &map, shard, out);
            }
            if shard.is_vacant() {
                self.give_up_all(now, shard.id, out);
                continue;
            }
            let resumed = shard.start != shard.beginning();
            if known.is_some_and(|known| resumed && known.start != shard.start)
                && !planted(Fault::ResendAfterResume)
            {
                self.give_up_sent(now, shard.id, out);
            }
            if known.is_none_or(|known| known.epoch != shard.epoch) {
                self.restart_line(now, shard.id, out);
            }
        }
        self.follow_divisions(now, old.as_deref(), out);
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
        let seat = self.seats[usize::from(shard.id.0)].as_ref();
        // Where the table was deleted, the last view is of the mode that it had.
        let left = seat.filter(|_| shard.is_vacant()).map(|seat| seat.view.rules);
        let Some(rules) = left.or(self.mode_of(map, shard).map(|mode| mode.rules)) else { return };
        let me = self.member();
        let view = view_of(map, shard, rules, self.is_durable(map, shard), self.bounds(map, shard), me);
        let mut outbox = core::mem::take(&mut self.outbox);
        if let Some(seat) = &mut self.seats[usize::from(shard.id.0)] {
            let leaves = seat.view.is_member() && !seat.goes_on(&view);
            if view.is_member() && !seat.view.is_member() && seat.goes_on(&view) {
                out.filled.push(shard.id);
            }
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

    /// Whether the copy of a shard here outlives the process.
    fn is_durable(&self, map: &ClusterMap, shard: &Shard) -> bool {
        let kind = map.kind_at(shard, self.me.node);
        kind.is_some_and(|kind| self.settings.durable.contains(&kind))
    }

    /// Which records all stores of a shard take, old ones that are there yet included.
    pub fn bounds(&self, map: &ClusterMap, shard: &Shard) -> Bounds {
        let bounds_of = self.settings.bounds_of;
        let Some(table) = map.table_of(shard) else { return Bounds::default() };
        let bounds = bounds_of(&table.datalet);
        if shard.outdated.is_empty() { bounds } else { bounds.and(bounds_of(&table.datalet_before)) }
    }

    fn mode_of(&self, map: &ClusterMap, shard: &Shard) -> Option<&'static Mode> {
        map.table_of(shard).and_then(|table| mode(self.settings.modes, &table.mode))
    }

    /// A replica begins.
    pub(super) fn open_seat(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        if self.open_part(now, map, shard, out) {
            return;
        }
        let me = self.member();
        if self.place_seat(now, map, shard, false, out)
            && let Some(Seat { view, .. }) = self.seat(shard.id)
        {
            let held = shard.joining.filter(|joining| joining.member == me).map(|joining| joining.held);
            let held = held.filter(|held| !view.is_member() && *held != Position::ZERO);
            let (start, whole) = (held.unwrap_or(view.start), held.is_some() || view.is_member());
            let kept = start != shard.beginning() || (shard.inherited && whole);
            out.opened.push(Opened { shard: shard.id, born: shard.born, start, kept, whole });
            self.leave_rest(map, shard, 0, out);
        }
    }

    /// This life of this node, as a member.
    pub(super) fn member(&self) -> Member {
        Member { node: self.me.node, incarnation: self.incarnation }
    }

    /// A replica begins, if the map wants one here; its store is the caller's to open.
    pub(super) fn place_seat(
        &mut self,
        now: Now,
        map: &ClusterMap,
        shard: &Shard,
        first: bool,
        out: &mut Actions,
    ) -> bool {
        // A mode that this node does not know has no replica here.
        let Some(mode) = self.mode_of(map, shard) else { return false };
        let (durable, bounds) = (self.is_durable(map, shard), self.bounds(map, shard));
        let view = view_of(map, shard, mode.rules, durable, bounds, self.member());
        let view = View { first: first || view.first, ..view };
        let begins = view.includes_me() && map.worker_of(shard.id) == self.me.worker;
        if begins {
            self.seats[usize::from(shard.id.0)] = Some(Seat::new(now, mode, view, &self.settings));
            self.step_seat(now, shard.id, Input::Full(self.full), out);
        }
        begins
    }

    /// Lets a replica go that has ended, and makes place for the one that the map wants.
    pub(super) fn clear_seat(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let place = usize::from(shard.0);
        if self.seats[place].as_ref().is_some_and(Seat::is_over) {
            self.end_division(now, shard, out);
            self.seats[place] = None;
            out.dropped.push(shard);
            if let Some(map) = self.map.clone()
                && let Some(shard) = map.shard(shard)
            {
                self.open_seat(now, &map, shard, out);
                self.follow_division(now, &map, shard.id, out);
            }
        }
    }
}
