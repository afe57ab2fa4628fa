//! Operations that their clients named, and what came of them: who asks again, whoever and wherever, is told the same.
//!
//! A name is remembered for a time that whoever orders reads off its wall clock and writes into the entry, so that all
//! replicas keep the same. It is never forgotten earlier: where there is no more room, new names are refused.

use crate::ids::Position;
use crate::operation::{Failure, FailureKind, Once, Op, Outcome};
use crate::random::mix;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Bound;

/// What a name takes beside its own bytes and its answer.
const RECORD_BYTES: usize = 256;

/// What an entry tells of the operation's name. The answer travels beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The name.
    pub id: Bytes,
    /// See [`Once::fingerprint`].
    pub fingerprint: u64,
    /// When it was ordered, in ms since 1970.
    pub at_ms: u64,
    /// When it may be forgotten.
    pub until_ms: u64,
}

/// An operation that was done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// See [`Once::fingerprint`].
    pub fingerprint: u64,
    /// The answer, unless it was too large to keep.
    pub outcome: Option<Outcome>,
    /// The place of its entry.
    pub position: Position,
    until_ms: u64,
}

/// All that are remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    by_id: BTreeMap<Bytes, Named>,
    by_time: BTreeSet<(u64, Bytes)>,
    bytes: usize,
}

/// Which of them somebody who gets them in parts still needs, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// All.
    All,
    /// Those after this one.
    After(Bytes),
    /// None.
    None,
}

impl Name {
    /// What is to be remembered of an operation that is ordered now.
    pub fn new(once: &Once, at_ms: u64, once_ms: u64) -> Name {
        let until_ms = at_ms.saturating_add(once_ms);
        Name { id: once.id.clone(), fingerprint: once.fingerprint, at_ms, until_ms }
    }
}

impl Named {
    /// What to tell who asks for `once`, which has the same id.
    pub fn answer(&self, once: &Once) -> Outcome {
        if self.fingerprint != once.fingerprint {
            return another(once);
        }
        let lost = || {
            let text = "it took effect, but its answer was too large to keep";
            Failure::outcome(FailureKind::Uncertain, text)
        };
        self.outcome.clone().unwrap_or_else(lost)
    }
}

/// The answer to an operation whose name another one has.
pub fn another(once: &Once) -> Outcome {
    let id = once.id.escape_ascii();
    let text = alloc::format!("the id '{id}' belongs to another command; every command needs its own");
    Failure::outcome(FailureKind::Invalid, text)
}

impl Names {
    /// Remembers an operation, and forgets those whose time was over when it was ordered.
    pub fn record(&mut self, name: Name, outcome: Option<&Outcome>, position: Position) {
        self.forget(name.at_ms);
        // Copies, so that a few bytes do not hold a whole frame for minutes.
        let id = Bytes::copy_from_slice(&name.id);
        let outcome = outcome.map(Outcome::detached);
        let Name { fingerprint, until_ms, .. } = name;
        self.insert(id, Named { fingerprint, outcome, position, until_ms });
    }

    fn insert(&mut self, id: Bytes, named: Named) {
        self.bytes += size(&id, named.outcome.as_ref());
        let until_ms = named.until_ms;
        if let Some(old) = self.by_id.insert(id.clone(), named) {
            self.bytes -= size(&id, old.outcome.as_ref());
            self.by_time.remove(&(old.until_ms, id.clone()));
        }
        self.by_time.insert((until_ms, id));
    }

    /// Forgets those whose time is over.
    pub fn forget(&mut self, unix_ms: u64) {
        while self.by_time.first().is_some_and(|(until_ms, _)| *until_ms <= unix_ms) {
            let Some((_, id)) = self.by_time.pop_first() else { return };
            let named = self.by_id.remove(&id);
            self.bytes -= named.map_or(0, |named| size(&id, named.outcome.as_ref()));
        }
    }

    /// The next of them, about so many bytes, and what is left then.
    pub fn part(&self, left: &Left, bytes_max: usize) -> (Names, Left) {
        let after = match left {
            Left::All => Bound::Unbounded,
            Left::After(id) => Bound::Excluded(id),
            Left::None => return (Names::default(), Left::None),
        };
        let mut part = Names::default();
        for (id, named) in self.by_id.range::<Bytes, _>((after, Bound::Unbounded)) {
            part.insert(id.clone(), named.clone());
            if part.bytes >= bytes_max {
                return (part, Left::After(id.clone()));
            }
        }
        (part, Left::None)
    }

    /// Adds a part of another replica's.
    pub fn merge(&mut self, part: Names) {
        part.by_id.into_iter().for_each(|(id, named)| self.insert(id, named));
    }

    /// The same for a shard that begins at this place with what was done before: what came later was not for it.
    pub fn inherited(mut self, place: Position) -> Names {
        let later = self.by_id.extract_if(.., |_, named| named.position.epoch >= place.epoch);
        for (id, named) in later.collect::<Vec<_>>() {
            self.bytes -= size(&id, named.outcome.as_ref());
            self.by_time.remove(&(named.until_ms, id));
        }
        self.by_id.values_mut().for_each(|named| named.position = place);
        self
    }

    /// What became of the operation with this id.
    pub fn find(&self, id: &Bytes) -> Option<&Named> {
        self.by_id.get(id)
    }

    /// Whether there is room for one more, beside so many that are being decided.
    pub fn has_room(&self, deciding: usize, bytes_max: usize) -> bool {
        self.bytes + deciding * RECORD_BYTES < bytes_max
    }

    /// Whether an answer has a place here. Room is found before it is known, so there is as much again for answers.
    pub fn holds(&self, outcome: &Outcome, bytes_max: usize) -> bool {
        self.bytes + outcome.size() <= 2 * bytes_max
    }
}

