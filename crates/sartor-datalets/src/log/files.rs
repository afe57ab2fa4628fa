//! The files of a log: numbered without gaps, the newest is written to, the others never change.
//!
//! Records gather in a buffer, which one call writes at the end of a group, or before where it is large. A file is on disk
//! before the next one is made, so that after a power failure only the newest can lack anything.

use super::disk::{Disk, damaged, refused};
use super::faults::{Fault, Plant};
use super::format::{self, Commit, HEADER_BYTES, Header, Kind, RECORD_BYTES_MAX, RECORD_HEAD};
use super::hint::HintWriter;
use super::index::Place;
use super::{Sizes, said_too_large};
use sartor_core::datalet::DataletError;
use std::collections::VecDeque;

/// The largest file, but for a last record.
const FILE_BYTES_MAX: u64 = 1 << 31;
/// A large log has larger files, for all are kept open: 64 GB are in about 140 of them.
const FILES_WANTED: u64 = 32;
/// Files deleted after one commit.
const DELETES_MAX: usize = 8;
/// Memory that is kept for the next one.
const SPARE_BYTES: usize = 1 << 20;

const LOG: &str = ".log";
const HINT: &str = ".hint";

/// What a file of records is called.
pub fn log_name(number: u32) -> String {
    format!("{number:010}{LOG}")
}

/// What a file of hints is called.
pub fn hint_name(number: u32) -> String {
    format!("{number:010}{HINT}")
}

/// The number of a file of records, or of one of hints.
pub fn numbers_of(name: &str) -> (Option<u32>, Option<u32>) {
    let number = |end| {
        let number = name.strip_suffix(end)?.parse().ok()?;
        (name == format!("{number:010}{end}")).then_some(number)
    };
    (number(LOG), number(HINT))
}

/// A file of records.
pub struct Segment<F> {
    /// Its number.
    pub number: u32,
    /// It is kept open.
    pub file: F,
    /// Its bytes, those in the buffer too.
    pub len: u32,
    /// Bytes of records that the index names.
    pub live: u64,
}

/// All files.
pub struct Files<D: Disk> {
    disk: D,
    sizes: Sizes,
    /// Oldest first.
    segments: VecDeque<Segment<D::File>>,
    /// Bytes of all.
    total: u64,
    /// Of the newest: what is not in it yet, how much is, how much of that is on disk, and its sum.
    buffer: Vec<u8>,
    written: u32,
    synced: u32,
    sum: u32,
    hint: HintWriter<D>,
    /// Whether a power failure would leave all files in the folder.
    dir_synced: bool,
    scratch: Vec<u8>,
    plant: Plant,
}

impl<D: Disk> Files<D> {
    /// Those that are there, as they are on disk.
    pub fn new(disk: D, sizes: Sizes, plant: Plant, segments: VecDeque<Segment<D::File>>) -> Files<D> {
        let total = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let (number, len) = segments.back().map_or((0, 0), |newest| (newest.number, newest.len));
        Files {
            disk,
            sizes,
            segments,
            total,
            buffer: Vec::new(),
            written: len,
            synced: len,
            sum: 0,
            hint: HintWriter::new(number),
            dir_synced: true,
            scratch: Vec::new(),
            plant,
        }
    }

    /// The sum and the hints of the newest, which opening has found.
    pub fn resume(&mut self, sum: u32, hint: HintWriter<D>) {
        (self.sum, self.hint) = (sum, hint);
    }

    /// Where they are.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// How large things are.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Which errors are planted.
    pub fn plant(&self) -> Plant {
        self.plant
    }

    /// All, oldest first.
    pub fn segments(&self) -> &VecDeque<Segment<D::File>> {
        &self.segments
    }

    /// Bytes of memory they take.
    pub fn bytes(&self) -> u64 {
        (self.buffer.capacity() + self.scratch.capacity()) as u64 + self.hint.bytes()
    }

    fn index_of(&self, number: u32) -> usize {
        number.wrapping_sub(self.segments.front().map_or(0, |oldest| oldest.number)) as usize
    }

    /// The index names this record from now on.
    pub fn count(&mut self, place: Place, key: &[u8]) {
        let index = self.index_of(place.file);
        self.segments[index].live += place.size(key);
    }

    /// The index does not name this record any more.
    pub fn uncount(&mut self, place: Place, key: &[u8]) {
        let index = self.index_of(place.file);
        self.segments[index].live -= place.size(key);
    }

