//! Frames between processes: one TCP connection each way, opened by who has something to say.
//!
//! ```text
//!  "SRTR" │ version: u8 │ to worker: u8 │ cluster: u64      once
//!  length: u32 │ frame                                      again and again
//! ```
//!
//! A link promises nothing: frames are lost when it breaks or its buffer is full, and the core
//! sends again what matters.

use bytes::{Buf, Bytes, BytesMut};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use sartor_core::ids::WorkerId;
use sartor_core::time::{Micros, millis};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};

const MAGIC: &[u8; 4] = b"SRTR";
const VERSION: u8 = 1;
const HELLO_BYTES: usize = 14;
/// The largest request or answer, and room for what is around it.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// Bytes that wait for a peer that does not read; more are dropped.
const BUFFER_BYTES_MAX: usize = 64 << 20;
const RETRY_US: Micros = millis(100);
/// A peer that accepts a connection and says nothing is no peer.
const INCOMING_MAX: usize = 4096;
const READ_BYTES: usize = 256 << 10;

/// What a token is about: its low bits.
pub const KINDS: usize = 4;
/// Outgoing links.
pub const OUT: usize = 2;
/// Incoming links.
pub const IN: usize = 3;

/// A link that was accepted here but is for another worker.
pub struct Handover {
    /// The worker it is for.
    pub worker: u8,
    stream: TcpStream,
    buffer: BytesMut,
}

/// All links of one event loop.
pub struct Links {
    cluster: u64,
    me: u8,
    listener: Option<TcpListener>,
    out: Vec<Outgoing>,
    /// A peer's links: one for each address at which it may be.
    places: BTreeMap<WorkerId, Vec<usize>>,
    incoming: Vec<Option<Incoming>>,
    scratch: Box<[u8]>,
    /// Links for other workers.
    pub handovers: Vec<Handover>,
}

struct Outgoing {
    to: WorkerId,
    addr: String,
    stream: Option<TcpStream>,
    connected: bool,
    /// The last attempt to reach it came to nothing.
    failed: bool,
    buffer: VecDeque<u8>,
    retry_at: Micros,
}

struct Incoming {
    stream: TcpStream,
    buffer: BytesMut,
    greeted: bool,
}

impl Links {
    /// Links of the worker `me` of a node in this cluster; the first worker listens for all.
    pub fn new(cluster: u64, me: u8, listener: Option<TcpListener>) -> Links {
        Links {
            cluster,
            me,
            listener,
            out: Vec::new(),
            places: BTreeMap::new(),
            incoming: Vec::new(),
            scratch: vec![0; READ_BYTES].into(),
            handovers: Vec::new(),
        }
    }

