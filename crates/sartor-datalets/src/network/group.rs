//! What is known during a group of tasks: values that were fetched or put, and keys that will be asked for.
//!
//! It lasts until the group's end, since somebody else may write to the store behind our back. Keys and values lie in
//! one buffer that is used again, so that nothing is allocated for each.

use foldhash::quality::FixedState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

/// More keys are not remembered.
const KEYS_MAX: usize = 16_384;
/// Nor more bytes.
const BYTES_MAX: usize = 32 << 20;
/// A longer value is fetched anew rather than copied.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// What the buffer keeps for the next group.
const KEPT_BYTES: usize = 1 << 20;

/// What is known of some keys.
pub(super) struct Group {
    hasher: FixedState,
    /// By the keys' hashes; of two keys with one hash the second is not remembered.
    places: HashMap<u64, u32, FixedState>,
    entries: Vec<Entry>,
    /// Keys and values.
    bytes: Vec<u8>,
    /// Entries to fetch.
    wanted: Vec<usize>,
}

struct Entry {
    key: Range<usize>,
    value: Known,
}

#[derive(Clone)]
enum Known {
    /// Nothing yet.
    Unknown,
    /// It is not in the store.
    Absent,
    /// This is its value.
    At(Range<usize>),
}

impl Group {
    /// Knows nothing. The seed keeps strangers from choosing keys that collide.
    pub(super) fn new(seed: u64) -> Group {
        let hasher = FixedState::with_seed(seed);
        let places = HashMap::with_hasher(hasher.clone());
        Group { hasher, places, entries: Vec::new(), bytes: Vec::new(), wanted: Vec::new() }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.entries.clear();
        self.wanted.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// This key will be asked for.
    pub(super) fn expect(&mut self, key: &[u8]) {
        let before = self.entries.len();
        if let Some(place) = self.place_of(key)
            && place == before
        {
            self.wanted.push(place);
        }
    }

    /// The value, or that there is none; nothing if that is not known.
    pub(super) fn known(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let place = *self.places.get(&self.hash_of(key))? as usize;
        if self.key(place) != key {
            return None;
        }
        match &self.entries[place].value {
            Known::Unknown => None,
            Known::Absent => Some(None),
            Known::At(range) => Some(Some(&self.bytes[range.clone()])),
        }
    }

    /// The key has this value now, or none.
    pub(super) fn learn(&mut self, key: &[u8], value: Option<&[u8]>) {
        if let Some(place) = self.place_of(key) {
            match value {
                Some(value) => self.found(place, value),
                None => self.entries[place].value = Known::Absent,
            }
        }
    }

    /// The entries whose keys are to be fetched, by their places. They count as absent from now on: who fetches them tells
    /// what was found.
    pub(super) fn take_wanted(&mut self) -> Vec<usize> {
        let mut wanted = std::mem::take(&mut self.wanted);
        // What was put meanwhile is known.
        wanted.retain(|&place| matches!(self.entries[place].value, Known::Unknown));
        for &place in &wanted {
            self.entries[place].value = Known::Absent;
        }
        wanted
    }

    /// The key of an entry.
    pub(super) fn key(&self, place: usize) -> &[u8] {
        &self.bytes[self.entries[place].key.clone()]
    }

    /// The value of an entry.
    pub(super) fn found(&mut self, place: usize, value: &[u8]) {
        let fits = value.len() <= VALUE_BYTES_MAX && self.bytes.len() + value.len() <= BYTES_MAX;
        self.entries[place].value = if fits { Known::At(self.keep(value)) } else { Known::Unknown };
    }

    /// The entry of a key; a new one if there is none and there is room.
    fn place_of(&mut self, key: &[u8]) -> Option<usize> {
        let hash = self.hash_of(key);
        if let Some(&place) = self.places.get(&hash) {
            let place = place as usize;
            return (self.key(place) == key).then_some(place);
        }
        if self.entries.len() >= KEYS_MAX || self.bytes.len() + key.len() > BYTES_MAX {
            return None;
        }
        let place = self.entries.len();
        let key = self.keep(key);
        self.entries.push(Entry { key, value: Known::Unknown });
        self.places.insert(hash, u32::try_from(place).ok()?);
        Some(place)
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn hash_of(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_or_found_is_known_until_the_end_of_the_group() {
        let mut group = Group::new(1);
        for key in ["a", "b", "b", "c", ""] {
            group.expect(key.as_bytes());
        }
        group.learn(b"b", Some(b"put"));
        assert_eq!(group.known(b"a"), None);
        let wanted = group.take_wanted();
        let keys: Vec<&[u8]> = wanted.iter().map(|&place| group.key(place)).collect();
        assert_eq!(keys, [&b"a"[..], b"c", b""]);
        group.found(wanted[0], b"1");
        assert_eq!(group.known(b"a"), Some(Some(&b"1"[..])));
        assert_eq!(group.known(b"b"), Some(Some(&b"put"[..])));
        assert_eq!(group.known(b"c"), Some(None));
        assert_eq!(group.known(b"d"), None);
        group.learn(b"a", None);
        assert_eq!(group.known(b"a"), Some(None));
        assert!(group.take_wanted().is_empty(), "they are fetched once");
        group.clear();
        assert_eq!(group.known(b"a"), None);
    }

    #[test]
    fn what_is_too_much_is_not_known() {
        let mut group = Group::new(1);
        group.learn(b"a", Some(b"short"));
        group.learn(b"a", Some(&vec![0; VALUE_BYTES_MAX + 1]));
        assert_eq!(group.known(b"a"), None, "nor is the old value");
        for i in 0..2 * KEYS_MAX {
            group.expect(i.to_string().as_bytes());
        }
        assert!(group.take_wanted().len() < KEYS_MAX);
        let value = vec![0; VALUE_BYTES_MAX];
        for i in 0..100 {
            group.learn(i.to_string().as_bytes(), Some(&value));
        }
        assert!(group.bytes.len() <= BYTES_MAX);
        assert_eq!(group.known(b"99"), None);
        group.clear();
        assert!(group.bytes.capacity() <= KEPT_BYTES);
    }
}
