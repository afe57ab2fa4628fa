//! Records as entries and fills want them.

use super::{Keeper, Start, Walked};
use crate::datalet::{Cursor, DataletError, Page};
use crate::deadlines::{Deadlines, Deletes};
use crate::entry::{Entry, Write};
use crate::ids::{Epoch, Position};
use crate::mutants::{Fault, planted};
use crate::record::{Meta, Record};
use crate::routing::slot::{SLOTS, slot_of};
use crate::time::Now;
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;

/// Pages of the store that one page of a fill may come from, where few records have changed.
const PAGES_AT_ONCE: usize = 16;
/// Slots with deletes beyond which a copy that comes back is sent everything: it has to look for what is in them, and a sixth of
/// all is sent anyhow.
const SLOTS_DELETED_MAX: usize = SLOTS as usize / 6;

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
            if !self.shelf.has(&key, epoch) {
                self.deadlines.set(&key, None);
                continue;
            }
            self.change(Write::Delete { key: &key }, position)?;
        }
        Ok((self.take_entry(position, false), more))
    }

    pub(super) fn walk(
        &mut self,
        mut cursor: Cursor,
        bytes_max: usize,
        since: Option<Position>,
    ) -> Result<Walked, DataletError> {
        let deletes = (cursor == Cursor::Start).then(|| self.deletes.clone());
        // Where much was deleted, all of it is sent sooner.
        let few = |since: &Position| {
            self.deletes.all() <= *since && self.deletes.slots_after(*since) <= SLOTS_DELETED_MAX
        };
        let since = since.filter(few);
        let (mut records, mut bytes) = (Vec::new(), 0);
        // Who is at the end may need to know the place only. Where little has changed, several pages are looked through.
        for _ in 0..if since.is_some() { PAGES_AT_ONCE } else { 1 } {
            if cursor == Cursor::End || bytes >= bytes_max {
                break;
            }
            let mut page = Page::new(bytes_max / 32, bytes_max);
            self.shelf.walk(&mut cursor, &mut page)?;
            for (key, stored) in page.into_pairs() {
                let (meta, start) = self.shelf.meta_of(&key, &stored)?;
                if since.is_none_or(|since| self.is_news(&key, &meta, since)) {
                    bytes += key.len() + stored.len();
                    // What is sent must not hold what is not.
                    let (key, value) = match since {
                        Some(_) => (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&stored[start..])),
                        None => (key, stored.slice(start..)),
                    };
                    records.push(Record { key, value, meta });
                }
            }
        }
        let total = self.shelf.len()?;
        Ok(Walked { records, next: cursor, at: self.position, total, deletes, since })
    }

    /// Whether a replica that stood at a place may not have a record, or have removed it since.
    fn is_news(&self, key: &[u8], meta: &Meta, since: Position) -> bool {
        meta.version > since || self.deletes.last_in(slot_of(key)) > since
    }

    pub(super) fn fill(&mut self, start: Option<Start>, records: Vec<Record>) -> Result<(), DataletError> {
        self.touch();
        if let Some(start) = start {
            match start.since {
                Some(since) => self.keep_since(since, &start.deletes)?,
                None => self.clear(start.at)?,
            }
            self.set_whole(false);
            self.position = start.at;
            if !planted(Fault::DeletesNotFilled) {
                self.set_deletes(start.deletes, start.at);
            }
        }
        self.survey = None;
        for record in records {
            self.deadlines.set(&record.key, record.meta.deadline_ms);
            self.shelf.put(&record.key, &record.value, record.meta)?;
        }
        Ok(())
    }

    /// Keeps what is here but for what may have been deleted since the place where it stands.
    fn keep_since(&mut self, since: Position, deletes: &Deletes) -> Result<(), DataletError> {
        if self.position != since || self.lasting.as_ref().is_some_and(|lasting| !lasting.is_whole()) {
            let text = format!("a fill goes on from {since}, and this copy stands at {}", self.position);
            return Err(DataletError::Failed(text));
        }
        let mut cursor = if deletes.any_after(since) && !planted(Fault::KeepDeleted) {
            Cursor::Start
        } else {
            Cursor::End
        };
        while cursor != Cursor::End {
            let mut page = Page::new(1024, 1 << 20);
            self.shelf.walk(&mut cursor, &mut page)?;
            let keys = page.pairs().iter().map(|(key, _)| key);
            let mut gone: Vec<Bytes> = Vec::new();
            gone.extend(
                keys.filter(|key| deletes.last_in(slot_of(key)) > since)
                    .map(|key| Bytes::copy_from_slice(key)),
            );
            for key in gone {
                self.deadlines.set(&key, None);
                self.shelf.delete(&key)?;
            }
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
                self.note_delete(slot_of(key), position);
                self.shelf.delete(key)
            }
            Write::Clear => self.clear(position),
            Write::Survey => self.begin_survey(position),
        }
    }

    pub(super) fn clear(&mut self, position: Position) -> Result<(), DataletError> {
        self.end_survey("everything was removed (FLUSHALL) while it ran");
        self.deadlines = Deadlines::default();
        self.set_deletes(Deletes::since(position), position);
        self.shelf.clear(position.epoch)
    }
}

/// A planted fault: the record never expires.
fn without_deadline(mut write: Write<'_>) -> Write<'_> {
    if let Write::Put { deadline_ms, .. } = &mut write {
        *deadline_ms = None;
    }
    write
}
