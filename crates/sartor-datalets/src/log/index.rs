//! Where each key's value lies, in key order, in little memory: all keys of a log are there.
//!
//! Neighbours share a block of about a kilobyte, one after the other, and a tree has the blocks. A key of 16 bytes takes
//! about 35 so, where a tree of single keys would take 70; and a search misses the cache less often.
//!
//! ```text
//!  blocks: "" ─▶ [len key place | len key place …]   "m" ─▶ [len key place | …]
//! ```

use super::format::{RECORD_HEAD, number};
use crate::drop_aside;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its file.
    pub file: u32,
    /// Its first byte there.
    pub offset: u32,
    /// The length of its value.
    pub value_len: u32,
}

impl Place {
    /// All bytes of the record, which is of this key.
    pub fn size(&self, key: &[u8]) -> u64 {
        (RECORD_HEAD + key.len()) as u64 + u64::from(self.value_len)
    }

    fn encode(self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        for (part, number) in bytes.chunks_exact_mut(4).zip([self.file, self.offset, self.value_len]) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Place {
        Place { file: number(bytes, 0), offset: number(bytes, 4), value_len: number(bytes, 8) }
    }
}

const PLACE_BYTES: usize = 12;
/// A length from here on follows in four bytes.
const LONG: u8 = 255;
/// A block is split when it is larger.
const BLOCK_BYTES_MAX: usize = 1024;
/// Blocks are joined when they are smaller together.
const JOINED_BYTES_MAX: usize = BLOCK_BYTES_MAX / 2;
/// Room is taken and given back in such steps.
const STEP_BYTES: usize = 64;
/// What a block takes beside its room: its place in the tree, the key there, and two allocations.
const BLOCK_BYTES: usize = 100;

/// The place of each key's record.
#[derive(Default)]
pub struct Index {
    /// By a key that is not larger than any in the block, nor smaller than any in the one before.
    blocks: BTreeMap<Box<[u8]>, Block>,
    len: u64,
    /// What all blocks take.
    bytes: u64,
}

/// Entries in key order.
#[derive(Default)]
struct Block(Vec<u8>);

/// An entry of a block.
struct Entry<'a> {
    key: &'a [u8],
    /// Where its place is, and the next entry after that.
    place_at: usize,
    place: Place,
}

