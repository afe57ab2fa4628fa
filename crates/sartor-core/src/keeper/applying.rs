//! Records as entries and fills want them.

use super::{Keeper, Start, Walked};
use crate::datalet::{Cursor, DataletError, Page};
use crate::deadlines::{Deadlines, Deletes};
use crate::entry::{Entry, Write};
use crate::ids::{Epoch, Position};
use crate::mutants::{Fault, planted};
use crate::record::{Meta, Record};
use crate::routing::slot::slot_of;
use crate::time::Now;
use alloc::vec::Vec;

impl Keeper {
    pub(super) fn apply(&mut self, entry: Entry) -> Result<(), DataletError> {
        assert_eq!(
            entry.position.sequence,
            self.position.sequence + 1,
            "entries are applied in order, without a gap"
        );
        for (place, write) in entry.writes.iter().enumerate() {
            if place > 0 && planted(Fault::TornBatch) {
                break;
            }
            let write = if planted(Fault::LoseDeadlines) { without_deadline(write) } else { write };
            self.write(write, entry.position)?;
        }
        self.position = entry.position;
        Ok(())
    }

    pub(super) fn expire(
        &mut self,
        now: Now,
        epoch: Epoch,
        limit: usize,
    ) -> Result<(Option<Entry>, bool), DataletError> {
        let position = self.position.next(epoch);
        let due = self.deadlines.due(now.unix_ms, limit);
        let more = due.len() == limit;
        for key in due {
            self.change(Write::Delete { key: &key }, position)?;
        }
        Ok((self.take_entry(position, false), more))
    }

    pub(super) fn walk(&mut self, mut cursor: Cursor, bytes_max: usize) -> Result<Walked, DataletError> {
        let deletes = (cursor == Cursor::Start).then(|| self.deletes.clone());
        let mut page = Page::new(bytes_max / 32, bytes_max);
        // Who is at the end may need to know the place only.
        if cursor != Cursor::End {
            self.shelf.walk(&mut cursor, &mut page)?;
        }
        let mut records = Vec::with_capacity(page.pairs().len());
        for (key, stored) in page.into_pairs() {
            let (meta, start) = self.shelf.meta_of(&key, &stored)?;
            records.push(Record { key, value: stored.slice(start..), meta });
        }
        let total = self.shelf.store.len()?;
        Ok(Walked { records, next: cursor, at: self.position, total, deletes })
    }

    pub(super) fn fill(&mut self, start: Option<Start>, records: Vec<Record>) -> Result<(), DataletError> {
        if let Some(start) = start {
            self.clear(start.at)?;
            self.position = start.at;
            if !planted(Fault::DeletesNotFilled) {
                self.deletes = start.deletes;
            }
        }
        self.survey = None;
        for record in records {
            self.deadlines.set(&record.key, record.meta.deadline_ms);
            self.shelf.put(&record.key, &record.value, record.meta)?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, write: Write<'_>, position: Position) -> Result<(), DataletError> {
        if let (Some(survey), Write::Put { key, .. } | Write::Delete { key }) = (&mut self.survey, write) {
            survey.before_write(&mut self.shelf, key)?;
        }
        match write {
            Write::Put { key, value, deadline_ms } => {
                self.deadlines.set(key, deadline_ms);
                self.shelf.put(key, value, Meta { version: position, deadline_ms })
            }
            Write::Delete { key } => {
                self.deadlines.set(key, None);
                self.deletes.note(slot_of(key), position);
                self.shelf.delete(key)
            }
            Write::Clear => self.clear(position),
            Write::Survey => self.begin_survey(position),
        }
    }

    pub(super) fn clear(&mut self, position: Position) -> Result<(), DataletError> {
        self.end_survey("everything was removed (FLUSHALL) while it ran");
        self.deadlines = Deadlines::default();
        self.deletes = Deletes::since(position);
        self.shelf.clear()
    }
}

/// A planted fault: the record never expires.
fn without_deadline(mut write: Write<'_>) -> Write<'_> {
    if let Write::Put { deadline_ms, .. } = &mut write {
        *deadline_ms = None;
    }
    write
}
