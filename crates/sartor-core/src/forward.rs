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
//! range are settled at the origin: answered, or given up; or they are reads that another replica was asked for.

use crate::ids::{Incarnation, Position};
use crate::mutants::{Fault, planted};
use crate::operation::{Consistency, Failure, FailureKind, From, Op, Outcome, Request};
use crate::session::Way;
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
/// is replaced before it has answered, the next one gets them under the same number. Reads that go *aside* have numbers too,
/// and are sent to another replica, which does them as often as it is asked.
#[derive(Clone, Debug, Hash)]
pub struct Line {
    settings: ForwardSettings,
    /// Gapless numbers; settled ones are empty until they leave at the front.
    pending: VecDeque<Pending>,
    next: u64,
    /// Everything from this number on waits to be sent.
    unsent: u64,
    /// Unsettled ones for the head on another worker.
    away: usize,
    /// Unsettled reads that go aside, and how many of them are to be sent.
    aside: usize,
    aside_due: usize,
    /// When those are sent again.
    ask_at: Micros,
    ask_us: Micros,
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
    way: Way,
    /// It goes aside, and is to be sent.
    due: bool,
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
            aside: 0,
            aside_due: 0,
            ask_at: 0,
            ask_us: resend_us,
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

    /// Takes a request to be sent at the end of the turn, to the head or aside, or gives it back when full.
    pub fn push(&mut self, now: Now, request: Request, way: Way) -> Result<(), Request> {
        self.add(now, request, way)?;
        self.count(way);
        Ok(())
    }

    fn count(&mut self, way: Way) {
        match way {
            Way::Near => {}
            Way::Away => self.away += 1,
            Way::Aside => {
                self.aside += 1;
                self.aside_due += 1;
            }
        }
    }

    /// Takes a copy of a request that goes to the head on this worker: its number and the base, or
    /// nothing when full.
    pub fn register(&mut self, now: Now, request: &Request) -> Option<(u64, u64)> {
        let all_sent = self.unsent == self.next;
        self.add(now, request.clone(), Way::Near).ok()?;
        if all_sent && self.aside == 0 {
            self.unsent = self.next;
        }
        Some((self.next - 1, self.base()))
    }

    fn add(&mut self, now: Now, request: Request, way: Way) -> Result<(), Request> {
        let size = request.op.size();
        let full = self.pending.len() >= self.settings.pending_max
            || (self.bytes > 0 && self.bytes + size > self.settings.pending_bytes_max);
        if full {
            return Err(request);
        }
        self.bytes += size;
        self.earliest = self.earliest.min(request.deadline_us);
        let (since, sent, due) = (now.steady_us, way == Way::Near, way == Way::Aside);
        self.pending.push_back(Pending { request: Some(request), since, sent, way, due });
        self.next += 1;
        Ok(())
    }

    /// The next message, while there is something to send.
    pub fn flush(&mut self, now: Now) -> Option<Forwards> {
        if self.away == 0 && self.aside == 0 {
            self.unsent = self.next;
        }
        if self.away == 0 || self.unsent >= self.next || self.headless.is_some() {
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
            if let Some(request) = pending.request.as_ref().filter(|_| pending.way == Way::Away) {
                pending.sent = true;
                bytes += 64 + request.op.size();
                requests.push(forwarded(now, self.unsent, request));
            }
            self.unsent += 1;
        }
        Some(Forwards { base, first, last: self.unsent - 1, requests })
    }

    /// The reads to be sent aside, as one message: there is one of a connection at most.
    pub fn flush_aside(&mut self, now: Now) -> Option<Forwards> {
        if self.aside_due == 0 {
            return None;
        }
        let (base, mut requests) = (self.base(), Vec::new());
        for (pending, sequence) in self.pending.iter_mut().zip(base..) {
            if let Some(request) = pending.request.as_ref().filter(|_| pending.due) {
                (pending.sent, pending.due) = (true, false);
                requests.push(forwarded(now, sequence, request));
            }
        }
        self.aside_due = 0;
        self.ask_at = now.steady_us + self.ask_us;
        let (first, last) = (requests.first()?.sequence, requests.last()?.sequence);
        Some(Forwards { base, first, last, requests })
    }

    /// Whether this number is a near request's that is not settled.
    pub fn is_near(&self, sequence: u64) -> bool {
        let index = sequence.checked_sub(self.base()).and_then(|index| usize::try_from(index).ok());
        let pending = index.and_then(|index| self.pending.get(index));
        pending.is_some_and(|pending| pending.way == Way::Near && pending.request.is_some())
    }

