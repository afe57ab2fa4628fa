//! A thread of the load: its connections, and what it asks over them.
//!
//! ```text
//!  closed loop: a connection sends `depth` requests; when all are answered, the next ones
//!  open loop:   requests are due at times of their own; each goes to the next connection that has room,
//!               and its time counts from when it was due, also if it could not be sent then
//! ```
//!
//! A turn reads each ready connection once and writes each once. Nothing is allocated for a request.

use super::connection::{Connection, Part, Pending, Reading, State};
use super::pace::{Schedule, Timer};
use super::plan::{Amount, Plan, Waits};
use super::protocol::Answer;
use super::record::Record;
use mio::{Events, Poll, Token};
use sartor_core::workload::{Action, Generator};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TIMER: Token = Token(usize::MAX - 1);
/// Bytes read at once.
const SCRATCH_BYTES: usize = 256 << 10;
/// Longest sleep, so that an end from outside is noticed.
const SLEEP_MAX_NS: u64 = 50_000_000;
/// Values are cut out of noise from places that differ by up to so much.
const NOISE_SHIFT: usize = 4096;
/// What the loss of a connection is called among the errors.
const LOST: &[u8] = b"connection-lost";
const TOO_FEW: &[u8] = b"WAIT-too-few-replicas";

/// What the threads of a run share.
pub struct Shared {
    /// The clock's zero.
    pub zero: Instant,
    /// End soon.
    pub stop: Arc<AtomicBool>,
    /// Requests answered or refused so far, for who looks.
    pub answered: AtomicU64,
    /// The number after the last record that somebody began to insert, and that somebody has inserted.
    pub claimed: AtomicU64,
    pub inserted: AtomicU64,
}

impl Shared {
    /// For a run over so many records that are there.
    pub fn new(records: u64, stop: Arc<AtomicBool>) -> Shared {
        Shared {
            zero: Instant::now(),
            stop,
            answered: AtomicU64::new(0),
            claimed: AtomicU64::new(records),
            inserted: AtomicU64::new(records),
        }
    }

    /// Nanoseconds since the run's zero.
    pub fn now(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }
}

/// When a run counts, in ns of its clock.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first request of an open loop is due.
    pub start_ns: u64,
    /// What comes before is warm-up.
    pub begin_ns: u64,
    /// No requests after this time; none means that their number is limited.
    pub end_ns: Option<u64>,
    /// The distance of points over time.
    pub point_ns: u64,
}

/// A thread of the load.
pub struct Driver<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    poll: Poll,
    timer: Timer,
    connections: Vec<Connection>,
    /// Those with room for a request of an open loop.
    line: VecDeque<usize>,
    dirty: Vec<usize>,
    down: Vec<usize>,
    generator: Generator,
    schedule: Option<Schedule>,
    /// Requests that are still to be sent, if their number is limited.
    budget: u64,
    window: Window,
    record: Record,
    noise: Vec<u8>,
    events: u64,
}

