//! A table that should have another number of copies, or another datalet: shard by shard and copy by copy, while it serves.
//!
//! ```text
//!  one copy more         a free node is filled, and joins
//!  one copy less         the last one leaves
//!  another datalet       a free node is filled, with the new one; a copy in the old one leaves; again, until none is left
//!                        (no node is free: a copy leaves first, and is filled on the same node)
//! ```
//!
//! These are the views of repair, so nothing else happens to clients than when a node is replaced.

use super::repair::Known;
use super::switch::LAG_MAX_US;
use crate::routing::map::{Member, Shard};
use alloc::vec::Vec;

impl Known<'_> {
    /// Whether a copy is missing, or one is wanted beside those that are in another datalet.
    pub(super) fn wants_copy(&self, shard: &Shard) -> bool {
        let renews = !shard.outdated.is_empty() && shard.members.len() == self.copies;
        shard.joining.is_none() && (shard.members.len() < self.copies || renews)
    }

    /// A copy that is not wanted any more leaves: one in another datalet, else the last one. All others serve.
    pub(super) fn shed(&self, shard: &mut Shard) -> bool {
        let surplus = shard.members.len() > self.copies;
        let renews = !shard.outdated.is_empty() && shard.members.len() == self.copies && self.copies > 1;
        let serves = |member: &Member| {
            let report = self.report(shard, *member).map(|report| &report.status);
            self.is_sound(shard, *member) && report.is_some_and(|status| status.proven)
        };
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
        let Some(leaves) = outdated.or(shard.members.last()).copied() else { return false };
        let mut members: Vec<Member> =
            shard.members.iter().copied().filter(|member| *member != leaves).collect();
        self.put_heir_first(shard, &mut members);
        *shard = Shard { members, epoch: self.epoch, ..shard.clone() };
        true
    }
}
