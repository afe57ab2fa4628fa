//! Who is given up must have been struck: a copy that nothing happened to stays.
//!
//! A protocol that gives up sound copies loses nothing while the others live, so no other check sees it; but one more
//! crash and all is gone, although fewer were struck than the shard tolerates.

use super::World;
use crate::plan::FaultKind;
use sartor_core::controlet::{Succession, mode};
use sartor_core::coordinator::COORDINATOR;
use sartor_core::node::Node;
use sartor_core::routing::map::{ClusterMap, Member, Shard};
use sartor_core::time::{Micros, millis};

/// What ended longer ago explains nothing any more.
const LATELY_US: Micros = millis(8000);

/// So many lost messages in so long explain that the coordinator takes a node for dead.
const LOST_MIN: usize = 3;
const SILENCE_US: Micros = millis(700);

impl World {
    /// Nobody finds that something else was done to its copy than to the first one.
    pub(super) fn compare_digests(&mut self) {
        for (node, machine) in self.machines.iter().enumerate() {
            let mut statuses = machine.node.iter().flat_map(Node::statuses);
            if let Some((shard, _)) = statuses.find(|(_, status)| status.differs) {
                self.error = Some(format!("shard {}: what node {node} did is not what was done", shard.0));
            }
        }
    }

    /// No shard of this map has lost a member without a reason.
    pub(super) fn judge_removals(&mut self, map: &ClusterMap) {
        // A primary that was filled keeps nothing older for a secondary that is behind when it takes over: where any
        // member may, that one is filled anew.
        let succession =
            |map: &ClusterMap| mode(self.config.modes, &map.tables[0].mode).map(|mode| mode.succession);
        let in_order = |map: &&ClusterMap| succession(map) == Some(Succession::Next);
        // So is one that was a star a moment ago.
        let Some(old) = self.disk.as_ref().filter(in_order).filter(|_| !self.config.switches) else { return };
        let lost = |old: &Shard, new: &Shard| {
            // Who has not yet got everything is no loss.
            let newcomer = old.joining.map(|joining| joining.member);
            let stays = |member: &Member| new.members.contains(member) || Some(*member) == newcomer;
            // One more than there should be was filled because its kind of datalet was missing.
            if old.members.len() > usize::from(map.tables[0].copies) {
                return None;
            }
            old.members.iter().copied().find(|member| !stays(member) && !self.was_struck(old, member.node.0))
        };
        let pairs = || old.shards.iter().zip(&map.shards);
        if let Some((shard, member)) = pairs().find_map(|(old, new)| Some((old, lost(old, new)?))) {
            let (shard, epoch) = (shard.id.0, map.epoch.0);
            self.error =
                Some(format!("shard {shard} gives up {member:?} in {epoch} though nothing struck it"));
        }
    }

    /// Whether something that happened lately can explain that this member is given up: anything but a crash of others.
    fn was_struck(&self, shard: &Shard, node: u16) -> bool {
        let removed = self.removed.get(&shard.id);
        let concerns = |node: &u16| {
            let mut members = shard.members.iter().chain(removed);
            *node == COORDINATOR.node.0 || members.any(|member| member.node.0 == *node)
        };
        let explains = |kind: FaultKind| match kind {
            FaultKind::Crash(struck) | FaultKind::StoreLoss(struck) | FaultKind::StoreFailure(struck) => {
                struck == node
            }
            _ => kind.nodes().is_empty() || kind.nodes().iter().any(concerns),
        };
        let lately =
            |at: Micros, until: Micros| at <= self.now_us && self.now_us <= until.saturating_add(LATELY_US);
        // One message of a hundred gets lost anyway: now and then all that a node says for half a second.
        let silenced =
            self.unheard.iter().filter(|(at, from)| *from == node && self.now_us <= at + SILENCE_US);
        if silenced.count() >= LOST_MIN {
            return true;
        }
        let all = self.plan.faults.iter().chain(&self.plan.lasting);
        all.into_iter().any(|fault| lately(fault.at, fault.until) && explains(fault.kind))
    }
}
