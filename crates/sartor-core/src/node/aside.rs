//! Reads in key order where copies of a shard are in stores of several kinds, not all of which keep an order.
//!
//! ```text
//!  origin                      tree (a replica)             hash (the head)
//!  Range ──── Aside ─────────▶ takes it as a read of its own
//!        ◀─── the page ───────
//!        ◀─── Dead [k] ───────  k is past its deadline by the clock there
//!        ──── Expire [k] ──────────────────────────────────▶ removes k, or finds it alive
//!        ──── Aside, judged [k] ─▶ (has seen what became of k)
//! ```
//!
//! Where the head's store can scan, nothing of this happens: what the replica here cannot do goes to the head, as ever.

use super::letters::Content;
use super::requests::{given_up, other_way};
use super::{Actions, Node};
use crate::forward::{Forwards, GivenUp};
use crate::ids::{NodeId, Position, ShardId, WorkerId};
use crate::operation::{Failure, FailureKind, From, Op, Outcome, Request, SessionId};
use crate::routing::map::{ClusterMap, Shard};
use crate::session::Way;
use crate::time::Now;
use crate::wire::frame::{Header, Kind};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

/// Who can answer reads in key order, as seen from a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Scans {
    /// All replicas, or none: the kinds of all stores are alike in that.
    #[default]
    Usual,
    /// The head, but not the replica here.
    Head,
    /// Not the head, but the replica on this worker.
    At(WorkerId),
    /// No replica now, though some node has a kind that can.
    Nowhere,
}

/// Reads that wait for the head to judge records, by who asked. A connection has one of a shard at most.
pub(super) type Judging = BTreeMap<(SessionId, ShardId), Request>;

impl Scans {
    /// Whether a read in key order is not the head's to answer.
    pub(super) fn goes_aside(self) -> bool {
        matches!(self, Scans::At(_) | Scans::Nowhere)
    }

    /// The way of a read in key order.
    pub(super) fn way(self, near: impl FnOnce() -> bool) -> Way {
        match self {
            Scans::Usual if near() => Way::Near,
            Scans::Usual | Scans::Head => Way::Away,
            Scans::At(_) | Scans::Nowhere => Way::Aside,
        }
    }
}

/// From now on records that are dead where it goes are told, to be judged by the head. False if it is no read in key order.
pub(super) fn begin(request: &mut Request) -> bool {
    let Op::Range(range) = &mut request.op else { return false };
    range.judged.get_or_insert_default();
    true
}

impl Node {
    /// Who can answer reads in key order.
    pub(super) fn scans_of(&self, map: &ClusterMap, shard: &Shard) -> Scans {
        let is_ordered = self.settings.is_ordered;
        let scans = |node: NodeId| map.kind_at(shard, node).is_some_and(is_ordered);
        let members = || shard.members.iter().map(|member| member.node);
        let (me, head) = (self.me.node, members().next());
        if head.is_none_or(scans) {
            let is_other = members().any(|node| node == me) && !scans(me);
            return if is_other { Scans::Head } else { Scans::Usual };
        }
        let able: Vec<NodeId> = members().filter(|node| scans(*node)).collect();
        let worker = map.worker_of(shard.id);
        if able.contains(&me) {
            return Scans::At(WorkerId { node: me, worker });
        }
        if let Some(node) = able.get(usize::from(me.0) % able.len().max(1)) {
            return Scans::At(WorkerId { node: *node, worker });
        }
        let kinds = map.table_of(shard).map(|table| table.datalet.split(',')).into_iter().flatten();
        if kinds.filter(|kind| is_ordered(kind)).count() > 0 { Scans::Nowhere } else { Scans::Usual }
    }

    pub(super) fn scans(&self, shard: ShardId) -> Scans {
        self.scans.get(usize::from(shard.0)).copied().unwrap_or_default()
    }

    /// Whether a read is for another replica than the head.
    pub(super) fn goes_aside(&self, request: &Request) -> bool {
        matches!(request.op, Op::Range(_)) && self.scans(request.shard).goes_aside()
    }

    /// What to tell of a read that no replica can answer now.
    pub(super) fn nowhere(&self, request: &Request) -> Option<Outcome> {
        let shard = request.shard.0;
        (self.scans(request.shard) == Scans::Nowhere).then(|| {
            let text = format!(
                "no copy of shard {shard} is in an ordered datalet now: the node that has one is away, or being filled; \
                 try again, and see: sartor status"
            );
            Failure::outcome(FailureKind::Retry, text)
        })
    }

    /// Sends reads to who can answer them.
    pub(super) fn ask_aside(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let forwards = self.line(shard).flush_aside(now);
        // Where nobody can, they are asked again later, until their deadline.
        if let (Scans::At(to), Some(forwards)) = (self.scans(shard), forwards) {
            self.post(now, to, (Kind::Aside, shard), Content::Forwards(forwards), out);
        }
    }

