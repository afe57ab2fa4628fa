//! The datalets under one keeper, and how a record lies in them ([`Layout`](crate::record::Layout)).

use crate::datalet::{Cursor, Datalet, DataletError, Page};
use crate::ids::Epoch;
use crate::range::{Range, behind};
use crate::record::Meta;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;

/// The datalets under one keeper, and how a record lies in them.
pub(crate) struct Shelf {
    pub(crate) store: Box<dyn Datalet>,
    pub(crate) metas: Option<Box<dyn Datalet>>,
    /// A record that is put: its meta and its value.
    scratch: Vec<u8>,
    /// The meta that `scratch` begins with, and how long it is there: the records of an entry share it.
    encoded: (Meta, usize),
    /// What lies from this key on is another shard's, and not seen; so many records at first, until they are removed.
    end: Option<Bytes>,
    outside: u64,
    /// What lies from this key on is not touched by entries from this epoch on: it becomes another shard's.
    pub(crate) keep: Option<(Bytes, Epoch)>,
}

impl Shelf {
    /// Records in `store`; their metas in `metas`, or in front of the values.
    pub(crate) fn new(store: Box<dyn Datalet>, metas: Option<Box<dyn Datalet>>) -> Shelf {
        let (scratch, encoded) = (Vec::new(), (Meta::default(), 0));
        let mut shelf = Shelf { store, metas, scratch, encoded, end: None, outside: 0, keep: None };
        shelf.encode(Meta::default());
        shelf
    }

    pub(crate) fn generation(&self) -> u64 {
        self.store.generation().wrapping_add(self.metas.as_ref().map_or(0, |metas| metas.generation()))
    }

