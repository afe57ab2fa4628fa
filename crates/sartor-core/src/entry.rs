//! Entries: numbered changes of a shard, the unit of replication.
//!
//! What an entry changes is kept as the bytes that travel, so that many writes cost one buffer: who orders packs
//! them while it decides, links and followers pass the bytes on, stores read them where they lie.
//!
//! ```text
//!  write: 0 │ key │ value │ [deadline ms]     put       keys and values: length (varint), bytes
//!         1 │ key                             delete
//!         2                                   clear
//!         3                                   survey
//! ```

use crate::ids::Position;
use crate::wire::codec::{Malformed, Reader, Wire, get_bytes, get_varint, put_varint};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;

/// A numbered change of a shard. All of it is applied, or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its place in the shard's history.
    pub position: Position,
    /// What changes.
    pub writes: Writes,
}

/// The effect of an operation: the same on every replica, whatever their clocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write<'a> {
    /// The key holds this from now on.
    Put {
        /// The key.
        key: &'a [u8],
        /// The user's value.
        value: &'a [u8],
        /// When it expires, in ms since 1970.
        deadline_ms: Option<u64>,
    },
    /// The key is gone.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Everything is gone.
    Clear,
    /// Nothing changes; each replica begins a survey of what it holds here.
    Survey,
}

/// Writes in order; none where only an answer is to be remembered.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Writes {
    count: usize,
    packed: Bytes,
}

impl Writes {
    /// These, in order.
    pub fn of<'a>(writes: impl IntoIterator<Item = Write<'a>>) -> Writes {
        let mut packer = Packer::default();
        writes.into_iter().for_each(|write| packer.push(write));
        packer.take()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// They, as the bytes that travel.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        let mut rest = &self.packed[..];
        // What came from elsewhere was looked at when it was decoded.
        core::iter::from_fn(move || if rest.is_empty() { None } else { Write::take(&mut rest) })
    }

    /// Whether it begins a survey.
    pub fn is_survey(&self) -> bool {
        self.iter().next() == Some(Write::Survey)
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Write<'a> {
    /// The key that changes, if it is one.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => Some(key),
            Write::Clear | Write::Survey => None,
        }
    }

    /// Reads one off the front; none if the bytes say something else.
    #[inline]
    fn take(from: &mut &'a [u8]) -> Option<Write<'a>> {
        let (&tag, mut rest) = from.split_first()?;
        let write = match tag {
            0 => Write::Put {
                key: get_bytes(&mut rest)?,
                value: get_bytes(&mut rest)?,
                deadline_ms: get_deadline(&mut rest)?,
            },
            1 => Write::Delete { key: get_bytes(&mut rest)? },
            2 => Write::Clear,
            3 => Write::Survey,
            _ => return None,
        };
        *from = rest;
        Some(write)
    }
}

#[inline]
fn get_deadline(from: &mut &[u8]) -> Option<Option<u64>> {
    let (&present, rest) = from.split_first()?;
    *from = rest;
    match present {
        0 => Some(None),
        1 => get_varint(from).map(Some),
        _ => None,
    }
}

/// Packs writes, one behind the other, into memory that is used again once nobody holds what was taken.
#[derive(Debug, Default)]
pub struct Packer {
    count: usize,
    buffer: BytesMut,
}

impl Packer {
    /// Adds a write.
    pub fn push(&mut self, write: Write<'_>) {
        self.count += 1;
        let out = &mut self.buffer;
        match write {
            Write::Put { key, value, deadline_ms } => {
                out.reserve(key.len() + value.len() + 32);
                out.put_u8(0);
                put_slice(out, key);
                put_slice(out, value);
                out.put_u8(u8::from(deadline_ms.is_some()));
                if let Some(ms) = deadline_ms {
                    put_number(out, ms);
                }
            }
            Write::Delete { key } => {
                out.put_u8(1);
                put_slice(out, key);
            }
            Write::Clear => out.put_u8(2),
            Write::Survey => out.put_u8(3),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// About how many bytes they hold.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// All that were added since the last time.
    pub fn take(&mut self) -> Writes {
        Writes { count: core::mem::take(&mut self.count), packed: self.buffer.split().freeze() }
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.count = 0;
        self.buffer.clear();
    }
}

fn put_number(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn put_slice(out: &mut BytesMut, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

impl Wire for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.position.encode(out);
        put_varint(out, self.writes.count as u64);
        out.extend_from_slice(&self.writes.packed);
    }

    fn decode(from: &mut Reader) -> Result<Entry, Malformed> {
        let position = Position::decode(from)?;
        let count = from.number()?;
        let mut rest = &from.left()[..];
        for _ in 0..count {
            Write::take(&mut rest).ok_or(Malformed("bad write"))?;
        }
        let len = from.left().len() - rest.len();
        Ok(Entry { position, writes: Writes { count, packed: from.exactly(len)? } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    #[test]
    fn entries_come_back() {
        let put = Write::Put { key: b"k", value: b"", deadline_ms: Some(5) };
        let plain = Write::Put { key: b"", value: &[7; 300], deadline_ms: None };
        let position = Position { epoch: Epoch(2), sequence: 1 << 40 };
        let many = [put, plain, Write::Delete { key: b"k" }];
        for writes in [&many[..], &[Write::Clear], &[Write::Survey], &[]] {
            let entry = Entry { position, writes: Writes::of(writes.iter().copied()) };
            assert!(entry.writes.iter().eq(writes.iter().copied()));
            assert_eq!(entry.writes.len(), writes.len());
            assert_eq!(Entry::from_bytes(entry.to_bytes()), Ok(entry));
        }
    }

    #[test]
    fn bytes_that_are_no_writes_are_refused() {
        let entry = Entry { position: Position::ZERO, writes: Writes::of([Write::Delete { key: b"key" }]) };
        let bytes = entry.to_bytes();
        for len in 0..bytes.len() {
            assert!(Entry::from_bytes(bytes.slice(..len)).is_err(), "{len} bytes");
        }
        assert!(Entry::from_bytes(Bytes::from_static(&[0, 0, 1, 9])).is_err());
        assert!(Entry::from_bytes(Bytes::from_static(&[0, 0, 255, 255, 255, 255, 15])).is_err());
    }
}
