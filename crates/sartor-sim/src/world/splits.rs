//! Users divide the table; which parts came of it.

use super::switches::{Wanted, What};
use super::{Happening, World};
use bytes::Bytes;
use sartor_core::ids::{Epoch, ShardId};
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::{Micros, millis};

/// A shard that was the upper part of another one.
#[derive(Clone, Debug)]
pub struct Part {
    /// Of which one.
    pub whole: ShardId,
    /// Its least key.
    pub lower: Bytes,
    /// The epoch in which that one took no more for it, and when.
    pub closed: (Epoch, Micros),
    /// The same, or a later one in which that one began again.
    pub born: Epoch,
    /// In which view that one was then.
    pub view: Epoch,
    /// When it began to serve.
    pub opened: Micros,
}

/// The key at which a user divides the table.
pub fn bound(number: u64) -> Bytes {
    Bytes::from(format!("key{number}"))
}

impl World {
    /// About one in five seconds.
    pub(super) fn plan_splits(&mut self) {
        if !self.config.splits {
            return;
        }
        for _ in 0..(self.config.run_ms / 5000).clamp(2, 6) {
            let at = self.random.between(millis(300), millis(self.config.run_ms * 9 / 10));
            let node = self.random.below(self.machines.len() as u64) as u16;
            let what = What::Split(self.random.below(self.plan.keys));
            self.at(at, Happening::Wish(Wanted { node, tries: 0, what }));
        }
    }

    /// Remembers parts that become shards of their own.
    pub(super) fn note_parts(&mut self, map: &ClusterMap) {
        let Some(old) = &self.disk else { return };
        // What was decided and never kept was not.
        for shard in &map.shards {
            let open = shard.part_of.filter(|part| !part.closed).map(|_| shard.id);
            open.map(|id| self.closed.remove(&id));
            shard.part_of.map(|_| self.parts.remove(&shard.id));
        }
        for (shard, old) in map.shards.iter().zip(&old.shards) {
            if shard.part_of.is_some_and(|part| part.closed) {
                self.closed.entry(shard.id).or_insert((shard.born, self.now_us));
            }
            if let Some(part) = old.part_of.filter(|_| shard.part_of.is_none() && !shard.is_vacant()) {
                let (whole, lower, born, opened) = (part.whole, shard.lower.clone(), shard.born, self.now_us);
                let view = map.shard(whole).map_or(born, |whole| whole.epoch);
                let closed = self.closed.remove(&shard.id).unwrap_or((born, self.now_us));
                self.parts.insert(shard.id, Part { whole, lower, closed, born, view, opened });
                self.modes.switched += 1;
            }
        }
    }
}
