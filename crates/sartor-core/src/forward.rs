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
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, Failure, FailureKind, From, Op, Outcome, Request};
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The origin's number.
    pub sequence: u64,
    /// The answer.
    pub outcome: Outcome,
    /// The place in the shard's history at which it was true.
    pub position: Position,
}

/// Times and bounds of forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// How long a request waits while nobody is there to take it.
    pub patience_us: Micros,
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
            patience_us: millis(2000),
        }
    }
}

/// The origin's side: one worker's requests to one shard.
///
/// Writes to a head on this very worker are numbered here too (*near* ones): they are not sent, but if that head
/// is replaced before it has answered, the next one gets them under the same number.
#[derive(Clone, Debug, Hash)]
pub struct Line {
    settings: ForwardSettings,
    /// Gapless numbers; settled ones are empty until they leave at the front.
    pending: VecDeque<Pending>,
    next: u64,
    /// Everything from this number on waits to be sent.
    unsent: u64,
    /// Unsettled ones that are not near.
    away: usize,
    bytes: usize,
    resend_at: Micros,
    resend_us: Micros,
    /// No request's deadline is before this.
    earliest: Micros,
    /// Nobody is there to take requests; when to look who waited for too long.
    headless: Option<Micros>,
}

#[derive(Clone, Debug, Hash)]
struct Pending {
    request: Option<Request>,
    since: Micros,
    sent: bool,
    near: bool,
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
            away: 0,
            bytes: 0,
            resend_at: 0,
            resend_us,
            earliest: Micros::MAX,
            headless: None,
        }
    }

    fn base(&self) -> u64 {
        self.next - self.pending.len() as u64
    }

    /// Takes a request to be sent at the end of the turn, or gives it back when full.
    pub fn push(&mut self, now: Now, request: Request) -> Result<(), Request> {
        self.add(now, request, false)?;
        self.away += 1;
        Ok(())
    }

    /// Takes a copy of a request that goes to the head on this worker: its number and the base, or
    /// nothing when full.
    pub fn register(&mut self, now: Now, request: &Request) -> Option<(u64, u64)> {
        let all_sent = self.unsent == self.next;
        self.add(now, request.clone(), true).ok()?;
        if all_sent {
            self.unsent = self.next;
        }
        Some((self.next - 1, self.base()))
    }

    fn add(&mut self, now: Now, request: Request, near: bool) -> Result<(), Request> {
        let size = request.op.size();
        let full = self.pending.len() >= self.settings.pending_max
            || (self.bytes > 0 && self.bytes + size > self.settings.pending_bytes_max);
        if full {
            return Err(request);
        }
        self.bytes += size;
        self.earliest = self.earliest.min(request.deadline_us);
        self.pending.push_back(Pending { request: Some(request), since: now.steady_us, sent: near, near });
        self.next += 1;
        Ok(())
    }

    /// The next message, while there is something to send.
    pub fn flush(&mut self, now: Now) -> Option<Forwards> {
        if self.away == 0 {
            self.unsent = self.next;
        }
        if self.unsent >= self.next || self.headless.is_some() {
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
            if let Some(request) = pending.request.as_ref().filter(|_| !pending.near) {
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

    /// Whether this number is a near request's that is not settled.
    pub fn is_near(&self, sequence: u64) -> bool {
        let index = sequence.checked_sub(self.base()).and_then(|index| usize::try_from(index).ok());
        let pending = index.and_then(|index| self.pending.get(index));
        pending.is_some_and(|pending| pending.near && pending.request.is_some())
    }

    /// An answer came: the request it belongs to, and whether that was near; unless it was settled before.
    pub fn settle(&mut self, now: Now, sequence: u64) -> Option<(Request, bool)> {
        let index = usize::try_from(sequence.checked_sub(self.base())?).ok()?;
        let pending = self.pending.get_mut(index)?;
        let (request, near) = (pending.request.take()?, pending.near);
        self.forget(&request, near);
        let base = self.base();
        self.drop_settled();
        // Only answers to the oldest are progress: another one's may have been lost.
        if self.base() > base {
            self.resend_us = self.settings.resend_us;
            self.resend_at = now.steady_us + self.resend_us;
        }
        Some((request, near))
    }

    fn forget(&mut self, request: &Request, near: bool) {
        self.bytes -= request.op.size();
        self.away -= usize::from(!near);
    }

    fn drop_settled(&mut self) {
        while self.pending.front().is_some_and(|pending| pending.request.is_none()) {
            self.pending.pop_front();
        }
        self.unsent = self.unsent.max(self.base());
    }

    /// When [`Line::tick`] wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        if self.pending.is_empty() {
            return None;
        }
        if let Some(look_at) = self.headless {
            return Some(look_at.min(self.earliest));
        }
        match (self.away, self.unsent < self.next) {
            (0, _) => Some(self.earliest),
            (_, true) => Some(0),
            (_, false) => Some(self.resend_at.min(self.earliest)),
        }
    }

    /// Whether there is somebody to take requests. While there is not, none are sent.
    pub fn set_headless(&mut self, now: Now, headless: bool) {
        match (headless, self.headless) {
            (true, None) => self.headless = Some(now.steady_us),
            (false, Some(_)) => self.headless = None,
            _ => {}
        }
    }

    /// Sends again what is unanswered for too long, and gives up what is past its deadline, or waits for
    /// too long for somebody to take it: those requests, whether they were near, and whether a head may have
    /// seen them.
    pub fn tick(&mut self, now: Now) -> Vec<GivenUp> {
        let looks = self.headless.is_some_and(|at| now.steady_us >= at);
        let resends = self.away > 0 && self.unsent >= self.next && now.steady_us >= self.resend_at;
        if self.pending.is_empty() || !(looks || resends || now.steady_us >= self.earliest) {
            return Vec::new();
        }
        let mut given_up = Vec::new();
        let patience_us = self.settings.patience_us;
        for pending in &mut self.pending {
            let tired = looks && now.steady_us >= pending.since + patience_us;
            let ends = |request: &Request| {
                let had_no_effect = !pending.sent || (!pending.near && !request.op.is_write());
                request.deadline_us <= now.steady_us || (tired && had_no_effect)
            };
            if pending.request.as_ref().is_some_and(ends) {
                let (near, sent) = (pending.near, pending.sent);
                given_up.extend(pending.request.take().map(|request| GivenUp { request, near, sent }));
            }
        }
        for GivenUp { request, near, .. } in &given_up {
            self.forget(request, *near);
        }
        self.drop_settled();
        let deadlines = self.pending.iter().filter_map(|pending| pending.request.as_ref());
        self.earliest = deadlines.map(|request| request.deadline_us).min().unwrap_or(Micros::MAX);
        if looks {
            self.headless = Some(now.steady_us + self.settings.resend_us);
        }
        if resends {
            self.unsent = self.base();
            self.resend_us = (self.resend_us * 2).min(self.settings.resend_us * 10);
            self.resend_at = now.steady_us + self.resend_us;
        }
        given_up
    }

    /// The shard has another view: all that is not answered is sent again, under the same numbers. Where the
    /// head is no longer on this worker, near requests go with it: those that did.
    pub fn restart(&mut self, head_is_here: bool) -> Vec<From> {
        self.unsent = self.base();
        self.resend_us = self.settings.resend_us;
        self.headless = None;
        let mut turned = Vec::new();
        if !head_is_here {
            for pending in self.pending.iter_mut().filter(|pending| pending.near) {
                pending.near = false;
                if let Some(request) = &pending.request {
                    self.away += 1;
                    turned.push(request.from);
                }
            }
        }
        turned
    }
}

