//! What is committed: a database of fjall with one keyspace, and how keys lie in it.
//!
//! ```text
//!  0                                  the header
//!  1 key                              a key of less than 65,534 bytes, and its value
//!  1 (first 65,534 bytes of keys)     all longer keys that begin so: rest and value of each, in order
//! ```
//!
//! fjall takes keys of 1 to 65,535 bytes and users may have any of 0 to 65,536, hence the byte before each key, and the
//! place that longer ones share. Their order is that of the keys either way.

use crate::header::Header;
use bytes::{BufMut, Bytes, BytesMut};
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::path::Path;

/// Blocks of this store in memory.
const CACHE_BYTES: u64 = 32 << 20;
/// When what was written goes from memory to a table on disk.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Written but not in tables on disk; much more means that the thread which does it has stopped.
const UNFLUSHED_BYTES_MAX: u64 = 1 << 30;
const JOURNAL_BYTES: u64 = 128 << 20;
const FILES_OPEN: usize = 128;
const KEYSPACE: &str = "pairs";
const HEADER: &[u8] = &[0];
const PAIR: u8 = 1;
/// Keys that begin alike and are at least so long share a place.
const SHARED: usize = 65_534;

/// The committed part of a store.
pub(super) struct Tree {
    keyspace: Keyspace,
    database: Database,
}

/// What can go wrong below.
#[derive(Debug)]
pub(super) enum Trouble {
    Fjall(fjall::Error),
    Io(std::io::Error),
    Other(&'static str),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Fjall(error) => error.fmt(f),
            Trouble::Io(error) => error.fmt(f),
            Trouble::Other(why) => f.write_str(why),
        }
    }
}

impl From<fjall::Error> for Trouble {
    fn from(error: fjall::Error) -> Trouble {
        Trouble::Fjall(error)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::Io(error)
    }
}

/// Writes in key order; none is a delete.
type Writes<'a> = &'a [(Bytes, Option<Bytes>)];

impl Tree {
    /// A new one, on disk when this returns. What a process that died has left of it goes.
    pub(super) fn make(path: &Path, writes: Writes<'_>, header: &Header) -> Result<Tree, Trouble> {
        if path.exists() {
            std::fs::remove_dir_all(path)?;
        }
        let tree = Tree::at(path)?;
        tree.write(writes, header, true)?;
        Ok(tree)
    }

    /// One that was made before, and its header.
    pub(super) fn open(path: &Path) -> Result<(Tree, Header), Trouble> {
        // fjall would make a new one.
        if !path.is_dir() {
            return Err(Trouble::Other("its tree is missing"));
        }
        let tree = Tree::at(path)?;
        let header = tree.keyspace.get(HEADER)?.and_then(|bytes| Header::decode(&bytes));
        let header = header.ok_or(Trouble::Other("its header is missing, or not what was written"))?;
        Ok((tree, header))
    }

