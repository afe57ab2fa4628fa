//! Wins the room of dead records back: what is alive in the oldest file is appended again, a piece at each commit.
//!
//! The copies are part of the commit's group, like any write: a crash loses none, and leaves none that the next merge does
//! not find.

use super::Log;
use super::disk::{Disk, damaged};
use super::faults::Fault;
use super::files::log_name;
use super::format::Kind;
use super::index::Place;
use super::scan::Scan;
use sartor_core::datalet::DataletError;

/// A file that is being merged.
pub struct Merge {
    scan: Scan,
}

impl Merge {
    /// Bytes of memory it takes.
    pub fn bytes(&self) -> u64 {
        self.scan.bytes()
    }
}

/// Bytes looked through for each byte written. Half of what is looked through is won, over the whole: twice as fast as what
/// comes would just keep up.
const BYTES_PER_BYTE: u64 = 4;
const BYTES_PER_BYTE_MIN: u64 = 2;

impl<D: Disk> Log<D> {
    /// Merges a piece, if it is worth it.
    pub(super) fn merge(&mut self) -> Result<(), DataletError> {
        let Some(oldest) = self.files.worth_merging().map(|oldest| (oldest.number, oldest.len)) else {
            return Ok(());
        };
        let mut scan = match self.merge.take() {
            Some(merge) if merge.scan.file() == oldest.0 => merge.scan,
            _ => Scan::new(oldest.0, oldest.1),
        };
        let sizes = self.files.sizes();
        let most = (self.group_bytes * BYTES_PER_BYTE).clamp(sizes.merged_min, sizes.merged_max);
        // A large group takes long anyway, and must not outrun it.
        let most = most.max(self.group_bytes * BYTES_PER_BYTE_MIN);
        let begin = scan.at();
        while u64::from(scan.at() - begin) < most {
            let segment = &self.files.segments()[0];
            if segment.live == 0 {
                return Ok(());
            }
            let Some((record, offset)) = scan.next_whole(self.files.disk(), &segment.file)? else {
                // Else it would be deleted with records that the index names.
                let path = self.files.disk().path(&log_name(oldest.0));
                return Err(damaged(&path, oldest.1, "records are missing that were in it"));
            };
            let place = Place { file: oldest.0, offset, value_len: record.value.len() as u32 };
            let named = self.index.get(record.key);
            let alive = named == Some(place) || (named.is_some() && self.files.plant().is(Fault::MergeDead));
            if record.kind == Kind::Put && alive {
                let copy = self.files.append(Kind::Put, record.key, record.value)?;
                self.apply(Kind::Put, record.key, copy);
            }
        }
        self.merge = Some(Merge { scan });
        Ok(())
    }
}
