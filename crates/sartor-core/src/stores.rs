//! The keepers of one worker, run in line: for datalets that do not block.

use crate::ids::ShardId;
use crate::keeper::{Done, Keeper, Task};
use crate::time::Now;
use alloc::collections::BTreeMap;

/// One keeper a replica.
#[derive(Default)]
pub struct Stores {
    keepers: BTreeMap<ShardId, Keeper>,
}

impl Stores {
    /// Puts the replica's records here.
    pub fn insert(&mut self, shard: ShardId, keeper: Keeper) {
        self.keepers.insert(shard, keeper);
    }

    /// Takes a replica's records out.
    pub fn remove(&mut self, shard: ShardId) -> Option<Keeper> {
        self.keepers.remove(&shard)
    }

    /// A replica's keeper.
    pub fn get(&self, shard: ShardId) -> Option<&Keeper> {
        self.keepers.get(&shard)
    }

    /// A replica's keeper, to be changed.
    pub fn get_mut(&mut self, shard: ShardId) -> Option<&mut Keeper> {
        self.keepers.get_mut(&shard)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, &Keeper)> {
        self.keepers.iter().map(|(shard, keeper)| (*shard, keeper))
    }

    /// About how many bytes of memory all records take.
    pub fn bytes(&self) -> u64 {
        self.keepers.values().map(Keeper::bytes).sum()
    }

    /// From now on, operations that make records larger are refused, or are not.
    pub fn set_full(&mut self, full: bool) {
        self.keepers.values_mut().for_each(|keeper| keeper.set_full(full));
    }

    /// A hint that these tasks will be run soon, in this order.
    pub fn expect(&mut self, tasks: &[(ShardId, Task)]) {
        if let [(_, task)] = tasks
            && !task.is_run()
        {
            // It is run at once.
            return;
        }
        for (shard, task) in tasks {
            if let Some(keeper) = self.keepers.get_mut(shard) {
                keeper.expect(task);
            }
        }
    }

    /// Runs one task. A replica whose store could not be opened has a broken one.
    pub fn run(&mut self, now: Now, shard: ShardId, task: Task) -> Done {
        match self.keepers.get_mut(&shard) {
            Some(keeper) => keeper.run(now, task),
            None => Done::missing(task),
        }
    }
}
