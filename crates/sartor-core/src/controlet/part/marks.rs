//! Which keys have writes in flight, without a list of them.

use core::hash::{BuildHasher, Hasher};

use crate::entry::{Write, Writes};
use crate::mutants::{Fault, planted};
use crate::operation::Op;
use alloc::vec;
use alloc::vec::Vec;

/// For each bucket of keys, the last entry that wrote to one of them. A key shares its bucket with others, so that
/// it may seem to have a write in flight when it has none, never the other way round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Marks {
    buckets: Vec<u64>,
    /// The last entry of all, and the last one that wrote to every key.
    last: u64,
    all: u64,
}

impl Marks {
    /// No writes in flight; keys fall into so many buckets, a power of two.
    pub fn new(buckets: usize) -> Marks {
        assert!(buckets.is_power_of_two(), "a mask finds the bucket");
        Marks { buckets: vec![0; buckets], last: 0, all: 0 }
    }

    /// An entry with these writes is there.
    pub fn note(&mut self, sequence: u64, writes: &Writes) {
        self.last = sequence;
        for write in writes.iter() {
            match write {
                Write::Put { key, .. } | Write::Delete { key } => self.note_key(sequence, key),
                Write::Clear if planted(Fault::ClearUnmarked) => {}
                Write::Clear => self.all = sequence,
                Write::Survey => {}
            }
        }
    }

    /// An operation has this place; what it will change is not known yet.
    pub fn note_op(&mut self, sequence: u64, op: &Op) {
        self.last = sequence;
        match op {
            Op::Key(key, _) => self.note_key(sequence, key),
            Op::Run(run) => run.steps().for_each(|step| self.note_key(sequence, step.key)),
            Op::Expire(keys) => keys.iter().for_each(|key| self.note_key(sequence, key)),
            Op::Batch(batch) => batch.steps.iter().for_each(|step| self.note_op(sequence, step)),
            Op::Once(once) => self.note_op(sequence, &once.op),
            Op::Clear if planted(Fault::ClearUnmarked) => {}
            Op::Clear => self.all = sequence,
            Op::Len | Op::Survey | Op::Scan(_) | Op::Range(_) | Op::Wait { .. } => {}
        }
    }

    fn note_key(&mut self, sequence: u64, key: &[u8]) {
        let bucket = self.bucket_of(key);
        self.buckets[bucket] = sequence;
    }

    /// Every key may have a write in flight, up to this entry.
    pub fn note_all(&mut self, sequence: u64) {
        (self.last, self.all) = (sequence, sequence);
    }

    /// The last entry that an operation may have seen something of; any that are at all members up to `settled`
    /// are as good as none.
    pub fn seen_by(&self, op: &Op, settled: u64) -> u64 {
        if self.last <= settled { 0 } else { self.seen(op) }
    }

    fn seen(&self, op: &Op) -> u64 {
        match op {
            Op::Key(key, _) => self.buckets[self.bucket_of(key)].max(self.all),
            Op::Batch(batch) => {
                let watched = batch.watched.iter().map(|(key, _)| self.buckets[self.bucket_of(key)]);
                let steps = batch.steps.iter().map(|step| self.seen(step));
                watched.chain(steps).max().unwrap_or(0).max(self.all)
            }
            Op::Run(run) => {
                let steps = run.steps().map(|step| self.buckets[self.bucket_of(step.key)]);
                steps.max().unwrap_or(0).max(self.all)
            }
            Op::Once(once) => self.seen(&once.op),
            Op::Len | Op::Clear | Op::Survey | Op::Expire(_) => self.last,
            Op::Scan(_) | Op::Range(_) | Op::Wait { .. } => self.last,
        }
    }

    fn bucket_of(&self, key: &[u8]) -> usize {
        let mut hasher = foldhash::fast::FixedState::with_seed(0).build_hasher();
        hasher.write(key);
        hasher.finish() as usize & (self.buckets.len() - 1)
    }
}
