//! Clients in threads that ask, remember what they asked, what they were told, and when.
//!
//! Each belongs to one shard, so that every shard is written all the time, whatever happens to the others; at every shard there is one client for
//! each node. Three kinds of keys:
//!
//! - registers, shared by all clients of a shard, which do everything to them; new ones every few seconds, so that what each
//!   one held in the end still tells of its time;
//! - counters, likewise;
//! - single writes: each client writes keys that nobody else writes, once. Whichever is missing in the end was lost.

use crate::resp::{Connection, Reply};
use sartor_core::random::Random;
use sartor_core::routing::slot::slot_of;
use sartor_server::status::Status;
use sartor_sim::history::{Answer, Ask, Call, Outcome};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a generation of shared keys is used.
const GENERATION_US: u64 = 3_000_000;
const REGISTERS: u64 = 6;
/// Longer than a node waits for a shard that is failing over.
const ANSWER_PATIENCE: Duration = Duration::from_millis(3000);
/// A node that does not greet within this is left for the next one.
const HELLO_PATIENCE: Duration = Duration::from_millis(200);
/// Between a client's requests: the load is steady, not the highest.
const PAUSE_US: (u64, u64) = (1000, 5000);
/// How long a client stays with a node that serves it. All move at the same time, so that the clients of a shard stay apart:
/// if they met at a node, its pause would look like one of the shard.
const STAY_US: u64 = 4_000_000;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Everybody does everything.
    Register,
    /// Everybody counts.
    Counter,
    /// Written once by one client.
    Single,
}

/// A key: its shard, its purpose, its generation or owner, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub u16, pub Purpose, pub u32, pub u32);

/// What all clients share.
pub struct Shared {
    /// Where the nodes are.
    pub endpoints: Vec<String>,
    /// A hash tag for each shard.
    tags: Vec<String>,
    /// The time 0 of the history.
    pub began: Instant,
    /// When writes were acknowledged, shard by shard.
    pub acknowledged: Vec<Mutex<Vec<u64>>>,
    /// How many requests were answered, refused and neither.
    pub counts: [AtomicU64; 3],
    /// Errors that no client should ever see.
    pub unexpected: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl Shared {
    /// For a cluster that serves.
    pub fn new(endpoints: Vec<String>, status: &Status) -> Shared {
        let tag_of = |slots: &[(u16, u16)]| {
            let is_in = |slot: u16| slots.iter().any(|(first, last)| (*first..=*last).contains(&slot));
            let tags = (0..).map(|number: u32| format!("{{{number}}}"));
            tags.into_iter().find(|tag| is_in(slot_of(tag.as_bytes()))).unwrap_or_default()
        };
        Shared {
            endpoints,
            tags: status.shards.iter().map(|shard| tag_of(&shard.slots)).collect(),
            began: Instant::now(),
            acknowledged: status.shards.iter().map(|_| Mutex::default()).collect(),
            counts: Default::default(),
            unexpected: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// The time of the history.
    pub fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// A key as the cluster knows it.
    pub fn name(&self, key: Key) -> String {
        let Key(shard, purpose, group, number) = key;
        format!("{}{}:{group}:{number}", self.tags[usize::from(shard)], purpose)
    }

    fn count(&self, outcome: Outcome) {
        let index = match outcome {
            Outcome::Answered(_) => 0,
            Outcome::Refused => 1,
            Outcome::Unknown => 2,
        };
        self.counts[index].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Purpose::Register => "register",
            Purpose::Counter => "counter",
            Purpose::Single => "single",
        })
    }
}

/// What was asked of which key, and at which node. A client counts anew with each connection.
pub type History = Vec<(Key, u16, Call)>;

/// Connections of one client get numbers from a multiple of this.
pub const CONNECTIONS: u32 = 100_000;

/// The running clients.
pub struct Load {
    /// What they share.
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<History>>,
}

impl Load {
    /// Starts one client for each node and shard.
    pub fn start(shared: Shared, seed: u64) -> Load {
        let shared = Arc::new(shared);
        let (nodes, shards) = (shared.endpoints.len(), shared.tags.len());
        let start = |id: usize| {
            let mut client = Client {
                id: id as u32,
                shard: (id % shards) as u16,
                home: (id / shards) % nodes,
                // The one before its home, so that it begins there.
                node: (id / shards + nodes - 1) % nodes,
                shared: shared.clone(),
                random: Random::new(seed.wrapping_mul(1000) + id as u64),
                connection: None,
                turn: 0,
                history: Vec::new(),
                connections: 0,
                written: 0,
                value: 0,
            };
            std::thread::spawn(move || {
                client.run();
                client.history
            })
        };
        let threads = (0..nodes * shards).map(start).collect();
        Load { shared, threads }
    }

