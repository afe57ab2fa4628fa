//! The small world: nodes, a network, a coordinator, a clock and two clients, and all that can happen next.

use crate::coordinator::NODES;
use crate::history::{CLIENTS, Client, number_of};
use crate::intern::Id;
use crate::{MAPS_MAX, Planted};
use sartor_core::node::Reply;
use sartor_core::operation::Outcome;

/// One state of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The state of each node.
    pub nodes: [Id; NODES],
    /// 1 for a node that stands still, perhaps in the middle of a turn; 255 for one that ended.
    pub paused: [u8; NODES],
    /// What the coordinator decided.
    pub coordinator: Id,
    /// Frames on their way, in order of number.
    pub net: Vec<Id>,
    /// What the clients saw.
    pub clients: [Client; CLIENTS],
    /// Steps of the clock.
    pub clock: u8,
    /// What may still go wrong.
    pub left: Budget,
    /// The core gave up on a broken invariant.
    pub broken: bool,
}

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Nodes that end and are not heard again.
    pub crashes: u8,
    /// Nodes taken for dead that live on.
    pub suspicions: u8,
    /// Frames that come twice.
    pub duplicates: u8,
    /// Turns that stop between the store and the answer.
    pub pauses: u8,
    /// Promises that come late.
    pub late: u8,
    /// Steps of the clock.
    pub steps: u8,
}

/// How large the world is, and what may go wrong in it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Members of the first view.
    pub members: u8,
    /// Where each client writes, and where each may read.
    pub writes: [Vec<u8>; CLIENTS],
    /// See `writes`.
    pub reads: [Vec<u8>; CLIENTS],
    /// What may go wrong.
    pub budget: Budget,
    /// Whether who was taken for dead may be heard again, and is then filled as a spare.
    pub returns: bool,
    /// Whether a node may get a map when there is a newer one already.
    pub old_maps: bool,
    /// Whether requests, answers and acknowledgements come at once, unless their receiver stands still or is in another
    /// epoch. Entries and pages come late, or never.
    pub quick: bool,
    /// The last epoch.
    pub epochs: usize,
    /// A fault of the world, which must be found.
    pub planted: Planted,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            members: 3,
            writes: [vec![0], vec![2]],
            reads: [vec![1], vec![3]],
            budget: Budget { crashes: 0, suspicions: 2, duplicates: 2, pauses: 1, late: 1, steps: 2 },
            returns: false,
            old_maps: false,
            quick: true,
            epochs: MAPS_MAX,
            planted: Planted::Nothing,
        }
    }
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A client asks for its next thing at a node.
    Ask(u8, u8),
    /// A frame arrives.
    Deliver(Id),
    /// It arrives, and will again.
    Repeat(Id),
    /// A node stops between two turns.
    Stop(u8),
    /// A client asks, and the node stops between its store and its answers.
    AskAndStall(u8, u8),
    /// It arrives, and the node stops between its store and its answers.
    Stall(Id),
    /// A timer of a node runs out, or it goes on after it stopped.
    Wake(u8),
    /// All that share a view renew their promises to each other.
    Renew,
    /// One sends the other a promise that is on its way from now on.
    Promise(u8, u8),
    /// Time passes: all promises and timers run out.
    Pass,
    /// A node ends, and the coordinator hears it no more.
    Crash(u8),
    /// The coordinator takes a node for dead that is not.
    Suspect(u8),
    /// It hears this one again.
    Hear(u8),
    /// A node gets the map of this number.
    Adopt(u8, u8),
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    /// Which client: the session's place.
    pub session: u32,
    /// Which of its requests.
    pub tag: u32,
    /// The answer as a number; none for a failure.
    pub answer: Option<u8>,
    /// The epoch of the entry it tells of.
    pub epoch: u64,
}

impl Told {
    /// Of a node's reply.
    pub fn of(reply: &Reply) -> Told {
        let answer = match &reply.outcome {
            Outcome::Nil => Some(0),
            Outcome::Value(value) => Some(number_of(value)),
            Outcome::Integer(length) => Some(*length as u8),
            _ => None,
        };
        Told { session: reply.session.index, tag: reply.tag, answer, epoch: reply.position.epoch.0 }
    }
}
