//! What every replica of a primary-and-replicas protocol does: takes the stream from one side, passes it on to the
//! other, keeps what not all have, gives and gets leases, fills a newcomer or is filled.
//!
//! ```text
//!  Chain:  head ──▶ middle ──▶ tail        Star:  primary ──▶ secondary
//!                                                       └───▶ secondary
//! ```
//!
//! The protocol decides who may ask what, and when an answer may leave; see `replicated.rs`.

use super::answers::{Answered, Answers};
use super::fill::{Sink, Source};
use super::follower::{Follower, tells_after};
use super::freshness::Freshness;
use super::lease::{LeaseMessage, Leases, Told};
use super::marks::Marks;
use super::message::{Ack, Entries, Message, Page};
use super::once::{Name, Names};
use super::stream::{Item, Ordered, Stream};
use super::surveying::Surveying;
use crate::controlet::rules::{Answers as Leave, Carries, Topology};
use crate::controlet::{Effects, Outbox, Settings, Status, View};
use crate::entry::{Entry, Write, Writes};
use crate::ids::{Epoch, NodeId, Position};
use crate::keeper::{Replay, Start, Task, Walked};
use crate::mutants::{Fault, planted};
use crate::operation::{From, Op, Outcome, Request};
use crate::routing::map::Member;
use crate::time::{Micros, Now};
use crate::wire::codec::Reader;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// The members.
    pub view: View,
    /// Times and bounds.
    pub settings: Settings,
    /// The newest entry that the store was asked for: tasks after it see it.
    pub submitted: Position,
    /// The newest entry that the store has.
    pub applied: Position,
    /// Everything up to here is in every member's store.
    pub stable: Position,
    /// The store failed, or lost what was in it: this replica knows nothing any more.
    pub gone: bool,
    /// Who sends the stream sends it no more: it was too slow.
    given_up: bool,
    /// What became of writes.
    pub answers: Answers,
    /// And of operations that clients named.
    pub names: Names,
    /// Which keys have writes in flight, where answers wait for all.
    pub marks: Marks,
    leases: Leases,
    /// The view has served once: all its members have come to it.
    proven: bool,
    /// Another topology came before, which gave the members no order: the last one of a chain does not know yet that all have
    /// what it has.
    settling: bool,
    stream: Stream,
    followers: Vec<Follower>,
    /// A new primary that knew less than we did gets what it lacks.
    rescue: Option<Follower>,
    rescued: bool,
    source: Option<Source>,
    sink: Option<Sink>,
    /// Members without memory for more, by the last they said; and whether that is so here.
    full: Vec<NodeId>,
    im_full: bool,
    /// An acknowledgement is due: at the end of the turn, or a bit later where nobody waits for it.
    ack_at: Option<Micros>,
    /// How fresh what is here is, where another one orders.
    freshness: Freshness,
    /// When the store goes on with a survey.
    surveying: Surveying,
    /// How late its followers were at the end of the last turn.
    lags: Vec<(NodeId, Micros)>,
    /// Reads at the store by the clock here, and the latest time that one of them was given.
    looking: usize,
    clock_ms: u64,
    /// The epochs that ordered entries here, each with its first one.
    epochs: Vec<(Epoch, u64)>,
    dirty: bool,
}

/// How many epochs back a place can be told from one that was lost.
const EPOCHS_MAX: usize = 64;

impl Replica {
    /// An empty replica, or one to be filled.
    pub fn new(now: Now, view: View, settings: Settings) -> Replica {
        // Empty, but of this epoch: later than all that was seen of a shard that lost its data.
        let empty = Position { epoch: view.epoch, sequence: 0 };
        let mut replica = Replica {
            settings,
            submitted: empty,
            applied: empty,
            stable: empty,
            gone: false,
            given_up: false,
            answers: Answers::default(),
            names: Names::default(),
            marks: Marks::new(settings.mark_buckets),
            leases: Leases::new(settings.lease),
            proven: false,
            settling: false,
            stream: Stream::starting_at(1),
            followers: Vec::new(),
            rescue: None,
            rescued: false,
            source: None,
            sink: None,
            full: Vec::new(),
            im_full: false,
            ack_at: None,
            freshness: Freshness::default(),
            surveying: Surveying::default(),
            lags: Vec::new(),
            looking: 0,
            clock_ms: 0,
            epochs: Vec::new(),
            dirty: true,
            view,
        };
        replica.enter(now);
        replica
    }

