//! What becomes of a shard when nodes die, come, or are filled: pure rules from what is known of the nodes to
//! the shard's next view. (TPDS 4.1, 4.2 "Failover", 10)
//!
//! ```text
//!  a b c  ── b dies ──▶  a c  ── d is filled ──▶  a c +d  ── joins ──▶  a c d (+d)  ── proven ──▶  a c d
//! ```
//!
//! Every view is made of members of the one before and at most one that they filled. A newcomer counts only once
//! it has the promises of all others and all that they had; until then the others alone know everything, so if one of
//! them fails, the newcomer starts over.

use super::estranged::Estranged;
use super::remains;
use super::{NodeView, ReplicaReport};
use crate::controlet::{Mode, Status, Succession};
use crate::ids::{Epoch, NodeId, Position};
use crate::keeper::Mark;
use crate::mutants::{Fault, planted};
use crate::routing::map::{Joining, Member, Shard, is_adopted};
use crate::time::Micros;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// What the coordinator knows.
pub struct Known<'a> {
    /// Every node that was ever heard.
    pub nodes: &'a BTreeMap<NodeId, NodeView>,
    /// Whether there was time enough to hear the others too.
    pub heard_all: bool,
    /// How many replicas each node has, or is to have.
    pub load: BTreeMap<NodeId, usize>,
    /// How many a node should have at most.
    pub load_max: usize,
    /// The epoch that a change will have.
    pub epoch: Epoch,
    /// Copies wanted.
    pub copies: usize,
    /// The shard's mode.
    pub succession: Succession,
    /// Nodes that cannot reach each other.
    pub estranged: &'a Estranged,
    /// The datalet kind of the shard's table.
    pub datalet: &'a str,
}

/// Whether this life of a node is heard.
pub(super) fn is_heard(nodes: &BTreeMap<NodeId, NodeView>, member: Member) -> bool {
    nodes.get(&member.node).is_some_and(|node| !node.silent && node.incarnation == member.incarnation)
}

/// Who becomes the first member in a mode, if it is known.
pub fn succession_of(mode: Option<&Mode>) -> Succession {
    mode.map_or(Succession::Next, |mode| mode.succession)
}

