//! `hash`: in memory, a hash table that grows without pauses (the paper's tHT).
//!
//! Extendible hashing: a directory, indexed by the first bits of a key's hash, leads to small
//! segments; one that is full is split by the next bit. So no insert ever moves more than one
//! segment, and a walk goes through the hashes in order: its cursor is a number that holds in every
//! replica and however much the table grows or shrinks meanwhile.
//!
//! ```text
//!  hash 0b10… ─▶ directory[0b10] ─▶ segment { depth 2 } ─▶ SwissTable of entries
//! ```

use crate::drop_aside;
use foldhash::quality::FixedState;
use hashbrown::HashTable;
use sartor_core::datalet::{CURSOR_NUMBERS, Cursor, Datalet, DataletError, Page};
use std::hash::{BuildHasher, Hasher};

/// Entries a segment, before it is split.
const SEGMENT_ENTRIES_MAX: usize = 1024;
/// Cursors are the first bits of a hash; the directory never needs more of them.
const CURSOR_BITS: u32 = CURSOR_NUMBERS.trailing_zeros();
const CURSOR_SHIFT: u32 = u64::BITS - CURSOR_BITS;

/// The table.
pub struct Hash {
    hasher: FixedState,
    /// Which segment holds the hashes that begin with an index's bits.
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    len: u64,
    /// Bytes of the pairs that do not lie in the table.
    large: u64,
}

struct Segment {
    /// How many first bits its hashes share.
    depth: u32,
    entries: HashTable<Entry>,
}

/// Key and value together that fit into an entry itself.
const SMALL_BYTES: usize = 61;

/// Fewer entries are freed at once.
const FREED_HERE_MAX: u64 = 10_000;
/// What an entry takes in a table that is as full as tables are on average.
const ENTRY_BYTES: u64 = 96;
/// What the allocator adds.
const LARGE_OVERHEAD: u64 = 16;

/// A pair: the key, then the value. Small ones lie in the table, so that a lookup touches no other
/// memory; with its kind and lengths an entry fills a cache line.
enum Entry {
    Small { key_len: u8, len: u8, pair: [u8; SMALL_BYTES] },
    Large { key_len: u32, pair: Box<[u8]> },
}

impl Entry {
    fn new(key: &[u8], value: &[u8]) -> Entry {
        let len = key.len() + value.len();
        if len <= SMALL_BYTES {
            let mut pair = [0; SMALL_BYTES];
            pair[..key.len()].copy_from_slice(key);
            pair[key.len()..len].copy_from_slice(value);
            return Entry::Small { key_len: key.len() as u8, len: len as u8, pair };
        }
        let mut pair = Vec::with_capacity(len);
        pair.extend_from_slice(key);
        pair.extend_from_slice(value);
        Entry::Large { key_len: key.len() as u32, pair: pair.into() }
    }

    fn key(&self) -> &[u8] {
        match self {
            Entry::Small { key_len, pair, .. } => &pair[..usize::from(*key_len)],
            Entry::Large { key_len, pair } => &pair[..*key_len as usize],
        }
    }

    fn value(&self) -> &[u8] {
        match self {
            Entry::Small { key_len, len, pair } => &pair[usize::from(*key_len)..usize::from(*len)],
            Entry::Large { key_len, pair } => &pair[*key_len as usize..],
        }
    }

    /// What lies outside of the table.
    fn large(&self) -> u64 {
        match self {
            Entry::Small { .. } => 0,
            Entry::Large { pair, .. } => pair.len() as u64 + LARGE_OVERHEAD,
        }
    }

    fn set_value(&mut self, key: &[u8], value: &[u8]) {
        match self {
            Entry::Small { key_len, len, pair } if usize::from(*key_len) + value.len() <= SMALL_BYTES => {
                let start = usize::from(*key_len);
                pair[start..start + value.len()].copy_from_slice(value);
                *len = *key_len + value.len() as u8;
            }
            Entry::Large { key_len, pair } if pair.len() == *key_len as usize + value.len() => {
                pair[*key_len as usize..].copy_from_slice(value);
            }
            _ => *self = Entry::new(key, value),
        }
    }
}

