//! Requests of clients here: near, away, and back with an answer.

use super::letters::Content;
use super::locking::{LockEvent, Went};
use super::{Actions, Node, Reply, aside};
use crate::controlet::Input;
use crate::forward::{Answer, GivenUp, Line};
use crate::ids::{Position, ShardId};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, Failure, FailureKind, From, Op, Outcome, Request, SessionId};
use crate::routing::map::Shard;
use crate::seat::Seat;
use crate::session::Way;
use crate::time::Now;
use crate::wire::frame::Kind;
use alloc::format;

impl Node {
    /// A client's request: where the mode wants that, its keys are locked first.
    pub(super) fn on_client(&mut self, now: Now, mut request: Request, out: &mut Actions) {
        if !self.parts.is_empty() {
            request.shard = self.taker(&request);
        }
        // Who waits already goes first, also where the mode wants no locks any more.
        if self.locked.is_empty() && self.locking.is_idle() {
            return self.on_request(now, request, out);
        }
        let locks = self.locked.get(usize::from(request.shard.0)).is_some_and(|locks| *locks);
        if let Some(request) = self.locking.admit(request, locks, &mut out.locks) {
            self.on_request(now, request, out);
        }
    }

    /// What became of a call of the lock service.
    pub(super) fn on_lock(&mut self, now: Now, event: LockEvent, out: &mut Actions) {
        let went = self.locking.on_event(now, event, &mut out.locks);
        self.go_on(now, went, out);
    }

    /// Requests that have their locks, and others that did not get them.
    pub(super) fn go_on(&mut self, now: Now, went: Went, out: &mut Actions) {
        for request in went.on {
            self.on_request(now, request, out);
        }
        let text = "the lock service did not give the locks of the keys in time; nothing was done, try again";
        for request in went.refused {
            let From::Session { session, tag } = request.from else { continue };
            let outcome = Failure::outcome(FailureKind::Retry, text);
            let (shard, position) = (request.shard, Position::ZERO);
            out.replies.push(Reply { session, tag, shard, outcome, position });
        }
    }

    pub(super) fn on_request(&mut self, now: Now, request: Request, out: &mut Actions) {
        let From::Session { session, .. } = request.from else { return };
        if !self.ends.is_empty() && !self.has_keys(&request) {
            // It may be the first one of its connection.
            self.sessions.lane(session, request.shard);
            return self.on_moved(now, request, None, out);
        }
        let seat = self.seats.get(usize::from(request.shard.0)).and_then(Option::as_ref);
        let lane = self.sessions.lane(session, request.shard);
        let scans = &self.scans;
        let wanted = |request: &Request| match &request.op {
            Op::Range(_) => {
                let scans = scans.get(usize::from(request.shard.0)).copied().unwrap_or_default();
                scans.way(|| seat.is_some_and(|seat| seat.takes(request)))
            }
            _ if seat.is_some_and(|seat| seat.takes(request)) => Way::Near,
            _ => Way::Away,
        };
        match lane.admit(request, wanted) {
            Some((Way::Near, request)) if request.op.is_write() => self.write_near(now, request, out),
            Some((Way::Near, request)) => self.step_seat(now, request.shard, Input::Request(request), out),
            Some((way, request)) => self.send(now, request, way, out),
            None => {}
        }
    }

    /// A write to a head on this worker gets a number like any other, by which another head can know it.
    pub(super) fn write_near(&mut self, now: Now, request: Request, out: &mut Actions) {
        let (worker, incarnation, shard) = (self.me, self.incarnation, request.shard);
        let Some((sequence, base)) = self.line(shard).register(now, &request) else {
            return self.refuse(now, request, Way::Near, out);
        };
        let from = From::Worker { worker, incarnation, sequence, base };
        self.step_seat(now, shard, Input::Request(Request { from, ..request }), out);
    }

