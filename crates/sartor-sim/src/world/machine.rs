//! Nodes: what they do, their stores, their clocks.

use super::{Happening, Machine, Record, Segment, UNHEARD_MAX, World};
use crate::disk::OnDisk;
use crate::flaky::Flaky;
use bytes::Bytes;
use sartor_core::controlet::part::message::Message;
use sartor_core::coordinator::agent::{Agent, AgentSettings};
use sartor_core::coordinator::{COORDINATOR, Heartbeat};
use sartor_core::ids::{Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::{Done, Keeper, KeeperLimits, Mark};
use sartor_core::node::{Actions, Event, Node, NodeSettings, Opened};
use sartor_core::routing::map::kind_of;
use sartor_core::time::{Micros, Now, millis};
use sartor_core::wire::codec::Wire;
use sartor_core::wire::frame::{Header, Kind};
use sartor_datalets::{Options, engine};
use std::sync::atomic::Ordering;

/// When all began, on the wall clock.
const UNIX_START_MS: u64 = 1_700_000_000_000;

impl Machine {
    /// What its steady clock shows.
    pub(super) fn steady(&self, now_us: Micros) -> Micros {
        self.clock_start + (now_us - self.clock_since) * self.clock_rate / 1_000_000
    }

    /// From now on its clock runs at another rate.
    pub(super) fn drift(&mut self, now_us: Micros, rate: u64) {
        (self.clock_start, self.clock_since, self.clock_rate) = (self.steady(now_us), now_us, rate);
    }

    /// A replica's store; none if what should be on disk is not.
    fn open(&self, opened: &Opened, durable: bool, kind: &str) -> Option<Keeper> {
        let map = self.node.as_ref().and_then(Node::map);
        let datalet = map.map_or(kind, |map| &map.tables[0].datalet).to_owned();
        let (limits, me) = (KeeperLimits::default(), self.node.as_ref().map_or(NodeId(0), Node::id));
        let flaky = |store| Box::new(Flaky::new(store, self.mishaps.clone()));
        if !durable && opened.kept {
            return None;
        }
        if !durable {
            let open = engine(kind_of(&datalet, me)).expect("a known engine").open;
            let store = open(&Options { seed: 9, ..Options::default() }).expect("an engine that opens");
            return Some(Keeper::enveloped(flaky(store), limits).starting_in(opened.born));
        }
        let Opened { shard, born, start, kept, .. } = *opened;
        let here = self.disk.marks().into_iter().find(|mark| mark.shard == shard);
        if kept && here.as_ref().is_none_or(|mark| mark.position != start || mark.born != born) {
            return None;
        }
        let datalet = here.filter(|_| kept).map_or(datalet, |mark| mark.datalet);
        let whole = opened.whole;
        let mark = Mark { cluster: 1, shard, born, position: start, whole, datalet, ..Mark::default() };
        let store = flaky(Box::new(OnDisk::open(self.disk.clone(), shard)));
        Keeper::enveloped(store, limits).lasting(mark, kept).ok()
    }

    /// When its clock will show that.
    fn time_of(&self, steady_us: Micros) -> Micros {
        let ahead = steady_us.saturating_sub(self.clock_start);
        self.clock_since + (ahead * 1_000_000).div_ceil(self.clock_rate)
    }
}

impl World {
    pub(super) fn now(&self, node: u16) -> Now {
        let machine = self.machines.get(usize::from(node));
        let offset = machine.map_or(0, |machine| machine.clock_offset_ms);
        let unix_ms = (UNIX_START_MS + self.now_us / 1000).saturating_add_signed(offset);
        Now { steady_us: machine.map_or(self.now_us, |machine| machine.steady(self.now_us)), unix_ms }
    }

    pub(super) fn step(&mut self, node: u16, event: Event) {
        let now = self.now(node);
        let mut actions = Actions::default();
        let machine = &mut self.machines[usize::from(node)];
        let Some(state) = &mut machine.node else { return };
        state.step(now, event, &mut actions);
        self.perform(node, actions);
        self.plan_turn(node);
    }

    fn perform(&mut self, node: u16, actions: Actions) {
        let machine = &mut self.machines[usize::from(node)];
        for shard in actions.dropped {
            machine.stores.remove(shard);
            machine.disk.remove(shard);
            machine.tasks.retain(|(of, _)| *of != shard);
        }
        for opened in actions.opened {
            machine.tasks.retain(|(of, _)| *of != opened.shard);
            if let Some(keeper) = machine.open(&opened, self.plan.durable, self.plan.datalet) {
                machine.stores.insert(opened.shard, keeper);
            }
        }
        for shard in actions.filled {
            // Where the disk fails now, the next task will tell.
            machine.stores.get_mut(shard).into_iter().for_each(Keeper::become_whole);
        }
        let was_idle = machine.tasks.is_empty();
        machine.tasks.extend(actions.tasks);
        if was_idle && !machine.tasks.is_empty() {
            let delay = if self.plan.slow_stores { self.random.below(3000) } else { 0 };
            self.at(self.now_us + delay, Happening::Stores(node));
        }
        for reply in actions.replies {
            let client = self.clients.iter_mut().rev().find(|client| client.session == reply.session);
            let Some(client) = client else { continue };
            if let Err(error) =
                client.on_reply(reply.tag, reply.outcome, (reply.shard, reply.position), self.now_us)
            {
                self.error = Some(error);
            }
        }
        for call in &actions.locks {
            self.ask_locks(node, call);
        }
        for (shard, number, call) in actions.log {
            self.send_to_log(node, shard, number, call);
        }
        for (to, frame) in actions.sends {
            self.note_given_up(to, &frame);
            self.send(node, to, frame);
        }
    }

    /// Whether somebody is told that it is given up: what the plan has for that begins.
    fn note_given_up(&mut self, to: WorkerId, frame: &Bytes) {
        let Some(messages) = self.plan.forsaken.filter(|_| frame.len() < 64) else { return };
        let Ok((Header { kind: Kind::Controlet, shard, .. }, payload)) = Header::parse(frame.clone()) else {
            return;
        };
        if Message::from_bytes(payload) == Ok(Message::Cut) {
            self.tell(|| format!("node {} is given up in shard {}", to.node.0, shard.0));
            self.plan.forsaken = None;
            self.forsaken = Some((messages, shard, to.node.0));
        }
    }

    pub(super) fn send(&mut self, from: u16, to: WorkerId, frame: Bytes) {
        let delays = self.net.copies(&mut self.random, from, to.node.0);
        if delays.is_empty() && to == COORDINATOR {
            self.unheard.push_front((self.now_us, from));
            self.unheard.truncate(UNHEARD_MAX);
        }
        for delay in delays {
            self.at(self.now_us + delay, Happening::Arrive(to, frame.clone()));
        }
    }

    /// Runs the tasks that are there, in order; their ends are events of a later turn.
    pub(super) fn run_stores(&mut self, node: u16) {
        let now = self.now(node);
        let stalled_until = self.machines[usize::from(node)].stalled_until;
        if stalled_until > self.now_us {
            return self.at(stalled_until, Happening::Stores(node));
        }
        let count = self.machines[usize::from(node)].tasks.len();
        // A slow store stops between tasks.
        let count =
            if self.plan.slow_stores { self.random.between(1, count.max(1) as u64) as usize } else { count };
        if self.plan.durable {
            self.run_group(node, now, count);
        }
        for _ in 0..if self.plan.durable { 0 } else { count } {
            let Some((shard, task)) = self.machines[usize::from(node)].tasks.pop_front() else { return };
            let machine = &mut self.machines[usize::from(node)];
            let before = machine.stores.get_mut(shard).map(|keeper| keeper.position());
            let done = machine.stores.run(now, shard, task);
            self.record(shard, &done, now.unix_ms, before.unwrap_or_default());
            self.step(node, Event::Stored(shard, done));
        }
        if !self.machines[usize::from(node)].tasks.is_empty() {
            let delay = if self.plan.slow_stores { self.random.below(3000) } else { 0 };
            self.at(self.now_us + delay, Happening::Stores(node));
        }
    }

    /// Runs tasks of stores on disk: nothing is told of them before all are committed.
    fn run_group(&mut self, node: u16, now: Now, count: usize) {
        let machine = &mut self.machines[usize::from(node)];
        let mut ended = Vec::new();
        for (shard, task) in machine.tasks.drain(..count.min(machine.tasks.len())).collect::<Vec<_>>() {
            let keeper = machine.stores.get_mut(shard);
            let before = keeper.as_ref().map(|keeper| keeper.position()).unwrap_or_default();
            let done = match keeper {
                Some(keeper) => keeper.run_group(vec![(now, task)], true).remove(0),
                None => Done::missing(task),
            };
            ended.push((shard, done, before));
        }
        if ended.iter().any(|(_, done, _)| matches!(done, Done::Broken(..))) {
            self.at(self.now_us + millis(2000), Happening::Reopen(node));
        }
        for (shard, done, before) in ended {
            self.record(shard, &done, now.unix_ms, before);
            self.step(node, Event::Stored(shard, done));
        }
    }

    /// Remembers what was ordered, and that nobody else orders at the same place.
    fn record(&mut self, shard: ShardId, done: &Done, unix_ms: u64, before: Position) {
        let (entry, op, unix_ms) = match done {
            Done::Evaluated(request, _, Some(entry)) => (entry, Some(request.op.clone()), unix_ms),
            Done::Expired(Some(entry), _) => (entry, None, unix_ms),
            Done::Replayed(replay, _, entry) => (entry, Some(replay.request.op.clone()), replay.unix_ms),
            _ => return,
        };
        let segment = || Segment { parent: before, records: Vec::new() };
        let segment = self.history.entry((shard, entry.position.epoch)).or_insert_with(segment);
        if matches!(done, Done::Replayed(..)) {
            // All do it; it comes to the same everywhere.
            let skipped = entry.position.sequence.checked_sub(segment.parent.sequence + 1);
            let known = skipped.and_then(|place| segment.records.get(place as usize));
            if let Some(known) = known {
                if known.entry != *entry || known.op != op || known.unix_ms != unix_ms {
                    let record = Record { entry: entry.clone(), op, unix_ms };
                    self.error = Some(format!("shard {}: {record:?} is {known:?} elsewhere", shard.0));
                }
                return;
            }
        }
        let last = segment.records.last().map_or(segment.parent, |record| record.entry.position);
        if before != last || entry.position.sequence != last.sequence + 1 {
            let place = entry.position;
            self.error = Some(format!("shard {} ordered {place} after {last}, with {before}", shard.0));
        }
        segment.records.push(Record { entry: entry.clone(), op, unix_ms });
    }

    /// A turn ends soon if the node has something to send, else when its next timer is due.
    pub(super) fn plan_turn(&mut self, node: u16) {
        let machine = &self.machines[usize::from(node)];
        let Some(wake_at) = machine.node.as_ref().and_then(Node::wake_at) else { return };
        let planned = machine.turn_at;
        let due = machine.time_of(wake_at);
        let at = if due <= self.now_us { self.now_us + self.random.below(300) } else { due };
        if planned.is_none_or(|planned| at < planned) {
            self.machines[usize::from(node)].turn_at = Some(at);
            self.at(at, Happening::Turn(node));
        }
    }

    pub(super) fn start_node(&mut self, node: u16) {
        let machine = &mut self.machines[usize::from(node)];
        machine.incarnation = Incarnation(machine.incarnation.0 + 1);
        machine.turn_at = None;
        machine.mishaps.fails.store(false, Ordering::Relaxed);
        let heartbeat = Heartbeat {
            node: NodeId(node),
            incarnation: machine.incarnation,
            pid: 1,
            client_addr: format!("client:{node}"),
            peer_addr: format!("peer:{node}"),
            held: if self.plan.durable { machine.disk.marks() } else { Vec::new() },
            ..Heartbeat::default()
        };
        let agent = Agent::new(heartbeat, AgentSettings::default());
        let me = WorkerId { node: NodeId(node), worker: 0 };
        let settings = self.node_settings();
        let machine = &mut self.machines[usize::from(node)];
        machine.node = Some(Node::new(me, machine.incarnation, settings, Some(agent)));
        self.plan_turn(node);
    }

    fn node_settings(&self) -> NodeSettings {
        let mut settings = NodeSettings { modes: self.config.modes, ..NodeSettings::default() };
        settings.is_ordered = |kind| kind == "tree";
        settings.durable = if self.plan.durable { &["hash", "tree"] } else { &[] };
        settings.controlet.page_bytes_max = 300;
        if self.plan.tight {
            settings.controlet.batch_bytes_max = 100;
            settings.controlet.window_bytes_max = 300;
            settings.controlet.log_bytes_max = 50;
            settings.controlet.stream_bytes_max = 2000;
            // A small window on a network that reorders is slow even if all is well.
            settings.controlet.pace_bytes_per_s_min = 100;
            settings.controlet.expire_batch_max = 2;
            settings.controlet.waiters_max = 2;
            settings.controlet.page_bytes_max = 64;
            settings.controlet.answer_bytes_max = 200;
            settings.controlet.answers_bytes_max = 500;
            settings.controlet.once_bytes_max = 5000;
            settings.forward.pending_max = 16;
            settings.forward.batch_requests_max = 3;
            settings.forward.batch_bytes_max = 200;
            settings.forward.answers_bytes_max = 50;
        }
        settings
    }
}