    /// Its members have changed, or who joins.
    pub fn on_view(&mut self, now: Now, view: View) {
        let same = self.view.epoch == view.epoch;
        self.settling |= self.view.rules.topology != view.rules.topology;
        let was_strong = self.view.rules.is_strong();
        self.view = view;
        if self.view.rules.is_strong() && !was_strong && !planted(Fault::MarksNotSwitched) {
            // Nobody noted what was on its way to all.
            self.marks.note_all(self.submitted.sequence);
        }
        if same {
            self.tend_fill(now);
        } else {
            self.enter(now);
        }
        self.trim();
    }

    /// Begins in this epoch with what is here.
    fn enter(&mut self, now: Now) {
        self.proven = false;
        (self.rescue, self.rescued) = (None, false);
        self.full.clear();
        self.freshness.on_view();
        // Who was too slow has all that was acknowledged, and where nobody else is left, nobody has more.
        self.given_up &= self.view.members.len() > 1 || planted(Fault::SlowIsGone);
        if self.view.is_member() {
            let (me, level) = (self.view.me, self.submitted);
            let others = self.view.members.iter().filter(|member| member.node != me).copied();
            self.leases.on_view(now, others, level, self.view.rules.is_strong());
            let filled = self.sink.take().is_some() && self.topology() == Topology::Chain;
            if (filled || self.is_end()) && self.knows_all() {
                self.stable = self.applied;
            }
            if self.is_end() {
                // What waited for the former tail need not wait for the next write.
                self.ack_soon(0);
            }
        }
        self.follow(now);
        self.tend_fill(now);
    }

    /// Sets up those who get the stream from us.
    fn follow(&mut self, now: Now) {
        let before = core::mem::take(&mut self.followers);
        let joined = self.source.take();
        let (topology, first, members) = (self.topology(), self.stream.first(), &self.view.members);
        let downstream = self.view.place().map(|place| topology.downstream(place, members.len()));
        for member in downstream.into_iter().flatten().map(|place| &members[place]) {
            let known = before.iter().find(|follower| follower.node == member.node && !follower.cut);
            let filled = joined.iter().filter(|source| source.joining.member == *member);
            let filled = filled.map(|source| &source.follower).next();
            // Who came from elsewhere has at least what all have.
            let acked = known.or(filled).map_or(first - 1, |follower| follower.acked);
            let acked = if planted(Fault::TrustSuccessor) { self.applied.sequence } else { acked };
            self.followers.push(Follower::new(now, member.node, acked.max(first - 1)));
        }
    }

    /// Whether it must be filled anew.
    pub fn is_lost(&self) -> bool {
        self.gone || self.given_up
    }

    /// Whether the stream ends here, so that what is applied here is applied everywhere.
    pub fn is_end(&self) -> bool {
        match self.topology() {
            Topology::Chain => self.view.members.last().is_some_and(|tail| tail.node == self.view.me),
            Topology::Star | Topology::Tree => self.view.members.len() == 1 && self.view.is_member(),
        }
    }

    /// Whether what the end of the stream has is known to be everywhere.
    fn knows_all(&self) -> bool {
        !self.settling || self.view.members.len() == 1 || planted(Fault::EndOfStarKnows)
    }

    /// All members have what any of them had: from now on the order of the chain says who has what.
    fn settle(&mut self) {
        if self.settling && self.view.is_member() && self.is_level() && self.leases.all_whole() {
            self.settling = false;
            if self.is_end() {
                self.stable = self.applied;
                self.ack_soon(0);
                self.trim();
            }
        }
    }

