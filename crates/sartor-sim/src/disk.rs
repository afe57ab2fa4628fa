//! A machine's disk, and a datalet on it: what was committed outlives the machine.

use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::ids::ShardId;
use sartor_core::keeper::{Mark, mark_of};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What was committed of each shard's store.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<BTreeMap<ShardId, Image>>>);

#[derive(Clone, Debug, Default)]
struct Image {
    pairs: Pairs,
    mark: Vec<u8>,
}

impl Disk {
    fn images(&self) -> MutexGuard<'_, BTreeMap<ShardId, Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks of all stores.
    pub fn marks(&self) -> Vec<Mark> {
        let shards: Vec<ShardId> = self.images().keys().copied().collect();
        let mark = |shard| mark_of(&mut OnDisk::open(self.clone(), shard)).ok().flatten();
        shards.into_iter().filter_map(mark).collect()
    }

    /// All is lost.
    pub fn wipe(&self) {
        self.images().clear();
    }

    /// A replica's store is no longer wanted.
    pub fn remove(&self, shard: ShardId) {
        self.images().remove(&shard);
    }
}

/// A store on a disk.
pub struct OnDisk {
    disk: Disk,
    shard: ShardId,
    pairs: Pairs,
}

impl OnDisk {
    /// As of its last commit.
    pub fn open(disk: Disk, shard: ShardId) -> OnDisk {
        let pairs = disk.images().get(&shard).map(|image| image.pairs.clone()).unwrap_or_default();
        OnDisk { disk, shard, pairs }
    }
}

impl Datalet for OnDisk {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.pairs.get(key).into_iter().for_each(|value| found(value));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.pairs.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.pairs.remove(key);
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let from = match cursor {
            Cursor::Key(last) => Bound::Excluded(last.to_vec()),
            _ => Bound::Unbounded,
        };
        for (key, value) in self.pairs.range((from, Bound::Unbounded)) {
            if page.is_full() {
                return Ok(());
            }
            page.push(key, value);
            *cursor = Cursor::Key(key.clone().into());
        }
        *cursor = Cursor::End;
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(match cursor {
            Cursor::Key(last) => key <= last.as_ref(),
            Cursor::End => true,
            _ => false,
        })
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.pairs.clear();
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.pairs.len() as u64)
    }

    fn commit(&mut self, mark: &[u8], _durably: bool) -> Result<(), DataletError> {
        let image = Image { pairs: self.pairs.clone(), mark: mark.to_vec() };
        self.disk.images().insert(self.shard, image);
        Ok(())
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        Ok(self.disk.images().get(&self.shard).map(|image| image.mark.clone()))
    }
}
