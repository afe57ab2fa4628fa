//! How a record is kept in a datalet: the user's value, and what Sartor remembers of it.
//!
//! *Envelope* (the default): one stored value holds both.
//!
//! ```text
//! flags: u8 (bit 0: has a deadline) │ epoch: varint │ sequence: varint │ [deadline ms: varint] │ value
//! ```
//!
//! *Beside*: the store keeps the value raw, so that others can read it; a second datalet keeps
//! the same bytes without the value under the same key.

use crate::ids::{Epoch, Position};
use crate::wire::codec::{get_varint, put_varint};
use alloc::vec::Vec;
use bytes::Bytes;

/// What Sartor remembers of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Meta {
    /// Where it was written.
    pub version: Position,
    /// When it expires, in ms since 1970.
    pub deadline_ms: Option<u64>,
}

/// A record as a walk finds it and a new replica gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// The key.
    pub key: Bytes,
    /// The user's value.
    pub value: Bytes,
    /// What is remembered of it.
    pub meta: Meta,
}

/// Where the [`Meta`] of a record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In front of the value.
    Envelope,
    /// In a second datalet under the same key.
    Beside,
}

/// Which records a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// The shortest key, in bytes.
    pub key_bytes_min: usize,
    /// The longest key, in bytes.
    pub key_bytes_max: usize,
    /// The largest value of a user, in bytes.
    pub value_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { key_bytes_min: 0, key_bytes_max: usize::MAX, value_bytes_max: usize::MAX }
    }
}

impl Bounds {
    /// What both take.
    #[must_use]
    pub fn and(self, other: Bounds) -> Bounds {
        Bounds {
            key_bytes_min: self.key_bytes_min.max(other.key_bytes_min),
            key_bytes_max: self.key_bytes_max.min(other.key_bytes_max),
            value_bytes_max: self.value_bytes_max.min(other.value_bytes_max),
        }
    }

    /// Why this record cannot be kept, if so.
    pub fn refuse(&self, key: &[u8], value_bytes: usize) -> Option<&'static str> {
        if key.len() < self.key_bytes_min {
            Some("key too short for the datalet of this table")
        } else if key.len() > self.key_bytes_max {
            Some("key too long for the datalet of this table (see sartor datalet list)")
        } else if value_bytes > self.value_bytes_max {
            Some("value too large for the datalet of this table (see sartor datalet list)")
        } else {
            None
        }
    }
}

const HAS_DEADLINE: u8 = 1;

impl Meta {
    /// The most that it takes in front of a value: flags and three numbers.
    pub const BYTES_MAX: usize = 31;

    /// Appends its bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.deadline_ms.is_some() { HAS_DEADLINE } else { 0 });
        put_varint(out, self.version.epoch.0);
        put_varint(out, self.version.sequence);
        if let Some(deadline) = self.deadline_ms {
            put_varint(out, deadline);
        }
    }

    /// Splits stored bytes into the meta and the value behind it; none if they are not ours.
    pub fn decode(stored: &[u8]) -> Option<(Meta, &[u8])> {
        let (&flags, mut rest) = stored.split_first()?;
        if flags > HAS_DEADLINE {
            return None;
        }
        let epoch = Epoch(get_varint(&mut rest)?);
        let sequence = get_varint(&mut rest)?;
        let deadline_ms = if flags == HAS_DEADLINE { Some(get_varint(&mut rest)?) } else { None };
        Some((Meta { version: Position { epoch, sequence }, deadline_ms }, rest))
    }

    /// Whether the record is past its deadline.
    pub fn is_dead(&self, unix_ms: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline| deadline <= unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_comes_apart_as_it_was_put_together() {
        for deadline_ms in [None, Some(0), Some(1_763_700_000_000)] {
            let version = Position { epoch: Epoch(300), sequence: u64::MAX };
            let meta = Meta { version, deadline_ms };
            let mut stored = Vec::new();
            meta.encode(&mut stored);
            stored.extend_from_slice(b"value");
            assert_eq!(Meta::decode(&stored), Some((meta, &b"value"[..])));
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        for bytes in [&b""[..], b"\x02abc", b"\x01\x01", b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
        {
            assert_eq!(Meta::decode(bytes), None);
        }
    }
}
