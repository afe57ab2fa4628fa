//! Nodes that are alive and cannot reach each other: a link that is dead, or in one direction only.
//!
//! ```text
//!  a: "nothing of mine comes back from b", and b says so of a ──▶ estranged ──▶ one is removed (repair.rs)
//!  a ◀── try b ── coordinator;   a ── Ping ──▶ b ── Pong ──▶ a: "I reach b" ──▶ … for long enough: forgotten
//! ```
//!
//! While two nodes are estranged, no shard gets both. A pair that fails again and again must be well for twice as long
//! each time, so that a link that comes and goes does not make replicas come and go.

use super::repair::report_of;
use super::{Heartbeat, NodeView};
use crate::controlet::Status;
use crate::ids::NodeId;
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Shard};
use crate::time::{Micros, Now};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A pair that was never estranged before is trusted again after so many times the detection time.
const CALM_TIMES: u64 = 4;
/// A pair counts after this part of the detection time, about a heartbeat: a node that hears nobody is missed by one
/// after the other, and the first of them is not to blame.
const GRACE_PART: u64 = 5;
/// The time doubles with each relapse, so often at most.
const DOUBLINGS_MAX: u32 = 3;

/// All pairs that were ever found out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Estranged {
    down_after_us: Micros,
    pairs: BTreeMap<(NodeId, NodeId), Pair>,
    /// Who misses whom by the present word of either.
    claims: BTreeSet<(NodeId, NodeId)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pair {
    estranged: bool,
    /// They miss each other; else one only was too slow for the other.
    deaf: bool,
    since: Micros,
    /// It was known for long enough to hear what others have to say of the two.
    ripe: bool,
    relapses: u32,
    /// Since when they have reached each other again.
    well_since: Option<Micros>,
}

impl Estranged {
    /// Nobody is.
    pub fn new(down_after_us: Micros) -> Estranged {
        Estranged { down_after_us, pairs: BTreeMap::new(), claims: BTreeSet::new() }
    }

    /// Looks for members that miss each other: one's word is not enough, as the other may just be dead. And for those
    /// who take entries or a fill too slowly.
    pub fn find(&mut self, now: Now, nodes: &BTreeMap<NodeId, NodeView>, map: &ClusterMap) {
        self.claims.clear();
        for shard in &map.shards {
            for (place, one) in shard.members.iter().enumerate() {
                let Some(report) = report_of(nodes, shard, *one) else { continue };
                let misses = |status: &Status, node: NodeId| status.deaf.contains(&node);
                for other in &shard.members[place + 1..] {
                    let back = report_of(nodes, shard, *other);
                    let back = back.is_some_and(|report| misses(&report.status, one.node));
                    let there = misses(&report.status, other.node);
                    if back || there {
                        self.claims.insert((one.node.min(other.node), one.node.max(other.node)));
                    }
                    if back && there {
                        self.part(now, one.node, other.node, true);
                    }
                }
                if place == 0 {
                    self.find_failed(now, nodes, shard);
                }
                let fill = report.status.fill.filter(|_| report.status.fill_failed).map(|fill| fill.since);
                // Who was too slow for one is not the first to try next.
                for slow in &report.status.cut {
                    self.part(now, one.node, *slow, false);
                }
                if let Some(joining) = shard.joining.filter(|joining| Some(joining.since) == fill) {
                    self.part(now, one.node, joining.member.node, false);
                }
            }
        }
        let grace_us = self.down_after_us / GRACE_PART;
        for pair in self.pairs.values_mut() {
            pair.ripe |= now.steady_us >= pair.since + grace_us;
        }
    }

    /// Who could not keep what it was sent, as where its disk is full, is not the first to try next either.
    fn find_failed(&mut self, now: Now, nodes: &BTreeMap<NodeId, NodeView>, shard: &Shard) {
        let Some(joining) = shard.joining.map(|joining| joining.member) else { return };
        let failed = report_of(nodes, shard, joining);
        let failed = failed.is_some_and(|report| report.status.lost || report.status.differs);
        if failed && !shard.members.contains(&joining) {
            self.part(now, shard.members[0].node, joining.node, false);
        }
    }

    /// A node tells whom it reaches again.
    pub fn on_heartbeat(&mut self, now: Now, heartbeat: &Heartbeat) {
        for ((low, high), pair) in &mut self.pairs {
            if *low != heartbeat.node || !pair.estranged {
                continue;
            }
            if planted(Fault::ForgetEstranged) {
                pair.estranged = false;
                continue;
            }
            if !heartbeat.reached.contains(high) {
                pair.well_since = None;
                continue;
            }
            let since = *pair.well_since.get_or_insert(now.steady_us);
            let calm_us = (self.down_after_us * CALM_TIMES) << (pair.relapses - 1).min(DOUBLINGS_MAX);
            pair.estranged = now.steady_us.saturating_sub(since) < calm_us;
        }
    }

    fn part(&mut self, now: Now, one: NodeId, other: NodeId, deaf: bool) {
        let pair = self.pairs.entry((one.min(other), one.max(other))).or_default();
        if !pair.estranged {
            let relapses = pair.relapses.saturating_add(1);
            let (since, ripe, well_since) = (now.steady_us, false, None);
            *pair = Pair { estranged: true, deaf, since, ripe, relapses, well_since };
        } else if deaf && !pair.deaf {
            (pair.deaf, pair.since, pair.ripe) = (true, now.steady_us, false);
        }
    }

    /// Those who are, the lower number first.
    pub fn pairs(&self) -> Vec<(NodeId, NodeId)> {
        self.pairs.iter().filter(|(_, pair)| pair.estranged).map(|(nodes, _)| *nodes).collect()
    }

    fn pair(&self, one: NodeId, other: NodeId) -> Option<&Pair> {
        self.pairs.get(&(one.min(other), one.max(other))).filter(|pair| pair.estranged)
    }

