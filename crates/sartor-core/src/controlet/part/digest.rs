//! Whether what was done here is what was done at the first member: a digest over all entries so far.
//!
//! ```text
//!  first ── with its promises: at 41, this digest ──▶ other: the same, once it is at 41
//! ```
//!
//! Every replica of a shard does the same in the same order, or decides that the same came of it; this looks. It sees what went
//! wrong on the way into the store; what a store does to its records afterwards, `survey.rs` sees. A replica
//! that differs serves no more, and is filled anew.

use crate::entry::Entry;
use crate::ids::Position;
use crate::random::mix;
use alloc::collections::VecDeque;

/// So many places are waited for; newer ones come soon again.
const TOLD_MAX: usize = 8;

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    sum: u64,
    /// Of entries from elsewhere that the store does not have yet.
    coming: VecDeque<(Position, u64)>,
    /// What the first member said of places that are not reached yet.
    told: VecDeque<(Position, u64)>,
    differs: bool,
}

impl Digest {
    /// An entry from elsewhere is on its way to the store.
    pub fn take(&mut self, entry: &Entry) {
        self.coming.push_back((entry.position, of(entry)));
    }

    /// The store has the next one of those, or one from before a fill.
    pub fn on_applied(&mut self, position: Position) {
        if let Some((_, next)) = self.coming.pop_front_if(|(at, _)| *at == position) {
            self.sum = mix(self.sum ^ next);
        }
    }

    /// The store has made an entry.
    pub fn on_made(&mut self, entry: &Entry) {
        self.sum = mix(self.sum ^ of(entry));
    }

    /// A fill begins, from a replica that had this.
    pub fn restart(&mut self, sum: u64) {
        *self = Digest { sum, ..Digest::default() };
    }

    /// Of all entries so far.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Another view: another one may be the first.
    pub fn on_view(&mut self) {
        self.told.clear();
    }

    /// What the first member has at a place.
    pub fn on_told(&mut self, at: Position, sum: u64) {
        if self.told.len() < TOLD_MAX {
            self.told.push_back((at, sum));
        }
    }

    /// All up to here is in the store.
    pub fn compare(&mut self, here: Position) {
        while let Some((at, sum)) = self.told.front().copied().filter(|(at, _)| at.sequence <= here.sequence)
        {
            self.told.pop_front();
            self.differs |= at.sequence == here.sequence && (at != here || sum != self.sum);
        }
    }

    /// Whether it was not the same.
    pub fn differs(&self) -> bool {
        self.differs
    }

    /// What is here is what there is.
    pub fn forgive(&mut self) {
        self.differs = false;
    }
}

const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

/// Of one entry: four sums side by side, as values may be large.
fn of(entry: &Entry) -> u64 {
    let bytes = entry.writes.packed();
    let add = |sum: u64, word: [u8; 8]| (sum ^ u64::from_le_bytes(word)).wrapping_mul(PRIME).rotate_left(29);
    let mut sums = [entry.position.sequence, entry.position.epoch.0, bytes.len() as u64, PRIME];
    let (words, rest) = bytes.as_chunks::<8>();
    let (blocks, words) = words.as_chunks::<4>();
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = add(*sum, *word);
        }
    }
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = add(*sum, *word);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sums[3] = add(sums[3], last);
    sums.into_iter().fold(0, |all, sum| mix(all ^ sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Write, Writes};
    use crate::ids::Epoch;
    use alloc::vec;
    use alloc::vec::Vec;

    fn at(sequence: u64) -> Position {
        Position { epoch: Epoch(1), sequence }
    }

    fn entry(sequence: u64, value: &[u8]) -> Entry {
        let put = Write::Put { key: b"key", value, deadline_ms: None };
        Entry { position: at(sequence), writes: Writes::of([put]) }
    }

    #[test]
    fn every_byte_and_the_order_count() {
        let value = vec![7; 100];
        let mut seen: Vec<u64> =
            vec![of(&entry(1, &value)), of(&entry(2, &value)), of(&entry(1, &value[1..]))];
        for place in 0..value.len() {
            let mut other = value.clone();
            other[place] ^= 1;
            seen.push(of(&entry(1, &other)));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 103);
        let (mut one, mut other) = (Digest::default(), Digest::default());
        one.on_made(&entry(1, b"a"));
        one.on_made(&entry(2, b"b"));
        other.take(&entry(1, b"a"));
        other.on_made(&entry(2, b"b"));
        other.on_applied(at(1));
        assert_ne!(one.sum(), other.sum());
    }

    #[test]
    fn what_differs_is_seen_at_its_place() {
        let (mut first, mut same, mut other) = (Digest::default(), Digest::default(), Digest::default());
        for sequence in 1..=3 {
            first.on_made(&entry(sequence, b"a"));
        }
        same.on_told(at(3), first.sum());
        other.on_told(at(3), first.sum());
        for sequence in 1..=4 {
            same.take(&entry(sequence, b"a"));
            other.take(&entry(sequence, if sequence == 2 { b"b" } else { b"a" }));
        }
        for sequence in 1..=4 {
            for digest in [&mut same, &mut other] {
                digest.on_applied(at(sequence));
                digest.compare(at(sequence));
            }
            assert!(!same.differs());
            assert_eq!(other.differs(), sequence >= 3);
        }
        let mut late = Digest::default();
        late.on_told(at(3), 9);
        late.compare(at(4));
        assert!(!late.differs(), "it was not looked at there");
    }
}
