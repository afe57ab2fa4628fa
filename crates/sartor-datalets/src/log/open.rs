//! Opens a log as of its last commit.
//!
//! From the newest file back the last commit is sought; what follows it was of a group that has no end, and goes. Then the
//! records of all files are read in order: of closed ones from their hints, where they have them, of the newest from itself.

use super::disk::{Disk, damaged, refused};
use super::faults::{Fault, Plant};
use super::files::{Files, Segment, hint_name, log_name, numbers_of};
use super::format::{self, Commit, HEADER_BYTES, Header, HeaderFound, Kind, RECORD_HEAD, sum_with};
use super::hint::{HintWriter, Hints};
use super::index::{Index, Place};
use super::scan::{Scan, Step, Window};
use super::{Log, Sizes};
use sartor_core::datalet::DataletError;
use std::collections::{BTreeSet, VecDeque};

/// The last commit.
struct Last {
    mark: Vec<u8>,
    commit: Commit,
    /// Where its record ends.
    end: u32,
}

/// Opens the log on a disk.
pub fn open<D: Disk>(disk: D, sizes: Sizes, plant: Plant) -> Result<Log<D>, DataletError> {
    let mut segments = find_files(&disk)?;
    let last = find_last(&disk, &segments, plant)?;
    let kept = last.as_ref().map_or(0, |(index, _)| index + 1);
    let mut cut = 0;
    // The newest first: there must never be a gap.
    while segments.len() > kept
        && let Some(gone) = segments.pop_back()
    {
        cut += u64::from(gone.len);
        let _ = disk.delete(&hint_name(gone.number));
        let name = log_name(gone.number);
        disk.delete(&name).map_err(|error| refused("delete", &disk.path(&name), &error))?;
        sync_dir(&disk)?;
    }
    if let (Some((_, last)), Some(newest)) = (&last, segments.back_mut()) {
        cut += u64::from(newest.len - last.end);
        settle(&disk, newest, last.end, plant)?;
    }
    if cut > 0 {
        let text = "bytes were not committed, or did not come to the disk, and are cut off";
        eprintln!("{}: the last {cut} {text}; it opens as of its last whole commit", disk.path("").display());
    }
    let mut log = Log {
        index: Index::default(),
        files: Files::new(disk, sizes, plant, segments),
        mark: last.map(|(_, last)| last.mark),
        group_bytes: 0,
        merge: None,
        failed: None,
    };
    log.load()?;
    Ok(log)
}

fn sync_dir<D: Disk>(disk: &D) -> Result<(), DataletError> {
    disk.sync_dir().map_err(|error| refused("sync the folder", &disk.path(""), &error))
}

/// Ends the newest file behind the last commit, and has all of it on disk.
fn settle<D: Disk>(
    disk: &D,
    newest: &mut Segment<D::File>,
    end: u32,
    plant: Plant,
) -> Result<(), DataletError> {
    let path = disk.path(&log_name(newest.number));
    if newest.len > end && !plant.is(Fault::KeepTail) {
        disk.truncate(&newest.file, u64::from(end)).map_err(|error| refused("cut", &path, &error))?;
    }
    newest.len = end;
    if plant.is(Fault::OpenUnsynced) {
        return Ok(());
    }
    // Also where nothing was cut: only the process may have ended before, not the machine.
    disk.sync(&newest.file).map_err(|error| refused("sync", &path, &error))?;
    sync_dir(disk)
}

/// All files of records, oldest first.
fn find_files<D: Disk>(disk: &D) -> Result<VecDeque<Segment<D::File>>, DataletError> {
    let names = disk.list().map_err(|error| refused("list the files of", &disk.path(""), &error))?;
    let numbers: BTreeSet<u32> = names.iter().filter_map(|name| numbers_of(name).0).collect();
    let hints = names.iter().filter_map(|name| numbers_of(name).1);
    for number in hints.filter(|number| !numbers.contains(number)) {
        // Left by a crash between two deletes.
        let _ = disk.delete(&hint_name(number));
    }
    let mut segments = VecDeque::new();
    let mut next = None;
    for number in numbers {
        let name = log_name(number);
        if let Some(missing) = next.filter(|next| *next != number) {
            return Err(damaged(&disk.path(&log_name(missing)), 0, "the file is missing"));
        }
        let (file, len) = disk.open(&name).map_err(|error| refused("open", &disk.path(&name), &error))?;
        let len = u32::try_from(len)
            .map_err(|_| damaged(&disk.path(&name), u32::MAX, "it is longer than any that was written"))?;
        segments.push_back(Segment { number, file, len, live: 0 });
        next = number.checked_add(1);
    }
    Ok(segments)
}

/// The last commit, and the index of its file.
fn find_last<D: Disk>(
    disk: &D,
    segments: &VecDeque<Segment<D::File>>,
    plant: Plant,
) -> Result<Option<(usize, Last)>, DataletError> {
    for (index, segment) in segments.iter().enumerate().rev() {
        let is_newest = index + 1 == segments.len();
        let Some(mut last) = last_in(disk, segment, is_newest)? else { continue };
        let oldest = segments[0].number;
        if last.commit.first < oldest {
            return Err(damaged(&disk.path(&log_name(oldest - 1)), 0, "the file is missing"));
        }
        if plant.is(Fault::TakeTail) {
            last.end = segment.len;
        }
        return Ok(Some((index, last)));
    }
    match segments.front() {
        // A commit stood in a later one when the first was deleted.
        Some(oldest) if oldest.number > 1 => {
            Err(damaged(&disk.path(&log_name(oldest.number)), 0, "neither it nor a later file has a commit"))
        }
        _ => Ok(None),
    }
}

