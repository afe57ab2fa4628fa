//! A store that says the same error again once it has failed, as what it holds is not known any more.
//!
//! Without this, a group of writes of which the library undid the first half (SQLite does so when the disk is full) could be
//! committed without it.

use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};

/// A store, and how it failed.
pub(crate) struct Latched<D> {
    store: D,
    failed: Option<DataletError>,
}

impl<D> Latched<D> {
    pub(crate) fn new(store: D) -> Latched<D> {
        Latched { store, failed: None }
    }

    fn ask<T>(&mut self, ask: impl FnOnce(&mut D) -> Result<T, DataletError>) -> Result<T, DataletError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = ask(&mut self.store);
        if let Err(error @ DataletError::Failed(_)) = &result {
            self.failed = Some(error.clone());
        }
        result
    }
}

impl<D: Datalet> Datalet for Latched<D> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.ask(|store| store.get(key, found))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.ask(|store| store.put(key, value))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.ask(|store| store.delete(key))
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.ask(|store| store.walk(cursor, page))
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        self.store.has_passed(cursor, key)
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.ask(Datalet::clear)
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.ask(Datalet::len)
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        self.ask(|store| store.commit(mark, durably))
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        self.ask(Datalet::mark)
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.ask(|store| store.scan(start, end, page))
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.ask(|store| store.scan_back(start, end, page))
    }
}

/// For stores in key order whose walks remember the last key: whether they have passed the place of `key`.
pub(crate) fn has_passed(cursor: &Cursor, key: &[u8]) -> bool {
    match cursor {
        Cursor::Key(last) => key <= &last[..],
        Cursor::Start | Cursor::Number(_) => false,
        Cursor::End => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails at the second put, and would do as if nothing had happened at the third.
    #[derive(Default)]
    struct FailsOnce(u32);

    impl Datalet for FailsOnce {
        fn get(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
            Ok(())
        }
        fn put(&mut self, _: &[u8], _: &[u8]) -> Result<(), DataletError> {
            self.0 += 1;
            if self.0 == 2 { Err(DataletError::Failed("the disk is full".into())) } else { Ok(()) }
        }
        fn delete(&mut self, _: &[u8]) -> Result<(), DataletError> {
            Ok(())
        }
        fn walk(&mut self, _: &mut Cursor, _: &mut Page) -> Result<(), DataletError> {
            Ok(())
        }
    }

    #[test]
    fn what_failed_stays_failed() {
        let mut store = Latched::new(FailsOnce::default());
        assert!(store.scan(b"", None, &mut Page::new(1, 1)).is_err());
        assert_eq!(store.put(b"a", b""), Ok(()), "that it cannot scan is no failure");
        let failed = Err(DataletError::Failed("the disk is full".into()));
        for _ in 0..2 {
            assert_eq!(store.put(b"a", b""), failed);
            assert_eq!(store.commit(b"", true), failed);
        }
    }
}
