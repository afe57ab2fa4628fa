//! What protocols with one replica that orders have in common above [`Replica`]: requests that wait until they may be
//! taken, what was done before and is asked again, answers that wait until they may leave.

use super::message::Message;
use super::once::another;
use super::replica::Replica;
use super::waiting::{Answering, Waiting, is_late, refusal};
use crate::controlet::{Effects, Outbox, Settings, View};
use crate::entry::Entry;
use crate::ids::{NodeId, Position};
use crate::keeper::{Done, FULL, FULL_ELSEWHERE, Replay, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, Failure, FailureKind, From, Op, Outcome, Request};
use crate::time::{Micros, Now};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

/// A replica, and the requests it has in hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Orders {
    /// The replica.
    pub replica: Replica,
    answering: Answering,
    /// Requests that wait, with their arrival: until the view serves, or until there is room.
    held: VecDeque<(Request, Micros)>,
    /// Names of operations that the store was asked to decide, and who asked for the same meanwhile.
    deciding: BTreeMap<Bytes, Vec<Request>>,
    /// When to look for records past their deadline, or, where others order, at the store.
    expire_at: Micros,
    /// Tasks at the store that take the next place for what they change.
    placing: usize,
    /// Of those, the ones from before operations got their places here: none gets one until they are done.
    draining: usize,
    /// Something may leave.
    dirty: bool,
    /// When to look whether what waits still may hope.
    look_at: Option<Micros>,
    /// The place was marked from which on nothing is for the part that is divided off.
    fenced: bool,
}

impl Orders {
    /// A replica with an empty store.
    pub fn new(now: Now, view: View, settings: Settings) -> Orders {
        Orders {
            replica: Replica::new(now, view, settings),
            answering: Answering::default(),
            held: VecDeque::new(),
            deciding: BTreeMap::new(),
            placing: 0,
            draining: 0,
            expire_at: now.steady_us,
            dirty: true,
            look_at: None,
            fenced: false,
        }
    }

    /// Whether this replica orders.
    pub fn is_head(&self) -> bool {
        self.replica.view.is_head()
    }

    /// The members have changed. Who no longer orders gives back what clients here wait for.
    pub fn on_view(&mut self, now: Now, view: View, out: &mut Effects) {
        let (was_head, was_strong) = (self.is_head(), self.replica.view.rules.is_strong());
        self.replica.on_view(now, view);
        if self.replica.view.rules.is_strong() && !was_strong && !planted(Fault::AnswersNotSwitched) {
            self.answering.wait_for_all();
        }
        self.draining = self.placing;
        self.fenced = false;
        self.dirty = true;
        if (was_head && !self.is_head()) || !self.replica.view.is_member() {
            self.answering.forward_all(out);
            let again = core::mem::take(&mut self.deciding).into_values().flatten();
            let here = self.held.drain(..).map(|(request, _)| request).chain(again);
            out.forwards.extend(here.filter(|request| matches!(request.from, From::Session { .. })));
        }
    }

    /// Reads that wait and must see the newest state: they are given back where that is not known any more.
    pub fn take_strong(&mut self) -> Vec<Request> {
        self.answering.take_strong()
    }

    /// A request for the replica that orders: taken at once, or when the view serves and there is room.
    pub fn on_request(&mut self, now: Now, request: Request, out: &mut Effects) {
        if !self.held.is_empty() || !self.has_room() || !self.replica.is_active(now) {
            // Who sent it has a bounded window, so this list is bounded too. It must be looked at, also where nothing
            // else happens.
            self.held.push_back((request, now.steady_us));
            self.dirty = true;
        } else {
            self.take(now, request, out);
        }
    }

    fn has_room(&self) -> bool {
        !self.replica.is_crowded() && !self.drains()
    }

    /// Whether no operation can get a place here yet, as the store still gives places.
    fn drains(&self) -> bool {
        self.replica.carries_operations() && self.draining > 0 && !planted(Fault::DrainNothing)
    }

    fn take(&mut self, now: Now, mut request: Request, out: &mut Effects) {
        if self.is_known(now, &request) {
            return;
        }
        let known = self.replica.answers.find(request.from);
        if let Some(known) = known.filter(|_| !planted(Fault::AppendAgain)) {
            // It had an effect before, perhaps under another head; it is answered as then.
            let text = "it took effect, but its answer was too large to keep";
            let lost = || Failure::outcome(FailureKind::Uncertain, text);
            let (outcome, at) = (known.outcome.clone().unwrap_or_else(lost), known.position);
            self.answer(now, request, outcome, at, at.sequence);
        } else if !self.replica.view.has(&request.op) {
            // It was not done here: who asked finds the other shard.
            match request.from {
                From::Session { .. } => out.forwards.push(request),
                from => out.replies.push((from, Failure::outcome(FailureKind::Moved, ""), Position::ZERO)),
            }
        } else if let Some(text) = self.refusal_of(&mut request) {
            let at = self.replica.applied;
            self.answer(now, request, Failure::outcome(FailureKind::Full, text), at, 0);
        } else {
            if let Op::Once(once) = &request.op {
                self.deciding.insert(once.id.clone(), Vec::new());
            }
            self.submit(now, request, out);
        }
    }

