//! One node: the shipped [`Node`] and its store, and what it does in a turn.
//!
//! The store is the shipped [`Keeper`]. It cannot be copied, so its records are kept instead, and it is made from them,
//! by the shipped fill, for each turn. Tasks end at once, in order.

use crate::world::Told;
use bytes::Bytes;
use sartor_core::controlet::part::message::Message;
use sartor_core::datalet::Cursor;
use sartor_core::forward::ForwardSettings;
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::{Deletes, Done, Keeper, KeeperLimits, Start, Task};
use sartor_core::node::{Actions, Event, Node, NodeSettings};
use sartor_core::record::Record;
use sartor_core::time::{Micros, Now, millis};
use sartor_core::wire::codec::Wire;
use sartor_core::wire::frame::{Header, Kind};
use sartor_datalets::tree::Tree;

/// The shard.
pub const SHARD: ShardId = ShardId(0);
/// What passes at once: every promise and every timer runs out.
const STEP_US: Micros = millis(1000);
const NEVER_US: Micros = 1 << 40;

/// The clock's reading after so many steps.
pub fn at(clock: u8) -> Now {
    Now { steady_us: STEP_US * (u64::from(clock) + 1), unix_ms: 1 }
}

/// A node, its store included.
#[derive(Clone, Hash)]
pub struct Local {
    /// The node.
    pub node: Node,
    /// What its store holds, if it has one.
    pub store: Option<Store>,
}

/// What a keeper holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// Where it stands.
    pub position: Position,
    /// The records.
    pub records: Vec<Record>,
}

/// A frame on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Who sent it.
    pub from: u8,
    /// To whom.
    pub to: u8,
    /// Its bytes.
    pub bytes: Bytes,
}

/// What a turn gave to the world.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Frames for other nodes.
    pub frames: Vec<Frame>,
    /// Of those, stamps and promises.
    pub leases: Vec<Frame>,
    /// Answers to clients.
    pub told: Vec<Told>,
    /// The store was asked for something.
    pub busy: bool,
}

impl Frame {
    /// Its header.
    pub fn header(&self) -> Header {
        match Header::parse(self.bytes.clone()) {
            Ok((header, _)) => header,
            Err(error) => unreachable!("nodes send frames: {error:?}"),
        }
    }

    /// What a replica says in it, if it is of one.
    pub fn message(&self) -> Option<Message> {
        let (header, payload) = Header::parse(self.bytes.clone()).ok()?;
        if header.kind == Kind::Controlet { Message::from_bytes(payload).ok() } else { None }
    }
}

impl Local {
    /// A node that knows nothing.
    pub fn new(node: u8) -> Local {
        let mut settings = NodeSettings::default();
        // Promises are renewed when the model says so.
        settings.controlet.lease.renew_us = 0;
        settings.controlet.expire_every_us = NEVER_US;
        settings.controlet.patience_us = NEVER_US;
        settings.controlet.mark_buckets = 16;
        settings.forward =
            ForwardSettings { resend_us: NEVER_US, patience_us: NEVER_US, ..ForwardSettings::default() };
        let me = WorkerId { node: NodeId(u16::from(node)), worker: 0 };
        Local { node: Node::new(me, Incarnation(1), settings, None), store: None }
    }

    /// The epoch of its map.
    pub fn map_epoch(&self) -> Epoch {
        self.node.map().map_or(Epoch(0), |map| map.epoch)
    }

    /// The epoch of its view.
    pub fn epoch(&self) -> Epoch {
        self.node.map().and_then(|map| map.shard(SHARD)).map_or(Epoch(0), |shard| shard.epoch)
    }

    /// An event, its tasks, and, with a clock that was read after that, the end of the turn.
    pub fn turn(&mut self, now: Now, event: Event, end: Option<Now>) -> Given {
        let mut keeper = self.store.take().map(open);
        let mut given = Given::default();
        let is_wake = matches!(event, Event::Wake);
        self.step(now, event, &mut keeper, &mut given);
        if let Some(now) = end {
            let mut goes_on = !is_wake || !given.is_quiet();
            while goes_on {
                let mut more = Given::default();
                self.step(now, Event::Wake, &mut keeper, &mut more);
                goes_on = !more.is_quiet();
                given.add(more);
            }
        }
        self.store = keeper.map(close);
        given
    }

    /// One step of the node, and its store until that has nothing to do.
    fn step(&mut self, now: Now, event: Event, keeper: &mut Option<Keeper>, given: &mut Given) {
        let mut actions = Actions::default();
        self.node.step(now, event, &mut actions);
        loop {
            given.busy |= !actions.tasks.is_empty();
            if !std::mem::take(&mut actions.dropped).is_empty() {
                *keeper = None;
            }
            for opened in std::mem::take(&mut actions.opened) {
                *keeper = Some(new_keeper().starting_in(opened.born));
            }
            let tasks = std::mem::take(&mut actions.tasks);
            if tasks.is_empty() && actions.opened.is_empty() && actions.dropped.is_empty() {
                break;
            }
            for (shard, task) in tasks {
                let done = match keeper {
                    Some(keeper) => keeper.run(now, task),
                    None => Done::missing(task),
                };
                self.node.step(now, Event::Stored(shard, done), &mut actions);
            }
        }
        let me = self.node.id().0 as u8;
        given.told.extend(actions.replies.iter().map(Told::of));
        for (to, bytes) in actions.sends {
            let frame = Frame { from: me, to: to.node.0 as u8, bytes };
            match (frame.header().kind, frame.message()) {
                // Maps come at any time anyway.
                (Kind::Map, _) => {}
                (_, Some(Message::Lease(_))) => given.leases.push(frame),
                _ => given.frames.push(frame),
            }
        }
    }
}

impl Given {
    fn is_quiet(&self) -> bool {
        !self.busy && self.frames.is_empty() && self.told.is_empty()
    }

    fn add(&mut self, more: Given) {
        self.frames.extend(more.frames);
        self.told.extend(more.told);
        if !more.leases.is_empty() {
            self.leases = more.leases;
        }
        self.busy = more.busy;
    }
}

fn new_keeper() -> Keeper {
    Keeper::enveloped(Box::new(Tree::default()), KeeperLimits::default())
}

fn open(store: Store) -> Keeper {
    let mut keeper = new_keeper();
    let start = Start { at: store.position, deletes: Deletes::since(store.position), since: None };
    keeper.run(at(0), Task::Fill(Epoch(0), Some(Box::new(start)), store.records));
    keeper
}

fn close(mut keeper: Keeper) -> Store {
    match keeper.run(at(0), Task::Walk(Epoch(0), Cursor::Start, 1 << 20, None)) {
        Done::Walked(_, walked) => Store { position: walked.at, records: walked.records },
        done => unreachable!("a tree does not fail: {done:?}"),
    }
}
