//! What a command comes down to.

use super::range::{RangeJoin, parts as range_parts};
use crate::config::NodeConfig;
use crate::settings::Settings;
use crate::stats::Stats;
use bytes::Bytes;
use sartor_core::coordinator::wish::Change;
use sartor_core::datalet::{CURSOR_NUMBERS, Cursor};
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::operation::{Action, Consistency, Op};
use sartor_core::range::Range;
use sartor_core::routing::map::ClusterMap;
use sartor_core::routing::route::Routes;
use sartor_core::time::{Micros, Now};
use std::collections::{BTreeMap, VecDeque};

/// What to do for a command.
#[derive(Debug)]
pub enum Plan {
    /// The reply is known.
    Local(Vec<u8>),
    /// One operation on one key.
    Key(Bytes, Action, Shape),
    /// The value of a key, as fresh as this.
    Read(Bytes, Consistency),
    /// Operations on shards, and how their answers become one reply.
    Parts(Vec<(ShardId, Op)>, Join),
    /// The same, remembered under an id by the shards.
    Once(OnceId, Vec<(ShardId, Op)>, Join),
    /// Something about this connection.
    Connection(Act),
    /// Something that only the worker can answer.
    Worker(Ask),
}

/// What SARTOR.ONCE calls a command, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceId {
    /// The id.
    pub id: Bytes,
    /// Of the command.
    pub fingerprint: u64,
}

/// What a command does to its connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Act {
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD.
    Discard,
    /// UNWATCH.
    Unwatch,
    /// QUIT.
    Quit,
    /// RESET.
    Reset,
    /// SELECT: the table from now on.
    Table(u16),
    /// READONLY, READWRITE, SARTOR.CONSISTENCY: how fresh reads must be from now on.
    Consistency(Consistency),
    /// An error that does not spoil the transaction it comes in.
    Refuse(&'static str),
}

/// What a command asks of the worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Ask {
    /// CLIENT LIST.
    ClientList,
    /// CLIENT KILL of a connection's number or peer address; by a filter, it answers with a count.
    ClientKill(KillBy, bool),
    /// SARTOR.STATUS: the cluster as JSON.
    Status,
    /// SARTOR.VERIFY RESULT: what the copy on this node surveyed at that place.
    Surveyed(ShardId, Position),
    /// SARTOR.DEBUG CORRUPT: damage the record in the copy on this node.
    Corrupt(ShardId, Bytes),
    /// SARTOR.SWITCH, SARTOR.TABLE: a change of a table; answered when it is done.
    Change(ChangeAsk),
}

/// What a client wants changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeAsk {
    /// What.
    pub change: Change,
    /// Whether the number of copies or the datalet was asked for, so that it is done when all are there.
    pub fills: bool,
    /// How long the client waits.
    pub until_us: Micros,
}

/// Which connection to kill.
#[derive(Debug, PartialEq, Eq)]
pub enum KillBy {
    /// By its number.
    Id(u64),
    /// By its peer's address.
    Addr(String),
}

/// How one outcome becomes a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// As it is.
    #[default]
    Plain,
    /// Done is 1, not done is 0.
    Bit,
    /// What TYPE says.
    Type,
    /// With the level of consistency that was asked for.
    Told(Consistency),
}

/// How several outcomes become one reply.
#[derive(Debug)]
pub enum Join {
    /// There is only one.
    One(Shape),
    /// Their sum.
    Sum,
    /// All of them in order.
    Array,
    /// OK if all are.
    AllDone,
    /// The smallest number, asked for again until it is large enough or time is up.
    Wait(WaitJoin),
    /// A page of SCAN.
    Scan(ScanJoin),
    /// A page of SARTOR.RANGE.
    Range(RangeJoin),
    /// Of tables as a whole.
    Whole(Box<Whole>),
    /// What WATCH remembers, for these keys.
    Watch(Vec<(ShardId, Bytes)>),
    /// The number of records in INFO, of which these sections are wanted; of which table each part is.
    Info(Vec<String>, Vec<u16>),
    /// Where each of these shards is surveyed.
    Surveys(Vec<ShardId>),
    /// What EXEC's commands answered: each one's join, and how many of the parts are its own.
    Exec(Vec<(Queued, usize)>),
}