    /// Ends the clients; all that they saw.
    pub fn end(mut self) -> (Arc<Shared>, History) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let histories = std::mem::take(&mut self.threads).into_iter();
        let history = histories.flat_map(|thread| thread.join().unwrap_or_default()).collect();
        (self.shared.clone(), history)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

struct Client {
    id: u32,
    shard: u16,
    /// Where it begins.
    home: usize,
    node: usize,
    shared: Arc<Shared>,
    random: Random,
    connection: Option<Connection>,
    /// In which turn it took its connection.
    turn: u64,
    history: History,
    connections: u32,
    /// Single writes so far.
    written: u32,
    /// Values so far; with the client's number they are unique.
    value: u64,
}

impl Client {
    fn run(&mut self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            if !self.connect() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let (key, ask) = self.choose();
            let outcome = self.ask(key, ask);
            self.shared.count(outcome);
            let pause = self.random.between(PAUSE_US.0, PAUSE_US.1);
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    /// Stays, or goes to the node whose turn it is, or to the next one that lets it in.
    fn connect(&mut self) -> bool {
        let turn = self.shared.now_us() / STAY_US;
        if self.connection.is_some() && self.turn == turn {
            return true;
        }
        let nodes = self.shared.endpoints.len();
        self.node = match self.turn == turn {
            true => (self.node + 1) % nodes,
            false => (self.home + turn as usize) % nodes,
        };
        self.turn = turn;
        self.connections += 1;
        self.connection = open(&self.shared.endpoints[self.node]).ok();
        self.connection.is_some()
    }

    fn choose(&mut self) -> (Key, Ask) {
        self.value += 1;
        let value = (u64::from(self.id) + 1) << 32 | self.value;
        let generation = (self.shared.now_us() / GENERATION_US) as u32;
        let register = Key(self.shard, Purpose::Register, generation, self.random.below(REGISTERS) as u32);
        let counter = Key(self.shard, Purpose::Counter, generation, 0);
        match self.random.below(100) {
            0..30 => {
                self.written += 1;
                (Key(self.shard, Purpose::Single, self.id, self.written), Ask::Set(value))
            }
            30..38 if self.written > 0 => {
                let number = self.random.between(1, u64::from(self.written)) as u32;
                (Key(self.shard, Purpose::Single, self.id, number), Ask::Get)
            }
            38..42 => (counter, Ask::Get),
            42..50 => (counter, Ask::Increment),
            50..68 => (register, Ask::Set(value)),
            68..74 => (register, Ask::SetAbsent(value)),
            74..79 => (register, Ask::Swap(value)),
            79..82 => (register, Ask::Delete),
            82..84 => (register, Ask::Take),
            _ => (register, Ask::Get),
        }
    }

    fn ask(&mut self, key: Key, ask: Ask) -> Outcome {
        let name = self.shared.name(key);
        let start_us = self.shared.now_us();
        let answer = match &mut self.connection {
            Some(connection) => send(connection, name.as_bytes(), ask),
            None => return Outcome::Unknown,
        };
        let end_us = self.shared.now_us();
        let outcome = match answer {
            Err(_) => {
                self.connection = None;
                Outcome::Unknown
            }
            Ok(reply) => self.understand(ask, reply),
        };
        let client = self.id * CONNECTIONS + self.connections;
        let call = Call { client, ask, outcome, start_us, end_us };
        if ask != Ask::Get && matches!(outcome, Outcome::Answered(_)) {
            let acknowledged = &self.shared.acknowledged[usize::from(self.shard)];
            acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(end_us);
        }
        self.history.push((key, self.node as u16, call));
        outcome
    }

    fn understand(&self, ask: Ask, reply: Reply) -> Outcome {
        match outcome_of(ask, &reply) {
            Ok(outcome) => outcome,
            Err(text) => {
                let mut unexpected = self.shared.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
                unexpected.push(format!("node {} answered {ask:?} with {text}", self.node));
                Outcome::Unknown
            }
        }
    }
}

/// Connects to a node that is awake. A stopped one takes connections too, and would in time have all the clients.
fn open(endpoint: &str) -> std::io::Result<Connection> {
    let mut connection = Connection::open(endpoint, HELLO_PATIENCE)?;
    connection.ask(&[b"PING"])?;
    connection.set_timeout(ANSWER_PATIENCE)?;
    Ok(connection)
}

/// Asks it as a command.
pub fn send(connection: &mut Connection, key: &[u8], ask: Ask) -> std::io::Result<Reply> {
    let value = ask.value().unwrap_or(0).to_string();
    let value = value.as_bytes();
    match ask {
        Ask::Get => connection.ask(&[b"GET", key]),
        Ask::Set(_) => connection.ask(&[b"SET", key, value]),
        Ask::SetAbsent(_) => connection.ask(&[b"SET", key, value, b"NX"]),
        Ask::Swap(_) => connection.ask(&[b"SET", key, value, b"GET"]),
        Ask::Delete => connection.ask(&[b"DEL", key]),
        Ask::Take => connection.ask(&[b"GETDEL", key]),
        Ask::Increment => connection.ask(&[b"INCR", key]),
    }
}

/// What an answer tells, or the text of one that nobody should get.
pub fn outcome_of(ask: Ask, reply: &Reply) -> Result<Outcome, String> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let answer = match (ask, reply) {
        // These promise that nothing was done.
        (_, Reply::Error(text)) if text.starts_with("LOADING") || text.starts_with("OOM") => {
            return Ok(Outcome::Refused);
        }
        (_, Reply::Error(text)) if text.starts_with("UNCERTAIN") => return Ok(Outcome::Unknown),
        (Ask::Set(_), Reply::Text(_)) => Some(Answer::Done),
        (Ask::SetAbsent(_), Reply::Text(_)) => Some(Answer::Bit(true)),
        (Ask::SetAbsent(_), Reply::Nil) => Some(Answer::Bit(false)),
        (Ask::Get | Ask::Take | Ask::Swap(_), Reply::Nil) => Some(Answer::Value(None)),
        (Ask::Get | Ask::Take | Ask::Swap(_), Reply::Text(text)) => {
            number(text).map(|value| Answer::Value(Some(value)))
        }
        (Ask::Delete, Reply::Integer(count)) => Some(Answer::Bit(*count == 1)),
        (Ask::Increment, Reply::Integer(sum)) => Some(Answer::Value(Some(*sum as u64))),
        _ => None,
    };
    answer.map(Outcome::Answered).ok_or_else(|| format!("{reply:?}"))
}
