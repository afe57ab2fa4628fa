//! `log`: on disk, in key order: files that are only appended to, and an index in memory (the paper's tLog).
//!
//! ```text
//!  put, delete ─▶ buffer ─ commit ─▶ 0000000007.log   the newest: records, and a commit after each group
//!    │                               0000000006.log   closed: never changed; 0000000006.hint has its keys and places
//!    ▼                               0000000005.log   the oldest: what the index still names in it is appended again,
//!  index: key ─▶ file, offset, length                 a piece at each commit, then it is deleted
//! ```
//!
//! Opening reads the records of all files in order, up to the last commit. What keeps that right at any moment:
//!
//! - A group counts when its commit is whole; what follows the last commit is cut off.
//! - A file is on disk before the next one begins, so only the newest can end too early.
//! - Files are merged and deleted from the oldest on, and only when a commit is on disk that needs nothing of them. So what
//!   a delete or a clear took away is never in a file that is left when their own is gone, and nothing needs to be known of
//!   them. It costs no more than to choose the file with the most dead bytes could in the worst case: less than half of the
//!   whole is alive then, so at most as much is written again as room is won.
//! - Every record has a checksum, every file the length and sum of the one before: what is damaged is told, not served. Only
//!   damage to the last group of all cannot be told from one that never came to the disk: then it opens as of the commit
//!   before.

mod disk;
mod faults;
mod files;
mod format;
mod hint;
mod index;
mod merge;
mod open;
mod scan;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use disk::{Disk, Folder};
use faults::{Fault, Plant};
use files::Files;
use format::{Kind, MARK_BYTES_MAX};
use index::{Index, Place};
use merge::Merge;
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::ops::Bound;
use std::path::Path;

/// Opens the log in a folder as of its last commit, or an empty one.
pub fn open(dir: &Path) -> Result<Box<dyn Datalet>, DataletError> {
    Ok(Box::new(open::open(Folder::open(dir)?, Sizes::default(), Plant::default())?))
}

/// How large things are; tests make them small.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// A file, at least.
    file: u64,
    /// Records that gather before they are written.
    buffer: usize,
    /// Files are merged when a smaller share of them is alive.
    live_percent_min: u64,
    /// What a commit looks through of a file that is merged, at least and at most.
    merged_min: u64,
    merged_max: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            file: 64 << 20,
            buffer: 1 << 20,
            live_percent_min: 50,
            merged_min: 64 << 10,
            merged_max: 4 << 20,
        }
    }
}

/// A store of append-only files.
struct Log<D: Disk> {
    index: Index,
    files: Files<D>,
    /// Of the last commit.
    mark: Option<Vec<u8>>,
    /// Bytes written since.
    group_bytes: u64,
    merge: Option<Merge>,
    /// What failed: nothing is known to be right since then.
    failed: Option<DataletError>,
}

fn said_too_large(what: &str, most: usize) -> DataletError {
    DataletError::Failed(format!(
        "a log takes at most {most} bytes for {what}; use smaller ones, or another datalet"
    ))
}

impl<D: Disk> Log<D> {
    /// Does something unless an attempt failed before.
    fn attempt<T>(
        &mut self,
        act: impl FnOnce(&mut Log<D>) -> Result<T, DataletError>,
    ) -> Result<T, DataletError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = act(self);
        self.failed = result.as_ref().err().cloned();
        result
    }

    /// What a record that was written means.
    fn apply(&mut self, kind: Kind, key: &[u8], place: Place) {
        let old = match kind {
            Kind::Put => {
                self.files.count(place, key);
                self.index.insert(key, place)
            }
            Kind::Delete => self.index.remove(key),
            Kind::Clear => {
                self.index.clear();
                self.files.count_nothing();
                None
            }
            Kind::Commit => None,
        };
        if let Some(old) = old {
            self.files.uncount(old, key);
        }
    }

    fn write(&mut self, kind: Kind, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        if self.files.plant().is(Fault::CommitEarly) && self.group_bytes > 100 {
            let mark = self.mark.clone().unwrap_or_default();
            self.files.append_commit(&mark)?;
        }
        let place = self.files.append(kind, key, value)?;
        self.group_bytes += place.size(key);
        self.apply(kind, key, place);
        Ok(())
    }

    fn end_group(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        if mark.len() > MARK_BYTES_MAX {
            return Err(said_too_large("a mark", MARK_BYTES_MAX));
        }
        if self.group_bytes > 0 || self.mark.as_deref() != Some(mark) {
            self.merge()?;
            self.files.append_commit(mark)?;
            if self.files.plant().is(Fault::DeleteEarly) {
                self.files.delete_dead()?;
            }
            if self.files.plant().is(Fault::SyncEarly) {
                self.files.sync()?;
                return self.files.flush();
            }
            self.files.flush()?;
            self.mark = Some(mark.into());
            self.group_bytes = 0;
        }
        // Who never asks for it would keep dead files for ever.
        if durably || self.files.oldest_is_dead() {
            self.files.sync()?;
            self.files.delete_dead()?;
        }
        Ok(())
    }

    /// Pushes pairs within the bounds; the last key pushed if there were more.
    fn fill(
        &mut self,
        from: Bound<&[u8]>,
        to: Option<&[u8]>,
        page: &mut Page,
    ) -> Result<Option<Bytes>, DataletError> {
        let mut last: Option<&[u8]> = None;
        for (key, place) in self.index.range(from, to) {
            if page.is_full() {
                return Ok(last.map(Bytes::copy_from_slice));
            }
            page.push(key, self.files.read(place, key)?);
            last = Some(key);
        }
        Ok(None)
    }
}

impl<D: Disk> Datalet for Log<D> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.attempt(|log| {
            if let Some(place) = log.index.get(key) {
                found(log.files.read(place, key)?);
            }
            Ok(())
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.attempt(|log| log.write(Kind::Put, key, value))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.attempt(|log| match log.index.get(key) {
            Some(_) => log.write(Kind::Delete, key, b""),
            None => Ok(()),
        })
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.attempt(|log| {
            let from = match &*cursor {
                Cursor::Key(key) => Bound::Excluded(&key[..]),
                Cursor::Start | Cursor::Number(_) => Bound::Unbounded,
                Cursor::End => return Ok(()),
            };
            let last = log.fill(from, None, page)?;
            *cursor = last.map_or(Cursor::End, Cursor::Key);
            Ok(())
        })
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(match cursor {
            Cursor::Key(last) => key <= &last[..],
            Cursor::Start | Cursor::Number(_) => false,
            Cursor::End => true,
        })
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.attempt(|log| match log.index.len() {
            0 => Ok(()),
            _ => log.write(Kind::Clear, b"", b""),
        })
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.attempt(|log| Ok(log.index.len()))
    }

    fn bytes(&self) -> u64 {
        self.index.bytes() + self.files.bytes() + self.merge.as_ref().map_or(0, Merge::bytes)
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        self.attempt(|log| log.end_group(mark, durably))
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        self.attempt(|log| Ok(log.mark.clone()))
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.attempt(|log| log.fill(Bound::Included(start), end, page).map(drop))
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.attempt(|log| {
            for (key, place) in log.index.range_back(start, end) {
                if page.is_full() {
                    break;
                }
                page.push(key, log.files.read(place, key)?);
            }
            Ok(())
        })
    }
}
