//! Ranges of keys in their order: what each shard finds, and how that becomes one page.
//!
//! ```text
//!  shard 0:  a c f │ goes on at g        page:  a b c d e f
//!  shard 1:  b d e i                     goes on at g: i may come after what shard 0 has there
//! ```
//!
//! Backwards it is the same with the order turned: a page then goes on below a key, which is the end of what is left.

use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};

/// A page of the records with `start <= key < end`, in key order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first key that is in it.
    pub start: Bytes,
    /// The first one that is not; none: to the last.
    pub end: Option<Bytes>,
    /// So many records at most.
    pub limit: u32,
    /// About so many bytes at most, one record at least.
    pub bytes_max: u32,
    /// Whether values are wanted too.
    pub values: bool,
    /// Whether the last record comes first.
    pub reverse: bool,
    /// Where another replica is asked because who orders cannot scan: the records, with their deadlines, that who orders
    /// has found alive a moment ago. Others that are dead by the clock there are told, to be judged.
    pub judged: Option<Vec<(Bytes, u64)>>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranged {
    /// Keys, with their values if those were wanted.
    pub pairs: Vec<(Bytes, Option<Bytes>)>,
    /// Where the range goes on, if it does: the start of what is left of it, or backwards its end.
    pub next: Option<Bytes>,
}

impl Range {
    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        let judged = self.judged.iter().flatten().map(|(key, _)| 32 + key.len());
        self.start.len() + self.end.as_ref().map_or(0, Bytes::len) + judged.sum::<usize>()
    }

    /// Whether who orders has found this record alive.
    pub fn is_alive(&self, key: &Bytes, deadline_ms: u64) -> bool {
        self.judged.iter().flatten().any(|(alive, at)| alive == key && *at == deadline_ms)
    }

    /// Where it goes on behind this record of it.
    pub fn after(&self, last: &Bytes) -> Option<Bytes> {
        let left = !self.reverse || *last > self.start;
        left.then(|| next_of(last, self.reverse))
    }
}

impl Ranged {
    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        let pair =
            |(key, value): &(Bytes, Option<Bytes>)| 64 + key.len() + value.as_ref().map_or(0, Bytes::len);
        self.pairs.iter().map(pair).sum()
    }
}

/// The least key behind this one.
pub fn behind(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// The start of what comes behind this key, or the end of what comes before it.
fn next_of(last: &Bytes, reverse: bool) -> Bytes {
    if reverse { last.clone() } else { behind(last) }
}

/// One page of what several shards found in the same range.
pub fn merge(parts: impl IntoIterator<Item = Ranged>, limit: usize, reverse: bool) -> Ranged {
    let (mut pairs, mut next): (Vec<_>, Option<Bytes>) = (Vec::new(), None);
    for part in parts {
        pairs.extend(part.pairs);
        next = match (next, part.next) {
            (Some(one), Some(other)) if reverse => Some(one.max(other)),
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    // A shard that goes on may have something there.
    let is_told = |key: &Bytes, next: &Bytes| if reverse { key >= next } else { key < next };
    pairs.retain(|(key, _)| next.as_ref().is_none_or(|next| is_told(key, next)));
    pairs.sort_unstable_by(|(one, _), (other, _)| if reverse { other.cmp(one) } else { one.cmp(other) });
    if pairs.len() > limit {
        pairs.truncate(limit);
        next = pairs.last().map(|(key, _)| next_of(key, reverse));
    }
    Ranged { pairs, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec;

    fn part(keys: &[&'static str], next: Option<&'static str>) -> Ranged {
        let pairs = keys.iter().map(|key| (Bytes::from_static(key.as_bytes()), None)).collect();
        Ranged { pairs, next: next.map(|next| Bytes::from_static(next.as_bytes())) }
    }

    #[test]
    fn nothing_is_told_that_may_have_something_before_it() {
        let parts = [part(&["a", "c", "f"], Some("g")), part(&["b", "i"], None), part(&[], None)];
        assert_eq!(merge(parts.clone(), 10, false), part(&["a", "b", "c", "f"], Some("g")));
        assert_eq!(merge(parts, 3, false), part(&["a", "b", "c"], Some("c\0")));
        assert_eq!(merge([part(&["a"], None)], 1, false), part(&["a"], None));
        assert_eq!(merge([part(&["x"], None), part(&[], Some("d"))], 9, false), part(&[], Some("d")));
        let parts = [part(&["x", "g", "e"], Some("e")), part(&["f", "b"], None), part(&[], None)];
        assert_eq!(merge(parts.clone(), 10, true), part(&["x", "g", "f", "e"], Some("e")));
        assert_eq!(merge(parts, 3, true), part(&["x", "g", "f"], Some("f")));
        assert_eq!(merge([part(&["a"], None), part(&[], Some("d"))], 9, true), part(&[], Some("d")));
    }

    #[test]
    fn page_by_page_everything_comes_once_and_in_order() {
        let mut random = Random::new(8);
        for _ in 0..100 {
            let mut shards = vec![BTreeSet::new(); random.between(1, 5) as usize];
            for _ in 0..random.below(200) {
                let place = random.below(shards.len() as u64) as usize;
                shards[place].insert(Bytes::from(format!("{}", random.below(1000) * 10 + place as u64)));
            }
            if random.percent(50) {
                // The empty key, behind which nothing comes backwards.
                shards[0].insert(Bytes::new());
            }
            let wanted: BTreeSet<Bytes> = shards.iter().flatten().cloned().collect();
            let mut wanted: Vec<Bytes> = wanted.into_iter().collect();
            assert_eq!(all(&shards, &mut random, false), wanted);
            wanted.reverse();
            assert_eq!(all(&shards, &mut random, true), wanted);
        }
    }

    /// Everything, page by page.
    fn all(shards: &[BTreeSet<Bytes>], random: &mut Random, reverse: bool) -> Vec<Bytes> {
        let (start, end, values) = (Bytes::new(), None, false);
        let mut range = Range { start, end, limit: 0, bytes_max: 0, values, reverse, judged: None };
        let (mut got, mut pages) = (Vec::new(), 0);
        loop {
            let limit = random.between(1, 20) as usize;
            let page = |shard: &BTreeSet<Bytes>| {
                let in_range =
                    |key: &&Bytes| **key >= range.start && range.end.as_ref().is_none_or(|end| *key < end);
                let mut keys: Vec<Bytes> = shard.iter().filter(in_range).cloned().collect();
                if reverse {
                    keys.reverse();
                }
                let full = keys.len() >= limit;
                keys.truncate(limit);
                let next = keys.last().filter(|_| full).and_then(|key| range.after(key));
                Ranged { pairs: keys.into_iter().map(|key| (key, None)).collect(), next }
            };
            let merged = merge(shards.iter().map(page), limit, reverse);
            got.extend(merged.pairs.into_iter().map(|(key, _)| key));
            pages += 1;
            assert!(pages < 1000);
            match merged.next {
                Some(next) if reverse => range.end = Some(next),
                Some(next) => range.start = next,
                None => return got,
            }
        }
    }
}
