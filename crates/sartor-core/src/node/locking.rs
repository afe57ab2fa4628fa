//! Locks of a service outside, where a mode wants them: a client's request gets the locks of its keys before anything else is
//! done about it, and gives them back with its answer. (TPDS 4.3)
//!
//! ```text
//!  client ──▶ line of its connection ── Acquire ──▶ etcd, Redlock
//!                      │◀────────────── Held ──────────┘
//!                      ▼ on its way; the next one of the line asks
//! ```
//!
//! Nothing rests on them: whoever believes that he holds one, what he writes gets its place in the one order of the shard, and
//! no replica does anything out of its place. A connection's requests go on in their order, so one waits for its locks at
//! a time, and who waits for an earlier one holds none: nobody waits in a circle.

use crate::ids::ShardId;
use crate::operation::{From, Request, SessionId};
use crate::random::mix;
use crate::time::{Micros, Now, millis};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;

/// What is asked of the lock service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LockCall {
    /// These names, for reading or for writing. Answered by `Held` or `Failed`.
    Acquire {
        /// To answer to, and to give them back.
        id: u64,
        /// The names.
        names: Vec<Bytes>,
        /// Whether nobody else may hold them.
        write: bool,
    },
    /// Gives back what this id holds; not answered. Also for an id that waits still: then it is forgotten.
    Release {
        /// See `Acquire`.
        id: u64,
    },
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockEvent {
    /// It holds them all.
    Held {
        /// See [`LockCall::Acquire`].
        id: u64,
    },
    /// Not within the time for waiting, or the service cannot be reached.
    Failed {
        /// See [`LockCall::Acquire`].
        id: u64,
    },
}

/// What goes on in order: requests of a connection to a shard.
type Line = (SessionId, ShardId);

/// Who waits for locks, and who holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locking {
    next: u64,
    look_at: Micros,
    /// Requests that wait; the first one of each line has asked for its locks.
    lines: BTreeMap<Line, VecDeque<Request>>,
    asked: BTreeMap<u64, Line>,
    /// On their way, until when at most.
    held: BTreeMap<(SessionId, u32, ShardId), (u64, Micros)>,
}

/// Requests after news of the lock service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Went {
    /// They go on, in order.
    pub on: Vec<Request>,
    /// They did not get their locks in time; nothing was done about them.
    pub refused: Vec<Request>,
}

/// So long after its deadline a request has been answered.
const AFTER_US: Micros = millis(1000);
const LOOK_EVERY_US: Micros = millis(100);
/// Of a longer key, only so much is part of the name.
const NAME_KEY_MAX: usize = 128;

impl Locking {
    /// Of a worker: ids are told apart by it.
    pub fn new(worker: u8) -> Locking {
        Locking { next: u64::from(worker) << 56, ..Locking::default() }
    }

    /// A request, of a mode with locks or not: given back if nothing holds it up.
    pub fn admit(&mut self, request: Request, locks: bool, calls: &mut Vec<LockCall>) -> Option<Request> {
        let From::Session { session, .. } = request.from else { return Some(request) };
        let line = (session, request.shard);
        if let Some(line) = self.lines.get_mut(&line) {
            line.push_back(request);
            return None;
        }
        if !locks || !self.ask(line, &request, calls) {
            return Some(request);
        }
        self.lines.insert(line, VecDeque::from([request]));
        None
    }

    /// Asks for the locks of the first one of a line, if it needs any.
    fn ask(&mut self, line: Line, request: &Request, calls: &mut Vec<LockCall>) -> bool {
        let mut names = Vec::new();
        request.op.each_key(&mut |key| names.push(name(line.1, key)));
        if names.is_empty() {
            return false;
        }
        names.sort_unstable();
        names.dedup();
        let (id, write) = (self.next, request.op.is_write());
        self.next += 1;
        self.asked.insert(id, line);
        calls.push(LockCall::Acquire { id, names, write });
        true
    }

