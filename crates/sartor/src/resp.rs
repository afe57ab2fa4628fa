//! The few words of RESP that the admin verbs and the load of `sartor chaos` need.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How deep answers may be nested.
const DEPTH_MAX: u8 = 8;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A simple or bulk string.
    Text(Vec<u8>),
    /// An error.
    Error(String),
    /// A number.
    Integer(i64),
    /// Nothing.
    Nil,
    /// Several.
    Array(Vec<Reply>),
}

/// A connection that asks one thing after the other, and waits.
pub struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Connection {
    /// Connects; nothing takes longer than `timeout`.
    pub fn open(endpoint: &str, timeout: Duration) -> Result<Connection> {
        let addr = endpoint.to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_nodelay(true)?;
        let connection = Connection { stream: BufReader::new(stream), request: Vec::new() };
        connection.set_timeout(timeout)?;
        Ok(connection)
    }

    /// From now on nothing takes longer than that.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.stream.get_ref().set_read_timeout(Some(timeout))?;
        self.stream.get_ref().set_write_timeout(Some(timeout))
    }

    /// Asks. After an error of the connection nobody knows what became of it.
    pub fn ask(&mut self, words: &[&[u8]]) -> Result<Reply> {
        self.request.clear();
        write!(self.request, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.request, "${}\r\n", word.len())?;
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&self.request)?;
        self.read(DEPTH_MAX)
    }

    fn read(&mut self, depth: u8) -> Result<Reply> {
        let no_resp = || Error::new(ErrorKind::InvalidData, "it does not speak RESP");
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (kind, text) = line.trim_end().split_at_checked(1).ok_or_else(no_resp)?;
        let number = || text.parse::<i64>().map_err(|_| no_resp());
        Ok(match kind {
            "+" => Reply::Text(text.as_bytes().to_vec()),
            "-" => Reply::Error(text.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => {
                let mut bulk = vec![0; number()? as usize + 2];
                self.stream.read_exact(&mut bulk)?;
                bulk.truncate(bulk.len() - 2);
                Reply::Text(bulk)
            }
            "*" if depth > 0 => {
                let elements = (0..number()?).map(|_| self.read(depth - 1));
                Reply::Array(elements.collect::<Result<_>>()?)
            }
            _ => return Err(no_resp()),
        })
    }
}

/// Sends one command to an endpoint; the text of the answer.
pub fn ask(endpoint: &str, words: &[&str]) -> std::result::Result<String, String> {
    ask_within(endpoint, words, Duration::from_secs(5))
}

/// The same with patience of one's own.
pub fn ask_within(
    endpoint: &str,
    words: &[impl AsRef<str>],
    timeout: Duration,
) -> std::result::Result<String, String> {
    let unreachable = |error: Error| match error.kind() {
        ErrorKind::InvalidData => format!("{endpoint} does not speak RESP"),
        _ => format!("no node answers at {endpoint}: {error}"),
    };
    let mut connection = Connection::open(endpoint, timeout).map_err(unreachable)?;
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_ref().as_bytes()).collect();
    match connection.ask(&words).map_err(unreachable)? {
        Reply::Text(text) => {
            String::from_utf8(text).map_err(|_| format!("{endpoint} answered with bytes that are no text"))
        }
        Reply::Error(text) => Err(text),
        _ => Err(format!("{endpoint} does not speak RESP")),
    }
}
