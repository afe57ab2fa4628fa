//! One worker of a node: takes events, routes them, collects actions. It decides nothing itself.
//!
//! ```text
//!  Request ─▶ lane ─┬─ near ─▶ Controlet ─▶ Task ─▶ (store) ─▶ Stored ─▶ Reply
//!                   └─ away ─▶ Line ─▶ Forward ──▶ head's Inbound ─▶ Controlet ─▶ … ─▶ Answers
//! ```
//!
//! A turn of the world's loop: events in, the tasks that come out run as one batch, their
//! `Stored` in, then one [`Event::Wake`], which sends what the turn collected.

use crate::controlet::{AnyControlet, Input, MODES, Mode, Outbox, Settings, Status, View, mode};
use crate::coordinator::COORDINATOR;
use crate::coordinator::agent::Agent;
use crate::forward::{Answers, ForwardSettings, Forwards, Inbound, Line};
use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use crate::keeper::{Done, Task};
use crate::operation::{Consistency, Failure, FailureKind, From, Outcome, Request, SessionId};
use crate::routing::map::{ClusterMap, Member, Shard};
use crate::session::{Sessions, Way};
use crate::time::{Micros, Now};
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::boxed::Box;
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

/// One worker's share of a node.
pub struct Node {
    me: WorkerId,
    incarnation: Incarnation,
    settings: NodeSettings,
    map: Option<Arc<ClusterMap>>,
    seats: Vec<Option<Seat>>,
    lines: BTreeMap<ShardId, Line>,
    sessions: Sessions,
    agent: Option<Agent>,
    held: VecDeque<Bytes>,
    held_bytes: usize,
    /// Lanes that became free while requests were parked behind them.
    freed: Vec<(SessionId, ShardId)>,
    outbox: Outbox<Bytes>,
}

/// A replica on this worker.
struct Seat {
    epoch: Epoch,
    members: Vec<Member>,
    controlet: Box<dyn AnyControlet>,
    inbound: BTreeMap<WorkerId, Inbound>,
}

