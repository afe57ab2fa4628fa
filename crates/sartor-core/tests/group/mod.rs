//! Replicas of a shard for conversations, message by message: real controlets and keepers, a network that delivers what
//! and when the test says.
// Helpers of tests may panic as tests do; the lint exempts only the latter. Not every file of tests uses all.
#![allow(clippy::unwrap_used, dead_code)]

use bytes::Bytes;
use sartor_core::controlet::part::message::Message;
use sartor_core::controlet::{AnyControlet, Input, Mode, Outbox, Settings, View, aa_ec, aa_sc, ms_ec, ms_sc};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::{Done, Keeper, KeeperLimits, Task};
use sartor_core::operation::{Action, Consistency, From, Op, Outcome, Request, SessionId, Set};
use sartor_core::record::Bounds;
use sartor_core::routing::map::{Joining, Member};
use sartor_core::survey::Report;
use sartor_core::time::{Micros, Now, millis};
use sartor_core::wire::codec::Wire;
use std::collections::{BTreeMap, VecDeque};

#[derive(Default)]
struct Memory(BTreeMap<Vec<u8>, Vec<u8>>);

impl Datalet for Memory {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.0.get(key).into_iter().for_each(|value| found(value));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.0.insert(key.into(), value.into());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.0.remove(key);
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let after = if let Cursor::Key(key) = &*cursor { Some(key.to_vec()) } else { None };
        let mut rest = self.0.iter().filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
        let mut last = None;
        while !page.is_full() {
            let Some((key, value)) = rest.next() else {
                *cursor = Cursor::End;
                return Ok(());
            };
            page.push(key, value);
            last = Some(Bytes::copy_from_slice(key));
        }
        *cursor = last.map_or(Cursor::End, Cursor::Key);
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(matches!(cursor, Cursor::Key(last) if key <= last) || *cursor == Cursor::End)
    }
}

pub struct Replica {
    pub controlet: Box<dyn AnyControlet>,
    pub keeper: Keeper,
}

/// A shard's replicas on nodes 0, 1, ...
pub struct Group {
    pub now: Micros,
    pub replicas: BTreeMap<u16, Replica>,
    /// Messages on their way.
    pub wire: VecDeque<(u16, u16, Bytes)>,
    /// Nodes to which nothing is delivered, and whose messages get lost.
    pub cut: Vec<u16>,
    /// Which messages get lost, by who sent them and who should get them.
    pub lost: fn(u16, u16, &Message) -> bool,
    /// What was answered: by which node, to which tag or number, what.
    pub answers: Vec<(u16, u64, Outcome)>,
    /// Tasks wait in `owed` until the test runs them.
    pub slow: bool,
    pub owed: Vec<(u16, Task)>,
    pub mode: &'static Mode,
    pub settings: Settings,
}

pub fn member(node: u16) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(1) }
}

pub fn view(epoch: u64, me: u16, members: &[u16], joining: Option<(u16, u64)>) -> View {
    View {
        shard: ShardId(0),
        epoch: Epoch(epoch),
        me: NodeId(me),
        members: members.iter().map(|node| member(*node)).collect(),
        joining: joining.map(|(node, since)| Joining {
            member: member(node),
            since: Epoch(since),
            ..Joining::default()
        }),
        born: Epoch(1),
        start: Position { epoch: Epoch(1), sequence: 0 },
        durable: false,
        rules: CHAIN.rules,
        bounds: Bounds::default(),
        end: None,
        divides: false,
        first: epoch == 1,
    }
}

pub const CHAIN: Mode = ms_sc::MODE;
pub const STAR: Mode = ms_ec::MODE;
pub const STRONG: Mode = aa_sc::MODE;
pub const LOG: Mode = aa_ec::MODE;

impl Group {
    pub fn new(mode: &'static Mode, members: &[u16], settings: Settings) -> Group {
        let (replicas, wire) = (BTreeMap::new(), VecDeque::new());
        let mut group = Group {
            now: millis(1000),
            replicas,
            wire,
            cut: vec![],
            lost: |_, _, _| false,
            answers: vec![],
            slow: false,
            owed: vec![],
            mode,
            settings,
        };
        for node in members {
            group.open(*node, view(1, *node, members, None));
        }
        group.settle();
        group
    }

    pub fn open(&mut self, node: u16, view: View) {
        let view = View { rules: self.mode.rules, ..view };
        let controlet = (self.mode.build)(self.at(), view, self.settings);
        let keeper = Keeper::enveloped(Box::new(Memory::default()), KeeperLimits::default());
        self.replicas.insert(node, Replica { controlet, keeper: keeper.starting_in(Epoch(1)) });
    }

    pub fn at(&self) -> Now {
        Now { steady_us: self.now, unix_ms: self.now / 1000 }
    }

