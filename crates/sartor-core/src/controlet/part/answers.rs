//! What became of writes, kept by every replica, so that a request that is sent again after a failover
//! is answered instead of being done twice.
//!
//! An origin numbers its requests and tells with each below which number all are settled. The answer to
//! a write travels with its entry; so whoever has the entry has the answer. What clients named is kept beside (`once.rs`).

use super::once::Name;
use crate::ids::{Epoch, Incarnation, NodeId, Position, WorkerId};
use crate::mutants::{Fault, planted};
use crate::operation::{From, Outcome};
use crate::wire::codec::{Malformed, Reader, Wire, put_list, put_option, put_varint};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// No origin has more requests on their way.
const WINDOW_MAX: u64 = 1 << 20;

/// A request that had an effect, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answered {
    /// The worker whose client asked.
    pub worker: WorkerId,
    /// That worker's life.
    pub incarnation: Incarnation,
    /// The request's number.
    pub sequence: u64,
    /// All requests below this number are settled.
    pub base: u64,
    /// The answer; none if it was too large to keep.
    pub outcome: Option<Outcome>,
    /// What its client called it, if anything.
    pub name: Option<Box<Name>>,
}

impl Answered {
    /// The answer to a forwarded request, if that is to be kept.
    pub fn new(from: From, outcome: Option<Outcome>, name: Option<Box<Name>>) -> Option<Answered> {
        let From::Worker { worker, incarnation, sequence, base } = from else { return None };
        Some(Answered { worker, incarnation, sequence, base, outcome, name })
    }
}

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    /// The answer, unless it was too large to keep.
    pub outcome: Option<Outcome>,
    /// The place of its entry.
    pub position: Position,
}

/// The answers to the writes of all origins that may still be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Answers {
    origins: BTreeMap<WorkerId, Origin>,
    bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Origin {
    incarnation: Incarnation,
    /// The number of the first place in `kept`.
    base: u64,
    kept: VecDeque<Option<Known>>,
}

impl Answers {
    /// Remembers an answer; beyond `bytes_max` the origin's oldest ones are forgotten, but not that there was one.
    pub fn record(&mut self, answered: Answered, position: Position, bytes_max: usize) {
        let Answered { worker, incarnation, sequence, base, outcome, name: _ } = answered;
        let origin = self.origins.entry(worker).or_default();
        if incarnation < origin.incarnation || sequence < base || sequence - base > WINDOW_MAX {
            return;
        }
        if incarnation > origin.incarnation {
            self.bytes -= origin.kept.iter().flatten().map(Known::size).sum::<usize>();
            *origin = Origin { incarnation, base, kept: VecDeque::new() };
        }
        while origin.base < base {
            self.bytes -= origin.kept.pop_front().flatten().map_or(0, |known| known.size());
            origin.base = if origin.kept.is_empty() { base } else { origin.base + 1 };
        }
        let Some(place) = sequence.checked_sub(origin.base) else { return };
        let place = place as usize;
        if place >= origin.kept.len() {
            origin.kept.resize(place + 1, None);
        }
        let known = Known { outcome, position };
        self.bytes += known.size();
        self.bytes -= origin.kept[place].replace(known).map_or(0, |old| old.size());
        if self.bytes > bytes_max {
            self.forget(worker, bytes_max);
        }
    }

    /// What became of a request, if it had an effect.
    pub fn find(&self, from: From) -> Option<&Known> {
        let From::Worker { worker, incarnation, sequence, .. } = from else { return None };
        let known = |origin: &&Origin| origin.incarnation == incarnation && !planted(Fault::ForgetAnswers);
        let origin = self.origins.get(&worker).filter(known)?;
        origin.kept.get(usize::try_from(sequence.checked_sub(origin.base)?).ok()?)?.as_ref()
    }

    fn forget(&mut self, worker: WorkerId, bytes_max: usize) {
        let Some(origin) = self.origins.get_mut(&worker) else { return };
        for known in origin.kept.iter_mut().flatten() {
            if self.bytes <= bytes_max {
                return;
            }
            self.bytes -= known.size();
            known.outcome = None;
            self.bytes += known.size();
        }
    }
}

impl Known {
    fn size(&self) -> usize {
        self.outcome.as_ref().map_or(0, Outcome::size)
    }
}

impl Wire for Answered {
    fn encode(&self, out: &mut Vec<u8>) {
        self.worker.encode(out);
        put_varint(out, self.incarnation.0);
        put_varint(out, self.base);
        put_varint(out, self.sequence - self.base);
        put_option(out, self.outcome.as_ref(), |out, outcome| outcome.encode(out));
        put_option(out, self.name.as_ref(), |out, name| name.encode(out));
    }

