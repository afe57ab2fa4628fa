//! Links on loopback that can be cut, one way or both, and slowed down.
//!
//! ```text
//!  node 2 ──▶ proxy of node 0 ──▶ node 0        frames
//!  node 2 ◀── proxy of node 0 ◀── node 0        nothing but the end of the connection
//! ```
//!
//! Processes are told the proxy's address instead of each other's. Each of them dials whom it has something to tell, so a
//! connection is one direction of a link; its first frame says whose. A cut holds bytes back and breaks no connection, as a net does
//! that loses all packets: what was held arrives after the cut.

use bytes::Bytes;
use sartor_core::wire::frame::{HEADER_BYTES, Header};
use std::collections::BTreeMap;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The greeting of a link, before its first frame.
const HELLO_BYTES: usize = 14;
const LENGTH_BYTES: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;
const SLOW_CHUNK_BYTES: usize = 512;
/// How often somebody who waits looks whether the proxy has ended.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
enum Rule {
    Hold,
    Slow { bytes_per_s: u64 },
}

/// What may get from one process to another.
#[derive(Default)]
struct Rules {
    table: Mutex<BTreeMap<(u16, u16), Rule>>,
    changed: Condvar,
    ended: AtomicBool,
}

impl Rules {
    fn set(&self, change: impl FnOnce(&mut BTreeMap<(u16, u16), Rule>)) {
        change(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn of(&self, from: u16, to: u16) -> Option<Rule> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).get(&(from, to)).copied()
    }

    /// Waits while any of these directions is held.
    fn wait(&self, directions: &[(u16, u16)]) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let held =
            |table: &BTreeMap<_, _>| directions.iter().any(|d| matches!(table.get(d), Some(Rule::Hold)));
        while held(&table) && !self.ended.load(Ordering::Relaxed) {
            let waited = self.changed.wait_timeout(table, LOOK);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The proxies of a cluster, one before each process.
#[derive(Default)]
pub struct Proxies {
    rules: Arc<Rules>,
    listeners: Mutex<Vec<SocketAddr>>,
}

impl Proxies {
    /// Listens for what others want to tell `place`, which is at `to`.
    pub fn listen(&self, at: &str, place: u16, to: String) -> Result<()> {
        let listener = TcpListener::bind(at)?;
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener.local_addr()?);
        let rules = self.rules.clone();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if rules.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (rules, to) = (rules.clone(), to.clone());
                std::thread::spawn(move || {
                    let _ = carry(&rules, stream, place, &to);
                });
            }
        };
        std::thread::Builder::new().name(format!("proxy-{place}")).spawn(accept)?;
        Ok(())
    }

    /// Nothing gets from one to the other.
    pub fn hold(&self, from: u16, to: u16) {
        self.rules.set(|table| {
            table.insert((from, to), Rule::Hold);
        });
    }

    /// It gets there slowly.
    pub fn slow(&self, from: u16, to: u16, bytes_per_s: u64) {
        self.rules.set(|table| {
            table.insert((from, to), Rule::Slow { bytes_per_s });
        });
    }

    /// Everything gets everywhere.
    pub fn heal(&self) {
        self.rules.set(BTreeMap::clear);
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.rules.ended.store(true, Ordering::Relaxed);
        self.heal();
        for addr in self.listeners.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // So that its thread looks.
            let _ = TcpStream::connect(addr);
        }
    }
}

/// Carries one connection until either side ends it.
fn carry(rules: &Arc<Rules>, mut from: TcpStream, place: u16, to: &str) -> Result<()> {
    // Who is not there cannot be reached: the connection ends at once, as if it had been refused.
    let mut target = TcpStream::connect(to)?;
    from.set_nodelay(true)?;
    target.set_nodelay(true)?;
    // While nobody knows whose it is, the end of the target still has to be noticed.
    let (watched, back) = (target.try_clone()?, from.try_clone()?);
    let whose: Arc<Mutex<Option<u16>>> = Arc::default();
    let (known, shared) = (whose.clone(), rules.clone());
    std::thread::spawn(move || watch_end(&shared, watched, &back, place, &known));
    let mut done = greet(&mut from, &whose).map(|(greeting, dialler)| {
        rules.wait(&[(dialler, place)]);
        (target.write_all(&greeting), dialler)
    });
    if let Ok((Ok(()), dialler)) = &done {
        let result = pump(rules, &mut from, &mut target, *dialler, place);
        done = result.map(|()| (Ok(()), *dialler));
    }
    let _ = target.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    done.map(drop)
}

/// Reads the greeting and the head of the first frame, which says who speaks.
fn greet(from: &mut TcpStream, whose: &Mutex<Option<u16>>) -> Result<(Vec<u8>, u16)> {
    let mut greeting = vec![0; HELLO_BYTES + LENGTH_BYTES + HEADER_BYTES];
    from.read_exact(&mut greeting)?;
    let header = Bytes::copy_from_slice(&greeting[HELLO_BYTES + LENGTH_BYTES..]);
    let (header, _) = Header::parse(header).map_err(|_| std::io::ErrorKind::InvalidData)?;
    let dialler = header.from.node.0;
    *whose.lock().unwrap_or_else(PoisonError::into_inner) = Some(dialler);
    Ok((greeting, dialler))
}

fn pump(rules: &Rules, from: &mut TcpStream, to: &mut TcpStream, dialler: u16, place: u16) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        // Held bytes stay in the kernel's buffers, so that who sends them feels it.
        rules.wait(&[(dialler, place)]);
        let slow = match rules.of(dialler, place) {
            Some(Rule::Slow { bytes_per_s }) => Some(bytes_per_s),
            _ => None,
        };
        let room = if slow.is_some() { SLOW_CHUNK_BYTES } else { CHUNK_BYTES };
        let read = from.read(&mut chunk[..room])?;
        if read == 0 {
            return Ok(());
        }
        rules.wait(&[(dialler, place)]);
        if let Some(bytes_per_s) = slow {
            std::thread::sleep(Duration::from_micros(read as u64 * 1_000_000 / bytes_per_s));
        }
        to.write_all(&chunk[..read])?;
    }
}

/// The target never says anything on such a connection, but it can die; that gets back unless the way back is cut.
fn watch_end(rules: &Rules, mut target: TcpStream, from: &TcpStream, place: u16, whose: &Mutex<Option<u16>>) {
    let mut byte = [0; 64];
    while target.read(&mut byte).is_ok_and(|read| read > 0) {}
    let whose = *whose.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dialler) = whose {
        rules.wait(&[(dialler, place), (place, dialler)]);
    }
    let _ = from.shutdown(Shutdown::Both);
}