    fn at(path: &Path) -> Result<Tree, Trouble> {
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(FILES_OPEN))
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(1)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        Ok(Tree { keyspace: database.keyspace(KEYSPACE, options)?, database })
    }

    pub(super) fn bytes(&self) -> u64 {
        CACHE_BYTES + self.database.write_buffer_size()
    }

    pub(super) fn contains(&self, key: &[u8]) -> Result<bool, Trouble> {
        if key.len() < SHARED {
            return Ok(self.keyspace.contains_key(place(key))?);
        }
        Ok(self.get(key)?.is_some())
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Trouble> {
        let Some(value) = self.keyspace.get(place(key))? else { return Ok(None) };
        if key.len() < SHARED {
            return Ok(Some(value.into()));
        }
        Ok(rests(value.into())?.remove(&key[SHARED..]))
    }

    /// Pairs within the bounds, in order.
    pub(super) fn range<'a>(
        &self,
        bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
    ) -> impl DoubleEndedIterator<Item = Result<(Bytes, Bytes), Trouble>> + use<'a> {
        // A place may hold keys on both sides of a bound.
        let from = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) => Bound::Included(place(key)),
            Bound::Unbounded => Bound::Included(vec![PAIR]),
        };
        let to = match bounds.1 {
            Bound::Included(key) | Bound::Excluded(key) => Bound::Included(place(key)),
            Bound::Unbounded => Bound::Excluded(vec![PAIR + 1]),
        };
        let pairs = self.keyspace.range::<Vec<u8>, _>((from, to)).flat_map(|guard| {
            let (one, shared) = match pairs_at(guard) {
                Ok(Place::One(key, value)) => (Some(Ok((key, value))), BTreeMap::new()),
                Ok(Place::Shared(start, rests)) => {
                    (None, rests.into_iter().map(|(rest, value)| (join(&start, &rest), value)).collect())
                }
                Err(error) => (Some(Err(error)), BTreeMap::new()),
            };
            one.into_iter().chain(shared.into_iter().map(Ok))
        });
        pairs.filter(move |pair| {
            pair.as_ref().map_or(true, |(key, _)| RangeBounds::<[u8]>::contains(&bounds, &key[..]))
        })
    }

    /// All of it takes effect together with the header.
    pub(super) fn write(&self, writes: Writes<'_>, header: &Header, durably: bool) -> Result<(), Trouble> {
        let mode = if durably { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        let together = |one: &(Bytes, _), other: &(Bytes, _)| {
            one.0.len() >= SHARED && other.0.len() >= SHARED && one.0[..SHARED] == other.0[..SHARED]
        };
        for writes in writes.chunk_by(together) {
            let place = place(&writes[0].0);
            let value = match &writes[0] {
                (key, value) if key.len() < SHARED => value.clone(),
                _ => self.shared(&place, writes)?,
            };
            match value {
                Some(value) => batch.insert(&self.keyspace, place, value),
                None => batch.remove(&self.keyspace, place),
            }
        }
        batch.insert(&self.keyspace, HEADER, header.encode());
        batch.commit()?;
        if self.database.write_buffer_size() > UNFLUSHED_BYTES_MAX {
            return Err(Trouble::Other(
                "what was written stays in memory: fjall has stopped to write tables",
            ));
        }
        Ok(())
    }

    /// What will be at a place of several keys; none if nothing is left there.
    fn shared(&self, place: &[u8], writes: Writes<'_>) -> Result<Option<Bytes>, Trouble> {
        let stored = self.keyspace.get(place)?.map_or(Ok(BTreeMap::new()), |value| rests(value.into()))?;
        let mut rests = stored;
        for (key, value) in writes {
            match value {
                Some(value) => rests.insert(key.slice(SHARED..), value.clone()),
                None => rests.remove(&key[SHARED..]),
            };
        }
        let len: usize = rests.iter().map(|(rest, value)| 8 + rest.len() + value.len()).sum();
        if u32::try_from(len).is_err() {
            return Err(Trouble::Other("too many keys begin with the same 65,534 bytes"));
        }
        let mut bytes = BytesMut::with_capacity(len);
        for (rest, value) in &rests {
            bytes.put_u32_le(rest.len() as u32);
            bytes.put_u32_le(value.len() as u32);
            bytes.extend_from_slice(rest);
            bytes.extend_from_slice(value);
        }
        Ok((!rests.is_empty()).then(|| bytes.freeze()))
    }
}

/// Where in the keyspace a key is.
fn place(key: &[u8]) -> Vec<u8> {
    let key = &key[..key.len().min(SHARED)];
    let mut place = Vec::with_capacity(1 + key.len());
    place.push(PAIR);
    place.extend_from_slice(key);
    place
}

enum Place {
    One(Bytes, Bytes),
    Shared(Bytes, BTreeMap<Bytes, Bytes>),
}

fn pairs_at(guard: Guard) -> Result<Place, Trouble> {
    let (place, value) = guard.into_inner()?;
    let key = Bytes::from(place).slice(1..);
    if key.len() < SHARED {
        return Ok(Place::One(key, value.into()));
    }
    Ok(Place::Shared(key, rests(value.into())?))
}

fn join(start: &[u8], rest: &[u8]) -> Bytes {
    Bytes::from([start, rest].concat())
}

/// What follows in the keys of a shared place, and the value of each.
fn rests(mut bytes: Bytes) -> Result<BTreeMap<Bytes, Bytes>, Trouble> {
    let mut rests = BTreeMap::new();
    while let Some((lens, _)) = bytes.split_first_chunk::<8>() {
        let len =
            |at: usize| u32::from_le_bytes([lens[at], lens[at + 1], lens[at + 2], lens[at + 3]]) as usize;
        let (rest, value) = (len(0), len(4));
        if bytes.len() - 8 < rest + value {
            break;
        }
        let value = bytes.slice(8 + rest..8 + rest + value);
        let rest = bytes.slice(8..8 + rest);
        let _ = bytes.split_to(8 + rest.len() + value.len());
        rests.insert(rest, value);
    }
    if bytes.is_empty() {
        Ok(rests)
    } else {
        Err(Trouble::Other("a place of long keys is not what was written"))
    }
}