impl Seat {
    fn wake_at(&self) -> Option<Micros> {
        if self.inbound.values().any(Inbound::is_ready) { Some(0) } else { self.controlet.wake_at() }
    }
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
            lines: BTreeMap::new(),
            sessions: Sessions::default(),
            agent,
            held: VecDeque::new(),
            held_bytes: 0,
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
        let seated = self.seats.iter().enumerate();
        seated.filter_map(|(i, seat)| Some((ShardId(i as u16), seat.as_ref()?.controlet.status())))
    }

    /// Something happened; what to do about it is added to `out`.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Actions) {
        match event {
            Event::Request(request) => self.on_request(now, request, out),
            Event::Frame(frame) => self.on_frame(now, frame, out),
            Event::Stored(shard, done) => self.step_seat(now, shard, Input::Stored(done), out),
            Event::Map(map) => self.adopt(now, map, out),
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
        let lines = self.lines.values().filter_map(Line::wake_at);
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
        let near = |request: &Request| seat.is_some_and(|seat| seat.controlet.takes(request));
        match lane.admit(request, near) {
            Some((Way::Near, request)) => self.step_seat(now, request.shard, Input::Request(request), out),
            Some((Way::Away, request)) => self.send_away(request, out),
            None => {}
        }
    }

    fn send_away(&mut self, request: Request, out: &mut Actions) {
        let settings = self.settings.forward;
        let line = self.lines.entry(request.shard).or_insert_with(|| Line::new(settings));
        if let Err(request) = line.push(request) {
            let text = format!("too many requests wait for shard {}; slow down and retry", request.shard.0);
            let outcome = Failure::outcome(FailureKind::Retry, text);
            self.reply(request.from, Way::Away, request.shard, outcome, Position::ZERO, out);
        }
    }

    /// Steps a replica's controlet and passes on what it wants.
    fn step_seat(&mut self, now: Now, shard: ShardId, input: Input<Bytes>, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        let mut outbox = core::mem::take(&mut self.outbox);
        seat.controlet.step(now, input, &mut outbox);
        out.tasks.extend(outbox.effects.tasks.drain(..).map(|task| (shard, task)));
        if !outbox.sends.is_empty() {
            let worker = self.me.worker;
            let header = Header {
                kind: Kind::Controlet,
                from: self.me,
                incarnation: self.incarnation,
                shard,
                epoch: seat.epoch,
            };
            out.sends.extend(outbox.sends.drain(..).map(|(node, payload)| {
                (WorkerId { node, worker }, header.frame(|frame| frame.extend_from_slice(&payload)))
            }));
        }
        for (from, outcome, position) in outbox.effects.replies.drain(..) {
            self.reply(from, Way::Near, shard, outcome, position, out);
        }
        for (request, outcome, position) in outbox.effects.reads.drain(..) {
            if self.must_turn(&request, position) {
                self.turn_away(request, out);
            } else {
                self.reply(request.from, Way::Near, shard, outcome, position, out);
            }
        }
        for request in outbox.effects.forwards.drain(..) {
            self.turn_away(request, out);
        }
        self.outbox = outbox;
    }

    /// Whether an earlier read of the same connection went from near to away, so that this one's
    /// answer may be older than what the connection has seen or will.
    fn must_turn(&mut self, request: &Request, position: Position) -> bool {
        let From::Session { session, .. } = request.from else { return false };
        request.consistency == Consistency::Mode
            && self.sessions.is_open(session)
            && self.sessions.lane(session, request.shard).must_turn(position)
    }

    /// A read that was near is the head's after all.
    fn turn_away(&mut self, request: Request, out: &mut Actions) {
        let From::Session { session, .. } = request.from else { return };
        if self.sessions.is_open(session) {
            if self.sessions.lane(session, request.shard).turn() {
                self.freed.push((session, request.shard));
            }
            self.send_away(request, out);
        }
    }

    fn reply(
        &mut self,
        from: From,
        way: Way,
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
            From::Worker { worker, incarnation, sequence } => {
                let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
                if let Some(inbound) = seat.inbound.get_mut(&worker) {
                    inbound.answer(incarnation, sequence, outcome, position);
                }
            }
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
        let epoch = self.map.as_ref().and_then(|map| map.shard(header.shard)).map_or(Epoch(0), |s| s.epoch);
        if header.epoch > epoch {
            self.hold(frame);
            return;
        }
        if header.epoch < epoch {
            return;
        }
        match header.kind {
            Kind::Controlet => {
                let from = Member { node: header.from.node, incarnation: header.incarnation };
                if self.seat(header.shard).is_some_and(|seat| seat.members.contains(&from)) {
                    self.step_seat(now, header.shard, Input::Peer(from.node, payload), out);
                }
            }
            Kind::Forward => self.on_forwards(now, header, payload, out),
            Kind::Answers => self.on_answers(now, header, payload, out),
            Kind::Heartbeat | Kind::Welcome => {}
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

    fn on_forwards(&mut self, now: Now, header: Header, payload: Bytes, out: &mut Actions) {
        let Ok(forwards) = Forwards::from_bytes(payload) else { return };
        let (shard, settings) = (header.shard, self.settings.forward);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        let inbound = seat.inbound.entry(header.from).or_insert_with(|| Inbound::new(settings));
        for forwarded in inbound.accept(header.incarnation, forwards) {
            let request = Request {
                from: From::Worker {
                    worker: header.from,
                    incarnation: header.incarnation,
                    sequence: forwarded.sequence,
                },
                shard,
                op: forwarded.op,
                floor: forwarded.floor,
                consistency: forwarded.consistency,
                deadline_us: now.steady_us.saturating_add(forwarded.left_us),
            };
            if self.seat(shard).is_some_and(|seat| seat.controlet.takes(&request)) {
                self.step_seat(now, shard, Input::Request(request), out);
            } else {
                let outcome =
                    Failure::outcome(FailureKind::Retry, "this node is not the shard's head; retry");
                self.reply(request.from, Way::Near, shard, outcome, Position::ZERO, out);
            }
        }
    }

    fn on_answers(&mut self, now: Now, header: Header, payload: Bytes, out: &mut Actions) {
        let Ok(answers) = Answers::from_bytes(payload) else { return };
        if answers.incarnation != self.incarnation {
            return;
        }
        for answer in answers.answers {
            let line = self.lines.get_mut(&header.shard);
            if let Some(request) = line.and_then(|line| line.settle(now, answer.sequence)) {
                self.reply(request.from, Way::Away, header.shard, answer.outcome, answer.position, out);
            }
        }
    }

    fn on_wake(&mut self, now: Now, out: &mut Actions) {
        for index in 0..self.seats.len() {
            let shard = ShardId(index as u16);
            let due = |seat: &Seat| seat.controlet.wake_at().is_some_and(|at| at <= now.steady_us);
            if self.seat(shard).is_some_and(due) {
                self.step_seat(now, shard, Input::Wake, out);
            }
            self.send_answers(shard, out);
        }
        let mut lines = core::mem::take(&mut self.lines);
        for (shard, line) in &mut lines {
            for (request, sent) in line.tick(now) {
                let outcome = given_up(&request, sent);
                self.reply(request.from, Way::Away, *shard, outcome, Position::ZERO, out);
            }
            self.send_line(now, *shard, line, out);
        }
        lines.append(&mut self.lines);
        self.lines = lines;
        if let Some(agent) = &mut self.agent {
            agent.on_wake(now, self.map.as_ref().map_or(Epoch(0), |map| map.epoch), &mut out.sends);
        }
    }

    fn send_answers(&mut self, shard: ShardId, out: &mut Actions) {
        let (from, incarnation) = (self.me, self.incarnation);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        let header = Header { kind: Kind::Answers, from, incarnation, shard, epoch: seat.epoch };
        for (origin, inbound) in &mut seat.inbound {
            while let Some(answers) = inbound.take_ready() {
                out.sends.push((*origin, header.frame(|frame| answers.encode(frame))));
            }
        }
    }

    fn send_line(&mut self, now: Now, shard: ShardId, line: &mut Line, out: &mut Actions) {
        let Some(map) = &self.map else { return };
        let (Some(head), Some(epoch)) = (map.head_of(shard), map.shard(shard).map(|shard| shard.epoch))
        else {
            return;
        };
        let header =
            Header { kind: Kind::Forward, from: self.me, incarnation: self.incarnation, shard, epoch };
        while let Some(forwards) = line.flush(now) {
            out.sends.push((head, header.frame(|frame| forwards.encode(frame))));
        }
    }

    fn adopt(&mut self, now: Now, map: Arc<ClusterMap>, out: &mut Actions) {
        if self.map.as_ref().is_some_and(|old| old.epoch >= map.epoch) {
            return;
        }
        let old = self.map.replace(map.clone());
        self.seats.resize_with(map.shards.len().max(self.seats.len()), || None);
        for shard in &map.shards {
            let known = old.as_ref().and_then(|old| old.shard(shard.id)).map(|shard| shard.epoch);
            if known != Some(shard.epoch) {
                self.reseat(&map, shard, out);
            }
        }
        out.adopted = true;
        for frame in core::mem::take(&mut self.held) {
            self.held_bytes -= frame.len();
            self.on_frame(now, frame, out);
        }
    }

    /// A shard has other members than before: a replica here ends, or begins empty.
    fn reseat(&mut self, map: &ClusterMap, shard: &Shard, out: &mut Actions) {
        let seat = &mut self.seats[usize::from(shard.id.0)];
        if seat.take().is_some() {
            out.dropped.push(shard.id);
        }
        let member = Member { node: self.me.node, incarnation: self.incarnation };
        let mode = map.table_of(shard).and_then(|table| mode(self.settings.modes, &table.mode));
        if let Some(mode) = mode
            && shard.members.contains(&member)
            && map.worker_of(shard.id) == self.me.worker
        {
            let (members, me) = (shard.members.clone(), self.me.node);
            let view = View { shard: shard.id, epoch: shard.epoch, me, members: members.clone() };
            let controlet = (mode.build)(view, self.settings.controlet);
            *seat = Some(Seat { epoch: shard.epoch, members, controlet, inbound: BTreeMap::new() });
            out.opened.push((shard.id, shard.epoch));
        }
        let seen = self.lines.get_mut(&shard.id).map(Line::restart).unwrap_or_default();
        for request in seen {
            let outcome = given_up(&request, true);
            self.reply(request.from, Way::Away, shard.id, outcome, Position::ZERO, out);
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
