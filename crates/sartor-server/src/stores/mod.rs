//! The stores of one worker: those that do not block run in line, the others on threads beside the loop.

pub mod disks;
pub mod thread;

use sartor_core::ids::{Position, ShardId};
use sartor_core::keeper::{Done, Keeper, Task};
use sartor_core::record::Bounds;
use sartor_core::stores::Stores as Inline;
use sartor_core::survey::Report;
use sartor_core::time::Now;
use sartor_datalets::drop_aside;
use std::collections::BTreeMap;
use thread::Threaded;

/// One store a replica.
#[derive(Default)]
pub struct Stores {
    inline: Inline,
    threads: BTreeMap<ShardId, Threaded>,
}

impl Stores {
    /// Puts a replica's records here.
    pub fn insert(&mut self, shard: ShardId, keeper: Keeper) {
        self.inline.insert(shard, keeper);
    }

    /// Puts a replica's store here that has a thread.
    pub fn insert_thread(&mut self, shard: ShardId, thread: Threaded) {
        self.threads.insert(shard, thread);
    }

    /// A replica's store is no longer wanted.
    pub fn remove(&mut self, shard: ShardId) {
        drop_aside(self.inline.remove(shard));
        self.threads.remove(&shard).into_iter().for_each(Threaded::remove);
    }

    /// A hint that these tasks will be run soon, in this order.
    pub fn expect(&mut self, tasks: &[(ShardId, Task)]) {
        self.inline.expect(tasks);
    }

    /// Runs one task: what came of it, if its store has no thread.
    pub fn run(&mut self, now: Now, shard: ShardId, task: Task) -> Option<Done> {
        if !self.threads.is_empty()
            && let Some(thread) = self.threads.get_mut(&shard)
        {
            thread.add(now, task);
            return None;
        }
        Some(self.inline.run(now, shard, task))
    }

    /// Whether something waits to be sent to a thread.
    pub fn holds(&self) -> bool {
        self.threads.values().any(Threaded::holds)
    }

    /// Sends the threads what is for them.
    pub fn flush(&mut self) {
        self.threads.values_mut().for_each(Threaded::flush);
    }

    /// About how many bytes of memory all records take.
    pub fn bytes(&self) -> u64 {
        self.inline.bytes() + self.threads.values().map(|thread| thread.seen().bytes).sum::<u64>()
    }

    /// From now on, operations that make records larger are refused, or are not.
    pub fn set_full(&mut self, full: bool) {
        self.inline.set_full(full);
        self.threads.values_mut().for_each(|thread| thread.set_full(full));
    }

    /// From now on this shard takes these records.
    pub fn set_bounds(&mut self, shard: ShardId, bounds: Bounds) {
        if let Some(keeper) = self.inline.get_mut(shard) {
            keeper.set_bounds(bounds);
        }
        if let Some(thread) = self.threads.get_mut(&shard) {
            thread.set_bounds(bounds);
        }
    }

    /// A replica was filled, and is a member now.
    pub fn become_whole(&mut self, shard: ShardId) {
        self.threads.get_mut(&shard).into_iter().for_each(Threaded::become_whole);
    }

    /// Damages a record: whether it was there, where that is known at once.
    pub fn corrupt(&mut self, shard: ShardId, key: &[u8]) -> Result<Option<bool>, String> {
        if let Some(thread) = self.threads.get_mut(&shard) {
            thread.corrupt(bytes::Bytes::copy_from_slice(key));
            return Ok(None);
        }
        let keeper = self.inline.get_mut(shard);
        let keeper = keeper.ok_or_else(|| format!("this node has no copy of shard {}", shard.0))?;
        keeper.corrupt(key).map(Some).map_err(|error| error.to_string())
    }

    /// How far each copy is, and its last survey.
    pub fn surveyed(&self) -> BTreeMap<ShardId, (Position, Option<Report>)> {
        let inline =
            self.inline.iter().map(|(shard, keeper)| (shard, (keeper.position(), keeper.surveyed())));
        let threads = self.threads.iter().map(|(shard, thread)| (*shard, thread.seen()));
        inline.chain(threads.map(|(shard, seen)| (shard, (seen.position, seen.surveyed)))).collect()
    }
}