    /// To the store, in the way of the mode.
    fn submit(&mut self, now: Now, request: Request, out: &mut Effects) {
        if !self.replica.carries_operations() {
            self.placing += 1;
            out.tasks.push(Task::Evaluate(request, self.replica.view.epoch));
        } else if request.op.is_write() {
            self.replica.order(now, request, out);
        } else {
            self.replica.look(now, request, out);
        }
    }

    /// A task that takes the next place has ended.
    fn on_placed(&mut self) {
        self.placing = self.placing.saturating_sub(1);
        self.draining = self.draining.saturating_sub(1);
    }

    /// Whether the request's name, if it has one, is known: then it is answered, or waits for the one that is being
    /// decided under it.
    fn is_known(&mut self, now: Now, request: &Request) -> bool {
        let Op::Once(once) = &request.op else { return false };
        let names = &mut self.replica.names;
        names.forget(now.unix_ms);
        if let Some(named) = names.find(&once.id) {
            // Its entry may be on its way yet: nobody hears of it before all have it.
            let (outcome, at) = (named.answer(once), named.position);
            self.answer(now, request.clone(), outcome, at, at.sequence);
            return true;
        }
        let same = self.deciding.get_mut(&once.id).filter(|_| !planted(Fault::NamesNotHeld));
        same.map(|same| same.push(request.clone())).is_some()
    }