    /// An answer came: the request it belongs to, and the way that took; unless it was settled before.
    pub fn settle(&mut self, now: Now, sequence: u64) -> Option<(Request, Way)> {
        let index = usize::try_from(sequence.checked_sub(self.base())?).ok()?;
        let pending = self.pending.get_mut(index)?;
        let (request, way, due) = (pending.request.take()?, pending.way, pending.due);
        self.forget(&request, way, due);
        if way == Way::Aside {
            self.ask_us = self.settings.resend_us;
        }
        let base = self.base();
        self.drop_settled();
        // Only answers to the oldest are progress: another one's may have been lost.
        if self.base() > base {
            self.resend_us = self.settings.resend_us;
            self.resend_at = now.steady_us + self.resend_us;
        }
        Some((request, way))
    }

    fn forget(&mut self, request: &Request, way: Way, due: bool) {
        self.bytes -= request.op.size();
        self.away -= usize::from(way == Way::Away);
        self.aside -= usize::from(way == Way::Aside);
        self.aside_due -= usize::from(due);
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
        let asks_at = match (self.aside, self.aside_due) {
            (0, _) => Micros::MAX,
            (_, 0) => self.ask_at,
            _ => 0,
        };
        let sends_at = match (self.away, self.unsent < self.next) {
            (0, _) => Micros::MAX,
            (_, true) => 0,
            (_, false) => self.resend_at,
        };
        Some(asks_at.min(sends_at).min(self.earliest))
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
    /// too long for somebody to take it: those requests, the way they took, and whether a head may have
    /// seen them.
    pub fn tick(&mut self, now: Now) -> Vec<GivenUp> {
        if self.aside > 0 && self.aside_due == 0 && now.steady_us >= self.ask_at {
            self.ask_all_again();
            self.ask_us = (self.ask_us * 2).min(self.settings.resend_us * 10);
        }
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
                let near = pending.way == Way::Near;
                let had_no_effect = !pending.sent || (!near && !request.op.is_write());
                request.deadline_us <= now.steady_us || (tired && had_no_effect)
            };
            if pending.request.as_ref().is_some_and(ends) {
                given_up.extend(pending.give_up());
            }
        }
        for given in &given_up {
            self.forget(&given.request, given.way, given.due);
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

    /// Gives up writes that a head may have seen.
    pub fn give_up_sent(&mut self) -> Vec<GivenUp> {
        self.give_up(|request, pending| pending.1 && request.op.is_write())
    }

    /// Gives up all that is not answered.
    pub fn give_up_all(&mut self) -> Vec<GivenUp> {
        self.give_up(|_, _| true)
    }

    /// Gives up reads that were to go another way, aside or not aside: turned, they would overtake what their connection sent
    /// before, or be overtaken.
    pub fn give_up_ranges(&mut self, aside: bool) -> Vec<GivenUp> {
        let turns = |way| (way == Way::Aside) != aside;
        self.give_up(|request, (way, _)| matches!(request.op, Op::Range(_)) && turns(way))
    }

    fn give_up(&mut self, which: impl Fn(&Request, (Way, bool)) -> bool) -> Vec<GivenUp> {
        let mut given_up = Vec::new();
        for pending in &mut self.pending {
            if pending.request.as_ref().is_some_and(|request| which(request, (pending.way, pending.sent))) {
                given_up.extend(pending.give_up());
            }
        }
        for given in &given_up {
            self.forget(&given.request, given.way, given.due);
        }
        self.drop_settled();
        given_up
    }

    /// The shard has another view: all that is not answered is sent again, under the same numbers. Where the
    /// head is no longer on this worker, near requests go with it. `aside` says which are not the new head's to answer. Those
    /// that go another way now, and which.
    pub fn restart(&mut self, head_is_here: bool) -> Vec<(From, Way, Way)> {
        self.unsent = self.base();
        (self.resend_us, self.ask_us) = (self.settings.resend_us, self.settings.resend_us);
        self.headless = None;
        let mut turned = Vec::new();
        for pending in &mut self.pending {
            let Some(request) = &pending.request else { continue };
            let way = match pending.way {
                Way::Near if head_is_here => Way::Near,
                Way::Aside => Way::Aside,
                _ => Way::Away,
            };
            if way != pending.way {
                turned.push((request.from, pending.way, way));
            }
            (pending.way, pending.due) = (way, way == Way::Aside);
        }
        let count = |way| self.pending.iter().filter(|p| p.request.is_some() && p.way == way).count();
        (self.away, self.aside) = (count(Way::Away), count(Way::Aside));
        self.aside_due = self.aside;
        turned
    }

    fn ask_all_again(&mut self) {
        for pending in self.pending.iter_mut().filter(|pending| pending.way == Way::Aside) {
            pending.due = pending.request.is_some();
        }
        self.aside_due = self.aside;
    }
}

impl Pending {
    fn give_up(&mut self) -> Option<GivenUp> {
        let (way, sent, due) = (self.way, self.sent, self.due);
        self.due = false;
        self.request.take().map(|request| GivenUp { request, way, sent, due })
    }
}

fn forwarded(now: Now, sequence: u64, request: &Request) -> Forwarded {
    Forwarded {
        sequence,
        op: request.op.clone(),
        floor: request.floor,
        consistency: request.consistency,
        left_us: request.deadline_us.saturating_sub(now.steady_us),
    }
}

/// A request that will have no answer.
#[derive(Debug)]
pub struct GivenUp {
    /// It.
    pub request: Request,
    /// Where it went.
    pub way: Way,
    /// Whether a head may have seen it.
    pub sent: bool,
    /// Whether it was to be sent aside.
    due: bool,
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
    use crate::range::Range;
    use alloc::boxed::Box;
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