/// A request that will have no answer.
#[derive(Debug)]
pub struct GivenUp {
    /// It.
    pub request: Request,
    /// Whether it went to a head on this worker.
    pub near: bool,
    /// Whether a head may have seen it.
    pub sent: bool,
}

/// The head's side: one origin's requests.
#[derive(Clone, Debug, Hash)]
pub struct Inbound {
    settings: ForwardSettings,
    incarnation: Incarnation,
    next: u64,
    /// What was taken and the origin may ask for again; empty while it is being done.
    taken: BTreeMap<u64, Kept>,
    kept_bytes: usize,
    ready: Vec<Answer>,
}

#[derive(Clone, Debug, Hash)]
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
                if planted(Fault::TakeTwice) {
                    fresh.push(request);
                }
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
        if self.keep(incarnation, sequence, outcome.clone(), position) {
            self.ready.push(Answer { sequence, outcome, position });
        }
    }

    /// The same where another replica tells who asked. False if it is not waited for.
    pub fn keep(
        &mut self,
        incarnation: Incarnation,
        sequence: u64,
        outcome: Outcome,
        position: Position,
    ) -> bool {
        let Some(kept) = self.taken.get_mut(&sequence) else { return false };
        if incarnation != self.incarnation {
            return false;
        }
        self.kept_bytes += outcome.size();
        *kept = Kept::Answer(outcome, position);
        self.forget_beyond_bound();
        true
    }

    /// A request that another replica took has its answer.
    pub fn pass(&mut self, incarnation: Incarnation, answer: Answer) {
        if incarnation > self.incarnation {
            *self = Inbound { incarnation, ..Inbound::new(self.settings) };
        }
        if incarnation == self.incarnation {
            self.ready.push(answer);
        }
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
            bytes += 32 + answer.outcome.size();
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
                self.kept_bytes -= outcome.size();
            }
        }
    }

    fn forget_beyond_bound(&mut self) {
        if self.kept_bytes <= self.settings.answers_bytes_max {
            return;
        }
        for kept in self.taken.values_mut() {
            if let Kept::Answer(outcome, _) = kept {
                self.kept_bytes -= outcome.size();
                *kept = Kept::Forgotten;
            }
            if self.kept_bytes <= self.settings.answers_bytes_max {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;
    use crate::operation::{Action, SessionId};
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
            line.push(at(0), request(millis(1000))).unwrap();
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
        line.push(at(0), request(millis(1000))).unwrap();
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
        line.push(at(0), request(millis(9000))).unwrap();
        line.flush(at(0));
        let given_up = line.tick(at(1500));
        assert_eq!(given_up.len(), 3);
        assert!(given_up.iter().all(|given_up| given_up.sent));
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
        line.push(at(0), request(millis(1000))).unwrap();
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
        assert!(line.push(at(0), request(0)).is_ok());
        assert!(line.push(at(0), request(0)).is_err());
    }

    #[test]
    fn near_requests_are_not_sent_until_their_head_is_gone() {
        let (mut line, mut inbound) = pair();
        assert_eq!(line.register(at(0), &request(millis(1000))), Some((4, 1)));
        assert!(line.is_near(4) && !line.is_near(3));
        assert_eq!(numbers(&line.flush(at(0)).unwrap().requests), [1, 2, 3]);
        assert!(line.restart(true).is_empty());
        assert_eq!(numbers(&line.flush(at(1)).unwrap().requests), [1, 2, 3]);
        assert_eq!(line.restart(false).len(), 1);
        assert_eq!(numbers(&inbound.accept(LIFE, line.flush(at(2)).unwrap())), [1, 2, 3, 4]);
    }

    #[test]
    fn without_a_head_only_what_had_no_effect_is_refused_early() {
        let settings = ForwardSettings::default();
        let mut line = Line::new(settings);
        line.push(at(0), request(millis(5000))).unwrap();
        line.flush(at(0));
        line.push(at(10), request(millis(5000))).unwrap();
        line.set_headless(at(20), true);
        assert_eq!(line.flush(at(20)), None);
        assert!(line.tick(at(20)).is_empty());
        let refused = line.tick(at(2010));
        assert_eq!((refused.len(), refused[0].sent), (1, false), "the first may have been done");
        assert_eq!(line.tick(at(5000)).len(), 1);
        assert_eq!(line.wake_at(), None);
    }
}
