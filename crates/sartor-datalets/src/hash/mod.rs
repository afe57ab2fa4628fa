//! `hash`: in memory, a hash table that grows without pauses (the paper's tHT).
//!
//! Extendible hashing: a directory, indexed by the first bits of a key's hash, leads to small
//! segments; one that is full is split by the next bit, and two that have become nearly empty are
//! joined. So no write ever moves more than one segment, and a walk goes through the hashes in order:
//! its cursor is a number that holds in every replica and however much the table grows or shrinks
//! meanwhile.
//!
//! ```text
//!  hash 0b10… ─▶ directory[0b10] ─▶ segment { depth 2 } ─▶ line ─▶ entry in the line's chunk
//! ```
//!
//! A lookup takes two reads of memory that is in no cache: a line and an entry. An entry takes the bytes of its key and
//! value and two more, up to a multiple of 8; `line.rs` has the layout.

mod line;
mod segment;

use crate::drop_aside;
use foldhash::quality::FixedState;
use sartor_core::datalet::{CURSOR_NUMBERS, Cursor, Datalet, DataletError, Page};
use segment::{Put, Segment};
use std::hash::{BuildHasher, Hasher};

/// Cursors are the first bits of a hash; the directory never needs more of them.
const CURSOR_BITS: u32 = CURSOR_NUMBERS.trailing_zeros();
const CURSOR_SHIFT: u32 = u64::BITS - CURSOR_BITS;
/// A segment is at most so many bits deeper than if all were equal: with a good hash none ever is, so keys were
/// chosen to collide. The directory must not grow without end for that.
const SPARE_DEPTH: u32 = 8;
/// As many announced keys are fetched at once: what has come for the first is still near when the last has come.
const EXPECTED_MAX: usize = 64;
/// Fewer entries are freed at once.
const FREED_HERE_MAX: u64 = 10_000;

/// The table.
pub struct Hash {
    hasher: FixedState,
    /// Which segment holds the hashes that begin with an index's bits.
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    /// Segments that were joined to others.
    vacant: Vec<u32>,
    len: u64,
    /// Hashes of keys that will be asked for.
    expected: Vec<u64>,
    /// What the segments take, beside themselves.
    bytes: u64,
}

fn hash_of(hasher: &FixedState, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl Hash {
    /// An empty table. The seed keeps strangers from choosing keys that collide.
    pub fn new(seed: u64) -> Hash {
        Hash::with_hasher(FixedState::with_seed(seed))
    }

    fn with_hasher(hasher: FixedState) -> Hash {
        Hash {
            hasher,
            directory: vec![0],
            depth: 0,
            segments: vec![Segment::new(0)],
            vacant: Vec::new(),
            len: 0,
            expected: Vec::new(),
            bytes: 0,
        }
    }

    fn index_of(&self, hash: u64) -> usize {
        hash.checked_shr(u64::BITS - self.depth).unwrap_or(0) as usize
    }

    fn segment_of(&self, hash: u64) -> usize {
        self.directory[self.index_of(hash)] as usize
    }

    /// The lines of all announced keys, then their entries: each step for all keys in one short loop, so that misses
    /// overlap.
    #[inline]
    fn fetch_expected(&mut self) {
        if self.expected.is_empty() {
            return;
        }
        for &hash in &self.expected {
            self.segments[self.segment_of(hash)].touch_line(hash);
        }
        for &hash in &self.expected {
            self.segments[self.segment_of(hash)].touch_entry(hash);
        }
        self.expected.clear();
    }

    /// Makes room in the segment of `hash`.
    fn make_room(&mut self, hash: u64) -> Result<(), DataletError> {
        let (index, hasher) = (self.segment_of(hash), &self.hasher);
        if self.segments[index].make_room(&mut self.bytes, |key| hash_of(hasher, key)) {
            return Ok(());
        }
        self.split(hash)
    }

    /// Splits the segment of `hash` by one more bit.
    fn split(&mut self, hash: u64) -> Result<(), DataletError> {
        let index = self.segment_of(hash);
        let depth = self.segments[index].depth + 1;
        if depth > (self.segments.len().ilog2() + SPARE_DEPTH).min(CURSOR_BITS) {
            let text = "too many keys have nearly the same hash; who chose them knows the cluster's seed";
            return Err(DataletError::Failed(text.into()));
        }
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|&index| [index, index]).collect();
            self.depth += 1;
        }
        let bit = 1 << (u64::BITS - depth);
        let [mut zeros, mut ones] = [(); 2].map(|()| Segment::new(depth));
        let hasher = &self.hasher;
        let sides = &mut [&mut zeros, &mut ones];
        self.segments[index].pour(&mut self.bytes, |key| hash_of(hasher, key), bit, sides);
        self.segments[index] = zeros;
        let ones_index = self.keep(ones);
        // The directory's entries for this segment lie together; the second half is the new one's.
        self.point(hash & !(bit - 1) | bit, depth, ones_index);
        Ok(())
    }

    /// Lets all hashes that begin like this one, for `depth` bits, lead to a segment.
    fn point(&mut self, hash: u64, depth: u32, segment: u32) {
        let span = 1usize << (self.depth - depth);
        let first = self.index_of(hash) & !(span - 1);
        self.directory[first..first + span].fill(segment);
    }

    fn keep(&mut self, segment: Segment) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.segments[index as usize] = segment;
            return index;
        }
        self.segments.push(segment);
        self.segments.len() as u32 - 1
    }

    /// Joins the segment of `hash` with the one it was split from, if both are nearly empty; whether it did.
    fn join(&mut self, hash: u64) -> bool {
        let index = self.segment_of(hash);
        let depth = self.segments[index].depth;
        if depth == 0 || !self.segments[index].is_small() {
            return false;
        }
        let other = self.segment_of(hash ^ 1 << (u64::BITS - depth));
        if self.segments[other].depth != depth || !self.segments[other].is_small() {
            return false;
        }
        let mut gone = std::mem::replace(&mut self.segments[other], Segment::new(0));
        let (segment, hasher) = (&mut self.segments[index], &self.hasher);
        segment.depth -= 1;
        gone.pour(&mut self.bytes, |key| hash_of(hasher, key), 0, &mut [segment]);
        self.vacant.push(other as u32);
        self.point(hash, depth - 1, index as u32);
        true
    }
}