impl<'a> Driver<'a> {
    /// Number `part` of the plan's threads, with its share of the connections, connected.
    pub fn new(plan: &'a Plan, shared: &'a Shared, seed: u64, part: usize) -> io::Result<Driver<'a>> {
        let poll = Poll::new()?;
        let timer = Timer::new(poll.registry(), TIMER)?;
        let mut connections = Vec::new();
        for number in (part..plan.connections).step_by(plan.threads) {
            let target = number % plan.targets.len();
            let mut stream = plan.targets[target].connect()?;
            stream.register(poll.registry(), Token(connections.len()))?;
            let mut connection = Connection::new(target, stream);
            plan.table.iter().for_each(|table| connection.select(plan.protocol, table));
            connections.push(connection);
        }
        let (part, parts) = (part as u64, plan.threads as u64);
        let window = Window { start_ns: 0, begin_ns: 0, end_ns: None, point_ns: 1 };
        Ok(Driver {
            plan,
            shared,
            poll,
            timer,
            connections,
            line: VecDeque::new(),
            dirty: Vec::new(),
            down: Vec::new(),
            generator: Generator::new(&plan.workload, plan.records, seed, part, parts),
            schedule: None,
            budget: 0,
            window,
            record: Record::new(0, 1),
            noise: noise(plan.workload.value_bytes.max() as usize + NOISE_SHIFT),
            events: 0,
        })
    }

    /// Asks until the window closes or the budget is spent; what was counted.
    pub fn run(mut self, window: Window, part: usize, rate: Option<f64>, seed: u64) -> io::Result<Record> {
        let (number, parts) = (part as u64, self.plan.threads as u64);
        self.window = window;
        self.record = Record::new(window.begin_ns, window.point_ns);
        self.budget = match self.plan.amount {
            Amount::Seconds(_) => u64::MAX,
            Amount::Requests(count) => count / parts + u64::from(number < count % parts),
        };
        let now = self.shared.now();
        self.schedule =
            rate.map(|rate| Schedule::new(self.plan.arrivals, rate, window.start_ns, number, parts, seed));
        for index in 0..self.connections.len() {
            self.offer(index);
            self.fill(index, now);
        }
        let mut events = Events::with_capacity(1024);
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            let now = self.shared.now();
            self.dispatch(now);
            self.flush_all(now);
            if self.is_over(now) {
                break;
            }
            self.wait(&mut events, now)?;
            for event in &events {
                self.on_event(event.token(), &mut scratch);
            }
            self.flush_all(now);
            self.reconnect();
            self.shared.answered.fetch_add(std::mem::take(&mut self.events), Relaxed);
        }
        self.close();
        Ok(self.record)
    }

    fn is_over(&self, now: u64) -> bool {
        let spent = self.budget == 0
            && self.connections.iter().all(|connection| connection.is_idle() && connection.follow.is_empty());
        spent || self.window.end_ns.is_some_and(|end| now >= end) || self.shared.stop.load(Relaxed)
    }

    /// Sleeps until something is ready or due.
    fn wait(&mut self, events: &mut Events, now: u64) -> io::Result<()> {
        let mut until = now + SLEEP_MAX_NS;
        until = until.min(self.window.end_ns.unwrap_or(u64::MAX));
        for &index in &self.down {
            if let State::Down(at) = self.connections[index].state {
                until = until.min(at);
            }
        }
        if let Some(schedule) = &self.schedule
            && !self.line.is_empty()
            && self.budget > 0
        {
            until = until.min(schedule.due());
        }
        let left = until.saturating_sub(now);
        let timeout = match left {
            0 => Duration::ZERO,
            _ if self.schedule.is_some() => {
                self.timer.set(left)?;
                Duration::from_secs(1)
            }
            _ => Duration::from_nanos(left),
        };
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            done => done,
        }
    }

    fn on_event(&mut self, token: Token, scratch: &mut [u8]) {
        let index = token.0;
        let shared = self.shared;
        if index >= self.connections.len() {
            return;
        }
        match self.connections[index].state {
            State::Down(_) => return,
            State::Connecting => {
                let stream = self.connections[index].stream();
                match stream.map_or(Ok(false), |stream| stream.is_connected()) {
                    Ok(true) => {
                        self.connections[index].up();
                        self.record.reconnects += 1;
                        self.offer(index);
                    }
                    Ok(false) => return,
                    Err(_) => return self.lose(index, shared.now()),
                }
            }
            State::Up => {}
        }
        if self.read(index, scratch) == Reading::Dead {
            return self.lose(index, shared.now());
        }
        let now = if self.schedule.is_none() { shared.now() } else { 0 };
        self.fill(index, now);
        // Also what did not go before.
        self.dirty.push(index);
    }

    fn read(&mut self, index: usize, scratch: &mut [u8]) -> Reading {
        let shared = self.shared;
        let Driver { plan, record, events, connections, .. } = self;
        let reading = connections[index].read(
            plan.protocol,
            scratch,
            &|| shared.now(),
            &mut |connection, answer, now| {
                if take(plan, shared, record, connection, &answer, now) {
                    *events += 1;
                }
            },
        );
        self.offer(index);
        reading
    }

    /// Puts a connection into the line if it can take a request of an open loop.
    fn offer(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let room = connection.state == State::Up && connection.pending.len() < self.plan.depth;
        if room && !connection.in_line {
            connection.in_line = true;
            self.line.push_back(index);
        }
    }

    /// The next requests of a connection: of a closed loop if all before are answered; of an open loop only the
    /// writes that follow a read.
    fn fill(&mut self, index: usize, now: u64) {
        let closed = self.schedule.is_none();
        let connection = &self.connections[index];
        if connection.state != State::Up || closed && !connection.is_idle() {
            // It may be that it has to choose a table first.
            if !connection.out.is_empty() {
                self.dirty.push(index);
            }
            return;
        }
        let mut room = if closed { self.plan.depth } else { usize::MAX };
        while room > 0 {
            let Some(mut next) = self.connections[index].follow.pop_front() else { break };
            if closed {
                next.due = now;
            }
            self.encode(index, next);
            room -= 1;
        }
        if closed {
            for _ in 0..room {
                if self.budget == 0 {
                    break;
                }
                self.request(index, now);
            }
        }
        if !self.connections[index].out.is_empty() {
            self.dirty.push(index);
        }
    }

    /// Sends what is due in an open loop.
    fn dispatch(&mut self, now: u64) {
        let end = self.window.end_ns.unwrap_or(u64::MAX);
        while let Some(schedule) = &mut self.schedule {
            let due = schedule.due();
            if due > now || due >= end || self.budget == 0 {
                return;
            }
            let Some(index) = self.line.pop_front() else { return };
            self.connections[index].in_line = false;
            if self.connections[index].state != State::Up {
                continue;
            }
            schedule.take();
            self.request(index, due);
            self.dirty.push(index);
            self.offer(index);
        }
    }

    /// Draws a request and appends it.
    fn request(&mut self, index: usize, due: u64) {
        // Requests of the warm-up are not among those that were asked for.
        if due >= self.window.begin_ns {
            self.budget -= 1;
        }
        let mut draw = self.generator.draw(self.shared.inserted.load(Relaxed));
        if draw.action == Action::Insert {
            draw.record = self.shared.claimed.fetch_add(1, Relaxed);
        }
        let part = match draw.action {
            Action::ReadModifyWrite => Part::ReadFirst,
            action => Part::Whole(action),
        };
        self.encode(index, Pending { part, due, record: draw.record, value_bytes: draw.value_bytes });
    }

    fn encode(&mut self, index: usize, pending: Pending) {
        let (plan, connection) = (self.plan, &mut self.connections[index]);
        let key = plan.key(pending.record);
        connection.pending.push_back(pending);
        if matches!(pending.part, Part::Whole(Action::Read) | Part::ReadFirst) {
            return plan.protocol.get(&mut connection.out, key);
        }
        let from = pending.record as usize % NOISE_SHIFT;
        let value = &self.noise[from..from + pending.value_bytes as usize];
        plan.protocol.set(&mut connection.out, key, value);
        connection.unconfirmed = true;
        if plan.waits == Waits::Each {
            wait_for_replicas(plan, connection, pending.due);
        }
    }

    fn flush_all(&mut self, now: u64) {
        while let Some(index) = self.dirty.pop() {
            let connection = &mut self.connections[index];
            if connection.unconfirmed && self.plan.waits == Waits::Batch {
                wait_for_replicas(self.plan, connection, now);
            }
            if !connection.flush() {
                self.lose(index, now);
            }
        }
    }

    /// A connection is dead.
    fn lose(&mut self, index: usize, now: u64) {
        let connection = &mut self.connections[index];
        let is_own = |pending: &&Pending| matches!(pending.part, Part::Wait | Part::Select);
        let waits = connection.pending.iter().filter(is_own).count();
        let lost = connection.pending.len() - waits + connection.held.len() + connection.follow.len();
        (0..lost).for_each(|_| self.record.error(LOST, now));
        self.events += lost as u64;
        connection.down(now);
        self.down.push(index);
    }

    /// Makes dead connections again whose time has come.
    fn reconnect(&mut self) {
        let now = self.shared.now();
        for place in (0..self.down.len()).rev() {
            let index = self.down[place];
            let State::Down(at) = self.connections[index].state else { continue };
            if at > now {
                continue;
            }
            let target = &self.plan.targets[self.connections[index].target];
            let stream = target.begin_connect().and_then(|mut stream| {
                stream.register(self.poll.registry(), Token(index))?;
                Ok(stream)
            });
            match stream {
                Ok(stream) => {
                    self.down.swap_remove(place);
                    self.connections[index].restart(stream);
                    let (protocol, table) = (self.plan.protocol, self.plan.table.iter());
                    table.for_each(|table| self.connections[index].select(protocol, table));
                }
                Err(_) => self.connections[index].down(now),
            }
        }
    }

    /// In an open loop what was due and has no answer counts with the time it has waited: left out, it would
    /// make a server that stands still look fast.
    fn close(&mut self) {
        let end = self.shared.now();
        let Some(schedule) = &mut self.schedule else { return };
        for pending in self.connections.iter().flat_map(|connection| &connection.pending) {
            match pending.part {
                Part::Whole(action) => self.record.unanswered(action, pending.due, end),
                Part::ReadFirst => self.record.unanswered(Action::Read, pending.due, end),
                Part::WriteThen(_) => self.record.unanswered(Action::Update, pending.due, end),
                Part::Wait | Part::Select => {}
            }
        }
        for pending in self.connections.iter().flat_map(|connection| &connection.held) {
            self.record.unanswered(Action::Update, pending.due, end);
        }
        let limit = self.window.end_ns.unwrap_or(end).min(end);
        while self.budget > 0 && schedule.due() < limit {
            let due = schedule.take();
            let draw = self.generator.draw(self.shared.inserted.load(Relaxed));
            let action = if draw.action == Action::ReadModifyWrite { Action::Read } else { draw.action };
            self.record.unanswered(action, due, end);
            self.budget -= 1;
        }
    }
}

