//! A datalet around another one that comes back empty, or fails, when it is told to.

use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the world does to the stores of a node.
#[derive(Clone, Debug, Default)]
pub struct Mishaps {
    /// How often they came back empty.
    pub losses: Arc<AtomicU64>,
    /// They fail.
    pub fails: Arc<AtomicBool>,
}

/// The datalet.
pub struct Flaky {
    inner: Box<dyn Datalet>,
    mishaps: Mishaps,
    /// How many losses it has been through.
    generation: u64,
}

impl Flaky {
    /// A datalet that suffers what `mishaps` say.
    pub fn new(inner: Box<dyn Datalet>, mishaps: Mishaps) -> Flaky {
        let generation = mishaps.losses.load(Ordering::Relaxed);
        Flaky { inner, mishaps, generation }
    }

    /// The store as it is by now.
    fn store(&mut self) -> Result<&mut dyn Datalet, DataletError> {
        if self.mishaps.fails.load(Ordering::Relaxed) {
            return Err(DataletError::Failed("the disk is gone".into()));
        }
        let generation = self.mishaps.losses.load(Ordering::Relaxed);
        if generation != self.generation {
            self.generation = generation;
            self.inner.clear()?;
        }
        Ok(self.inner.as_mut())
    }
}

impl Datalet for Flaky {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.store()?.get(key, found)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.store()?.put(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.store()?.delete(key)
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.store()?.walk(cursor, page)
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.store()?.scan(start, end, page)
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.store()?.scan_back(start, end, page)
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        self.inner.has_passed(cursor, key)
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.store()?.clear()
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.store()?.len()
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        self.store()?.commit(mark, durably)
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        self.store()?.mark()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn generation(&self) -> u64 {
        self.mishaps.losses.load(Ordering::Relaxed)
    }
}