    /// To the head, or aside.
    pub(super) fn send(&mut self, now: Now, mut request: Request, way: Way, out: &mut Actions) {
        if self.is_vacant(request.shard) {
            return self.reply(now, (request.from, way), request.shard, table_gone(), Position::ZERO, out);
        }
        if way == Way::Aside {
            if let Some(refusal) = self.nowhere(&request) {
                return self.reply(now, (request.from, way), request.shard, refusal, Position::ZERO, out);
            }
            aside::begin(&mut request);
        }
        if let Err(request) = self.line(request.shard).push(now, request, way) {
            self.refuse(now, request, way, out);
        }
    }

    pub(super) fn refuse(&mut self, now: Now, request: Request, way: Way, out: &mut Actions) {
        let text = format!("too many requests wait for shard {}; slow down and retry", request.shard.0);
        let outcome = Failure::outcome(FailureKind::Retry, text);
        self.reply(now, (request.from, way), request.shard, outcome, Position::ZERO, out);
    }

    /// It waited for others of its connection, and is not sent any more.
    pub(super) fn refuse_parked(&mut self, request: &Request, outcome: Outcome, out: &mut Actions) {
        let From::Session { session, tag } = request.from else { return };
        let (shard, position) = (request.shard, Position::ZERO);
        if !self.locking.is_idle() {
            self.locking.on_answer(session, tag, shard, &mut out.locks);
        }
        out.replies.push(Reply { session, tag, shard, outcome, position });
    }

    pub(super) fn line(&mut self, shard: ShardId) -> &mut Line {
        let (place, settings) = (usize::from(shard.0), self.settings.forward);
        if place >= self.lines.len() {
            self.lines.resize_with(place + 1, || Line::new(settings));
        }
        &mut self.lines[place]
    }

    /// Whether an earlier read of the same connection went from near to away, so that this one's
    /// answer may be older than what the connection has seen or will.
    pub(super) fn must_turn(&mut self, request: &Request, position: Position) -> bool {
        let From::Session { session, .. } = request.from else { return false };
        request.consistency != Consistency::Eventual
            && self.sessions.is_open(session)
            && self.sessions.lane(session, request.shard).must_turn(position)
    }

    /// A request that was near is another head's after all.
    pub(super) fn turn_away(&mut self, now: Now, request: Request, out: &mut Actions) {
        let From::Session { session, .. } = request.from else {
            return self.not_known_here(now, &request, out);
        };
        if self.goes_aside(&request) {
            // A view came meanwhile in which it goes another way.
            return self.reply(
                now,
                (request.from, Way::Near),
                request.shard,
                other_way(),
                Position::ZERO,
                out,
            );
        }
        if self.turn_lane(session, request.shard, (Way::Near, Way::Away)) {
            self.send(now, request, Way::Away, out);
        }
    }

    pub(super) fn turn_lane(&mut self, session: SessionId, shard: ShardId, (from, to): (Way, Way)) -> bool {
        let is_open = self.sessions.is_open(session);
        if is_open && self.sessions.lane(session, shard).turn(from, to) {
            self.freed.push((session, shard));
        }
        is_open
    }

