//! A disk in memory that loses what was not synced, the way real ones do.
//!
//! It keeps what is surely on disk apart from what was done since. A crash keeps any part of that: of each file's writes
//! the first few, the last of them torn; or any of their sectors, whatever their order. Of new and deleted names it keeps
//! any, too.

use crate::log::disk::Disk;
use sartor_core::random::Random;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

/// Small, so that small files have many.
const SECTOR: usize = 64;

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Default)]
struct Inode {
    /// As after a crash that loses all that can be lost.
    kept: Vec<u8>,
    /// What readers see.
    seen: Vec<u8>,
    /// What leads from one to the other.
    unsynced: Vec<Change>,
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    kept: BTreeMap<String, usize>,
    seen: BTreeMap<String, usize>,
    /// Names that came (with their file) or went.
    unsynced: Vec<(String, Option<usize>)>,
    /// Operations left until it crashes.
    fuse: Option<u64>,
    crashed: bool,
    /// Bytes that all files may have together.
    room: Option<usize>,
    /// Bytes read and written so far.
    moved: u64,
}

/// The disk; clones are the same one.
#[derive(Clone, Default)]
pub struct Lossy(Arc<Mutex<State>>);

fn write(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let end = at + what.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(what);
}

impl Inode {
    fn crash(&mut self, random: &mut Random) {
        let unsynced = std::mem::take(&mut self.unsynced);
        match random.below(4) {
            0 => self.keep_first(unsynced, random),
            1 => self.keep_any(unsynced, random),
            2 => {}
            _ => self.kept.clone_from(&self.seen),
        }
        self.seen.clone_from(&self.kept);
    }

    /// The first few, and the last of them torn.
    fn keep_first(&mut self, unsynced: Vec<Change>, random: &mut Random) {
        let count = random.below(unsynced.len() as u64 + 1) as usize;
        for (place, change) in unsynced.into_iter().take(count).enumerate() {
            match change {
                Change::Write(at, mut bytes) => {
                    if place + 1 == count {
                        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                    }
                    write(&mut self.kept, at, &bytes);
                }
                Change::Truncate(len) => self.kept.truncate(len),
            }
        }
    }

    /// Any sectors; zeros, or what was there before, where one is missing.
    fn keep_any(&mut self, unsynced: Vec<Change>, random: &mut Random) {
        let percent = random.below(101);
        for change in unsynced {
            match change {
                Change::Write(at, bytes) => {
                    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                        if random.percent(percent) {
                            write(&mut self.kept, at + index * SECTOR, sector);
                        }
                    }
                }
                Change::Truncate(len) if random.percent(percent) => self.kept.truncate(len),
                Change::Truncate(_) => {}
            }
        }
    }
}

impl Lossy {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// From now on all files together may have so many bytes.
    pub fn limit(&self, room: Option<usize>) {
        self.state().room = room;
    }

    /// It crashes at one of the next operations; or it does not.
    pub fn light(&self, fuse: Option<u64>) {
        self.state().fuse = fuse;
    }

    /// Whether it has crashed.
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Bytes read and written so far.
    pub fn moved(&self) -> u64 {
        self.state().moved
    }

    /// The process ended, but not the machine.
    pub fn restart_process(&self) {
        let mut state = self.state();
        (state.crashed, state.fuse) = (false, None);
    }

    /// The power failed.
    pub fn restart_machine(&self, random: &mut Random) {
        let mut state = self.state();
        (state.crashed, state.fuse) = (false, None);
        state.inodes.iter_mut().for_each(|inode| inode.crash(random));
        let unsynced = std::mem::take(&mut state.unsynced);
        let percent = [0, 50, 100][random.below(3) as usize];
        for (name, inode) in unsynced {
            if random.percent(percent) {
                match inode {
                    Some(inode) => state.kept.insert(name, inode),
                    None => state.kept.remove(&name),
                };
            }
        }
        state.seen = state.kept.clone();
    }

    /// The bytes of all files.
    pub fn used(&self) -> usize {
        let state = self.state();
        state.seen.values().map(|inode| state.inodes[*inode].seen.len()).sum()
    }

