//! What tells the built-in modes apart: in all of them one replica numbers the changes of a shard, and all replicas hold a
//! beginning of that one history. So a mode is a few rules over the same machine, and a shard that goes from one mode to
//! another takes its data, what is on its way and what was answered along (`replicated.rs`).

/// The rules of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Who passes entries on to whom.
    pub topology: Topology,
    /// When an answer may leave.
    pub answers: Answers,
    /// What they pass on.
    pub carries: Carries,
}

/// Who passes entries on to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// Each to the next one; the last one tells what all have.
    Chain,
    /// The first one to all others.
    Star,
    /// The first one to half of the members, the active ones, and each of those to its share of the others.
    Tree,
}

impl Topology {
    /// From whom the member at this place of so many gets what is ordered; the first one orders.
    pub fn upstream(self, place: usize, count: usize) -> Option<usize> {
        let before = place.checked_sub(1)?;
        Some(match self {
            Topology::Chain => before,
            Topology::Star => 0,
            Topology::Tree => match place.checked_sub(active(count)) {
                None => 0,
                // The last active one has the first share, as the first one has the most to do.
                Some(other) => active(count) - 1 - other % active(count),
            },
        })
    }

    /// To whom the member at this place passes it on.
    pub fn downstream(self, place: usize, count: usize) -> impl Iterator<Item = usize> {
        (0..count).filter(move |other| self.upstream(*other, count) == Some(place))
    }

    /// Who knows first what all members have, and fills a newcomer.
    pub fn teller(self, count: usize) -> usize {
        if self == Topology::Chain { count.saturating_sub(1) } else { 0 }
    }
}

/// How many of a tree's members are active: half of them, and two at least.
pub fn active(count: usize) -> usize {
    (count / 2).max(2)
}

/// When an answer may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answers {
    /// Once all members have all that it tells of: then nobody can know less.
    AtAll,
    /// Once two members have what it wrote: it outlives each of them.
    AtTwo,
    /// Once a log outside of the cluster has what it wrote: it outlives them all but one.
    AtLog,
    /// At once.
    Here,
}

/// What replicas pass on to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carries {
    /// What came of operations, which the first one decides and answers.
    Entries,
    /// Operations with their places, which each does for itself; who has the client answers it.
    Operations,
}

impl Rules {
    /// Whether what all have counts those that were given up.
    pub fn counts_all(&self) -> bool {
        matches!(self.answers, Answers::AtAll | Answers::AtLog)
    }

    /// Whether each shard behaves as if there were one copy.
    pub fn is_strong(&self) -> bool {
        self.answers == Answers::AtAll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn upstreams(topology: Topology, count: usize) -> Vec<Option<usize>> {
        (0..count).map(|place| topology.upstream(place, count)).collect()
    }

    #[test]
    fn everybody_gets_what_is_ordered_from_somebody() {
        assert_eq!(upstreams(Topology::Chain, 3), [None, Some(0), Some(1)]);
        assert_eq!(upstreams(Topology::Star, 3), [None, Some(0), Some(0)]);
        assert_eq!(upstreams(Topology::Tree, 3), [None, Some(0), Some(1)]);
        assert_eq!(upstreams(Topology::Tree, 4), [None, Some(0), Some(1), Some(0)]);
        assert_eq!(upstreams(Topology::Tree, 6), [None, Some(0), Some(0), Some(2), Some(1), Some(0)]);
        assert!(Topology::Tree.downstream(0, 6).eq([1, 2, 5]));
        assert!(Topology::Tree.downstream(3, 6).eq([]));
        assert!(Topology::Chain.downstream(1, 3).eq([2]));
    }
}