fn hash_of(hasher: &FixedState, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// The first bits chose the segment; inside, other bits must tell entries apart.
fn inner(hash: u64) -> u64 {
    hash.rotate_left(24)
}

impl Hash {
    /// An empty table. The seed keeps strangers from choosing keys that collide.
    pub fn new(seed: u64) -> Hash {
        let segments = vec![Segment { depth: 0, entries: HashTable::new() }];
        Hash { hasher: FixedState::with_seed(seed), directory: vec![0], depth: 0, segments, len: 0, large: 0 }
    }

    fn index_of(&self, hash: u64) -> usize {
        hash.checked_shr(u64::BITS - self.depth).unwrap_or(0) as usize
    }

    fn segment_of(&mut self, hash: u64) -> &mut Segment {
        let index = self.directory[self.index_of(hash)];
        &mut self.segments[index as usize]
    }

    /// Splits the segment of `hash` by one more bit.
    fn split(&mut self, hash: u64) {
        let old_index = self.directory[self.index_of(hash)];
        let depth = self.segments[old_index as usize].depth + 1;
        if depth > CURSOR_BITS {
            return;
        }
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|&index| [index, index]).collect();
            self.depth += 1;
        }
        let bit = 1 << (u64::BITS - depth);
        let old = std::mem::take(&mut self.segments[old_index as usize].entries);
        let (mut zeros, mut ones) = (HashTable::new(), HashTable::new());
        let hasher = &self.hasher;
        for entry in old {
            let hash = hash_of(hasher, entry.key());
            let side = if hash & bit == 0 { &mut zeros } else { &mut ones };
            side.insert_unique(inner(hash), entry, |entry| inner(hash_of(hasher, entry.key())));
        }
        self.segments[old_index as usize] = Segment { depth, entries: zeros };
        let new_index = self.segments.len() as u32;
        self.segments.push(Segment { depth, entries: ones });
        // The directory's entries for this segment lie together; the second half is the new one's.
        let span = 1usize << (self.depth - depth);
        let first = self.index_of(hash & !(bit - 1) | bit);
        self.directory[first..first + span].fill(new_index);
    }
}