    /// The shard has another view: ranges that went another way than they would now, and those that nobody can answer, are given up.
    /// Reading has no effect.
    pub(super) fn give_up_ranges(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let scans = self.scans(shard);
        let stays = scans.goes_aside() && scans != Scans::Nowhere;
        let mut given_up = self.line(shard).give_up_ranges(stays);
        if scans == Scans::Nowhere {
            given_up.extend(self.line(shard).give_up_ranges(true));
        }
        for GivenUp { request, way, .. } in given_up {
            let outcome = self.nowhere(&request).unwrap_or_else(other_way);
            self.finish(now, (request, way), outcome, Position::ZERO, out);
        }
    }

    /// Reads that another worker sends here.
    pub(super) fn on_aside(&mut self, now: Now, header: Header, forwards: Forwards, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(header.shard.0)) else { return };
        let (worker, incarnation, base) = (header.from, header.incarnation, forwards.base);
        let reads = forwards.requests.into_iter().filter(|request| !request.op.is_write());
        seat.accept_aside(reads.map(|forwarded| Request {
            from: From::Worker { worker, incarnation, sequence: forwarded.sequence, base },
            shard: header.shard,
            op: forwarded.op,
            floor: forwarded.floor,
            consistency: forwarded.consistency,
            deadline_us: now.steady_us.saturating_add(forwarded.left_us),
        }));
        self.take_asides_of(now, header.shard, out);
    }

    /// Replicas may know enough now for reads that wait here.
    pub(super) fn take_asides(&mut self, now: Now, out: &mut Actions) {
        // Only replicas that know themselves for the ones to be asked are.
        for index in 0..self.scans.len().min(self.seats.len()) {
            self.take_asides_of(now, ShardId(index as u16), out);
        }
    }

    fn take_asides_of(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        for request in seat.take_asides(now) {
            self.step_seat(now, shard, crate::controlet::Input::Request(request), out);
        }
    }

    /// A read that another worker sent here is more than this replica can promise.
    pub(super) fn not_known_here(&mut self, now: Now, request: &Request, out: &mut Actions) {
        if !matches!(request.op, Op::Range(_)) {
            return;
        }
        let text = format!(
            "the copy of shard {} that is in an ordered datalet does not know enough for this read: it lags, or is cut off; \
             try again, or ask for less, see: SARTOR.CONSISTENCY",
            request.shard.0
        );
        let outcome = Failure::outcome(FailureKind::Retry, text);
        self.reply(now, (request.from, Way::Aside), request.shard, outcome, Position::ZERO, out);
    }

    /// A numbered request of a client here has its answer, or will have none.
    pub(super) fn finish(
        &mut self,
        now: Now,
        (request, way): (Request, Way),
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        if Node::is_moved(&request, &outcome) {
            return self.on_moved(now, request, Some(way), out);
        }
        if !matches!(outcome, Outcome::Failed(_))
            && let Some(part) = self.rest_to_clear(&request, position)
        {
            return self.clear_rest(now, (request, way), (part, position), out);
        }
        match (&request.op, outcome) {
            (Op::Range(_), Outcome::Dead(dead)) => {
                self.have_judged(now, (request, way), (dead, position), out);
            }
            (Op::Expire(_), outcome) => self.on_judged(now, &request, outcome, position, out),
            (_, outcome) => self.reply(now, (request.from, way), request.shard, outcome, position, out),
        }
    }

    /// The head removes those of these records that are dead by its clock; then the range is read again.
    fn have_judged(
        &mut self,
        now: Now,
        (mut request, way): (Request, Way),
        (dead, position): (Vec<(bytes::Bytes, u64)>, Position),
        out: &mut Actions,
    ) {
        let From::Session { session, .. } = request.from else { return };
        if way != Way::Aside {
            return self.reply(now, (request.from, way), request.shard, other_way(), position, out);
        }
        let keys = dead.iter().map(|(key, _)| key.clone()).collect();
        if let Op::Range(range) = &mut request.op {
            range.judged.get_or_insert_default().extend(dead);
        }
        request.floor = request.floor.max(position);
        let expire = Request { op: Op::Expire(keys), ..request.clone() };
        match self.line(request.shard).push(now, expire, Way::Away) {
            Ok(()) => drop(self.judging.insert((session, request.shard), request)),
            Err(_) => self.refuse(now, request, Way::Aside, out),
        }
    }

    fn on_judged(
        &mut self,
        now: Now,
        expire: &Request,
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        let From::Session { session, .. } = expire.from else { return };
        let Some(mut request) = self.judging.remove(&(session, expire.shard)) else { return };
        if let Outcome::Failed(failure) = outcome {
            // Whatever became of the dead, reading has no effect.
            let outcome = match failure.kind {
                FailureKind::Invalid => Outcome::Failed(failure),
                _ => given_up(&request, true),
            };
            return self.reply(now, (request.from, Way::Aside), request.shard, outcome, position, out);
        }
        request.floor = request.floor.max(position);
        // The head may be one by now that can scan: then it is asked where this was to go aside.
        let way = if self.goes_aside(&request) { Way::Aside } else { Way::Away };
        if way == Way::Aside || self.turn_lane(session, request.shard, (Way::Aside, way)) {
            self.send(now, request, way, out);
        }
    }
}
