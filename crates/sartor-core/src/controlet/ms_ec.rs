//! `ms+ec`: one primary, replicas that follow. (TPDS 4.2)
//!
//! ```text
//!  client ──1──▶ primary ──2──▶ its store        1 request   2 evaluate
//!         ◀──3──    │                            3 answer, at once
//!                   └──4──▶ secondaries          4 entries, in batches
//!                   ◀──5──                       5 acknowledgement, cumulative
//! ```
//!
//! The primary decides every write against its own newest state and numbers what changed; the
//! secondaries apply those entries in order. They answer reads as long as the asking connection
//! has seen nothing newer; everything else is the primary's. An acknowledged write that no
//! secondary has yet is lost if the primary dies then.

use super::part::stream::Stream;
use super::{Controlet, Effects, Input, Mode, Outbox, Promise, Settings, Status, View, erase};
use crate::ids::{NodeId, Position};
use crate::keeper::{Done, Entry, Task};
use crate::operation::{Consistency, From, Op, Outcome, Request};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::{Malformed, Reader, Wire};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "ms+ec",
    about: "one primary answers after its own write; replicas follow and serve reads",
    promise: Promise::Convergent,
    role: |place, _| if place == 0 { "primary" } else { "secondary" },
    serves: |alive| alive.first().copied().unwrap_or(false),
    // Without failover the primary must live.
    tolerates: |_| 0,
    build: |view, settings| erase(MsEc::new(view, settings)),
};

/// A replica under `ms+ec`.
#[derive(Clone, Debug)]
pub struct MsEc {
    view: View,
    settings: Settings,
    /// The newest entry that the store was asked for: tasks after it see it.
    submitted: Position,
    /// The newest entry that the store has.
    applied: Position,
    lost: bool,
    /// As primary: what the secondaries lack, and how far each of them is.
    stream: Stream,
    followers: Vec<Follower>,
    waiters: Vec<Waiter>,
    /// Requests that wait until the stream has room.
    held: VecDeque<Request>,
    expire_at: Micros,
    /// Something to send at the end of the turn.
    dirty: bool,
}

#[derive(Clone, Debug)]
struct Follower {
    node: NodeId,
    sent: u64,
    acked: u64,
    /// When the entries on their way were sent, or some of them last acknowledged.
    progress_at: Micros,
    /// When it last acknowledged something new, or began to be behind.
    acked_at: Micros,
    cut: bool,
}

#[derive(Clone, Debug)]
struct Waiter {
    from: From,
    copies: usize,
    floor: Position,
    until: Micros,
}

/// What primary and secondaries say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Primary to secondary: encoded entries, gapless and in order.
    Entries(Bytes),
    /// Secondary to primary: everything up to here is in the store.
    Ack(Position),
    /// Primary to secondary: you are too far behind, the entries you lack are gone.
    Cut,
}

impl MsEc {
    /// A replica with an empty store.
    pub fn new(view: View, settings: Settings) -> MsEc {
        let secondaries = view.members.iter().skip(1);
        let followers = if view.members.first().is_some_and(|primary| primary.node == view.me) {
            secondaries.map(|member| Follower::new(member.node)).collect()
        } else {
            Vec::new()
        };
        // Empty, but of this epoch: later than all that was seen of a shard that lost its data.
        let empty = Position { epoch: view.epoch, sequence: 0 };
        MsEc {
            view,
            settings,
            submitted: empty,
            applied: empty,
            lost: false,
            stream: Stream::starting_at(1),
            followers,
            waiters: Vec::new(),
            held: VecDeque::new(),
            expire_at: 0,
            dirty: false,
        }
    }

    fn primary(&self) -> NodeId {
        self.view.members[0].node
    }

    fn is_primary(&self) -> bool {
        self.primary() == self.view.me
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Effects) {
        if !self.is_primary() {
            out.tasks.push(Task::Read(request));
        } else if let Op::Wait { copies, timeout_ms } = request.op {
            self.on_wait(now, &request, usize::from(copies), timeout_ms, out);
        } else if self.is_full() || !self.held.is_empty() {
            // Who sent it has a bounded window, so this list is bounded too.
            self.held.push_back(request);
        } else {
            out.tasks.push(Task::Evaluate(request, self.view.epoch));
        }
    }

    fn is_full(&self) -> bool {
        self.stream.bytes() > self.settings.stream_bytes_max
    }

    /// Lets held requests go on once there is room.
    fn release(&mut self, out: &mut Effects) {
        if !self.is_full() {
            let epoch = self.view.epoch;
            out.tasks.extend(self.held.drain(..).map(|request| Task::Evaluate(request, epoch)));
        }
    }

