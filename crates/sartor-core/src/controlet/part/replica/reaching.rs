//! How far this replica is, how far the others are, and what all have.

use super::Replica;
use crate::controlet::Outbox;
use crate::controlet::part::follower::{Follower, tells_after};
use crate::controlet::part::log::Log;
use crate::controlet::part::message::{Ack, Message};
use crate::controlet::rules::{Answers, Topology};
use crate::ids::{Epoch, NodeId, Position};
use crate::mutants::{Fault, planted};
use crate::time::{Micros, Now};

impl Replica {
    /// Up to where answers may tell of entries: what all have, what two have, or what is here.
    pub fn settled(&self) -> Position {
        match self.view.rules.answers {
            Answers::AtAll if !planted(Fault::AnswerAtHead) => self.stable,
            Answers::AtTwo if planted(Fault::AnswerAtOne) => self.applied,
            Answers::AtTwo if self.view.is_head() => self.held_by_two(),
            // What came from the first member of this view is there too; what came before, when that one has all.
            Answers::AtTwo if !self.first_is_whole() || self.is_newcomer() => self.stable,
            Answers::AtLog => self.in_log(),
            _ => self.applied,
        }
    }

    /// Whether others would go on without this one, if the first member died: what it has is not the second copy.
    fn is_newcomer(&self) -> bool {
        self.view.members.len() > 2
            && self.view.joining.is_some_and(|joining| joining.member.node == self.view.me)
    }

    fn first_is_whole(&self) -> bool {
        let first = self.view.members.first();
        first.is_some_and(|first| first.node == self.view.me || self.leases.is_whole(first.node))
    }

    pub(super) fn held_by_two(&self) -> Position {
        let others = || self.view.members.iter().filter(|member| member.node != self.view.me);
        if others().count() == 0 {
            return self.applied;
        }
        // Who would not be its heir does not count: one that was given up, or a newcomer that is not proven. Where there is
        // nobody else, the newcomer may be proven by now.
        let newcomer = self.view.joining.map(|joining| joining.member.node);
        let newcomer = newcomer.filter(|newcomer| others().any(|member| member.node != *newcomer));
        let inherits = |follower: &&Follower| !follower.cut && Some(follower.node) != newcomer;
        let holders = self.followers.iter().filter(inherits).map(|follower| follower.acked);
        let all = self.followers.iter().map(|follower| follower.acked);
        let sequence = holders.max().or(all.min()).unwrap_or(0);
        if sequence >= self.applied.sequence {
            return self.applied;
        }
        Position { epoch: self.epoch_of(sequence), sequence }
    }

    /// The last place that those who get the stream from us may have.
    pub(super) fn sendable(&self) -> Position {
        match self.topology() {
            // The last one of a chain speaks for all before it.
            Topology::Chain => self.applied,
            Topology::Star | Topology::Tree => self.submitted,
        }
    }

    /// Up to where this replica, and those that get the stream from it, have everything.
    pub(super) fn reached(&self) -> Position {
        if self.topology() != Topology::Tree || self.sink.is_some() {
            return self.applied;
        }
        let below = self.followers.iter().filter(|follower| self.counts(follower));
        let least = below.map(|follower| follower.acked).min().unwrap_or(self.applied.sequence);
        if least >= self.applied.sequence {
            return self.applied;
        }
        Position { epoch: self.epoch_of(least), sequence: least }
    }

    /// Whether what a follower lacks is not at all members.
    pub(super) fn counts(&self, follower: &Follower) -> bool {
        // Who was given up may answer reads until it is none of the members.
        // Nor is a log outside trimmed behind it: it may be all that is left.
        !follower.cut || (self.view.rules.counts_all() && !planted(Fault::CutDoesNotCount))
    }

    /// Up to where it is known that nothing is lost while a member lives, or, where answers do not wait for that, what is
    /// here: the place that an answer names.
    pub fn known(&self) -> Position {
        if self.view.rules.is_strong() { self.settled() } else { self.applied }
    }

