//! `sqlite`: on disk, ordered, a SQLite database, whose file any other tool can read.
//!
//! ```sql
//! CREATE TABLE pairs (key BLOB PRIMARY KEY, value BLOB, sum INTEGER) WITHOUT ROWID
//! CREATE TABLE header (header BLOB)
//! ```
//!
//! One transaction is open from the first write after a commit to the next commit. The journal is a write-ahead log and
//! `synchronous` stays at NORMAL: a commit is in the log, with the operating system, when it returns, so that a killed
//! process loses nothing, and the log comes on disk before anything of it goes into the database. A durable commit needs the
//! log on disk at once. SQLite would do it with `synchronous=FULL`, but that cannot be chosen while a transaction is open, when
//! it is known whether this one must be durable; so the log is synced here, as FULL would do it. (Another handle to the
//! database file would drop SQLite's locks when it is closed; the log carries none.)
//!
//! SQLite keeps no checksums, so each row has one, and opening reads all rows: their sums, their order and their number.

use crate::Options;
use crate::folder::Folder;
use crate::header::Header;
use crate::latched::has_passed;
use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OpenFlags, OptionalExtension, Params, Row};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::fmt::{self, Display};
use std::fs::File;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Its cache of pages; in KiB, negative, as SQLite wants it.
const SETTINGS: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA cache_size = -32768;
    PRAGMA journal_size_limit = 67108864;
    PRAGMA temp_store = MEMORY;";
const CACHE_BYTES: u64 = 32 << 20;
const FILE: &str = "pairs.sqlite";
const LOG: &str = "pairs.sqlite-wal";
const TABLES: &str = "
    CREATE TABLE pairs (key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE header (header BLOB NOT NULL);";

/// A store of this engine.
pub struct Sqlite {
    /// Dropped first: what is not committed is undone.
    connection: Connection,
    /// The write-ahead log.
    log: File,
    /// Whether a transaction is open.
    writing: bool,
    len: u64,
    header: Header,
    /// Dropped last: it holds the lock.
    folder: Folder,
}

/// What can go wrong below.
enum Trouble {
    Sqlite(rusqlite::Error),
    /// A row that is not what was written.
    Damaged(&'static str),
}

impl Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Sqlite(error) => error.fmt(f),
            Trouble::Damaged(what) => f.write_str(what),
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Trouble {
        Trouble::Sqlite(error)
    }
}

impl Sqlite {
    /// Opens the store in a folder, or makes it there.
    pub fn open(options: &Options) -> Result<Sqlite, DataletError> {
        let mut folder = Folder::open(&options.dir, "sqlite")?;
        let path = folder.path(FILE);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if folder.is_new() {
            let made = make(&path, flags | OpenFlags::SQLITE_OPEN_CREATE);
            made.map_err(|error| folder.failed("cannot make it", error))?;
            folder.sync().map_err(|error| folder.failed("cannot make it", error))?;
            folder.complete()?;
        }
        let connection = connect(&path, flags).map_err(|error| folder.unreadable(error))?;
        let header = check(&connection).map_err(|trouble| match trouble {
            Trouble::Sqlite(error) => folder.unreadable(error),
            Trouble::Damaged(how) => folder.damaged(how),
        })?;
        folder.check(header.number)?;
        // The log is there from the first read on, until the store is closed.
        let log = File::open(folder.path(LOG)).and_then(|log| folder.sync().map(|()| log));
        let log = log.map_err(|error| folder.failed("cannot open its write-ahead log", error))?;
        Ok(Sqlite { connection, log, writing: false, len: header.len, header, folder })
    }

    /// Runs a statement that changes pairs; how many rows it changed.
    fn change(&mut self, sql: &str, values: impl Params) -> Result<usize, rusqlite::Error> {
        if !self.writing {
            self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            self.writing = true;
        }
        self.connection.prepare_cached(sql)?.execute(values)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), rusqlite::Error> {
        let sum = sum(key, value);
        let changed =
            self.change("UPDATE pairs SET value = ?2, sum = ?3 WHERE key = ?1", (key, value, sum))?;
        if changed == 0 {
            self.change("INSERT INTO pairs (key, value, sum) VALUES (?1, ?2, ?3)", (key, value, sum))?;
            self.len += 1;
        }
        Ok(())
    }

    fn commit_all(&mut self, header: &Header) -> Result<(), rusqlite::Error> {
        self.change("UPDATE header SET header = ?1", [header.encode()])?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.writing = false;
        Ok(())
    }

    /// Pushes pairs from `start` on, or behind it, to before `end`; the last key pushed if there were more.
    fn fill(
        &self,
        start: &[u8],
        behind: bool,
        end: Option<&[u8]>,
        page: &mut Page,
    ) -> Result<Option<Bytes>, Trouble> {
        let sql = match (behind, end) {
            (true, None) => "SELECT key, value, sum FROM pairs WHERE key > ?1 ORDER BY key",
            (true, Some(_)) => "SELECT key, value, sum FROM pairs WHERE key > ?1 AND key < ?2 ORDER BY key",
            (false, None) => "SELECT key, value, sum FROM pairs WHERE key >= ?1 ORDER BY key",
            (false, Some(_)) => "SELECT key, value, sum FROM pairs WHERE key >= ?1 AND key < ?2 ORDER BY key",
        };
        let mut statement: CachedStatement<'_> = self.connection.prepare_cached(sql)?;
        let mut rows = match end {
            None => statement.query([start])?,
            Some(end) => statement.query([start, end])?,
        };
        while let Some(row) = rows.next()? {
            if page.is_full() {
                return Ok(page.pairs().last().map(|(key, _)| key.clone()));
            }
            let (key, value) = pair(row)?;
            page.push(key, value);
        }
        Ok(None)
    }

    /// Pushes pairs from the last one before `end` down to `start`.
    fn fill_back(&self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), Trouble> {
        let sql = match end {
            None => "SELECT key, value, sum FROM pairs WHERE key >= ?1 ORDER BY key DESC",
            Some(_) => "SELECT key, value, sum FROM pairs WHERE key >= ?1 AND key < ?2 ORDER BY key DESC",
        };
        let mut statement: CachedStatement<'_> = self.connection.prepare_cached(sql)?;
        let mut rows = match end {
            None => statement.query([start])?,
            Some(end) => statement.query([start, end])?,
        };
        while !page.is_full()
            && let Some(row) = rows.next()?
        {
            let (key, value) = pair(row)?;
            page.push(key, value);
        }
        Ok(())
    }
}

fn connect(path: &std::path::Path, flags: OpenFlags) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(SETTINGS)?;
    connection.set_prepared_statement_cache_capacity(16);
    Ok(connection)
}