    fn on_stored(&mut self, now: Now, done: Done, out: &mut Effects) {
        match done {
            Done::Evaluated(request, outcome, entry) => {
                if let Some(entry) = entry {
                    self.on_ordered(now, &entry);
                }
                out.replies.push((request.from, outcome, self.applied));
            }
            Done::Expired(entry, more) => {
                if let Some(entry) = entry {
                    self.on_ordered(now, &entry);
                }
                self.expire_at = now.steady_us + if more { 0 } else { self.settings.expire_every_us };
            }
            Done::Read(request, Some(outcome)) => out.reads.push((request, outcome, self.applied)),
            // Whether a record is past its deadline is judged by one clock, the primary's.
            Done::Read(request, None) => out.forwards.push(request),
            Done::Applied(position) => {
                self.applied = position;
                self.dirty = true;
            }
            Done::Broken(request, failure) => {
                self.lost = true;
                if let Some(request) = request {
                    out.replies.push((request.from, Outcome::Failed(failure), self.applied));
                }
            }
        }
    }

    /// The primary's store has a new entry: the secondaries get it with the others of this turn.
    fn on_ordered(&mut self, now: Now, entry: &Entry) {
        self.submitted = entry.position;
        self.applied = entry.position;
        if self.followers.iter().all(|follower| follower.cut) {
            self.stream = Stream::starting_at(entry.position.sequence + 1);
            return;
        }
        for follower in &mut self.followers {
            if follower.sent == follower.acked {
                follower.progress_at = now.steady_us;
            }
            if follower.acked + 1 == entry.position.sequence {
                follower.acked_at = now.steady_us;
            }
        }
        self.stream.push(entry);
        self.dirty = true;
    }

    fn on_entries(&mut self, entries: Bytes, out: &mut Effects) {
        let mut reader = Reader::new(entries);
        // Also what we have already: the acknowledgement may have been lost.
        self.dirty = true;
        while !reader.is_empty() {
            let Ok(entry) = Entry::decode(&mut reader) else { return };
            if entry.position.epoch != self.view.epoch {
                return;
            }
            if entry.position.sequence > self.submitted.sequence + 1 {
                return; // A gap: the primary sends again what we do not acknowledge.
            }
            if entry.position.sequence == self.submitted.sequence + 1 {
                self.submitted = entry.position;
                out.tasks.push(Task::Apply(entry));
            }
        }
    }

    fn on_ack(&mut self, now: Now, from: NodeId, position: Position) {
        let Some(follower) = self.followers.iter_mut().find(|follower| follower.node == from) else { return };
        if position.sequence > follower.acked && position <= self.applied {
            follower.acked = position.sequence;
            follower.sent = follower.sent.max(position.sequence);
            follower.progress_at = now.steady_us;
            follower.acked_at = now.steady_us;
            self.dirty = true;
            self.trim();
        }
    }

    fn trim(&mut self) {
        let behind = self.followers.iter().filter(|follower| !follower.cut).map(|follower| follower.acked);
        self.stream.trim(behind.min().unwrap_or(self.applied.sequence));
    }

    fn on_wait(&mut self, now: Now, request: &Request, copies: usize, timeout_ms: u64, out: &mut Effects) {
        let is_full = self.waiters.len() >= self.settings.waiters_max;
        let patience = if is_full { 0 } else { millis(timeout_ms).min(self.settings.waiter_us) };
        let until = now.steady_us.saturating_add(patience).min(request.deadline_us);
        self.waiters.push(Waiter { from: request.from, copies, floor: request.floor, until });
        self.answer_waiters(now, out);
    }

    fn answer_waiters(&mut self, now: Now, out: &mut Effects) {
        let (followers, epoch) = (&self.followers, self.view.epoch);
        self.waiters.retain(|waiter| {
            // What was seen of a former epoch is lost if this one began empty: nobody has it.
            let lost = waiter.floor.epoch != epoch && waiter.floor != Position::ZERO;
            let has = |follower: &&Follower| follower.acked >= waiter.floor.sequence;
            let have = |follower: &&Follower| !lost && !follower.cut && has(follower);
            let copies = followers.iter().filter(have).count();
            let waits = copies < waiter.copies && now.steady_us < waiter.until;
            if !waits {
                out.replies.push((waiter.from, Outcome::Integer(copies as i64), waiter.floor));
            }
            waits
        });
    }

