//! One worker of a node: takes events, routes them, collects actions. It decides nothing itself.
//!
//! ```text
//!  Request ─▶ lane ─┬─ near ─▶ Controlet ─▶ Task ─▶ (store) ─▶ Stored ─▶ Reply
//!                   └─ away ─▶ Line ─▶ Forward ──▶ head's Inbound ─▶ Controlet ─▶ … ─▶ Answers
//! ```
//!
//! A turn of the world's loop: events in, the tasks that come out run as one batch, their
//! `Stored` in, then one [`Event::Wake`], which sends what the turn collected.

use crate::controlet::{Input, MODES, Mode, Outbox, Settings, Status};
use crate::coordinator::agent::Agent;
use crate::coordinator::{COORDINATOR, ReplicaReport};
use crate::forward::{Answers, ForwardSettings, Forwards, GivenUp, Line};
use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use crate::keeper::{Done, Task};
use crate::operation::{Consistency, Failure, FailureKind, From, Outcome, Request, SessionId};
use crate::routing::map::{ClusterMap, Member, Shard};
use crate::seat::{Seat, view_of};
use crate::session::{Sessions, Way};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

/// What happens to a worker.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client's request.
    Request(Request),
    /// A frame of another worker or of the coordinator.
    Frame(Bytes),
    /// A shard's task has ended.
    Stored(ShardId, Done),
    /// A newer cluster map, from another worker of this node.
    Map(Arc<ClusterMap>),
    /// How the replicas on another worker of this node stand.
    Reports(u8, Vec<ReplicaReport>),
    /// The node has no memory for more, or has some again.
    Full(bool),
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
    /// Replicas that came, and in which epoch: open an empty store for each.
    pub opened: Vec<(ShardId, Epoch)>,
    /// Tasks for the stores, in order.
    pub tasks: Vec<(ShardId, Task)>,
    /// Answers for clients.
    pub replies: Vec<Reply>,
    /// Frames for other workers; they may get lost.
    pub sends: Vec<(WorkerId, Bytes)>,
    /// A newer map was adopted: tell the other workers of this node.
    pub adopted: bool,
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
#[derive(Clone, Copy)]
pub struct NodeSettings {
    /// The modes it can run; users may bring their own.
    pub modes: &'static [Mode],
    /// Of its controlets.
    pub controlet: Settings,
    /// Of forwarding.
    pub forward: ForwardSettings,
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings { modes: MODES, controlet: Settings::default(), forward: ForwardSettings::default() }
    }
}

/// Bytes of frames of newer epochs that wait for the map.
const HELD_BYTES_MAX: usize = 16 << 20;
/// How often another node is told that its map is old.
const TELL_EVERY_US: Micros = millis(100);