/// What is asked of tables as a whole. Where one is divided meanwhile, it is asked again.
#[derive(Debug)]
pub struct Whole {
    /// It.
    pub ask: WholeAsk,
    /// How the answers become one.
    pub join: Join,
    /// When tables were last divided, by the map that it was planned by.
    pub divided: Epoch,
    /// How often it may be asked again.
    pub rounds: u8,
}

/// What is asked.
#[derive(Debug)]
pub enum WholeAsk {
    /// Every shard of this table.
    Table(u16, Op),
    /// Every shard of every table.
    AllTables(Op),
    /// The shards of this table that may have something of a range.
    Range(u16, Range),
}

impl WholeAsk {
    /// One part for each shard.
    pub fn parts(&self, env: &Env<'_>) -> Result<Vec<(ShardId, Op)>, String> {
        let map = env.map.ok_or_else(no_map)?;
        let is_there = |table: u16| if env.routes.has(table) { Ok(()) } else { Err(env.no_route()) };
        Ok(match self {
            WholeAsk::Table(table, op) => {
                is_there(*table)?;
                map.takers_of(*table).map(|shard| (shard.id, op.clone())).collect()
            }
            WholeAsk::AllTables(op) => {
                let shards = map.shards.iter().filter(|shard| shard.is_apart());
                shards.map(|shard| (shard.id, op.clone())).collect()
            }
            WholeAsk::Range(table, range) => {
                is_there(*table)?;
                range_parts(*table, range, env)
            }
        })
    }

    /// Whether it is not to be done twice.
    pub fn removes(&self) -> bool {
        matches!(self, WholeAsk::Table(_, Op::Clear) | WholeAsk::AllTables(Op::Clear))
    }

    /// When its tables were last divided.
    pub fn divided(&self, env: &Env<'_>) -> Epoch {
        let tables = env.map.iter().flat_map(|map| &map.tables);
        let concerns = |table: u16| match self {
            WholeAsk::Table(of, _) | WholeAsk::Range(of, _) => *of == table,
            WholeAsk::AllTables(_) => true,
        };
        tables.filter(|table| concerns(table.id)).map(|table| table.divided).max().unwrap_or_default()
    }

    /// A command that asks this.
    pub fn plan(self, join: Join, env: &Env<'_>) -> Result<Plan, String> {
        let (parts, divided) = (self.parts(env)?, self.divided(env));
        let whole = Whole { ask: self, join, divided, rounds: ROUNDS };
        Ok(Plan::Parts(parts, Join::Whole(Box::new(whole))))
    }
}

/// A division changes the map three times.
const ROUNDS: u8 = 6;

/// What WAIT asks, until when.
#[derive(Debug)]
pub struct WaitJoin {
    /// What every shard is asked.
    pub parts: Vec<(ShardId, Op)>,
    /// So many copies are enough.
    pub copies: i64,
    /// Time is up then.
    pub until_us: Micros,
}

/// A command in a transaction.
#[derive(Debug)]
pub enum Queued {
    /// Its reply is known.
    Local(Vec<u8>),
    /// Its reply comes from parts.
    Joined(Join),
}

/// What the answer to SCAN still needs.
#[derive(Debug)]
pub struct ScanJoin {
    /// The shard that was asked.
    pub shard: ShardId,
    /// MATCH.
    pub pattern: Option<Bytes>,
    /// Whether TYPE asked for something that is not there.
    pub nothing: bool,
}

/// What planning and joining can see of the node.
pub struct Env<'a> {
    /// The time.
    pub now: Now,
    /// The map, once there is one.
    pub map: Option<&'a ClusterMap>,
    /// Where the keys of each table are.
    pub routes: &'a Routes,
    /// The connection's table.
    pub table: u16,
    /// Limits.
    pub settings: &'a Settings,
    /// Counters.
    pub stats: &'a Stats,
    /// Whether single commands of many connections may be packed together.
    pub pools: bool,
    /// SCAN cursors that are not numbers.
    pub cursors: &'a mut Cursors,
    /// This node's configuration.
    pub config: &'a NodeConfig,
}