    /// The end of a turn, or a timer.
    fn on_wake(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.dirty = false;
        if !self.is_primary() {
            out.sends.push((self.primary(), Message::Ack(self.applied)));
            return;
        }
        self.answer_waiters(now, &mut out.effects);
        if now.steady_us >= self.expire_at {
            // Until the answer is there, no second one.
            self.expire_at = Micros::MAX;
            out.effects.tasks.push(Task::Expire(self.view.epoch, self.settings.expire_batch_max));
            // Said again and again: that they were cut off must reach them some day.
            let cut = self.followers.iter().filter(|follower| follower.cut);
            out.sends.extend(cut.map(|follower| (follower.node, Message::Cut)));
        }
        for follower in self.followers.iter_mut().filter(|follower| !follower.cut) {
            follower.send(now, &self.stream, &self.settings, out);
        }
        self.cut_off_the_silent(now, out);
        self.release(&mut out.effects);
    }

    /// Memory is bounded: who holds up a full stream and does not get on must be filled anew.
    fn cut_off_the_silent(&mut self, now: Now, out: &mut Outbox<Message>) {
        if !self.is_full() {
            return;
        }
        for follower in self.followers.iter_mut().filter(|follower| !follower.cut) {
            let behind = follower.acked + 1 < self.stream.next();
            if behind && now.steady_us >= follower.acked_at + self.settings.cut_after_us {
                follower.cut = true;
                out.sends.push((follower.node, Message::Cut));
            }
        }
        self.trim();
    }
}

impl Follower {
    fn new(node: NodeId) -> Follower {
        Follower { node, sent: 0, acked: 0, progress_at: 0, acked_at: 0, cut: false }
    }

    fn send(&mut self, now: Now, stream: &Stream, settings: &Settings, out: &mut Outbox<Message>) {
        if self.sent > self.acked && now.steady_us >= self.progress_at + settings.resend_us {
            self.sent = self.acked;
            self.progress_at = now.steady_us;
        }
        while stream.bytes_between(self.acked, self.sent) < settings.window_bytes_max {
            let Some((last, batch)) = stream.batch(self.sent + 1, settings.batch_bytes_max) else { return };
            self.sent = last;
            out.sends.push((self.node, Message::Entries(batch.into())));
        }
    }

    fn resend_at(&self, settings: &Settings) -> Option<Micros> {
        (self.sent > self.acked && !self.cut).then(|| self.progress_at + settings.resend_us)
    }
}

impl Controlet for MsEc {
    type Message = Message;

    fn takes(&self, request: &Request) -> bool {
        let reads = !request.op.is_write() && !matches!(request.op, Op::Wait { .. });
        let fresh = request.floor <= self.submitted || request.consistency == Consistency::Eventual;
        self.is_primary() || (reads && fresh && !self.lost)
    }

    fn step(&mut self, now: Now, input: Input<Message>, out: &mut Outbox<Message>) {
        match input {
            Input::Request(request) => self.on_request(now, request, &mut out.effects),
            Input::Stored(done) => self.on_stored(now, done, &mut out.effects),
            Input::Peer(from, Message::Entries(entries)) => {
                if from == self.primary() && !self.is_primary() && !self.lost {
                    self.on_entries(entries, &mut out.effects);
                }
            }
            Input::Peer(from, Message::Ack(position)) => self.on_ack(now, from, position),
            Input::Peer(from, Message::Cut) => self.lost |= from == self.primary() && !self.is_primary(),
            Input::Wake => self.on_wake(now, out),
        }
    }

    fn wake_at(&self) -> Option<Micros> {
        if self.dirty {
            return Some(0);
        }
        if !self.is_primary() {
            return None;
        }
        let resends = self.followers.iter().filter_map(|follower| follower.resend_at(&self.settings));
        let waits = self.waiters.iter().map(|waiter| waiter.until);
        let is_full = self.is_full();
        let silent = self.followers.iter().filter(|follower| is_full && !follower.cut);
        let cuts = silent.map(|follower| follower.acked_at + self.settings.cut_after_us);
        resends.chain(waits).chain(cuts).chain([self.expire_at]).min()
    }

    fn status(&self) -> Status {
        Status { position: self.applied, lost: self.lost }
    }
}

impl Wire for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Entries(entries) => {
                out.push(0);
                out.extend_from_slice(entries);
            }
            Message::Ack(position) => {
                out.push(1);
                position.encode(out);
            }
            Message::Cut => out.push(2),
        }
    }

    fn decode(from: &mut Reader) -> Result<Message, Malformed> {
        Ok(match from.byte()? {
            0 => Message::Entries(from.rest()),
            1 => Message::Ack(Position::decode(from)?),
            2 => Message::Cut,
            _ => return Err(Malformed("unknown ms+ec message")),
        })
    }
}