    pub(crate) fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.store.walk(cursor, page)?;
        if let Some(end) = &self.end {
            page.retain(|key| key < end);
        }
        Ok(())
    }

    /// How many records there are.
    pub(crate) fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.store.len()?.saturating_sub(self.outside))
    }

    /// From now on nothing is seen that lies from this key on: `count` records more than before. Whether that is news.
    pub(crate) fn end_at(&mut self, end: &Bytes, count: u64) -> bool {
        let is_news = self.end.as_ref().is_none_or(|known| end < known);
        if is_news {
            self.end = Some(end.clone());
        }
        self.keep.take_if(|(start, _)| *start >= *end);
        self.outside += count;
        is_news
    }

    /// Removes up to so many records that are not seen; whether there may be more.
    pub(crate) fn remove_outside(&mut self, cursor: &mut Cursor, limit: usize) -> Result<bool, DataletError> {
        let Some(end) = self.end.clone() else { return Ok(false) };
        let mut page = Page::new(limit, usize::MAX);
        beyond(self.store.as_mut(), &end, cursor, &mut page)?;
        for (key, _) in page.pairs() {
            self.delete(key)?;
            self.outside = self.outside.saturating_sub(1);
        }
        Ok(*cursor != Cursor::End)
    }

    /// Pushes records from this key on, from `cursor` on, which moves behind them.
    pub(crate) fn beyond(
        &mut self,
        start: &Bytes,
        cursor: &mut Cursor,
        page: &mut Page,
    ) -> Result<(), DataletError> {
        beyond(self.store.as_mut(), start, cursor, page)?;
        if let Some(end) = &self.end {
            page.retain(|key| key < end);
        }
        Ok(())
    }

    pub(crate) fn scan(&mut self, range: &Range, page: &mut Page) -> Result<(), DataletError> {
        let end = match (&range.end, &self.end) {
            (Some(wanted), Some(mine)) => Some(wanted.min(mine)),
            (wanted, mine) => wanted.as_ref().or(mine.as_ref()),
        };
        let (start, end) = (&range.start, end.map(|end| &end[..]));
        if end.is_some_and(|end| end <= &start[..]) {
            return Ok(());
        }
        if range.reverse { self.store.scan_back(start, end, page) } else { self.store.scan(start, end, page) }
    }

    pub(crate) fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        self.store.has_passed(cursor, key)
    }

    /// Calls `found` with the record of `key`, or not at all.
    pub(crate) fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Meta, &[u8])) -> Result<(), DataletError> {
        let Some(metas) = &mut self.metas else {
            let mut foreign = false;
            self.store.get(key, &mut |stored| match Meta::decode(stored) {
                Some((meta, value)) => found(meta, value),
                None => foreign = true,
            })?;
            return if foreign { Err(foreign_record(key)) } else { Ok(()) };
        };
        let meta = meta_beside(metas.as_mut(), key)?;
        self.store.get(key, &mut |value| found(meta, value))
    }

    /// The meta of a walked pair, and where in `stored` the user's value starts.
    pub(crate) fn meta_of(&mut self, key: &[u8], stored: &[u8]) -> Result<(Meta, usize), DataletError> {
        match &mut self.metas {
            Some(metas) => Ok((meta_beside(metas.as_mut(), key)?, 0)),
            None => {
                let (meta, value) = Meta::decode(stored).ok_or_else(|| foreign_record(key))?;
                Ok((meta, stored.len() - value.len()))
            }
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], meta: Meta) -> Result<(), DataletError> {
        if self.encoded.0 != meta {
            self.encode(meta);
        }
        self.scratch.truncate(self.encoded.1);
        match &mut self.metas {
            Some(metas) => {
                metas.put(key, &self.scratch)?;
                match meta.deadline_ms {
                    Some(at) => self.store.put_until(key, value, at),
                    None => self.store.put(key, value),
                }
            }
            None => {
                self.scratch.extend_from_slice(value);
                self.store.put(key, &self.scratch)?;
                // A huge value must not keep its room for ever.
                if self.scratch.capacity() > 1 << 20 {
                    self.scratch = vec![];
                    self.encode(meta);
                }
                Ok(())
            }
        }
    }

    fn encode(&mut self, meta: Meta) {
        self.scratch.clear();
        meta.encode(&mut self.scratch);
        self.encoded = (meta, self.scratch.len());
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        if let Some(metas) = &mut self.metas {
            metas.delete(key)?;
        }
        self.store.delete(key)
    }

    /// Whether a key is not another shard's for an entry of that epoch, as far as that is known.
    pub(crate) fn has(&self, key: &[u8], epoch: Epoch) -> bool {
        let kept = self.keep.as_ref().filter(|(_, since)| epoch >= *since).map(|(start, _)| start);
        self.end.iter().chain(kept).all(|end| key < end)
    }

    fn clear_mine(&mut self, epoch: Epoch) -> Result<(), DataletError> {
        let mut cursor = Cursor::Start;
        while cursor != Cursor::End {
            let mut page = Page::new(1024, 1 << 20);
            self.store.walk(&mut cursor, &mut page)?;
            page.retain(|key| self.has(key, epoch));
            for (key, _) in page.pairs() {
                self.delete(key)?;
            }
        }
        Ok(())
    }

    /// Ends a group of writes. Metas that are kept beside go first: a record without one is as old as can be.
    pub(crate) fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        if let Some(metas) = &mut self.metas {
            metas.commit(mark, durably)?;
        }
        self.store.commit(mark, durably)
    }

    pub(crate) fn clear(&mut self, epoch: Epoch) -> Result<(), DataletError> {
        if self.keep.as_ref().is_some_and(|(_, since)| epoch >= *since) {
            return self.clear_mine(epoch);
        }
        self.outside = 0;
        if let Some(metas) = &mut self.metas {
            metas.clear()?;
        }
        self.store.clear()
    }
}

/// Pushes pairs whose keys are not before `start`; all of them where the store keeps no order, and only those stay.
fn beyond(
    store: &mut dyn Datalet,
    start: &Bytes,
    cursor: &mut Cursor,
    page: &mut Page,
) -> Result<(), DataletError> {
    let from = match cursor {
        Cursor::Key(last) if *last >= *start => behind(last),
        _ => start.clone(),
    };
    match store.scan(&from, None, page) {
        Ok(()) => {
            let last = page.pairs().last().filter(|_| page.is_full());
            *cursor = last.map_or(Cursor::End, |(last, _)| Cursor::Key(last.clone()));
            Ok(())
        }
        Err(DataletError::Unsupported(_)) => {
            store.walk(cursor, page)?;
            page.retain(|key| key >= start);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A value without a meta was in the store before Sartor came: it is as old as can be, and stays.
fn meta_beside(metas: &mut dyn Datalet, key: &[u8]) -> Result<Meta, DataletError> {
    let mut meta = Some(Meta::default());
    metas.get(key, &mut |stored| meta = Meta::decode(stored).map(|(meta, _)| meta))?;
    meta.ok_or_else(|| foreign_record(key))
}

fn foreign_record(key: &[u8]) -> DataletError {
    let key = key.escape_ascii();
    DataletError::Failed(format!(
        "the record of key '{key}' was not written by Sartor; was the store changed from outside?"
    ))
}
