//! What a keeper remembers beside the records: which of them expire when, and where keys were last deleted.

use crate::ids::Position;
use crate::wire::codec::{Malformed, Reader, Wire, put_list, put_varint};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

/// Which records expire when.
#[derive(Default)]
pub(crate) struct Deadlines {
    by_key: BTreeMap<Arc<[u8]>, u64>,
    by_time: BTreeSet<(u64, Arc<[u8]>)>,
    key_bytes: u64,
}

/// What a key with a deadline takes beside its bytes: its place in two trees that are three quarters full, and what
/// the allocator and the count of its owners add.
const KEY_OVERHEAD: u64 = 136;

impl Deadlines {
    pub(crate) fn set(&mut self, key: &[u8], deadline_ms: Option<u64>) {
        if self.by_key.is_empty() && deadline_ms.is_none() {
            return;
        }
        if let Some((key, old)) = self.by_key.remove_entry(key) {
            self.key_bytes -= key.len() as u64;
            self.by_time.remove(&(old, key));
        }
        if let Some(deadline) = deadline_ms {
            // A copy, so that the buffer the key was read into is not held as long as the record.
            let key: Arc<[u8]> = key.into();
            self.key_bytes += key.len() as u64;
            self.by_time.insert((deadline, key.clone()));
            self.by_key.insert(key, deadline);
        }
    }

    /// Forgets those of all keys from this one on.
    pub(crate) fn end_at(&mut self, end: &[u8]) {
        let outside: Vec<Arc<[u8]>> = self
            .by_key
            .range::<[u8], _>((Bound::Included(end), Bound::Unbounded))
            .map(|(key, _)| key.clone())
            .collect();
        outside.iter().for_each(|key| self.set(key, None));
    }

    /// Whether no record expires.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.key_bytes + self.by_key.len() as u64 * KEY_OVERHEAD
    }

    pub(crate) fn due(&self, unix_ms: u64, limit: usize) -> Vec<Arc<[u8]>> {
        let due = self.by_time.iter().take(limit).take_while(|(deadline, _)| *deadline <= unix_ms);
        due.map(|(_, key)| key.clone()).collect()
    }
}

/// When something was last deleted in each slot: what proves that an absent key was absent all along.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deletes {
    all: Position,
    slots: BTreeMap<u16, Position>,
}

impl Deletes {
    /// Whatever was there before this place may have been deleted at it.
    pub fn since(position: Position) -> Deletes {
        Deletes { all: position, slots: BTreeMap::new() }
    }

    pub(crate) fn note(&mut self, slot: u16, position: Position) {
        self.slots.insert(slot, position);
    }

    /// All may have been deleted at this place.
    pub(crate) fn all(&self) -> Position {
        self.all
    }

    /// In how many slots something was deleted after this place.
    pub(crate) fn slots_after(&self, place: Position) -> usize {
        self.slots.values().filter(|at| **at > place).count()
    }

    /// Whether something was deleted after this place.
    pub(crate) fn any_after(&self, place: Position) -> bool {
        self.all > place || self.slots.values().any(|at| *at > place)
    }

    pub(crate) fn last_in(&self, slot: u16) -> Position {
        self.slots.get(&slot).map_or(self.all, |at| (*at).max(self.all))
    }
}

impl Wire for Deletes {
    fn encode(&self, out: &mut Vec<u8>) {
        self.all.encode(out);
        let slots: Vec<(&u16, &Position)> = self.slots.iter().collect();
        put_list(out, &slots, |out, (slot, position)| {
            put_varint(out, u64::from(**slot));
            position.encode(out);
        });
    }

    fn decode(from: &mut Reader) -> Result<Deletes, Malformed> {
        let all = Position::decode(from)?;
        let slots = from.list(|from| Ok((from.number()?, Position::decode(from)?)))?;
        Ok(Deletes { all, slots: slots.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_counted_once_while_it_has_a_deadline() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.bytes(), 0);
        deadlines.set(b"key", Some(10));
        let one = deadlines.bytes();
        assert!(one > 3);
        deadlines.set(b"key", Some(20));
        assert_eq!(deadlines.bytes(), one);
        assert_eq!((deadlines.due(10, 9).len(), deadlines.due(20, 9).len()), (0, 1));
        deadlines.set(b"other", Some(5));
        assert_eq!(deadlines.bytes(), 2 * one + 2);
        deadlines.set(b"key", None);
        deadlines.set(b"other", None);
        assert_eq!(deadlines.bytes(), 0);
    }
}
