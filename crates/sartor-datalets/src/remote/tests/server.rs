//! A store that speaks the protocol, in a thread, and that can be told to misbehave.

use crate::remote::wire::*;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Bound;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// All of the results, which the client reads bit by bit.
#[derive(Clone, PartialEq, Message)]
pub struct Results {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(message, repeated, tag = "2")]
    pub results: Vec<Answer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Pairs {
    #[prost(message, repeated, tag = "1")]
    pub pairs: Vec<Pair>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub next: Option<Bytes>,
}

/// What is made of results.
pub type Change = fn(&mut Results);

/// What the next batch meets that is no hello.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection is closed when the batch has come.
    Close,
    /// The process dies after the first operation: nothing is left of the store.
    Die,
    /// The connection is closed within the answer.
    CloseWithin,
    /// These bytes are sent instead of the answer, as they are.
    Send(Vec<u8>),
    /// The results are changed.
    Change(Change),
    /// Nothing is answered.
    Silence,
    /// The answer comes byte by byte.
    Drip,
}

#[derive(Default)]
pub struct Store {
    pub pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub generation: u64,
    pub owner: u64,
    pub capabilities: Capabilities,
    /// How many operations each batch had.
    pub batches: Vec<usize>,
    pub commits: Vec<(Vec<u8>, bool)>,
    pub fault: Option<Fault>,
    /// Puts fail.
    pub full: bool,
    current: Option<TcpStream>,
}

#[derive(Clone)]
pub struct Server {
    pub address: String,
    pub store: Arc<Mutex<Store>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server { address, store: Arc::default() };
        let mut store = server.store();
        store.generation = 1;
        store.capabilities =
            Capabilities { version: VERSION, name: "test".into(), ..Capabilities::default() };
        drop(store);
        let clone = server.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (socket, server) = (socket.unwrap(), clone.clone());
                socket.set_nodelay(true).unwrap();
                std::thread::spawn(move || server.serve(&socket));
            }
        });
        server
    }

    /// The same store behind a Unix socket, for as many connections as wanted, passed on byte by byte.
    pub fn unix(&self, path: &std::path::Path) {
        let (listener, address) = (UnixListener::bind(path).unwrap(), self.address.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (mut near, mut far) = (near.unwrap(), TcpStream::connect(&address).unwrap());
                let (mut near_too, mut far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut near, &mut far));
                std::thread::spawn(move || std::io::copy(&mut far_too, &mut near_too));
            }
        });
    }

    pub fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    pub fn fail(&self, fault: Fault) {
        self.store().fault = Some(fault);
    }

    fn serve(&self, mut socket: &TcpStream) -> Option<()> {
        loop {
            let mut head = [0; 4];
            socket.read_exact(&mut head).ok()?;
            let mut message = vec![0; u32::from_le_bytes(head) as usize];
            socket.read_exact(&mut message).ok()?;
            let batch = Batch::decode(&message[..]).unwrap();
            let is_hello = matches!(batch.operations[0].ask, Some(Ask::Hello(_)));
            let (fault, results) = {
                let mut store = self.store();
                if is_hello && let Some(last) = store.current.replace(socket.try_clone().unwrap()) {
                    let _ = last.shutdown(Shutdown::Both);
                }
                let fault = if is_hello { None } else { store.fault.take() };
                if matches!(fault, Some(Fault::Close)) {
                    let _ = socket.shutdown(Shutdown::Both);
                    return None;
                }
                if matches!(fault, Some(Fault::Die)) {
                    store.generation += 1;
                    store.pairs.clear();
                    let _ = socket.shutdown(Shutdown::Both);
                    return None;
                }
                (fault, store.run(batch))
            };
            answer(socket, results, fault)?;
        }
    }
}

/// Sends the answer, or what a fault makes of it.
fn answer(mut socket: &TcpStream, mut results: Results, fault: Option<Fault>) -> Option<()> {
    if let Some(Fault::Change(change)) = fault {
        change(&mut results);
    }
    let mut frame = (results.encoded_len() as u32).to_le_bytes().to_vec();
    results.encode(&mut frame).unwrap();
    match fault {
        Some(Fault::CloseWithin) => {
            socket.write_all(&frame[..frame.len() - 1]).ok()?;
            let _ = socket.shutdown(Shutdown::Both);
        }
        Some(Fault::Send(bytes)) => socket.write_all(&bytes).ok()?,
        Some(Fault::Silence) => {}
        Some(Fault::Drip) => {
            for byte in frame {
                socket.write_all(&[byte]).ok()?;
                std::thread::sleep(Duration::from_millis(300));
            }
        }
        _ => socket.write_all(&frame).ok()?,
    }
    Some(())
}

impl Store {
    fn run(&mut self, batch: Batch) -> Results {
        self.batches.push(batch.operations.len());
        let (mut results, mut bytes) = (Vec::new(), 0);
        for operation in batch.operations {
            let said = self.answer(operation.ask.unwrap());
            bytes += if let Said::Value(value) | Said::Pairs(value) = &said { value.len() } else { 0 };
            let is_error = matches!(said, Said::Error(_));
            results.push(Answer { said: Some(said) });
            if is_error || (batch.bytes_max > 0 && bytes as u64 >= batch.bytes_max) {
                break;
            }
        }
        Results { generation: self.generation, results }
    }

    fn answer(&mut self, ask: Ask) -> Said {
        let done = Said::Done(Nothing {});
        let value = |value: Option<&Vec<u8>>| {
            value.map_or(Said::Nothing(Nothing {}), |value| Said::Value(value.clone().into()))
        };
        match ask {
            Ask::Hello(hello) => {
                if self.owner != hello.owner {
                    self.owner = hello.owner;
                    self.generation += 1;
                }
                return Said::Capabilities(Box::new(self.capabilities.clone()));
            }
            Ask::Get(key) => return value(self.pairs.get(&key[..])),
            Ask::Put(_) if self.full => return Said::Error("the disk\nis full".into()),
            Ask::Put(pair) => drop(self.pairs.insert(pair.key.to_vec(), pair.value.to_vec())),
            Ask::Delete(key) => drop(self.pairs.remove(&key[..])),
            Ask::Walk(Walk { after, pairs_max, bytes_max }) => {
                let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.to_vec()));
                return self.page(from, Bound::Unbounded, pairs_max, bytes_max);
            }
            Ask::Scan(Scan { start, end, pairs_max, bytes_max }) => {
                let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
                return self.page(Bound::Included(start.to_vec()), end, pairs_max, bytes_max);
            }
            Ask::Len(_) => return Said::Count(self.pairs.len() as u64),
            Ask::Clear(_) => self.pairs.clear(),
            Ask::Commit(commit) => self.commits.push((commit.mark.to_vec(), commit.durably)),
            Ask::Mark(_) => return value(self.commits.last().map(|(mark, _)| mark)),
        }
        done
    }

    fn page(&self, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>, pairs_max: u64, bytes_max: u64) -> Said {
        let (mut pairs, mut bytes) = (Pairs::default(), 0);
        for (key, value) in self.pairs.range::<Vec<u8>, _>((from, to)) {
            if pairs.pairs.len() as u64 >= pairs_max || bytes >= bytes_max {
                pairs.next = pairs.pairs.last().map(|pair| pair.key.clone());
                break;
            }
            bytes += (key.len() + value.len()) as u64;
            pairs.pairs.push(Pair { key: key.clone().into(), value: value.clone().into() });
        }
        Said::Pairs(pairs.encode_to_vec().into())
    }
}
