//! `ms+sc`: chain replication. (TPDS 4.1; reads at every replica as in CRAQ)
//!
//! ```text
//!  client ──1──▶ head ──2──▶ middle ──2──▶ tail         1 request   2 entries, in order, in batches
//!         ◀──4──  ▲             ▲◀────3──────┤          3 everything up to here is at the tail
//!                 └──────────────────3───────┘          4 answer
//! ```
//!
//! The head decides every operation against its own newest state and numbers what changed. Each replica applies in
//! sequence, then passes on; so what the tail has, all have, and that is what an answer waits for. Every replica keeps what
//! the tail has not acknowledged: when another one dies, its neighbours go on from there.
//!
//! Every replica answers reads. An answer that tells of entries in flight waits until the tail has them: then it is the
//! newest committed state at that moment. An answer leaves only while all other members have promised not to
//! be in another view (`part/lease.rs`), judged by a clock that was read after the store was.

use super::part::marks::Marks;
use super::part::message::Message;
use super::part::orders::Orders;
use super::part::replica::Topology;
use super::{Controlet, Effects, Input, Mode, Outbox, Promise, Settings, Status, Succession, View, erase};
use crate::entry::Entry;
use crate::keeper::{Done, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, From, Op, Outcome, Request};
use crate::time::{Micros, Now};

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "ms+sc",
    about: "chain replication: all replicas have a write before it is acknowledged; every replica serves reads",
    promise: Promise::Linearizable,
    role: |place, count| match place {
        0 => "head",
        _ if place + 1 == count => "tail",
        _ => "middle",
    },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::Next,
    build: |now, view, settings| erase(MsSc::new(now, view, settings)),
};

/// A replica under `ms+sc`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MsSc {
    orders: Orders,
    /// Which keys have writes in flight.
    marks: Marks,
}

impl MsSc {
    /// A replica with an empty store.
    pub fn new(now: Now, view: View, settings: Settings) -> MsSc {
        let marks = Marks::new(settings.mark_buckets);
        MsSc { orders: Orders::new(now, Topology::Chain, view, settings), marks }
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Effects) {
        let is_wait = matches!(request.op, Op::Wait { .. });
        // What another worker passed on, it could not answer itself: who orders must judge.
        let is_lax = request.consistency == Consistency::Eventual
            && !request.op.is_write()
            && !is_wait
            && matches!(request.from, From::Session { .. });
        if !self.orders.is_head() || is_lax {
            out.tasks.push(Task::Read(request));
        } else if is_wait {
            // What the connection was told of is at all members.
            let copies = self.orders.replica.view.members.len() as i64 - 1;
            let at = self.orders.replica.applied;
            self.orders.answer(now, request, Outcome::Integer(copies), at, 0);
        } else {
            self.orders.on_request(now, request, out);
        }
    }

    fn on_stored(&mut self, now: Now, done: Done, out: &mut Effects) {
        let marks = &mut self.marks;
        let note = |entry: &Entry| marks.note(entry.position.sequence, &entry.writes);
        match self.orders.on_stored(now, done, out, note) {
            Some(Done::Evaluated(request, outcome, entry)) => {
                // What wrote nothing tells of all that it has read.
                let needs = match &entry {
                    Some(entry) => {
                        // Where nobody else is to have it, it is in flight no longer than this call.
                        if !self.orders.replica.is_end() {
                            self.marks.note(entry.position.sequence, &entry.writes);
                        }
                        entry.position.sequence
                    }
                    None => self.marks.seen_by(&request.op, self.orders.replica.settled().sequence),
                };
                self.orders.on_decided(now, request, outcome, entry, needs);
            }
            Some(Done::Read(request, Some(outcome)))
                if request.consistency == Consistency::Eventual || planted(Fault::ReadUncommitted) =>
            {
                out.reads.push((request, outcome, self.orders.replica.applied));
            }
            Some(Done::Read(request, Some(outcome))) => {
                let needs = self.marks.seen_by(&request.op, self.orders.replica.settled().sequence);
                self.orders.answer(now, request, outcome, self.orders.replica.applied, needs);
            }
            _ => {}
        }
    }
}

impl Controlet for MsSc {
    type Message = Message;

    fn takes(&self, request: &Request) -> bool {
        let replica = &self.orders.replica;
        let reads = !request.op.is_write() && !matches!(request.op, Op::Wait { .. });
        let fresh = replica.is_level() || request.consistency == Consistency::Eventual;
        self.orders.is_head() || (reads && fresh && replica.view.is_member() && !replica.is_lost())
    }

    fn step(&mut self, now: Now, input: Input<Message>, out: &mut Outbox<Message>) {
        match input {
            Input::Request(request) => self.on_request(now, request, &mut out.effects),
            Input::Stored(done) => self.on_stored(now, done, &mut out.effects),
            Input::Peer(from, message) => {
                if matches!(&message, Message::Page(page) if page.number == 1) {
                    // The history begins anew here, perhaps another one. What comes before this replica is a member
                    // is at all members already.
                    self.marks = Marks::new(self.orders.replica.settings.mark_buckets);
                }
                let marks = &mut self.marks;
                let note = |entry: &Entry| {
                    if !planted(Fault::MarksForgotten) {
                        marks.note(entry.position.sequence, &entry.writes);
                    }
                };
                self.orders.on_peer(now, from, message, &mut out.effects, note);
            }
            Input::Left(member) => self.orders.replica.on_left(now, member),
            Input::View(view) => self.orders.on_view(now, view, &mut out.effects),
            Input::Full(full) => self.orders.replica.set_full(full),
            Input::Wake => self.orders.on_wake(now, out),
        }
    }

    fn wake_at(&self) -> Option<Micros> {
        self.orders.wake_at()
    }

    fn status(&self) -> Status {
        self.orders.replica.status()
    }
}