    fn decode(from: &mut Reader) -> Result<Answered, Malformed> {
        let worker = WorkerId::decode(from)?;
        let incarnation = Incarnation(from.varint()?);
        let base = from.varint()?;
        let sequence = base.checked_add(from.varint()?).ok_or(Malformed("number too large"))?;
        let (outcome, name) = (from.option(Outcome::decode)?, from.option(Name::decode)?.map(Box::new));
        Ok(Answered { worker, incarnation, sequence, base, outcome, name })
    }
}

impl Wire for Answers {
    fn encode(&self, out: &mut Vec<u8>) {
        let origins: Vec<(&WorkerId, &Origin)> = self.origins.iter().collect();
        put_list(out, &origins, |out, (worker, origin)| {
            worker.encode(out);
            put_varint(out, origin.incarnation.0);
            put_varint(out, origin.base);
            let kept: Vec<Option<&Known>> = origin.kept.iter().map(Option::as_ref).collect();
            put_list(out, &kept, |out, known| {
                put_option(out, known.as_ref(), |out, known| {
                    known.position.encode(out);
                    put_option(out, known.outcome.as_ref(), |out, outcome| outcome.encode(out));
                });
            });
        });
    }

    fn decode(from: &mut Reader) -> Result<Answers, Malformed> {
        let mut answers = Answers::default();
        let known = |from: &mut Reader| {
            let position = Position::decode(from)?;
            Ok(Known { position, outcome: from.option(Outcome::decode)? })
        };
        let origins = from.list(|from| {
            let worker = WorkerId::decode(from)?;
            let (incarnation, base) = (Incarnation(from.varint()?), from.varint()?);
            let kept = from.list(|from| from.option(known))?.into();
            Ok((worker, Origin { incarnation, base, kept }))
        })?;
        for (worker, origin) in origins {
            answers.bytes += origin.kept.iter().flatten().map(Known::size).sum::<usize>();
            answers.origins.insert(worker, origin);
        }
        Ok(answers)
    }
}

impl Wire for WorkerId {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.node.0));
        out.push(self.worker);
    }

    fn decode(from: &mut Reader) -> Result<WorkerId, Malformed> {
        Ok(WorkerId { node: NodeId(from.number()?), worker: from.byte()? })
    }
}

impl Wire for Epoch {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0);
    }

    fn decode(from: &mut Reader) -> Result<Epoch, Malformed> {
        Ok(Epoch(from.varint()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const WORKER: WorkerId = WorkerId { node: NodeId(3), worker: 1 };

    fn from(life: u64, sequence: u64) -> From {
        From::Worker { worker: WORKER, incarnation: Incarnation(life), sequence, base: 0 }
    }

    fn answered(life: u64, base: u64, sequence: u64, bytes: usize) -> Answered {
        let outcome = Some(Outcome::Value(Bytes::from(alloc::vec![7; bytes])));
        Answered { worker: WORKER, incarnation: Incarnation(life), sequence, base, outcome, name: None }
    }

    fn at(sequence: u64) -> Position {
        Position { epoch: Epoch(1), sequence }
    }

    #[test]
    fn answers_are_found_until_they_are_settled() {
        let mut answers = Answers::default();
        answers.record(answered(1, 5, 7, 10), at(1), 100);
        answers.record(answered(1, 5, 9, 10), at(2), 100);
        assert_eq!(answers.find(from(1, 9)).map(|known| known.position), Some(at(2)));
        assert_eq!(answers.find(from(1, 8)), None, "had no effect");
        assert_eq!(answers.find(from(2, 9)), None, "another life");
        assert_eq!(Answers::from_bytes(answers.to_bytes()), Ok(answers.clone()));
        answers.record(answered(1, 9, 12, 10), at(3), 100);
        assert_eq!((answers.find(from(1, 7)), answers.bytes), (None, 20));
        answers.record(answered(2, 1, 1, 10), at(4), 100);
        assert_eq!((answers.find(from(1, 12)), answers.bytes), (None, 10));
    }

    #[test]
    fn what_travels_with_an_entry_comes_back() {
        let id = Bytes::from_static(b"id");
        let name = Some(Box::new(Name { id, fingerprint: 7, at_ms: 1000, until_ms: 2000 }));
        let named = Answered { name, ..answered(1, 2, 3, 10) };
        assert_eq!(Answered::from_bytes(named.to_bytes()), Ok(named));
    }

    #[test]
    fn a_bound_costs_answers_but_not_the_knowledge_that_there_was_one() {
        let mut answers = Answers::default();
        for sequence in 1..=10 {
            answers.record(answered(1, 1, sequence, 40), at(sequence), 100);
        }
        assert!(answers.bytes <= 100);
        assert_eq!(answers.find(from(1, 1)), Some(&Known { outcome: None, position: at(1) }));
        assert!(answers.find(from(1, 10)).is_some_and(|known| known.outcome.is_some()));
    }
}