impl Datalet for Hash {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        let hash = hash_of(&self.hasher, key);
        let segment = self.segment_of(hash);
        if let Some(entry) = segment.entries.find(inner(hash), |entry| entry.key() == key) {
            found(entry.value());
        }
        Ok(())
    }

    fn expect(&mut self, key: &[u8]) {
        let hash = hash_of(&self.hasher, key);
        let segment = self.segment_of(hash);
        // Reading the entry is what brings it near.
        std::hint::black_box(
            segment.entries.find(inner(hash), |entry| entry.key().len() == key.len()).is_some(),
        );
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        let hash = hash_of(&self.hasher, key);
        let index = self.directory[self.index_of(hash)];
        let (segment, hasher) = (&mut self.segments[index as usize], &self.hasher);
        if let Some(entry) = segment.entries.find_mut(inner(hash), |entry| entry.key() == key) {
            let before = entry.large();
            entry.set_value(key, value);
            self.large = self.large + entry.large() - before;
            return Ok(());
        }
        let rehash = |entry: &Entry| inner(hash_of(hasher, entry.key()));
        let entry = Entry::new(key, value);
        self.large += entry.large();
        segment.entries.insert_unique(inner(hash), entry, rehash);
        let full = segment.entries.len() > SEGMENT_ENTRIES_MAX;
        self.len += 1;
        if full {
            self.split(hash);
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        let hash = hash_of(&self.hasher, key);
        let index = self.directory[self.index_of(hash)];
        let (segment, hasher) = (&mut self.segments[index as usize], &self.hasher);
        if let Ok(entry) = segment.entries.find_entry(inner(hash), |entry| entry.key() == key) {
            self.large -= entry.remove().0.large();
            let entries = &mut segment.entries;
            if entries.capacity() > 64 && entries.len() * 8 < entries.capacity() {
                entries.shrink_to(entries.len() * 2, |entry| inner(hash_of(hasher, entry.key())));
            }
            self.len -= 1;
        }
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let mut next = match cursor {
            Cursor::Number(next) => *next,
            Cursor::Start | Cursor::Key(_) => 0,
            Cursor::End => CURSOR_NUMBERS,
        };
        while next < CURSOR_NUMBERS && !page.is_full() {
            let index = self.directory[self.index_of(next << CURSOR_SHIFT)];
            let segment = &self.segments[index as usize];
            let place = |entry: &Entry| hash_of(&self.hasher, entry.key()) >> CURSOR_SHIFT;
            let mut rest: Vec<(u64, &Entry)> = segment
                .entries
                .iter()
                .map(|entry| (place(entry), entry))
                .filter(|(at, _)| *at >= next)
                .collect();
            // Past the segment's last hash, unless the page is full before.
            let span = 1 << (CURSOR_BITS - segment.depth);
            next = (next / span + 1) * span;
            rest.sort_unstable_by_key(|(at, _)| *at);
            for group in rest.chunk_by(|a, b| a.0 == b.0) {
                if page.is_full() {
                    next = group[0].0;
                    break;
                }
                for (_, entry) in group {
                    page.push(entry.key(), entry.value());
                }
            }
        }
        *cursor = if next < CURSOR_NUMBERS { Cursor::Number(next) } else { Cursor::End };
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(match cursor {
            Cursor::Number(next) => hash_of(&self.hasher, key) >> CURSOR_SHIFT < *next,
            Cursor::Start | Cursor::Key(_) => false,
            Cursor::End => true,
        })
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        let hasher = self.hasher.clone();
        let old = std::mem::replace(self, Hash { hasher, ..Hash::new(0) });
        if old.len > FREED_HERE_MAX {
            drop_aside(old);
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.len)
    }

    fn bytes(&self) -> u64 {
        self.len * ENTRY_BYTES + self.large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_leads_every_hash_to_its_segment() {
        let mut table = Hash::new(1);
        for i in 0..50_000u32 {
            table.put(&i.to_be_bytes(), b"").unwrap();
        }
        assert!(table.segments.len() > 32, "{} segments", table.segments.len());
        assert_eq!(table.directory.len(), 1 << table.depth);
        for (index, &segment) in table.directory.iter().enumerate() {
            let segment = &table.segments[segment as usize];
            assert!(segment.entries.len() <= SEGMENT_ENTRIES_MAX);
            for entry in &segment.entries {
                let own =
                    table.index_of(hash_of(&table.hasher, entry.key())) >> (table.depth - segment.depth);
                assert_eq!(own, index >> (table.depth - segment.depth));
            }
        }
    }

    #[test]
    fn a_walk_survives_growth_and_means_the_same_in_every_replica() {
        let (mut one, mut other) = (Hash::new(7), Hash::new(7));
        let keys: Vec<[u8; 4]> = (0..5000u32).map(u32::to_be_bytes).collect();
        for key in &keys {
            one.put(key, b"").unwrap();
        }
        for key in keys.iter().rev() {
            other.put(key, b"").unwrap();
        }
        let (mut cursor, mut seen, mut turn) = (Cursor::Start, Vec::new(), 0u32);
        while cursor != Cursor::End {
            let mut page = Page::new(7, 1 << 20);
            let table = if turn.is_multiple_of(2) { &mut one } else { &mut other };
            table.walk(&mut cursor, &mut page).unwrap();
            seen.extend(page.into_pairs().into_iter().map(|(key, _)| key));
            for i in 0..20 {
                table.put(format!("new {turn} {i}").as_bytes(), b"").unwrap();
            }
            turn += 1;
        }
        seen.sort();
        assert!(keys.iter().all(|key| seen.binary_search_by(|s| s[..].cmp(key)).is_ok()));
    }
}