impl Datalet for Hash {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.fetch_expected();
        let hash = hash_of(&self.hasher, key);
        if let Some(value) = self.segments[self.segment_of(hash)].get(hash, key) {
            found(value);
        }
        Ok(())
    }

    fn expect(&mut self, key: &[u8]) {
        if self.expected.len() == EXPECTED_MAX {
            self.fetch_expected();
        }
        self.expected.push(hash_of(&self.hasher, key));
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.fetch_expected();
        let hash = hash_of(&self.hasher, key);
        loop {
            let index = self.segment_of(hash);
            match self.segments[index].put(&mut self.bytes, hash, key, value) {
                Put::Inserted => {
                    self.len += 1;
                    return Ok(());
                }
                Put::Replaced => return Ok(()),
                Put::Full => self.make_room(hash)?,
            }
        }
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.fetch_expected();
        let hash = hash_of(&self.hasher, key);
        let index = self.segment_of(hash);
        if self.segments[index].delete(&mut self.bytes, hash, key) {
            self.len -= 1;
            // Not at every delete: the other segment may be too full for long.
            if self.segments[index].len().is_multiple_of(32) {
                while self.join(hash) {}
            }
        }
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let mut next = match cursor {
            Cursor::Number(next) => *next,
            Cursor::Start | Cursor::Key(_) => 0,
            Cursor::End => CURSOR_NUMBERS,
        };
        let mut rest = Vec::new();
        while next < CURSOR_NUMBERS && !page.is_full() {
            let segment = &self.segments[self.segment_of(next << CURSOR_SHIFT)];
            rest.clear();
            for (key, value) in segment.pairs() {
                let place = hash_of(&self.hasher, key) >> CURSOR_SHIFT;
                if place >= next {
                    rest.push((place, key, value));
                }
            }
            // Past the segment's last hash, unless the page is full before.
            let span = 1 << (CURSOR_BITS - segment.depth);
            next = (next / span + 1) * span;
            rest.sort_unstable_by_key(|(place, ..)| *place);
            for group in rest.chunk_by(|a, b| a.0 == b.0) {
                if page.is_full() {
                    next = group[0].0;
                    break;
                }
                for (_, key, value) in group {
                    page.push(key, value);
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
        let old = std::mem::replace(self, Hash::with_hasher(hasher));
        if old.len > FREED_HERE_MAX {
            drop_aside(old);
        }
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.len)
    }

    fn bytes(&self) -> u64 {
        self.bytes
            + (self.segments.capacity() * size_of::<Segment>()) as u64
            + (self.directory.len() * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests;
