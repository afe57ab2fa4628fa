//! One worker of a node: takes events, routes them, collects actions. It decides nothing itself.
//!
//! ```text
//!  Request ─▶ lane ─┬─ near ─▶ Controlet ─▶ Task ─▶ (store) ─▶ Stored ─▶ Reply
//!                   └─ away ─▶ Line ─▶ Forward ──▶ head's Inbound ─▶ Controlet ─▶ … ─▶ Answers
//! ```
//!
//! A turn of the world's loop: events in, the tasks that come out run as one batch, their
//! `Stored` in, then one [`Event::Wake`], which sends what the turn collected.

use crate::controlet::part::log::{LogCall, LogEvent};
use crate::controlet::{Input, MODES, Mode, Outbox, Settings, Status};
use crate::coordinator::ReplicaReport;
use crate::coordinator::agent::Agent;
use crate::coordinator::wish::{Change, Wish};
use crate::forward::{ForwardSettings, Line};
use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use crate::keeper::{Done, Task};
use crate::operation::{Outcome, Request, SessionId};
use crate::record::Bounds;
use crate::routing::map::ClusterMap;
use crate::seat::Seat;
use crate::session::{Sessions, Way};
use crate::time::{Micros, Now, millis};
use crate::wire::frame::{Header, Kind};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

mod aside;
mod dividing;
mod frames;
pub mod letters;
pub mod locking;
mod requests;
mod views;

use aside::{Judging, Scans};
use letters::Letter;
use locking::{LockCall, LockEvent, Locking};

/// What happens to a worker.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client's request.
    Request(Request),
    /// A frame of another worker or of the coordinator.
    Frame(Bytes),
    /// What another worker of this node says.
    Letter(Letter),
    /// A shard's task has ended.
    Stored(ShardId, Done),
    /// A newer cluster map, from another worker of this node.
    Map(Arc<ClusterMap>),
    /// How the replicas on another worker of this node stand.
    Reports(u8, Vec<ReplicaReport>),
    /// The node has no memory for more, or has some again.
    Full(bool),
    /// What became of a call of a shard's log outside.
    Log(ShardId, u64, LogEvent),
    /// What became of a call of the lock service outside.
    Lock(LockEvent),
    /// A client's connection is gone.
    Closed(SessionId),
    /// The end of a turn, or the time that was asked for.
    Wake,
}

/// What the world should do, in the order of the fields.
#[derive(Debug, Default)]
pub struct Actions {
    /// Replicas that left: drop their stores.
    pub dropped: Vec<ShardId>,
    /// Replicas that came: open a store for each.
    pub opened: Vec<Opened>,
    /// Replicas that were filled and are members now: what is on disk of them counts.
    pub filled: Vec<ShardId>,
    /// Tasks for the stores, in order.
    pub tasks: Vec<(ShardId, Task)>,
    /// Answers for clients.
    pub replies: Vec<Reply>,
    /// Frames for other workers; they may get lost.
    pub sends: Vec<(WorkerId, Bytes)>,
    /// The same for workers of this node.
    pub letters: Vec<(u8, Letter)>,
    /// Calls of the logs outside, each with a number to answer to.
    pub log: Vec<(ShardId, u64, LogCall)>,
    /// Calls of the lock service outside.
    pub locks: Vec<LockCall>,
    /// A newer map was adopted: tell the other workers of this node.
    pub adopted: bool,
}

/// A replica that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The shard.
    pub shard: ShardId,
    /// The epoch in which it began.
    pub born: Epoch,
    /// Where its store stands.
    pub start: Position,
    /// What a former life of this node left is there, and counts; otherwise the store begins empty.
    pub kept: bool,
    /// It has all that there was at that place; otherwise it is to be filled from nothing.
    pub whole: bool,
}