    /// Why there is no room for what a request makes, if there is none. In a run, it concerns some steps only.
    fn refusal_of(&self, request: &mut Request) -> Option<&'static str> {
        // Where the store here decides, it knows itself whether there is room here.
        let full = self.replica.carries_operations() && self.replica.is_full();
        if (full || self.replica.others_are_full()) && request.op.grows() {
            if let Op::Run(run) = &mut request.op {
                run.refuse_growth();
                return None;
            }
            return Some(if full { FULL } else { FULL_ELSEWHERE });
        }
        let max = self.replica.settings.once_bytes_max;
        let full =
            matches!(request.op, Op::Once(_)) && !self.replica.names.has_room(self.deciding.len(), max);
        full.then_some(
            "no room for one more id of SARTOR.ONCE in this shard (once-max-bytes, once-ms); not done, try again later",
        )
    }

    /// A request was decided; the answer tells of entries up to `needs`.
    pub fn on_decided(
        &mut self,
        now: Now,
        request: Request,
        outcome: Outcome,
        entry: Option<Entry>,
        needs: u64,
    ) {
        if let Some(entry) = entry {
            self.replica.on_ordered(now, entry, Some((&request, &outcome)));
        }
        self.answer_same(now, &request, &outcome, needs);
        self.answer(now, request, outcome, self.replica.applied, needs);
    }

    /// Answers those that asked for the same under a request's name meanwhile.
    fn answer_same(&mut self, now: Now, request: &Request, outcome: &Outcome, needs: u64) {
        let at = self.replica.applied;
        if let Op::Once(once) = &request.op {
            for again in self.deciding.remove(&once.id).unwrap_or_default() {
                let outcome = match &again.op {
                    Op::Once(other) if other.fingerprint != once.fingerprint => another(other),
                    _ => outcome.clone(),
                };
                self.answer(now, again, outcome, at, needs);
            }
        }
    }

    /// An operation was done at its place.
    fn on_replayed(&mut self, now: Now, replay: Replay, outcome: Outcome, entry: Entry) {
        let at = entry.position;
        self.replica.on_replayed(now, &replay, &outcome, entry);
        let request = replay.request;
        if self.is_head() {
            self.answer_same(now, &request, &outcome, at.sequence);
        }
        if self.is_head() || self.replica.is_asked_here(request.from) {
            self.dirty = true;
            let (needs, since, placed) = (at.sequence, now.steady_us, true);
            let waiting = Waiting { request, outcome, at, needs, since, placed };
            self.answering.push(waiting, self.replica.settled());
        }
    }

    /// Records are past their deadline: that they go has its place like anything else.
    fn on_due(&mut self, now: Now, keys: Vec<Bytes>, out: &mut Effects) {
        let replica = &self.replica;
        let more = keys.len() >= replica.settings.expire_batch_max;
        let orders = self.is_head() && replica.carries_operations() && replica.is_active(now);
        let removes = !keys.is_empty() && orders && self.has_room();
        if removes {
            self.remove(now, keys, out);
        }
        self.expire_again(now, more && removes);
    }

    fn remove(&mut self, now: Now, dead: Vec<Bytes>, out: &mut Effects) {
        let request = self.of_nobody(Op::Expire(dead));
        self.replica.order(now, request, out);
    }

    /// A read was done by the clock here. What it found dead must be gone everywhere before anybody hears of it; what was
    /// ordered meanwhile finds it dead as well.
    fn on_looked(
        &mut self,
        now: Now,
        (request, outcome): (Request, Outcome),
        dead: Vec<Bytes>,
        out: &mut Effects,
    ) {
        if !self.is_head() {
            if matches!(request.from, From::Session { .. }) {
                out.forwards.push(request);
            }
        } else if dead.is_empty() {
            let (at, needs) = (self.replica.applied, self.replica.seen_by(&request.op));
            self.answer(now, request, outcome, at, needs);
        } else if self.drains() || !self.replica.carries_operations() || !self.replica.view.has(&request.op) {
            // A view came meanwhile, perhaps one in which another shard removes them.
            self.on_request(now, request, out);
        } else {
            let at = self.replica.applied;
            self.remove(now, dead, out);
            let removed = self.replica.submitted;
            let needs = if planted(Fault::DeadStays) { 0 } else { removed.sequence };
            self.answer(now, request, outcome, at, needs);
        }
        self.replica.on_looked();
    }

    fn expire_again(&mut self, now: Now, more: bool) {
        self.expire_at = now.steady_us + if more { 0 } else { self.replica.settings.expire_every_us };
    }

    /// An answer, true at `at`, that tells something of entry `needs` and none after it.
    pub fn answer(&mut self, now: Now, request: Request, outcome: Outcome, at: Position, needs: u64) {
        self.dirty = true;
        let waiting = Waiting { request, outcome, at, needs, since: now.steady_us, placed: false };
        self.answering.push(waiting, self.replica.settled());
    }

    /// A task has ended. What is the protocol's to decide is given back.
    pub fn on_stored(&mut self, now: Now, done: Done, out: &mut Effects) -> Option<Done> {
        if matches!(done, Done::Evaluated(..) | Done::Expired(..)) {
            self.on_placed();
        }
        if !self.replica.view.includes_me() {
            forward_owed(done, out);
            return None;
        }
        match done {
            // Whether a record is past its deadline is judged by one clock, that of who orders.
            Done::Read(request, None) if planted(Fault::JudgeExpiryHere) => {
                return Some(Done::Read(request, Some(Outcome::Nil)));
            }
            Done::Read(request, None) if self.is_head() => self.on_request(now, request, out),
            Done::Evaluated(..) | Done::Read(..) => return Some(done),
            Done::Looked(request, outcome, dead) => self.on_looked(now, (request, outcome), dead, out),
            Done::Replayed(replay, outcome, entry) => self.on_replayed(now, replay, outcome, entry),
            Done::Due(keys) => self.on_due(now, keys, out),
            Done::Expired(entry, more) => {
                if let Some(entry) = entry {
                    self.replica.on_ordered(now, entry, None);
                }
                self.expire_again(now, more);
            }
            Done::Checked => self.expire_again(now, false),
            Done::Applied(position) => self.replica.on_applied(now, position),
            Done::Walked(fill, walked) => self.replica.on_walked(now, fill, walked),
            Done::Filled(fill) => self.replica.on_filled(fill),
            Done::Surveyed(more) => self.replica.on_surveyed(now, more),
            // Nothing that a controlet asks for.
            Done::Parted(_) | Done::Followed | Done::Sealed(_) | Done::Left(_) => {}
            Done::Broken(request, failure) => {
                self.replica.gone = true;
                if let Some(request) = request {
                    self.on_broken(now, request, failure, out);
                }
            }
        }
        self.dirty = true;
        None
    }

    /// What a store that failed did is at no other replica: who orders next takes it.
    fn on_broken(&mut self, now: Now, request: Request, failure: Failure, out: &mut Effects) {
        if let Op::Once(once) = &request.op {
            for again in self.deciding.remove(&once.id).unwrap_or_default() {
                self.on_broken(now, again, failure.clone(), out);
            }
        }
        if self.replica.view.members.len() == 1 {
            // Nobody else can do it. What the store did of a write before it failed is not known.
            let kind = if request.op.is_write() { FailureKind::Uncertain } else { failure.kind };
            let outcome = Outcome::Failed(Failure { kind, ..failure });
            out.replies.push((request.from, outcome, Position::ZERO));
        } else if self.replica.carries_operations() && request.op.is_write() {
            // It has its place, and the others do it.
        } else if self.is_head() {
            self.held.push_back((request, now.steady_us));
        } else {
            out.forwards.push(request);
        }
    }

    /// A message of another replica.
    pub fn on_peer(&mut self, now: Now, from: NodeId, message: Message, out: &mut Effects) {
        self.dirty = true;
        match message {
            Message::Entries(entries) => self.replica.on_entries(now, from, entries, out),
            Message::Ack(ack) => self.replica.on_ack(now, from, &ack),
            Message::Cut => self.replica.on_cut(from),
            Message::Lease(lease) => self.replica.on_lease(now, from, lease),
            Message::Page(page) => self.replica.on_page(page, out),
        }
    }

    /// The end of a turn, or a timer: lets go the answers that may leave, takes what was held.
    pub fn on_wake(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.dirty = false;
        let looks = self.look_at.is_some_and(|at| at <= now.steady_us);
        self.replica.on_wake(now, out);
        if !self.replica.is_active(now) && !planted(Fault::LeaseAtArrival) {
            self.refuse_the_late(now, self.replica.settings.patience_us, &mut out.effects);
            return self.look_again(now);
        }
        let (replica, places) = (&self.replica, (self.replica.settled(), self.replica.known()));
        let elsewhere = |from| replica.is_told_elsewhere(from);
        let contains = |place| replica.contains(place);
        let near = !replica.view.is_head();
        self.answering.release(places, near, elsewhere, contains, &mut out.effects);
        if self.is_head() {
            self.take_held(now, &mut out.effects);
            self.fence(now, &mut out.effects);
        }
        // What is left tells of entries that some member or the log lacks, or has no room before they are there: if that is
        // given up, they wait for the next view. They may be many, so not at every turn.
        if looks {
            self.refuse_the_late(now, Micros::MAX, &mut out.effects);
        }
        self.look_again(now);
        if now.steady_us >= self.expire_at {
            // Until the answer is there, no second one.
            self.expire_at = Micros::MAX;
            let Settings { expire_batch_max, .. } = self.replica.settings;
            let task = match (self.is_head(), self.replica.carries_operations()) {
                (true, false) => Task::Expire(self.replica.view.epoch, expire_batch_max),
                (true, true) => Task::Due(expire_batch_max),
                (false, _) => Task::Check,
            };
            self.placing += usize::from(matches!(task, Task::Expire(..)));
            out.effects.tasks.push(task);
        }
        self.look_at = self.look_at.into_iter().chain([self.expire_at]).min();
    }

    /// In a shard that is divided: all that is ordered from here on is for what stays.
    fn fence(&mut self, now: Now, out: &mut Effects) {
        if self.replica.view.divides && !self.fenced && self.has_room() {
            self.fenced = true;
            let request = self.of_nobody(Op::fence());
            self.submit(now, request, out);
        }
    }

    fn of_nobody(&self, op: Op) -> Request {
        let (from, shard, consistency) = (From::Nobody, self.replica.view.shard, Consistency::Mode);
        Request { from, shard, op, floor: Position::ZERO, consistency, deadline_us: Micros::MAX }
    }

    fn take_held(&mut self, now: Now, out: &mut Effects) {
        while self.has_room()
            && let Some((request, _)) = self.held.pop_front()
        {
            if planted(Fault::HeldNotChecked) {
                self.submit(now, request, out);
                continue;
            }
            self.take(now, request, out);
        }
    }

    /// Nobody may serve for a while, or there is no room: those are told whose requests certainly had no effect.
    fn refuse_the_late(&mut self, now: Now, patience_us: Micros, out: &mut Effects) {
        self.answering.give_up(now, patience_us, out);
        let replica = &self.replica;
        self.held.retain(|(request, since)| {
            // Another head may have done it; who is not level with all does not know.
            let perhaps_done = request.op.is_write()
                && (!replica.is_level() || replica.answers.find(request.from).is_some());
            let refused = !perhaps_done && is_late(now, request, *since, patience_us);
            if refused {
                out.replies.push((request.from, refusal(request), Position::ZERO));
            }
            !refused
        });
    }

    fn look_again(&mut self, now: Now) {
        let waits = !self.held.is_empty() || !self.answering.is_empty();
        let planned = self.look_at.filter(|at| *at > now.steady_us);
        self.look_at =
            waits.then(|| planned.unwrap_or(now.steady_us + self.replica.settings.expire_every_us));
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        if self.dirty {
            return Some(0);
        }
        self.replica.wake_at().into_iter().chain(self.look_at).min()
    }
}

/// A replica that has ended passes on what clients here still wait for.
fn forward_owed(done: Done, out: &mut Effects) {
    let request = match done {
        Done::Evaluated(request, ..) | Done::Read(request, _) | Done::Looked(request, ..) => request,
        Done::Broken(Some(request), _) => request,
        _ => return,
    };
    if matches!(request.from, From::Session { .. }) {
        out.forwards.push(request);
    }
}
