//! The controlet of all built-in modes: a replica of a shard in which one orders.
//!
//! ```text
//!  ms+sc   head ──▶ middle ──▶ tail     answers wait for the tail
//!  ms+ec   primary ──▶ secondaries      answers leave at once
//!  aa+sc   first ──▶ others             operations; who was asked answers, once all have it
//!  aa+ec   sequencer ──▶ others         operations; who was asked answers, once two have it
//!  aa+ec-log  the same                  once a log outside has it
//! ```
//!
//! In all of them every replica answers reads.
//!
//! A view says which mode's rules it has (`rules.rs`). Where another mode follows, it is a view like any other: nobody serves in
//! it before all members promise to be in it, and have all that any of them had; what they held back, they take then.
//! (TPDS 5: there old and new controlets run side by side; here one goes on.)

use super::part::message::Message;
use super::part::once::Names;
use super::part::orders::Orders;
use super::{AnyControlet, Controlet, Effects, Input, Outbox, Settings, Status, View, erase};
use crate::ids::Position;
use crate::keeper::{Done, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, Failure, FailureKind, From, Op, Outcome, Request};
use crate::time::{Micros, Now, millis};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replicated {
    orders: Orders,
    waiters: Vec<Waiter>,
    /// Answers to reads that need not see the newest state, in order, until the end of the turn.
    /// Without an answer where it is the head's to give.
    lax: Vec<(Request, Option<(Outcome, Position)>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    from: From,
    copies: usize,
    floor: Position,
    until: Micros,
}

/// A replica with an empty store. Modes are told apart by where this is, so it is in one place.
#[inline(never)]
pub fn build(now: Now, view: View, settings: Settings) -> Box<dyn AnyControlet> {
    let orders = Orders::new(now, view, settings);
    erase(Replicated { orders, waiters: Vec::new(), lax: Vec::new() })
}

impl Replicated {
    fn is_strong(&self) -> bool {
        self.orders.replica.view.rules.is_strong()
    }

    fn on_view(&mut self, now: Now, view: View, out: &mut Effects) {
        let was_strong = self.is_strong();
        self.orders.on_view(now, view, out);
        if was_strong && !self.is_strong() {
            let refused = self.orders.take_strong().into_iter();
            out.replies.extend(refused.map(|request| (request.from, weaker(), Position::ZERO)));
        }
        if self.is_strong() != was_strong || !self.orders.replica.view.is_member() {
            out.forwards.extend(self.lax.drain(..).map(|(request, ..)| request));
        }
        if !self.orders.is_head() {
            // They are asked again where they came from.
            let none = |waiter: Waiter| (waiter.from, Outcome::Integer(0), waiter.floor);
            out.replies.extend(self.waiters.drain(..).map(none));
        }
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Effects) {
        let is_wait = matches!(request.op, Op::Wait { .. });
        let reads = !request.op.is_write() && !is_wait;
        // Writes of the same connection may be held here: only who does not want to see them goes past them. What another
        // worker passed on, it could not answer itself: who orders must judge.
        let is_lax = request.consistency == Consistency::Eventual && reads && is_of_session(&request);
        if request.consistency == Consistency::Strong && !self.is_strong() && reads {
            out.replies.push((request.from, weaker(), Position::ZERO));
        } else if is_lax && !self.orders.replica.view.has(&request.op) {
            out.forwards.push(request);
        } else if !self.orders.is_head() || is_lax {
            out.tasks.push(Task::Read(request));
        } else if is_wait {
            self.on_wait(now, request, out);
        } else {
            self.orders.on_request(now, request, out);
        }
    }

    fn on_stored(&mut self, now: Now, done: Done, out: &mut Effects) {
        match self.orders.on_stored(now, done, out) {
            Some(Done::Evaluated(request, outcome, entry)) => {
                let needs = match &entry {
                    Some(entry) => entry.position.sequence,
                    None => self.orders.replica.seen_by(&request.op),
                };
                self.orders.on_decided(now, request, outcome, entry, needs);
            }
            Some(Done::Read(request, Some(outcome))) => self.on_read(now, request, outcome, out),
            // It finds its way in the order of its connection.
            Some(Done::Read(request, None)) if !self.is_strong() => self.lax.push((request, None)),
            Some(Done::Read(request, None)) => out.forwards.push(request),
            _ => {}
        }
    }

    fn on_read(&mut self, now: Now, request: Request, outcome: Outcome, out: &mut Effects) {
        let replica = &self.orders.replica;
        match request.consistency {
            Consistency::Eventual => out.reads.push((request, outcome, replica.applied)),
            Consistency::Bounded(us) if !replica.is_fresh(now, us) => self.lax.push((request, None)),
            // An earlier one of its connection may turn out to be the head's.
            Consistency::Causal | Consistency::Bounded(_) => {
                self.lax.push((request, Some((outcome, replica.applied))));
            }
            Consistency::Strong if !self.is_strong() => {
                out.replies.push((request.from, weaker(), Position::ZERO));
            }
            Consistency::Mode if !self.is_strong() => {
                self.lax.push((request, Some((outcome, replica.applied))));
            }
            _ if planted(Fault::ReadUncommitted) => out.reads.push((request, outcome, replica.applied)),
            Consistency::Mode | Consistency::Strong => {
                let (needs, at) = (self.orders.replica.seen_by(&request.op), replica.applied);
                self.orders.answer(now, request, outcome, at, needs);
            }
        }
    }

    fn on_wait(&mut self, now: Now, request: Request, out: &mut Effects) {
        let Op::Wait { copies, timeout_ms } = request.op else { return };
        let replica = &self.orders.replica;
        if self.is_strong() {
            // What the connection was told of is at all members, or will be.
            let (copies, at) = (replica.view.members.len() as i64 - 1, replica.applied);
            let needs = if replica.contains(request.floor) { request.floor.sequence } else { 0 };
            return self.orders.answer(now, request, Outcome::Integer(copies), at, needs);
        }
        let is_full = self.waiters.len() >= replica.settings.waiters_max;
        let patience = if is_full { 0 } else { millis(timeout_ms).min(replica.settings.waiter_us) };
        let until = now.steady_us.saturating_add(patience).min(request.deadline_us);
        let copies = usize::from(copies);
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

    /// A member that hears nothing of the others for long may have been removed, and the shard be in a mode in which reads see
    /// more.
    fn let_reads_go(&mut self, now: Now, out: &mut Effects) {
        if self.lax.is_empty() {
            return;
        }
        let may = !self.is_strong() && self.orders.replica.may_read(now);
        let mut turned: Vec<From> = Vec::new();
        for (request, answer) in self.lax.drain(..) {
            let turns = !may && request.consistency == Consistency::Mode;
            let follows = turned.iter().any(|from| is_same_connection(*from, request.from));
            match answer.filter(|_| !turns && !follows) {
                Some((outcome, at)) => out.reads.push((request, outcome, at)),
                None => {
                    turned.push(request.from);
                    out.forwards.push(request);
                }
            }
        }
    }
}

/// Whether a client of this worker asked.
fn is_of_session(request: &Request) -> bool {
    matches!(request.from, From::Session { .. })
}

fn is_same_connection(one: From, other: From) -> bool {
    matches!((one, other), (From::Session { session: a, .. }, From::Session { session: b, .. }) if a == b)
}

/// What is answered where the mode does not know the newest state.
fn weaker() -> Outcome {
    let text = "this table's mode cannot answer strongly; ask for less, or see: sartor switch";
    Failure::outcome(FailureKind::Unsupported, text)
}

impl Controlet for Replicated {
    type Message = Message;

    fn takes(&self, request: &Request) -> bool {
        let replica = &self.orders.replica;
        let reads = !request.op.is_write() && !matches!(request.op, Op::Wait { .. });
        let fresh = match request.consistency {
            Consistency::Eventual => true,
            Consistency::Mode | Consistency::Strong if self.is_strong() => replica.is_level(),
            // It will be refused.
            Consistency::Strong => true,
            _ => request.floor <= replica.submitted || planted(Fault::ForgetFloor),
        };
        let serves = replica.view.is_member() && !replica.is_lost();
        (self.orders.is_head() || (reads && serves && fresh)) && replica.view.has(&request.op)
    }

    fn step(&mut self, now: Now, input: Input<Message>, out: &mut Outbox<Message>) {
        match input {
            Input::Request(request) => self.on_request(now, request, &mut out.effects),
            Input::Stored(done) => self.on_stored(now, done, &mut out.effects),
            Input::Peer(from, message) => self.orders.on_peer(now, from, message, &mut out.effects),
            Input::Left(member) => self.orders.replica.on_left(now, member),
            Input::View(view) => self.on_view(now, view, &mut out.effects),
            Input::Full(full) => self.orders.replica.set_full(full),
            Input::Log(number, event) => {
                self.orders.replica.on_log(now, (number, event), &mut out.effects);
            }
            Input::Wake => {
                self.let_reads_go(now, &mut out.effects);
                self.answer_waiters(now, &mut out.effects);
                self.orders.on_wake(now, out);
            }
        }
    }

    fn wake_at(&self) -> Option<Micros> {
        let waits = self.waiters.iter().map(|waiter| waiter.until);
        let lax = (!self.lax.is_empty()).then_some(0);
        self.orders.wake_at().into_iter().chain(waits).chain(lax).min()
    }

    fn status(&self) -> Status {
        self.orders.replica.status()
    }

    fn names(&self) -> Names {
        self.orders.replica.names.clone()
    }

    fn inherit(&mut self, names: Names) {
        self.orders.replica.names.merge(names);
    }
}
