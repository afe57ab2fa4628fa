//! What every replica of a primary-and-replicas protocol does: takes the stream from one side, passes it on to the
//! other, keeps what not all have, gives and gets leases, fills a newcomer or is filled.
//!
//! ```text
//!  Chain:  head ──▶ middle ──▶ tail        Star:  primary ──▶ secondary
//!                                                       └───▶ secondary
//! ```
//!
//! The protocol decides who may ask what, and when an answer may leave; see `replicated.rs`.

mod logging;
mod placing;
mod reaching;
mod taking;

use super::answers::Answers;
use super::digest::Digest;
use super::fill::{Sink, Source};
use super::follower::Follower;
use super::freshness::Freshness;
use super::lease::{LeaseMessage, Leases, Told};
use super::log::Log;
use super::marks::Marks;
use super::message::Message;
use super::once::Names;
use super::stream::Stream;
use super::surveying::Surveying;
use crate::controlet::rules::{Answers as AnswersAt, Topology};
use crate::controlet::{Outbox, Settings, Status, View};
use crate::ids::{Epoch, NodeId, Position};
use crate::keeper::Walked;
use crate::mutants::{Fault, planted};
use crate::routing::map::Member;
use crate::time::{Micros, Now};
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
    /// What all members have is not known yet: another topology came before, which gave them no order, or a mode that did not
    /// count all of them, or this one was filled with what some may lack.
    settling: bool,
    /// The others were told that this one has all that any member had when the view began.
    told_whole: bool,
    stream: Stream,
    /// The log outside, at the first member.
    log: Option<Log>,
    /// Another one was first, so the log may hold what this one lacks.
    owes_log: bool,
    /// The last entry that it has, as far as is known.
    logged: u64,
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
    /// Whether it is what the first one has.
    digest: Digest,
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
    /// A replica that begins where its view says, or is to be filled.
    pub fn new(now: Now, view: View, settings: Settings) -> Replica {
        let mut replica = Replica {
            settings,
            submitted: view.start,
            applied: view.start,
            stable: view.start,
            gone: false,
            given_up: false,
            answers: Answers::default(),
            names: Names::default(),
            marks: Marks::new(settings.mark_buckets),
            leases: Leases::new(settings.lease),
            proven: false,
            settling: false,
            told_whole: false,
            stream: Stream::starting_at(view.start.sequence + 1),
            log: None,
            owes_log: false,
            logged: 0,
            followers: Vec::new(),
            rescue: None,
            rescued: false,
            source: None,
            sink: None,
            full: Vec::new(),
            im_full: false,
            ack_at: None,
            freshness: Freshness::default(),
            digest: Digest::default(),
            surveying: Surveying::default(),
            lags: Vec::new(),
            looking: 0,
            clock_ms: 0,
            epochs: Vec::new(),
            dirty: true,
            view,
        };
        let begins_again = replica.view.is_member() && !replica.view.first;
        if begins_again {
            replica.leases.bind_unknown(now);
        }
        if replica.view.start.sequence > 0 {
            replica.epochs.push((replica.view.start.epoch, 0));
            // What it wrote there may not have come to disk.
            replica.owes_log = replica.view.rules.answers == AnswersAt::AtLog;
        }
        replica.enter(now);
        replica
    }

    /// Its members have changed, or who joins.
    pub fn on_view(&mut self, now: Now, view: View) {
        let same = self.view.epoch == view.epoch;
        self.settling |= self.view.rules.topology != view.rules.topology;
        let (before, first) = (self.view.rules, self.view.members.first().copied());
        self.view = view;
        let rules = self.view.rules;
        let new = (rules.is_strong() && !before.is_strong()) || (rules.counts_all() && !before.counts_all());
        if new && !planted(Fault::MarksNotSwitched) {
            // Nobody noted what was on its way to all, and who was given up did not count among them.
            self.unsettle();
        }
        if self.view.members.first().copied() != first || self.view.members.len() == 1 {
            self.digest.forgive();
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
        (self.proven, self.told_whole) = (false, false);
        (self.rescue, self.rescued) = (None, false);
        self.full.clear();
        self.freshness.on_view();
        self.digest.on_view();
        self.logged = self.logged.min(self.submitted.sequence);
        self.enter_log();
        // Who was too slow has all that was acknowledged, and where nobody else is left, nobody has more.
        self.given_up &= self.view.members.len() > 1 || planted(Fault::SlowIsGone);
        if self.view.is_member() {
            let (me, level) = (self.view.me, (!self.must_read_log()).then_some(self.submitted));
            let others = self.view.members.iter().filter(|member| member.node != me).copied();
            self.leases.on_view(now, others, level, self.view.rules.is_strong());
            let filled = self.sink.take().is_some();
            if filled && self.topology() != Topology::Chain {
                // What the last one of a chain had, all have; what the first of a star had, some may lack.
                self.unsettle();
            } else if (filled || self.is_end()) && self.knows_all() {
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
        self.gone || self.given_up || self.digest.differs()
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
        !self.settling || self.view.members.len() == 1
    }

    /// It is not known any more what all members have.
    fn unsettle(&mut self) {
        (self.settling, self.stable) = (true, Position::ZERO);
        self.marks.note_all(self.submitted.sequence);
    }

    /// All members have what any of them had: from now on it is known again what all have.
    fn settle(&mut self) {
        if self.settling && self.view.is_member() && self.is_level() && self.leases.all_whole() {
            self.settling = false;
            let level = self.leases.level();
            if self.is_end() {
                self.stable = self.applied;
                self.ack_soon(0);
            } else if let Some(level) = level.filter(|level| self.stable.sequence < level.sequence) {
                self.stable = level;
            }
            self.trim();
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
        let (members, joining) = (&self.view.members, self.view.joining);
        // Who was to join and does not any more has room or not, it is the same.
        let is_here = |node: NodeId| {
            members.iter().any(|member| member.node == node)
                || joining.is_some_and(|joining| joining.member.node == node)
        };
        self.full.retain(|node| is_here(*node));
        let wanted =
            self.view.joining.filter(|joining| fills && !self.view.members.contains(&joining.member));
        if self.source.as_ref().map(|source| source.joining) != wanted {
            self.source = wanted.map(|joining| {
                let since = Some(joining.held).filter(|held| self.has(*held) || planted(Fault::TrustKept));
                Source::new(now, joining, self.applied, since.filter(|held| *held != Position::ZERO))
            });
        }
    }

    fn topology(&self) -> Topology {
        self.view.rules.topology
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
        let level = self.leases.level();
        let mine = level.is_some_and(|level| level.sequence <= self.applied.sequence);
        let mine = mine || planted(Fault::IgnoreLevel);
        mine && self.leases.is_level(self.applied)
    }

    fn notify_followers(&mut self, now: Now, last: u64) {
        self.followers.iter_mut().for_each(|follower| follower.on_ordered(now, last));
    }

    /// A message about leases.
    pub fn on_lease(&mut self, now: Now, from: NodeId, message: LeaseMessage) {
        let is_first = self.leases.level_of(from).is_none();
        self.leases.on_message(now, from, message);
        if let Some((echo, newest)) =
            message.echo.zip(message.told.newest).filter(|(echo, _)| *echo <= now.steady_us)
        {
            self.freshness.on_told(echo, newest.sequence);
            self.freshness.on_applied(self.applied.sequence);
        }
        if let Some((at, sum)) = message.told.digest.filter(|_| self.sink.is_none()) {
            self.digest.on_told(at, sum);
            self.digest.compare(self.applied);
        }
        self.note_full(from, message.told.full);
        self.dirty = true;
        self.learn_logged(message.told.logged);
        let members = &self.view.members;
        let sender_knows = members.get(self.topology().teller(members.len()));
        if sender_knows.is_some_and(|member| member.node == from) {
            self.learn_stable(now, message.told.stable);
        }
        if let Some(follower) = self.followers.iter_mut().find(|follower| follower.node == from)
            && is_first
            && message.level.is_some_and(|level| level.sequence < follower.start)
        {
            follower.cut = true;
        }
        let to_primary = self.view.members.first().is_some_and(|primary| primary.node == from);
        let levels = message.level.zip(self.leases.level());
        let knows_less = levels.is_some_and(|(first, mine)| first.sequence < mine.sequence);
        let rescues = !self.rescued && !planted(Fault::NoRescue);
        if to_primary && knows_less && rescues {
            self.rescued = true;
            let has = message.level.map_or(0, |level| level.sequence);
            self.rescue = Some(Follower::new(now, from, has));
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

    /// The store has read a page.
    pub fn on_walked(&mut self, now: Now, fill: Epoch, walked: Walked) {
        if let Some(source) = self.source.as_mut().filter(|source| source.joining.since == fill) {
            let known = (&self.answers, &self.names, self.digest.sum());
            source.on_walked(now, walked, known, &self.settings);
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
        self.tend_log(now, &mut out.effects);
        self.settle();
        if !self.told_whole && self.view.is_member() && !self.is_lost() && self.is_level() {
            // Somebody may wait for it.
            self.told_whole = true;
            self.leases.hurry(now);
        }
        if self.leases.is_due(now) {
            let told = self.told(now);
            let leases = self.leases.on_wake(now, told);
            out.sends.extend(leases.into_iter().map(|(node, lease)| (node, Message::Lease(lease))));
        }
        let known = (self.stable, self.known_logged());
        let what = (Epoch(0), known, self.sendable().sequence);
        // Answers and reads wait for it there.
        let tells = self.topology() != Topology::Chain && (self.view.rules.is_strong() || self.log.is_some());
        for follower in self.followers.iter_mut().chain(&mut self.rescue).filter(|follower| !follower.cut) {
            follower.send(now, &self.stream, what, &self.settings, &mut out.sends);
            if tells {
                follower.tell(known, &mut out.sends);
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
        let orders = self.view.is_head() && self.is_active(now);
        let newest = orders.then_some(self.submitted);
        let digest = orders.then_some((self.applied, self.digest.sum()));
        Told { stable: self.stable, full: self.im_full, whole, newest, logged: self.known_logged(), digest }
    }

    /// Whether what is kept for others has grown too large for more.
    pub fn is_crowded(&self) -> bool {
        self.stream.bytes() > self.settings.stream_bytes_max
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

    /// Whether a place is certainly in the history of this replica. One orders in each epoch, so it is if a later place of its
    /// epoch is, or itself.
    fn has(&self, place: Position) -> bool {
        let known = self.epochs.iter().position(|(epoch, _)| *epoch == place.epoch);
        let next = |at: usize| self.epochs.get(at + 1).map_or(self.applied.sequence + 1, |(_, first)| *first);
        known.is_some_and(|at| place.sequence < next(at))
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
        let log = self.log.as_ref().and_then(Log::wake_at);
        resends.chain(source).chain(others).chain(survey).chain(log).min()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let cut = self.followers.iter().filter(|follower| follower.cut).map(|follower| follower.node);
        let source = self.source.as_ref();
        Status {
            position: self.applied,
            lost: self.gone || self.given_up,
            gone: self.gone,
            durable: self.view.durable,
            differs: self.digest.differs(),
            sealed: self.log.as_ref().is_some_and(Log::is_over),
            proven: self.proven && self.view.is_member() && !self.settling,
            cut: cut.collect(),
            fill: source.map(|source| source.status(self.applied, self.proven && !self.settling)),
            fill_failed: source.is_some_and(|source| source.follower.cut),
            deaf: self.leases.deaf().collect(),
            lags: self.lags.clone(),
        }
    }
}
