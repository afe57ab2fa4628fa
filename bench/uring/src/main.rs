//! An echo server over io_uring, beside `sartor bench --echo` over epoll: what a change of transport could win.
//!
//! `uring-echo HOST:PORT VALUE_BYTES [WAY...]`; ways: `multi` (a receive that goes on, into buffers that the kernel
//! chooses), `zc` (sends without a copy), `sqpoll` (a thread of the kernel takes what is submitted), `coop` (completions
//! are worked on when the loop asks for them).
//!
//! Like the other one it answers each `*` with the same value; each connection has one receive and one send under way.

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::{env, io};

/// Answers that lie ready.
const READY: usize = 4096;
const BUFFERS: u16 = 256;
const BUFFER_BYTES: usize = 16 << 10;
/// The id that the kernel knows our buffers by.
const GROUP: u16 = 7;
/// What a completion is of, in the low bits of its user data; the rest is the connection.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// Buffers that the kernel chooses from, and the ring that gives them back to it.
struct Buffers {
    ring: *mut BufRingEntry,
    bytes: Vec<u8>,
    tail: u16,
}

impl Buffers {
    fn new(ring: &IoUring) -> io::Result<Buffers> {
        let layout =
            std::alloc::Layout::from_size_align(usize::from(BUFFERS) * size_of::<BufRingEntry>(), 4096)
                .map_err(io::Error::other)?;
        // SAFETY: the layout is not empty, the memory is zeroed, and lives as long as the process.
        let entries = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<BufRingEntry>();
        // SAFETY: it has room for BUFFERS entries, is aligned to a page and never freed.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)? };
        let mut buffers =
            Buffers { ring: entries, bytes: vec![0; usize::from(BUFFERS) * BUFFER_BYTES], tail: 0 };
        (0..BUFFERS).for_each(|id| buffers.give_back(id));
        Ok(buffers)
    }

    fn get(&self, id: u16, len: usize) -> &[u8] {
        let from = usize::from(id) * BUFFER_BYTES;
        &self.bytes[from..from + len]
    }

    fn give_back(&mut self, id: u16) {
        let address = self.get(id, 0).as_ptr() as u64;
        // SAFETY: the index is below BUFFERS, and the kernel does not look at this entry before the tail has passed it.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail of a ring of buffers lies in its first entry; the kernel reads it as we write it.
        unsafe { (*BufRingEntry::tail(self.ring).cast::<AtomicU16>()).store(self.tail, Ordering::Release) };
    }
}

struct Peer {
    stream: TcpStream,
    scratch: Box<[u8]>,
    /// Bytes that are still to be answered with.
    owed: usize,
    sending: bool,
    receiving: bool,
    gone: bool,
}

struct Ways {
    multi: bool,
    zero_copy: bool,
}

struct Echo {
    ring: IoUring,
    ways: Ways,
    listener: TcpListener,
    buffers: Option<Buffers>,
    peers: Vec<Option<Peer>>,
    answers: Vec<u8>,
    answer_bytes: usize,
}

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [address, value_bytes, ways @ ..] = &words[..] else {
        eprintln!("usage: uring-echo HOST:PORT VALUE_BYTES [multi] [zc] [sqpoll] [coop]");
        std::process::exit(2);
    };
    let value_bytes = value_bytes.parse().map_err(io::Error::other)?;
    let has = |way: &str| ways.iter().any(|word| word == way);
    let mut builder = IoUring::builder();
    builder.setup_cqsize(16384);
    if has("sqpoll") {
        builder.setup_sqpoll(50);
    } else if has("coop") {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    let ring = builder.build(4096)?;
    let buffers = if has("multi") { Some(Buffers::new(&ring)?) } else { None };
    let ways = Ways { multi: has("multi"), zero_copy: has("zc") };
    let answer = format!("${value_bytes}\r\n{}\r\n", "x".repeat(value_bytes));
    let answers = answer.repeat(READY).into_bytes();
    let listener = TcpListener::bind(address)?;
    let answer_bytes = answer.len();
    Echo { ring, ways, listener, buffers, peers: Vec::new(), answers, answer_bytes }.run()
}