    /// Whether two nodes are.
    pub fn are(&self, one: NodeId, other: NodeId) -> bool {
        self.pair(one, other).is_some()
    }

    /// Whether two nodes miss each other, so that they cannot both be members.
    pub fn are_deaf(&self, one: NodeId, other: NodeId) -> bool {
        self.pair(one, other).is_some_and(|pair| pair.deaf && pair.ripe)
    }

    /// How many a node misses, or is missed by.
    pub fn missed_by(&self, node: NodeId) -> usize {
        let deaf = self.pairs.iter().filter(|(_, pair)| pair.estranged && pair.deaf).map(|(nodes, _)| nodes);
        let concerns = |(a, b): &&(NodeId, NodeId)| *a == node || *b == node;
        deaf.chain(&self.claims).filter(concerns).collect::<BTreeSet<_>>().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controlet::FillStatus;
    use crate::coordinator::ReplicaReport;
    use crate::ids::{Epoch, Incarnation, ShardId};
    use crate::routing::map::{Joining, Member};
    use crate::time::millis;
    use alloc::vec;

    fn member(node: u16) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(1) }
    }

    /// Nodes 0 and 1 hold a shard, and whom each misses; node 2 is being filled by node 1.
    fn found(deaf: [&[u16]; 2], fill_failed: bool) -> Estranged {
        let joining = Some(Joining { member: member(2), since: Epoch(5), ..Joining::default() });
        let shard =
            Shard { epoch: Epoch(5), members: vec![member(0), member(1)], joining, ..Shard::default() };
        let map = ClusterMap { shards: vec![shard], ..ClusterMap::default() };
        let view = |(node, deaf): (usize, &[u16])| {
            let deaf = deaf.iter().map(|node| NodeId(*node)).collect();
            let fill = (node == 1).then_some(FillStatus { since: Epoch(5), ..FillStatus::default() });
            let status = Status { deaf, fill, fill_failed: fill_failed && node == 1, ..Status::default() };
            let replicas = vec![ReplicaReport { shard: ShardId(0), epoch: Epoch(5), status }];
            (NodeId(node as u16), NodeView { incarnation: Incarnation(1), replicas, ..NodeView::default() })
        };
        let nodes = deaf.into_iter().enumerate().map(view).collect();
        let mut estranged = Estranged::new(millis(500));
        estranged.find(Now::default(), &nodes, &map);
        assert_eq!(estranged.missed_by(NodeId(0)), usize::from(deaf.iter().any(|deaf| !deaf.is_empty())));
        assert!(!estranged.are_deaf(NodeId(0), NodeId(1)), "others may have something to say");
        estranged.find(Now { steady_us: millis(100), unix_ms: 0 }, &nodes, &map);
        estranged
    }

    #[test]
    fn both_must_miss_each_other() {
        assert_eq!(found([&[1], &[]], false).pairs(), []);
        let both = found([&[1], &[0]], false);
        assert_eq!(both.pairs(), [(NodeId(0), NodeId(1))]);
        assert!(both.are_deaf(NodeId(1), NodeId(0)));
        let filled = found([&[], &[]], true);
        assert_eq!(filled.pairs(), [(NodeId(1), NodeId(2))], "it takes nothing of a fill");
        assert!(!filled.are_deaf(NodeId(1), NodeId(2)));
    }

    #[test]
    fn who_could_not_keep_a_fill_is_not_tried_again_at_once() {
        let joining = Some(Joining { member: member(2), since: Epoch(5), ..Joining::default() });
        let shard = Shard { epoch: Epoch(5), members: vec![member(0)], joining, ..Shard::default() };
        let map = ClusterMap { shards: vec![shard], ..ClusterMap::default() };
        let view = |node: u16, lost: bool| {
            let status = Status { lost, ..Status::default() };
            let replicas = vec![ReplicaReport { shard: ShardId(0), epoch: Epoch(5), status }];
            (NodeId(node), NodeView { incarnation: Incarnation(1), replicas, ..NodeView::default() })
        };
        for lost in [false, true] {
            let nodes = [view(0, false), view(2, lost)].into_iter().collect();
            let mut estranged = Estranged::new(millis(500));
            estranged.find(Now::default(), &nodes, &map);
            assert_eq!(estranged.are(NodeId(0), NodeId(2)), lost);
        }
    }

    #[test]
    fn a_pair_is_trusted_again_once_it_was_well_for_long_enough_and_later_each_time() {
        let mut estranged = found([&[1], &[0]], false);
        let tell = |estranged: &mut Estranged, node: u16, ms: u64, reached: &[u16]| {
            let now = Now { steady_us: millis(ms), unix_ms: 0 };
            let reached = reached.iter().map(|node| NodeId(*node)).collect();
            estranged.on_heartbeat(now, &Heartbeat { node: NodeId(node), reached, ..Heartbeat::default() });
            estranged.are(NodeId(1), NodeId(0))
        };
        assert!(tell(&mut estranged, 0, 100, &[1]));
        assert!(tell(&mut estranged, 1, 3000, &[]), "the lower number is asked");
        assert!(tell(&mut estranged, 0, 1000, &[]), "it comes and goes");
        assert!(tell(&mut estranged, 0, 1500, &[1]));
        assert!(tell(&mut estranged, 0, 3400, &[1]));
        assert!(!tell(&mut estranged, 0, 3500, &[1]));
        estranged.part(Now::default(), NodeId(1), NodeId(0), true);
        assert!(tell(&mut estranged, 0, 4100, &[1]));
        assert!(tell(&mut estranged, 0, 8000, &[1]), "a relapse: twice as long");
        assert!(!tell(&mut estranged, 0, 8100, &[1]));
    }
}