    /// Begins, ends or goes on with filling a newcomer, or with being filled.
    fn tend_fill(&mut self, now: Now) {
        self.dirty = true;
        if let Some(joining) = self.view.joining.filter(|_| !self.view.is_member())
            && self.sink.as_ref().is_none_or(|sink| sink.since != joining.since)
        {
            self.sink = Some(Sink { since: joining.since, asked: 0, taken: 0, start: Position::ZERO });
        }
        let teller = self.topology().teller(self.view.members.len());
        let fills = self.view.place() == Some(teller);
        let wanted =
            self.view.joining.filter(|joining| fills && !self.view.members.contains(&joining.member));
        if self.source.as_ref().map(|source| source.joining) != wanted {
            self.source = wanted.map(|joining| Source::new(now, joining, self.applied));
        }
    }

    fn topology(&self) -> Topology {
        self.view.rules.topology
    }

    /// Up to where answers may tell of entries: what all have, what two have, or what is here.
    pub fn settled(&self) -> Position {
        match self.view.rules.answers {
            Leave::AtAll if !planted(Fault::AnswerAtHead) => self.stable,
            // What came from elsewhere is there too.
            Leave::AtTwo if self.view.is_head() => self.held_by_two(),
            _ => self.applied,
        }
    }

    fn held_by_two(&self) -> Position {
        let other = self.followers.iter().map(|follower| follower.acked).max();
        let sequence = other.unwrap_or(self.applied.sequence).min(self.applied.sequence);
        if sequence == self.applied.sequence || planted(Fault::AnswerAtOne) {
            return self.applied;
        }
        Position { epoch: self.epoch_of(sequence), sequence }
    }

    /// Whether operations travel here, and not what came of them.
    pub fn carries_operations(&self) -> bool {
        self.view.rules.carries == Carries::Operations
    }

    /// The last place that those who get the stream from us may have.
    fn sendable(&self) -> Position {
        match self.topology() {
            // The last one of a chain speaks for all before it.
            Topology::Chain => self.applied,
            Topology::Star | Topology::Tree => self.submitted,
        }
    }