    pub(super) fn reply(
        &mut self,
        now: Now,
        (from, way): (From, Way),
        shard: ShardId,
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        match from {
            From::Session { session, tag } => {
                if !self.locking.is_idle() {
                    self.locking.on_answer(session, tag, shard, &mut out.locks);
                }
                if self.sessions.is_open(session) {
                    if self.sessions.lane(session, shard).settle(way, position) {
                        self.freed.push((session, shard));
                    }
                    out.replies.push(Reply { session, tag, shard, outcome, position });
                }
            }
            From::Worker { worker, incarnation, sequence, .. }
                if worker == self.me
                    && incarnation == self.incarnation
                    && (self.line(shard).is_near(sequence)
                        || !self.seat(shard).is_some_and(Seat::is_head)) =>
            {
                if let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) {
                    seat.end_aside(worker, incarnation, sequence);
                }
                self.settle(now, shard, sequence, outcome, position, out);
            }
            From::Worker { worker, incarnation, sequence, .. } => {
                let settings = self.settings.forward;
                let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
                seat.answer(worker, incarnation, Answer { sequence, outcome, position }, settings);
            }
            From::Nobody => {}
        }
    }

    /// Another replica answers who asked; he may ask again here.
    pub(super) fn keep(&mut self, shard: ShardId, from: From, outcome: Outcome, position: Position) {
        let From::Worker { worker, incarnation, sequence, .. } = from else { return };
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        if let Some(inbound) = seat.inbound.get_mut(&worker) {
            inbound.keep(incarnation, sequence, outcome, position);
        }
    }

    /// A numbered request of a client here has its answer.
    pub(super) fn settle(
        &mut self,
        now: Now,
        shard: ShardId,
        sequence: u64,
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        if let Some((request, way)) = self.line(shard).settle(now, sequence) {
            self.finish(now, (request, way), outcome, position, out);
        }
    }

    /// Gives up what waits for too long, and sends the rest.
    pub(super) fn tend_line(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        if self.lines[usize::from(shard.0)].wake_at().is_none_or(|at| at > now.steady_us) {
            return;
        }
        let headless = self.is_headless(shard);
        let line = &mut self.lines[usize::from(shard.0)];
        line.set_headless(now, headless);
        for GivenUp { request, way, sent, .. } in line.tick(now) {
            let outcome = given_up(&request, sent && !planted(Fault::RefuseSent));
            self.finish(now, (request, way), outcome, Position::ZERO, out);
        }
        self.ask_aside(now, shard, out);
        let Some(head) = self.map.as_ref().and_then(|map| map.head_of(shard)) else { return };
        while let Some(forwards) = self.lines[usize::from(shard.0)].flush(now) {
            self.post(now, head, (Kind::Forward, shard), Content::Forwards(forwards), out);
        }
    }

    /// Whether the coordinator says that the life of the node which orders is over.
    pub(super) fn is_headless(&self, shard: ShardId) -> bool {
        let Some(shard) = self.map.as_ref().and_then(|map| map.shard(shard)) else { return true };
        let Some(head) = shard.members.first() else { return true };
        self.agent.as_ref().is_some_and(|agent| agent.is_gone(*head))
    }

    /// The shard began again with what was on disk, without what its members remembered of requests: nobody can tell any more
    /// which of those that were sent have taken effect.
    pub(super) fn give_up_sent(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        for GivenUp { request, way, sent, .. } in self.line(shard).give_up_sent() {
            let outcome = given_up(&request, sent);
            self.finish(now, (request, way), outcome, Position::ZERO, out);
        }
    }

    fn is_vacant(&self, shard: ShardId) -> bool {
        self.map.as_ref().and_then(|map| map.shard(shard)).is_some_and(Shard::is_vacant)
    }

    /// The shard's table was deleted: nobody will answer. Whether what was sent took effect is of no interest any more.
    pub(super) fn give_up_all(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        for GivenUp { request, way, .. } in self.line(shard).give_up_all() {
            self.finish(now, (request, way), table_gone(), Position::ZERO, out);
        }
    }

    /// The shard has another view: what is not answered goes to its head.
    pub(super) fn restart_line(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        self.give_up_ranges(now, shard, out);
        let head_is_here = self.seat(shard).is_some_and(Seat::is_head);
        for (from, before, way) in self.line(shard).restart(head_is_here) {
            if let From::Session { session, .. } = from {
                self.turn_lane(session, shard, (before, way));
            }
        }
    }
}

/// What to tell of a range that another replica is to be asked for now.
pub(super) fn other_way() -> Outcome {
    Failure::outcome(FailureKind::Retry, "another copy reads in key order now; try again")
}

fn table_gone() -> Outcome {
    Failure::outcome(FailureKind::Invalid, "the table was deleted; SELECT another one")
}

/// What to tell of a request whose answer did not come in time.
pub(super) fn given_up(request: &Request, sent: bool) -> Outcome {
    let shard = request.shard.0;
    if sent && request.op.is_write() {
        let text =
            format!("shard {shard} did not answer in time; the write may or may not have taken effect");
        return Failure::outcome(FailureKind::Uncertain, text);
    }
    Failure::outcome(FailureKind::Retry, format!("shard {shard} does not answer; see: sartor status"))
}
