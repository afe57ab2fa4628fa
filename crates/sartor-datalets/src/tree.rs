//! `tree`: in memory, ordered by key (the paper's tMT).

use crate::drop_aside;
use bytes::Bytes;
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A balanced tree of pairs.
#[derive(Default)]
pub struct Tree {
    pairs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Bytes of all pairs.
    bytes: u64,
}

/// What a pair takes beside its bytes: its place in the tree, and two allocations.
const PAIR_BYTES: u64 = 80;

impl Tree {
    /// Pushes pairs within the bounds; the last key pushed if there were more.
    fn fill(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, page: &mut Page) -> Option<&[u8]> {
        let mut last = None;
        for (key, value) in self.pairs.range::<[u8], _>((from, to)) {
            if page.is_full() {
                return last;
            }
            page.push(key, value);
            last = Some(&key[..]);
        }
        None
    }
}

/// The end of `start <= key < end` as a bound; none where nothing can be in between.
fn bound<'a>(start: &[u8], end: Option<&'a [u8]>) -> Option<Bound<&'a [u8]>> {
    end.is_none_or(|end| start < end).then_some(end.map_or(Bound::Unbounded, Bound::Excluded))
}

impl Datalet for Tree {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        if let Some(value) = self.pairs.get(key) {
            found(value);
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        match self.pairs.get_mut(key) {
            Some(old) if old.len() == value.len() => old.copy_from_slice(value),
            Some(old) => {
                self.bytes = self.bytes + value.len() as u64 - old.len() as u64;
                *old = value.into();
            }
            None => {
                self.bytes += (key.len() + value.len()) as u64;
                self.pairs.insert(key.into(), value.into());
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        if let Some(value) = self.pairs.remove(key) {
            self.bytes -= (key.len() + value.len()) as u64;
        }
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let from = match &*cursor {
            Cursor::Key(key) => Bound::Excluded(&key[..]),
            Cursor::Start | Cursor::Number(_) => Bound::Unbounded,
            Cursor::End => return Ok(()),
        };
        let last = self.fill(from, Bound::Unbounded, page);
        *cursor = last.map_or(Cursor::End, |key| Cursor::Key(Bytes::copy_from_slice(key)));
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(match cursor {
            Cursor::Key(last) => key <= &last[..],
            Cursor::Start | Cursor::Number(_) => false,
            Cursor::End => true,
        })
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        drop_aside(std::mem::take(&mut self.pairs));
        self.bytes = 0;
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.pairs.len() as u64)
    }

    fn bytes(&self) -> u64 {
        self.bytes + self.pairs.len() as u64 * PAIR_BYTES
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if let Some(to) = bound(start, end) {
            self.fill(Bound::Included(start), to, page);
        }
        Ok(())
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        let Some(to) = bound(start, end) else { return Ok(()) };
        for (key, value) in self.pairs.range::<[u8], _>((Bound::Included(start), to)).rev() {
            if page.is_full() {
                break;
            }
            page.push(key, value);
        }
        Ok(())
    }
}
