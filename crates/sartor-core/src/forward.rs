//! Requests on their way to a shard's head: in order, each at most once.
//!
//! ```text
//!  origin: Line                                   head: Inbound
//!  #5 #6 #7 pending ── Forwards [5..=7] ──────▶   next = 5: takes 5, 6, 7 in order
//!  settles 5, 6     ◀─ Answers 5, 6 ───────────   keeps 5, 6 until the origin says it has them
//!                   ── Forwards [8..=9], base 7 ▶ forgets 5, 6
//! ```
//!
//! Frames may be lost, repeated and reordered. The origin sends again what stays unanswered; the
//! head takes a number once and answers a repeated one from memory. Numbers missing in a frame's
//! range are settled at the origin: answered, or given up.

use crate::ids::{Incarnation, Position};
use crate::operation::{Consistency, Failure, FailureKind, Op, Outcome, Request};
use crate::time::{Micros, Now, millis};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Requests of one origin for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwards {
    /// Everything below is settled.
    pub base: u64,
    /// The first number that this message covers.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Those of them that are not settled.
    pub requests: Vec<Forwarded>,
}

/// A request under its origin's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The number.
    pub sequence: u64,
    /// What to do.
    pub op: Op,
    /// What the connection has seen.
    pub floor: Position,
    /// How fresh a read must be.
    pub consistency: Consistency,
    /// For how long the origin will wait.
    pub left_us: Micros,
}

/// What became of some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The life of the origin that asked.
    pub incarnation: Incarnation,
    /// The answers.
    pub answers: Vec<Answer>,
}

/// What became of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The origin's number.
    pub sequence: u64,
    /// The answer.
    pub outcome: Outcome,
    /// The place in the shard's history at which it was true.
    pub position: Position,
}

/// Times and bounds of forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardSettings {
    /// Sent again when unanswered for so long, then twice as long, up to ten times.
    pub resend_us: Micros,
    /// Requests that one worker may have on their way to one shard.
    pub pending_max: usize,
    /// Their bytes.
    pub pending_bytes_max: usize,
    /// Bytes in one message.
    pub batch_bytes_max: usize,
    /// Requests in one message: the head runs them as one batch, and a few bytes can ask for much.
    pub batch_requests_max: usize,
    /// Bytes of answers kept for one origin; the oldest are forgotten beyond that.
    pub answers_bytes_max: usize,
}

impl Default for ForwardSettings {
    fn default() -> Self {
        ForwardSettings {
            resend_us: millis(200),
            pending_max: 65_536,
            pending_bytes_max: 64 << 20,
            batch_bytes_max: 1 << 20,
            batch_requests_max: 64,
            answers_bytes_max: 64 << 20,
        }
    }
}

/// The origin's side: one worker's requests to one shard.
#[derive(Debug)]
pub struct Line {
    settings: ForwardSettings,
    /// Gapless numbers; settled ones are empty until they leave at the front.
    pending: VecDeque<Pending>,
    next: u64,
    /// Everything from this number on waits to be sent.
    unsent: u64,
    bytes: usize,
    resend_at: Micros,
    resend_us: Micros,
    /// No request's deadline is before this.
    earliest: Micros,
}

#[derive(Debug)]
struct Pending {
    request: Option<Request>,
    sent: bool,
}

impl Line {
    /// A line without requests.
    pub fn new(settings: ForwardSettings) -> Line {
        let resend_us = settings.resend_us;
        Line {
            settings,
            pending: VecDeque::new(),
            next: 1,
            unsent: 1,
            bytes: 0,
            resend_at: 0,
            resend_us,
            earliest: Micros::MAX,
        }
    }

    fn base(&self) -> u64 {
        self.next - self.pending.len() as u64
    }

    /// Takes a request to be sent at the end of the turn, or gives it back when full.
    pub fn push(&mut self, request: Request) -> Result<(), Request> {
        let size = request.op.size();
        let full = self.pending.len() >= self.settings.pending_max
            || (self.bytes > 0 && self.bytes + size > self.settings.pending_bytes_max);
        if full {
            return Err(request);
        }
        self.bytes += size;
        self.earliest = self.earliest.min(request.deadline_us);
        self.pending.push_back(Pending { request: Some(request), sent: false });
        self.next += 1;
        Ok(())
    }

