//! The thread that connects to NATS, again and again, and reads what comes.

use super::place::{Login, Place};
use super::protocol::{Frame, Frames, Message, greeting};
use std::io::{Error, ErrorKind, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server that takes longer to let us in is as good as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that takes nothing for so long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection on which nothing comes for so long, though we ask, is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// How long to wait before connecting again; doubled each time up to the second.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A way to a server.
pub(super) struct Link {
    stream: TcpStream,
    pub(super) host: String,
    /// Answers come on subjects below this one.
    pub(super) inbox: String,
    /// The server takes no larger messages, headers included.
    pub(super) max_payload: usize,
}

impl Link {
    /// Writes all of it, or gives up in a while.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        (&self.stream).write_all(bytes)
    }
}

impl Drop for Link {
    /// The thread that reads has the same socket, and learns it from there.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// What this thread tells.
pub(super) enum News {
    Connected(Link),
    /// The server wants a sign of life.
    Ping,
    Message(Message),
    /// The connection ended, or there could not be one.
    Lost(String),
}

/// Connects and reads until nobody wants to hear of it.
pub(super) fn run<T: From<News>>(place: &Place, inbox: &str, worker: &Sender<T>) {
    let mut backoff = BACKOFF_MIN;
    for host in place.hosts.iter().cycle() {
        let mut since = None;
        let lost = match connect(host, &place.login, inbox).map_err(plain) {
            Ok((link, frames)) => {
                since = Some(Instant::now());
                if worker.send(News::Connected(link).into()).is_err() {
                    return;
                }
                format!("the connection to NATS at {host} is lost: {}", read(frames, worker))
            }
            Err(error) => {
                format!("cannot use NATS at {host}: {error}; start it, or correct the URL of the log")
            }
        };
        if worker.send(News::Lost(lost).into()).is_err() {
            return;
        }
        // A server that lets us in and throws us out at once is not asked faster than one that is away.
        if since.is_some_and(|since| since.elapsed() > BACKOFF_MAX) {
            backoff = BACKOFF_MIN;
        }
        sleep(backoff);
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

fn refused(text: &str) -> Error {
    let hint = if text.starts_with("Authorization") { " (user, password or token)" } else { "" };
    Error::other(format!("it says '{text}'{hint}"))
}

/// What the system says of a timeout tells people nothing.
fn plain(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::new(ErrorKind::TimedOut, "it is silent"),
        _ => error,
    }
}

fn open(host: &str) -> Result<TcpStream, Error> {
    let mut failed = Error::new(ErrorKind::NotFound, "the name has no address");
    for addr in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect(host: &str, login: &Login, inbox: &str) -> Result<(Link, Frames<TcpStream>), Error> {
    let stream = open(host)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut frames = Frames::new(stream.try_clone()?);
    let Frame::Info(info) = frames.next()? else {
        return Err(Error::new(ErrorKind::InvalidData, "it is not NATS"));
    };
    info.check().map_err(Error::other)?;
    frames.expect(info.max_payload);
    (&stream).write_all(greeting(login, inbox).as_bytes())?;
    loop {
        match frames.next()? {
            Frame::Pong => break,
            Frame::Error(text) => return Err(refused(&text)),
            Frame::Ping => (&stream).write_all(b"PONG\r\n")?,
            Frame::Info(_) | Frame::Ok | Frame::Message(_) => {}
        }
    }
    stream.set_read_timeout(Some(SILENCE))?;
    let link = Link { stream, host: host.into(), inbox: inbox.into(), max_payload: info.max_payload };
    Ok((link, frames))
}

/// Reads until the connection ends: why.
fn read<T: From<News>>(mut frames: Frames<TcpStream>, worker: &Sender<T>) -> Error {
    loop {
        let news = match frames.next() {
            Ok(Frame::Message(message)) => News::Message(message),
            Ok(Frame::Ping) => News::Ping,
            Ok(Frame::Error(text)) => return refused(&text),
            Ok(Frame::Pong | Frame::Ok | Frame::Info(_)) => continue,
            Err(error) => return plain(error),
        };
        if worker.send(news.into()).is_err() {
            return Error::other("nobody listens");
        }
    }
}
