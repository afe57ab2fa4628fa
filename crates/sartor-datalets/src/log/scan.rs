//! Reads a file's records in order, a large piece at a time.

use super::disk::{Disk, damaged, refused};
use super::files::log_name;
use super::format::{self, HEADER_BYTES, RECORD_HEAD, Record};
use sartor_core::datalet::DataletError;
use std::io;

/// Read at once.
const PIECE_BYTES: usize = 128 << 10;

/// A piece of a file.
#[derive(Default)]
pub struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `len` bytes at `from` of a file that goes to `end`, which they must not pass.
    pub fn view<D: Disk>(
        &mut self,
        disk: &D,
        file: &D::File,
        from: u64,
        len: usize,
        end: u64,
    ) -> io::Result<&[u8]> {
        let last = from + len as u64;
        if from < self.start || last > self.start + self.bytes.len() as u64 {
            let wanted = (len.max(PIECE_BYTES) as u64).min(end - from);
            self.bytes.resize(wanted as usize, 0);
            self.start = from;
            disk.read_at(file, &mut self.bytes, from)?;
        }
        let begin = (from - self.start) as usize;
        Ok(&self.bytes[begin..begin + len])
    }
}

/// The way through a file.
pub struct Scan {
    /// The file's number.
    file: u32,
    /// Where the next record begins.
    at: u32,
    end: u32,
    window: Window,
}

/// What comes next.
pub enum Step<'a> {
    /// A record, and where it begins.
    Record(Record<'a>, u32),
    /// What lies there is no record.
    Bad(u32),
    /// There are no more.
    End,
}

impl Scan {
    /// From the first record of a file on to `end`.
    pub fn new(file: u32, end: u32) -> Scan {
        Scan { file, at: HEADER_BYTES, end, window: Window::default() }
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> u64 {
        self.window.bytes.capacity() as u64
    }

    /// The file's number.
    pub fn file(&self) -> u32 {
        self.file
    }

    /// Where the next record begins.
    pub fn at(&self) -> u32 {
        self.at
    }

    /// The next record.
    pub fn next<D: Disk>(&mut self, disk: &D, file: &D::File) -> Result<Step<'_>, DataletError> {
        let number = self.file;
        self.read(disk, file).map_err(|error| refused("read", &disk.path(&log_name(number)), &error))
    }

    /// The next record where all must be whole.
    pub fn next_whole<D: Disk>(
        &mut self,
        disk: &D,
        file: &D::File,
    ) -> Result<Option<(Record<'_>, u32)>, DataletError> {
        let name = log_name(self.file);
        match self.next(disk, file)? {
            Step::Record(record, at) => Ok(Some((record, at))),
            Step::End => Ok(None),
            Step::Bad(at) => Err(damaged(&disk.path(&name), at, "a record is not what was written")),
        }
    }

    fn read<D: Disk>(&mut self, disk: &D, file: &D::File) -> io::Result<Step<'_>> {
        let (at, end) = (self.at, u64::from(self.end));
        if at >= self.end {
            return Ok(Step::End);
        }
        let (from, left) = (u64::from(at), (self.end - at) as usize);
        if left < RECORD_HEAD {
            return Ok(Step::Bad(at));
        }
        let head = self.window.view(disk, file, from, RECORD_HEAD, end)?;
        let Some(size) = format::size_of_record(head).filter(|size| *size <= left) else {
            return Ok(Step::Bad(at));
        };
        let bytes = self.window.view(disk, file, from, size, end)?;
        let Some(record) = format::decode(bytes, self.file, at) else { return Ok(Step::Bad(at)) };
        self.at += size as u32;
        Ok(Step::Record(record, at))
    }
}