    /// The next message, while there is something to send.
    pub fn flush(&mut self, now: Now) -> Option<Forwards> {
        if self.unsent >= self.next {
            return None;
        }
        if self.unsent == self.base() {
            self.resend_at = now.steady_us + self.resend_us;
        }
        let (base, first) = (self.base(), self.unsent);
        let (mut requests, mut bytes) = (Vec::new(), 0);
        while self.unsent < self.next
            && bytes < self.settings.batch_bytes_max
            && requests.len() < self.settings.batch_requests_max
        {
            let pending = &mut self.pending[(self.unsent - base) as usize];
            if let Some(request) = &pending.request {
                pending.sent = true;
                bytes += 64 + request.op.size();
                requests.push(Forwarded {
                    sequence: self.unsent,
                    op: request.op.clone(),
                    floor: request.floor,
                    consistency: request.consistency,
                    left_us: request.deadline_us.saturating_sub(now.steady_us),
                });
            }
            self.unsent += 1;
        }
        Some(Forwards { base, first, last: self.unsent - 1, requests })
    }

    /// An answer came: the request it belongs to, unless it was settled before.
    pub fn settle(&mut self, now: Now, sequence: u64) -> Option<Request> {
        let index = usize::try_from(sequence.checked_sub(self.base())?).ok()?;
        let request = self.pending.get_mut(index)?.request.take()?;
        self.bytes -= request.op.size();
        let base = self.base();
        self.drop_settled();
        // Only answers to the oldest are progress: another one's may have been lost.
        if self.base() > base {
            self.resend_us = self.settings.resend_us;
            self.resend_at = now.steady_us + self.resend_us;
        }
        Some(request)
    }

    fn drop_settled(&mut self) {
        while self.pending.front().is_some_and(|pending| pending.request.is_none()) {
            self.pending.pop_front();
        }
        self.unsent = self.unsent.max(self.base());
    }

    /// When [`Line::tick`] wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        match self.unsent < self.next {
            true => Some(0),
            false if self.pending.is_empty() => None,
            false => Some(self.resend_at.min(self.earliest)),
        }
    }

    /// Sends again what is unanswered for too long, and gives up what is past its deadline: those
    /// requests, and whether the head may have seen them.
    pub fn tick(&mut self, now: Now) -> Vec<(Request, bool)> {
        let resends = self.unsent >= self.next && now.steady_us >= self.resend_at;
        if self.pending.is_empty() || !(resends || now.steady_us >= self.earliest) {
            return Vec::new();
        }
        let mut given_up = Vec::new();
        for pending in &mut self.pending {
            if pending.request.as_ref().is_some_and(|request| request.deadline_us <= now.steady_us) {
                given_up.extend(pending.request.take().map(|request| (request, pending.sent)));
            }
        }
        self.bytes -= given_up.iter().map(|(request, _)| request.op.size()).sum::<usize>();
        self.drop_settled();
        let deadlines = self.pending.iter().filter_map(|pending| pending.request.as_ref());
        self.earliest = deadlines.map(|request| request.deadline_us).min().unwrap_or(Micros::MAX);
        if !resends {
            return given_up;
        }
        self.unsent = self.base();
        self.resend_us = (self.resend_us * 2).min(self.settings.resend_us * 10);
        self.resend_at = now.steady_us + self.resend_us;
        given_up
    }

    /// The shard has new members that know nothing of us: numbers begin anew. What the old head may
    /// have seen is handed out; the rest goes to the new one.
    pub fn restart(&mut self) -> Vec<Request> {
        let mut fresh = Line::new(self.settings);
        let mut seen = Vec::new();
        for pending in self.pending.drain(..) {
            match pending.request {
                Some(request) if pending.sent => seen.push(request),
                Some(request) => {
                    let taken = fresh.push(request);
                    debug_assert!(taken.is_ok(), "it had room before");
                }
                None => {}
            }
        }
        *self = fresh;
        seen
    }
}

/// The head's side: one origin's requests.
#[derive(Debug)]
pub struct Inbound {
    settings: ForwardSettings,
    incarnation: Incarnation,
    next: u64,
    /// What was taken and the origin may ask for again; empty while it is being done.
    taken: BTreeMap<u64, Kept>,
    kept_bytes: usize,
    ready: Vec<Answer>,
}

#[derive(Debug)]
enum Kept {
    Pending,
    Answer(Outcome, Position),
    Forgotten,
}

impl Inbound {
    /// Nothing heard of this origin yet.
    pub fn new(settings: ForwardSettings) -> Inbound {
        Inbound {
            settings,
            incarnation: Incarnation(0),
            next: 0,
            taken: BTreeMap::new(),
            kept_bytes: 0,
            ready: Vec::new(),
        }
    }

