//! A connection that blocks, but never longer than its timeout, and the buffer that its answers are read from.

use super::address::{Address, Place};
use super::own;
use sartor_core::datalet::DataletError;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connection that was silent for so long may have been closed: it is looked at before it is trusted with writes.
const TRUST: Duration = Duration::from_secs(1);
/// The buffer to begin with, and to come back to.
const BUFFER_BYTES: usize = 64 << 10;
/// A line that is longer is no answer.
const LINE_BYTES_MAX: usize = 64 << 10;
/// A value that is longer is none of ours.
const BULK_BYTES_MAX: usize = 512 << 20;

/// What went wrong with a connection.
#[derive(Debug)]
pub(super) struct Trouble {
    /// It ended; another one may do.
    pub(super) gone: bool,
    pub(super) text: String,
}

impl Trouble {
    /// What another connection does not mend.
    pub(super) fn wrong(text: impl Into<String>) -> Trouble {
        Trouble { gone: false, text: text.into() }
    }

    fn of(error: &io::Error, timeout: Duration) -> Trouble {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Trouble::wrong(format!("no answer within {} ms", timeout.as_millis()))
            }
            ErrorKind::UnexpectedEof => Trouble { gone: true, text: "the connection was closed".into() },
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Trouble { gone: true, text: format!("the connection broke ({error})") }
            }
            _ => Trouble::wrong(error.to_string()),
        }
    }

    /// As the owner of the store hears of it.
    pub(super) fn at(self, address: &Address) -> DataletError {
        DataletError::Failed(format!("{address}: {}", self.text))
    }
}

/// A place, and the connection to it that is there now.
pub(super) struct Link {
    pub(super) address: Address,
    pub(super) wire: Wire,
    used: Instant,
}

impl Link {
    /// Connects.
    pub(super) fn open(address: Address) -> Result<Link, DataletError> {
        match Wire::connect(&address) {
            Ok(wire) => Ok(Link { address, wire, used: Instant::now() }),
            Err(trouble) => Err(trouble.at(&address)),
        }
    }

    /// Connects anew.
    pub(super) fn renew(&mut self) -> Result<(), Trouble> {
        self.wire = Wire::connect(&self.address)?;
        Ok(())
    }

    /// Whether the connection can be used.
    pub(super) fn is_ready(&mut self) -> bool {
        let now = Instant::now();
        let trusted = now.duration_since(self.used) < TRUST;
        self.used = now;
        trusted || self.wire.is_alive()
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    timeout: Duration,
    /// What has come and was not read yet is `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Wire {
    /// Connects.
    fn connect(address: &Address) -> Result<Wire, Trouble> {
        let timeout = address.timeout;
        let failed =
            |error: io::Error| Trouble::wrong(format!("cannot connect: {error}; is it running there?"));
        let stream = match &address.place {
            Place::Tcp(host) => Stream::Tcp(connect_tcp(host, timeout).map_err(failed)?),
            Place::Unix(path) => Stream::Unix(own::connect(path).map_err(failed)?),
        };
        let wire = Wire { stream, timeout, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 };
        wire.set_timeouts().map_err(failed)?;
        Ok(wire)
    }

    fn set_timeouts(&self) -> io::Result<()> {
        let timeout = Some(self.timeout);
        match &self.stream {
            Stream::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Whether it has not been closed; for when nothing is on its way.
    fn is_alive(&mut self) -> bool {
        if self.set_nonblocking(true).is_err() {
            return false;
        }
        let mut byte = [0];
        // Bytes that nobody asked for are as bad as an end.
        let silent = matches!(self.receive(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.set_nonblocking(false).is_ok() && silent
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            Stream::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    /// Sends all of it.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let sent = match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        };
        sent.map_err(|error| Trouble::of(&error, self.timeout))
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Result<&[u8], Trouble> {
        let mut looked = 0;
        loop {
            let come = &self.buffer[self.start + looked..self.end];
            if let Some(place) = come.iter().position(|&byte| byte == b'\n') {
                let line = self.start..self.start + looked + place;
                self.start = line.end + 1;
                let line = &self.buffer[line];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            looked = self.end - self.start;
            if looked > LINE_BYTES_MAX {
                return Err(Trouble::wrong("it answers with a line that does not end; is it such a store?"));
            }
            self.fill()?;
        }
    }

    /// The next `len` bytes, and the end of line behind them, which is left out. Memory is taken as they come, not as
    /// they are announced.
    pub(super) fn bulk(&mut self, len: usize) -> Result<&[u8], Trouble> {
        if len > BULK_BYTES_MAX {
            return Err(Trouble::wrong(format!("it answers with a value of {len} bytes")));
        }
        while self.end - self.start < len + 2 {
            self.fill()?;
        }
        let start = self.start;
        self.start += len + 2;
        if &self.buffer[start + len..start + len + 2] != b"\r\n" {
            return Err(Trouble::wrong("it answers with a value that ends elsewhere than announced"));
        }
        Ok(&self.buffer[start..start + len])
    }

    /// Reads more into the buffer.
    fn fill(&mut self) -> Result<(), Trouble> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // One huge value must not keep its room for ever.
            if self.buffer.len() > 16 * BUFFER_BYTES {
                self.buffer = vec![0; BUFFER_BYTES];
            }
        }
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end > self.buffer.len() / 2 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = loop {
            match self.receive(&mut buffer[self.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        self.buffer = buffer;
        match received {
            Ok(0) => Err(Trouble::of(&ErrorKind::UnexpectedEof.into(), self.timeout)),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) => Err(Trouble::of(&error, self.timeout)),
        }
    }
}

fn connect_tcp(host: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(ErrorKind::NotFound);
    for addr in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
