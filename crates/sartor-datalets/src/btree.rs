//! `btree`: on disk, ordered, a B+tree in one file (redb).
//!
//! One write transaction is open from the first operation after a commit to the next commit, and reads go through it too, so
//! they see what is not committed yet; a transaction that is dropped leaves nothing behind. Commits that need not be on disk
//! are redb's `Durability::None`: they stay in memory, or in pages that nothing on disk points at, and all of them come on
//! disk with the next durable one, or when the store is closed. Until then a killed process loses them, all of them
//! together. Their pages are not used again meanwhile, so after a bounded number of bytes one is made durable unasked.
//!
//! Opening reads the whole file and verifies its checksums: redb does so anyway after a crash, and trusts its pages later,
//! so this is where a flipped bit is found. Pages that nobody uses are not looked at.

use crate::Options;
use crate::folder::Folder;
use crate::header::Header;
use crate::latched::has_passed;
use bytes::Bytes;
use redb::{
    Builder, Database, Durability, ReadableTable, ReadableTableMetadata, Table, TableDefinition,
    WriteTransaction,
};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::fmt::Display;
use std::ops::Bound;

/// redb's pages of this store in memory, dirty ones too.
const CACHE_BYTES: usize = 32 << 20;
/// So much may be written before a commit is made durable unasked: the file grows by it, and a killed process loses it.
const DEFERRED_BYTES_MAX: u64 = 64 << 20;
const FILE: &str = "pairs.redb";
const PAIRS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("pairs");
const HEADER: TableDefinition<(), &[u8]> = TableDefinition::new("header");

/// A store of this engine.
pub struct BTree {
    /// What was done since the last commit. Dropped first, so that it is undone before the database closes.
    writes: Option<WriteTransaction>,
    database: Database,
    header: Header,
    /// Bytes written since the last durable commit.
    deferred: u64,
    /// Dropped last: it holds the lock.
    folder: Folder,
}

impl BTree {
    /// Opens the store in a folder, or makes it there.
    pub fn open(options: &Options) -> Result<BTree, DataletError> {
        let mut folder = Folder::open(&options.dir, "btree")?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let path = folder.path(FILE);
        let database = if folder.is_new() { builder.create(path) } else { builder.open(path) };
        let database = database.map_err(|error| folder.unreadable(error))?;
        let header = if folder.is_new() {
            make(&database).map_err(|error| folder.failed("cannot make it", error))?;
            folder.complete()?;
            Header::default()
        } else {
            read_header(&database).map_err(|why| folder.damaged(why))?
        };
        folder.check(header.number)?;
        Ok(BTree { writes: None, database, header, deferred: 0, folder })
    }

