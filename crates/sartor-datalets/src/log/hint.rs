//! Hint files: the keys of a file and where they lie, without the values, so that opening is quick.
//!
//! Nothing depends on them: one that is missing, torn or of other contents costs the time to read the file itself. So they
//! are written on the way and never synced. That one belongs to what its file holds now is known by the file's length and
//! sum, which the header of the next file tells, too.
//!
//! ```text
//!  entry    kind 1 | key length 4 | value length 4 | offset 4 | key
//!  trailer  length of the file 4 | its sum 4 | checksum over all before 4
//! ```

use super::disk::Disk;
use super::faults::{Fault, Plant};
use super::files::hint_name;
use super::format::{Header, Kind, RECORD_BYTES_MAX, number};
use super::index::Place;
use super::scan::Window;
use crc32fast::Hasher;
use std::io;

const ENTRY_HEAD: usize = 13;
const TRAILER_BYTES: usize = 12;
/// Written at once.
const PIECE_BYTES: usize = 128 << 10;

/// Writes the hints of the file that is written to.
pub struct HintWriter<D: Disk> {
    number: u32,
    file: Option<D::File>,
    buffer: Vec<u8>,
    written: u64,
    hasher: Hasher,
    /// A write failed: there will be none.
    failed: bool,
}

impl<D: Disk> HintWriter<D> {
    /// For the file of this number, from its begin on.
    pub fn new(number: u32) -> HintWriter<D> {
        let hasher = Hasher::new();
        HintWriter { number, file: None, buffer: Vec::new(), written: 0, hasher, failed: false }
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    /// Another record of the file. Commits need no hint.
    pub fn note(&mut self, disk: &D, kind: Kind, key: &[u8], value_len: u32, offset: u32) {
        if kind == Kind::Commit || self.failed {
            return;
        }
        self.buffer.push(kind as u8);
        for number in [key.len() as u32, value_len, offset] {
            self.buffer.extend_from_slice(&number.to_le_bytes());
        }
        self.buffer.extend_from_slice(key);
        if self.buffer.len() >= PIECE_BYTES {
            self.write(disk);
        }
    }

    /// The file is closed.
    pub fn finish(mut self, disk: &D, len: u32, sum: u32) {
        self.buffer.extend_from_slice(&len.to_le_bytes());
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        let mut hasher = self.hasher.clone();
        hasher.update(&self.buffer);
        self.buffer.extend_from_slice(&hasher.finalize().to_le_bytes());
        if !self.failed {
            self.write(disk);
        }
    }

    fn write(&mut self, disk: &D) {
        self.hasher.update(&self.buffer);
        if self.try_write(disk).is_err() {
            self.failed = true;
            self.file = None;
            // Half of one takes room for nothing.
            let _ = disk.delete(&hint_name(self.number));
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
    }

    fn try_write(&mut self, disk: &D) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => disk.create(&hint_name(self.number))?,
        };
        disk.write_at(&file, &self.buffer, self.written)?;
        self.file = Some(file);
        Ok(())
    }
}

/// A hint file that belongs to what its file holds.
pub struct Hints<D: Disk> {
    file: D::File,
    number: u32,
    at: u64,
    end: u64,
    window: Window,
}

/// What a hint tells.
pub struct Hint<'a> {
    /// What the record told.
    pub kind: Kind,
    /// Its key.
    pub key: &'a [u8],
    /// Where it is.
    pub place: Place,
}

impl<D: Disk> Hints<D> {
    /// The hints of a file that is as `header`, of the next one, says; none if there are none or they are not right.
    pub fn open(disk: &D, number: u32, header: Header, plant: Plant) -> Option<Hints<D>> {
        let (file, len) = disk.open(&hint_name(number)).ok()?;
        let end = len.checked_sub(TRAILER_BYTES as u64)?;
        let mut trailer = [0; TRAILER_BYTES];
        disk.read_at(&file, &mut trailer, end).ok()?;
        let told = Header { len_before: self::number(&trailer, 0), sum_before: self::number(&trailer, 4) };
        if told != header && !plant.is(Fault::BelieveHints) {
            return None;
        }
        let (mut hasher, mut window, mut at) = (Hasher::new(), Window::default(), 0);
        while at < end {
            let size = (end - at).min(PIECE_BYTES as u64) as usize;
            hasher.update(window.view(disk, &file, at, size, end).ok()?);
            at += size as u64;
        }
        hasher.update(&trailer[..8]);
        let right = hasher.finalize() == self::number(&trailer, 8);
        right.then_some(Hints { file, number, at: 0, end, window })
    }

    /// The next one; an error if it cannot be read any more.
    pub fn next(&mut self, disk: &D) -> io::Result<Option<Hint<'_>>> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let left = (self.end - self.at) as usize;
        if left == 0 {
            return Ok(None);
        }
        if left < ENTRY_HEAD {
            return Err(bad());
        }
        let head = self.window.view(disk, &self.file, self.at, ENTRY_HEAD, self.end)?;
        let kind = Kind::from_byte(head[0]).ok_or_else(bad)?;
        let [key_len, value_len, offset] = [1, 5, 9].map(|at| self::number(head, at));
        let size = ENTRY_HEAD + key_len as usize;
        if size > left.min(RECORD_BYTES_MAX) {
            return Err(bad());
        }
        let entry = self.window.view(disk, &self.file, self.at, size, self.end)?;
        self.at += size as u64;
        let place = Place { file: self.number, offset, value_len };
        Ok(Some(Hint { kind, key: &entry[ENTRY_HEAD..], place }))
    }
}
