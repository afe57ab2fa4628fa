//! Digests of a replica's records, slot by slot, as they were at one place in the shard's history, taken while writes
//! go on. Replicas that hold the same have equal digests, however far each of them has got meanwhile.
//!
//! ```text
//!   entries:  … 41, 42, [43: survey], 44, 45, 46 …        each replica begins when it applies 43
//!   walk:     ├── passed: counted ──┼── not yet ──┤
//!                                      a write here counts the old record first
//! ```
//!
//! Nothing is copied. A record tells by its version whether it is older than the survey, and the store tells whether
//! the walk has passed a key. A write to a key that was passed changes nothing that counts. At any other key it finds the
//! record as it was at the survey, which is counted now, or a newer one, which was counted before or never was; and
//! the walk, when it comes there, passes over what is newer than the survey. So each record as of the survey counts
//! once, in memory of one sum a slot.

use crate::datalet::{Cursor, DataletError, Page};
use crate::ids::Position;
use crate::record::Meta;
use crate::routing::slot::{SLOTS, slot_of};
use crate::shelf::Shelf;
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSum {
    /// How many records.
    pub records: u64,
    /// The sum of their hashes.
    pub digest: u128,
}

impl SlotSum {
    fn add(&mut self, hash: u128) {
        self.records += 1;
        self.digest = self.digest.wrapping_add(hash);
    }
}

/// The slots that hold records, in order.
pub type Sums = Vec<(u16, SlotSum)>;

/// How a replica's last survey stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The place it tells of.
    pub at: Position,
    /// What is known.
    pub found: Found,
}

/// What a survey has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It goes on.
    Running {
        /// Records seen.
        done: u64,
        /// Records that there were when it began.
        total: u64,
    },
    /// All of it.
    Done(Arc<Sums>),
    /// It could not be ended, and why.
    Failed(Cow<'static, str>),
}

/// The last survey of a replica.
pub(crate) struct Survey {
    at: Position,
    state: State,
}

enum State {
    Running(Walk),
    Ended(Found),
}

struct Walk {
    cursor: Cursor,
    sums: Vec<SlotSum>,
    done: u64,
    total: u64,
}

impl Survey {
    /// Begins, with as many records as there are.
    pub(crate) fn new(at: Position, total: u64) -> Survey {
        let sums = vec![SlotSum::default(); usize::from(SLOTS)];
        Survey { at, state: State::Running(Walk { cursor: Cursor::Start, sums, done: 0, total }) }
    }

    /// How it stands.
    pub(crate) fn report(&self) -> Report {
        let found = match &self.state {
            State::Running(walk) => Found::Running { done: walk.done, total: walk.total },
            State::Ended(found) => found.clone(),
        };
        Report { at: self.at, found }
    }

    /// Ends it without a result, if it has none yet.
    pub(crate) fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        if let State::Running(_) = self.state {
            self.state = State::Ended(Found::Failed(why.into()));
        }
    }

    /// A write to this key is about to take effect.
    pub(crate) fn before_write(&mut self, shelf: &mut Shelf, key: &[u8]) -> Result<(), DataletError> {
        let State::Running(walk) = &mut self.state else { return Ok(()) };
        match shelf.has_passed(&walk.cursor, key) {
            Some(true) => return Ok(()),
            Some(false) => {}
            None => {
                self.fail("its engine cannot be surveyed while it is written to");
                return Ok(());
            }
        }
        let (at, sum) = (self.at, &mut walk.sums[usize::from(slot_of(key))]);
        let mut counted = 0;
        shelf.get(key, &mut |meta, value| {
            if meta.version <= at {
                sum.add(hash_of(key, value, &meta));
                counted = 1;
            }
        })?;
        walk.done += counted;
        Ok(())
    }

    /// Looks at a page of records more; whether there are others.
    pub(crate) fn go_on(&mut self, shelf: &mut Shelf, mut page: Page) -> Result<bool, DataletError> {
        let State::Running(walk) = &mut self.state else { return Ok(false) };
        shelf.walk(&mut walk.cursor, &mut page)?;
        for (key, stored) in page.pairs() {
            let (meta, start) = shelf.meta_of(key, stored)?;
            if meta.version <= self.at {
                walk.sums[usize::from(slot_of(key))].add(hash_of(key, &stored[start..], &meta));
                walk.done += 1;
            }
        }
        let more = walk.cursor != Cursor::End;
        if !more {
            let sums = (0..SLOTS).zip(walk.sums.iter().copied()).filter(|(_, sum)| sum.records > 0);
            self.state = State::Ended(Found::Done(Arc::new(sums.collect())));
        }
        Ok(more)
    }
}

/// A record's hash, version and deadline included. Two seeds, so that chance makes no unlike records equal.
pub fn hash_of(key: &[u8], value: &[u8], meta: &Meta) -> u128 {
    let half = |seed| {
        let mut hasher = foldhash::quality::FixedState::with_seed(seed).build_hasher();
        hasher.write_u64(key.len() as u64);
        hasher.write(key);
        hasher.write_u64(meta.version.epoch.0);
        hasher.write_u64(meta.version.sequence);
        hasher.write_u8(u8::from(meta.deadline_ms.is_some()));
        hasher.write_u64(meta.deadline_ms.unwrap_or(0));
        hasher.write(value);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// A number that two programs share only if they hash alike, so that their digests can be compared.
pub fn hash_kind() -> u128 {
    let meta = Meta { deadline_ms: Some(1), ..Meta::default() };
    hash_of(b"which hash", &[7; 99], &meta)
}
