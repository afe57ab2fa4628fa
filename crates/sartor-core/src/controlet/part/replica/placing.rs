//! What gets its place in the history here, and what becomes of it.

use super::Replica;
use crate::controlet::Effects;
use crate::controlet::part::answers::Answered;
use crate::controlet::part::once::Name;
use crate::controlet::part::stream::Ordered;
use crate::controlet::rules::{Carries, Topology};
use crate::entry::Entry;
use crate::ids::{NodeId, Position};
use crate::keeper::{Replay, Task};
use crate::operation::{From, Op, Outcome, Request};
use crate::record::Bounds;
use crate::routing::map::Member;
use crate::time::Now;
use alloc::boxed::Box;

impl Replica {
    /// Whether operations travel here, and not what came of them.
    pub fn carries_operations(&self) -> bool {
        self.view.rules.carries == Carries::Operations
    }

    /// The store has ordered an entry for this request.
    pub fn on_ordered(&mut self, now: Now, entry: Entry, answer: Option<(&Request, &Outcome)>) {
        let position = entry.position;
        let answered = answer.and_then(|(request, outcome)| self.answered(now, request, outcome));
        self.note_epoch(position);
        self.surveying.note(now, &entry);
        self.note_digest(&entry);
        (self.submitted, self.applied) = (position, position);
        self.dirty = true;
        if self.view.rules.is_strong() && !self.is_end() {
            self.marks.note(position.sequence, &entry.writes);
        }
        let ordered = Ordered { entry, answered };
        if self.is_alone() {
            self.stream.restart_at(position.sequence + 1);
        } else {
            self.stream.push(&ordered);
            self.notify_followers(now, position.sequence);
            self.source.iter_mut().for_each(|source| source.on_ordered(now, &ordered));
        }
        self.remember(ordered.answered, position);
        if self.is_end() && self.knows_all() {
            self.stable = position;
        }
    }

    /// Where nobody compares, there is nothing to pay for.
    fn note_digest(&mut self, entry: &Entry) {
        if self.view.members.len() > 1 || self.source.is_some() {
            self.digest.on_made(entry);
        }
    }

    /// Whether nobody is to have what is ordered here.
    pub(super) fn is_alone(&self) -> bool {
        if self.log.is_some() {
            return false;
        }
        // In a chain, who comes after one that was cut off may still need what is kept.
        let nobody = self.topology() != Topology::Chain && self.followers.iter().all(|follower| follower.cut);
        (self.followers.is_empty() || nobody) && self.source.as_ref().is_none_or(|source| source.follower.cut)
    }

    /// An operation gets its place here, and all are told before any of them has done it.
    pub fn order(&mut self, now: Now, request: Request, out: &mut Effects) {
        let position = self.submitted.next(self.view.epoch);
        let value_bytes_max = self.settings.value_bytes_max;
        let bounds = self.view.bounds.and(Bounds { value_bytes_max, ..Bounds::default() });
        let unix_ms = self.stamp(now);
        let replay = Replay { request, position, unix_ms, bounds };
        self.note_epoch(position);
        (self.submitted, self.dirty) = (position, true);
        if self.view.rules.is_strong() {
            self.marks.note_op(position.sequence, &replay.request.op);
        }
        if self.is_alone() {
            self.stream.restart_at(position.sequence + 1);
        } else {
            self.stream.push_operation(&replay);
            self.notify_followers(now, position.sequence);
        }
        out.tasks.push(Task::Replay(replay));
    }

    /// The wall clock for what is ordered now. What a read found dead is dead for all that come after it.
    pub(super) fn stamp(&mut self, now: Now) -> u64 {
        let least = if self.looking > 0 { self.clock_ms } else { 0 };
        self.clock_ms = now.unix_ms.max(least);
        self.clock_ms
    }

    /// A read by the clock here, in the order of requests.
    pub fn look(&mut self, now: Now, request: Request, out: &mut Effects) {
        let unix_ms = self.stamp(now);
        self.looking += 1;
        out.tasks.push(Task::Look(request, unix_ms));
    }

    /// It has ended.
    pub fn on_looked(&mut self) {
        self.looking = self.looking.saturating_sub(1);
    }

    /// The last entry that what an operation has read may tell of, where all must have that.
    pub fn seen_by(&self, op: &Op) -> u64 {
        if self.view.rules.is_strong() { self.marks.seen_by(op, self.settled().sequence) } else { 0 }
    }

    /// The store has done an operation at its place.
    pub fn on_replayed(&mut self, now: Now, replay: &Replay, outcome: &Outcome, entry: Entry) {
        let position = entry.position;
        let ordered_at = Now { unix_ms: replay.unix_ms, ..now };
        let answered = self.answered(ordered_at, &replay.request, outcome);
        self.surveying.note(now, &entry);
        self.note_digest(&entry);
        let ordered = Ordered { entry, answered };
        self.source.iter_mut().for_each(|source| source.on_ordered(now, &ordered));
        self.remember(ordered.answered, position);
        self.reach(now, position);
    }

    /// Whether it was a client of this node who asked, so that this replica tells what came of it.
    pub fn is_asked_here(&self, from: From) -> bool {
        let mut members = self.view.members.iter();
        members.any(|member| member.node == self.view.me && is_of(from, *member))
    }

    /// Whether another replica tells what came of a request that was ordered here.
    pub fn is_told_elsewhere(&self, from: From) -> bool {
        let lacks = |node: NodeId| self.followers.iter().any(|f| f.node == node && f.cut);
        let mut others = self.view.members.iter().filter(|member| member.node != self.view.me);
        self.carries_operations() && others.any(|member| is_of(from, *member) && !lacks(member.node))
    }

    /// What is kept of a request that has an entry.
    pub(super) fn answered(&self, now: Now, request: &Request, outcome: &Outcome) -> Option<Answered> {
        let settings = &self.settings;
        let fits = outcome.size() <= settings.answer_bytes_max;
        let Op::Once(once) = &request.op else {
            return Answered::new(request.from, fits.then(|| outcome.clone()), None);
        };
        let fits = fits && self.names.holds(outcome, settings.once_bytes_max);
        let name = Box::new(Name::new(once, now.unix_ms, settings.once_ms));
        let answered = Answered::new(request.from, fits.then(|| outcome.clone()), Some(name));
        assert!(answered.is_some(), "what changes a shard is numbered");
        answered
    }

    pub(super) fn remember(&mut self, answered: Option<Answered>, position: Position) {
        let Some(mut answered) = answered else { return };
        if let Some(name) = answered.name.take() {
            self.names.record(*name, answered.outcome.as_ref(), position);
        }
        self.answers.record(answered, position, self.settings.answers_bytes_max);
    }
}

/// Whether a client of this life of a node asked.
fn is_of(from: From, member: Member) -> bool {
    matches!(from, From::Worker { worker, incarnation, .. }
        if worker.node == member.node && incarnation == member.incarnation)
}
