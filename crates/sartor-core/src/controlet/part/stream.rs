//! What not every replica has yet, encoded once for all of them: entries, or operations whose entry each makes for itself.

use super::answers::Answered;
use crate::entry::Entry;
use crate::ids::{Incarnation, Position, ShardId, WorkerId};
use crate::keeper::Replay;
use crate::operation::{Consistency, From, Op, Request};
use crate::record::Bounds;
use crate::time::Micros;
use crate::wire::codec::{Malformed, Reader, Wire, put_varint};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::{Bytes, BytesMut};

/// An entry, and the request it came from with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ordered {
    /// The entry.
    pub entry: Entry,
    /// None for what no client asked for.
    pub answered: Option<Answered>,
}

/// One place of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// What changes there.
    Entry(Ordered),
    /// What is to be done there.
    Operation(Replay),
}

impl Item {
    /// Its place.
    pub fn position(&self) -> Position {
        match self {
            Item::Entry(ordered) => ordered.entry.position,
            Item::Operation(replay) => replay.position,
        }
    }

    /// Reads one; `shard` is what it belongs to.
    pub fn decode(from: &mut Reader, shard: ShardId) -> Result<Item, Malformed> {
        Ok(match from.byte()? {
            0 => Item::Entry(Ordered { entry: Entry::decode(from)?, answered: None }),
            1 => {
                let answered = Some(Answered::decode(from)?);
                Item::Entry(Ordered { entry: Entry::decode(from)?, answered })
            }
            2 => {
                let replay = decode_replay(from, From::Nobody, shard)?;
                // What is to be remembered has somebody who may ask again.
                if matches!(replay.request.op, Op::Once(_)) {
                    return Err(Malformed("a named operation of nobody"));
                }
                Item::Operation(replay)
            }
            3 => {
                let worker = WorkerId::decode(from)?;
                let (incarnation, base) = (Incarnation(from.varint()?), from.varint()?);
                let sequence = base.checked_add(from.varint()?).ok_or(Malformed("number too large"))?;
                let from_worker = From::Worker { worker, incarnation, sequence, base };
                Item::Operation(decode_replay(from, from_worker, shard)?)
            }
            _ => return Err(Malformed("unknown item of a stream")),
        })
    }
}

fn encode_ordered(ordered: &Ordered, out: &mut Vec<u8>) {
    out.push(u8::from(ordered.answered.is_some()));
    if let Some(answered) = &ordered.answered {
        answered.encode(out);
    }
    ordered.entry.encode(out);
}

fn encode_replay(replay: &Replay, out: &mut Vec<u8>) {
    if let From::Worker { worker, incarnation, sequence, base } = replay.request.from {
        out.push(3);
        worker.encode(out);
        put_varint(out, incarnation.0);
        put_varint(out, base);
        put_varint(out, sequence - base);
    } else {
        // A client of who ordered it, who knows.
        out.push(2);
    }
    replay.position.encode(out);
    put_varint(out, replay.unix_ms);
    let Bounds { key_bytes_min, key_bytes_max, value_bytes_max } = replay.bounds;
    // No bound is the shortest.
    for bound in [key_bytes_min, key_bytes_max.wrapping_add(1), value_bytes_max] {
        put_varint(out, bound as u64);
    }
    replay.request.op.encode(out);
}

fn decode_replay(reader: &mut Reader, from: From, shard: ShardId) -> Result<Replay, Malformed> {
    let (position, unix_ms) = (Position::decode(reader)?, reader.varint()?);
    let (key_bytes_min, key_bytes_max, value_bytes_max) =
        (reader.number()?, reader.number::<usize>()?, reader.number()?);
    let key_bytes_max = key_bytes_max.wrapping_sub(1);
    let bounds = Bounds { key_bytes_min, key_bytes_max, value_bytes_max };
    let (op, floor, deadline_us) = (Op::decode(reader)?, Position::ZERO, Micros::MAX);
    let request = Request { from, shard, op, floor, consistency: Consistency::Mode, deadline_us };
    Ok(Replay { request, position, unix_ms, bounds })
}

/// A gapless run of encoded items: pushed at the end, trimmed at the front.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The sequence of the first entry held, or of the next one to come.
    first: u64,
    /// Each entry, and the bytes of all entries ever pushed up to its end.
    entries: VecDeque<(Bytes, u64)>,
    pushed_bytes: u64,
    trimmed_bytes: u64,
    scratch: Vec<u8>,
    arena: BytesMut,
}

impl Stream {
    /// An empty stream whose first entry will be `first`.
    pub fn starting_at(first: u64) -> Stream {
        Stream { first, ..Stream::default() }
    }

