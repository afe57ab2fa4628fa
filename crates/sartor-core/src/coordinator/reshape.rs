//! A table that should have another number of copies, or another datalet: shard by shard and copy by copy, while it serves.
//!
//! ```text
//!  one copy more         a free node is filled, and joins
//!  one copy less         the last one leaves
//!  another datalet       a free node is filled, with the new one; a copy in the old one leaves; again, until none is left
//!                        (no node is free: a copy leaves first, and is filled on the same node)
//!  a kind is missing     of several, as a node died: a free node that has it is filled; one of two copies in one kind leaves
//! ```
//!
//! These are the views of repair, so nothing else happens to clients than when a node is replaced.

use super::repair::Known;
use super::switch::LAG_MAX_US;
use crate::ids::NodeId;
use crate::routing::map::{Member, Shard, kind_of};
use alloc::vec::Vec;

impl Known<'_> {
    /// Whether a copy is missing, or one is wanted beside those that are in another datalet.
    pub(super) fn wants_copy(&self, shard: &Shard) -> bool {
        let renews = !shard.outdated.is_empty() && shard.members.len() == self.copies;
        shard.joining.is_none() && (shard.members.len() < self.copies || renews)
    }

    /// Whether all copies are there, two of them in one kind of datalet, so that another one would do more in another kind.
    pub(super) fn wants_another_kind(&self, shard: &Shard) -> bool {
        let doubled = shard.members.iter().any(|member| self.is_doubled(shard, *member));
        let whole =
            shard.joining.is_none() && shard.outdated.is_empty() && shard.members.len() == self.copies;
        whole && doubled && shard.members.iter().all(|member| self.serves(shard, *member))
    }

    /// Whether a node has a kind of datalet that no copy of the shard is in.
    pub(super) fn is_missed(&self, shard: &Shard, node: NodeId) -> bool {
        let kind = |node| kind_of(self.datalet, node);
        shard.members.iter().all(|member| kind(member.node) != kind(node))
    }

    fn is_doubled(&self, shard: &Shard, member: Member) -> bool {
        let kind = |member: Member| kind_of(self.datalet, member.node);
        let mut others = shard.members.iter().filter(|other| **other != member);
        self.datalet.contains(',') && others.any(|other| kind(*other) == kind(member))
    }

    fn serves(&self, shard: &Shard, member: Member) -> bool {
        let report = self.report(shard, member).map(|report| &report.status);
        self.is_sound(shard, member) && report.is_some_and(|status| status.proven)
    }

    /// A copy that is not wanted any more leaves: one in another datalet, or in the same kind as another one, else the last
    /// one. All others serve.
    pub(super) fn shed(&self, shard: &mut Shard) -> bool {
        let surplus = shard.members.len() > self.copies;
        let renews = !shard.outdated.is_empty() && shard.members.len() == self.copies && self.copies > 1;
        let serves = |member: &Member| self.serves(shard, *member);
        if shard.joining.is_some() || !(surplus || renews) || !shard.members.iter().all(serves) {
            return false;
        }
        let lags = |member: &Member| {
            let report = self.report(shard, *member);
            report.is_some_and(|report| report.status.lags.iter().any(|(_, lag)| *lag >= LAG_MAX_US))
        };
        if shard.members.iter().any(lags) {
            return false;
        }
        let outdated = shard.members.iter().rev().find(|member| shard.outdated.contains(member));
        let doubled = || shard.members.iter().rev().find(|member| self.is_doubled(shard, **member));
        let Some(leaves) = outdated.or_else(doubled).or(shard.members.last()).copied() else { return false };
        let mut members: Vec<Member> =
            shard.members.iter().copied().filter(|member| *member != leaves).collect();
        self.put_heir_first(shard, &mut members);
        *shard = Shard { members, epoch: self.epoch, ..shard.clone() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::estranged::Estranged;
    use super::super::{NodeView, ReplicaReport};
    use super::*;
    use crate::controlet::{Status, Succession};
    use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
    use crate::routing::map::Joining;
    use alloc::collections::BTreeMap;
    use alloc::vec;

    fn member(node: u16) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(1) }
    }

    fn shard(members: &[u16], outdated: &[u16]) -> Shard {
        let all = |nodes: &[u16]| nodes.iter().map(|node| member(*node)).collect();
        Shard { epoch: Epoch(5), members: all(members), outdated: all(outdated), ..Shard::default() }
    }

    /// Four nodes that serve, but for what `but` makes of one of them.
    fn known<T>(copies: usize, but: (u16, Status), ask: impl FnOnce(&Known<'_>) -> T) -> T {
        known_in("", copies, but, ask)
    }

    /// The same with a table in these kinds of datalets.
    fn known_in<T>(datalet: &str, copies: usize, but: (u16, Status), ask: impl FnOnce(&Known<'_>) -> T) -> T {
        let view = |node: u16| {
            let serves = Status { proven: true, ..Status::default() };
            let status = if node == but.0 { but.1.clone() } else { serves };
            let report = ReplicaReport { shard: ShardId(0), epoch: Epoch(5), status };
            let (incarnation, silent, since_us) = (Incarnation(1), false, 0);
            (
                NodeId(node),
                NodeView { incarnation, silent, since_us, replicas: vec![report], ..NodeView::default() },
            )
        };
        let (nodes, load) = ((0..4).map(view).collect(), BTreeMap::new());
        let (heard_all, load_max, epoch) = (true, 3, Epoch(6));
        let (succession, estranged) = (Succession::Next, &Estranged::new(0));
        ask(&Known {
            nodes: &nodes,
            heard_all,
            load,
            load_max,
            epoch,
            copies,
            succession,
            estranged,
            datalet,
        })
    }

    fn serving() -> (u16, Status) {
        (9, Status::default())
    }

    fn left(copies: usize, but: (u16, Status), mut shard: Shard) -> Option<Vec<u16>> {
        let sheds = known(copies, but, |known| known.shed(&mut shard));
        sheds.then(|| shard.members.iter().map(|member| member.node.0).collect())
    }

    #[test]
    fn one_too_many_leaves_when_all_serve() {
        assert_eq!(left(3, serving(), shard(&[0, 1, 2, 3], &[])), Some(vec![0, 1, 2]));
        assert_eq!(left(3, serving(), shard(&[0, 1, 2], &[])), None);
        let unproven = (1, Status::default());
        assert_eq!(left(3, unproven, shard(&[0, 1, 2, 3], &[])), None);
        let late = Status { proven: true, lags: vec![(NodeId(2), LAG_MAX_US)], ..Status::default() };
        assert_eq!(left(3, (0, late), shard(&[0, 1, 2, 3], &[])), None);
        let joining = Some(Joining { member: member(3), since: Epoch(4), ..Joining::default() });
        assert_eq!(left(2, serving(), Shard { joining, ..shard(&[0, 1, 2], &[]) }), None);
    }

    #[test]
    fn who_has_the_former_datalet_leaves_first() {
        assert_eq!(left(3, serving(), shard(&[0, 1, 2, 3], &[0, 1])), Some(vec![0, 2, 3]));
        assert_eq!(left(3, serving(), shard(&[0, 1, 2, 3], &[0])), Some(vec![1, 2, 3]), "the head, too");
        assert_eq!(left(3, serving(), shard(&[0, 1, 2], &[0, 1, 2])), Some(vec![0, 1]), "no node is free");
        assert_eq!(left(1, serving(), shard(&[0], &[0])), None, "the only one stays until there is another");
        assert_eq!(left(1, serving(), shard(&[0, 3], &[0])), Some(vec![3]));
    }

    #[test]
    fn copies_are_in_as_many_kinds_as_there_are() {
        // Nodes 0 and 2 have hash tables, 1 and 3 trees.
        let known = |but, ask: &mut dyn FnMut(&Known<'_>) -> bool| known_in("hash,tree", 2, but, |k| ask(k));
        let (alike, mixed) = (shard(&[0, 2], &[]), shard(&[0, 1], &[]));
        assert!(known(serving(), &mut |known| known.wants_another_kind(&alike)));
        assert!(!known(serving(), &mut |known| known.wants_another_kind(&mixed)));
        let unproven = (2, Status::default());
        assert!(!known(unproven, &mut |known| known.wants_another_kind(&alike)), "one after the other");
        assert!(known(serving(), &mut |known| known.is_missed(&alike, NodeId(3))));
        assert!(!known(serving(), &mut |known| known.is_missed(&mixed, NodeId(3))));
        let mut both = shard(&[0, 2, 1], &[]);
        assert!(known(serving(), &mut |known| known.shed(&mut both)));
        assert_eq!(both.members, [member(0), member(1)], "of two alike the last one leaves");
        let all_alike = known_in("hash", 2, serving(), |known| known.wants_another_kind(&alike));
        assert!(!all_alike, "there is no other kind");
    }

    #[test]
    fn a_copy_is_wanted_beside_those_that_are_to_go() {
        let wants = |copies, shard: Shard| known(copies, serving(), |known| known.wants_copy(&shard));
        assert!(wants(3, shard(&[0, 1], &[])) && wants(3, shard(&[0, 1, 2], &[1])));
        assert!(!wants(3, shard(&[0, 1, 2], &[])) && !wants(3, shard(&[0, 1, 2, 3], &[1])));
        assert!(wants(1, shard(&[0], &[0])));
        let joining = Some(Joining { member: member(3), since: Epoch(4), ..Joining::default() });
        assert!(!wants(3, Shard { joining, ..shard(&[0, 1], &[]) }));
    }
}
