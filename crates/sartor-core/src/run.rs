//! Runs: commands of one connection to one shard that came together, as one operation.
//!
//! What a request costs beside its work (its lane, its number, its place among those that wait, its answer's way back)
//! is paid once for a whole pipeline. The commands stay independent: one that fails or is refused takes no other
//! along, though nothing of others comes in between. Commands and answers are packed into one buffer each and read where
//! they lie.
//!
//! ```text
//!  step:   key (length, bytes) │ action, as it travels
//!  answer: outcome, as it travels
//! ```

use crate::operation::{Action, Expiry, Outcome, Set};
use crate::wire::codec::{Malformed, Reader, Wire, get_bytes, get_varint, put_bytes, put_varint};
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;

/// Steps that a run may have.
pub const STEPS_MAX: u32 = 128;
/// Bytes that its steps may take together.
pub const BYTES_MAX: usize = 16 << 10;

/// Commands that came together.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Run {
    packed: Bytes,
    steps: u32,
    writes: bool,
    grows: bool,
    /// Its answers make one reply, which must not grow without bound.
    bounded: bool,
    /// Steps that grow are refused.
    full: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// What to do with it.
    pub deed: Deed<'a>,
}

/// What a step does. The two that are asked for most need nothing of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed<'a> {
    /// [`Action::Get`].
    Get,
    /// A plain [`Action::Set`] of this value.
    Set(&'a [u8]),
    /// Any other.
    Other(Action),
}

/// What a step answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Done as asked.
    Done,
    /// A value.
    Value(&'a [u8]),
    /// No such key.
    Nil,
    /// A number.
    Integer(i64),
    /// Any other.
    Other(Outcome),
}

/// Whether an action may be a step of a run: what it writes and remembers is not larger than the step itself.
pub fn may_run(action: &Action) -> bool {
    match action {
        Action::Get | Action::GetRange(..) | Action::Exists | Action::Length | Action::TimeToLive(_) => true,
        Action::Set(set) => !set.get,
        Action::Delete | Action::Add(_) => true,
        Action::GetExpire(_) | Action::GetDelete | Action::Append(_) | Action::SetRange(..) => false,
        Action::Version | Action::Expire(..) | Action::Persist => false,
    }
}

impl Run {
    /// How many commands it has.
    pub fn len(&self) -> u32 {
        self.steps
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Bytes of its steps.
    pub fn size(&self) -> usize {
        self.packed.len()
    }

    /// Whether some step may change something.
    pub fn is_write(&self) -> bool {
        self.writes
    }

    /// Whether some step may need more memory.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// The same as one request: from where its answers are too large together, the rest is refused.
    #[must_use]
    pub fn bounded(self) -> Run {
        Run { bounded: true, ..self }
    }

    /// Whether it is that.
    pub fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// Steps that may need more memory are to be refused.
    pub fn refuse_growth(&mut self) {
        self.full = true;
    }

    /// Whether they are.
    pub fn refuses_growth(&self) -> bool {
        self.full
    }

    /// Its commands in order.
    pub fn steps(&self) -> Steps<'_> {
        Steps { whole: &self.packed, rest: &self.packed }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps()).finish()
    }
}

/// The commands of a run, one by one.
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    whole: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> Steps<'a> {
    /// The next one; none where the bytes say something else.
    #[inline]
    fn read(&mut self) -> Result<Step<'a>, Malformed> {
        const BAD: Malformed = Malformed("bad step");
        let key = get_bytes(&mut self.rest).ok_or(BAD)?;
        match self.rest {
            [GET, rest @ ..] => {
                self.rest = rest;
                Ok(Step { key, deed: Deed::Get })
            }
            [SET, rest @ ..] => {
                let mut rest = rest;
                let value = get_bytes(&mut rest).ok_or(BAD)?;
                if let Some(rest) = rest.strip_prefix(&PLAIN) {
                    self.rest = rest;
                    return Ok(Step { key, deed: Deed::Set(value) });
                }
                self.other(key)
            }
            _ => self.other(key),
        }
    }

    fn other(&mut self, key: &'a [u8]) -> Result<Step<'a>, Malformed> {
        let mut reader = Reader::new(self.whole.slice_ref(self.rest));
        let action = Action::decode(&mut reader)?;
        self.rest = &self.rest[self.rest.len() - reader.left().len()..];
        Ok(Step { key, deed: Deed::Other(action) })
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    #[inline]
    fn next(&mut self) -> Option<Step<'a>> {
        // What came from elsewhere was looked at when it was decoded.
        if self.rest.is_empty() { None } else { self.read().ok() }
    }
}

/// How [`Action::Get`] and a plain [`Action::Set`] travel: see `wire/operation.rs`.
const GET: u8 = 0;
const SET: u8 = 8;
/// No expiry, no condition, no old value.
const PLAIN: [u8; 3] = [0, 0, 0];

/// Packs commands.
#[derive(Debug, Default)]
pub struct Packer {
    packed: Vec<u8>,
    steps: u32,
    writes: bool,
    grows: bool,
}

