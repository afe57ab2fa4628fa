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
//! has seen nothing newer; everything else is the primary's.
//!
//! An acknowledged write that no secondary has yet is lost if the primary dies then; nothing else is, because the
//! primary acknowledges only under the promises of all members (`part/lease.rs`). After its death the most
//! advanced secondary becomes primary; if another one turns out to know more, it tells the new primary before
//! that one orders anything. So there is one history, and every replica holds a beginning of it.

use super::part::message::Message;
use super::part::orders::Orders;
use super::part::replica::Topology;
use super::{Controlet, Effects, Input, Mode, Outbox, Promise, Settings, Status, Succession, View, erase};
use crate::ids::Position;
use crate::keeper::{Done, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, From, Op, Outcome, Request};
use crate::time::{Micros, Now, millis};
use alloc::vec::Vec;

/// The entry of the registry.
pub const MODE: Mode = Mode {
    name: "ms+ec",
    about: "one primary answers after its own write; replicas follow and serve reads",
    promise: Promise::Convergent,
    role: |place, _| if place == 0 { "primary" } else { "secondary" },
    serves: |alive| alive.iter().all(|alive| *alive),
    tolerates: |alive| alive.iter().filter(|alive| **alive).count().saturating_sub(1),
    succession: Succession::MostAdvanced,
    build: |now, view, settings| erase(MsEc::new(now, view, settings)),
};

/// A replica under `ms+ec`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MsEc {
    orders: Orders,
    waiters: Vec<Waiter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    from: From,
    copies: usize,
    floor: Position,
    until: Micros,
}

impl MsEc {
    /// A replica with an empty store.
    pub fn new(now: Now, view: View, settings: Settings) -> MsEc {
        MsEc { orders: Orders::new(now, Topology::Star, view, settings), waiters: Vec::new() }
    }

    fn on_view(&mut self, now: Now, view: View, out: &mut Effects) {
        self.orders.on_view(now, view, out);
        if !self.orders.is_head() {
            // They are asked again where they came from.
            let none = |waiter: Waiter| (waiter.from, Outcome::Integer(0), waiter.floor);
            out.replies.extend(self.waiters.drain(..).map(none));
        }
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Effects) {
        if !self.orders.is_head() {
            out.tasks.push(Task::Read(request));
        } else if let Op::Wait { copies, timeout_ms } = request.op {
            self.on_wait(now, &request, usize::from(copies), timeout_ms, out);
        } else {
            self.orders.on_request(now, request, out);
        }
    }

    fn on_stored(&mut self, now: Now, done: Done, out: &mut Effects) {
        match self.orders.on_stored(now, done, out, |_| {}) {
            Some(Done::Evaluated(request, outcome, entry)) => {
                self.orders.on_decided(now, request, outcome, entry, 0);
            }
            Some(Done::Read(request, Some(outcome))) => {
                out.reads.push((request, outcome, self.orders.replica.applied));
            }
            _ => {}
        }
    }

    fn on_wait(&mut self, now: Now, request: &Request, copies: usize, timeout_ms: u64, out: &mut Effects) {
        let settings = &self.orders.replica.settings;
        let is_full = self.waiters.len() >= settings.waiters_max;
        let patience = if is_full { 0 } else { millis(timeout_ms).min(settings.waiter_us) };
        let until = now.steady_us.saturating_add(patience).min(request.deadline_us);
        self.waiters.push(Waiter { from: request.from, copies, floor: request.floor, until });
        self.answer_waiters(now, out);
    }

    fn answer_waiters(&mut self, now: Now, out: &mut Effects) {
        let replica = &self.orders.replica;
        self.waiters.retain(|waiter| {
            let copies = replica.copies_of(waiter.floor);
            let waits = copies < waiter.copies && now.steady_us < waiter.until;
            if !waits {
                out.replies.push((waiter.from, Outcome::Integer(copies as i64), waiter.floor));
            }
            waits
        });
    }

    fn on_wake(&mut self, now: Now, out: &mut Outbox<Message>) {
        self.answer_waiters(now, &mut out.effects);
        self.orders.on_wake(now, out);
    }
}

impl Controlet for MsEc {
    type Message = Message;

    fn takes(&self, request: &Request) -> bool {
        let replica = &self.orders.replica;
        let reads = !request.op.is_write() && !matches!(request.op, Op::Wait { .. });
        let fresh = request.floor <= replica.submitted
            || request.consistency == Consistency::Eventual
            || planted(Fault::ForgetFloor);
        self.orders.is_head() || (reads && fresh && replica.view.is_member() && !replica.is_lost())
    }

    fn step(&mut self, now: Now, input: Input<Message>, out: &mut Outbox<Message>) {
        match input {
            Input::Request(request) => self.on_request(now, request, &mut out.effects),
            Input::Stored(done) => self.on_stored(now, done, &mut out.effects),
            Input::Peer(from, message) => self.orders.on_peer(now, from, message, &mut out.effects, |_| {}),
            Input::Left(member) => self.orders.replica.on_left(now, member),
            Input::View(view) => self.on_view(now, view, &mut out.effects),
            Input::Full(full) => self.orders.replica.set_full(full),
            Input::Wake => self.on_wake(now, out),
        }
    }

    fn wake_at(&self) -> Option<Micros> {
        let waits = self.waiters.iter().map(|waiter| waiter.until);
        self.orders.wake_at().into_iter().chain(waits).min()
    }

    fn status(&self) -> Status {
        self.orders.replica.status()
    }
}