    /// The sequence that the next entry must have.
    pub fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The sequence of the oldest entry still held, or of the next one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        (self.pushed_bytes - self.trimmed_bytes) as usize
    }

    /// Appends an entry.
    pub fn push(&mut self, ordered: &Ordered) {
        self.scratch.clear();
        encode_ordered(ordered, &mut self.scratch);
        self.push_scratch(ordered.entry.position.sequence);
    }

    /// Appends an operation.
    pub fn push_operation(&mut self, replay: &Replay) {
        self.scratch.clear();
        encode_replay(replay, &mut self.scratch);
        self.push_scratch(replay.position.sequence);
    }

    fn push_scratch(&mut self, sequence: u64) {
        // A copy of keys and values: a slice would hold the client's whole read buffer.
        self.arena.extend_from_slice(&self.scratch);
        let encoded = self.arena.split().freeze();
        self.push_encoded(sequence, encoded);
    }

    /// What stands at a place, if it is still held.
    pub fn get(&self, sequence: u64) -> Option<&Bytes> {
        let place = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.entries.get(place).map(|(encoded, _)| encoded)
    }

    /// Appends an entry as it came.
    pub fn push_encoded(&mut self, sequence: u64, encoded: Bytes) {
        assert_eq!(sequence, self.next(), "a stream has no gaps");
        self.pushed_bytes += encoded.len() as u64;
        self.entries.push_back((encoded, self.pushed_bytes));
    }

    /// Drops everything; the next entry will be `next`.
    pub fn restart_at(&mut self, next: u64) {
        self.entries.clear();
        self.first = next;
        self.trimmed_bytes = self.pushed_bytes;
    }

    /// Drops the entries up to `sequence`.
    pub fn trim(&mut self, sequence: u64) {
        while self.first <= sequence {
            let Some((_, end)) = self.entries.pop_front() else { return };
            self.trimmed_bytes = end;
            self.first += 1;
        }
    }

    /// Entries from `from` to `to`, together about `bytes_max`: at least one if there is any. The
    /// sequence of the last one, and their bytes.
    pub fn batch(&self, from: u64, to: u64, bytes_max: usize) -> Option<(u64, Vec<u8>)> {
        let skip = usize::try_from(from.checked_sub(self.first)?).ok()?;
        let count = usize::try_from((to + 1).saturating_sub(from)).ok()?;
        let mut batch = Vec::new();
        let mut last = from;
        for (i, (entry, _)) in self.entries.iter().skip(skip).take(count).enumerate() {
            if !batch.is_empty() && batch.len() + entry.len() > bytes_max {
                break;
            }
            batch.extend_from_slice(entry);
            last = from + i as u64;
        }
        if batch.is_empty() { None } else { Some((last, batch)) }
    }

    /// Bytes of the entries in `(after, up_to]` that are still held.
    pub fn bytes_between(&self, after: u64, up_to: u64) -> usize {
        (self.end_of(up_to) - self.end_of(after)) as usize
    }

    fn end_of(&self, sequence: u64) -> u64 {
        match (sequence + 1).checked_sub(self.first) {
            None | Some(0) => self.trimmed_bytes,
            Some(count) => self.entries.get(count as usize - 1).map_or(self.pushed_bytes, |(_, end)| *end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Write, Writes};
    use crate::ids::{Epoch, NodeId, Position};

    fn entry(sequence: u64) -> Ordered {
        let position = Position { epoch: Epoch(1), sequence };
        let entry = Entry { position, writes: Writes::of([Write::Delete { key: b"key" }]) };
        Ordered { entry, answered: None }
    }

    #[test]
    fn items_come_back() {
        let named = Answered {
            worker: WorkerId { node: NodeId(3), worker: 1 },
            incarnation: Incarnation(9),
            sequence: 12,
            base: 10,
            outcome: None,
            name: None,
        };
        let mut stream = Stream::starting_at(1);
        let (plain, answered) = (entry(1), Ordered { answered: Some(named), ..entry(2) });
        stream.push(&plain);
        stream.push(&answered);
        let worker = WorkerId { node: NodeId(3), worker: 1 };
        let from = From::Worker { worker, incarnation: Incarnation(9), sequence: 12, base: 10 };
        let replay = |sequence, from| Replay {
            request: Request {
                from,
                shard: ShardId(4),
                op: Op::Expire(alloc::vec![Bytes::from_static(b"key")]),
                floor: Position::ZERO,
                consistency: Consistency::Mode,
                deadline_us: Micros::MAX,
            },
            position: Position { epoch: Epoch(2), sequence },
            unix_ms: 1000,
            bounds: Bounds { value_bytes_max: 1 << 24, ..Bounds::default() },
        };
        stream.push_operation(&replay(3, from));
        stream.push_operation(&replay(4, From::Nobody));
        let back = |sequence| {
            let mut reader = Reader::new(stream.get(sequence).unwrap().clone());
            Item::decode(&mut reader, ShardId(4)).unwrap()
        };
        assert_eq!((back(1), back(2)), (Item::Entry(plain), Item::Entry(answered)));
        assert_eq!(back(3), Item::Operation(replay(3, from)));
        assert_eq!(back(4), Item::Operation(replay(4, From::Nobody)));
        assert_eq!(back(4).position().sequence, 4);
    }

    #[test]
    fn batches_are_bounded_and_trimming_frees() {
        let mut stream = Stream::starting_at(1);
        for sequence in 1..=10 {
            stream.push(&entry(sequence));
        }
        let one = stream.bytes() / 10;
        assert_eq!(stream.batch(1, 99, 3 * one).map(|(last, bytes)| (last, bytes.len())), Some((3, 3 * one)));
        assert_eq!(stream.batch(1, 2, 100 * one).map(|(last, _)| last), Some(2));
        assert_eq!(stream.batch(9, 99, 0).map(|(last, _)| last), Some(9));
        assert_eq!(stream.batch(11, 99, 100), None);
        assert_eq!(stream.bytes_between(2, 5), 3 * one);
        stream.trim(4);
        assert_eq!((stream.bytes(), stream.first(), stream.next()), (6 * one, 5, 11));
        assert_eq!(stream.batch(4, 99, 100), None);
        assert_eq!(stream.bytes_between(0, 5), one);
        stream.trim(99);
        assert_eq!((stream.bytes(), stream.first(), stream.next()), (0, 11, 11));
    }
}
