//! The names of things: nodes, workers, shards, epochs, positions.

use core::fmt;

/// A process with an address: the unit of failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// A part of a table's key space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// One event loop of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    /// The process.
    pub node: NodeId,
    /// Its event loop, from 0.
    pub worker: u8,
}

/// One life of a node: a process that was started again is another incarnation, with a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The number of a cluster map; every change raises it, none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A place in the history of a shard: the epoch that ordered the entry, and its number.
/// Numbers go on over epochs, so an entry's predecessor is always `sequence - 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The epoch in which the entry was ordered.
    pub epoch: Epoch,
    /// Its number, from 1; 0 is "nothing yet".
    pub sequence: u64,
}

impl Position {
    /// Before the first entry.
    pub const ZERO: Position = Position { epoch: Epoch(0), sequence: 0 };

    /// The place after this one, ordered in `epoch`.
    pub fn next(self, epoch: Epoch) -> Position {
        Position { epoch, sequence: self.sequence + 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.sequence)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node.0, self.worker)
    }
}
