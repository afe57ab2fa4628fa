//! Clients: connections that keep several requests in flight and remember every answer.

use crate::once;
use bytes::Bytes;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{
    Action, Batch, Consistency, ExpireIf, Expiry, From, Op, Outcome, Presence, Request, Scan, SessionId, Set,
    TimeUnit, Version,
};
use sartor_core::random::{Random, mix};
use sartor_core::range::Range;
use sartor_core::routing::map::{ClusterMap, Shard};
use sartor_core::routing::route::Routes;
use sartor_core::routing::slot::slot_of;
use sartor_core::run::{self, Run};
use sartor_core::time::{Micros, millis};

/// The places of connections that show whether a healed cluster works begin here.
pub const PROBES: u32 = 1000;
/// How long a request waits at most.
pub const TIMEOUT_US: Micros = millis(5000);

/// A client's connection to a node.
pub struct Client {
    /// Which connection.
    pub session: SessionId,
    /// Which node.
    pub node: u16,
    /// Every request in order.
    pub asked: Vec<Asked>,
    /// How many keys it knows.
    keys: u64,
    depth: usize,
    /// Whether its reads ask for more or less than the mode promises.
    pub levels: bool,
    /// Whether it reads ranges.
    pub ranges: bool,
    answered: usize,
    watched: Option<(Bytes, Version)>,
}

/// A request and its answer.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which shard.
    pub shard: ShardId,
    /// What.
    pub op: Op,
    /// The answer, and the place it was true at.
    pub answer: Option<(Outcome, Position)>,
    /// When it was asked, and answered.
    pub times: (Micros, Micros),
    /// How fresh a read had to be.
    pub consistency: Consistency,
}

impl Client {
    /// A connection without requests.
    pub fn new(random: &mut Random, session: SessionId, nodes: u64, keys: u64) -> Client {
        Client {
            session,
            keys,
            node: random.below(nodes) as u16,
            asked: Vec::new(),
            depth: random.between(1, 8) as usize,
            levels: false,
            ranges: false,
            answered: 0,
            watched: None,
        }
    }

    /// A connection to this node.
    pub fn at(session: SessionId, node: u16) -> Client {
        Client {
            session,
            node,
            asked: Vec::new(),
            keys: 1,
            depth: 1,
            levels: false,
            ranges: false,
            answered: 0,
            watched: None,
        }
    }

    /// Whether it may send one more.
    pub fn is_ready(&self) -> bool {
        self.asked.len() - self.answered < self.depth
    }

    /// Makes a request. `unique` is a number that no other request has.
    pub fn ask(
        &mut self,
        random: &mut Random,
        map: &ClusterMap,
        times: (Micros, Micros),
        unique: u64,
    ) -> Request {
        let (shard, op) = self.operation(random, map, unique);
        self.send(shard, once::named(random, op, unique), times)
    }

    /// A write that a healed cluster must take.
    pub fn probe(&mut self, shard: &Shard, now: Micros, deadline_us: Micros) -> Request {
        let value = Bytes::from(format!("probe {:?} {}", self.session, shard.id.0));
        let key = match &shard.slots[..] {
            // Next to its least key.
            [] => Bytes::from([&shard.lower[..], format!("\0probe{}", self.node).as_bytes()].concat()),
            _ => Bytes::from(format!("probe{}", self.node)),
        };
        let shard = shard.id;
        let set = Action::Set(Set { value, ..Set::default() });
        self.send(shard, Op::Key(key, set), (now, deadline_us))
    }

    /// Sends an operation.
    pub fn send(&mut self, shard: ShardId, op: Op, (now, deadline_us): (Micros, Micros)) -> Request {
        let tag = self.asked.len() as u32;
        let reads = matches!(op, Op::Key(..) | Op::Run(_) | Op::Range(_)) && !op.is_write();
        // A connection's level goes with its writes too, and means nothing there.
        let sends = self.levels && (reads || op.is_write());
        let sent = if sends { level(mix(now ^ u64::from(tag))) } else { Consistency::Mode };
        let consistency = if reads { sent } else { Consistency::Mode };
        self.asked.push(Asked { shard, op: op.clone(), answer: None, times: (now, 0), consistency });
        let from = From::Session { session: self.session, tag };
        Request { from, shard, op, floor: Position::ZERO, consistency: sent, deadline_us }
    }

    /// An answer came.
    pub fn on_reply(
        &mut self,
        tag: u32,
        outcome: Outcome,
        (shard, position): (ShardId, Position),
        now: Micros,
    ) -> Result<(), String> {
        let asked = self.asked.get_mut(tag as usize).ok_or("an answer to nothing")?;
        if let (Op::Key(key, Action::Version), Outcome::Version(version)) = (&asked.op, &outcome) {
            self.watched = Some((key.clone(), *version));
        }
        self.answered += 1;
        (asked.times.1, asked.shard) = (now, shard);
        match asked.answer.replace((outcome, position)) {
            None => Ok(()),
            Some(first) => Err(format!("request {tag} was answered twice: {first:?} and {:?}", asked.answer)),
        }
    }