    /// What became of a call: the requests that go on now, in order, and those that are refused.
    pub fn on_event(&mut self, now: Now, event: LockEvent, calls: &mut Vec<LockCall>) -> Went {
        let (LockEvent::Held { id } | LockEvent::Failed { id }) = event;
        let held = matches!(event, LockEvent::Held { .. });
        let Some(place) = self.asked.remove(&id) else {
            // Its connection is gone.
            calls.extend(held.then_some(LockCall::Release { id }));
            return Went::default();
        };
        let (mut went, mut line) = (Went::default(), self.lines.remove(&place).unwrap_or_default());
        if let Some(first) = line.pop_front() {
            match first.from {
                From::Session { session, tag } if held && first.deadline_us > now.steady_us => {
                    let until = first.deadline_us.saturating_add(AFTER_US);
                    self.held.insert((session, tag, first.shard), (id, until));
                    went.on.push(first);
                }
                _ => {
                    calls.extend(held.then_some(LockCall::Release { id }));
                    went.refused.push(first);
                }
            }
        }
        self.go_on(now, place, line, &mut went, calls);
        went
    }

    /// The next ones of a line: the first that needs locks asks for them.
    fn go_on(
        &mut self,
        now: Now,
        place: Line,
        mut line: VecDeque<Request>,
        went: &mut Went,
        calls: &mut Vec<LockCall>,
    ) {
        while let Some(next) = line.pop_front() {
            if next.deadline_us <= now.steady_us {
                went.refused.push(next);
            } else if self.ask(place, &next, calls) {
                line.push_front(next);
                self.lines.insert(place, line);
                return;
            } else {
                went.on.push(next);
            }
        }
    }

    /// A request has its answer.
    pub fn on_answer(&mut self, session: SessionId, tag: u32, shard: ShardId, calls: &mut Vec<LockCall>) {
        if let Some((id, _)) = self.held.remove(&(session, tag, shard)) {
            calls.push(LockCall::Release { id });
        }
    }

    /// A connection is gone: what it waits for is not done; what is on its way keeps its locks.
    pub fn close(&mut self, session: SessionId, calls: &mut Vec<LockCall>) {
        self.lines.retain(|(of, ..), _| *of != session);
        self.asked.retain(|id, (of, ..)| {
            if *of == session {
                calls.push(LockCall::Release { id: *id });
            }
            *of != session
        });
    }

    /// Whether there is anything.
    pub fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.held.is_empty()
    }

    /// When it wants to look at what waits.
    pub fn wake_at(&self) -> Option<Micros> {
        (!self.is_idle()).then_some(self.look_at)
    }

    /// Gives back what nobody answers for any more, and refuses what has waited until it is too late.
    pub fn sweep(&mut self, now: Now, calls: &mut Vec<LockCall>) -> Went {
        let mut went = Went::default();
        if now.steady_us < self.look_at {
            return went;
        }
        self.look_at = now.steady_us + LOOK_EVERY_US;
        self.held.retain(|_, (id, until)| {
            let over = *until <= now.steady_us;
            calls.extend(over.then_some(LockCall::Release { id: *id }));
            !over
        });
        let late = |line: &VecDeque<Request>| line.front().is_some_and(|r| r.deadline_us <= now.steady_us);
        let places: Vec<Line> =
            self.lines.iter().filter(|(_, line)| late(line)).map(|(place, _)| *place).collect();
        self.asked.retain(|id, place| {
            let gone = places.contains(place);
            calls.extend(gone.then_some(LockCall::Release { id: *id }));
            !gone
        });
        for place in places {
            let line = self.lines.remove(&place).unwrap_or_default();
            self.go_on(now, place, line, &mut went, calls);
        }
        went
    }
}

