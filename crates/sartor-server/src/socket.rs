//! Sockets of clients: TCP ports and, for clients on this machine, paths of Unix sockets. Both are used alike.

use crate::link::resolve;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{self, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};

/// A connection of either kind.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Stream {
    /// Lets its readiness be told under this token.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Its readiness is told no more.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }

    /// What is written leaves at once.
    pub fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    /// Whether a begun connection is there; an error if it never will be.
    pub fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Stream::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
            Stream::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Err(error)) if error.kind() == ErrorKind::NotConnected => Ok(false),
            (None, peer) => {
                self.set_nodelay()?;
                peer.map(|()| true)
            }
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where clients connect.
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket, and its path.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Lets it be told under this token that somebody waits.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Listener::Unix(listener, _) => listener.register(registry, token, Interest::READABLE),
        }
    }

    /// The next one who waits, and where he is.
    pub fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, addr) = listener.accept()?;
                Ok((Stream::Tcp(stream), addr.to_string()))
            }
            Listener::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), format!("{}:0", path.display())))
            }
        }
    }
}

/// Where clients will connect, before an event loop has it.
pub enum Bound {
    /// A TCP port.
    Tcp(net::TcpListener),
    /// A Unix socket, and its path.
    Unix(unix::UnixListener, PathBuf),
}

impl Bound {
    /// For one of the event loops that share it.
    pub fn listener(&self) -> io::Result<Listener> {
        Ok(match self {
            Bound::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener.try_clone()?)),
            Bound::Unix(listener, path) => {
                Listener::Unix(UnixListener::from_std(listener.try_clone()?), path.clone())
            }
        })
    }
}

/// Listens, or says in a line why not. Without authentication that is for this machine only, unless
/// told otherwise.
pub fn bind(addr: &str, unprotected: bool) -> Result<net::TcpListener, String> {
    let failed = |error: io::Error| format!("cannot listen on {addr}: {error}");
    let place: SocketAddr = resolve(addr).map_err(failed)?;
    if !place.ip().is_loopback() && !unprotected {
        return Err(format!(
            "{addr} can be reached from other machines and there is no authentication; \
             listen on 127.0.0.1, or set unprotected = true in a network that you trust"
        ));
    }
    let listener = net::TcpListener::bind(place).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Listens at a path. A socket that was left there by a process that died goes; one that somebody listens at, and any
/// other file, stays.
pub fn bind_unix(path: &Path) -> Result<unix::UnixListener, String> {
    let failed = |error: io::Error| format!("cannot listen on unix:{}: {error}", path.display());
    let is_left = || {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        is_socket && unix::UnixStream::connect(path).is_err_and(refused)
    };
    let listener = match unix::UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left() => {
            fs::remove_file(path).and_then(|()| unix::UnixListener::bind(path))
        }
        other => other,
    };
    let listener = listener.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_left_behind_goes_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("sartor-socket-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        let first = bind_unix(&path).unwrap();
        assert!(bind_unix(&path).unwrap_err().contains("in use"), "somebody listens");
        drop(first);
        let second = bind_unix(&path).expect("nobody listens any more");
        drop(second);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert!(bind_unix(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn too_long_a_path_is_told() {
        let error = bind_unix(Path::new(&"x".repeat(200))).unwrap_err();
        assert!(error.contains("cannot listen on unix:xxx"), "{error}");
    }
}