    /// The index names none.
    pub fn count_nothing(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.live = 0);
    }

    /// Appends a record.
    pub fn append(&mut self, kind: Kind, key: &[u8], value: &[u8]) -> Result<Place, DataletError> {
        let size = RECORD_HEAD + key.len() + value.len();
        if size > RECORD_BYTES_MAX {
            return Err(said_too_large("a key with its value", RECORD_BYTES_MAX));
        }
        if self.is_full(size) {
            self.begin_next()?;
        }
        let Some(newest) = self.segments.back_mut() else { unreachable!("there is a file now") };
        let place = Place { file: newest.number, offset: newest.len, value_len: value.len() as u32 };
        let checksum = format::encode(&mut self.buffer, place.file, place.offset, kind, key, value);
        newest.len += size as u32;
        self.total += size as u64;
        self.sum = format::sum_with(self.sum, checksum);
        self.hint.note(&self.disk, kind, key, place.value_len, place.offset);
        if self.buffer.len() >= self.sizes.buffer {
            self.flush()?;
        }
        Ok(place)
    }

    /// Appends the commit that ends a group.
    pub fn append_commit(&mut self, mark: &[u8]) -> Result<(), DataletError> {
        // If a new file is begun for it, that is what it speaks of.
        if self.is_full(RECORD_HEAD + mark.len() + size_of::<Commit>()) {
            self.begin_next()?;
        }
        let newest = self.segments.len() - 1;
        let first = self.segments.iter().take(newest).find(|segment| segment.live > 0);
        let first = first.unwrap_or(&self.segments[newest]).number;
        let commit = Commit { first, synced: self.synced };
        self.append(Kind::Commit, mark, &commit.encode())?;
        Ok(())
    }

    fn is_full(&self, size: usize) -> bool {
        let limit = (self.total / FILES_WANTED).clamp(self.sizes.file, FILE_BYTES_MAX.max(self.sizes.file));
        self.segments
            .back()
            .is_none_or(|newest| newest.len > HEADER_BYTES && u64::from(newest.len) + size as u64 > limit)
    }

    /// Closes the newest file, and begins another one.
    fn begin_next(&mut self) -> Result<(), DataletError> {
        let (number, len_before) =
            self.segments.back().map_or((1, 0), |newest| (newest.number + 1, newest.len));
        let hint = HintWriter::new(number);
        if !self.segments.is_empty() {
            self.flush()?;
            if !self.plant.is(Fault::SwitchUnsynced) {
                self.sync()?;
            }
            std::mem::replace(&mut self.hint, hint).finish(&self.disk, len_before, self.sum);
        } else {
            self.hint = hint;
        }
        let name = log_name(number);
        let file =
            self.disk.create(&name).map_err(|error| refused("make", &self.disk.path(&name), &error))?;
        self.dir_synced = false;
        self.buffer.extend_from_slice(&Header { len_before, sum_before: self.sum }.encode(number));
        self.segments.push_back(Segment { number, file, len: HEADER_BYTES, live: 0 });
        self.total += u64::from(HEADER_BYTES);
        (self.written, self.synced, self.sum) = (0, 0, 0);
        Ok(())
    }

    /// Writes the buffer.
    pub fn flush(&mut self) -> Result<(), DataletError> {
        let Some(newest) = self.segments.back().filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let written = self.disk.write_at(&newest.file, &self.buffer, u64::from(self.written));
        written.map_err(|error| refused("write", &self.disk.path(&log_name(newest.number)), &error))?;
        self.written = newest.len;
        self.buffer.clear();
        if self.buffer.capacity() > self.sizes.buffer + SPARE_BYTES {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// All that was written is on disk when this returns.
    pub fn sync(&mut self) -> Result<(), DataletError> {
        if let Some(newest) = self.segments.back().filter(|_| self.synced < self.written) {
            let name = log_name(newest.number);
            if !self.plant.is(Fault::SkipSync) {
                let synced = self.disk.sync(&newest.file);
                synced.map_err(|error| refused("sync", &self.disk.path(&name), &error))?;
            }
            self.synced = self.written;
        }
        if !self.dir_synced && !self.plant.is(Fault::SkipDirSync) {
            self.sync_dir()?;
        }
        self.dir_synced = true;
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), DataletError> {
        self.disk.sync_dir().map_err(|error| refused("sync the folder", &self.disk.path(""), &error))
    }

    /// Whether there is a closed file at the old end that nothing is needed of: what its deletes and clears took away was
    /// in files before it, and those are gone.
    pub fn oldest_is_dead(&self) -> bool {
        self.segments.len() > 1 && self.segments[0].live == 0
    }

    /// Deletes such files, as a rule all. Only right after a commit came to the disk: one before may need them.
    pub fn delete_dead(&mut self) -> Result<(), DataletError> {
        for _ in 0..DELETES_MAX {
            if !self.oldest_is_dead() {
                break;
            }
            let Some(oldest) = self.segments.pop_front() else { break };
            self.total -= u64::from(oldest.len);
            // It may have none.
            let _ = self.disk.delete(&hint_name(oldest.number));
            let name = log_name(oldest.number);
            let deleted = self.disk.delete(&name);
            deleted.map_err(|error| refused("delete", &self.disk.path(&name), &error))?;
            // The next one must not go before it: there would be a gap, and its deletes would be missed.
            self.sync_dir()?;
        }
        Ok(())
    }

    /// The oldest file, where a share of the closed ones that is worth it is dead.
    pub fn worth_merging(&self) -> Option<&Segment<D::File>> {
        let newest = self.segments.len().checked_sub(1).filter(|newest| *newest > 0)?;
        let live: u64 = self.segments.iter().take(newest).map(|segment| segment.live).sum();
        let closed = self.total - u64::from(self.segments[newest].len);
        let oldest = &self.segments[0];
        (oldest.live > 0 && live * 100 < closed * self.sizes.live_percent_min).then_some(oldest)
    }

    /// The value of the record at `place`, which is that of `key`.
    pub fn read(&mut self, place: Place, key: &[u8]) -> Result<&[u8], DataletError> {
        let index = self.index_of(place.file);
        let size = place.size(key) as usize;
        let segment = &self.segments[index];
        let bytes = if index + 1 == self.segments.len() && place.offset >= self.written {
            let start = (place.offset - self.written) as usize;
            &self.buffer[start..start + size]
        } else {
            if self.scratch.len() > SPARE_BYTES && size <= SPARE_BYTES {
                self.scratch = Vec::new();
            }
            if self.scratch.len() < size {
                self.scratch.resize(size, 0);
            }
            let bytes = &mut self.scratch[..size];
            let read = self.disk.read_at(&segment.file, bytes, u64::from(place.offset));
            read.map_err(|error| refused("read", &self.disk.path(&log_name(place.file)), &error))?;
            bytes
        };
        match format::decode(bytes, place.file, place.offset) {
            Some(record) if record.kind == Kind::Put && record.key == key => Ok(record.value),
            _ => {
                let path = self.disk.path(&log_name(place.file));
                Err(damaged(&path, place.offset, "a record is not what was written"))
            }
        }
    }
}
