//! The entries that not every replica has yet, encoded once for all of them.

use super::answers::Answered;
use crate::entry::Entry;
use crate::wire::codec::{Malformed, Reader, Wire, put_option};
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

impl Wire for Ordered {
    fn encode(&self, out: &mut Vec<u8>) {
        self.entry.encode(out);
        put_option(out, self.answered.as_ref(), |out, answered| answered.encode(out));
    }

    fn decode(from: &mut Reader) -> Result<Ordered, Malformed> {
        Ok(Ordered { entry: Entry::decode(from)?, answered: from.option(Answered::decode)? })
    }
}

/// A gapless run of encoded entries: pushed at the end, trimmed at the front.
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
        ordered.encode(&mut self.scratch);
        // A copy of keys and values: a slice would hold the client's whole read buffer.
        self.arena.extend_from_slice(&self.scratch);
        let encoded = self.arena.split().freeze();
        self.push_encoded(ordered.entry.position.sequence, encoded);
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
    use crate::ids::{Epoch, Position};

    fn entry(sequence: u64) -> Ordered {
        let position = Position { epoch: Epoch(1), sequence };
        let entry = Entry { position, writes: Writes::of([Write::Delete { key: b"key" }]) };
        Ordered { entry, answered: None }
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