    fn operation(&mut self, random: &mut Random, map: &ClusterMap, unique: u64) -> (ShardId, Op) {
        let key = Bytes::from(format!("key{}", random.below(self.keys)));
        let shard = shard_of(map, &key);
        let value = Bytes::from(format!("{unique}"));
        let expiry = match random.below(6) {
            0 => Expiry::After(random.between(1, 3000)),
            1 => Expiry::Keep,
            _ => Expiry::Never,
        };
        let only_if = [None, None, Some(Presence::Present), Some(Presence::Absent)][random.below(4) as usize];
        let action = match random.below(100) {
            14..22 if self.ranges => return (shard, range(random, self.keys, within(map, shard))),
            0..22 => Action::Get,
            22..30 => return (shard, Op::Run(self.run(random, map, key, unique))),
            30..52 => Action::Set(Set { value, expiry, only_if, get: random.percent(20) }),
            52..58 => Action::Delete,
            58..66 => Action::Add(unique as i64),
            66..71 => Action::Append(value),
            71..74 => Action::Expire(Expiry::After(random.below(3000)), ExpireIf::Always),
            74..76 => Action::Persist,
            76..78 => Action::TimeToLive(TimeUnit::Millis),
            78..81 => Action::GetDelete,
            81..85 => Action::Version,
            85..88 => {
                return (
                    shard,
                    Op::Wait { copies: random.below(4) as u16, timeout_ms: random.between(1, 500) },
                );
            }
            88..90 => return (shard, Op::Len),
            90..92 => {
                return (shard, Op::Scan(Scan { count: random.between(1, 20) as u32, ..Scan::default() }));
            }
            92 => return (shard, Op::Clear),
            93..95 => return (shard, Op::Survey),
            _ => return self.batch(random, map, key, unique),
        };
        (shard, Op::Key(key, action))
    }

    /// Some commands on keys of the first one's shard.
    fn run(&mut self, random: &mut Random, map: &ClusterMap, first: Bytes, unique: u64) -> Run {
        let shard = shard_of(map, &first);
        let mut packer = run::Packer::default();
        let mut key = first;
        let reads = random.percent(40);
        for step in 0..random.between(1, 6) {
            match random.below(if reads { 4 } else { 8 }) {
                0..3 => packer.get(&key),
                3 => packer.push(&key, &Action::Length),
                4 => packer.push(&key, &Action::Delete),
                5 => packer.push(&key, &Action::Add(unique as i64)),
                6 => {
                    let set = Set {
                        value: format!("{unique}").into(),
                        expiry: Expiry::After(2000),
                        ..Set::default()
                    };
                    packer.push(&key, &Action::Set(set));
                }
                _ => packer.set(&key, format!("{unique}.{step}").as_bytes()),
            }
            let next = Bytes::from(format!("key{}", random.below(self.keys)));
            if shard_of(map, &next) == shard {
                key = next;
            }
        }
        packer.take()
    }

    /// An atomic batch, under WATCH if something was watched in that shard.
    fn batch(&mut self, random: &mut Random, map: &ClusterMap, key: Bytes, unique: u64) -> (ShardId, Op) {
        let watched = self.watched.take();
        let shard = shard_of(map, watched.as_ref().map_or(&key, |(key, _)| key));
        let key = watched.as_ref().map_or(key, |(key, _)| key.clone());
        let mut steps = vec![Op::Key(key.clone(), Action::Get)];
        if random.percent(70) || watched.is_some() {
            steps.push(Op::Key(key.clone(), Action::Append(Bytes::from(format!("{unique}")))));
            steps.push(Op::Key(key, Action::Length));
        }
        (shard, Op::Batch(Batch { watched: watched.into_iter().collect(), steps }))
    }
}

/// A range of keys, in either order; all that is there fits into one page.
fn range(random: &mut Random, keys: u64, (lower, upper): (Bytes, Option<Bytes>)) -> Op {
    let mut bound = || Bytes::from(format!("key{}", random.below(keys)));
    let (start, end) = (bound(), bound());
    let (start, end) = if start < end { (start, Some(end)) } else { (end, None) };
    let end = end.into_iter().chain(upper).min().map(|end| end.max(lower.clone()));
    let start = start.max(lower);
    let (values, reverse) = (random.percent(50), random.percent(50));
    Op::Range(Box::new(Range { start, end, limit: 1000, bytes_max: 1 << 24, values, reverse, judged: None }))
}

/// Most reads ask for something else than usual.
fn level(number: u64) -> Consistency {
    match number % 8 {
        0 => Consistency::Eventual,
        1 => Consistency::Causal,
        2 => Consistency::Strong,
        3..=5 => Consistency::Bounded(millis(number / 8 % 1500)),
        _ => Consistency::Mode,
    }
}

fn shard_of(map: &ClusterMap, key: &[u8]) -> ShardId {
    if map.shards.iter().any(|shard| shard.part_of.is_some() || !shard.lower.is_empty()) {
        return Routes::of(map).shard_of(0, key).unwrap_or_default();
    }
    let slot = slot_of(key);
    let holds = |(first, last): &(u16, u16)| (*first..=*last).contains(&slot);
    map.shards.iter().find(|shard| shard.slots.iter().any(holds)).map_or(ShardId(0), |shard| shard.id)
}

/// The keys that a shard may have.
fn within(map: &ClusterMap, shard: ShardId) -> (Bytes, Option<Bytes>) {
    let shard = map.shard(shard).cloned().unwrap_or_default();
    let lowers = map.shards.iter().filter(|other| !other.is_vacant()).map(|other| &other.lower);
    (shard.lower.clone(), lowers.filter(|lower| **lower > shard.lower).min().cloned())
}
