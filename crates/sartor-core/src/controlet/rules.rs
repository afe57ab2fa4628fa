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
}

/// When an answer may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answers {
    /// Once all members have all that it tells of: then nobody can know less.
    AtAll,
    /// Once two members have what it wrote: it outlives each of them.
    AtTwo,
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
    /// Whether each shard behaves as if there were one copy.
    pub fn is_strong(&self) -> bool {
        self.answers == Answers::AtAll
    }
}
