//! What is left of a shard on the disks of members whose life is over.
//!
//! A store that cannot be opened may hold everything: while one is left and no other store is, the shard stays down, and a
//! user decides. It is never begun anew, empty, beside data that somebody could still read.

use super::NodeView;
use crate::ids::{NodeId, Position};
use crate::keeper::Mark;
use crate::routing::map::{Member, Shard};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Every node that was ever heard.
type Nodes = BTreeMap<NodeId, NodeView>;

/// The later life of a member's node, if another one began: this one is certainly over.
fn reborn(nodes: &Nodes, member: Member) -> Option<&NodeView> {
    nodes.get(&member.node).filter(|node| node.incarnation > member.incarnation)
}

/// Whether this life of the node is certainly over.
pub fn is_over(nodes: &Nodes, member: Member) -> bool {
    reborn(nodes, member).is_some()
}

/// What a later life of a member's node found on disk of this shard, if that is whole.
pub fn held<'a>(nodes: &'a Nodes, shard: &Shard, member: Member) -> Option<&'a Mark> {
    let ours = |mark: &&Mark| mark.shard == shard.id && mark.born == shard.born && mark.whole;
    reborn(nodes, member)?.held.iter().find(ours)
}

/// How far a copy stands that a node's former life left on its disk, if it may be made complete: it is whole, of the same
/// beginning of the shard, and of the datalet that the table has now.
pub fn kept(node: &NodeView, shard: &Shard, datalet: &str) -> Option<Position> {
    let ours = |mark: &&Mark| mark.shard == shard.id && mark.born == shard.born && mark.whole;
    let fits = |mark: &&Mark| mark.datalet == datalet && mark.position.sequence > 0;
    node.held.iter().filter(ours).find(fits).map(|mark| mark.position)
}

/// Whether a member's life is over and left something of the shard on its disk.
pub fn has_left(nodes: &Nodes, shard: &Shard, member: Member) -> bool {
    held(nodes, shard, member).is_some() || is_unreadable(nodes, shard, member)
}

fn is_unreadable(nodes: &Nodes, shard: &Shard, member: Member) -> bool {
    reborn(nodes, member).is_some_and(|node| node.unreadable.contains(&shard.id))
}

/// The members' nodes where a later life found a store of this shard that it cannot open.
pub fn unreadable(nodes: &Nodes, shard: &Shard) -> Vec<NodeId> {
    let found = shard.members.iter().filter(|member| is_unreadable(nodes, shard, **member));
    found.map(|member| member.node).collect()
}

/// The same, where these are all that is left of the shard.
pub fn stuck(nodes: &Nodes, shard: &Shard) -> Vec<NodeId> {
    let nothing = |member: &Member| is_over(nodes, *member) && held(nodes, shard, *member).is_none();
    if shard.members.iter().all(nothing) { unreadable(nodes, shard) } else { Vec::new() }
}