/// An answer for a client.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The connection.
    pub session: SessionId,
    /// The request's number in it.
    pub tag: u32,
    /// The shard that answered.
    pub shard: ShardId,
    /// The answer.
    pub outcome: Outcome,
    /// The place in the shard's history at which it was true.
    pub position: Position,
}

/// Times and bounds of a worker.
#[derive(Clone, Copy, Hash)]
pub struct NodeSettings {
    /// The modes it can run; users may bring their own.
    pub modes: &'static [Mode],
    /// Names of datalet kinds whose records outlive the process.
    pub durable: &'static [&'static str],
    /// Whether stores of this kind can scan in key order.
    pub is_ordered: fn(&str) -> bool,
    /// Which records all stores of these kinds take.
    pub bounds_of: fn(&str) -> Bounds,
    /// Of its controlets.
    pub controlet: Settings,
    /// Of forwarding.
    pub forward: ForwardSettings,
}

impl Default for NodeSettings {
    fn default() -> Self {
        let (controlet, forward) = (Settings::default(), ForwardSettings::default());
        NodeSettings {
            modes: MODES,
            durable: &[],
            is_ordered: |_| false,
            bounds_of: |_| Bounds::default(),
            controlet,
            forward,
        }
    }
}

/// Bytes of frames of newer epochs that wait for the map.
const HELD_BYTES_MAX: usize = 16 << 20;
/// How often another node is told that its map is old.
const TELL_EVERY_US: Micros = millis(100);

/// One worker's share of a node. It can be copied and hashed, so that a model checker can explore it.
#[derive(Clone, Hash)]
pub struct Node {
    me: WorkerId,
    incarnation: Incarnation,
    settings: NodeSettings,
    map: Option<Arc<ClusterMap>>,
    seats: Vec<Option<Seat>>,
    lines: Vec<Line>,
    sessions: Sessions,
    agent: Option<Agent>,
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// The node has no memory for more.
    full: bool,
    /// When other nodes were last told of the map.
    told: BTreeMap<NodeId, Micros>,
    /// How the replicas on other workers of this node stand.
    elsewhere: BTreeMap<u8, Vec<ReplicaReport>>,
    /// Lanes that became free while requests were parked behind them.
    freed: Vec<(SessionId, ShardId)>,
    outbox: Outbox<Bytes>,
    locking: Locking,
    /// By shard: whether its mode has locks outside. Empty where none has.
    locked: Vec<bool>,
    /// By shard: who can scan. Empty where all of them, or none.
    scans: Vec<Scans>,
    /// Reads that wait for the head to judge records.
    judging: Judging,
    /// By shard: the first key that another one has. Empty where no shard has an end.
    ends: Vec<Option<Bytes>>,
    /// Parts whose requests go to the shard that they are parts of yet.
    parts: Vec<(ShardId, ShardId)>,
    /// Stores of parts that are of no use any more, and what they owe yet.
    parting: BTreeMap<ShardId, usize>,
    /// When parts whose stores failed are made again.
    retry_at: Option<Micros>,
    /// Wholes that go on copying or removing then.
    rests: Vec<(Micros, ShardId)>,
    /// Connections whose lanes to parts wait for those to the wholes.
    behind: Vec<(SessionId, ShardId)>,
}

impl Node {
    /// A worker without a map; the node's first worker has the agent that gets one.
    pub fn new(me: WorkerId, incarnation: Incarnation, settings: NodeSettings, agent: Option<Agent>) -> Node {
        Node {
            me,
            incarnation,
            settings,
            map: None,
            seats: Vec::new(),
            lines: Vec::new(),
            sessions: Sessions::default(),
            agent,
            held: VecDeque::new(),
            held_bytes: 0,
            full: false,
            told: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            freed: Vec::new(),
            outbox: Outbox::default(),
            locking: Locking::new(me.worker),
            locked: Vec::new(),
            scans: Vec::new(),
            judging: Judging::new(),
            ends: Vec::new(),
            parts: Vec::new(),
            parting: BTreeMap::new(),
            retry_at: None,
            rests: Vec::new(),
            behind: Vec::new(),
        }
    }