fn wait_for_replicas(plan: &Plan, connection: &mut Connection, due: u64) {
    connection.unconfirmed = false;
    connection.pending.push_back(Pending { part: Part::Wait, due, record: 0, value_bytes: 0 });
    plan.protocol.wait(&mut connection.out, plan.wait_replicas);
}

/// Counts an answer; false if it was none to a request.
fn take(
    plan: &Plan,
    shared: &Shared,
    record: &mut Record,
    connection: &mut Connection,
    answer: &Answer<'_>,
    now: u64,
) -> bool {
    let Some(pending) = connection.pending.pop_front() else { return false };
    if pending.part == Part::Wait {
        return confirm(plan, shared, record, connection, answer, now);
    }
    if let Answer::Refused(text) = answer {
        record.error(text, now);
        return pending.part != Part::Select;
    }
    if pending.part == Part::Select {
        return false;
    }
    match pending.part {
        Part::ReadFirst => {
            record.answer(Action::Read, pending.due, now);
            let part = Part::WriteThen(pending.due);
            connection.follow.push_back(Pending { part, due: now, ..pending });
        }
        Part::Whole(Action::Read) => record.answer(Action::Read, pending.due, now),
        _ if plan.waits != Waits::None => connection.held.push(pending),
        _ => written(shared, record, pending, now),
    }
    if *answer == Answer::Missing {
        record.missing += 1;
    }
    true
}