impl Block {
    /// The entry that begins at `at`.
    fn entry(&self, at: usize) -> Option<Entry<'_>> {
        let (key_at, key_len) = match *self.0.get(at)? {
            LONG => (at + 5, number(&self.0, at + 1) as usize),
            len => (at + 1, usize::from(len)),
        };
        let (key, rest) = self.0[key_at..].split_at(key_len);
        Some(Entry { key, place_at: key_at + key_len, place: Place::decode(rest) })
    }

    fn entries(&self) -> impl Iterator<Item = (usize, Entry<'_>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let entry = self.entry(at)?;
            let begin = std::mem::replace(&mut at, entry.place_at + PLACE_BYTES);
            Some((begin, entry))
        })
    }

    /// Where the entry of `key` begins and where its place is; or where it would begin.
    fn find(&self, key: &[u8]) -> Result<(usize, usize), usize> {
        for (begin, entry) in self.entries() {
            match entry.key.cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Ok((begin, entry.place_at)),
                Ordering::Greater => return Err(begin),
            }
        }
        Err(self.0.len())
    }

    fn insert(&mut self, at: usize, key: &[u8], place: Place) {
        let mut head = [0; 5];
        let head = if key.len() < usize::from(LONG) {
            head[0] = key.len() as u8;
            &head[..1]
        } else {
            head[0] = LONG;
            head[1..].copy_from_slice(&(key.len() as u32).to_le_bytes());
            &head[..]
        };
        let size = head.len() + key.len() + PLACE_BYTES;
        let old_len = self.0.len();
        if self.0.capacity() < old_len + size {
            self.0.reserve_exact((old_len + size).next_multiple_of(STEP_BYTES) - old_len);
        }
        self.0.resize(old_len + size, 0);
        self.0.copy_within(at..old_len, at + size);
        let place = place.encode();
        let mut at = at;
        for part in [head, key, &place[..]] {
            self.0[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Takes the second half out; none if there is only one entry.
    fn split(&mut self) -> Option<Block> {
        let half = self.0.len() / 2;
        let (begin, _) = self.entries().find(|(begin, entry)| *begin > 0 && entry.place_at >= half)?;
        let rest = self.0[begin..].to_vec();
        self.0.truncate(begin);
        self.shrink();
        Some(Block(rest))
    }

    fn shrink(&mut self) {
        if self.0.capacity() - self.0.len() > STEP_BYTES * 2 {
            self.0.shrink_to(self.0.len().next_multiple_of(STEP_BYTES));
        }
    }

    fn bytes(&self) -> u64 {
        (self.0.capacity() + BLOCK_BYTES) as u64
    }
}

impl Index {
    /// The block where `key` is, if it is anywhere.
    fn block_of(&self, key: &[u8]) -> Option<&Block> {
        self.blocks
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .map(|(_, block)| block)
    }

    /// Where the record of `key` lies.
    pub fn get(&self, key: &[u8]) -> Option<Place> {
        let block = self.block_of(key)?;
        let (_, place_at) = block.find(key).ok()?;
        Some(Place::decode(&block.0[place_at..]))
    }

    /// The record of `key` lies there now; where it lay before.
    pub fn insert(&mut self, key: &[u8], place: Place) -> Option<Place> {
        if self.blocks.is_empty() {
            self.bytes += Block::default().bytes();
            // Not larger than any key.
            self.blocks.insert(Box::default(), Block::default());
        }
        let below = (Bound::Unbounded, Bound::Included(key));
        let (_, block) = self.blocks.range_mut::<[u8], _>(below).next_back()?;
        let before = block.bytes();
        let at = match block.find(key) {
            Ok((_, place_at)) => {
                let bytes = &mut block.0[place_at..place_at + PLACE_BYTES];
                let old = Place::decode(bytes);
                bytes.copy_from_slice(&place.encode());
                return Some(old);
            }
            Err(at) => at,
        };
        block.insert(at, key, place);
        let rest = if block.0.len() > BLOCK_BYTES_MAX { block.split() } else { None };
        self.len += 1;
        self.bytes = self.bytes + block.bytes() - before;
        if let Some(rest) = rest {
            let first = rest.entry(0).map_or(Box::default(), |entry| entry.key.into());
            self.bytes += rest.bytes();
            self.blocks.insert(first, rest);
        }
        None
    }

    /// There is no record of `key` any more; where it lay before.
    pub fn remove(&mut self, key: &[u8]) -> Option<Place> {
        let below = (Bound::Unbounded, Bound::Included(key));
        let (first, block) = self.blocks.range_mut::<[u8], _>(below).next_back()?;
        let (begin, place_at) = block.find(key).ok()?;
        let old = Place::decode(&block.0[place_at..]);
        let before = block.bytes();
        block.0.drain(begin..place_at + PLACE_BYTES);
        block.shrink();
        self.len -= 1;
        self.bytes = self.bytes + block.bytes() - before;
        if block.0.len() < JOINED_BYTES_MAX / 2 {
            let first = first.clone();
            self.tidy(&first);
        }
        Some(old)
    }

    /// What becomes of a small block: an empty one goes, others are joined with small neighbours.
    fn tidy(&mut self, first: &[u8]) {
        let is_empty = self.blocks.get(first).is_some_and(|block| block.0.is_empty());
        if self.len == 0 {
            self.blocks.clear();
            self.bytes = 0;
        } else if is_empty && !first.is_empty() {
            let gone = self.blocks.remove(first);
            self.bytes -= gone.map_or(0, |block| block.bytes());
        } else {
            self.join(first);
            let before = self.blocks.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(first)));
            if let Some(before) = before.map(|(first, _)| first.clone()).next_back() {
                self.join(&before);
            }
        }
    }

    /// Joins a block with the next one, if they are small together.
    fn join(&mut self, first: &[u8]) {
        let mut pair = self.blocks.range_mut::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        let (Some((_, block)), Some((next, other))) = (pair.next(), pair.next()) else { return };
        if block.0.len() + other.0.len() > JOINED_BYTES_MAX {
            return;
        }
        let before = block.bytes() + other.bytes();
        block.0.reserve_exact(other.0.len());
        block.0.append(&mut other.0);
        self.bytes = self.bytes + block.bytes() - before;
        let next = next.clone();
        self.blocks.remove(&next);
    }

    /// There are no records any more.
    pub fn clear(&mut self) {
        drop_aside(std::mem::take(self));
    }

    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// About how many bytes of memory it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys from one on, in order, to another one that is not among them.
    pub fn range<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
        to: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a [u8], Place)> {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => b"",
        };
        let below = self.blocks.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let first = below.map(|(first, _)| &first[..]).next_back().unwrap_or_default();
        let blocks = self.blocks.range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        let pairs = blocks.flat_map(|(_, block)| block.entries().map(|(_, entry)| (entry.key, entry.place)));
        let passed = move |key: &[u8]| match from {
            Bound::Included(from) => key < from,
            Bound::Excluded(from) => key <= from,
            Bound::Unbounded => false,
        };
        pairs.skip_while(move |pair| passed(pair.0)).take_while(move |pair| to.is_none_or(|to| pair.0 < to))
    }

    /// The same from the last one on. Entries have no way back, so those of a block are found first, which are few.
    pub fn range_back<'a>(
        &'a self,
        from: &'a [u8],
        to: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a [u8], Place)> {
        let blocks =
            self.blocks.range::<[u8], _>((Bound::Unbounded, to.map_or(Bound::Unbounded, Bound::Excluded)));
        let entries =
            |block: &'a Block| -> Vec<Entry<'a>> { block.entries().map(|(_, entry)| entry).collect() };
        let pairs = blocks.rev().flat_map(move |(_, block)| entries(block).into_iter().rev());
        let pairs = pairs.skip_while(move |entry| to.is_some_and(|to| entry.key >= to));
        pairs.take_while(move |entry| entry.key >= from).map(|entry| (entry.key, entry.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sartor_core::random::Random;

    fn check(index: &Index, model: &BTreeMap<Vec<u8>, Place>) {
        let all = |index: &Index| {
            let back = index.range_back(b"", None).map(|(key, place)| (key.to_vec(), place));
            assert!(back.eq(model.clone().into_iter().rev()), "the same keys, backwards");
            let pairs = index.range(Bound::Unbounded, None);
            pairs.map(|(key, place)| (key.to_vec(), place)).collect::<Vec<_>>()
        };
        assert!(all(index).into_iter().eq(model.clone()), "the same keys, in order");
        assert_eq!(index.len(), model.len() as u64);
        assert_eq!(index.bytes(), index.blocks.values().map(Block::bytes).sum::<u64>());
        for (first, block) in &index.blocks {
            assert!(first.is_empty() || !block.0.is_empty());
            let longest = block.entries().map(|(_, entry)| entry.key.len() + 17).max().unwrap_or(0);
            assert!(block.0.len() <= BLOCK_BYTES_MAX + longest, "{} bytes in a block", block.0.len());
        }
    }

    #[test]
    fn the_same_as_a_tree_of_keys_while_it_grows_and_shrinks() {
        for seed in 0..4 {
            let (mut random, mut index, mut model) = (Random::new(seed), Index::default(), BTreeMap::new());
            for puts in [95, 50, 10, 80, 2, 0] {
                for step in 0..8000u32 {
                    let number = random.below(3000);
                    // Lengths on both sides of what a byte tells, and the empty key.
                    let width = [0, 3, 10, 254, 255, 300, 2000][(number % 29).min(6) as usize];
                    let key = if number == 0 { vec![] } else { format!("{number:0width$}").into_bytes() };
                    let place = Place { file: step, offset: step + 1, value_len: step + 2 };
                    let (got, expected) = match random.below(100) {
                        below if below < puts => (index.insert(&key, place), model.insert(key, place)),
                        below if below < 96 => (index.remove(&key), model.remove(&key)),
                        _ => {
                            let to = random.below(3000).to_string().into_bytes();
                            let back: Vec<_> = index.range_back(&key, Some(&to)).map(|pair| pair.1).collect();
                            let same = index.range(Bound::Included(&key), Some(&to)).map(|pair| pair.1);
                            assert!(same.eq(back.into_iter().rev()));
                            let seen = index.range(Bound::Excluded(&key), Some(&to)).map(|pair| pair.1);
                            let bounds = (Bound::Excluded(&key[..]), Bound::Excluded(&to[..]));
                            if key < to {
                                assert!(seen.eq(model.range::<[u8], _>(bounds).map(|pair| *pair.1)));
                            }
                            (index.get(&key), model.get(&key).copied())
                        }
                    };
                    assert_eq!(got, expected, "seed {seed}, step {step}");
                }
                check(&index, &model);
            }
            model.keys().for_each(|key| assert!(index.remove(key).is_some()));
            assert_eq!((index.len(), index.bytes(), index.blocks.len()), (0, 0, 0), "nothing is left");
        }
    }

    #[test]
    fn a_key_takes_little_more_than_its_bytes_also_after_most_are_gone() {
        let mut index = Index::default();
        let place = Place { file: 1, offset: 2, value_len: 3 };
        let key = |i: u64| (i * 7_368_787 % 1_000_003).to_be_bytes().repeat(2);
        for i in 0..200_000 {
            index.insert(&key(i), place);
        }
        let bytes = index.bytes() as f64 / index.len() as f64;
        println!("{bytes:.1} bytes for a key of 16");
        assert!((29.0..42.0).contains(&bytes), "{bytes}");
        for i in (0..200_000).filter(|i| i % 10 > 0) {
            index.remove(&key(i));
        }
        let bytes = index.bytes() as f64 / index.len() as f64;
        println!("{bytes:.1} bytes for a key of 16 after nine of ten are gone");
        assert!(bytes < 65.0, "{bytes}");
    }

    #[test]
    fn a_queue_leaves_nothing_behind() {
        for ascending in [true, false] {
            let (mut index, mut most) = (Index::default(), 0);
            let key = |i: u32| if ascending { i } else { u32::MAX - i }.to_be_bytes();
            for i in 0..100_000 {
                index.insert(&key(i), Place { file: 1, offset: i, value_len: 3 });
                if i >= 100 {
                    assert_eq!(index.remove(&key(i - 100)).map(|place| place.offset), Some(i - 100));
                }
                most = most.max(index.blocks.len());
            }
            assert!(most < 12, "{most} blocks for 100 keys");
        }
    }
}