    /// In a chain only the tail's word is waited for; the others tell now and then how far they are.
    pub(super) fn ack_after_news(&mut self, now: Now) {
        let learns = self.view.is_head() && !self.is_level();
        if self.view.is_head() && !learns {
            return;
        }
        let waited_for = self.is_end() || self.topology() != Topology::Chain || self.sink.is_some() || learns;
        self.ack_soon(if waited_for { 0 } else { now.steady_us + tells_after(&self.settings) });
    }

    pub(super) fn ack_soon(&mut self, at: Micros) {
        self.ack_at = Some(self.ack_at.map_or(at, |due| due.min(at)));
    }

    /// A replica tells how far it is.
    pub fn on_ack(&mut self, now: Now, from: NodeId, ack: &Ack) {
        self.note_full(from, ack.full);
        self.dirty = true;
        if let Some(source) = self.source.as_mut().filter(|source| source.joining.member.node == from) {
            source.on_ack(now, ack);
            return self.trim();
        }
        if ack.fill.0 != Epoch(0) {
            return;
        }
        if let Some(rescue) = self.rescue.as_mut().filter(|rescue| rescue.node == from) {
            rescue.on_ack(now, ack.applied.sequence, &self.stream);
        }
        let level = self.leases.level();
        if self.rescue.as_ref().zip(level).is_some_and(|(rescue, level)| rescue.acked >= level.sequence) {
            self.rescue = None;
        }
        let sent = self.sendable().sequence;
        if let Some(follower) = self.followers.iter_mut().find(|follower| follower.node == from) {
            follower.on_ack(now, ack.applied.sequence.min(sent), &self.stream);
        }
        match self.topology() {
            Topology::Star | Topology::Tree if self.view.is_head() => self.compute_stable(),
            // Who is above waits for it.
            Topology::Tree => self.ack_soon(0),
            Topology::Chain if self.view.members.last().is_some_and(|tail| tail.node == from) => {
                self.learn_stable(now, ack.stable);
            }
            _ => {}
        }
        self.trim();
    }

    pub(super) fn learn_stable(&mut self, now: Now, stable: Position) {
        if stable.sequence <= self.applied.sequence && stable.sequence > self.stable.sequence {
            self.stable = stable;
            for follower in &mut self.followers {
                follower.on_ack(now, stable.sequence, &self.stream);
            }
            self.trim();
        }
    }

    /// The first of a star or tree knows what all have from what each has.
    pub(super) fn compute_stable(&mut self) {
        if !self.knows_all() {
            return;
        }
        let had =
            |follower: &Follower| if planted(Fault::SentIsHad) { follower.sent } else { follower.acked };
        let followers = self.followers.iter().filter(|follower| self.counts(follower)).map(had);
        let least = followers.chain([self.applied.sequence]).min().unwrap_or(0);
        if least > self.stable.sequence {
            self.stable = Position { epoch: self.epoch_of(least), sequence: least };
        }
    }

    pub(super) fn send_acks(&mut self, now: Now, out: &mut Outbox<Message>) {
        if self.ack_at.is_none_or(|at| at > now.steady_us) {
            return;
        }
        self.ack_at = None;
        let fill = self.sink.as_ref().map_or((Epoch(0), 0), |sink| (sink.since, sink.taken));
        let applied = self.reached();
        let ack = Message::Ack(Ack { applied, stable: self.stable, fill, full: self.im_full });
        let (me, members) = (self.view.me, &self.view.members);
        let (topology, count) = (self.topology(), members.len());
        let upstream = match self.view.place() {
            // All wait for the tail: for their answers, or to forget what they keep.
            Some(_) if topology == Topology::Chain && self.is_end() => 0..count,
            // Those who know more than a new primary.
            Some(0) => 0..count,
            place => {
                let to = place.map_or(Some(topology.teller(count)), |place| topology.upstream(place, count));
                to.map_or(0..0, |to| to..to + 1)
            }
        };
        let upstream = &members[upstream];
        let others = upstream.iter().filter(|member| member.node != me);
        out.sends.extend(others.map(|member| (member.node, ack.clone())));
    }

