//! A connection to a store: frames out, frames in, within a time.

use super::wire::FRAME_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a connection may take to be made; a host that is there answers at once.
const CONNECT: Duration = Duration::from_secs(3);
/// What one read takes at most.
const READ_BYTES_MAX: usize = 1 << 16;

/// A connection.
pub struct Stream {
    socket: Socket,
    patience: Duration,
    input: BytesMut,
    scratch: Box<[u8]>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to `host:port`, or to a path that begins with a slash. No call waits for longer than twice `patience`.
    pub fn open(address: &str, patience: Duration) -> Result<Stream, String> {
        let failed = |error: std::io::Error| format!("cannot connect: {error}");
        let socket = if address.starts_with('/') {
            let socket = UnixStream::connect(address).map_err(failed)?;
            socket.set_read_timeout(Some(patience)).map_err(failed)?;
            socket.set_write_timeout(Some(patience)).map_err(failed)?;
            Socket::Unix(socket)
        } else {
            let socket = connect(address, patience).map_err(failed)?;
            socket.set_nodelay(true).map_err(failed)?;
            socket.set_read_timeout(Some(patience)).map_err(failed)?;
            socket.set_write_timeout(Some(patience)).map_err(failed)?;
            Socket::Tcp(socket)
        };
        let scratch = vec![0; READ_BYTES_MAX].into_boxed_slice();
        Ok(Stream { socket, patience, input: BytesMut::new(), scratch })
    }

    /// Sends a frame and waits for the answer.
    pub fn exchange(&mut self, frame: &[u8]) -> Result<Bytes, String> {
        let deadline = Instant::now() + self.patience;
        let mut rest = frame;
        while !rest.is_empty() {
            let sent = match &mut self.socket {
                Socket::Tcp(socket) => socket.write(rest),
                Socket::Unix(socket) => socket.write(rest),
            };
            rest = &rest[self.moved(sent, deadline)?..];
        }
        let len = loop {
            if let Some(head) = self.input.first_chunk::<4>() {
                break u32::from_le_bytes(*head) as usize;
            }
            self.read(deadline)?;
        };
        if len > FRAME_BYTES_MAX {
            return Err(format!("it announced {len} bytes; a frame has up to {FRAME_BYTES_MAX}"));
        }
        while self.input.len() < 4 + len {
            self.read(deadline)?;
        }
        let mut frame = self.input.split_to(4 + len);
        if !self.input.is_empty() {
            return Err("it sent more than one frame for one".into());
        }
        Ok(frame.split_off(4).freeze())
    }

    fn read(&mut self, deadline: Instant) -> Result<(), String> {
        let got = match &mut self.socket {
            Socket::Tcp(socket) => socket.read(&mut self.scratch),
            Socket::Unix(socket) => socket.read(&mut self.scratch),
        };
        let got = self.moved(got, deadline)?;
        self.input.extend_from_slice(&self.scratch[..got]);
        Ok(())
    }

    /// How many bytes a call has moved, if that is what it did.
    fn moved(&self, bytes: std::io::Result<usize>, deadline: Instant) -> Result<usize, String> {
        let is_late = match bytes {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(bytes) if Instant::now() < deadline => return Ok(bytes),
            Ok(_) => true,
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => Instant::now() >= deadline,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => true,
                _ => return Err(format!("the connection broke: {error}")),
            },
        };
        if is_late { Err(format!("it did not answer within {:?}", self.patience)) } else { Ok(0) }
    }
}

fn connect(address: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience.min(CONNECT)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