/// What a key's lock is called.
fn name(shard: ShardId, key: &[u8]) -> Bytes {
    let mut name = shard.0.to_be_bytes().to_vec();
    let (begin, rest) = key.split_at(key.len().min(NAME_KEY_MAX));
    name.extend_from_slice(begin);
    if !rest.is_empty() {
        // Two such keys may have one name: they exclude each other for nothing.
        let sum = rest.iter().fold(key.len() as u64, |sum, byte| mix(sum ^ u64::from(*byte)));
        name.extend_from_slice(&sum.to_be_bytes());
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Position;
    use crate::operation::{Action, Consistency, Op};
    use alloc::vec;

    const NOW: Now = Now { steady_us: 0, unix_ms: 0 };
    const LATE: Now = Now { steady_us: millis(2000), unix_ms: 0 };

    fn request(session: u32, tag: u32, op: Op) -> Request {
        let session = SessionId { index: session, generation: 1 };
        let (floor, consistency) = (Position::ZERO, Consistency::Mode);
        let (from, shard) = (From::Session { session, tag }, ShardId(1));
        Request { from, shard, op, floor, consistency, deadline_us: millis(100) }
    }

    fn get(key: &'static str) -> Op {
        Op::Key(Bytes::from_static(key.as_bytes()), Action::Get)
    }

    #[test]
    fn requests_of_a_connection_go_on_in_order() {
        let (mut locking, mut calls) = (Locking::new(2), Vec::new());
        let (first, second, third) =
            (request(0, 1, get("a")), request(0, 2, Op::Len), request(0, 3, get("b")));
        assert_eq!(locking.admit(request(0, 0, Op::Len), true, &mut calls), Some(request(0, 0, Op::Len)));
        for request in [&first, &second, &third] {
            assert_eq!(locking.admit(request.clone(), true, &mut calls), None);
        }
        let id = 2 << 56;
        let names = |key: &'static [u8]| vec![Bytes::from_static(key)];
        assert_eq!(calls, [LockCall::Acquire { id, names: names(b"\0\x01a"), write: false }]);
        calls.clear();
        let went = locking.on_event(NOW, LockEvent::Held { id }, &mut calls);
        assert_eq!(went, Went { on: vec![first, second], refused: vec![] });
        let next = LockCall::Acquire { id: id + 1, names: names(b"\0\x01b"), write: false };
        assert_eq!(calls, [next]);
        let went = locking.on_event(NOW, LockEvent::Failed { id: id + 1 }, &mut calls);
        assert_eq!(went, Went { on: vec![], refused: vec![third] });
        calls.clear();
        let session = SessionId { index: 0, generation: 1 };
        locking.on_answer(session, 1, ShardId(1), &mut calls);
        locking.on_answer(session, 3, ShardId(1), &mut calls);
        assert_eq!(calls, [LockCall::Release { id }]);
        assert!(locking.is_idle());
    }

    #[test]
    fn who_is_gone_holds_nothing() {
        let (mut locking, mut calls) = (Locking::new(0), Vec::new());
        locking.admit(request(0, 0, get("a")), true, &mut calls);
        locking.admit(request(1, 0, get("b")), true, &mut calls);
        calls.clear();
        locking.close(SessionId { index: 0, generation: 1 }, &mut calls);
        assert_eq!(locking.on_event(NOW, LockEvent::Held { id: 0 }, &mut calls), Went::default());
        assert_eq!(calls, [LockCall::Release { id: 0 }, LockCall::Release { id: 0 }]);
        assert_eq!(locking.on_event(NOW, LockEvent::Held { id: 1 }, &mut calls).on.len(), 1);
        calls.clear();
        locking.sweep(LATE, &mut calls);
        assert_eq!(calls, [LockCall::Release { id: 1 }]);
    }

    #[test]
    fn who_waits_too_long_is_refused() {
        let (mut locking, mut calls) = (Locking::new(0), Vec::new());
        for tag in 0..3 {
            let deadline_us = millis(100 + 2900 * u64::from(tag / 2));
            locking.admit(Request { deadline_us, ..request(0, tag, get("a")) }, true, &mut calls);
        }
        assert_eq!(locking.sweep(NOW, &mut calls), Went::default());
        calls.clear();
        let went = locking.sweep(LATE, &mut calls);
        assert_eq!((went.on.len(), went.refused.len()), (0, 2));
        assert_eq!(calls[0], LockCall::Release { id: 0 });
        assert!(matches!(calls[1..], [LockCall::Acquire { id: 1, .. }]), "the last one asks");
        let went = locking.on_event(LATE, LockEvent::Held { id: 1 }, &mut calls);
        assert_eq!((went.on.len(), went.refused.len()), (1, 0));
    }

    #[test]
    fn long_keys_have_short_names() {
        let long = |last: u8| name(ShardId(1), &[&[7; 1 << 20][..], &[last]].concat());
        assert_eq!(long(1).len(), 2 + NAME_KEY_MAX + 8);
        assert_ne!(long(1), long(2));
    }
}
