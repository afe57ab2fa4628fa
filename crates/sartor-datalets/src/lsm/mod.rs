//! `lsm`: on disk, ordered, a log-structured merge tree (fjall): writes cost little, reads look at several places.
//!
//! ```text
//!  put, delete ──▶ group: a map in memory ── commit: one batch, with the header ──▶ tree (fjall)
//!  get, walk   ◀── both, the group's word before the tree's ───────────────────────┘
//! ```
//!
//! A batch of fjall cannot be read before it is committed, so what was written since the last commit is kept here, up to a
//! bound: a group that is larger is refused, as it could not be all or nothing any more. Who commits after each entry and
//! each page of a fill never comes near it.
//!
//! Pairs and header are in one keyspace, so they come on disk in the same file whatever the journal lost. A clear is a new
//! tree beside the old one, which `current` names from the commit on.
//!
//! What is known of fjall and matters here:
//! - It ends recovery at a damaged place of its journal without a word (its issue 311). `folder.rs`
//!   counts commits, and finds that.
//! - Writers could wait for ever after a kill -9 (its issue 257, open, but changed since): the tests kill often and have not
//!   seen it. A flush that fails is seen at the next commit; one that only never ends, when its memory has grown too much.
//! - It lost inserts on macOS with several worker threads (its issue 230). There is one here, which is also what a node with
//!   dozens of stores can afford.

mod tree;

use crate::folder::{Folder, names};
use crate::header::Header;
use crate::latched::has_passed;
use crate::{Options, drop_aside};
use bytes::Bytes;
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs;
use std::iter::Peekable;
use std::ops::Bound;
use tree::Tree;

/// What a group may hold.
const GROUP_BYTES_MAX: u64 = 256 << 20;
/// What an entry of the group takes beside its bytes.
const ENTRY_BYTES: u64 = 100;
/// Names the folder of the tree.
const CURRENT: &str = "current";

/// A store of this engine.
pub struct Lsm {
    tree: Tree,
    /// Since the last commit; none is a delete.
    group: BTreeMap<Bytes, Option<Bytes>>,
    group_bytes: u64,
    /// Since the last commit, everything in the tree was removed.
    cleared: bool,
    /// Pairs, with those of the group.
    len: u64,
    header: Header,
    /// Which tree it is, counted from 1.
    life: u64,
    /// Dropped last: it holds the lock.
    folder: Folder,
}

impl Lsm {
    /// Opens the store in a folder, or makes it there.
    pub fn open(options: &Options) -> Result<Lsm, DataletError> {
        let mut folder = Folder::open(&options.dir, "lsm")?;
        if folder.is_new() {
            let tree = Tree::make(&folder.path(&tree_name(1)), &[], &Header::default());
            let made = tree.and_then(|_| Ok(folder.replace(CURRENT, &tree_name(1))?));
            made.map_err(|error| folder.failed("cannot make it", error))?;
            folder.complete()?;
        }
        let current = fs::read_to_string(folder.path(CURRENT));
        let current = current.map_err(|error| folder.damaged(format!("its file '{CURRENT}': {error}")))?;
        let life = current.strip_prefix("tree-").and_then(|number| number.parse().ok());
        let life = life.ok_or_else(|| folder.damaged(format!("its file '{CURRENT}' names no tree")))?;
        remove_others(&folder, &current)
            .map_err(|error| folder.failed("cannot remove an old tree", error))?;
        let (tree, header) = Tree::open(&folder.path(&current)).map_err(|trouble| match trouble {
            tree::Trouble::Other(how) => folder.damaged(how),
            error => folder.unreadable(error),
        })?;
        folder.check(header.number)?;
        let len = header.len;
        let group = BTreeMap::new();
        Ok(Lsm { tree, group, group_bytes: 0, cleared: false, len, header, life, folder })
    }

    /// Whether a key has a value, the group aside. Counting pairs exactly costs this look for each key that a group
    /// writes; the tree's filters answer it for most keys that are not there.
    fn is_in_tree(&self, key: &[u8]) -> Result<bool, DataletError> {
        if self.cleared {
            return Ok(false);
        }
        self.tree.contains(key).map_err(|error| self.folder.failed("cannot read", error))
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), DataletError> {
        let size = |value: Option<usize>| (key.len() + value.unwrap_or(0)) as u64 + ENTRY_BYTES;
        let added = size(value.map(<[u8]>::len));
        let (new_value, is_there) = (value.map(Bytes::copy_from_slice), value.is_some());
        let was_there = if let Some(old) = self.group.get_mut(key) {
            self.group_bytes = self.group_bytes + added - size(old.as_ref().map(Bytes::len));
            std::mem::replace(old, new_value).is_some()
        } else {
            let was_there = self.is_in_tree(key)?;
            if was_there || is_there {
                self.group_bytes += added;
                self.group.insert(Bytes::copy_from_slice(key), new_value);
            }
            was_there
        };
        self.len = self.len + u64::from(is_there) - u64::from(was_there);
        if self.group_bytes > GROUP_BYTES_MAX {
            let why = format!("more than {} MiB were written without a commit", GROUP_BYTES_MAX >> 20);
            return Err(self.folder.failed("cannot write", why));
        }
        Ok(())
    }