    /// Listens.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.listener {
            Some(listener) => registry.register(listener, token, Interest::READABLE),
            None => Ok(()),
        }
    }

    /// Where a peer is reached.
    pub fn set_addr(&mut self, to: WorkerId, addr: &str) {
        self.set_addrs(to, &[addr]);
    }

    /// Where a peer may be reached: each of these addresses gets all that is sent to it.
    pub fn set_addrs<A: AsRef<str>>(&mut self, to: WorkerId, addrs: &[A]) {
        let places = self.places.entry(to).or_default();
        while places.len() < addrs.len() {
            places.push(self.out.len());
            self.out.push(Outgoing::to(to));
        }
        for (place, addr) in places.iter().zip(addrs) {
            let link = &mut self.out[*place];
            if link.addr != addr.as_ref() {
                link.addr = addr.as_ref().to_owned();
                link.drop_stream(0);
            }
        }
    }

    /// For each address of a peer, whether it could not be reached when it was last tried.
    pub fn failures(&self, to: WorkerId) -> impl Iterator<Item = bool> {
        self.places.get(&to).into_iter().flatten().map(|&place| self.out[place].failed)
    }

    /// Whether a peer could not be reached when it was last tried.
    pub fn is_unreachable(&self, to: WorkerId) -> bool {
        self.places.contains_key(&to) && self.failures(to).all(|failed| failed)
    }

    /// Drops what waits to be sent, and the connections it would go through.
    pub fn fall_silent(&mut self) {
        self.out.iter_mut().for_each(|link| link.drop_stream(0));
    }

    /// Tries to reach every peer to which there is no connection.
    pub fn probe(&mut self, now: Micros, registry: &Registry) {
        for (index, link) in self.out.iter_mut().enumerate() {
            if link.stream.is_none() && now >= link.retry_at {
                link.open(now, registry, Token(index * KINDS + OUT), self.cluster);
            }
        }
    }

    /// Hands a frame to a link, to be written by [`Links::flush`].
    pub fn send(&mut self, to: WorkerId, frame: &Bytes) {
        for &place in self.places.get(&to).into_iter().flatten() {
            let link = &mut self.out[place];
            if link.buffer.len() + frame.len() + 4 <= BUFFER_BYTES_MAX.max(frame.len() + 4) {
                link.buffer.extend((frame.len() as u32).to_le_bytes());
                link.buffer.extend(&frame[..]);
            }
        }
    }

    /// Connects where there is something to say, and writes what can be written.
    pub fn flush(&mut self, now: Micros, registry: &Registry) {
        for (index, link) in self.out.iter_mut().enumerate() {
            if link.buffer.is_empty() {
                continue;
            }
            if link.stream.is_none() {
                if now < link.retry_at {
                    // Nobody is there: what waits would only be old when it arrives.
                    link.buffer.clear();
                    continue;
                }
                link.open(now, registry, Token(index * KINDS + OUT), self.cluster);
            }
            if link.write().is_err() {
                link.fail(now);
            }
        }
    }

    /// An outgoing link became writable, or broke.
    pub fn on_out_event(&mut self, now: Micros, token: Token, closed: bool) {
        let Some(link) = self.out.get_mut(token.0 / KINDS) else { return };
        let failed = link.stream.as_ref().is_some_and(|stream| !matches!(stream.take_error(), Ok(None)));
        if failed || closed {
            return link.fail(now);
        }
        if link.stream.as_ref().is_some_and(|stream| stream.peer_addr().is_ok()) {
            (link.connected, link.failed) = (true, false);
        }
        if link.write().is_err() {
            link.fail(now);
        }
    }

    /// Accepts whoever waits.
    pub fn accept(&mut self, registry: &Registry) {
        loop {
            let stream = match self.listener.as_ref().map(TcpListener::accept) {
                Some(Ok((stream, _))) => stream,
                Some(Err(error)) if error.kind() == ErrorKind::Interrupted => continue,
                // Peers try again by themselves.
                _ => return,
            };
            self.add_incoming(registry, Incoming { stream, buffer: BytesMut::new(), greeted: false });
        }
    }

    /// Takes over a link that another worker accepted; its frames so far.
    pub fn adopt(&mut self, registry: &Registry, handover: Handover, frames: &mut Vec<Bytes>) {
        let incoming = Incoming { stream: handover.stream, buffer: handover.buffer, greeted: true };
        if let Some(index) = self.add_incoming(registry, incoming) {
            self.on_in_event(registry, Token(index * KINDS + IN), frames);
        }
    }

    fn add_incoming(&mut self, registry: &Registry, mut incoming: Incoming) -> Option<usize> {
        let free = self.incoming.iter().position(Option::is_none);
        let index = free.unwrap_or(self.incoming.len());
        if index >= INCOMING_MAX {
            return None;
        }
        let _ = incoming.stream.set_nodelay(true);
        registry.register(&mut incoming.stream, Token(index * KINDS + IN), Interest::READABLE).ok()?;
        if free.is_none() {
            self.incoming.push(None);
        }
        self.incoming[index] = Some(incoming);
        Some(index)
    }

    /// An incoming link has something; its frames are added to `frames`.
    pub fn on_in_event(&mut self, registry: &Registry, token: Token, frames: &mut Vec<Bytes>) {
        let index = token.0 / KINDS;
        let Some(incoming) = self.incoming.get_mut(index).and_then(Option::as_mut) else { return };
        let ended = incoming.read(&mut self.scratch).is_err();
        let was_greeted = incoming.greeted;
        let split = incoming.split(self.cluster, frames);
        if let Ok(Some(worker)) = split
            && worker != self.me
            && !was_greeted
            && let Some(mut incoming) = self.incoming[index].take()
        {
            let _ = registry.deregister(&mut incoming.stream);
            let Incoming { stream, buffer, .. } = incoming;
            return self.handovers.push(Handover { worker, stream, buffer });
        }
        if (ended || split.is_err())
            && let Some(mut incoming) = self.incoming[index].take()
        {
            let _ = registry.deregister(&mut incoming.stream);
        }
    }
}