impl Env<'_> {
    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> Result<ShardId, String> {
        self.routes.shard_of(self.table, key).ok_or_else(|| self.no_route())
    }

    fn no_route(&self) -> String {
        match self.map {
            None => no_map(),
            Some(_) => "ERR the table was deleted; SELECT another one".into(),
        }
    }

    /// Whether this node orders the shard's writes.
    pub fn heads(&self, shard: ShardId) -> bool {
        let head = self.map.and_then(|map| map.head_of(shard));
        head.is_some_and(|head| head.node.0 == self.config.node)
    }

    /// One part for each shard of the connection's table.
    pub fn everywhere(&self, op: &Op) -> Result<Vec<(ShardId, Op)>, String> {
        match self.map.filter(|_| self.routes.has(self.table)) {
            Some(map) => Ok(map.takers_of(self.table).map(|shard| (shard.id, op.clone())).collect()),
            None => Err(self.no_route()),
        }
    }

    /// One part for each shard of each table.
    pub fn in_all_tables(&self, op: &Op) -> Result<Vec<(ShardId, Op)>, String> {
        let shards = self.map.ok_or_else(no_map)?.shards.iter().filter(|shard| shard.is_apart());
        Ok(shards.map(|shard| (shard.id, op.clone())).collect())
    }
}

fn no_map() -> String {
    "LOADING this node has no cluster map yet; is the coordinator up? See: sartor status".into()
}

/// SCAN cursors as clients see them: `part * 2^43 + place`, below 2^53 so that every client can hold
/// them. The part is the shard's place among the shards of its table, of which there are 1024 at most. A place below 2^42 is the
/// datalet's own number; beyond, it is a note in this table.
#[derive(Debug, Default)]
pub struct Cursors {
    notes: BTreeMap<u64, (ShardId, Bytes)>,
    order: VecDeque<u64>,
    next: u64,
}

/// Walks by key that a worker remembers; the oldest are forgotten beyond that.
const NOTES_MAX: usize = 10_000;
const PART_SHIFT: u32 = CURSOR_NUMBERS.trailing_zeros() + 1;

impl Cursors {
    /// The number for a place in a shard, which is that part of its table.
    pub fn to_number(&mut self, part: usize, shard: ShardId, cursor: Cursor) -> u64 {
        let place = match cursor {
            Cursor::Start | Cursor::End => 0,
            Cursor::Number(number) => number,
            Cursor::Key(key) => self.note(shard, key),
        };
        (part as u64) << PART_SHIFT | place
    }

    fn note(&mut self, shard: ShardId, key: Bytes) -> u64 {
        let id = CURSOR_NUMBERS + self.next % CURSOR_NUMBERS;
        self.next += 1;
        self.notes.insert(id, (shard, key));
        self.order.push_back(id);
        if self.order.len() > NOTES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.notes.remove(&oldest);
        }
        id
    }

    /// The place of a number in a table with these shards; none if it was never given out, or forgotten.
    pub fn from_number(
        &self,
        number: u64,
        mut shards: impl Iterator<Item = ShardId>,
    ) -> Option<(ShardId, Cursor)> {
        let shard = shards.nth(usize::try_from(number >> PART_SHIFT).ok()?)?;
        match number & ((1 << PART_SHIFT) - 1) {
            0 => Some((shard, Cursor::Start)),
            place if place < CURSOR_NUMBERS => Some((shard, Cursor::Number(place))),
            place => {
                let (noted, key) = self.notes.get(&place)?;
                (*noted == shard).then(|| (shard, Cursor::Key(key.clone())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_fit_every_client() {
        let mut cursors = Cursors::default();
        for cursor in
            [Cursor::Number(1), Cursor::Number(CURSOR_NUMBERS - 1), Cursor::Key(Bytes::from_static(b"k"))]
        {
            for part in [0, 5, 1023] {
                let shard = ShardId(15_000 + part as u16);
                let number = cursors.to_number(part, shard, cursor.clone());
                assert!(number < 1 << 53 && number != 0);
                let shards = || (15_000..16_024).map(ShardId);
                assert_eq!(cursors.from_number(number, shards()), Some((shard, cursor.clone())));
                assert_eq!(cursors.from_number(number, shards().take(part)), None, "there are fewer");
            }
        }
        assert_eq!(cursors.from_number(CURSOR_NUMBERS + 99, [ShardId(0)].into_iter()), None);
        let noted = cursors.to_number(0, ShardId(7), Cursor::Key(Bytes::new()));
        assert_eq!(cursors.from_number(noted, [ShardId(8)].into_iter()), None, "it is of another table");
        for _ in 0..NOTES_MAX + 10 {
            cursors.to_number(0, ShardId(0), Cursor::Key(Bytes::new()));
        }
        assert_eq!(cursors.notes.len(), NOTES_MAX);
    }
}
