//! The datalets under one keeper, and how a record lies in them ([`Layout`](crate::record::Layout)).

use crate::datalet::{Cursor, Datalet, DataletError, Page};
use crate::range::Range;
use crate::record::Meta;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// The datalets under one keeper, and how a record lies in them.
pub(crate) struct Shelf {
    pub(crate) store: Box<dyn Datalet>,
    pub(crate) metas: Option<Box<dyn Datalet>>,
    /// A record that is put: its meta and its value.
    scratch: Vec<u8>,
    /// The meta that `scratch` begins with, and how long it is there: the records of an entry share it.
    encoded: (Meta, usize),
}

impl Shelf {
    /// Records in `store`; their metas in `metas`, or in front of the values.
    pub(crate) fn new(store: Box<dyn Datalet>, metas: Option<Box<dyn Datalet>>) -> Shelf {
        let mut shelf = Shelf { store, metas, scratch: Vec::new(), encoded: (Meta::default(), 0) };
        shelf.encode(Meta::default());
        shelf
    }

    pub(crate) fn generation(&self) -> u64 {
        self.store.generation().wrapping_add(self.metas.as_ref().map_or(0, |metas| metas.generation()))
    }

    pub(crate) fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.store.walk(cursor, page)
    }

    pub(crate) fn scan(&mut self, range: &Range, page: &mut Page) -> Result<(), DataletError> {
        let (start, end) = (&range.start, range.end.as_deref());
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

    /// Ends a group of writes. Metas that are kept beside go first: a record without one is as old as can be.
    pub(crate) fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        if let Some(metas) = &mut self.metas {
            metas.commit(mark, durably)?;
        }
        self.store.commit(mark, durably)
    }

    pub(crate) fn clear(&mut self) -> Result<(), DataletError> {
        if let Some(metas) = &mut self.metas {
            metas.clear()?;
        }
        self.store.clear()
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
