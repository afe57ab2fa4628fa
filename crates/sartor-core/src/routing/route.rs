//! From a key to its shard, table by table: what a worker looks up for every request, made once a map.

use super::map::{ClusterMap, Partition, Table};
use super::slot::{SLOTS, slot_of};
use crate::ids::ShardId;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;

/// Where the keys of all tables are.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// In order of number.
    tables: Vec<(u16, Route)>,
}

/// Where the keys of one table are.
#[derive(Clone, Debug)]
enum Route {
    /// One shard has them all: no need to look which.
    One(ShardId),
    /// The shard of each slot.
    Slots(Vec<ShardId>),
    /// Shards by their least keys; the first one's is the empty key.
    Ranges(Vec<(Bytes, ShardId)>),
}

impl Routes {
    /// Those of a map.
    pub fn of(map: &ClusterMap) -> Routes {
        Routes { tables: map.tables.iter().map(|table| (table.id, Route::of(map, table))).collect() }
    }

    /// The shard of a key; none where the table is gone.
    pub fn shard_of(&self, table: u16, key: &[u8]) -> Option<ShardId> {
        Some(self.route(table)?.shard_of(key))
    }

    /// Whether there is such a table.
    pub fn has(&self, table: u16) -> bool {
        self.route(table).is_some()
    }

    /// The shards in which keys with `start <= key < end` may be, and which of these each may have: in their order where the
    /// table has one, else all.
    pub fn parts_between(&self, table: u16, start: &Bytes, end: Option<&Bytes>) -> Vec<Part> {
        self.route(table).map_or_else(Vec::new, |route| route.parts_between(start, end))
    }

    fn route(&self, table: u16) -> Option<&Route> {
        match self.tables.first() {
            // Most have one table only.
            Some((id, route)) if *id == table => Some(route),
            _ => {
                let place = self.tables.binary_search_by_key(&table, |(id, _)| *id).ok()?;
                self.tables.get(place).map(|(_, route)| route)
            }
        }
    }
}

/// A shard, and the first key that it may have of a range, and the first one that it may not.
pub type Part = (ShardId, Bytes, Option<Bytes>);

impl Route {
    fn of(map: &ClusterMap, table: &Table) -> Route {
        let mut shards = map.shards_of(table.id);
        match (shards.next(), shards.next()) {
            (Some(only), None) => return Route::One(only.id),
            (None, _) => return Route::One(ShardId(0)),
            (Some(_), Some(_)) => {}
        }
        match table.partition {
            Partition::Hash => Route::Slots(slots(map, table.id)),
            Partition::Range => {
                let mut ranges: Vec<_> =
                    map.shards_of(table.id).map(|shard| (shard.lower.clone(), shard.id)).collect();
                ranges.sort();
                Route::Ranges(ranges)
            }
        }
    }

    fn shard_of(&self, key: &[u8]) -> ShardId {
        match self {
            Route::One(only) => *only,
            Route::Slots(slots) => slots[usize::from(slot_of(key))],
            Route::Ranges(ranges) => ranges[place_of(ranges, key)].1,
        }
    }

    fn parts_between(&self, start: &Bytes, end: Option<&Bytes>) -> Vec<Part> {
        let whole = |shard: ShardId| (shard, start.clone(), end.cloned());
        match self {
            Route::One(only) => vec![whole(*only)],
            Route::Slots(slots) => {
                let mut all = slots.clone();
                all.sort_unstable();
                all.dedup();
                all.into_iter().map(whole).collect()
            }
            Route::Ranges(ranges) => {
                let first = place_of(ranges, start);
                let reached = |(place, (lower, _)): &(usize, &(Bytes, ShardId))| {
                    *place == first || end.is_none_or(|end| lower < end)
                };
                let part = |(place, (lower, shard)): (usize, &(Bytes, ShardId))| {
                    let upper = ranges.get(place + 1).map(|(upper, _)| upper);
                    let end = end.into_iter().chain(upper).min();
                    (*shard, lower.max(start).clone(), end.cloned())
                };
                ranges.iter().enumerate().skip(first).take_while(reached).map(part).collect()
            }
        }
    }
}