impl Echo {
    fn run(&mut self) -> io::Result<()> {
        self.accept()?;
        let mut done = Vec::new();
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                submitted => submitted?,
            };
            done.extend(
                self.ring.completion().map(|entry| (entry.user_data(), entry.result(), entry.flags())),
            );
            for (data, result, flags) in done.drain(..) {
                match data & 3 {
                    ACCEPT => self.on_accepted(result)?,
                    RECEIVE => self.on_received((data >> 2) as usize, result, flags)?,
                    _ => self.on_sent((data >> 2) as usize, result, flags)?,
                }
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: what entries point at, peers' buffers and the answers, is kept until their completion came.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let listener = Fd(self.listener.as_raw_fd());
        let entry = opcode::Accept::new(listener, std::ptr::null_mut(), std::ptr::null_mut()).build();
        self.push(&entry.user_data(ACCEPT))
    }

    fn on_accepted(&mut self, result: i32) -> io::Result<()> {
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let stream = unsafe { <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(result) };
        stream.set_nodelay(true)?;
        let index = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        let scratch = vec![0; if self.ways.multi { 0 } else { BUFFER_BYTES }].into();
        let peer = Peer { stream, scratch, owed: 0, sending: false, receiving: false, gone: false };
        match self.peers.get_mut(index) {
            Some(place) => *place = Some(peer),
            None => self.peers.push(Some(peer)),
        }
        self.receive(index)?;
        self.accept()
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let Some(peer) = self.peers[index].as_mut() else { return Ok(()) };
        peer.receiving = true;
        let stream = Fd(peer.stream.as_raw_fd());
        let entry = match self.ways.multi {
            true => opcode::RecvMulti::new(stream, GROUP).build(),
            false => opcode::Recv::new(stream, peer.scratch.as_mut_ptr(), BUFFER_BYTES as u32).build(),
        };
        self.push(&entry.user_data((index as u64) << 2 | RECEIVE))
    }

    fn on_received(&mut self, index: usize, result: i32, flags: u32) -> io::Result<()> {
        let Some(peer) = self.peers[index].as_mut() else { return Ok(()) };
        peer.receiving = cqueue::more(flags);
        if let Ok(len) = usize::try_from(result) {
            let chosen = cqueue::buffer_select(flags);
            let bytes = match (chosen, &self.buffers) {
                (Some(id), Some(buffers)) => buffers.get(id, len),
                _ => &peer.scratch[..len.min(peer.scratch.len())],
            };
            peer.owed += bytes.iter().filter(|byte| **byte == b'*').count() * self.answer_bytes;
            if let (Some(id), Some(buffers)) = (chosen, &mut self.buffers) {
                buffers.give_back(id);
            }
        }
        // No buffers left is no end: they are given back by the time of the next receive.
        let ended = result == 0 || (result < 0 && result != -105);
        peer.gone |= ended;
        let again = !peer.receiving && !peer.gone;
        self.send(index)?;
        if again { self.receive(index) } else { self.maybe_forget(index) }
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let Some(peer) = self.peers[index].as_mut() else { return Ok(()) };
        if peer.sending || peer.owed == 0 || peer.gone {
            return Ok(());
        }
        peer.sending = true;
        let ready = self.answers.len();
        let from = (ready - peer.owed % ready) % ready;
        let piece = &self.answers[from..(from + peer.owed).min(ready)];
        let (stream, start, len) = (Fd(peer.stream.as_raw_fd()), piece.as_ptr(), piece.len() as u32);
        let entry = match self.ways.zero_copy {
            true => opcode::SendZc::new(stream, start, len).build(),
            false => opcode::Send::new(stream, start, len).build(),
        };
        self.push(&entry.user_data((index as u64) << 2 | SEND))
    }

    fn on_sent(&mut self, index: usize, result: i32, flags: u32) -> io::Result<()> {
        let Some(peer) = self.peers[index].as_mut() else { return Ok(()) };
        // A send without a copy tells a second time when its memory is free; ours always is.
        if cqueue::notif(flags) {
            return Ok(());
        }
        peer.sending = false;
        match usize::try_from(result) {
            Ok(len) => peer.owed -= len,
            Err(_) => peer.gone = true,
        }
        self.send(index)?;
        self.maybe_forget(index)
    }

    fn maybe_forget(&mut self, index: usize) -> io::Result<()> {
        if self.peers[index].as_ref().is_some_and(|peer| peer.gone && !peer.sending && !peer.receiving) {
            self.peers[index] = None;
        }
        Ok(())
    }
}