/// One worker's share of a node.
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
    /// When other nodes were last told of the map.
    told: BTreeMap<NodeId, Micros>,
    /// How the replicas on other workers of this node stand.
    elsewhere: BTreeMap<u8, Vec<ReplicaReport>>,
    /// Lanes that became free while requests were parked behind them.
    freed: Vec<(SessionId, ShardId)>,
    outbox: Outbox<Bytes>,
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
            told: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            freed: Vec::new(),
            outbox: Outbox::default(),
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
        self.seats.iter().flatten().map(Seat::report).collect()
    }

    /// Something happened; what to do about it is added to `out`.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Actions) {
        match event {
            Event::Request(request) => self.on_request(now, request, out),
            Event::Frame(frame) => self.on_frame(now, frame, out),
            Event::Stored(shard, done) => self.on_stored(now, shard, done, out),
            Event::Map(map) => self.adopt(now, map, out),
            Event::Reports(worker, reports) => drop(self.elsewhere.insert(worker, reports)),
            Event::Full(full) => {
                for index in 0..self.seats.len() {
                    self.step_seat(now, ShardId(index as u16), Input::Full(full), out);
                }
            }
            Event::Closed(session) => self.sessions.close(session),
            Event::Wake => self.on_wake(now, out),
        }
        while let Some((session, shard)) = self.freed.pop() {
            for request in self.sessions.lane(session, shard).take_parked() {
                self.on_request(now, request, out);
            }
        }
    }

    /// When it wants [`Event::Wake`]; a time that has passed means at the end of this turn.
    pub fn wake_at(&self) -> Option<Micros> {
        let seats = self.seats.iter().flatten().filter_map(Seat::wake_at);
        let lines = self.lines.iter().filter_map(Line::wake_at);
        let agent = self.agent.as_ref().map(Agent::wake_at);
        seats.chain(lines).chain(agent).min()
    }

    fn seat(&self, shard: ShardId) -> Option<&Seat> {
        self.seats.get(usize::from(shard.0))?.as_ref()
    }

    fn on_request(&mut self, now: Now, request: Request, out: &mut Actions) {
        let From::Session { session, .. } = request.from else { return };
        let seat = self.seats.get(usize::from(request.shard.0)).and_then(Option::as_ref);
        let lane = self.sessions.lane(session, request.shard);
        let near = |request: &Request| seat.is_some_and(|seat| seat.takes(request));
        match lane.admit(request, near) {
            Some((Way::Near, request)) if request.op.is_write() => self.write_near(now, request, out),
            Some((Way::Near, request)) => self.step_seat(now, request.shard, Input::Request(request), out),
            Some((Way::Away, request)) => self.send_away(now, request, out),
            None => {}
        }
    }

    /// A write to a head on this worker gets a number like any other, by which another head can know it.
    fn write_near(&mut self, now: Now, request: Request, out: &mut Actions) {
        let (worker, incarnation, shard) = (self.me, self.incarnation, request.shard);
        let Some((sequence, base)) = self.line(shard).register(now, &request) else {
            return self.refuse(now, request, Way::Near, out);
        };
        let from = From::Worker { worker, incarnation, sequence, base };
        self.step_seat(now, shard, Input::Request(Request { from, ..request }), out);
    }

    fn send_away(&mut self, now: Now, request: Request, out: &mut Actions) {
        if let Err(request) = self.line(request.shard).push(now, request) {
            self.refuse(now, request, Way::Away, out);
        }
    }

    fn refuse(&mut self, now: Now, request: Request, way: Way, out: &mut Actions) {
        let text = format!("too many requests wait for shard {}; slow down and retry", request.shard.0);
        let outcome = Failure::outcome(FailureKind::Retry, text);
        self.reply(now, (request.from, way), request.shard, outcome, Position::ZERO, out);
    }

    fn line(&mut self, shard: ShardId) -> &mut Line {
        let (place, settings) = (usize::from(shard.0), self.settings.forward);
        if place >= self.lines.len() {
            self.lines.resize_with(place + 1, || Line::new(settings));
        }
        &mut self.lines[place]
    }

    fn on_stored(&mut self, now: Now, shard: ShardId, done: Done, out: &mut Actions) {
        self.step_seat(now, shard, Input::Stored(done), out);
        self.clear_seat(now, shard, out);
    }

    /// Lets a replica go that has ended, and makes place for the one that the map wants.
    fn clear_seat(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let place = usize::from(shard.0);
        if self.seats[place].as_ref().is_some_and(Seat::is_over) {
            self.seats[place] = None;
            out.dropped.push(shard);
            if let Some(map) = self.map.clone()
                && let Some(shard) = map.shard(shard)
            {
                self.open_seat(now, &map, shard, out);
            }
        }
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
        for (request, outcome, position) in outbox.effects.reads.drain(..) {
            if self.must_turn(&request, position) {
                self.turn_away(now, request, out);
            } else {
                self.reply(now, (request.from, Way::Near), shard, outcome, position, out);
            }
        }
        for request in outbox.effects.forwards.drain(..) {
            self.turn_away(now, request, out);
        }
    }

    fn header(&self, kind: Kind, shard: ShardId, epoch: Epoch) -> Header {
        Header { kind, from: self.me, incarnation: self.incarnation, shard, epoch }
    }

    /// Whether an earlier read of the same connection went from near to away, so that this one's
    /// answer may be older than what the connection has seen or will.
    fn must_turn(&mut self, request: &Request, position: Position) -> bool {
        let From::Session { session, .. } = request.from else { return false };
        request.consistency == Consistency::Mode
            && self.sessions.is_open(session)
            && self.sessions.lane(session, request.shard).must_turn(position)
    }

    /// A request that was near is another head's after all.
    fn turn_away(&mut self, now: Now, request: Request, out: &mut Actions) {
        let From::Session { session, .. } = request.from else { return };
        if self.turn_lane(session, request.shard) {
            self.send_away(now, request, out);
        }
    }

    fn turn_lane(&mut self, session: SessionId, shard: ShardId) -> bool {
        let is_open = self.sessions.is_open(session);
        if is_open && self.sessions.lane(session, shard).turn() {
            self.freed.push((session, shard));
        }
        is_open
    }

    fn reply(
        &mut self,
        now: Now,
        (from, way): (From, Way),
        shard: ShardId,
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        match from {
            From::Session { session, tag } => {
                if self.sessions.is_open(session) {
                    if self.sessions.lane(session, shard).settle(way, position) {
                        self.freed.push((session, shard));
                    }
                    out.replies.push(Reply { session, tag, shard, outcome, position });
                }
            }
            From::Worker { worker, sequence, .. }
                if worker == self.me && self.line(shard).is_near(sequence) =>
            {
                self.settle(now, shard, sequence, outcome, position, out);
            }
            From::Worker { worker, incarnation, sequence, .. } => {
                let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
                if let Some(inbound) = seat.inbound.get_mut(&worker) {
                    inbound.answer(incarnation, sequence, outcome, position);
                }
            }
        }
    }

    /// A numbered request of a client here has its answer.
    fn settle(
        &mut self,
        now: Now,
        shard: ShardId,
        sequence: u64,
        outcome: Outcome,
        position: Position,
        out: &mut Actions,
    ) {
        if let Some((request, near)) = self.line(shard).settle(now, sequence) {
            let way = if near { Way::Near } else { Way::Away };
            self.reply(now, (request.from, way), shard, outcome, position, out);
        }
    }

    fn on_frame(&mut self, now: Now, frame: Bytes, out: &mut Actions) {
        let Ok((header, payload)) = Header::parse(frame.clone()) else { return };
        if header.kind == Kind::Welcome && header.from == COORDINATOR {
            if let Some(map) = self.agent.as_mut().and_then(|agent| agent.on_welcome(now, payload)) {
                self.adopt(now, Arc::new(map), out);
            }
            return;
        }
        if header.kind == Kind::Map {
            if let Ok(map) = ClusterMap::from_bytes(payload) {
                self.adopt(now, Arc::new(map), out);
            }
            return;
        }
        let epoch = self.map.as_ref().and_then(|map| map.shard(header.shard)).map_or(Epoch(0), |s| s.epoch);
        if header.epoch > epoch {
            self.hold(frame);
            return;
        }
        if header.epoch < epoch {
            return self.tell(now, header.from.node, out);
        }
        match header.kind {
            Kind::Controlet => {
                let from = Member { node: header.from.node, incarnation: header.incarnation };
                if self.seat(header.shard).is_some_and(|seat| seat.knows(from)) {
                    self.step_seat(now, header.shard, Input::Peer(from.node, payload), out);
                }
            }
            Kind::Left => {
                let member = Member { node: header.from.node, incarnation: header.incarnation };
                self.step_seat(now, header.shard, Input::Left(member), out);
            }
            Kind::Forward => {
                if let Ok(forwards) = Forwards::from_bytes(payload) {
                    self.on_forwards(now, header, forwards, out);
                }
            }
            Kind::Answers => {
                if let Ok(answers) = Answers::from_bytes(payload) {
                    self.on_answers(now, header.shard, answers, out);
                }
            }
            Kind::Heartbeat | Kind::Welcome | Kind::Map => {}
        }
    }

    /// A node speaks from an older epoch: it may be cut off from the coordinator, so it gets the map from here.
    fn tell(&mut self, now: Now, node: NodeId, out: &mut Actions) {
        let Some(map) = self.map.clone() else { return };
        let told = self.told.entry(node).or_insert(0);
        if now.steady_us >= *told {
            *told = now.steady_us + TELL_EVERY_US;
            let header = self.header(Kind::Map, ShardId(0), map.epoch);
            out.sends.push((WorkerId { node, worker: 0 }, header.frame(|frame| map.encode(frame))));
        }
    }

    /// Keeps a frame of an epoch that our map does not know yet; the oldest go when there are too many.
    fn hold(&mut self, frame: Bytes) {
        self.held_bytes += frame.len();
        self.held.push_back(frame);
        while self.held_bytes > HELD_BYTES_MAX {
            self.held_bytes -= self.held.pop_front().map_or(0, |frame| frame.len());
        }
    }

    fn on_forwards(&mut self, now: Now, header: Header, forwards: Forwards, out: &mut Actions) {
        let (shard, settings) = (header.shard, self.settings.forward);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        if !seat.is_head() {
            return;
        }
        for request in seat.accept(now, (header.from, header.incarnation), forwards, settings) {
            self.step_seat(now, shard, Input::Request(request), out);
        }
    }

    fn on_answers(&mut self, now: Now, shard: ShardId, answers: Answers, out: &mut Actions) {
        if answers.incarnation == self.incarnation {
            for answer in answers.answers {
                self.settle(now, shard, answer.sequence, answer.outcome, answer.position, out);
            }
        }
    }

    fn on_wake(&mut self, now: Now, out: &mut Actions) {
        for index in 0..self.seats.len() {
            let due = |seat: &Seat| seat.due_at().is_some_and(|at| at <= now.steady_us);
            if self.seats[index].as_ref().is_some_and(due) {
                self.step_seat(now, ShardId(index as u16), Input::Wake, out);
            }
        }
        for index in 0..self.lines.len() {
            self.tend_line(now, ShardId(index as u16), out);
        }
        for index in 0..self.seats.len() {
            self.send_answers(now, ShardId(index as u16), out);
        }
        let seats = self.seats.iter().flatten().map(Seat::report);
        if let Some(agent) = &mut self.agent {
            let reports = || seats.chain(self.elsewhere.values().flatten().cloned()).collect();
            let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
            agent.on_wake(now, epoch, reports, &mut out.sends);
        }
    }

    fn send_answers(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let (me, incarnation) = (self.me, self.incarnation);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        for answers in seat.send_answers(me, incarnation, &mut out.sends) {
            self.on_answers(now, shard, answers, out);
        }
    }

    /// Gives up what waits for too long, and sends the rest.
    fn tend_line(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        if self.lines[usize::from(shard.0)].wake_at().is_none_or(|at| at > now.steady_us) {
            return;
        }
        let headless = self.is_headless(shard);
        let line = &mut self.lines[usize::from(shard.0)];
        line.set_headless(now, headless);
        for GivenUp { request, near, sent } in line.tick(now) {
            let outcome = given_up(&request, sent);
            let way = if near { Way::Near } else { Way::Away };
            self.reply(now, (request.from, way), shard, outcome, Position::ZERO, out);
        }
        let Some(map) = &self.map else { return };
        let (Some(head), Some(epoch)) = (map.head_of(shard), map.shard(shard).map(|shard| shard.epoch))
        else {
            return;
        };
        let header = self.header(Kind::Forward, shard, epoch);
        while let Some(forwards) = self.lines[usize::from(shard.0)].flush(now) {
            if head == self.me {
                self.on_forwards(now, header, forwards, out);
            } else {
                out.sends.push((head, header.frame(|frame| forwards.encode(frame))));
            }
        }
    }

    /// Whether the coordinator says that the life of the node which orders is over.
    fn is_headless(&self, shard: ShardId) -> bool {
        let Some(shard) = self.map.as_ref().and_then(|map| map.shard(shard)) else { return true };
        let Some(head) = shard.members.first() else { return true };
        self.agent.as_ref().is_some_and(|agent| agent.is_gone(*head))
    }

    fn adopt(&mut self, now: Now, map: Arc<ClusterMap>, out: &mut Actions) {
        if self.map.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        let old = self.map.replace(map.clone());
        self.seats.resize_with(map.shards.len().max(self.seats.len()), || None);
        for shard in &map.shards {
            let known = old.as_ref().and_then(|old| old.shard(shard.id));
            if known.is_none_or(|known| known.epoch != shard.epoch || known.joining != shard.joining) {
                self.reseat(now, &map, shard, out);
            }
            if known.is_none_or(|known| known.epoch != shard.epoch) {
                self.restart_line(shard.id);
            }
        }
        out.adopted = true;
        if let Some(agent) = &mut self.agent {
            agent.on_map();
        }
        for frame in core::mem::take(&mut self.held) {
            self.held_bytes -= frame.len();
            self.on_frame(now, frame, out);
        }
    }

    /// A shard has other members than before, or another one joins: a replica here goes on, ends, or begins.
    fn reseat(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        let me = Member { node: self.me.node, incarnation: self.incarnation };
        let view = view_of(shard, me);
        let mut outbox = core::mem::take(&mut self.outbox);
        if let Some(seat) = &mut self.seats[usize::from(shard.id.0)] {
            let leaves = seat.view.is_member() && !seat.goes_on(&view);
            seat.on_view(now, view, &mut outbox);
            self.perform(now, shard.id, shard.epoch, &mut outbox, out);
            if leaves {
                let header = self.header(Kind::Left, shard.id, shard.epoch);
                let worker = self.me.worker;
                let others = shard.members.iter().filter(|member| member.node != me.node);
                let left = |member: &Member| (WorkerId { node: member.node, worker }, header.frame(|_| {}));
                out.sends.extend(others.map(left));
            }
            self.clear_seat(now, shard.id, out);
        } else {
            self.open_seat(now, map, shard, out);
        }
        self.outbox = outbox;
    }

    /// A replica begins, empty.
    fn open_seat(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        let me = Member { node: self.me.node, incarnation: self.incarnation };
        let view = view_of(shard, me);
        if view.includes_me() && map.worker_of(shard.id) == self.me.worker {
            let seat = Seat::new(now, map, shard, view, &self.settings);
            if seat.is_some() {
                out.opened.push((shard.id, shard.epoch));
            }
            self.seats[usize::from(shard.id.0)] = seat;
        }
    }

    /// The shard has another view: what is not answered goes to its head.
    fn restart_line(&mut self, shard: ShardId) {
        let head_is_here = self.seat(shard).is_some_and(Seat::is_head);
        for from in self.line(shard).restart(head_is_here) {
            if let From::Session { session, .. } = from {
                self.turn_lane(session, shard);
            }
        }
    }

    /// The node this worker belongs to.
    pub fn id(&self) -> NodeId {
        self.me.node
    }
}

/// What to tell of a request whose answer did not come in time.
fn given_up(request: &Request, sent: bool) -> Outcome {
    let shard = request.shard.0;
    if sent && request.op.is_write() {
        let text =
            format!("shard {shard} did not answer in time; the write may or may not have taken effect");
        return Failure::outcome(FailureKind::Uncertain, text);
    }
    Failure::outcome(FailureKind::Retry, format!("shard {shard} does not answer; see: sartor status"))
}