    /// The map it works by.
    pub fn map(&self) -> Option<&Arc<ClusterMap>> {
        self.map.as_ref()
    }

    /// What it knows of the other nodes.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// How its replicas stand.
    pub fn statuses(&self) -> impl Iterator<Item = (ShardId, Status)> + '_ {
        self.seats.iter().flatten().map(|seat| (seat.view.shard, seat.status()))
    }

    /// How its replicas stand, for the coordinator.
    pub fn reports(&self) -> Vec<ReplicaReport> {
        let seats = || self.seats.iter().flatten();
        seats().filter_map(Seat::report).chain(seats().filter_map(Node::report_part)).collect()
    }

    /// Something happened; what to do about it is added to `out`.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Actions) {
        match event {
            Event::Request(request) => self.on_client(now, request, out),
            Event::Frame(frame) => self.on_frame(now, frame, out),
            Event::Letter(letter) => self.on_letter(now, letter, out),
            Event::Stored(shard, done) => self.on_stored(now, shard, done, out),
            Event::Map(map) => self.adopt(now, map, out),
            Event::Reports(worker, reports) => drop(self.elsewhere.insert(worker, reports)),
            Event::Full(full) => {
                self.full = full;
                for index in 0..self.seats.len() {
                    self.step_seat(now, ShardId(index as u16), Input::Full(full), out);
                }
            }
            Event::Log(shard, number, event) => self.step_seat(now, shard, Input::Log(number, event), out),
            Event::Lock(event) => self.on_lock(now, event, out),
            Event::Closed(session) => {
                self.sessions.close(session);
                self.locking.close(session, &mut out.locks);
            }
            Event::Wake => self.on_wake(now, out),
        }
        while let Some((session, shard)) = self.freed.pop() {
            let lane = self.sessions.lane(session, shard);
            let (parts, parked) = (lane.end_division(), lane.take_parked());
            for request in parked {
                match request.deadline_us <= now.steady_us {
                    true => self.refuse_parked(&request, requests::given_up(&request, false), out),
                    false => self.on_request(now, request, out),
                }
            }
            for part in parts {
                self.sessions.lane(session, part).come_forward();
                self.freed.push((session, part));
            }
        }
    }

    /// The newest place in a shard's history that a connection was told of.
    pub fn seen(&mut self, session: SessionId, shard: ShardId) -> Position {
        let part = self.parts.iter().find(|(part, _)| *part == shard);
        let shard = part.map_or(shard, |(_, whole)| *whole);
        self.sessions.lane(session, shard).seen()
    }

    /// A connection was told of a place by an answer to another one's request.
    pub fn note_seen(&mut self, session: SessionId, shard: ShardId, position: Position) {
        self.sessions.lane(session, shard).note(position);
    }

    /// Whether some mode has locks outside.
    pub fn has_locks(&self) -> bool {
        !self.locked.is_empty()
    }

    /// When it wants [`Event::Wake`]; a time that has passed means at the end of this turn.
    pub fn wake_at(&self) -> Option<Micros> {
        let seats = self.seats.iter().flatten().filter_map(Seat::wake_at);
        let lines = self.lines.iter().filter_map(Line::wake_at);
        let agent = self.agent.as_ref().map(Agent::wake_at);
        let rests = self.rests.iter().map(|(at, _)| *at);
        seats.chain(lines).chain(agent).chain(self.locking.wake_at()).chain(self.retry_at).chain(rests).min()
    }

    fn seat(&self, shard: ShardId) -> Option<&Seat> {
        self.seats.get(usize::from(shard.0))?.as_ref()
    }

    fn on_stored(&mut self, now: Now, shard: ShardId, done: Done, out: &mut Actions) {
        if self.seat(shard).is_none() {
            return self.on_part_stored(now, shard, &done, out);
        }
        let Some(done) = self.on_whole_stored(now, shard, done, out) else { return };
        self.step_seat(now, shard, Input::Stored(done), out);
        self.clear_seat(now, shard, out);
    }

    /// Steps a replica's controlet and passes on what it wants.
    fn step_seat(&mut self, now: Now, shard: ShardId, input: Input<Bytes>, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        let mut outbox = core::mem::take(&mut self.outbox);
        seat.step(now, input, &mut outbox);
        let epoch = seat.view.epoch;
        self.perform(now, shard, epoch, &mut outbox, out);
        self.outbox = outbox;
    }

    fn perform(
        &mut self,
        now: Now,
        shard: ShardId,
        epoch: Epoch,
        outbox: &mut Outbox<Bytes>,
        out: &mut Actions,
    ) {
        out.tasks.extend(outbox.effects.tasks.drain(..).map(|task| (shard, task)));
        if !outbox.sends.is_empty() {
            let worker = self.me.worker;
            let header = self.header(Kind::Controlet, shard, epoch);
            out.sends.extend(outbox.sends.drain(..).map(|(node, payload)| {
                (WorkerId { node, worker }, header.frame(|frame| frame.extend_from_slice(&payload)))
            }));
        }
        for (from, outcome, position) in outbox.effects.replies.drain(..) {
            self.reply(now, (from, Way::Near), shard, outcome, position, out);
        }
        for (from, outcome, position) in outbox.effects.kept.drain(..) {
            self.keep(shard, from, outcome, position);
        }
        for (request, outcome, position) in outbox.effects.reads.drain(..) {
            if self.must_turn(&request, position) {
                self.turn_away(now, request, out);
            } else {
                self.reply(now, (request.from, Way::Near), shard, outcome, position, out);
            }
        }
        out.log.extend(outbox.effects.log.drain(..).map(|(number, call)| (shard, number, call)));
        for request in outbox.effects.forwards.drain(..) {
            self.turn_away(now, request, out);
        }
    }

    fn header(&self, kind: Kind, shard: ShardId, epoch: Epoch) -> Header {
        Header { kind, from: self.me, incarnation: self.incarnation, shard, epoch }
    }

    fn on_wake(&mut self, now: Now, out: &mut Actions) {
        self.retry_divisions(now, out);
        self.go_on_dividing(now, out);
        self.refuse_the_behind(now, out);
        for index in 0..self.seats.len() {
            let due = |seat: &Seat| seat.due_at().is_some_and(|at| at <= now.steady_us);
            if self.seats[index].as_ref().is_some_and(due) {
                self.step_seat(now, ShardId(index as u16), Input::Wake, out);
            }
        }
        for index in 0..self.lines.len() {
            self.tend_line(now, ShardId(index as u16), out);
        }
        self.take_asides(now, out);
        for index in 0..self.seats.len() {
            self.send_answers(now, ShardId(index as u16), out);
        }
        let went = self.locking.sweep(now, &mut out.locks);
        self.go_on(now, went, out);
        let parts = self.seats.iter().flatten().filter_map(Node::report_part);
        let seats = self.seats.iter().flatten().filter_map(Seat::report).chain(parts);
        if let Some(agent) = &mut self.agent {
            let reports = || seats.chain(self.elsewhere.values().flatten().cloned()).collect();
            let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
            agent.on_wake(now, epoch, reports, &mut out.sends);
        }
    }

    /// A user waits for a change: told at the node's first worker, again and again until it is done, or he gives up.
    pub fn wish(&mut self, now: Now, change: &Change) {
        let Some((agent, map)) = self.agent.as_mut().zip(self.map.as_ref()) else { return };
        match change.is_in(map) {
            true => agent.hurry(),
            false => agent.wish(now, Wish { change: change.clone(), since: map.epoch }),
        }
    }

    /// The node this worker belongs to.
    pub fn id(&self) -> NodeId {
        self.me.node
    }
}