    /// Up to where this replica, and those that get the stream from it, have everything.
    fn reached(&self) -> Position {
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
    fn counts(&self, follower: &Follower) -> bool {
        // Who was given up may answer reads until it is none of the members.
        !follower.cut || (self.view.rules.is_strong() && !planted(Fault::CutDoesNotCount))
    }

    /// Whether this replica may serve, and tell what it knows.
    pub fn is_active(&self, now: Now) -> bool {
        self.view.is_member() && !self.is_lost() && self.is_level() && self.leases.holds(now)
    }

    /// Whether this replica may answer reads that need not see the newest state.
    pub fn may_read(&self, now: Now) -> bool {
        self.view.is_member() && self.leases.may_read(now)
    }

    /// Whether all that had been acknowledged so long ago is here.
    pub fn is_fresh(&self, now: Now, bound_us: Micros) -> bool {
        let enough = |as_of: Micros| as_of.saturating_add(bound_us) >= now.steady_us;
        self.view.is_member() && (self.freshness.as_of().is_some_and(enough) || planted(Fault::NeverStale))
    }

    /// Whether it has all that any member had when the view began.
    pub fn is_level(&self) -> bool {
        let mine = self.leases.level().sequence <= self.applied.sequence || planted(Fault::IgnoreLevel);
        mine && self.leases.is_level(self.applied)
    }

    /// The store has ordered an entry for this request.
    pub fn on_ordered(&mut self, now: Now, entry: Entry, answer: Option<(&Request, &Outcome)>) {
        let position = entry.position;
        let answered = answer.and_then(|(request, outcome)| self.answered(now, request, outcome));
        self.note_epoch(position);
        self.surveying.note(now, &entry);
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

    /// Whether nobody is to have what is ordered here.
    fn is_alone(&self) -> bool {
        // In a chain, who comes after one that was cut off may still need what is kept.
        let nobody = self.topology() != Topology::Chain && self.followers.iter().all(|follower| follower.cut);
        (self.followers.is_empty() || nobody) && self.source.as_ref().is_none_or(|source| source.follower.cut)
    }

    /// An operation gets its place here, and all are told before any of them has done it.
    pub fn order(&mut self, now: Now, request: Request, out: &mut Effects) {
        let position = self.submitted.next(self.view.epoch);
        let value_bytes_max = self.settings.value_bytes_max;
        let unix_ms = self.stamp(now);
        let replay = Replay { request, position, unix_ms, value_bytes_max };
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
    fn stamp(&mut self, now: Now) -> u64 {
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

    /// Up to where it is known that nothing is lost while a member lives, or, where answers do not wait for that, what is
    /// here: the place that an answer names.
    pub fn known(&self) -> Position {
        if self.view.rules.is_strong() { self.settled() } else { self.applied }
    }

    /// The store has done an operation at its place.
    pub fn on_replayed(&mut self, now: Now, replay: &Replay, outcome: &Outcome, entry: Entry) {
        let position = entry.position;
        let ordered_at = Now { unix_ms: replay.unix_ms, ..now };
        let answered = self.answered(ordered_at, &replay.request, outcome);
        self.surveying.note(now, &entry);
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
    fn answered(&self, now: Now, request: &Request, outcome: &Outcome) -> Option<Answered> {
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

    fn remember(&mut self, answered: Option<Answered>, position: Position) {
        let Some(mut answered) = answered else { return };
        if let Some(name) = answered.name.take() {
            self.names.record(*name, answered.outcome.as_ref(), position);
        }
        self.answers.record(answered, position, self.settings.answers_bytes_max);
    }

    fn notify_followers(&mut self, now: Now, last: u64) {
        self.followers.iter_mut().for_each(|follower| follower.on_ordered(now, last));
    }

    /// Entries from elsewhere, or operations; the new ones are for the store.
    pub fn on_entries(&mut self, now: Now, from: NodeId, message: Entries, out: &mut Effects) {
        let fill = self.sink.as_ref().map_or(Epoch(0), |sink| sink.since);
        let begun = self.sink.as_ref().is_none_or(|sink| sink.asked > 0);
        if !message.entries.is_empty() {
            // Also for what we have already: the acknowledgement may have been lost.
            self.ack_after_news(now);
        }
        if !self.is_upstream(from) || message.fill != fill || !begun || self.is_lost() {
            return;
        }
        let mut reader = Reader::new(message.entries);
        while !reader.is_empty() {
            let start = reader.left().clone();
            let Ok(item) = Item::decode(&mut reader, self.view.shard) else { break };
            let position = item.position();
            let gap = position.sequence > self.submitted.sequence + 1 && !planted(Fault::AcceptGaps);
            if gap || position.epoch > self.view.epoch {
                break; // A gap: who sends sends again what is not acknowledged.
            }
            if position.sequence <= self.submitted.sequence && !planted(Fault::ApplyTwice) {
                continue;
            }
            self.note_epoch(position);
            self.submitted = position;
            self.stream.push_encoded(position.sequence, start.slice(..start.len() - reader.left().len()));
            out.tasks.push(self.take_item(now, item));
        }
        if self.topology() == Topology::Tree {
            self.notify_followers(now, self.submitted.sequence);
        }
        self.learn_stable(now, message.stable);
    }

    fn take_item(&mut self, now: Now, item: Item) -> Task {
        let notes = self.view.rules.is_strong() && !planted(Fault::MarksForgotten);
        match item {
            Item::Entry(Ordered { entry, answered }) => {
                self.remember(answered, entry.position);
                if notes {
                    self.marks.note(entry.position.sequence, &entry.writes);
                }
                self.surveying.note(now, &entry);
                Task::Apply(if self.sink.is_some() { without_deletes(entry) } else { entry })
            }
            Item::Operation(replay) => {
                if notes {
                    self.marks.note_op(replay.position.sequence, &replay.request.op);
                }
                Task::Replay(replay)
            }
        }
    }

    fn is_upstream(&self, from: NodeId) -> bool {
        let members = &self.view.members;
        let (topology, count) = (self.topology(), members.len());
        let upstream = match self.view.place() {
            // A new primary learns from those who know more than it, until it is level with them.
            Some(0) if !self.is_level() => members.iter().find(|m| m.node == from),
            Some(place) => topology.upstream(place, count).and_then(|before| members.get(before)),
            None => members.get(topology.teller(count)),
        };
        upstream.is_some_and(|member| member.node == from)
    }

    /// The store has an entry that was ordered elsewhere.
    pub fn on_applied(&mut self, now: Now, position: Position) {
        if let Some(source) = &mut self.source {
            match self.stream.get(position.sequence) {
                Some(encoded) => source.on_applied(now, position.sequence, encoded.clone()),
                None => source.follower.cut = true,
            }
        }
        self.reach(now, position);
    }

    /// The store has all up to here.
    fn reach(&mut self, now: Now, position: Position) {
        self.applied = position;
        self.dirty = true;
        self.freshness.on_applied(position.sequence);
        if self.topology() == Topology::Chain {
            self.notify_followers(now, position.sequence);
        }
        if (self.is_end() && self.knows_all()) || planted(Fault::MiddleCommits) {
            self.stable = position;
            self.trim();
        }
        self.ack_after_news(now);
    }

    /// In a chain only the tail's word is waited for; the others tell now and then how far they are.
    fn ack_after_news(&mut self, now: Now) {
        let learns = self.view.is_head() && !self.is_level();
        if self.view.is_head() && !learns {
            return;
        }
        let waited_for = self.is_end() || self.topology() != Topology::Chain || self.sink.is_some() || learns;
        self.ack_soon(if waited_for { 0 } else { now.steady_us + tells_after(&self.settings) });
    }

    fn ack_soon(&mut self, at: Micros) {
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
        let level = self.leases.level().sequence;
        if self.rescue.as_ref().is_some_and(|rescue| rescue.acked >= level) {
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

    fn learn_stable(&mut self, now: Now, stable: Position) {
        if stable.sequence <= self.applied.sequence && stable.sequence > self.stable.sequence {
            self.stable = stable;
            for follower in &mut self.followers {
                follower.on_ack(now, stable.sequence, &self.stream);
            }
            self.trim();
        }
    }

    /// The first of a star or tree knows what all have from what each has.
    fn compute_stable(&mut self) {
        let had =
            |follower: &Follower| if planted(Fault::SentIsHad) { follower.sent } else { follower.acked };
        let followers = self.followers.iter().filter(|follower| self.counts(follower)).map(had);
        let least = followers.chain([self.applied.sequence]).min().unwrap_or(0);
        if least > self.stable.sequence {
            self.stable = Position { epoch: self.epoch_of(least), sequence: least };
        }
    }

    /// A message about leases.
    pub fn on_lease(&mut self, now: Now, from: NodeId, message: LeaseMessage) {
        let is_first = self.leases.level_of(from).is_none();
        self.leases.on_message(now, from, message);
        if let Some((echo, newest)) =
            message.echo.zip(message.newest).filter(|(echo, _)| *echo <= now.steady_us)
        {
            self.freshness.on_told(echo, newest.sequence);
            self.freshness.on_applied(self.applied.sequence);
        }
        self.note_full(from, message.full);
        self.dirty = true;
        let members = &self.view.members;
        let sender_knows = members.get(self.topology().teller(members.len()));
        if sender_knows.is_some_and(|member| member.node == from) {
            self.learn_stable(now, message.stable);
        }
        if let Some(follower) = self.followers.iter_mut().find(|follower| follower.node == from)
            && is_first
            && message.level.sequence < follower.start
        {
            follower.cut = true;
        }
        let to_primary = self.view.members.first().is_some_and(|primary| primary.node == from);
        let knows_less = message.level.sequence < self.leases.level().sequence;
        let rescues = !self.rescued && !planted(Fault::NoRescue);
        if to_primary && knows_less && rescues {
            self.rescued = true;
            self.rescue = Some(Follower::new(now, from, message.level.sequence));
        }
    }

    /// A removed member serves no more.
    pub fn on_left(&mut self, now: Now, member: Member) {
        self.leases.on_left(now, member);
        self.dirty = true;
    }

    /// The stream's sender has given us up.
    pub fn on_cut(&mut self, from: NodeId) {
        self.given_up |= self.is_upstream(from);
    }

    /// A page of a fill.
    pub fn on_page(&mut self, page: Page, out: &mut Effects) {
        self.ack_soon(0);
        let Some(sink) = self.sink.as_mut().filter(|sink| sink.accepts(&page, self.submitted)) else {
            return;
        };
        sink.asked += 1;
        let start = (page.number == 1).then_some(page.at);
        let deletes = page.deletes.unwrap_or_default();
        if let Some(start) = start {
            self.submitted = start;
            sink.start = start;
            self.stream = Stream::starting_at(start.sequence + 1);
            // The history begins anew here, perhaps another one.
            self.marks = Marks::new(self.settings.mark_buckets);
            self.freshness = Freshness::default();
            self.answers = page.answers.unwrap_or_default();
            self.names = Names::default();
            self.epochs = alloc::vec![(start.epoch, 0)];
            (self.gone, self.given_up) = (false, false);
        }
        self.names.merge(page.names);
        let start = start.map(|at| Box::new(Start { at, deletes }));
        out.tasks.push(Task::Fill(page.fill, start, page.records));
    }

    /// The store has taken a page.
    pub fn on_filled(&mut self, fill: Epoch) {
        if let Some(sink) = self.sink.as_mut().filter(|sink| sink.since == fill) {
            sink.taken += 1;
            if sink.taken == 1 {
                // The last one of a chain had it, so all have. What the first of a star had, the others have before a view
                // serves in which this one is a member.
                (self.applied, self.stable) = (sink.start, sink.start);
            }
            self.ack_soon(0);
        }
    }

    /// The store has read a page.
    pub fn on_walked(&mut self, now: Now, fill: Epoch, walked: Walked) {
        if let Some(source) = self.source.as_mut().filter(|source| source.joining.since == fill) {
            source.on_walked(now, walked, (&self.answers, &self.names), &self.settings);
            self.dirty = true;
        }
    }

    /// The store has looked at a part of what it holds.
    pub fn on_surveyed(&mut self, now: Now, more: bool) {
        self.surveying.on_surveyed(now, more, &self.settings);
    }

    /// The end of a turn, or a timer: sends what there is to send.
    pub fn on_wake(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.dirty = false;
        if self.is_active(now) {
            self.proven = true;
        }
        self.settle();
        if self.leases.is_due(now) {
            let told = self.told(now);
            let leases = self.leases.on_wake(now, told);
            out.sends.extend(leases.into_iter().map(|(node, lease)| (node, Message::Lease(lease))));
        }
        let what = (Epoch(0), self.stable, self.sendable().sequence);
        // Answers and reads wait for it there.
        let tells = self.topology() != Topology::Chain && self.view.rules.is_strong();
        for follower in self.followers.iter_mut().chain(&mut self.rescue).filter(|follower| !follower.cut) {
            follower.send(now, &self.stream, what, &self.settings, &mut out.sends);
            if tells {
                follower.tell(self.stable, &mut out.sends);
            }
        }
        if let Some(source) = &mut self.source
            && !source.follower.cut
        {
            let at = (self.stable, self.applied);
            let tasks = &mut out.effects.tasks;
            source.on_wake(now, &self.stream, at, &self.settings, tasks, &mut out.sends);
        }
        if self.surveying.is_due(now) && self.view.is_member() {
            out.effects.tasks.push(self.surveying.task(now, &self.settings));
        }
        self.send_acks(now, out);
        self.cut_off_the_silent(now, out);
    }

    /// What the other members are to know beside promises.
    fn told(&self, now: Now) -> Told {
        let whole = self.view.is_member() && !self.is_lost() && self.is_level();
        let newest = (self.view.is_head() && self.is_active(now)).then_some(self.submitted);
        Told { stable: self.stable, full: self.im_full, whole, newest }
    }

    fn send_acks(&mut self, now: Now, out: &mut Outbox<Message>) {
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

    /// Whether what is kept for others has grown too large for more.
    pub fn is_crowded(&self) -> bool {
        self.stream.bytes() > self.settings.stream_bytes_max
    }

    /// Memory is bounded, and nobody waits for ever: who does not get on, or holds up the others, must be filled anew.
    fn cut_off_the_silent(&mut self, now: Now, out: &mut Outbox<Message>) {
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
    fn trim(&mut self) {
        // What was everywhere in the view before need not be at who has joined since.
        let newcomer = self.source.iter().map(|source| &source.follower);
        let others = self.followers.iter().chain(&self.rescue).chain(newcomer);
        let least = others.filter(|follower| !follower.cut).map(|follower| follower.acked).min();
        // Who is being filled keeps nothing: the others have it.
        let all_have = if self.sink.is_some() { self.applied.sequence } else { self.stable.sequence };
        let least = if planted(Fault::TrimEarly) {
            self.applied.sequence
        } else {
            all_have.min(least.unwrap_or(u64::MAX))
        };
        self.stream.trim(least);
    }

    fn note_epoch(&mut self, position: Position) {
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < position.epoch) {
            self.epochs.push((position.epoch, position.sequence));
            if self.epochs.len() > EPOCHS_MAX {
                self.epochs.remove(0);
            }
        }
    }

    fn epoch_of(&self, sequence: u64) -> Epoch {
        let known = self.epochs.iter().rev().find(|(_, first)| *first <= sequence);
        known.map_or(Epoch(0), |(epoch, _)| *epoch)
    }

    /// Whether a place is in the history of this replica: what was ordered but lost in a failover is not.
    pub fn contains(&self, place: Position) -> bool {
        let oldest = self.epochs.first().map_or(self.applied.epoch, |(epoch, _)| *epoch);
        place.sequence <= self.applied.sequence
            && (place.sequence == 0 || place.epoch < oldest || self.epoch_of(place.sequence) == place.epoch)
    }

    /// This node has, or has no longer, memory for more. Who orders must know.
    pub fn set_full(&mut self, full: bool) {
        if self.im_full != full {
            self.im_full = full;
            self.ack_soon(0);
        }
    }

    fn note_full(&mut self, node: NodeId, full: bool) {
        self.full.retain(|other| *other != node);
        if full {
            self.full.push(node);
        }
    }

    /// Whether there is no memory for more here.
    pub fn is_full(&self) -> bool {
        self.im_full
    }

    /// Whether some other member has no memory for more.
    pub fn others_are_full(&self) -> bool {
        !self.full.is_empty()
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

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        if self.dirty {
            return Some(0);
        }
        let settings = &self.settings;
        let followers = self.followers.iter().chain(&self.rescue);
        let resends = followers.filter_map(|follower| follower.wake_at(settings));
        let source = self.source.as_ref().filter(|source| !source.follower.cut);
        let source = source.and_then(|source| source.wake_at(settings));
        let survey = self.surveying.wake_at().filter(|_| self.view.is_member());
        let others = self.leases.wake_at().into_iter().chain(self.ack_at).chain(self.cuts_at());
        resends.chain(source).chain(others).chain(survey).min()
    }

    /// When the first of those who hold up a crowded stream is to be cut off.
    fn cuts_at(&self) -> Option<Micros> {
        if self.stream.bytes() <= self.settings.stream_bytes_max / 2 {
            return None;
        }
        let sources = self.source.iter().map(|source| &source.follower);
        let silent = self.followers.iter().chain(sources).filter(|follower| !follower.cut);
        let behind = silent.filter(|follower| follower.acked < self.sendable().sequence);
        behind.map(|follower| follower.silent_at(&self.settings)).min()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let cut = self.followers.iter().filter(|follower| follower.cut).map(|follower| follower.node);
        let source = self.source.as_ref();
        Status {
            position: self.applied,
            lost: self.is_lost(),
            gone: self.gone,
            proven: self.proven && self.view.is_member() && !self.settling,
            cut: cut.collect(),
            fill: source.map(|source| source.status(self.applied, self.proven && !self.settling)),
            fill_failed: source.is_some_and(|source| source.follower.cut),
            deaf: self.leases.deaf().collect(),
            lags: self.lags.clone(),
        }
    }
}

/// Whether a client of this life of a node asked.
fn is_of(from: From, member: Member) -> bool {
    matches!(from, From::Worker { worker, incarnation, .. }
        if worker.node == member.node && incarnation == member.incarnation)
}

/// A planted fault: who is being filled hears of no deletes.
fn without_deletes(mut entry: Entry) -> Entry {
    if planted(Fault::LoseDeletesOfFill) {
        let stays = |write: &Write<'_>| !matches!(write, Write::Delete { .. });
        entry.writes = Writes::of(entry.writes.iter().filter(stays));
    }
    entry
}
