//! How a replica makes the copy of its upper part that becomes a replica of another shard.
//!
//! ```text
//!  store of the whole   ── pages of records ──▶  store of the part
//!                       ── entries ───────────▶        (follows)
//!                  fence: the first entry of the epoch in which the whole takes no more for the part
//!                       ── seal ──────────────▶  stands at the beginning of its shard
//! ```
//!
//! Pages and entries are passed on in the order in which the store of the whole did them, so the part has at every time what
//! the whole had a moment ago. All replicas do that for themselves; that they come to the same follows from their having the
//! same entries before the fence. Nothing of it is ever served before all are sealed (`coordinator/split.rs`).

use crate::controlet::FillStatus;
use crate::datalet::Cursor;
use crate::entry::{Entry, Write, Writes};
use crate::ids::{Epoch, Position, ShardId};
use crate::keeper::{Done, Start, Task, Walked};
use crate::mutants::{Fault, planted};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// Who is behind by more tasks than this is not ready.
const NEAR_MAX: usize = 128;
/// Whose store is behind by so many is too slow: it is made again later.
const OWED_MAX: usize = 1 << 16;

/// A part in the making.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Division {
    /// The shard that it is to be.
    pub part: ShardId,
    /// Its first key.
    start: Bytes,
    /// The epoch in which the whole takes no more requests for it, once there is one: the part begins in it.
    closed: Option<Epoch>,
    stage: Stage,
    /// Entries on their way into the store of the whole, without what is not for the part.
    entries: VecDeque<Entry>,
    /// An entry of the epoch in which it was closed has come.
    fenced: bool,
    /// Tasks that the store of the part has not ended.
    owed: usize,
    page_bytes_max: usize,
    /// The store of the whole was asked for a page.
    asked: bool,
    done: u64,
    total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// A page was asked of the whole; the first one where there is no cursor.
    Reading(Option<Cursor>),
    /// A page is on its way into the part.
    Writing(Cursor),
    /// Others come first for a while.
    Resting(Cursor),
    /// All was copied, and goes to disk now, where that is its place: later there is less to wait for.
    Settling,
    /// All was copied.
    Whole,
    /// It is being sealed.
    Sealing,
    /// It is what the shard begins with: so many records.
    Sealed(u64),
    /// Its store failed.
    Broken,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Steps {
    /// By the store of the whole.
    pub whole: Vec<Task>,
    /// By that of the part.
    pub part: Vec<Task>,
}

impl Division {
    /// Begins: what the store of the whole has to do from now on comes after the first page.
    pub fn begin(
        part: ShardId,
        start: Bytes,
        closed: Option<Epoch>,
        page_bytes_max: usize,
        steps: &mut Steps,
    ) -> Division {
        steps.whole.push(Task::Part(start.clone(), Cursor::Start, page_bytes_max));
        let (stage, entries, fenced) = (Stage::Reading(None), VecDeque::new(), false);
        let (owed, asked, done, total) = (0, true, 0, 0);
        Division { part, start, closed, stage, entries, fenced, owed, page_bytes_max, asked, done, total }
    }

    /// The whole takes no more for it from that epoch on.
    pub fn close(&mut self, epoch: Epoch) {
        self.closed = Some(epoch);
    }

    /// Tasks that the store of the part has not ended.
    pub fn owed(&self) -> usize {
        self.owed
    }

    /// Whether a page is on its way from the store of the whole.
    pub fn has_asked(&self) -> bool {
        self.asked
    }

    /// Whether it waits to be told to go on.
    pub fn rests(&self) -> bool {
        matches!(self.stage, Stage::Resting(_))
    }

    /// The next page, if it rests.
    pub fn go_on(&mut self, steps: &mut Steps) {
        if let Stage::Resting(next) = &self.stage {
            let next = next.clone();
            steps.whole.push(Task::Part(self.start.clone(), next.clone(), self.page_bytes_max));
            (self.stage, self.asked) = (Stage::Reading(Some(next)), true);
        }
    }