impl Packer {
    /// One that needs no more memory for so many bytes.
    pub fn with_capacity(bytes: usize) -> Packer {
        Packer { packed: Vec::with_capacity(bytes.min(BYTES_MAX)), ..Packer::default() }
    }

    /// Whether there is room for a command of so many bytes.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.steps < STEPS_MAX && self.packed.len() + bytes <= BYTES_MAX
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.steps
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Adds [`Action::Get`].
    #[inline]
    pub fn get(&mut self, key: &[u8]) {
        put_bytes(&mut self.packed, key);
        self.packed.push(GET);
        self.steps += 1;
    }

    /// Adds a plain [`Action::Set`].
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        put_bytes(&mut self.packed, key);
        self.packed.push(SET);
        put_bytes(&mut self.packed, value);
        self.packed.extend_from_slice(&PLAIN);
        self.steps += 1;
        (self.writes, self.grows) = (true, true);
    }

    /// Adds any action that [`may_run`].
    pub fn push(&mut self, key: &[u8], action: &Action) {
        assert!(may_run(action), "{action:?} is no step");
        put_bytes(&mut self.packed, key);
        action.encode(&mut self.packed);
        self.steps += 1;
        self.writes |= action.is_write();
        self.grows |= action.grows();
    }

    /// All that were added since the last time.
    pub fn take(&mut self) -> Run {
        let packed = Bytes::copy_from_slice(&self.packed);
        let Packer { steps, writes, grows, .. } = *self;
        self.packed.clear();
        (self.steps, self.writes, self.grows) = (0, false, false);
        Run { packed, steps, writes, grows, bounded: false, full: false }
    }
}

/// The answers to a run's commands.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Answers(Bytes);

impl Answers {
    /// From how they travel.
    pub fn new(packed: Bytes) -> Answers {
        Answers(packed)
    }

    /// How they travel.
    pub fn packed(&self) -> &Bytes {
        &self.0
    }

    /// Takes the answer at `at` and moves behind it; none where there is none.
    #[inline]
    pub fn take(&self, at: &mut usize) -> Option<Answer<'_>> {
        let mut rest = self.0.get(*at..)?;
        let answer = match rest.split_first()? {
            (&DONE, after) => {
                rest = after;
                Answer::Done
            }
            (&VALUE, after) => {
                rest = after;
                Answer::Value(get_bytes(&mut rest)?)
            }
            (&NIL, after) => {
                rest = after;
                Answer::Nil
            }
            (&INTEGER, after) => {
                rest = after;
                let number = get_varint(&mut rest)?;
                Answer::Integer((number >> 1) as i64 ^ -((number & 1) as i64))
            }
            _ => {
                let mut reader = Reader::new(self.0.slice(*at..));
                let outcome = Outcome::decode(&mut reader).ok()?;
                rest = &rest[rest.len() - reader.left().len()..];
                Answer::Other(outcome)
            }
        };
        *at = self.0.len() - rest.len();
        Some(answer)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Answer<'_>> {
        let mut at = 0;
        core::iter::from_fn(move || self.take(&mut at))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Answer<'_> {
    /// The same by itself.
    pub fn to_outcome(&self) -> Outcome {
        match self {
            Answer::Done => Outcome::Done,
            Answer::Value(value) => Outcome::Value(Bytes::copy_from_slice(value)),
            Answer::Nil => Outcome::Nil,
            Answer::Integer(number) => Outcome::Integer(*number),
            Answer::Other(outcome) => outcome.clone(),
        }
    }
}

impl Deed<'_> {
    /// The same by itself.
    pub fn to_action(&self) -> Action {
        match self {
            Deed::Get => Action::Get,
            Deed::Set(value) => {
                let value = Bytes::copy_from_slice(value);
                Action::Set(Set { value, expiry: Expiry::Never, only_if: None, get: false })
            }
            Deed::Other(action) => action.clone(),
        }
    }

    /// Whether its answer may be a value.
    pub fn answers_value(&self) -> bool {
        match self {
            Deed::Get => true,
            Deed::Set(_) => false,
            Deed::Other(action) => action.answers_value(),
        }
    }

    /// Whether it may need more memory than there is now.
    pub fn grows(&self) -> bool {
        match self {
            Deed::Get => false,
            Deed::Set(_) => true,
            Deed::Other(action) => action.grows(),
        }
    }
}

const DONE: u8 = 0;
const VALUE: u8 = 1;
const NIL: u8 = 2;
const INTEGER: u8 = 3;

/// Packs answers, in memory that is used again.
#[derive(Debug, Default)]
pub struct AnswerPacker(Vec<u8>);