fn size(id: &Bytes, outcome: Option<&Outcome>) -> usize {
    RECORD_BYTES + id.len() + outcome.map_or(0, Outcome::size)
}

/// A number that commands share if they come down to the same operations, and hardly otherwise. The same on every machine
/// and in every version: who compares may be another node than who made it.
pub fn fingerprint<'a>(ops: impl Iterator<Item = &'a Op>) -> u64 {
    let mut bytes = Vec::new();
    ops.for_each(|op| op.encode(&mut bytes));
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).fold(mix(bytes.len() as u64), |sum, chunk| mix(sum.rotate_left(5) ^ word(chunk)))
}

impl Wire for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.id);
        put_varint(out, self.fingerprint);
        put_varint(out, self.at_ms);
        put_varint(out, self.until_ms);
    }

    fn decode(from: &mut Reader) -> Result<Name, Malformed> {
        let (id, fingerprint) = (from.bytes()?, from.varint()?);
        Ok(Name { id, fingerprint, at_ms: from.varint()?, until_ms: from.varint()? })
    }
}

impl Wire for Names {
    fn encode(&self, out: &mut Vec<u8>) {
        let all: Vec<(&Bytes, &Named)> = self.by_id.iter().collect();
        put_list(out, &all, |out, (id, named)| {
            put_bytes(out, id);
            put_varint(out, named.fingerprint);
            named.position.encode(out);
            put_varint(out, named.until_ms);
            put_option(out, named.outcome.as_ref(), |out, outcome| outcome.encode(out));
        });
    }

    fn decode(from: &mut Reader) -> Result<Names, Malformed> {
        let mut names = Names::default();
        let all = from.list(|from| {
            let (id, fingerprint) = (Bytes::copy_from_slice(&from.bytes()?), from.varint()?);
            let (position, until_ms) = (Position::decode(from)?, from.varint()?);
            let outcome = from.option(Outcome::decode)?.map(|outcome| outcome.detached());
            Ok((id, Named { fingerprint, outcome, position, until_ms }))
        })?;
        all.into_iter().for_each(|(id, named)| names.insert(id, named));
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::operation::Action;

    fn once(id: &'static str, key: &'static str) -> Once {
        let op = Op::Key(Bytes::from_static(key.as_bytes()), Action::Add(1));
        Once { id: Bytes::from_static(id.as_bytes()), fingerprint: fingerprint([&op].into_iter()), op }
    }

    fn record(names: &mut Names, id: &'static str, at_ms: u64) {
        let position = Position { epoch: Epoch(1), sequence: at_ms };
        let outcome = Outcome::Value(Bytes::from_static(b"answer"));
        names.record(Name::new(&once(id, "k"), at_ms, 100), Some(&outcome), position);
    }

    fn knows(names: &Names, id: &'static str) -> bool {
        names.find(&Bytes::from_static(id.as_bytes())).is_some()
    }

    #[test]
    fn names_last_their_time_and_no_longer() {
        let mut names = Names::default();
        record(&mut names, "a", 1000);
        record(&mut names, "b", 1050);
        names.forget(1099);
        assert!(knows(&names, "a"));
        assert_eq!(Names::from_bytes(names.to_bytes()), Ok(names.clone()));
        record(&mut names, "c", 1100);
        assert!(!knows(&names, "a") && knows(&names, "b"), "by the time of who orders");
        record(&mut names, "b", 1120);
        names.forget(1199);
        assert!(knows(&names, "b") && knows(&names, "c"));
        names.forget(1220);
        assert_eq!(names, Names::default(), "also the bytes");
    }

    #[test]
    fn who_asks_again_is_told_the_same_and_who_asks_for_something_else_is_told_so() {
        let mut names = Names::default();
        record(&mut names, "a", 1);
        let known = names.find(&Bytes::from_static(b"a")).unwrap();
        assert_eq!(known.answer(&once("a", "k")), Outcome::Value(Bytes::from_static(b"answer")));
        let other = known.answer(&once("a", "another key"));
        assert!(matches!(other, Outcome::Failed(failure) if failure.kind == FailureKind::Invalid));
        let lost = Named { outcome: None, ..known.clone() }.answer(&once("a", "k"));
        assert!(matches!(lost, Outcome::Failed(failure) if failure.kind == FailureKind::Uncertain));
    }

    #[test]
    fn room_is_counted_with_what_is_being_decided() {
        let mut names = Names::default();
        let max = 3 * RECORD_BYTES;
        assert!(names.has_room(2, max) && !names.has_room(3, max));
        record(&mut names, "a", 1);
        assert!(names.has_room(1, max) && !names.has_room(2, max));
        assert!(!names.holds(&Outcome::Value(alloc::vec![0; 6 * RECORD_BYTES].into()), max));
    }

    #[test]
    fn parts_make_the_whole() {
        let mut names = Names::default();
        for (at_ms, id) in ["d", "a", "c", "b"].into_iter().enumerate() {
            record(&mut names, id, at_ms as u64);
        }
        let (mut whole, mut left, mut parts) = (Names::default(), Left::All, 0);
        while left != Left::None {
            let part;
            (part, left) = names.part(&left, 1);
            whole.merge(part.clone());
            // Some may come twice.
            whole.merge(part);
            parts += 1;
        }
        assert_eq!((whole, parts), (names.clone(), 5), "the last one is empty");
        assert_eq!(names.part(&Left::All, 1 << 20), (names.clone(), Left::None));
    }

    #[test]
    fn fingerprints_do_not_change() {
        // Other versions compare theirs with it.
        assert_eq!(once("a", "k").fingerprint, 14_777_489_087_287_716_306);
        assert_ne!(once("a", "k").fingerprint, once("a", "l").fingerprint);
    }
}
