//! Shards of tables in ranges that have grown: divided in the middle of their keys, as the setting `split-records` says.
//!
//! ```text
//!  how many? ──▶ too many ──▶ keys, page by page, to the middle ──▶ wish (coordinator/split.rs)
//! ```
//!
//! The node that orders a shard's writes looks after it.

use super::Worker;
use crate::settings::Name;
use bytes::Bytes;
use sartor_core::coordinator::split::{can_divide, refuses};
use sartor_core::coordinator::wish::Change;
use sartor_core::ids::{Position, ShardId};
use sartor_core::node::Reply as Answered;
use sartor_core::operation::{Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::range::{Range, Ranged};
use sartor_core::routing::map::{ClusterMap, Partition, Shard};
use sartor_core::time::{Micros, Now, millis};
use std::collections::BTreeMap;

/// Whose answers these are: no client's.
pub const SPLITTER: SessionId = SessionId { index: 1, generation: 0 };
/// How often shards are counted.
const COUNT_EVERY_US: Micros = millis(2000);
/// How long an answer, or a division that was wished, is waited for.
const PATIENCE_US: Micros = millis(10_000);
/// Keys that are looked at in one step.
const KEYS: u32 = 4096;

/// What is under way.
#[derive(Default)]
pub struct Splitting {
    tag: u32,
    count_at: Micros,
    /// Shards that are being counted.
    counting: BTreeMap<u32, ShardId>,
    search: Option<Search>,
    /// What is wished, until then.
    wished: Option<(Change, Micros)>,
}

/// The middle of a shard's keys is looked for.
struct Search {
    table: u16,
    shard: ShardId,
    tag: u32,
    until: Micros,
    /// Its keys from here on, so many before the middle.
    start: Bytes,
    end: Option<Bytes>,
    left: u64,
    /// The last key before.
    before: Bytes,
}

impl Worker {
    /// Counts, if it is time.
    pub(super) fn tend_splitting(&mut self, now: Now) {
        let Some(map) = self.map.clone() else { return };
        if self.shared.settings.get(Name::SplitRecords) == 0 {
            return;
        }
        if let Some((change, until)) = self.splitting.wished.take() {
            let Change::Split(table, at) = &change else { return };
            let begun = map.shards_of(*table).any(|shard| shard.lower == *at);
            if !begun && now.steady_us < until && refuses(&map, *table, at).is_none() {
                self.wish(now, &change);
                self.splitting.wished = Some((change, until));
            }
            return;
        }
        self.splitting.search.take_if(|search| now.steady_us >= search.until);
        if self.splitting.search.is_some() || now.steady_us < self.splitting.count_at {
            return;
        }
        self.splitting.count_at = now.steady_us + COUNT_EVERY_US;
        self.splitting.counting.clear();
        let mine = |shard: &&Shard| map.head_of(shard.id) == Some(self.me) && may_split(&map, shard);
        let shards: Vec<ShardId> = map.shards.iter().filter(mine).map(|shard| shard.id).collect();
        for shard in shards {
            let tag = self.ask_for_split(now, shard, Op::Len);
            self.splitting.counting.insert(tag, shard);
        }
        self.step_requests(now);
    }

    fn ask_for_split(&mut self, now: Now, shard: ShardId, op: Op) -> u32 {
        self.splitting.tag = self.splitting.tag.wrapping_add(1);
        let from = From::Session { session: SPLITTER, tag: self.splitting.tag };
        let deadline_us = now.steady_us + millis(self.shared.settings.get(Name::RequestTimeoutMs));
        let (floor, consistency) = (Position::ZERO, Consistency::Mode);
        self.requests.push(Request { from, shard, op, floor, consistency, deadline_us });
        self.splitting.tag
    }

    /// An answer to what was asked here.
    pub(super) fn on_split_answer(&mut self, now: Now, reply: Answered) {
        if self.splitting.search.as_ref().is_some_and(|search| search.tag == reply.tag) {
            if let (Some(search), Outcome::Ranged(page)) = (self.splitting.search.take(), reply.outcome) {
                self.go_on_searching(now, search, &page);
            }
            return;
        }
        let Some(shard) = self.splitting.counting.remove(&reply.tag) else { return };
        let max = self.shared.settings.get(Name::SplitRecords);
        let Outcome::Integer(count) = reply.outcome else { return };
        let (Some(map), true) = (self.map.clone(), count as u64 > max.max(1)) else { return };
        if self.splitting.search.is_some() || self.splitting.wished.is_some() {
            // Another one first.
            return;
        }
        let Some(known) = map.shard(shard).filter(|known| may_split(&map, known)) else { return };
        if refuses(&map, known.table, &Bytes::from_static(b"any")).is_some() {
            // There may be no more shards: looking for the middle is of no use.
            return;
        }
        let search = Search {
            table: known.table,
            shard,
            tag: 0,
            until: 0,
            start: known.lower.clone(),
            end: map.upper_of(known).cloned(),
            left: count as u64 / 2,
            before: Bytes::new(),
        };
        self.search_on(now, search);
    }

    fn search_on(&mut self, now: Now, search: Search) {
        let Search { start, end, shard, .. } = &search;
        let range = Range {
            start: start.clone(),
            end: end.clone(),
            limit: KEYS,
            bytes_max: 1 << 20,
            values: false,
            reverse: false,
            judged: None,
        };
        let tag = self.ask_for_split(now, *shard, Op::Range(Box::new(range)));
        self.splitting.search = Some(Search { tag, until: now.steady_us + PATIENCE_US, ..search });
        self.step_requests(now);
    }

    fn go_on_searching(&mut self, now: Now, mut search: Search, page: &Ranged) {
        let keys = page.pairs.len() as u64;
        if search.left < keys {
            let place = search.left as usize;
            let before = place.checked_sub(1).map_or(&search.before, |before| &page.pairs[before].0);
            let change = Change::Split(search.table, parting(before, &page.pairs[place].0));
            self.splitting.wished = Some((change, now.steady_us + PATIENCE_US));
            return;
        }
        let Some(next) = page.next.clone() else { return };
        search.left -= keys;
        if let Some((last, _)) = page.pairs.last() {
            search.before = last.clone();
        }
        self.search_on(now, Search { start: next, ..search });
    }
}

/// Whether a shard can be divided at all, and its table is not being divided.
fn may_split(map: &ClusterMap, shard: &Shard) -> bool {
    let table = map.table_of(shard).filter(|table| table.partition == Partition::Range);
    let known = |name: &str| sartor_core::controlet::mode(crate::modes::modes(), name);
    table.is_some_and(|table| {
        let divides = map.shards_of(table.id).any(|shard| shard.part_of.is_some());
        !divides && known(&table.mode).is_some_and(can_divide)
    })
}

/// The shortest key that lies between two, or is the second one.
fn parting(before: &[u8], key: &[u8]) -> Bytes {
    let same = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    Bytes::copy_from_slice(&key[..(same + 1).min(key.len())])
}

#[cfg(test)]
mod tests {
    use super::parting;

    #[test]
    fn a_bound_is_short_and_parts_two_keys() {
        for (before, key, wanted) in [
            ("", "key", "k"),
            ("k0099", "k0100", "k01"),
            ("k", "k0", "k0"),
            ("abc", "b", "b"),
            ("a", "ab", "ab"),
        ] {
            let bound = parting(before.as_bytes(), key.as_bytes());
            assert_eq!(bound, wanted.as_bytes());
            assert!(before.as_bytes() < &bound[..] && &bound[..] <= key.as_bytes());
        }
    }
}