impl AnswerPacker {
    /// Forgets what is left of another run.
    pub fn clear(&mut self) {
        self.0.clear();
        // A huge value must not keep its room for ever.
        if self.0.capacity() > 1 << 20 {
            self.0 = Vec::new();
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Done as asked.
    pub fn done(&mut self) {
        self.0.push(DONE);
    }

    /// A value.
    #[inline]
    pub fn value(&mut self, value: &[u8]) {
        self.0.push(VALUE);
        put_bytes(&mut self.0, value);
    }

    /// No such key.
    pub fn nil(&mut self) {
        self.0.push(NIL);
    }

    /// Any answer.
    pub fn push(&mut self, outcome: &Outcome) {
        outcome.encode(&mut self.0);
    }

    /// All of them.
    pub fn take(&mut self) -> Answers {
        Answers(Bytes::copy_from_slice(&self.0))
    }
}

impl Wire for Run {
    fn encode(&self, out: &mut Vec<u8>) {
        let flags = u64::from(self.full) << 1 | u64::from(self.bounded);
        put_varint(out, u64::from(self.steps) << 2 | flags);
        put_bytes(out, &self.packed);
    }

    fn decode(from: &mut Reader) -> Result<Run, Malformed> {
        let (head, packed): (u32, Bytes) = (from.number()?, from.bytes()?);
        let (steps, full, bounded) = (head >> 2, head & 2 != 0, head & 1 != 0);
        if steps > STEPS_MAX || packed.len() > BYTES_MAX {
            return Err(Malformed("a run is too long"));
        }
        let mut run = Run { packed: packed.clone(), steps, writes: false, grows: false, bounded, full };
        let mut left = Steps { whole: &packed, rest: &packed };
        for _ in 0..steps {
            let Step { deed, .. } = left.read()?;
            let action = if let Deed::Other(action) = &deed { Some(action) } else { None };
            if action.is_some_and(|action| !may_run(action)) {
                return Err(Malformed("no step of a run"));
            }
            run.grows |= deed.grows();
            run.writes |= deed.grows() || action.is_some_and(Action::is_write);
        }
        if left.rest.is_empty() { Ok(run) } else { Err(Malformed("steps left over")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Failure, FailureKind};

    fn example() -> Run {
        let mut packer = Packer::default();
        packer.get(b"a");
        packer.set(b"b", &[7; 200]);
        packer.push(b"", &Action::Set(Set { expiry: Expiry::After(5), ..Set::default() }));
        packer.push(b"c", &Action::Add(-3));
        packer.take()
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        let run = example();
        let deeds: Vec<_> = run.steps().map(|step| (step.key.to_vec(), step.deed.to_action())).collect();
        let set = |value: &'static [u8], expiry| {
            let value = Bytes::from_static(value);
            Action::Set(Set { value, expiry, ..Set::default() })
        };
        let expected = [
            (&b"a"[..], Action::Get),
            (b"b", set(&[7; 200], Expiry::Never)),
            (b"", set(b"", Expiry::After(5))),
            (b"c", Action::Add(-3)),
        ];
        assert_eq!(deeds.len(), 4);
        for ((key, action), (wanted_key, wanted)) in deeds.iter().zip(expected) {
            assert_eq!((&key[..], action), (wanted_key, &wanted));
        }
        assert!(run.is_write() && run.grows());
        assert_eq!(Run::from_bytes(run.to_bytes()), Ok(run.clone()));
        assert_eq!(Run::from_bytes(run.clone().bounded().to_bytes()), Ok(run.bounded()));
        assert!(Packer::default().take().is_empty(), "nothing is left of another run");
    }

    #[test]
    fn a_run_that_lies_is_refused() {
        let bytes = example().to_bytes();
        for len in 0..bytes.len() {
            assert!(Run::from_bytes(bytes.slice(..len)).is_err(), "{len} bytes");
        }
        let mut fewer = bytes.to_vec();
        fewer[0] -= 2;
        assert!(Run::from_bytes(fewer.into()).is_err(), "steps left over");
        let mut packed = Vec::new();
        put_bytes(&mut packed, b"k");
        Action::GetDelete.encode(&mut packed);
        let mut forbidden = Vec::from([1]);
        put_bytes(&mut forbidden, &packed);
        assert!(Run::from_bytes(forbidden.into()).is_err(), "no step");
    }

    #[test]
    fn a_reading_run_is_no_write() {
        let mut packer = Packer::default();
        packer.get(b"a");
        packer.push(b"a", &Action::Length);
        let run = packer.take();
        assert!(!run.is_write() && !run.grows());
        assert_eq!(Run::from_bytes(run.to_bytes()), Ok(run));
    }

    #[test]
    fn answers_come_out_in_order() {
        let failed = Failure::outcome(FailureKind::Full, "no room");
        let outcomes = [
            Outcome::Done,
            Outcome::Value(Bytes::from_static(b"v")),
            Outcome::Nil,
            Outcome::Integer(-5),
            failed,
        ];
        let mut packer = AnswerPacker::default();
        outcomes.iter().for_each(|outcome| packer.push(outcome));
        packer.done();
        packer.value(b"");
        packer.nil();
        let answers = packer.take();
        let found: Vec<Outcome> = answers.iter().map(|answer| answer.to_outcome()).collect();
        let more = [Outcome::Done, Outcome::Value(Bytes::new()), Outcome::Nil];
        assert!(found.iter().eq(outcomes.iter().chain(&more)));
        assert_eq!(Answers::new(Bytes::from_static(&[1, 9])).iter().count(), 0, "cut short");
    }
}