    /// Whether its store failed.
    pub fn is_broken(&self) -> bool {
        self.stage == Stage::Broken
    }

    /// How many records there are, once it is sealed.
    pub fn sealed(&self) -> Option<u64> {
        if let Stage::Sealed(count) = self.stage { Some(count) } else { None }
    }

    /// How far it is.
    pub fn status(&self) -> FillStatus {
        let near = self.owed <= NEAR_MAX || self.closed.is_some();
        let ready = near && matches!(self.stage, Stage::Whole | Stage::Sealing | Stage::Sealed(_));
        FillStatus { since: Epoch(0), done: self.done, total: self.total, ready }
    }

    /// The store of the whole was asked for something.
    pub fn on_task(&mut self, task: &Task) {
        if let Task::Apply(entry) = task {
            self.entries.push_back(self.beyond(entry));
        }
    }

    /// What of an entry is for the part.
    fn beyond(&self, entry: &Entry) -> Entry {
        let is_for = |write: &Write<'_>| write.key().is_none_or(|key| key >= &self.start[..]);
        Entry { position: entry.position, writes: Writes::of(entry.writes.iter().filter(is_for)) }
    }

    /// The store of the whole has done something.
    pub fn on_whole(&mut self, done: &Done, steps: &mut Steps) {
        if self.stage == Stage::Reading(None) {
            // It came before the first page, and is in it.
            return;
        }
        match done {
            Done::Evaluated(_, _, Some(entry))
            | Done::Expired(Some(entry), _)
            | Done::Replayed(_, _, entry) => {
                self.follow(self.beyond(entry), steps);
            }
            Done::Applied(position) => {
                let entry = self.entries.pop_front();
                let entry = entry.filter(|entry| entry.position == *position);
                self.follow(entry.expect("entries are applied in the order given"), steps);
            }
            _ => {}
        }
    }

    fn follow(&mut self, entry: Entry, steps: &mut Steps) {
        self.reach(entry.position);
        let follows = !self.fenced && !self.is_broken();
        if follows && !entry.writes.is_empty() && !planted(Fault::FollowNothing) {
            self.owed += 1;
            steps.part.push(Task::Follow(entry));
            if self.owed > OWED_MAX {
                self.stage = Stage::Broken;
            }
        }
        self.seal(steps);
    }

    /// The whole stands there.
    fn reach(&mut self, position: Position) {
        let early = planted(Fault::SealEarly);
        self.fenced |= self.closed.is_some_and(|epoch| position.epoch >= epoch || early);
    }

    /// A page of the whole.
    pub fn on_page(&mut self, walked: Walked, steps: &mut Steps) {
        self.asked = false;
        let Stage::Reading(cursor) = &self.stage else { return };
        let start = cursor.is_none().then(|| {
            let deletes = walked.deletes.unwrap_or_default();
            Box::new(Start { at: walked.at, deletes, since: None })
        });
        self.reach(walked.at);
        self.done += walked.records.len() as u64;
        self.total = self.done.max(walked.total);
        self.owed += 1;
        steps.part.push(Task::Fill(Epoch(0), start, walked.records));
        self.stage = Stage::Writing(walked.next);
    }

    /// The store of the part has done something.
    pub fn on_part(&mut self, done: &Done, steps: &mut Steps) {
        self.owed = self.owed.saturating_sub(1);
        match (done, &self.stage) {
            (Done::Broken(..), _) => self.stage = Stage::Broken,
            (Done::Filled(_), Stage::Writing(Cursor::End)) => {
                self.stage = Stage::Settling;
                self.owed += 1;
                steps.part.push(Task::Settle);
            }
            (Done::Checked, Stage::Settling) => {
                self.stage = Stage::Whole;
                self.seal(steps);
            }
            (Done::Filled(_), Stage::Writing(next)) => {
                self.stage = Stage::Resting(next.clone());
            }
            (Done::Sealed(count), Stage::Sealing) => self.stage = Stage::Sealed(*count),
            _ => {}
        }
    }