    /// What is in a file.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.inodes[state.seen[name]].seen.clone()
    }

    /// The disk goes bad there, or somebody edits a file.
    pub fn put_contents(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let inode = state.seen[name];
        state.inodes[inode] = Inode { kept: bytes.clone(), seen: bytes, unsynced: Vec::new() };
    }

    /// A disk with the same files, all of it synced.
    pub fn copy(&self) -> Lossy {
        let copy = Lossy::default();
        for name in self.list().unwrap() {
            copy.create(&name).unwrap();
            copy.put_contents(&name, self.contents(&name));
        }
        copy.sync_dir().unwrap();
        copy
    }
}

impl State {
    /// What is done in the operation that crashes may be kept, so it is done first.
    fn after<T>(&mut self, result: T) -> io::Result<T> {
        if self.burns() { Err(gone()) } else { Ok(result) }
    }

    fn burns(&mut self) -> bool {
        self.crashed |= self.fuse == Some(0);
        self.fuse = self.fuse.map(|fuse| fuse.saturating_sub(1));
        self.crashed
    }

    fn check(&self) -> io::Result<()> {
        if self.crashed { Err(gone()) } else { Ok(()) }
    }
}

fn gone() -> io::Error {
    io::Error::other("the machine is off")
}

impl Disk for Lossy {
    type File = usize;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.check()?;
        let names = state.seen.keys().cloned().collect();
        state.after(names)
    }

    fn create(&self, name: &str) -> io::Result<usize> {
        let mut state = self.state();
        state.check()?;
        let inode = match state.seen.get(name).copied() {
            Some(inode) => inode,
            None => {
                state.inodes.push(Inode::default());
                let inode = state.inodes.len() - 1;
                state.seen.insert(name.into(), inode);
                state.unsynced.push((name.into(), Some(inode)));
                inode
            }
        };
        state.inodes[inode].seen.clear();
        state.inodes[inode].unsynced.push(Change::Truncate(0));
        state.after(inode)
    }

    fn open(&self, name: &str) -> io::Result<(usize, u64)> {
        let mut state = self.state();
        state.check()?;
        let inode = *state.seen.get(name).ok_or(ErrorKind::NotFound)?;
        let len = state.inodes[inode].seen.len() as u64;
        state.after((inode, len))
    }

    fn read_at(&self, file: &usize, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        let range = offset as usize..offset as usize + bytes.len();
        state.moved += bytes.len() as u64;
        bytes.copy_from_slice(state.inodes[*file].seen.get(range).ok_or(ErrorKind::UnexpectedEof)?);
        state.after(())
    }

    fn write_at(&self, file: &usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        state.moved += bytes.len() as u64;
        let used: usize = state.seen.values().map(|inode| state.inodes[*inode].seen.len()).sum();
        let room = state.room.map_or(usize::MAX, |room| room.saturating_sub(used));
        let inode = &mut state.inodes[*file];
        let more = (offset as usize + bytes.len()).saturating_sub(inode.seen.len());
        let fits = bytes.len() - more.saturating_sub(room).min(bytes.len());
        write(&mut inode.seen, offset as usize, &bytes[..fits]);
        inode.unsynced.push(Change::Write(offset as usize, bytes[..fits].to_vec()));
        state.after(())?;
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&self, file: &usize, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        let inode = &mut state.inodes[*file];
        inode.seen.truncate(len as usize);
        inode.unsynced.push(Change::Truncate(len as usize));
        state.after(())
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        if state.burns() {
            return Err(gone());
        }
        let inode = &mut state.inodes[*file];
        inode.kept.clone_from(&inode.seen);
        inode.unsynced.clear();
        Ok(())
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        state.seen.remove(name).ok_or(ErrorKind::NotFound)?;
        state.unsynced.push((name.into(), None));
        state.after(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        state.check()?;
        if state.burns() {
            return Err(gone());
        }
        state.kept = state.seen.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("disk").join(name)
    }
}
