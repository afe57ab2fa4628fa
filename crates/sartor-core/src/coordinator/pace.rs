//! What fails again and again is tried again, but more and more seldom: a copy whose store does not answer, or a shard
//! that begins anew in one that does not.

use crate::ids::{NodeId, ShardId};
use crate::routing::map::{ClusterMap, Shard};
use crate::time::{Micros, millis};
use alloc::collections::BTreeMap;

/// The wait after a first failure; it doubles with each.
const FIRST_US: Micros = millis(200);
/// As often as that at most.
const DOUBLED_MAX: u32 = 5;
/// Failures so far apart have nothing to do with each other.
const FORGOTTEN_US: Micros = millis(30_000);

/// What was tried in vain.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    tries: BTreeMap<(ShardId, Option<NodeId>), Try>,
}

#[derive(Clone, Copy, Debug)]
struct Try {
    times: u32,
    at_us: Micros,
}

impl Pace {
    /// Whether it is too early to fill this node's copy of a shard again; without a node, to begin the shard anew again.
    pub fn is_early(&self, now_us: Micros, shard: ShardId, node: Option<NodeId>) -> bool {
        let wait = |last: &Try| FIRST_US << (last.times - 1).min(DOUBLED_MAX);
        self.tries.get(&(shard, node)).is_some_and(|last| now_us < last.at_us + wait(last))
    }

    /// The next map was decided.
    pub fn on_next(&mut self, now_us: Micros, old: &ClusterMap, next: &ClusterMap) {
        for (old, next) in old.shards.iter().zip(&next.shards) {
            if old.born != next.born {
                self.note(now_us, next.id, None);
            }
            let filled = old.joining.map(|joining| joining.member).filter(|_| next.joining.is_none());
            match filled {
                Some(member) if next.members.contains(&member) => {
                    self.tries.remove(&(next.id, Some(member.node)));
                }
                Some(member) => self.note(now_us, next.id, Some(member.node)),
                None => {}
            }
        }
    }

    /// Whether this change of a shard is one to wait with.
    pub fn holds_back(&self, now_us: Micros, old: &Shard, next: &Shard) -> bool {
        old.born != next.born && self.is_early(now_us, next.id, None)
    }

    fn note(&mut self, now_us: Micros, shard: ShardId, node: Option<NodeId>) {
        let last = self.tries.entry((shard, node)).or_insert(Try { times: 0, at_us: now_us });
        let related = now_us < last.at_us + FORGOTTEN_US;
        *last = Try { times: if related { last.times + 1 } else { 1 }, at_us: now_us };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, Incarnation};
    use crate::routing::map::{Joining, Member};
    use alloc::vec;

    const SHARD: ShardId = ShardId(0);
    const NODE: NodeId = NodeId(2);

    fn map(born: u64, joining: bool, members: bool) -> ClusterMap {
        let member = Member { node: NODE, incarnation: Incarnation(1) };
        let joining = joining.then_some(Joining { member, since: Epoch(3), ..Joining::default() });
        let members = if members { vec![member] } else { vec![] };
        ClusterMap {
            shards: vec![Shard { born: Epoch(born), joining, members, ..Shard::default() }],
            ..ClusterMap::default()
        }
    }

    #[test]
    fn a_copy_that_cannot_be_filled_is_tried_more_and_more_seldom() {
        let (mut pace, mut now) = (Pace::default(), millis(1000));
        let mut waits = vec![];
        for _ in 0..9 {
            pace.on_next(now, &map(1, true, false), &map(1, false, false));
            let began = now;
            while pace.is_early(now, SHARD, Some(NODE)) {
                now += millis(10);
            }
            waits.push((now - began) / 1000);
        }
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 6400, 6400, 6400]);
        assert!(!pace.is_early(now, SHARD, Some(NodeId(1))), "others are filled at once");
        pace.on_next(now, &map(1, true, true), &map(1, false, true));
        assert!(!pace.is_early(now, SHARD, Some(NODE)), "it was filled");
        pace.on_next(now + FORGOTTEN_US, &map(1, true, false), &map(1, false, false));
        assert!(!pace.is_early(now + FORGOTTEN_US + FIRST_US, SHARD, Some(NODE)));
    }

    #[test]
    fn a_shard_begins_anew_at_once_the_first_time() {
        let (mut pace, now) = (Pace::default(), millis(1000));
        let (old, next) = (map(1, false, true), map(5, false, true));
        let holds = |pace: &Pace, now| pace.holds_back(now, &old.shards[0], &next.shards[0]);
        assert!(!holds(&pace, now));
        pace.on_next(now, &old, &next);
        assert!(holds(&pace, now) && !holds(&pace, now + FIRST_US));
        assert!(!pace.holds_back(now, &old.shards[0], &old.shards[0]));
    }
}