/// The place of the range in which a key is.
fn place_of(ranges: &[(Bytes, ShardId)], key: &[u8]) -> usize {
    ranges.partition_point(|(lower, _)| &lower[..] <= key).saturating_sub(1)
}

fn slots(map: &ClusterMap, table: u16) -> Vec<ShardId> {
    let mut slots = vec![ShardId(0); usize::from(SLOTS)];
    for shard in map.shards_of(table) {
        for &(first, last) in &shard.slots {
            slots[usize::from(first)..=usize::from(last)].fill(shard.id);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::map::{Member, Shard, even_slots};

    fn map() -> ClusterMap {
        let shard = |id: u16, table| Shard {
            id: ShardId(id),
            table,
            members: vec![Member::default()],
            ..Shard::default()
        };
        let table = |id, partition| Table { id, partition, ..Table::default() };
        let mut shards: Vec<Shard> =
            [0, 0, 4, 4, 4, 9, 7].into_iter().zip(0..).map(|(table, id)| shard(id, table)).collect();
        for (slots, shard) in even_slots(2).into_iter().zip(&mut shards) {
            shard.slots = vec![slots];
        }
        (shards[2].lower, shards[4].lower) = (Bytes::from_static(b"m"), Bytes::from_static(b"t"));
        shards[6].members.clear();
        let tables = vec![table(0, Partition::Hash), table(4, Partition::Range), table(9, Partition::Range)];
        ClusterMap { tables, shards, ..ClusterMap::default() }
    }

    #[test]
    fn each_table_has_its_keys_where_its_partition_says() {
        let routes = Routes::of(&map());
        let shard = |table, key: &str| routes.shard_of(table, key.as_bytes()).map(|shard| shard.0);
        let half = |key: &str| Some(u16::from(slot_of(key.as_bytes()) >= SLOTS / 2));
        for key in ["", "a", "foo", "bar", "m"] {
            assert_eq!((shard(0, key), shard(9, key)), (half(key), Some(5)));
        }
        for (key, wanted) in
            [("", 3), ("a", 3), ("lzzz", 3), ("m", 2), ("ma", 2), ("s~", 2), ("t", 4), ("z", 4)]
        {
            assert_eq!(shard(4, key), Some(wanted), "{key}");
        }
        assert_eq!((shard(7, "a"), routes.has(7), routes.has(4)), (None, false, true), "7 was deleted");
    }

    #[test]
    fn a_range_is_asked_for_where_it_may_be() {
        let routes = Routes::of(&map());
        let between = |table, start: &'static str, end: Option<&'static str>| -> Vec<u16> {
            let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
            let parts = routes.parts_between(table, &bytes(start), end.map(bytes).as_ref());
            parts.into_iter().map(|(shard, ..)| shard.0).collect()
        };
        assert_eq!(between(4, "", None), [3, 2, 4]);
        assert_eq!(between(4, "a", Some("m")), [3]);
        assert_eq!(between(4, "a", Some("m0")), [3, 2]);
        assert_eq!(between(4, "n", Some("n")), [2], "also where nothing can be");
        assert_eq!(between(4, "x", None), [4]);
        assert_eq!((between(0, "a", Some("b")), between(9, "", None)), (vec![0, 1], vec![5]));
        assert_eq!(between(7, "", None), []);
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let parts = [
            (ShardId(3), bytes("a"), Some(bytes("m"))),
            (ShardId(2), bytes("m"), Some(bytes("t"))),
            (ShardId(4), bytes("t"), Some(bytes("x"))),
        ];
        assert_eq!(routes.parts_between(4, &bytes("a"), Some(&bytes("x"))), parts);
    }
}