    /// Does something with the table of pairs, as it is after all writes so far.
    fn with<T, E: Display>(
        &mut self,
        what: &str,
        act: impl FnOnce(Table<'_, &'static [u8], &'static [u8]>) -> Result<T, E>,
    ) -> Result<T, DataletError> {
        let writes = match self.writes.take() {
            Some(writes) => writes,
            None => self.database.begin_write().map_err(|error| self.folder.failed(what, error))?,
        };
        let writes = self.writes.insert(writes);
        let table = writes.open_table(PAIRS).map_err(|error| self.folder.failed(what, error))?;
        act(table).map_err(|error| self.folder.failed(what, error))
    }

    fn commit_all(&mut self, header: &Header, durably: bool) -> Result<(), redb::Error> {
        let mut writes = match self.writes.take() {
            Some(writes) => writes,
            None => self.database.begin_write()?,
        };
        writes.open_table(HEADER)?.insert((), &header.encode()[..])?;
        writes.set_durability(if durably { Durability::Immediate } else { Durability::None })?;
        Ok(writes.commit()?)
    }
}

/// The tables of an empty store.
fn make(database: &Database) -> Result<(), redb::Error> {
    let writes = database.begin_write()?;
    writes.open_table(PAIRS)?;
    writes.open_table(HEADER)?.insert((), &Header::default().encode()[..])?;
    Ok(writes.commit()?)
}

fn read_header(database: &Database) -> Result<Header, String> {
    let read = || -> Result<Option<(Option<Header>, u64)>, redb::Error> {
        // Dropped without a commit. Reading needs one too, or a table that is not there could not be told from an error.
        let reads = database.begin_write()?;
        let len = reads.open_table(PAIRS)?.len()?;
        let table = reads.open_table(HEADER)?;
        Ok(table.get(())?.map(|bytes| (Header::decode(bytes.value()), len)))
    };
    match read().map_err(|error| error.to_string())? {
        Some((Some(header), len)) if header.len == len => Ok(header),
        Some((Some(header), len)) => Err(format!("{len} pairs of {} are there", header.len)),
        Some((None, _)) => Err("its header is not what was written".into()),
        None => Err("its header is missing".into()),
    }
}

/// Pushes pairs within the bounds; the last key pushed if there were more.
fn fill(
    table: &Table<'_, &'static [u8], &'static [u8]>,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    page: &mut Page,
) -> Result<Option<Bytes>, redb::StorageError> {
    for pair in table.range::<&[u8]>(bounds)? {
        if page.is_full() {
            return Ok(page.pairs().last().map(|(key, _)| key.clone()));
        }
        let (key, value) = pair?;
        page.push(key.value(), value.value());
    }
    Ok(None)
}

impl Datalet for BTree {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.with("cannot read", |table| {
            if let Some(value) = table.get(key)? {
                found(value.value());
            }
            Ok::<_, redb::StorageError>(())
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.deferred += (key.len() + value.len()) as u64;
        self.with("cannot write", |mut table| table.insert(key, value).map(|_| ()))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.deferred += key.len() as u64;
        self.with("cannot delete", |mut table| table.remove(key).map(|_| ()))
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let from = match &*cursor {
            Cursor::Key(key) => Bound::Excluded(&key[..]),
            Cursor::Start | Cursor::Number(_) => Bound::Unbounded,
            Cursor::End => return Ok(()),
        };
        let last = self.with("cannot walk", |table| fill(&table, (from, Bound::Unbounded), page))?;
        *cursor = last.map_or(Cursor::End, Cursor::Key);
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(has_passed(cursor, key))
    }

    /// Takes time for each page, not for each pair.
    fn clear(&mut self) -> Result<(), DataletError> {
        self.with("cannot clear", |_| Ok::<_, redb::StorageError>(()))?;
        let Some(writes) = &self.writes else { return Ok(()) };
        writes.delete_table(PAIRS).map(|_| ()).map_err(|error| self.folder.failed("cannot clear", error))
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.with("cannot count", |table| table.len())
    }

    fn bytes(&self) -> u64 {
        CACHE_BYTES as u64
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        let len = self.len()?;
        let header = self.header.next(len, mark);
        let durably = durably || self.deferred > DEFERRED_BYTES_MAX;
        self.commit_all(&header, durably).map_err(|error| self.folder.failed("cannot commit", error))?;
        if durably {
            self.deferred = 0;
            self.folder.note(header.number)?;
        }
        self.header = header;
        Ok(())
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        Ok(self.header.mark.clone())
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if end.is_none_or(|end| start < end) {
            let to = end.map_or(Bound::Unbounded, Bound::Excluded);
            self.with("cannot scan", |table| fill(&table, (Bound::Included(start), to), page))?;
        }
        Ok(())
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if end.is_some_and(|end| start >= end) {
            return Ok(());
        }
        let bounds = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
        self.with("cannot scan", |table| {
            for pair in table.range::<&[u8]>(bounds)?.rev() {
                if page.is_full() {
                    break;
                }
                let (key, value) = pair?;
                page.push(key.value(), value.value());
            }
            Ok::<_, redb::StorageError>(())
        })
    }
}
