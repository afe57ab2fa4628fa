//! The contract of a single-server store.
//!
//! A datalet holds one table's part of one shard and knows nothing else: no replica, no
//! version, no expiry. Put, get, delete and walk are all that its author owes; the rest
//! has a default. To add one, see ARCHITECTURE.md, "A new datalet".

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::fmt;

/// A single-server key-value store. It may block; one owner calls it, so it needs no locks.
/// Keys and values are any bytes, empty ones included.
pub trait Datalet: Send {
    /// Calls `found` once with the value of `key`, or not at all where there is none.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError>;

    /// Sets `key` to `value`, whether it was there or not.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError>;

    /// The same, of a pair that its owner removes at that time, in ms since 1970. A store that others read may remove it by itself
    /// some time after that, should there be no owner any more.
    fn put_until(&mut self, key: &[u8], value: &[u8], _deadline_ms: u64) -> Result<(), DataletError> {
        self.put(key, value)
    }

    /// Tells which pairs the store would remove by itself, and when, in ms since 1970: from now on its owner does.
    fn adopt_deadlines(&mut self, _found: &mut dyn FnMut(&[u8], u64)) -> Result<(), DataletError> {
        Ok(())
    }

    /// Removes `key`; that it was not there is no error.
    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError>;

    /// Pushes pairs from `cursor` on until the page is full, and moves `cursor` behind the last
    /// one, to [`Cursor::End`] when there are no more. A pair that is there during the whole walk
    /// is seen at least once, whatever is written meanwhile.
    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError>;

    /// Whether a walk that stands at `cursor` has passed the place of `key`, so that a pair put there now is not seen by
    /// it. Who tells that promises more of its walks: a pair that is there during the whole walk is seen exactly once.
    /// Who does not cannot be verified while it is written to.
    fn has_passed(&self, _cursor: &Cursor, _key: &[u8]) -> Option<bool> {
        None
    }

    /// A hint that `key` will be asked for soon: a chance to fetch it into a cache, so that the misses of
    /// a whole batch overlap. Nothing must depend on it.
    fn expect(&mut self, _key: &[u8]) {}

    /// Removes everything.
    fn clear(&mut self) -> Result<(), DataletError> {
        loop {
            let mut page = Page::new(1024, 1 << 20);
            self.walk(&mut Cursor::Start, &mut page)?;
            if page.pairs().is_empty() {
                return Ok(());
            }
            for (key, _) in page.pairs() {
                self.delete(key)?;
            }
        }
    }

    /// The number of pairs.
    fn len(&mut self) -> Result<u64, DataletError> {
        let (mut cursor, mut count) = (Cursor::Start, 0);
        while cursor != Cursor::End {
            let mut page = Page::new(1024, 1 << 20);
            self.walk(&mut cursor, &mut page)?;
            count += page.pairs().len() as u64;
        }
        Ok(count)
    }

    /// About how many bytes of memory it takes; 0 for one that keeps nothing in memory.
    fn bytes(&self) -> u64 {
        0
    }

    /// A number that changes when the store has begun anew without what was in it: its process restarted and had
    /// nothing on disk, or somebody emptied it. Asked after every task, so it should cost nothing; it must tell of
    /// all that the calls before may have suffered from.
    fn generation(&self) -> u64 {
        0
    }

    /// Ends a group of writes, and remembers `mark` with it: all that was done before this call outlives the process together
    /// with the mark, or none of it does. `durably`: it is on disk, as are all commits before, when this returns;
    /// otherwise it may be lost with the machine or the process, but then a later one is lost too, and none is half there. What was
    /// done after the last commit that is left must not be seen when the store is opened again. One that is not durable
    /// has nothing to do.
    fn commit(&mut self, _mark: &[u8], _durably: bool) -> Result<(), DataletError> {
        Ok(())
    }

    /// The mark of the last commit; none in a store that was never committed, or that is not durable.
    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        Ok(None)
    }

    /// Whether there are no pairs.
    fn is_empty(&mut self) -> Result<bool, DataletError> {
        Ok(self.len()? == 0)
    }

    /// Pushes the pairs with `start <= key < end` (no end: to the last) in key order until the page
    /// is full. Only for ordered datalets.
    fn scan(&mut self, _start: &[u8], _end: Option<&[u8]>, _page: &mut Page) -> Result<(), DataletError> {
        Err(DataletError::Unsupported("this datalet keeps no key order; use an ordered one, such as tree"))
    }

    /// The same pairs, the last one first. Not every ordered datalet can.
    fn scan_back(
        &mut self,
        _start: &[u8],
        _end: Option<&[u8]>,
        _page: &mut Page,
    ) -> Result<(), DataletError> {
        Err(DataletError::Unsupported("this datalet cannot scan backwards; use another one, such as tree"))
    }
}

/// Where a walk stands. A datalet chooses the form that suits it and gets back what it gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cursor {
    /// Nothing seen yet.
    #[default]
    Start,
    /// A number below 2^42 that means the same in every replica: such a walk can be carried on
    /// anywhere, and its SCAN cursor needs no memory in the server.
    Number(u64),
    /// The last key seen.
    Key(Bytes),
    /// All seen.
    End,
}

/// The largest number of a [`Cursor::Number`], exclusive.
pub const CURSOR_NUMBERS: u64 = 1 << 42;

/// A bounded list of pairs that a walk or a scan fills.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pairs: Vec<(Bytes, Bytes)>,
    pairs_max: usize,
    bytes_left: usize,
}

impl Page {
    /// Room for `pairs_max` pairs (at least one) of about `bytes_max` bytes together.
    pub fn new(pairs_max: usize, bytes_max: usize) -> Page {
        Page { pairs: Vec::new(), pairs_max: pairs_max.max(1), bytes_left: bytes_max }
    }

    /// Adds a pair, even where the page is full: a datalet may have to finish a group.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes_left = self.bytes_left.saturating_sub(key.len() + value.len());
        self.pairs.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
    }

    /// Whether the walk should stop.
    pub fn is_full(&self) -> bool {
        self.pairs.len() >= self.pairs_max || self.bytes_left == 0
    }

    /// How many more pairs are wanted.
    pub fn wanted(&self) -> usize {
        self.pairs_max.saturating_sub(self.pairs.len())
    }

    /// About how many more bytes are wanted.
    pub fn bytes_wanted(&self) -> usize {
        self.bytes_left
    }

    /// The pairs so far.
    pub fn pairs(&self) -> &[(Bytes, Bytes)] {
        &self.pairs
    }

    /// Lets go of all pairs but those whose keys are `wanted`.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&Bytes) -> bool) {
        self.pairs.retain(|(key, _)| wanted(key));
    }

    /// Takes the pairs out.
    pub fn into_pairs(self) -> Vec<(Bytes, Bytes)> {
        self.pairs
    }
}

/// What can go wrong in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataletError {
    /// The datalet has no such ability; the text says what would do.
    Unsupported(&'static str),
    /// The store failed: disk full, connection lost, damaged data. The replica steps back.
    Failed(String),
}

impl fmt::Display for DataletError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataletError::Unsupported(what) => f.write_str(what),
            DataletError::Failed(why) => write!(f, "the datalet failed: {why}"),
        }
    }
}