/// The last commit in a file. Only the newest may end with what is not whole.
fn last_in<D: Disk>(
    disk: &D,
    segment: &Segment<D::File>,
    is_newest: bool,
) -> Result<Option<Last>, DataletError> {
    let mut last = None;
    let mut scan = Scan::new(segment.number, segment.len);
    let bad = match read_header(disk, segment)? {
        None => Some(0),
        Some(_) => loop {
            let end = scan.at();
            match scan.next(disk, &segment.file)? {
                Step::Record(record, _) if record.kind == Kind::Commit => {
                    let Some(commit) = Commit::decode(record.value) else { break Some(end) };
                    let end = end + record.size() as u32;
                    last = Some(Last { mark: record.key.into(), commit, end });
                }
                Step::Record(..) => {}
                Step::Bad(at) => break Some(at),
                Step::End => break None,
            }
        },
    };
    match bad {
        Some(at) if !is_newest || was_synced(disk, segment, at)? => {
            let what = "a record is not what was written, and it was safely on disk before";
            Err(damaged(&disk.path(&log_name(segment.number)), at, what))
        }
        _ => Ok(last),
    }
}

/// The header of a file, if it is whole.
fn read_header<D: Disk>(disk: &D, segment: &Segment<D::File>) -> Result<Option<Header>, DataletError> {
    let mut bytes = [0; HEADER_BYTES as usize];
    if segment.len < HEADER_BYTES {
        return Ok(None);
    }
    let path = disk.path(&log_name(segment.number));
    disk.read_at(&segment.file, &mut bytes, 0).map_err(|error| refused("read", &path, &error))?;
    match Header::decode(&bytes, segment.number) {
        HeaderFound::Whole(header) => Ok(Some(header)),
        HeaderFound::Bad => Ok(None),
        HeaderFound::Unknown(version) => Err(DataletError::Failed(format!(
            "{} has format {version}, which this version does not know; start the newer Sartor that wrote it",
            path.display()
        ))),
    }
}

/// Whether a whole commit behind a bad place tells that this place was on disk when it was written. If none does, the
/// place may never have come to the disk: a system writes what was not synced in any order.
fn was_synced<D: Disk>(disk: &D, segment: &Segment<D::File>, bad: u32) -> Result<bool, DataletError> {
    let (mut window, end) = (Window::default(), u64::from(segment.len));
    let path = disk.path(&log_name(segment.number));
    let failed = |error| refused("read", &path, &error);
    for at in bad.saturating_add(1)..segment.len.saturating_sub(RECORD_HEAD as u32) {
        let from = u64::from(at);
        let head = window.view(disk, &segment.file, from, RECORD_HEAD, end).map_err(failed)?;
        let size = format::size_of_record(head).filter(|_| format::may_be_commit(head));
        let Some(size) = size.filter(|size| *size as u64 <= end - from) else { continue };
        let bytes = window.view(disk, &segment.file, from, size, end).map_err(failed)?;
        let commit = format::decode(bytes, segment.number, at).and_then(|it| Commit::decode(it.value));
        if commit.is_some_and(|commit| commit.synced > bad) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl<D: Disk> Log<D> {
    /// Reads the records of all files.
    fn load(&mut self) -> Result<(), DataletError> {
        let closed = self.files.segments().len().saturating_sub(1);
        for index in 0..closed {
            let next = &self.files.segments()[index + 1];
            let Some(header) = read_header(self.files.disk(), next)? else {
                let path = self.files.disk().path(&log_name(next.number));
                return Err(damaged(&path, 0, "its header is not what was written"));
            };
            if !self.load_hints(index, header) {
                let (found, hint) = self.load_records(index)?;
                self.expect_header(index, header, found)?;
                hint.finish(self.files.disk(), found.len_before, found.sum_before);
            }
        }
        if !self.files.segments().is_empty() {
            let (found, hint) = self.load_records(closed)?;
            self.files.resume(found.sum_before, hint);
        }
        Ok(())
    }

    /// The next file must speak of the file that there is.
    fn expect_header(&self, index: usize, header: Header, found: Header) -> Result<(), DataletError> {
        if header == found {
            return Ok(());
        }
        let path = self.files.disk().path(&log_name(self.files.segments()[index].number));
        Err(damaged(&path, found.len_before.min(header.len_before), "it is not the file that was closed"))
    }

    /// Whether a closed file has hints and all of them were read. If not, its records are read after what came of them:
    /// the same, and the rest.
    fn load_hints(&mut self, index: usize, header: Header) -> bool {
        let segment = &self.files.segments()[index];
        let plant = self.files.plant();
        if segment.len != header.len_before {
            return false;
        }
        let Some(mut hints) = Hints::open(self.files.disk(), segment.number, header, plant) else {
            return false;
        };
        while let Ok(hint) = hints.next(self.files.disk()) {
            let Some(hint) = hint else { return true };
            self.apply(hint.kind, hint.key, hint.place);
        }
        false
    }

    /// Reads a file's records; what they come to, and their hints.
    fn load_records(&mut self, index: usize) -> Result<(Header, HintWriter<D>), DataletError> {
        let segment = &self.files.segments()[index];
        let (number, len) = (segment.number, segment.len);
        let mut scan = Scan::new(number, len);
        let mut hint = HintWriter::new(number);
        let mut sum = 0;
        loop {
            let file = &self.files.segments()[index].file;
            let Some((record, offset)) = scan.next_whole(self.files.disk(), file)? else { break };
            let place = Place { file: number, offset, value_len: record.value.len() as u32 };
            sum = sum_with(sum, record.checksum);
            hint.note(self.files.disk(), record.kind, record.key, place.value_len, offset);
            self.apply(record.kind, record.key, place);
        }
        Ok((Header { len_before: len, sum_before: sum }, hint))
    }
}
