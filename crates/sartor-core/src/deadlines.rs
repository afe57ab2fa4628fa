//! What a keeper remembers beside the records: which of them expire when, and where keys were last deleted.

use crate::ids::Position;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use bytes::Bytes;

/// Which records expire when.
#[derive(Default)]
pub(crate) struct Deadlines {
    by_key: BTreeMap<Bytes, u64>,
    by_time: BTreeSet<(u64, Bytes)>,
}

impl Deadlines {
    pub(crate) fn set(&mut self, key: &[u8], deadline_ms: Option<u64>) {
        if self.by_key.is_empty() && deadline_ms.is_none() {
            return;
        }
        if let Some((key, old)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(old, key));
        }
        if let Some(deadline) = deadline_ms {
            // A copy, so that the buffer the key was read into is not held as long as the record.
            let key = Bytes::copy_from_slice(key);
            self.by_time.insert((deadline, key.clone()));
            self.by_key.insert(key, deadline);
        }
    }

    pub(crate) fn due(&self, unix_ms: u64, limit: usize) -> Vec<Bytes> {
        let due = self.by_time.iter().take(limit).take_while(|(deadline, _)| *deadline <= unix_ms);
        due.map(|(_, key)| key.clone()).collect()
    }
}

/// When something was last deleted in each slot: what proves that an absent key was absent all along.
#[derive(Default)]
pub(crate) struct Deletes {
    all: Position,
    slots: BTreeMap<u16, Position>,
}

impl Deletes {
    /// Whatever was there before this place may have been deleted at it.
    pub(crate) fn since(position: Position) -> Deletes {
        Deletes { all: position, slots: BTreeMap::new() }
    }

    pub(crate) fn note(&mut self, slot: u16, position: Position) {
        self.slots.insert(slot, position);
    }

    pub(crate) fn last_in(&self, slot: u16) -> Position {
        self.slots.get(&slot).map_or(self.all, |at| (*at).max(self.all))
    }
}