    /// Memory is bounded, and nobody waits for ever: who does not get on, or holds up the others, must be filled anew.
    pub(super) fn cut_off_the_silent(&mut self, now: Now, out: &mut Outbox<Message>) {
        let crowded = self.stream.bytes() > self.settings.stream_bytes_max / 2;
        let last = self.sendable().sequence;
        for follower in self.followers.iter_mut().filter(|follower| !follower.cut) {
            let silent = crowded && follower.is_silent(now, last, &self.settings);
            if silent || follower.is_slow(now, &self.settings) {
                if planted(Fault::CutSilently) {
                    follower.on_ack(now, last, &self.stream);
                    continue;
                }
                follower.cut = true;
                out.sends.push((follower.node, Message::Cut));
            }
        }
        let late = |f: &Follower| (f.node, if f.cut { 0 } else { f.lag(now) });
        self.lags.clear();
        self.lags.extend(self.followers.iter().map(late).filter(|(_, lag)| *lag > 0));
        let least = self.followers.iter().filter(|f| !f.cut).map(|f| f.acked).min().unwrap_or(last);
        if let Some(source) = self.source.as_mut() {
            let bytes_max = self.settings.stream_bytes_max;
            let slow = source.follower.acked < least && self.stream.bytes() > bytes_max;
            let silent = crowded && source.follower.is_silent(now, self.applied.sequence, &self.settings);
            source.follower.cut |= slow || silent || source.bytes() > bytes_max;
        }
        if self.topology() != Topology::Chain && self.view.is_head() {
            self.compute_stable();
        }
        self.trim();
    }

    /// Forgets the entries that all have.
    pub(super) fn trim(&mut self) {
        // What was everywhere in the view before need not be at who has joined since.
        let newcomer = self.source.iter().map(|source| &source.follower);
        let others = self.followers.iter().chain(&self.rescue).chain(newcomer);
        let least = others.filter(|follower| !follower.cut).map(|follower| follower.acked).min();
        // Who is being filled keeps nothing: the others have it.
        let all_have = if self.sink.is_some() { self.applied.sequence } else { self.stable.sequence };
        let all_have = all_have.min(self.log.as_ref().map_or(u64::MAX, Log::logged));
        let least = if planted(Fault::TrimEarly) {
            self.applied.sequence
        } else {
            all_have.min(least.unwrap_or(u64::MAX))
        };
        self.stream.trim(least);
    }

    /// How many other members have everything up to here.
    pub fn copies_of(&self, place: Position) -> usize {
        if !self.contains(place) {
            return 0;
        }
        let has = |follower: &&Follower| !follower.cut && follower.acked >= place.sequence;
        // In a tree, one speaks for those that it passes everything on to.
        let members = &self.view.members;
        let with_others = |follower: &Follower| {
            let place = members.iter().position(|member| member.node == follower.node).unwrap_or(0);
            let below = |_: &usize| self.topology() == Topology::Tree;
            1 + self.topology().downstream(place, members.len()).filter(below).count()
        };
        self.followers.iter().filter(has).map(with_others).sum()
    }

    /// When the first of those who hold up a crowded stream is to be cut off.
    pub(super) fn cuts_at(&self) -> Option<Micros> {
        if self.stream.bytes() <= self.settings.stream_bytes_max / 2 {
            return None;
        }
        let sources = self.source.iter().map(|source| &source.follower);
        let silent = self.followers.iter().chain(sources).filter(|follower| !follower.cut);
        let behind = silent.filter(|follower| follower.acked < self.sendable().sequence);
        behind.map(|follower| follower.silent_at(&self.settings)).min()
    }
}