    /// A message came: what of it is to be done now, in order.
    pub fn accept(&mut self, incarnation: Incarnation, forwards: Forwards) -> Vec<Forwarded> {
        if incarnation < self.incarnation {
            return Vec::new();
        }
        if incarnation > self.incarnation {
            *self = Inbound { incarnation, ..Inbound::new(self.settings) };
        }
        self.next = self.next.max(forwards.base);
        self.forget_below(forwards.base);
        let mut fresh = Vec::new();
        let gap = forwards.first > self.next;
        for request in forwards.requests {
            if request.sequence < self.next {
                self.answer_again(request.sequence);
            } else if !gap {
                self.next = request.sequence + 1;
                self.taken.insert(request.sequence, Kept::Pending);
                fresh.push(request);
            }
        }
        if !gap {
            self.next = self.next.max(forwards.last + 1);
        }
        fresh
    }

    /// A request was answered.
    pub fn answer(&mut self, incarnation: Incarnation, sequence: u64, outcome: Outcome, position: Position) {
        let Some(kept) = self.taken.get_mut(&sequence) else { return };
        if incarnation != self.incarnation {
            return;
        }
        self.kept_bytes += size_of_outcome(&outcome);
        *kept = Kept::Answer(outcome.clone(), position);
        self.ready.push(Answer { sequence, outcome, position });
        self.forget_beyond_bound();
    }

    /// Whether there are answers to send.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Answers to send, for the origin's life that asked: about one message's worth.
    pub fn take_ready(&mut self) -> Option<Answers> {
        if self.ready.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fits = |answer: &Answer| {
            let before = bytes;
            bytes += 32 + size_of_outcome(&answer.outcome);
            before < self.settings.batch_bytes_max
        };
        let count = self.ready.iter().map(fits).take_while(|fits| *fits).count();
        let answers = self.ready.drain(..count).collect();
        Some(Answers { incarnation: self.incarnation, answers })
    }

    fn answer_again(&mut self, sequence: u64) {
        let (outcome, position) = match self.taken.get(&sequence) {
            Some(Kept::Answer(outcome, position)) => (outcome.clone(), *position),
            Some(Kept::Forgotten) => {
                let text =
                    "the answer was lost on its way and is no longer kept; read before you write again";
                (Failure::outcome(FailureKind::Uncertain, text), Position::ZERO)
            }
            Some(Kept::Pending) | None => return,
        };
        self.ready.push(Answer { sequence, outcome, position });
    }

    fn forget_below(&mut self, base: u64) {
        while self.taken.first_key_value().is_some_and(|(sequence, _)| *sequence < base) {
            if let Some((_, Kept::Answer(outcome, _))) = self.taken.pop_first() {
                self.kept_bytes -= size_of_outcome(&outcome);
            }
        }
    }

    fn forget_beyond_bound(&mut self) {
        if self.kept_bytes <= self.settings.answers_bytes_max {
            return;
        }
        for kept in self.taken.values_mut() {
            if let Kept::Answer(outcome, _) = kept {
                self.kept_bytes -= size_of_outcome(outcome);
                *kept = Kept::Forgotten;
            }
            if self.kept_bytes <= self.settings.answers_bytes_max {
                return;
            }
        }
    }
}

