//! One connection: what it asked and has no answer to, and the bytes on their way.

use super::protocol::{Answer, Parsed, Protocol};
use sartor_core::workload::Action;
use sartor_server::socket::Stream;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

/// A first attempt to connect again comes after this time, each further one after twice as long, up to the last.
const BACKOFF_MIN_NS: u64 = 10_000_000;
const BACKOFF_MAX_NS: u64 = 1_000_000_000;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A request of its own.
    Whole(Action),
    /// The read of a read-modify-write.
    ReadFirst,
    /// The write of one, whose read was due at this time.
    WriteThen(u64),
    /// The wait for replicas.
    Wait,
    /// The choice of a table.
    Select,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// What it is.
    pub part: Part,
    /// When it should have been sent, in ns of the run's clock.
    pub due: u64,
    /// Which record.
    pub record: u64,
    /// What a read-modify-write writes.
    pub value_bytes: u32,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests can be sent.
    Up,
    /// It is being made.
    Connecting,
    /// It is made again at this time.
    Down(u64),
}

/// A connection.
pub struct Connection {
    /// Which of the targets.
    pub target: usize,
    /// How it stands.
    pub state: State,
    stream: Option<Stream>,
    /// Requests to send; the first `sent` bytes are gone.
    pub out: Vec<u8>,
    sent: usize,
    /// The begin of an answer that is not all there.
    rest: Vec<u8>,
    /// Bytes of an answer that are still to come, and are skipped.
    skip: usize,
    /// Requests without an answer, in order.
    pub pending: VecDeque<Pending>,
    /// Writes that were answered, and wait for their replicas.
    pub held: Vec<Pending>,
    /// Writes that follow a read.
    pub follow: VecDeque<Pending>,
    /// Writes since the last wait for replicas.
    pub unconfirmed: bool,
    /// Whether it is in the line of those that can take a request.
    pub in_line: bool,
    backoff_ns: u64,
}

/// What reading led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    /// All that came was taken.
    Taken,
    /// It is dead, or speaks something else.
    Dead,
}

impl Connection {
    /// A connection that is there.
    pub fn new(target: usize, stream: Stream) -> Connection {
        Connection {
            target,
            state: State::Up,
            stream: Some(stream),
            out: Vec::new(),
            sent: 0,
            rest: Vec::new(),
            skip: 0,
            pending: VecDeque::new(),
            held: Vec::new(),
            follow: VecDeque::new(),
            unconfirmed: false,
            in_line: false,
            backoff_ns: BACKOFF_MIN_NS,
        }
    }

    /// Chooses a table, before anything else.
    pub fn select(&mut self, protocol: Protocol, table: &str) {
        self.pending.push_back(Pending { part: Part::Select, due: 0, record: 0, value_bytes: 0 });
        protocol.select(&mut self.out, table);
    }

    /// The socket.
    pub fn stream(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    /// Whether nothing is on its way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.held.is_empty()
    }

    /// A new socket, not yet connected.
    pub fn restart(&mut self, stream: Stream) {
        self.stream = Some(stream);
        self.state = State::Connecting;
    }

    /// It is there.
    pub fn up(&mut self) {
        self.state = State::Up;
        self.backoff_ns = BACKOFF_MIN_NS;
    }

    /// It is dead: what was on its way is lost. To be made again after a while.
    pub fn down(&mut self, now: u64) {
        self.stream = None;
        self.out.clear();
        self.rest.clear();
        (self.sent, self.skip) = (0, 0);
        self.pending.clear();
        self.held.clear();
        self.follow.clear();
        self.unconfirmed = false;
        self.state = State::Down(now + self.backoff_ns);
        self.backoff_ns = (self.backoff_ns * 2).min(BACKOFF_MAX_NS);
    }

    /// Sends what goes; false if it is dead.
    pub fn flush(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return true };
        while self.sent < self.out.len() {
            match stream.write(&self.out[self.sent..]) {
                Ok(0) => return false,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.out.clear();
        self.sent = 0;
        true
    }

    /// Reads what is there and hands out the answers in it, each with the time it was read at.
    pub fn read(
        &mut self,
        protocol: Protocol,
        scratch: &mut [u8],
        clock: &dyn Fn() -> u64,
        take: &mut dyn FnMut(&mut Connection, Answer<'_>, u64),
    ) -> Reading {
        loop {
            let kept = self.rest.len();
            if kept >= scratch.len() {
                return Reading::Dead;
            }
            scratch[..kept].copy_from_slice(&self.rest);
            self.rest.clear();
            let Some(stream) = &mut self.stream else { return Reading::Taken };
            let count = match stream.read(&mut scratch[kept..]) {
                Ok(0) => return Reading::Dead,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.rest.extend_from_slice(&scratch[..kept]);
                    return Reading::Taken;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(_) => return Reading::Dead,
            };
            if !self.take_all(protocol, &scratch[..kept + count], clock(), take) {
                return Reading::Dead;
            }
            // A short read took all there was: the next bytes make an event.
            if count > 0 && kept + count < scratch.len() {
                return Reading::Taken;
            }
        }
    }

    /// Takes the answers in these bytes; false if they are none.
    fn take_all(
        &mut self,
        protocol: Protocol,
        bytes: &[u8],
        now: u64,
        take: &mut dyn FnMut(&mut Connection, Answer<'_>, u64),
    ) -> bool {
        let mut at = 0;
        if self.skip > 0 {
            at = self.skip.min(bytes.len());
            self.skip -= at;
            if self.skip > 0 {
                return true;
            }
            take(self, Answer::Done, now);
        }
        while at < bytes.len() {
            match protocol.parse(&bytes[at..]) {
                Parsed::Incomplete => {
                    self.rest.extend_from_slice(&bytes[at..]);
                    return true;
                }
                Parsed::Broken => return false,
                Parsed::Answer(..) if self.pending.is_empty() => return false,
                Parsed::Answer(answer, length) => {
                    let left = bytes.len() - at;
                    if length > left {
                        self.skip = length - left;
                        return true;
                    }
                    at += length;
                    take(self, answer, now);
                }
            }
        }
        true
    }
}
