//! Where to connect: TCP addresses and Unix sockets.

use super::protocol::{Answer, Key, Parsed, Protocol};
use mio::net::{TcpStream, UnixStream};
use sartor_server::socket::Stream;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// A first connection must be there within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Target {
    /// `HOST:PORT`, or `unix:` and a path.
    pub fn parse(text: &str) -> Result<Target, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Target::Unix(path.into()));
        }
        let wrong =
            |error: io::Error| format!("no such target '{text}': {error}; write HOST:PORT or unix:/path");
        let mut found = text.to_socket_addrs().map_err(wrong)?;
        found.next().map(Target::Tcp).ok_or_else(|| format!("'{text}' has no address"))
    }

    /// A connection that is there.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Target::Tcp(addr) => {
                let stream = std::net::TcpStream::connect_timeout(addr, CONNECT_WITHIN)?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(TcpStream::from_std(stream)))
            }
            Target::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(UnixStream::from_std(stream)))
            }
        }
    }

    /// A connection that may be there later: it becomes writable then.
    pub fn begin_connect(&self) -> io::Result<Stream> {
        Ok(match self {
            Target::Tcp(addr) => Stream::Tcp(TcpStream::connect(*addr)?),
            Target::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        })
    }

    /// Sends one read and looks whether what comes back is of this protocol; before it the choice of a table, if there is one.
    pub fn probe(&self, protocol: Protocol, table: Option<&str>) -> Result<(), String> {
        let unreachable = |error: io::Error| format!("cannot connect to {self}: {error}");
        let mut request = Vec::new();
        if let Some(table) = table {
            protocol.select(&mut request, table);
        }
        protocol.get(&mut request, Key { record: 0, bytes: 16 });
        let answer = match self {
            Target::Tcp(addr) => {
                let stream =
                    std::net::TcpStream::connect_timeout(addr, CONNECT_WITHIN).map_err(unreachable)?;
                let _ = stream.set_read_timeout(Some(CONNECT_WITHIN));
                first_bytes(stream, &request)
            }
            Target::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path).map_err(unreachable)?;
                let _ = stream.set_read_timeout(Some(CONNECT_WITHIN));
                first_bytes(stream, &request)
            }
        };
        let answer = answer.map_err(|error| format!("{self} does not answer: {error}"))?;
        match protocol.parse(&answer) {
            Parsed::Answer(Answer::Refused(text), _) if table.is_some() => {
                Err(format!("{self}: {}", String::from_utf8_lossy(text)))
            }
            Parsed::Answer(..) => Ok(()),
            _ => Err(format!("{self} does not speak {}; see --protocol", protocol.name())),
        }
    }
}

/// What comes first, up to a line end.
fn first_bytes(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = vec![0; 4096];
    let mut length = 0;
    while length < answer.len() && !answer[..length].contains(&b'\n') {
        match stream.read(&mut answer[length..])? {
            0 if length == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            0 => break,
            count => length += count,
        }
    }
    answer.truncate(length);
    Ok(answer)
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Tcp(addr) => write!(f, "{addr}"),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_paths() {
        assert_eq!(Target::parse("unix:/tmp/s").unwrap(), Target::Unix("/tmp/s".into()));
        assert_eq!(Target::parse("127.0.0.1:80").unwrap(), Target::Tcp(([127, 0, 0, 1], 80).into()));
        for wrong in ["", "127.0.0.1", "127.0.0.1:http:"] {
            assert!(Target::parse(wrong).unwrap_err().contains("HOST:PORT"));
        }
    }
}