    fn seal(&mut self, steps: &mut Steps) {
        if let (Stage::Whole, true, Some(born)) = (&self.stage, self.fenced, self.closed) {
            self.stage = Stage::Sealing;
            self.owed += 1;
            steps.part.push(Task::Seal(born));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Meta, Record};

    fn at(epoch: u64, sequence: u64) -> Position {
        Position { epoch: Epoch(epoch), sequence }
    }

    fn entry(position: Position, keys: &[&'static str]) -> Entry {
        let delete = |key: &&'static str| Write::Delete { key: key.as_bytes() };
        Entry { position, writes: Writes::of(keys.iter().map(delete)) }
    }

    fn page(position: Position, keys: &[&'static str], next: Cursor) -> Walked {
        let record = |key: &&'static str| Record {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::new(),
            meta: Meta::default(),
        };
        let records = keys.iter().map(record).collect();
        Walked { records, next, at: position, total: 9, deletes: None, since: None }
    }

    /// What the part is asked to do next.
    fn part(steps: &mut Steps) -> Vec<Task> {
        core::mem::take(&mut steps.part)
    }

    #[test]
    fn pages_and_entries_come_in_the_order_in_which_the_whole_did_them() {
        let mut steps = Steps::default();
        let mut division = Division::begin(ShardId(7), Bytes::from_static(b"m"), None, 100, &mut steps);
        // Asked for after the first page.
        let later = entry(at(1, 5), &["a", "n"]);
        division.on_task(&Task::Apply(later.clone()));
        division.on_whole(&Done::Applied(at(1, 4)), &mut steps);
        assert_eq!(part(&mut steps), [], "what came before the first page is in it");
        let cursor = Cursor::Key(Bytes::from_static(b"p"));
        division.on_page(page(at(1, 4), &["m", "n", "p"], cursor.clone()), &mut steps);
        division.on_whole(&Done::Applied(at(1, 5)), &mut steps);
        let asked = part(&mut steps);
        assert!(
            matches!(&asked[0], Task::Fill(_, Some(start), records) if start.at == at(1, 4) && records.len() == 3)
        );
        assert_eq!(asked[1..], [Task::Follow(entry(at(1, 5), &["n"]))], "without what stays");
        division.on_part(&Done::Filled(Epoch(0)), &mut steps);
        division.on_part(&Done::Followed, &mut steps);
        assert!(division.rests() && division.owed() == 0);
        steps.whole.clear();
        division.go_on(&mut steps);
        assert_eq!(steps.whole, [Task::Part(Bytes::from_static(b"m"), cursor, 100)]);
        division.on_page(page(at(1, 5), &[], Cursor::End), &mut steps);
        division.on_part(&Done::Filled(Epoch(0)), &mut steps);
        division.on_part(&Done::Checked, &mut steps);
        assert!(division.status().ready);
        part(&mut steps);
        // It is closed: what is of the epoch before comes to it yet, the first entry of that epoch seals it.
        division.close(Epoch(3));
        let done = |entry: Entry| Done::Expired(Some(entry), false);
        division.on_whole(&done(entry(at(1, 6), &["z"])), &mut steps);
        division.on_whole(&done(entry(at(3, 7), &[])), &mut steps);
        division.on_whole(&done(entry(at(3, 8), &["z"])), &mut steps);
        assert_eq!(part(&mut steps), [Task::Follow(entry(at(1, 6), &["z"])), Task::Seal(Epoch(3))]);
        division.on_part(&Done::Followed, &mut steps);
        assert_eq!(division.sealed(), None);
        division.on_part(&Done::Sealed(4), &mut steps);
        assert_eq!((division.sealed(), division.owed()), (Some(4), 0));
    }
}