    fn range(deadline_us: Micros) -> Request {
        let (start, end, limit, bytes_max) = (Bytes::new(), None, 9, 99);
        let range = Range { start, end, limit, bytes_max, values: false, reverse: false, judged: None };
        Request { op: Op::Range(Box::new(range)), ..request(deadline_us) }
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
            line.push(at(0), request(millis(1000)), Way::Away).unwrap();
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
        line.push(at(0), request(millis(1000)), Way::Away).unwrap();
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
        line.push(at(0), request(millis(9000)), Way::Away).unwrap();
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
        line.push(at(0), request(millis(1000)), Way::Away).unwrap();
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
        assert!(line.push(at(0), request(0), Way::Away).is_ok());
        assert!(line.push(at(0), request(0), Way::Away).is_err());
    }

    #[test]
    fn reads_that_go_aside_leave_no_gap_for_the_head() {
        let mut line = Line::new(ForwardSettings::default());
        let mut head = Inbound::new(ForwardSettings::default());
        let mut accept = |forwards: Forwards| {
            let taken = head.accept(Incarnation(1), forwards);
            taken.into_iter().map(|request| request.sequence).collect::<Vec<_>>()
        };
        line.push(at(0), request(millis(9000)), Way::Aside).unwrap();
        assert_eq!((line.wake_at(), line.flush(at(0))), (Some(0), None), "it is not for the head");
        let sent = |forwards: Forwards| forwards.requests.iter().map(|r| r.sequence).collect::<Vec<_>>();
        assert_eq!(line.flush_aside(at(0)).map(sent), Some(vec![1]));
        assert_eq!(line.flush_aside(at(0)), None);
        line.push(at(0), request(millis(9000)), Way::Away).unwrap();
        line.push(at(0), request(millis(9000)), Way::Aside).unwrap();
        line.push(at(0), request(millis(9000)), Way::Away).unwrap();
        assert_eq!(accept(line.flush(at(0)).unwrap()), [2, 4]);
        assert_eq!(line.flush_aside(at(0)).map(sent), Some(vec![3]));
        assert_eq!(line.wake_at(), Some(millis(200)));
        // Silence: both are asked again, who goes aside as well as the head.
        assert!(line.tick(at(200)).is_empty());
        assert_eq!(line.flush_aside(at(200)).map(sent), Some(vec![1, 3]));
        assert!(accept(line.flush(at(200)).unwrap()).is_empty());
        assert_eq!(line.settle(at(200), 1).map(|settled| settled.1), Some(Way::Aside));
        assert!(line.settle(at(200), 2).is_some() && line.settle(at(200), 4).is_some());
        line.push(at(200), request(millis(9000)), Way::Away).unwrap();
        assert_eq!(accept(line.flush(at(200)).unwrap()), [5]);
        // In the next view each goes its way again.
        assert!(line.restart(false).is_empty());
        assert_eq!(line.flush_aside(at(200)).map(sent), Some(vec![3]));
        assert_eq!(sent(line.flush(at(200)).unwrap()), [5]);
        // Ranges that would have to turn are given up; what is none stays.
        for way in [Way::Aside, Way::Away] {
            line.push(at(200), range(millis(9000)), way).unwrap();
        }
        let ways = |given_up: Vec<GivenUp>| given_up.into_iter().map(|given| given.way).collect::<Vec<_>>();
        assert_eq!(ways(line.give_up_ranges(true)), [Way::Away]);
        assert_eq!(ways(line.give_up_ranges(false)), [Way::Aside]);
        assert_eq!(ways(line.give_up_ranges(false)), []);
        let given_up = line.tick(at(9000));
        assert!(given_up.len() == 2 && line.wake_at().is_none());
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
        line.push(at(0), request(millis(5000)), Way::Away).unwrap();
        line.flush(at(0));
        line.push(at(10), request(millis(5000)), Way::Away).unwrap();
        line.set_headless(at(20), true);
        assert_eq!(line.flush(at(20)), None);
        assert!(line.tick(at(20)).is_empty());
        let refused = line.tick(at(2010));
        assert_eq!((refused.len(), refused[0].sent), (1, false), "the first may have been done");
        assert_eq!(line.tick(at(5000)).len(), 1);
        assert_eq!(line.wake_at(), None);
    }
}
