//! Answers that may leave only under a lease, and only once all that they tell of is at every member.

use crate::controlet::Effects;
use crate::ids::Position;
use crate::operation::{Consistency, Failure, FailureKind, From, Outcome, Request};
use crate::time::{Micros, Now};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

/// An answer that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// What was asked.
    pub request: Request,
    /// The answer.
    pub outcome: Outcome,
    /// The place at which it was true.
    pub at: Position,
    /// The last entry that it tells something of.
    pub needs: u64,
    /// When it was there.
    pub since: Micros,
    /// It came of an operation that all replicas do.
    pub placed: bool,
}

/// Answers in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answering {
    /// Those that tell of entries which not all have.
    later: VecDeque<Waiting>,
    /// The others.
    ready: VecDeque<Waiting>,
}

impl Answering {
    /// Adds an answer.
    pub fn push(&mut self, waiting: Waiting, stable: Position) {
        if waiting.needs <= stable.sequence {
            self.ready.push_back(waiting);
        } else {
            self.later.push_back(waiting);
        }
    }

    /// Lets go what tells of nothing after `settled`; the caller holds the lease, and `known` is the newest place that
    /// an answer may name. `near` says whether it is a read of a replica
    /// that does not order. What came of an operation and `elsewhere` is true of is only kept: another replica tells who
    /// asked. `contains` says whether a place is in the history here.
    pub fn release(
        &mut self,
        (settled, known): (Position, Position),
        near: bool,
        elsewhere: impl Fn(From) -> bool,
        contains: impl Fn(Position) -> bool,
        out: &mut Effects,
    ) {
        let mut leave = |waiting: Waiting| {
            let kept = !near && waiting.placed && elsewhere(waiting.request.from);
            // What the connection has seen may have been lost with who ordered it.
            let floor = Some(waiting.request.floor).filter(|floor| *floor > known && contains(*floor));
            waiting.leave(floor.unwrap_or(known), near, kept, out);
        };
        while self.later.front().is_some_and(|first| first.needs <= settled.sequence) {
            self.later.pop_front().into_iter().for_each(&mut leave);
        }
        self.ready.drain(..).for_each(leave);
    }

    /// What they wait for does not come: clients here are told, where their request had no effect. Those of other
    /// workers are told there.
    pub fn give_up(&mut self, now: Now, patience_us: Micros, out: &mut Effects) {
        let hopeless = |waiting: &Waiting| {
            matches!(waiting.request.from, From::Session { .. })
                && is_late(now, &waiting.request, waiting.since, patience_us)
        };
        for list in [&mut self.later, &mut self.ready] {
            list.retain(|waiting| {
                let given_up = hopeless(waiting);
                if given_up {
                    out.replies.push((waiting.request.from, refusal(&waiting.request), Position::ZERO));
                }
                !given_up
            });
        }
    }

    /// From now on all members must have what answers tell of.
    pub fn wait_for_all(&mut self) {
        let all = self.later.drain(..).chain(self.ready.drain(..));
        let later = all.map(|waiting| Waiting { needs: waiting.needs.max(waiting.at.sequence), ..waiting });
        self.later = later.collect();
        self.later.make_contiguous().sort_by_key(|waiting| waiting.needs);
    }

    /// Takes out the reads that asked for the newest state by name.
    pub fn take_strong(&mut self) -> Vec<Request> {
        let mut taken = Vec::new();
        for list in [&mut self.later, &mut self.ready] {
            for _ in 0..list.len() {
                let Some(waiting) = list.pop_front() else { break };
                // A write took effect, whatever its connection asks of reads.
                let Request { consistency, op, .. } = &waiting.request;
                if *consistency == Consistency::Strong && !op.is_write() {
                    taken.push(waiting.request);
                } else {
                    list.push_back(waiting);
                }
            }
        }
        taken
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.later.is_empty() && self.ready.is_empty()
    }

    /// Requests of clients here go elsewhere; other workers ask again by themselves.
    pub fn forward_all(&mut self, out: &mut Effects) {
        for waiting in self.later.drain(..).chain(self.ready.drain(..)) {
            if matches!(waiting.request.from, From::Session { .. }) {
                out.forwards.push(waiting.request);
            }
        }
    }
}

impl Waiting {
    fn leave(self, known: Position, near: bool, kept: bool, out: &mut Effects) {
        // True from `needs` to `at`: as late as is known to be everywhere, so that no connection goes back.
        let position = if self.at.sequence <= known.sequence { self.at } else { known };
        if near {
            out.reads.push((self.request, self.outcome, position));
        } else if kept {
            out.kept.push((self.request.from, self.outcome, position));
        } else {
            out.replies.push((self.request.from, self.outcome, position));
        }
    }
}

/// Whether a request has waited for too long.
pub fn is_late(now: Now, request: &Request, since: Micros, patience_us: Micros) -> bool {
    now.steady_us >= request.deadline_us.min(since.saturating_add(patience_us))
}

/// What a client is told when nobody may serve its request.
pub fn refusal(request: &Request) -> Outcome {
    let shard = request.shard.0;
    let text = format!("shard {shard} is failing over, or this node is cut off from it; try again");
    Failure::outcome(FailureKind::Retry, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, ShardId};
    use crate::operation::{Op, SessionId};

    /// The place that an answer names which was true at 12, where 10 is known to be everywhere.
    fn named(floor: Position) -> Position {
        let at = |epoch, sequence| Position { epoch: Epoch(epoch), sequence };
        let from = From::Session { session: SessionId { index: 1, generation: 0 }, tag: 1 };
        let (shard, consistency, deadline_us) = (ShardId(0), Consistency::Mode, Micros::MAX);
        let request = Request { from, shard, op: Op::Len, floor, consistency, deadline_us };
        let (outcome, at_12, known) = (Outcome::Integer(1), at(3, 12), at(2, 10));
        let (mut answering, mut out) = (Answering::default(), Effects::default());
        answering
            .push(Waiting { request, outcome, at: at_12, needs: 0, since: 0, placed: false }, Position::ZERO);
        // Here, all after 10 is of epoch 3.
        let contains = |place: Position| place.sequence <= 10 || place.epoch == Epoch(3);
        answering.release((known, known), false, |_| false, contains, &mut out);
        out.replies[0].2
    }

    #[test]
    fn an_answer_names_what_is_known_and_what_its_connection_saw_here() {
        let at = |epoch, sequence| Position { epoch: Epoch(epoch), sequence };
        assert_eq!(named(Position::ZERO), at(2, 10));
        assert_eq!(named(at(3, 11)), at(3, 11));
        assert_eq!(named(at(3, 12)), at(3, 12));
        assert_eq!(named(at(2, 11)), at(2, 10), "what was lost with who ordered it is no place here");
    }
}
