//! A client's socket with its buffers: what waits, what is blocked, what may go on.

use crate::front::connection::Connection;
use crate::resp::parse::{Args, Parser};
use crate::socket::Stream;
use bytes::BytesMut;
use sartor_core::time::{Micros, Now};
use std::io::{ErrorKind, Write};

/// Bytes read at once.
pub const READ_BYTES: usize = 64 << 10;
/// Replies that wait for a client to read them, before its next requests are looked at.
const OUTPUT_SOFT_MAX: usize = 1 << 20;

/// Replies wait so long at most for others of the same pipeline, so that all leave at once.
pub const GATHER_US: Micros = 200;

/// A client's socket and what belongs to it.
pub struct Client {
    /// The socket.
    pub stream: Stream,
    /// What was read and not used yet.
    pub buffer: BytesMut,
    /// Where the parser stands in it.
    pub parser: Parser,
    /// The connection's state.
    pub connection: Connection,
    /// There may be more to read.
    pub readable: bool,
    /// It has closed its side, or an error waits to be read.
    pub ended: bool,
    /// The connection is gone both ways.
    pub broken: bool,
    /// How much of `connection.out` is sent.
    pub written: usize,
    /// A request that waits until earlier ones are answered.
    pub held: Option<Args>,
    /// Complete requests were left because of a limit.
    pub stalled: bool,
    /// Its next request waits for those in the worker's pool.
    pub waits: bool,
    /// In the list of those that go on without a new event.
    pub queued: bool,
    /// In the list of those with something to write.
    pub dirty: bool,
    /// Since when replies wait for others of the same pipeline.
    pub gathers: Option<Micros>,
    /// What it counts for in the worker's sum of buffers.
    pub charged: usize,
    /// When something was read.
    pub last_read: Micros,
    /// When something was written, or nothing was waiting.
    pub last_progress: Micros,
}

impl Client {
    /// A fresh connection on a socket.
    pub fn new(stream: Stream, connection: Connection, now: Now) -> Client {
        Client {
            stream,
            buffer: BytesMut::new(),
            parser: Parser::default(),
            connection,
            readable: true,
            ended: false,
            broken: false,
            written: 0,
            held: None,
            stalled: false,
            waits: false,
            queued: false,
            dirty: false,
            gathers: None,
            charged: 0,
            last_read: now.steady_us,
            last_progress: now.steady_us,
        }
    }

    /// What it holds of our memory.
    pub fn bytes(&self) -> usize {
        self.buffer.len() + self.connection.out.len() - self.written + self.connection.held_bytes()
    }

    /// Whether its next request must wait: for answers, or for the client to read them.
    pub fn is_blocked(&self, pipeline_max: usize) -> bool {
        let in_flight = self.connection.in_flight();
        self.connection.closing
            || in_flight >= self.connection.window(pipeline_max)
            || (self.held.is_some() && in_flight > 0)
            || (self.waits && self.connection.is_pooled())
            || self.connection.out.len() - self.written > OUTPUT_SOFT_MAX
    }

    /// How many requests it may have in flight beside those it has.
    pub fn room(&self, pipeline_max: usize) -> usize {
        self.connection.window(pipeline_max).saturating_sub(self.connection.in_flight())
    }

    /// Whether something can be done for it without a new event.
    pub fn goes_on(&self, pipeline_max: usize) -> bool {
        (self.stalled || self.readable) && !self.is_blocked(pipeline_max)
    }

    /// Whether replies should wait yet for those that follow them: parts of a pipeline are answered at several places.
    pub fn gathers(&mut self, now: Now) -> bool {
        let out = self.connection.out.len() - self.written;
        let waits =
            self.connection.in_flight() > 0 && out > 0 && out < READ_BYTES && !self.connection.closing;
        let since = if waits { Some(*self.gathers.get_or_insert(now.steady_us)) } else { None };
        self.gathers = since.filter(|since| now.steady_us < since + GATHER_US);
        self.gathers.is_some()
    }

    /// Writes once; false when the connection is broken.
    pub fn write(&mut self, now: Now, bytes_out: &mut u64) -> bool {
        let out = &mut self.connection.out;
        if self.written < out.len() {
            match self.stream.write(&out[self.written..]) {
                Ok(written) => {
                    self.written += written;
                    self.last_progress = now.steady_us;
                    *bytes_out += written as u64;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return false,
            }
        }
        if self.written >= READ_BYTES && self.written * 2 >= out.len() {
            out.drain(..self.written);
            self.written = 0;
        }
        if self.written == out.len() {
            self.written = 0;
            out.clear();
            if out.capacity() > READ_BYTES {
                *out = Vec::new();
            }
        }
        true
    }
}