/// An empty store, on disk when this returns: closing it moves the log into the database and syncs that.
fn make(path: &std::path::Path, flags: OpenFlags) -> Result<(), rusqlite::Error> {
    let connection = connect(path, flags)?;
    connection.execute_batch(TABLES)?;
    connection.execute("INSERT INTO header (header) VALUES (?1)", [Header::default().encode()])?;
    connection.close().map_err(|(_, error)| error)
}

/// Reads all that is there; the header if it is sound.
fn check(connection: &Connection) -> Result<Header, Trouble> {
    let header = connection.query_row("SELECT header FROM header", [], |row| row.get::<_, Vec<u8>>(0));
    let header = header.optional()?.and_then(|bytes| Header::decode(&bytes));
    let header = header.ok_or(Trouble::Damaged("its header is not what was written"))?;
    let mut statement = connection.prepare("SELECT key, value, sum FROM pairs ORDER BY key")?;
    let (mut rows, mut last, mut len) = (statement.query([])?, None::<Vec<u8>>, 0);
    while let Some(row) = rows.next()? {
        let (key, _) = pair(row)?;
        if last.as_ref().is_some_and(|last| key <= &last[..]) {
            return Err(Trouble::Damaged("its rows are not in order"));
        }
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        len += 1;
    }
    if header.len == len { Ok(header) } else { Err(Trouble::Damaged("some of its rows are missing")) }
}

fn pair<'a>(row: &'a Row<'_>) -> Result<(&'a [u8], &'a [u8]), Trouble> {
    let blob = |column| row.get_ref(column)?.as_blob().map_err(|_| Trouble::Damaged("a row holds no bytes"));
    let (key, value) = (blob(0)?, blob(1)?);
    verify(key, value, row.get(2)?)?;
    Ok((key, value))
}

fn verify(key: &[u8], value: &[u8], stored: i64) -> Result<(), Trouble> {
    let same = stored == sum(key, value);
    if same { Ok(()) } else { Err(Trouble::Damaged("a row is not what was written")) }
}

fn sum(key: &[u8], value: &[u8]) -> i64 {
    xxh3_64_with_seed(value, xxh3_64(key)).cast_signed()
}

impl Datalet for Sqlite {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        let mut get = || -> Result<(), Trouble> {
            let mut statement =
                self.connection.prepare_cached("SELECT value, sum FROM pairs WHERE key = ?1")?;
            let mut rows = statement.query([key])?;
            let Some(row) = rows.next()? else { return Ok(()) };
            let value = row.get_ref(0)?.as_blob().map_err(|_| Trouble::Damaged("a row holds no bytes"))?;
            verify(key, value, row.get(1)?)?;
            found(value);
            Ok(())
        };
        get().map_err(|error| self.folder.failed("cannot read", error))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.set(key, value).map_err(|error| self.folder.failed("cannot write", error))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        let deleted = self.change("DELETE FROM pairs WHERE key = ?1", [key]);
        self.len -= deleted.map_err(|error| self.folder.failed("cannot delete", error))? as u64;
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let (start, behind) = match &*cursor {
            Cursor::Key(key) => (&key[..], true),
            Cursor::Start | Cursor::Number(_) => (&b""[..], false),
            Cursor::End => return Ok(()),
        };
        let last = self.fill(start, behind, None, page);
        let last = last.map_err(|error| self.folder.failed("cannot walk", error))?;
        *cursor = last.map_or(Cursor::End, Cursor::Key);
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(has_passed(cursor, key))
    }

    /// Takes time for each page, not for each pair.
    fn clear(&mut self) -> Result<(), DataletError> {
        self.change("DELETE FROM pairs", []).map_err(|error| self.folder.failed("cannot clear", error))?;
        self.len = 0;
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.len)
    }

    fn bytes(&self) -> u64 {
        CACHE_BYTES
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        let header = self.header.next(self.len, mark);
        self.commit_all(&header).map_err(|error| self.folder.failed("cannot commit", error))?;
        if durably {
            self.log.sync_data().map_err(|error| self.folder.failed("cannot sync", error))?;
            self.folder.note(header.number)?;
        }
        self.header = header;
        Ok(())
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        Ok(self.header.mark.clone())
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        let filled = self.fill(start, false, end, page);
        filled.map(|_| ()).map_err(|error| self.folder.failed("cannot scan", error))
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        let filled = self.fill_back(start, end, page);
        filled.map_err(|error| self.folder.failed("cannot scan", error))
    }
}