    pub fn step(&mut self, node: u16, input: Input<Bytes>) {
        let now = self.at();
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Some(replica) = self.replicas.get_mut(&node) else { return };
            let mut out = Outbox::default();
            replica.controlet.step(now, input, &mut out);
            if self.slow {
                self.owed.extend(out.effects.tasks.drain(..).map(|task| (node, task)));
            }
            inputs
                .extend(out.effects.tasks.drain(..).map(|task| Input::Stored(replica.keeper.run(now, task))));
            self.wire.extend(out.sends.into_iter().map(|(to, message)| (node, to.0, message)));
            for (from, outcome, _) in out.effects.replies {
                let tag = match from {
                    From::Session { tag, .. } => u64::from(tag),
                    From::Worker { sequence, .. } => sequence,
                    From::Nobody => continue,
                };
                self.answers.push((node, tag, outcome));
            }
            for (request, outcome, _) in out.effects.reads {
                let tag = match request.from {
                    From::Session { tag, .. } => u64::from(tag),
                    From::Worker { sequence, .. } => sequence,
                    From::Nobody => continue,
                };
                self.answers.push((node, tag, outcome));
            }
        }
    }

    /// Runs the tasks that wait, and what follows from them.
    pub fn run_stores(&mut self) {
        let now = self.at();
        for (node, task) in std::mem::take(&mut self.owed) {
            let done = self.replicas.get_mut(&node).unwrap().keeper.run(now, task);
            self.step(node, Input::Stored(done));
        }
    }

    pub fn wake(&mut self, node: u16) -> bool {
        let due = self.replicas.get(&node).and_then(|replica| replica.controlet.wake_at());
        let is_due = due.is_some_and(|at| at <= self.now);
        if is_due {
            self.step(node, Input::Wake);
        }
        is_due
    }

    /// Delivers everything, and what follows from it, without time passing.
    pub fn settle(&mut self) {
        self.settle_until(|_| false);
    }

    /// The same, until that is so.
    pub fn settle_until(&mut self, done: impl Fn(&Group) -> bool) {
        loop {
            let nodes: Vec<u16> = self.replicas.keys().copied().collect();
            let woken = nodes.into_iter().filter(|node| self.wake(*node)).count();
            if self.wire.is_empty() && woken == 0 {
                return;
            }
            while let Some((from, to, message)) = self.wire.pop_front() {
                let lost = Message::from_bytes(message.clone()).is_ok_and(|m| (self.lost)(from, to, &m));
                if !lost && !self.cut.contains(&from) && !self.cut.contains(&to) {
                    self.step(to, Input::Peer(NodeId(from), message));
                }
                if done(self) {
                    return;
                }
            }
        }
    }

    pub fn surveyed(&self, node: u16) -> Option<Report> {
        self.replicas[&node].keeper.surveyed()
    }

    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now += millis(10);
            self.settle();
        }
    }

    pub fn ask(&mut self, node: u16, tag: u64, op: Op) {
        self.ask_of(9, node, tag, op);
    }

    /// A write comes from a client of that node.
    pub fn ask_of(&mut self, origin: u16, node: u16, tag: u64, op: Op) {
        let session = SessionId { index: 0, generation: 0 };
        let from = match op.is_write() {
            false => From::Session { session, tag: tag as u32 },
            true => {
                let worker = WorkerId { node: NodeId(origin), worker: 0 };
                From::Worker { worker, incarnation: Incarnation(1), sequence: tag, base: 1 }
            }
        };
        let (floor, consistency) = (Position::ZERO, Consistency::Mode);
        let deadline_us = self.now + millis(5000);
        let request = Request { from, shard: ShardId(0), op, floor, consistency, deadline_us };
        self.step(node, Input::Request(request));
    }

    pub fn view(&mut self, epoch: u64, members: &[u16], joining: Option<(u16, u64)>) {
        let nodes: Vec<u16> = self.replicas.keys().copied().collect();
        for node in nodes {
            let view = View { rules: self.mode.rules, ..view(epoch, node, members, joining) };
            self.step(node, Input::View(view));
        }
    }

    pub fn value(&mut self, node: u16, key: &'static str) -> Option<Bytes> {
        let replica = self.replicas.get_mut(&node).unwrap();
        let request = Request {
            from: From::Session { session: SessionId { index: 0, generation: 0 }, tag: 0 },
            shard: ShardId(0),
            op: get(key),
            floor: Position::ZERO,
            consistency: Consistency::Mode,
            deadline_us: 0,
        };
        match replica.keeper.run(Now::default(), Task::Read(request)) {
            Done::Read(_, Some(Outcome::Value(value))) => Some(value),
            _ => None,
        }
    }

    pub fn take(&mut self) -> Vec<(u16, u64, Outcome)> {
        std::mem::take(&mut self.answers)
    }
}

pub fn key(key: &'static str, action: Action) -> Op {
    Op::Key(Bytes::from_static(key.as_bytes()), action)
}

pub fn get(name: &'static str) -> Op {
    key(name, Action::Get)
}

pub fn set(name: &'static str, value: &'static str) -> Op {
    key(name, Action::Set(Set { value: Bytes::from_static(value.as_bytes()), ..Set::default() }))
}

pub fn value(text: &'static str) -> Outcome {
    Outcome::Value(Bytes::from_static(text.as_bytes()))
}
