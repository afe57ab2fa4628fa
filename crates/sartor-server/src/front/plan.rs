//! What a command comes down to.

use crate::config::NodeConfig;
use crate::settings::Settings;
use crate::stats::Stats;
use bytes::Bytes;
use sartor_core::coordinator::switch::TableShape;
use sartor_core::datalet::{CURSOR_NUMBERS, Cursor};
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{Action, Consistency, Op};
use sartor_core::routing::map::ClusterMap;
use sartor_core::routing::slot::slot_of;
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
    /// SARTOR.SWITCH: another mode for a table; answered when it is done.
    Switch(SwitchAsk),
}

/// Which shape for which table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchAsk {
    /// The table's index.
    pub table: u16,
    /// What it should be.
    pub shape: TableShape,
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
    /// What WATCH remembers, for these keys.
    Watch(Vec<(ShardId, Bytes)>),
    /// The number of records in INFO.
    Info(Vec<String>),
    /// Where each of these shards is surveyed.
    Surveys(Vec<ShardId>),
    /// What EXEC's commands answered: each one's join, and how many of the parts are its own.
    Exec(Vec<(Queued, usize)>),
}

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
    /// The shard of each slot, or of all.
    pub slots: &'a [ShardId],
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
        match self.slots {
            [only] => Ok(*only),
            slots => slots.get(usize::from(slot_of(key))).copied().ok_or_else(no_map),
        }
    }

    /// Whether this node orders the shard's writes.
    pub fn heads(&self, shard: ShardId) -> bool {
        let head = self.map.and_then(|map| map.head_of(shard));
        head.is_some_and(|head| head.node.0 == self.config.node)
    }

    /// One part a shard.
    pub fn everywhere(&self, op: &Op) -> Result<Vec<(ShardId, Op)>, String> {
        let map = self.map.ok_or_else(no_map)?;
        Ok(map.shards.iter().map(|shard| (shard.id, op.clone())).collect())
    }
}

fn no_map() -> String {
    "LOADING this node has no cluster map yet; is the coordinator up? See: sartor status".into()
}

/// SCAN cursors as clients see them: `shard * 2^43 + place`, below 2^53 so that every client can hold
/// them. A place below 2^42 is the datalet's own number; beyond, it is a note in this table.
#[derive(Debug, Default)]
pub struct Cursors {
    notes: BTreeMap<u64, (ShardId, Bytes)>,
    order: VecDeque<u64>,
    next: u64,
}

/// Walks by key that a worker remembers; the oldest are forgotten beyond that.
const NOTES_MAX: usize = 10_000;
const SHARD_SHIFT: u32 = CURSOR_NUMBERS.trailing_zeros() + 1;

impl Cursors {
    /// The number for a place.
    pub fn to_number(&mut self, shard: ShardId, cursor: Cursor) -> u64 {
        let place = match cursor {
            Cursor::Start | Cursor::End => 0,
            Cursor::Number(number) => number,
            Cursor::Key(key) => self.note(shard, key),
        };
        u64::from(shard.0) << SHARD_SHIFT | place
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

    /// The place of a number; none if it was never given out, or forgotten.
    pub fn from_number(&self, number: u64) -> Option<(ShardId, Cursor)> {
        let shard = ShardId(u16::try_from(number >> SHARD_SHIFT).ok()?);
        match number & ((1 << SHARD_SHIFT) - 1) {
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
            for shard in [0, 5, 1023] {
                let number = cursors.to_number(ShardId(shard), cursor.clone());
                assert!(number < 1 << 53 && number != 0);
                assert_eq!(cursors.from_number(number), Some((ShardId(shard), cursor.clone())));
            }
        }
        assert_eq!(cursors.from_number(CURSOR_NUMBERS + 99), None);
        for _ in 0..NOTES_MAX + 10 {
            cursors.to_number(ShardId(0), Cursor::Key(Bytes::new()));
        }
        assert_eq!(cursors.notes.len(), NOTES_MAX);
    }
}
