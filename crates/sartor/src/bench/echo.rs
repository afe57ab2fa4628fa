//! `sartor bench --echo ADDRESS`: a server that does nothing but answer, as the limit of what a server can do
//! over sockets. One loop, one read and one write a turn, the same value for every request.
//!
//! It counts requests by their first byte, `*`, which the keys and values of a load do not contain.

use crate::{Failed, say};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use sartor_server::socket::Stream;
use std::io::{self, ErrorKind, Read, Write};

const LISTENER: Token = Token(usize::MAX - 2);
const READ_BYTES: usize = 64 << 10;
/// Answers that lie ready; more are written in several pieces.
const READY: usize = 4096;
const VALUE_MAX: usize = 64 << 10;

/// Serves until the process ends.
pub fn serve(address: &str, value_bytes: usize) -> Result<(), Failed> {
    if value_bytes > VALUE_MAX {
        return Err(Failed::input(format!("--value-bytes can be up to {VALUE_MAX} with --echo")));
    }
    let address = address.parse().map_err(|_| Failed::input("--echo wants HOST:PORT, HOST as numbers"))?;
    let listener = TcpListener::bind(address)
        .map_err(|error| Failed::other(format!("cannot listen at {address}: {error}")))?;
    say(format_args!("echo: answers at {address}"));
    Echo::new(listener, value_bytes)
        .and_then(|mut echo| echo.run())
        .map_err(|error| Failed::other(format!("echo: {error}")))
}

struct Peer {
    stream: Stream,
    /// Bytes that are still owed.
    owed: usize,
}

struct Echo {
    poll: Poll,
    listener: TcpListener,
    peers: Vec<Option<Peer>>,
    answer_bytes: usize,
    answers: Vec<u8>,
}

impl Echo {
    fn new(mut listener: TcpListener, value_bytes: usize) -> io::Result<Echo> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let answer = format!("${value_bytes}\r\n{}\r\n", "x".repeat(value_bytes));
        let answers = answer.repeat(READY.min((16 << 20) / answer.len()).max(1)).into_bytes();
        Ok(Echo { poll, listener, peers: Vec::new(), answer_bytes: answer.len(), answers })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut scratch = vec![0; READ_BYTES];
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                done => done?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(index) => {
                        if !self.turn(index, &mut scratch) {
                            self.peers[index] = None;
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            let free = self.peers.iter().position(Option::is_none);
            let index = free.unwrap_or(self.peers.len());
            let mut stream = Stream::Tcp(stream);
            stream.register(self.poll.registry(), Token(index))?;
            let peer = Some(Peer { stream, owed: 0 });
            match self.peers.get_mut(index) {
                Some(place) => *place = peer,
                None => self.peers.push(peer),
            }
        }
    }

    /// One read, one write; false if the peer is gone.
    fn turn(&mut self, index: usize, scratch: &mut [u8]) -> bool {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return true };
        loop {
            let (count, more) = match peer.stream.read(scratch) {
                Ok(0) => return false,
                Ok(count) => (count, count == scratch.len()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (0, false),
                Err(_) => return false,
            };
            let requests = scratch[..count].iter().filter(|byte| **byte == b'*').count();
            peer.owed += requests * self.answer_bytes;
            while peer.owed > 0 {
                // What is owed ends where an answer ends, and so do those that lie ready.
                let ready = self.answers.len();
                let from = (ready - peer.owed % ready) % ready;
                let piece = &self.answers[from..(from + peer.owed).min(ready)];
                match peer.stream.write(piece) {
                    Ok(count) => peer.owed -= count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => return false,
                }
            }
            if !more {
                return true;
            }
        }
    }
}