impl Outgoing {
    fn to(to: WorkerId) -> Outgoing {
        let (addr, buffer) = (String::new(), VecDeque::new());
        Outgoing { to, addr, stream: None, connected: false, failed: false, buffer, retry_at: 0 }
    }

    fn open(&mut self, now: Micros, registry: &Registry, token: Token, cluster: u64) {
        if self.connect(registry, token, cluster).is_err() {
            self.fail(now);
        }
    }

    fn fail(&mut self, now: Micros) {
        self.drop_stream(now + RETRY_US);
        self.failed = true;
    }

    fn connect(&mut self, registry: &Registry, token: Token, cluster: u64) -> io::Result<()> {
        let addr = resolve(&self.addr)?;
        let mut stream = TcpStream::connect(addr)?;
        let _ = stream.set_nodelay(true);
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let mut hello = Vec::with_capacity(HELLO_BYTES);
        hello.extend_from_slice(MAGIC);
        hello.extend_from_slice(&[VERSION, self.to.worker]);
        hello.extend_from_slice(&cluster.to_le_bytes());
        hello.into_iter().rev().for_each(|byte| self.buffer.push_front(byte));
        self.stream = Some(stream);
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.connected && !self.buffer.is_empty() {
            match stream.write(self.buffer.as_slices().0) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.buffer.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.buffer.is_empty() && self.buffer.capacity() > 1 << 20 {
            self.buffer = VecDeque::new();
        }
        Ok(())
    }

    /// Closes; a frame that was half written is lost, and so are those behind it.
    fn drop_stream(&mut self, retry_at: Micros) {
        self.stream = None;
        self.connected = false;
        self.buffer = VecDeque::new();
        self.retry_at = retry_at;
    }
}

impl Incoming {
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.buffer.extend_from_slice(&scratch[..read]);
                    // Less than there is room for: that was all, and what comes now is a new event.
                    if read < scratch.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Cuts complete frames off; who the link is for, when it has just said so.
    fn split(&mut self, cluster: u64, frames: &mut Vec<Bytes>) -> io::Result<Option<u8>> {
        let mut worker = None;
        if !self.greeted {
            if self.buffer.len() < HELLO_BYTES {
                return Ok(None);
            }
            let mut hello = self.buffer.split_to(HELLO_BYTES);
            let (magic, version, to) = (hello.split_to(4), hello.get_u8(), hello.get_u8());
            if &magic[..] != MAGIC || version != VERSION || hello.get_u64_le() != cluster {
                return Err(ErrorKind::InvalidData.into());
            }
            self.greeted = true;
            worker = Some(to);
            if to != 0 {
                return Ok(worker);
            }
        }
        while self.buffer.len() >= 4 {
            let len = (&self.buffer[..4]).get_u32_le() as usize;
            if len > FRAME_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            if self.buffer.len() < 4 + len {
                break;
            }
            self.buffer.advance(4);
            frames.push(self.buffer.split_to(len).freeze());
        }
        if self.buffer.is_empty() {
            // The frames share the old buffer; it goes when they do.
            self.buffer = BytesMut::new();
        }
        Ok(worker)
    }
}

/// The first address of a name.
pub fn resolve(addr: &str) -> io::Result<SocketAddr> {
    addr.to_socket_addrs()?.next().ok_or_else(|| ErrorKind::NotFound.into())
}