impl Known<'_> {
    /// Whether this life of the node is heard.
    fn is_alive(&self, member: Member) -> bool {
        self.nodes
            .get(&member.node)
            .map_or(!self.heard_all, |node| !node.silent && node.incarnation == member.incarnation)
    }

    /// Whether this life of the node is certainly over: another one began.
    fn is_over(&self, member: Member) -> bool {
        remains::is_over(self.nodes, member)
    }

    /// What a member said of its replica in the shard's present view.
    pub(super) fn report(&self, shard: &Shard, member: Member) -> Option<&ReplicaReport> {
        report_of(self.nodes, shard, member)
    }

    /// Of members that cannot reach each other, the one that must go: who is not proven, else who misses the most
    /// nodes, else the last one.
    fn outcast(&self, shard: &Shard) -> Option<Member> {
        let newcomer = newcomer(shard);
        let alive = || shard.members.iter().filter(|member| self.is_alive(**member));
        let parted = |member: &Member| alive().any(|other| self.estranged.are_deaf(member.node, other.node));
        let standing = |(place, member): &(usize, Member)| {
            (Some(*member) == newcomer, self.estranged.missed_by(member.node), *place)
        };
        let parted = alive().copied().filter(parted).collect::<Vec<_>>();
        parted.into_iter().enumerate().max_by_key(standing).map(|(_, member)| member)
    }

    /// Whether a member has its data, and keeps up.
    pub(super) fn is_sound(&self, shard: &Shard, member: Member) -> bool {
        let odd = self.odd(shard);
        let differs = |status: &Status| status.differs && odd.is_none();
        let report = self.report(shard, member);
        let lost = report.is_some_and(|report| report.status.lost || differs(&report.status));
        let mut others = shard.members.iter().filter(|other| **other != member && self.is_alive(**other));
        // Who is itself given up, or has lost its data, is no witness: what it did not hear is its own fault.
        let given_up = others.any(|other| {
            let report = self.report(shard, *other).filter(|report| !report.status.lost);
            report.is_some_and(|report| report.status.cut.contains(&member.node))
        });
        self.is_alive(member) && (!lost || planted(Fault::LostStoreStays)) && !given_up && odd != Some(member)
    }

    /// The first member, where something else was done to it than to all others, of which there are some.
    fn odd(&self, shard: &Shard) -> Option<Member> {
        let (first, others) = shard.members.split_first()?;
        let differs = |member: &Member| {
            let report = self.report(shard, *member);
            self.is_alive(*member) && report.is_some_and(|report| report.status.differs)
        };
        (others.len() > 1 && others.iter().all(differs)).then_some(*first)
    }

    /// Whether some member does not reach a node.
    fn is_parted(&self, members: &[Member], node: NodeId) -> bool {
        members.iter().any(|member| self.estranged.are(member.node, node))
    }

    /// The shard's next state; false if it stays as it is.
    pub fn repair(&mut self, shard: &mut Shard) -> bool {
        let changed = self.change(shard);
        let members = &shard.members;
        shard.outdated.retain(|member| members.contains(member));
        changed
    }

    fn change(&mut self, shard: &mut Shard) -> bool {
        self.restart(shard)
            || self.remove_failed(shard)
            || self.prove(shard)
            || self.give_up_fill(shard)
            || self.join(shard)
            || self.prefer_kept(shard)
            || self.begin_fill(shard)
            || self.shed(shard)
    }

    /// Whether a member's data is gone for certain: its process began another life, or its store came back empty or
    /// failed.
    fn is_gone(&self, shard: &Shard, member: Member) -> bool {
        let gone = |report: &ReplicaReport| {
            let status = &report.status;
            (status.gone && !status.durable) || (status.lost && planted(Fault::SlowIsGone))
        };
        self.is_over(member) || self.report(shard, member).is_some_and(gone)
    }

    /// A shard of which the data is gone at every member that knew everything begins again on the same nodes: with what is on
    /// their disks, or empty. While any of them may still have it, it waits; so it does where a disk holds what cannot be read.
    fn restart(&self, shard: &mut Shard) -> bool {
        let newcomer = newcomer(shard);
        let knowing = shard.members.iter().filter(|member| Some(**member) != newcomer);
        let enough = |gone: usize, of: usize| gone == of || (planted(Fault::RestartWhileAlive) && gone > 0);
        let gone = knowing.clone().filter(|member| self.is_gone(shard, **member)).count();
        if !enough(gone, knowing.count()) {
            return false;
        }
        let held = |member: &Member| Some((*member, self.held(shard, *member)?.position));
        let held: Vec<(Member, Position)> =
            shard.members.iter().filter(|m| Some(**m) != newcomer).filter_map(held).collect();
        let positions = || held.iter().map(|(_, position)| *position);
        let best = if planted(Fault::ResumeLeast) { positions().min() } else { positions().max() };
        if best.is_some() {
            let best = held.iter().filter(|(_, position)| Some(*position) == best);
            return self.resume(shard, &best.map(|(member, _)| *member).collect::<Vec<_>>());
        }
        if !remains::unreadable(self.nodes, shard).is_empty() || !self.heard_all {
            return false;
        }
        let again = |member: &Member| {
            let node = self.nodes.get(&member.node).filter(|node| !node.silent)?;
            Some(Member { node: member.node, incarnation: node.incarnation })
        };
        let mut again: Vec<Member> =
            shard.members.iter().filter(|m| Some(**m) != newcomer).filter_map(again).collect();
        if is_adopted(self.datalet) {
            // What is in its store is what there is, even where that is nothing: whoever emptied it, or let it restart
            // without its data, has no more, and clients wait. A store that does not answer is another matter: it is tried again
            // until it does, as it may have everything.
            again.truncate(1);
        }
        if again.is_empty() {
            return false;
        }
        *shard =
            Shard { members: again, epoch: self.epoch, born: self.epoch, joining: None, ..shard.clone() };
        (shard.start, shard.inherited) = (shard.beginning(), false);
        true
    }

    /// What a later life of a member's node found on disk of this shard, if that is whole.
    fn held(&self, shard: &Shard, member: Member) -> Option<&Mark> {
        remains::held(self.nodes, shard, member)
    }

    /// Of members that stood further than all others when they died, those that are heard go on; the others are filled from
    /// them. While none of them is heard, it waits.
    fn resume(&self, shard: &mut Shard, best: &[Member]) -> bool {
        let again = |member: &Member| {
            let node = self.nodes.get(&member.node).filter(|node| !node.silent)?;
            let held = self.held(shard, *member)?;
            Some((Member { node: member.node, incarnation: node.incarnation }, held))
        };
        let again: Vec<(Member, &Mark)> = best.iter().filter_map(again).collect();
        let Some((_, mark)) = again.first() else { return false };
        let (start, epoch) = (mark.position, self.epoch);
        let outdated = again.iter().filter(|(_, mark)| mark.datalet != self.datalet);
        let outdated = outdated.map(|(member, _)| *member).collect();
        let members = again.iter().map(|(member, _)| *member).collect();
        *shard = Shard { members, epoch, start, outdated, joining: None, ..shard.clone() };
        true
    }

    /// Who was only too slow has all that was acknowledged. One alone, as it serves again where there is nobody else; the
    /// others are filled from it.
    fn slow_heir(&self, shard: &Shard, newcomer: Option<Member>, outcast: Option<Member>) -> Option<Member> {
        let broken = |member| self.report(shard, member).is_some_and(|report| report.status.gone);
        let slow =
            |member: &Member| self.is_alive(*member) && !self.is_gone(shard, *member) && !broken(*member);
        let knows = |member: &Member| Some(*member) != newcomer && Some(*member) != outcast;
        let mut heirs = shard.members.iter().copied().filter(|member| slow(member) && knows(member));
        let position = |member: &Member| self.report(shard, *member).map(|report| report.status.position);
        match self.succession {
            Succession::Next => heirs.next(),
            Succession::MostAdvanced => heirs.max_by_key(position),
        }
    }

    /// Of the members that stay, puts the one first that is to order.
    pub(super) fn put_heir_first(&self, shard: &Shard, members: &mut [Member]) {
        let head_stays = members.first() == shard.members.first();
        if self.succession == Succession::MostAdvanced && !head_stays {
            let position = |member: &Member| self.report(shard, *member).map(|report| report.status.position);
            let best = (0..members.len()).rev().max_by_key(|place| position(&members[*place]));
            if let Some(best) = best {
                members[..=best].rotate_right(1);
            }
        }
    }

    /// Whether a member died and left something on disk, or in a store elsewhere, and nobody who would go on without it was heard
    /// since: perhaps all died, and this one has the most.
    fn may_all_be_dead(&self, shard: &Shard, others: &[Member]) -> bool {
        let left = |member: &&Member| {
            remains::has_left(self.nodes, shard, **member)
                || (is_adopted(self.datalet) && self.is_over(**member))
        };
        let reborn = shard.members.iter().filter(left);
        let reborn = reborn.filter_map(|member| self.nodes.get(&member.node)).map(|node| node.since_us).max();
        let heard_since = |since: Micros| {
            let heard = |member: &Member| {
                let node = self.nodes.get(&member.node);
                node.is_some_and(|node| node.incarnation == member.incarnation && node.heard_us > since)
            };
            others.iter().any(heard)
        };
        reborn.is_some_and(|since| !heard_since(since)) && !planted(Fault::ForgetDisks)
    }

    fn remove_failed(&self, shard: &mut Shard) -> bool {
        let newcomer = newcomer(shard);
        let outcast = self.outcast(shard);
        let sound = |member: &Member| self.is_sound(shard, *member) && Some(*member) != outcast;
        let stays: Vec<Member> = shard.members.iter().copied().filter(sound).collect();
        if stays.len() == shard.members.len() {
            return false;
        }
        // Without the view before, nobody is known to have everything.
        let newcomer = newcomer.filter(|_| !planted(Fault::NewcomerIsHeir));
        let mut members: Vec<Member> = stays.into_iter().filter(|member| Some(*member) != newcomer).collect();
        if members.is_empty() {
            members = self.slow_heir(shard, newcomer, outcast).into_iter().collect();
        }
        if members.is_empty() || members.len() == shard.members.len() || self.may_all_be_dead(shard, &members)
        {
            return false;
        }
        self.put_heir_first(shard, &mut members);
        if planted(Fault::WrongHeir) && members.first() != shard.members.first() {
            members.reverse();
        }
        let epoch = if planted(Fault::ReuseEpoch) { shard.epoch } else { self.epoch };
        // Whoever is being filled has another source now, or another stream: it starts over.
        let joining =
            shard.joining.map(|joining| Joining { since: self.epoch, held: Position::ZERO, ..joining });
        let fits = |joining: &Joining| {
            self.is_alive(joining.member) && !self.is_parted(&members, joining.member.node)
        };
        let joining = joining.filter(fits);
        *shard = Shard { members, epoch, joining, ..shard.clone() };
        true
    }

    /// A newcomer counts from now on: it has the promises of all, and all that they had when it joined. That another
    /// member serves would not show the second.
    fn prove(&self, shard: &mut Shard) -> bool {
        let report = newcomer(shard).and_then(|member| self.report(shard, member));
        let counts = report.is_some_and(|report| report.status.proven || planted(Fault::NewcomerCounts));
        if counts {
            shard.joining = None;
        }
        counts
    }

    /// Who is filled becomes a member, the last one.
    fn join(&self, shard: &mut Shard) -> bool {
        let Some(joining) = shard.joining.filter(|_| newcomer(shard).is_none()) else { return false };
        let ready = |member: &Member| {
            let fill = self.report(shard, *member).and_then(|report| report.status.fill);
            fill.is_some_and(|fill| fill.ready && fill.since == joining.since)
        };
        let joins = self.is_alive(joining.member) && shard.members.iter().any(ready);
        if joins {
            shard.members.push(joining.member);
            shard.epoch = self.epoch;
        }
        joins
    }

    /// A fill that came to nothing makes room for another one.
    fn give_up_fill(&self, shard: &mut Shard) -> bool {
        let Some(joining) = shard.joining.filter(|_| newcomer(shard).is_none()) else { return false };
        let failed = |member: &Member| {
            let report = self.report(shard, *member);
            report.is_some_and(|report| {
                report.status.fill_failed
                    && report.status.fill.is_some_and(|fill| fill.since == joining.since)
            })
        };
        let lost = self.report(shard, joining.member);
        let lost = lost.is_some_and(|report| report.status.lost || report.status.differs);
        let parted = self.is_parted(&shard.members, joining.member.node);
        let ends = lost || parted || !self.is_alive(joining.member) || shard.members.iter().any(failed);
        if ends {
            shard.joining = None;
        }
        ends
    }

    /// A copy is missing: a node of a kind that the others are not in gets it, then the one with the fewest replicas, standbys
    /// first, and those that are here for longest.
    fn begin_fill(&mut self, shard: &mut Shard) -> bool {
        let wants_copy = self.wants_copy(shard);
        if !(wants_copy || self.wants_another_kind(shard))
            || !shard.members.iter().any(|member| self.is_sound(shard, *member))
        {
            return false;
        }
        let helps = |node: NodeId| wants_copy || self.is_missed(shard, node);
        let best = self.free(shard).filter(|(id, _)| helps(**id)).min_by_key(|(id, node)| {
            let load =
                self.load.get(id).copied().unwrap_or(0).saturating_sub(self.load_max.saturating_sub(1));
            let kept = remains::kept(node, shard, self.datalet);
            (!self.is_missed(shard, **id), kept.is_none(), load, node.since_us, **id)
        });
        let Some((&id, node)) = best else { return false };
        shard.joining = Some(self.joining(shard, id, node));
        *self.load.entry(id).or_default() += 1;
        true
    }

    /// Nodes that may get a copy.
    fn free<'b>(&'b self, shard: &'b Shard) -> impl Iterator<Item = (&'b NodeId, &'b NodeView)> {
        let holds = |node: NodeId| shard.members.iter().any(|member| member.node == node);
        let fits = move |node: NodeId| !holds(node) && !self.is_parted(&shard.members, node);
        let rests = |node: &NodeView| node.resting.contains(&shard.id);
        self.nodes.iter().filter(move |(id, node)| !node.silent && fits(**id) && !rests(node))
    }

    fn joining(&self, shard: &Shard, id: NodeId, node: &NodeView) -> Joining {
        let held = remains::kept(node, shard, self.datalet).unwrap_or_default();
        let member = Member { node: id, incarnation: node.incarnation };
        Joining { member, since: self.epoch, held }
    }

    /// Where a node is filled from nothing, and one comes back that lacks little: that one is filled instead, unless the fill
    /// has come far.
    fn prefer_kept(&mut self, shard: &mut Shard) -> bool {
        let Some(joining) = shard.joining.filter(|_| newcomer(shard).is_none()) else { return false };
        let far = |member: &Member| {
            let fill = self.report(shard, *member).and_then(|report| report.status.fill);
            fill.is_some_and(|fill| fill.since == joining.since && 2 * fill.done > fill.total)
        };
        let is_far = joining.held != Position::ZERO || shard.members.iter().any(far);
        // What it said before it heard of a fill is of before.
        let filled = joining.member.node;
        let fits = |node: NodeId| self.is_missed(shard, node) || !self.is_missed(shard, filled);
        let others = self.free(shard).filter(|(id, _)| **id != filled && fits(**id));
        let back = others.into_iter().find(|(_, node)| remains::kept(node, shard, self.datalet).is_some());
        let Some((&id, node)) = back.filter(|_| !is_far) else { return false };
        shard.joining = Some(self.joining(shard, id, node));
        *self.load.entry(id).or_default() += 1;
        true
    }
}