    /// Pushes pairs within the bounds; the last key pushed if there were more.
    fn fill(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        page: &mut Page,
    ) -> Result<Option<Bytes>, DataletError> {
        let tree = (!self.cleared).then(|| self.tree.range(bounds)).into_iter().flatten();
        let (mut tree, mut group) = (tree.peekable(), self.group.range::<[u8], _>(bounds).peekable());
        while let Some(pair) = next(&mut tree, &mut group, Ordering::Less) {
            if page.is_full() {
                return Ok(page.pairs().last().map(|(key, _)| key.clone()));
            }
            let (key, value) = pair.map_err(|error| self.folder.failed("cannot walk", error))?;
            page.push(&key, &value);
        }
        Ok(None)
    }

    /// The same from the last one on.
    fn fill_back(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), page: &mut Page) -> Result<(), DataletError> {
        let tree = (!self.cleared).then(|| self.tree.range(bounds)).into_iter().flatten().rev();
        let group = self.group.range::<[u8], _>(bounds).rev();
        let (mut tree, mut group) = (tree.peekable(), group.peekable());
        while !page.is_full()
            && let Some(pair) = next(&mut tree, &mut group, Ordering::Greater)
        {
            let (key, value) = pair.map_err(|error| self.folder.failed("cannot scan", error))?;
            page.push(&key, &value);
        }
        Ok(())
    }

    fn commit_all(&mut self, header: &Header, durably: bool) -> Result<(), tree::Trouble> {
        let group: Vec<_> = std::mem::take(&mut self.group).into_iter().collect();
        if !self.cleared {
            return self.tree.write(&group, header, durably);
        }
        let name = tree_name(self.life + 1);
        let tree = Tree::make(&self.folder.path(&name), &group, header)?;
        self.folder.replace(CURRENT, &name)?;
        let (old, path) = (std::mem::replace(&mut self.tree, tree), self.folder.path(&tree_name(self.life)));
        self.life += 1;
        drop_aside(Removed(old, path));
        Ok(())
    }
}

/// A tree that is not needed any more; what is left of it goes when the store is opened again.
struct Removed(#[expect(dead_code, reason = "it is held until its files go")] Tree, std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.1);
    }
}

fn tree_name(life: u64) -> String {
    format!("tree-{life}")
}

/// Removes trees whose commit did not come to its end, or that were left when the next began.
fn remove_others(folder: &Folder, current: &str) -> std::io::Result<()> {
    for name in names(&folder.path(""))? {
        if name.starts_with("tree-") && name != current {
            fs::remove_dir_all(folder.path(&name))?;
        }
    }
    Ok(())
}

/// The next pair of both, whose keys come in this order, the group's word before the tree's.
fn next<'a, E>(
    tree: &mut Peekable<impl Iterator<Item = Result<(Bytes, Bytes), E>>>,
    group: &mut Peekable<impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>>,
    order: Ordering,
) -> Option<Result<(Bytes, Bytes), E>> {
    loop {
        let in_tree = match tree.peek() {
            Some(Ok((key, _))) => Some(key),
            Some(Err(_)) => return tree.next(),
            None => None,
        };
        let Some((key, value)) = group.peek() else { return tree.next() };
        if in_tree.is_some_and(|in_tree| in_tree.cmp(*key) == order) {
            return tree.next();
        }
        if in_tree == Some(*key) {
            tree.next();
        }
        let pair = value.as_ref().map(|value| ((*key).clone(), value.clone()));
        group.next();
        if let Some(pair) = pair {
            return Some(Ok(pair));
        }
    }
}

impl Datalet for Lsm {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        let value = match self.group.get(key) {
            Some(value) => value.clone(),
            None if self.cleared => None,
            None => self.tree.get(key).map_err(|error| self.folder.failed("cannot read", error))?,
        };
        if let Some(value) = value {
            found(&value);
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.write(key, Some(value))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.write(key, None)
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let from = match &*cursor {
            Cursor::Key(key) => Bound::Excluded(&key[..]),
            Cursor::Start | Cursor::Number(_) => Bound::Unbounded,
            Cursor::End => return Ok(()),
        };
        let last = self.fill((from, Bound::Unbounded), page)?;
        *cursor = last.map_or(Cursor::End, Cursor::Key);
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        Some(has_passed(cursor, key))
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        drop_aside(std::mem::take(&mut self.group));
        // An empty tree needs no new one.
        self.cleared |= self.header.len > 0;
        (self.group_bytes, self.len) = (0, 0);
        Ok(())
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        Ok(self.len)
    }

    fn bytes(&self) -> u64 {
        self.group_bytes + self.tree.bytes()
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        let header = self.header.next(self.len, mark);
        self.commit_all(&header, durably).map_err(|error| self.folder.failed("cannot commit", error))?;
        // A new tree is on disk in any case: the old one is gone.
        if durably || self.cleared {
            self.folder.note(header.number)?;
        }
        (self.header, self.cleared, self.group_bytes) = (header, false, 0);
        Ok(())
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        Ok(self.header.mark.clone())
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if end.is_none_or(|end| start < end) {
            self.fill((Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded)), page)?;
        }
        Ok(())
    }

    fn scan_back(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if end.is_none_or(|end| start < end) {
            self.fill_back((Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded)), page)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
