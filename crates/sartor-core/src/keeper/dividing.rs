//! A shard that is divided: the copy of its upper part that becomes another shard's, and what is left of that here.

use super::{Done, Keeper, Task, Walked};
use crate::datalet::{Cursor, DataletError, Page};
use crate::entry::{Entry, Write};
use crate::ids::{Epoch, Position};
use crate::record::Record;
use alloc::vec::Vec;
use bytes::Bytes;

/// Records that are removed at once where they are another shard's.
const LEAVE_MAX: usize = 512;

impl Keeper {
    pub(super) fn divide(&mut self, task: Task) -> Result<Done, DataletError> {
        match task {
            Task::Part(start, cursor, bytes_max) => self.part(&start, cursor, bytes_max).map(Done::Parted),
            Task::Keep(start, since) => {
                self.shelf.keep = Some((start, since));
                Ok(Done::Followed)
            }
            Task::Follow(entry) => self.follow(&entry).map(|()| Done::Followed),
            Task::Settle => self.commit(true).map(|()| Done::Checked),
            Task::Seal(born) => self.seal(born).map(Done::Sealed),
            Task::Leave(end, count) => self.leave(&end, count).map(Done::Left),
            other => unreachable!("{other:?} divides nothing"),
        }
    }

    fn part(&mut self, start: &Bytes, mut cursor: Cursor, bytes_max: usize) -> Result<Walked, DataletError> {
        let deletes = (cursor == Cursor::Start).then(|| self.deletes.clone());
        let (mut records, mut page) = (Vec::new(), Page::new(bytes_max / 32, bytes_max));
        if cursor != Cursor::End {
            self.shelf.beyond(start, &mut cursor, &mut page)?;
        }
        for (key, stored) in page.into_pairs() {
            let (meta, start) = self.shelf.meta_of(&key, &stored)?;
            records.push(Record { key, value: stored.slice(start..), meta });
        }
        let total = self.shelf.len()?;
        Ok(Walked { records, next: cursor, at: self.position, total, deletes, since: None })
    }

    /// Its places are those of the other shard, until it is sealed.
    fn follow(&mut self, entry: &Entry) -> Result<(), DataletError> {
        for write in entry.writes.iter().filter(|write| *write != Write::Survey) {
            self.write(write, entry.position)?;
        }
        self.position = entry.position;
        Ok(())
    }

    fn seal(&mut self, born: Epoch) -> Result<u64, DataletError> {
        self.position = Position { epoch: born, sequence: 0 };
        self.begin_at(born);
        self.commit(true)?;
        self.shelf.len()
    }

    fn leave(&mut self, end: &Bytes, count: u64) -> Result<bool, DataletError> {
        if self.leaving == Cursor::End || count > 0 {
            self.leaving = Cursor::Start;
        }
        if self.shelf.end_at(end, count) {
            // Other copies may have looked at what is not seen here any more.
            self.survey = None;
        }
        self.deadlines.end_at(end);
        self.touch();
        self.shelf.remove_outside(&mut self.leaving, LEAVE_MAX)
    }
}