fn size_of_outcome(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Value(value) => value.len(),
        Outcome::Many(outcomes) => outcomes.iter().map(|outcome| 32 + size_of_outcome(outcome)).sum(),
        Outcome::Page(keys, _) => keys.iter().map(|key| 32 + key.len()).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use crate::operation::{Action, From, SessionId};
    use alloc::vec;
    use bytes::Bytes;

    const LIFE: Incarnation = Incarnation(7);

    fn request(deadline_us: Micros) -> Request {
        Request {
            from: From::Session { session: SessionId { index: 0, generation: 0 }, tag: 0 },
            shard: ShardId(0),
            op: Op::Key(Bytes::from_static(b"k"), Action::Add(1)),
            floor: Position::ZERO,
            consistency: Consistency::Mode,
            deadline_us,
        }
    }

    fn at(ms: u64) -> Now {
        Now { steady_us: millis(ms), unix_ms: 0 }
    }

    fn numbers(requests: &[Forwarded]) -> Vec<u64> {
        requests.iter().map(|request| request.sequence).collect()
    }

    fn pair() -> (Line, Inbound) {
        let settings = ForwardSettings::default();
        let mut line = Line::new(settings);
        for _ in 0..3 {
            line.push(request(millis(1000))).unwrap();
        }
        (line, Inbound::new(settings))
    }

    #[test]
    fn repeated_frames_are_answered_from_memory() {
        let (mut line, mut inbound) = pair();
        let frame = line.flush(at(0)).unwrap();
        assert_eq!(line.flush(at(0)), None);
        assert_eq!(numbers(&inbound.accept(LIFE, frame.clone())), [1, 2, 3]);
        assert!(inbound.accept(LIFE, frame.clone()).is_empty());
        assert_eq!(inbound.take_ready(), None, "still being done");
        inbound.answer(LIFE, 2, Outcome::Integer(2), Position::ZERO);
        assert_eq!(inbound.take_ready().unwrap().answers.len(), 1);
        assert!(inbound.accept(LIFE, frame).is_empty());
        let again = inbound.take_ready().unwrap();
        assert_eq!((again.answers[0].sequence, again.answers[0].outcome.clone()), (2, Outcome::Integer(2)));
    }

    #[test]
    fn lost_frames_are_sent_again_and_gaps_wait() {
        let (mut line, mut inbound) = pair();
        let lost = line.flush(at(0)).unwrap();
        line.push(request(millis(1000))).unwrap();
        let early = line.flush(at(1)).unwrap();
        assert!(inbound.accept(LIFE, early).is_empty(), "4 must wait for 1 to 3");
        assert!(line.tick(at(100)).is_empty());
        assert_eq!(line.flush(at(100)), None);
        assert!(line.tick(at(201)).is_empty());
        let again = line.flush(at(201)).unwrap();
        assert_eq!(numbers(&inbound.accept(LIFE, again)), [1, 2, 3, 4]);
        assert!(inbound.accept(LIFE, lost).is_empty());
    }

    #[test]
    fn what_was_given_up_leaves_no_gap() {
        let (mut line, mut inbound) = pair();
        line.flush(at(0));
        line.push(request(millis(9000))).unwrap();
        line.flush(at(0));
        let given_up = line.tick(at(1500));
        assert_eq!(given_up.len(), 3);
        assert!(given_up.iter().all(|(_, sent)| *sent));
        assert_eq!(numbers(&inbound.accept(LIFE, line.flush(at(1500)).unwrap())), [4]);
    }

    #[test]
    fn settled_numbers_are_forgotten_and_another_life_starts_anew() {
        let (mut line, mut inbound) = pair();
        inbound.accept(LIFE, line.flush(at(0)).unwrap());
        for sequence in 1..=3 {
            inbound.answer(LIFE, sequence, Outcome::Done, Position::ZERO);
            assert!(line.settle(at(1), sequence).is_some());
            assert!(line.settle(at(1), sequence).is_none());
        }
        line.push(request(millis(1000))).unwrap();
        assert_eq!(numbers(&inbound.accept(LIFE, line.flush(at(2)).unwrap())), [4]);
        assert_eq!(inbound.taken.len(), 1);
        let (mut reborn, _) = pair();
        let frame = reborn.flush(at(3)).unwrap();
        assert_eq!(numbers(&inbound.accept(Incarnation(8), frame)), [1, 2, 3]);
        inbound.answer(LIFE, 2, Outcome::Done, Position::ZERO);
        assert_eq!(inbound.take_ready(), None, "an answer for the former life");
    }

    #[test]
    fn kept_answers_are_bounded() {
        let settings = ForwardSettings { answers_bytes_max: 10, ..ForwardSettings::default() };
        let (mut line, _) = pair();
        let mut inbound = Inbound::new(settings);
        let frame = line.flush(at(0)).unwrap();
        inbound.accept(LIFE, frame.clone());
        for sequence in 1..=3 {
            inbound.answer(LIFE, sequence, Outcome::Value(Bytes::from(vec![0; 5])), Position::ZERO);
        }
        inbound.take_ready();
        inbound.accept(LIFE, frame);
        let again = inbound.take_ready().unwrap().answers;
        assert!(matches!(&again[0].outcome, Outcome::Failed(f) if f.kind == FailureKind::Uncertain));
        assert!(matches!(again[2].outcome, Outcome::Value(_)));
    }

    #[test]
    fn a_full_line_gives_requests_back() {
        let mut line = Line::new(ForwardSettings { pending_max: 1, ..ForwardSettings::default() });
        assert!(line.push(request(0)).is_ok());
        assert!(line.push(request(0)).is_err());
    }
}