/// What a member said of its replica in the shard's present view.
pub fn report_of<'a>(
    nodes: &'a BTreeMap<NodeId, NodeView>,
    shard: &Shard,
    member: Member,
) -> Option<&'a ReplicaReport> {
    let node = nodes.get(&member.node).filter(|node| node.incarnation == member.incarnation)?;
    node.replicas.iter().find(|report| report.shard == shard.id && report.epoch == shard.epoch)
}

/// A member that has joined by this view and is not proven.
fn newcomer(shard: &Shard) -> Option<Member> {
    shard.joining.map(|joining| joining.member).filter(|member| shard.members.contains(member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controlet::{FillStatus, Status};
    use crate::coordinator::ReplicaReport;
    use crate::ids::{Incarnation, Position, ShardId};
    use crate::routing::map::ClusterMap;
    use crate::time::Now;
    use alloc::vec;

    fn member(node: u16) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(1) }
    }

    fn shard(members: &[u16], joining: Option<u16>) -> Shard {
        let joining =
            joining.map(|node| Joining { member: member(node), since: Epoch(4), ..Joining::default() });
        let members = members.iter().map(|node| member(*node)).collect();
        Shard { epoch: Epoch(5), members, joining, ..Shard::default() }
    }

    /// Nodes 0 to 3, each with what it says of the shard.
    fn nodes(statuses: [Option<Status>; 4]) -> BTreeMap<NodeId, NodeView> {
        let view = |(node, status): (usize, Option<Status>)| {
            let report = |status| ReplicaReport { shard: ShardId(0), epoch: Epoch(5), status };
            let silent = status.is_none();
            let replicas = status.map(report).into_iter().collect();
            let view = NodeView { incarnation: Incarnation(1), silent, replicas, ..NodeView::default() };
            (NodeId(node as u16), view)
        };
        statuses.into_iter().enumerate().map(view).collect()
    }

    fn repair(shard: &mut Shard, nodes: &BTreeMap<NodeId, NodeView>, succession: Succession) -> bool {
        let load = BTreeMap::new();
        let estranged = &Estranged::new(0);
        let (heard_all, load_max, epoch, copies) = (true, 3, Epoch(6), 3);
        Known { nodes, heard_all, load, load_max, epoch, copies, succession, estranged, datalet: "" }
            .repair(shard)
    }

    fn at(sequence: u64) -> Option<Status> {
        Some(Status { position: Position { epoch: Epoch(5), sequence }, ..Status::default() })
    }

    fn numbers(shard: &Shard) -> Vec<u16> {
        shard.members.iter().map(|member| member.node.0).collect()
    }

    #[test]
    fn the_dead_go_and_the_next_or_the_most_advanced_leads() {
        let known = nodes([None, at(5), at(9), at(0)]);
        let mut chain = shard(&[0, 1, 2], None);
        assert!(repair(&mut chain, &known, Succession::Next));
        assert_eq!((numbers(&chain), chain.epoch), (vec![1, 2], Epoch(6)));
        let mut star = shard(&[0, 1, 2], None);
        repair(&mut star, &known, Succession::MostAdvanced);
        assert_eq!(numbers(&star), [2, 1]);
        assert!(!repair(&mut shard(&[0], None), &known, Succession::Next), "the last one is waited for");
    }

    #[test]
    fn who_could_not_be_heard_yet_is_not_dead() {
        let mut known = nodes([at(9), at(9), at(9), at(0)]);
        known.retain(|node, _| node.0 == 0);
        let (load, succession, epoch) = (BTreeMap::new(), Succession::Next, Epoch(6));
        let (estranged, nodes, load_max, copies) = (&Estranged::new(0), &known, 3, 3);
        let mut judge = Known {
            nodes,
            heard_all: false,
            load,
            load_max,
            epoch,
            copies,
            succession,
            estranged,
            datalet: "",
        };
        assert!(!judge.repair(&mut shard(&[0, 1, 2], None)));
        judge.heard_all = true;
        assert!(judge.repair(&mut shard(&[0, 1, 2], None)));
    }

    #[test]
    fn who_comes_back_is_preferred_but_not_to_itself() {
        let mut known = nodes([at(9), at(9), at(0), at(0)]);
        let position = Position { epoch: Epoch(4), sequence: 9 };
        let mark = Mark { born: Epoch(0), position, whole: true, ..Mark::default() };
        let fill = |done| Some(FillStatus { since: Epoch(4), done, total: 100, ready: false });
        known.get_mut(&NodeId(3)).unwrap().held.push(mark);
        assert!(
            !repair(&mut shard(&[0, 1], Some(3)), &known, Succession::Next),
            "said before it heard of its fill"
        );
        let mut other = shard(&[0, 1], Some(2));
        assert!(repair(&mut other, &known, Succession::Next));
        assert_eq!(other.joining, Some(Joining { member: member(3), since: Epoch(6), held: position }));
        known.get_mut(&NodeId(1)).unwrap().replicas[0].status.fill = fill(60);
        assert!(!repair(&mut shard(&[0, 1], Some(2)), &known, Succession::Next), "that one is further");
    }

    #[test]
    fn a_standby_is_filled_joins_and_is_proven() {
        let mut known = nodes([at(9), at(9), None, at(0)]);
        let mut shard = shard(&[0, 1], None);
        assert!(repair(&mut shard, &known, Succession::Next));
        assert_eq!(shard.joining, Some(Joining { member: member(3), since: Epoch(6), ..Joining::default() }));
        assert_eq!(shard.epoch, Epoch(5), "the members serve on");
        assert!(!repair(&mut shard, &known, Succession::Next));
        let tail = known.get_mut(&NodeId(1)).unwrap();
        tail.replicas[0].status.fill = Some(FillStatus { since: Epoch(6), ready: true, done: 1, total: 1 });
        assert!(repair(&mut shard, &known, Succession::Next));
        assert_eq!((numbers(&shard), shard.epoch, shard.joining.is_some()), (vec![0, 1, 3], Epoch(6), true));
        let proven = Status { proven: true, ..Status::default() };
        let report = ReplicaReport { shard: ShardId(0), epoch: Epoch(6), status: proven };
        known.get_mut(&NodeId(0)).unwrap().replicas[0] = report.clone();
        assert!(!repair(&mut shard, &known, Succession::Next), "the head may have what the newcomer lacks");
        known.get_mut(&NodeId(3)).unwrap().replicas[0] = report;
        assert!(repair(&mut shard, &known, Succession::Next));
        assert_eq!(shard.joining, None);
    }

    #[test]
    fn a_newcomer_that_is_not_proven_is_no_heir() {
        let mut joined = shard(&[0, 3], Some(3));
        let known = nodes([None, None, None, at(9)]);
        assert!(!repair(&mut joined, &known, Succession::Next), "only node 0 knows everything");
        let known = nodes([at(9), None, None, None]);
        assert!(repair(&mut joined, &known, Succession::Next));
        assert_eq!((numbers(&joined), joined.joining), (vec![0], None));
        let mut joined = shard(&[0, 1, 3], Some(3));
        let known = nodes([at(9), None, None, at(9)]);
        assert!(repair(&mut joined, &known, Succession::Next));
        assert_eq!(numbers(&joined), [0]);
        assert_eq!(
            joined.joining,
            Some(Joining { member: member(3), since: Epoch(6), ..Joining::default() }),
            "it starts over"
        );
    }

    #[test]
    fn who_is_cut_off_or_has_lost_its_data_is_filled_anew() {
        let cut = Some(Status { cut: vec![NodeId(2)], ..Status::default() });
        let mut shard_ = shard(&[0, 1, 2], None);
        assert!(repair(&mut shard_, &nodes([cut, at(1), at(1), None]), Succession::Next));
        assert_eq!(numbers(&shard_), [0, 1]);
        let lost = Some(Status { lost: true, ..Status::default() });
        let mut shard_ = shard(&[0, 1, 2], None);
        assert!(repair(&mut shard_, &nodes([lost, at(1), at(1), None]), Succession::Next));
        assert_eq!(numbers(&shard_), [1, 2]);
        let lost_and_cuts = Some(Status { lost: true, cut: vec![NodeId(2)], ..Status::default() });
        let mut shard_ = shard(&[0, 1, 2], None);
        assert!(repair(&mut shard_, &nodes([at(1), lost_and_cuts, at(1), None]), Succession::Next));
        assert_eq!(numbers(&shard_), [0, 2], "who is lost is no witness");
    }

    #[test]
    fn of_members_that_miss_each_other_one_is_replaced_and_not_by_itself() {
        let misses = |node| Some(Status { deaf: vec![NodeId(node)], ..Status::default() });
        let known = nodes([misses(2), at(1), misses(0), at(0)]);
        let mut chain = shard(&[0, 1, 2], None);
        let mut estranged = Estranged::new(0);
        let map = ClusterMap { shards: vec![chain.clone()], ..ClusterMap::default() };
        estranged.find(Now::default(), &known, &map);
        let (load, succession, epoch) = (BTreeMap::new(), Succession::Next, Epoch(6));
        let (nodes, estranged, heard_all, load_max, copies) = (&known, &estranged, true, 3, 3);
        let mut judge =
            Known { nodes, heard_all, load, load_max, epoch, copies, succession, estranged, datalet: "" };
        assert!(judge.repair(&mut chain));
        assert_eq!(numbers(&chain), [0, 1]);
        chain.epoch = Epoch(5); // As if the same reports were there again.
        assert!(judge.repair(&mut chain));
        assert_eq!(chain.joining.map(|joining| joining.member), Some(member(3)), "node 2 is free too");
    }

    #[test]
    fn who_was_only_too_slow_is_the_heir_where_nobody_else_is() {
        let slow = || Some(Status { lost: true, ..Status::default() });
        let mut last = shard(&[0, 1], None);
        assert!(repair(&mut last, &nodes([None, slow(), at(0), at(0)]), Succession::Next));
        assert_eq!((numbers(&last), last.born), (vec![1], Epoch(0)), "nothing is lost");
        let mut slow_ones = shard(&[0, 1, 2], None);
        assert!(repair(&mut slow_ones, &nodes([None, slow(), slow(), at(0)]), Succession::Next));
        assert_eq!(
            numbers(&slow_ones),
            [1],
            "one alone, as who was given up serves only where nobody else is"
        );
        let mut all_slow = shard(&[1, 2], None);
        assert!(repair(&mut all_slow, &nodes([at(0), slow(), slow(), at(0)]), Succession::Next));
        assert_eq!(numbers(&all_slow), [1]);
        let mut alone = shard(&[1], None);
        let mut known = nodes([None, slow(), None, None]);
        assert!(!repair(&mut alone, &known, Succession::Next), "nor is it begun anew");
        known.insert(
            NodeId(0),
            NodeView { incarnation: Incarnation(2), ..NodeView::clone(&known[&NodeId(1)]) },
        );
        let mut both = shard(&[0, 1], None);
        assert!(repair(&mut both, &known, Succession::Next));
        assert_eq!((numbers(&both), both.born), (vec![1], Epoch(0)));
    }

    #[test]
    fn who_is_unlike_the_first_goes_or_the_first_who_is_unlike_all() {
        let differs = || Some(Status { differs: true, ..Status::default() });
        let mut one = shard(&[0, 1, 2], None);
        assert!(repair(&mut one, &nodes([at(0), at(0), differs(), at(0)]), Succession::Next));
        assert_eq!(numbers(&one), [0, 1]);
        let mut all = shard(&[0, 1, 2], None);
        assert!(repair(&mut all, &nodes([at(0), differs(), differs(), at(0)]), Succession::Next));
        assert_eq!(numbers(&all), [1, 2]);
        let mut two = shard(&[0, 1], None);
        assert!(repair(&mut two, &nodes([at(0), differs(), at(0), at(0)]), Succession::Next));
        assert_eq!(numbers(&two), [0], "which of two is right nobody knows");
    }

    #[test]
    fn a_store_that_lost_its_data_is_no_heir() {
        let lost = || Some(Status { lost: true, gone: true, ..Status::default() });
        let mut alone = shard(&[0], None);
        assert!(repair(&mut alone, &nodes([lost(), at(0), at(0), at(0)]), Succession::Next));
        assert_eq!((numbers(&alone), alone.born), (vec![0], Epoch(6)), "it begins anew, empty");
        let mut known = nodes([None, lost(), at(0), at(0)]);
        assert!(!repair(&mut shard(&[0, 1], None), &known, Succession::Next), "node 0 may come back");
        let back = known.get_mut(&NodeId(0)).unwrap();
        (back.incarnation, back.silent) = (Incarnation(2), false);
        let mut both = shard(&[0, 1], None);
        assert!(repair(&mut both, &known, Succession::Next));
        assert_eq!((numbers(&both), both.born), (vec![0, 1], Epoch(6)));
    }

    /// Nodes 0 to 2 in another life, with these places of the shard on their disks.
    fn reborn(places: [u64; 3]) -> BTreeMap<NodeId, NodeView> {
        let mut known = nodes([at(0), at(0), at(0), at(0)]);
        for (place, node) in places.into_iter().zip(known.values_mut()) {
            let position = Position { epoch: Epoch(5), sequence: place };
            let mark = Mark { born: Epoch(0), position, whole: true, ..Mark::default() };
            *node = NodeView { incarnation: Incarnation(2), held: vec![mark], ..NodeView::default() };
        }
        known
    }

    #[test]
    fn where_all_died_the_disks_that_stand_furthest_go_on() {
        let mut known = reborn([7, 9, 9]);
        let mut all = shard(&[0, 1, 2], None);
        assert!(repair(&mut all, &known, Succession::Next));
        assert_eq!((numbers(&all), all.born, all.start.sequence), (vec![1, 2], Epoch(0), 9));
        assert!(all.members.iter().all(|member| member.incarnation == Incarnation(2)));
        known.get_mut(&NodeId(1)).unwrap().silent = true;
        let mut one_heard = shard(&[0, 1, 2], None);
        assert!(repair(&mut one_heard, &known, Succession::Next));
        assert_eq!(numbers(&one_heard), [2]);
        known.get_mut(&NodeId(2)).unwrap().silent = true;
        assert!(!repair(&mut shard(&[0, 1, 2], None), &known, Succession::Next), "node 0 lacks something");
    }

    #[test]
    fn a_disk_of_another_beginning_or_with_half_a_copy_counts_for_nothing() {
        for spoil in [|mark: &mut Mark| mark.whole = false, |mark: &mut Mark| mark.born = Epoch(3)] {
            let mut known = reborn([7, 9, 8]);
            spoil(&mut known.get_mut(&NodeId(1)).unwrap().held[0]);
            let mut all = shard(&[0, 1, 2], None);
            assert!(repair(&mut all, &known, Succession::Next));
            assert_eq!((numbers(&all), all.start.sequence), (vec![2], 8));
        }
        let mut joined = shard(&[0, 1], Some(1));
        assert!(repair(&mut joined, &reborn([7, 9, 9]), Succession::Next));
        assert_eq!((numbers(&joined), joined.start.sequence), (vec![0], 7), "a newcomer may lack anything");
    }

    #[test]
    fn who_died_with_a_disk_stays_until_somebody_is_heard_who_goes_on() {
        let mut known = reborn([9, 9, 9]);
        for node in [1, 2] {
            let heard_us = 5;
            let view = NodeView { incarnation: Incarnation(1), heard_us, ..NodeView::default() };
            known.insert(NodeId(node), view);
        }
        known.get_mut(&NodeId(0)).unwrap().since_us = 5;
        assert!(!repair(&mut shard(&[0, 1, 2], None), &known, Succession::MostAdvanced), "all may have died");
        known.get_mut(&NodeId(2)).unwrap().heard_us = 6;
        let mut two = shard(&[0, 1, 2], None);
        assert!(repair(&mut two, &known, Succession::MostAdvanced));
        assert_eq!(numbers(&two).len(), 2);
    }

    #[test]
    fn a_store_on_disk_that_failed_is_neither_lost_nor_an_heir() {
        let failed = || Some(Status { lost: true, gone: true, durable: true, ..Status::default() });
        let mut alone = shard(&[0], None);
        assert!(!repair(&mut alone, &nodes([failed(), at(0), at(0), at(0)]), Succession::Next), "it waits");
        let slow = Some(Status { lost: true, ..Status::default() });
        let mut both = shard(&[0, 1], None);
        assert!(repair(&mut both, &nodes([failed(), slow, at(0), at(0)]), Succession::Next));
        assert_eq!((numbers(&both), both.born), (vec![1], Epoch(0)));
    }

    #[test]
    fn a_shard_without_data_begins_anew_but_not_while_somebody_may_have_some() {
        let mut known = nodes([at(0), at(0), at(0), at(0)]);
        for node in [0, 1] {
            known.get_mut(&NodeId(node)).unwrap().incarnation = Incarnation(2);
        }
        known.get_mut(&NodeId(2)).unwrap().silent = true;
        let mut waits = shard(&[0, 1, 2], None);
        assert!(!repair(&mut waits, &known, Succession::Next), "node 2 may come back");
        known.get_mut(&NodeId(2)).unwrap().incarnation = Incarnation(2);
        assert!(repair(&mut waits, &known, Succession::Next));
        assert_eq!(numbers(&waits), [0, 1], "node 2 was not heard yet");
        assert!(waits.members.iter().all(|member| member.incarnation == Incarnation(2)));
    }

    #[test]
    fn a_shard_is_not_begun_anew_beside_a_store_that_cannot_be_read() {
        let mut known = nodes([at(0), at(0), at(0), at(0)]);
        known.values_mut().for_each(|node| node.incarnation = Incarnation(2));
        known.get_mut(&NodeId(1)).unwrap().unreadable.push(ShardId(0));
        let mut waits = shard(&[0, 1, 2], None);
        assert!(!repair(&mut waits, &known, Succession::Next));
        assert_eq!(remains::stuck(&known, &waits), [NodeId(1)]);
        let of_another = shard(&[0, 2], None);
        assert_eq!(remains::stuck(&known, &of_another), [], "node 1 is no member");
        let position = Position { epoch: Epoch(4), sequence: 7 };
        let mark = Mark { position, whole: true, ..Mark::default() };
        known.get_mut(&NodeId(2)).unwrap().held.push(mark);
        assert_eq!(remains::stuck(&known, &waits), []);
        assert!(repair(&mut waits, &known, Succession::Next), "another copy can be read");
        assert_eq!((numbers(&waits), waits.start, waits.born), (vec![2], position, Epoch(0)));
    }
}