/// The answer to a wait: all writes before it are done.
fn confirm(
    plan: &Plan,
    shared: &Shared,
    record: &mut Record,
    connection: &mut Connection,
    answer: &Answer<'_>,
    now: u64,
) -> bool {
    let enough = matches!(answer, Answer::Number(count) if *count >= i64::from(plan.wait_replicas));
    for pending in connection.held.drain(..) {
        match answer {
            _ if enough => written(shared, record, pending, now),
            Answer::Refused(text) => record.error(text, now),
            _ => record.error(TOO_FEW, now),
        }
    }
    false
}

fn written(shared: &Shared, record: &mut Record, pending: Pending, now: u64) {
    match pending.part {
        Part::Whole(Action::Insert) => {
            shared.inserted.fetch_add(1, Relaxed);
            record.answer(Action::Insert, pending.due, now);
        }
        Part::WriteThen(began) => {
            record.answer(Action::Update, pending.due, now);
            record.answer(Action::ReadModifyWrite, began, now);
        }
        _ => record.answer(Action::Update, pending.due, now),
    }
}

/// Letters and digits without an order.
fn noise(bytes: usize) -> Vec<u8> {
    let mut random = sartor_core::random::Random::new(0x5a27);
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    (0..bytes).map(|_| letters[random.below(letters.len() as u64) as usize]).collect()
}
