//! What outlives the process, where the datalet is durable: groups of tasks end in a commit, whose mark says what the
//! records are.

use super::{Done, Keeper, Task};
use crate::datalet::{Cursor, Datalet, DataletError, Page};
use crate::deadlines::Deletes;
use crate::ids::{Epoch, Position, ShardId};
use crate::keeper::task::broken;
use crate::mutants::{Fault, planted};
use crate::time::Now;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_varint};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// What a durable store remembers beside its records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The cluster whose records these are.
    pub cluster: u64,
    /// The shard.
    pub shard: ShardId,
    /// The epoch in which the shard began.
    pub born: Epoch,
    /// All entries up to here have taken effect.
    pub position: Position,
    /// All records are there: no fill was under way.
    pub whole: bool,
    /// The datalet kind of its table.
    pub datalet: String,
    /// What was deleted last: what a copy must know that is to complete others.
    pub deleted: Deleted,
}

/// Version 1 knew nothing of deletes.
const VERSION: u8 = 2;

/// The last deletes, as many as a mark has room for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deleted {
    /// Others were at this place at the latest.
    before: Position,
    /// Their slots, in order of place.
    last: VecDeque<(u16, Position)>,
}

/// Slots of deletes that a mark names: it is written with every group.
const DELETED_MAX: usize = 16;

impl Deleted {
    /// Whatever was there before this place may have been deleted at it.
    pub fn since(place: Position) -> Deleted {
        Deleted { before: place, last: VecDeque::new() }
    }

    fn note(&mut self, slot: u16, place: Position) {
        if self.last.len() == DELETED_MAX
            && let Some((_, oldest)) = self.last.pop_front()
        {
            self.before = oldest;
        }
        self.last.push_back((slot, place));
    }

    fn deletes(&self) -> Deletes {
        let mut deletes = Deletes::since(self.before);
        self.last.iter().for_each(|(slot, place)| deletes.note(*slot, *place));
        deletes
    }
}

impl Wire for Deleted {
    fn encode(&self, out: &mut Vec<u8>) {
        self.before.encode(out);
        put_varint(out, self.last.len() as u64);
        for (slot, place) in &self.last {
            put_varint(out, u64::from(*slot));
            place.encode(out);
        }
    }

    fn decode(from: &mut Reader) -> Result<Deleted, Malformed> {
        let before = Position::decode(from)?;
        let last = from.list(|from| Ok((from.number()?, Position::decode(from)?)))?;
        Ok(Deleted { before, last: last.into() })
    }
}

impl Wire for Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.cluster);
        put_varint(out, u64::from(self.shard.0));
        self.born.encode(out);
        self.position.encode(out);
        out.push(u8::from(self.whole));
        put_bytes(out, self.datalet.as_bytes());
        self.deleted.encode(out);
    }

    fn decode(from: &mut Reader) -> Result<Mark, Malformed> {
        let version = from.byte()?;
        if !(1..=VERSION).contains(&version) {
            return Err(Malformed("a mark of another version"));
        }
        let mut mark = Mark {
            cluster: from.varint()?,
            shard: ShardId(from.number()?),
            born: Epoch::decode(from)?,
            position: Position::decode(from)?,
            whole: from.byte()? != 0,
            datalet: from.text()?,
            deleted: Deleted::default(),
        };
        mark.deleted = if version == 1 { Deleted::since(mark.position) } else { Deleted::decode(from)? };
        Ok(mark)
    }
}

/// What a keeper does not have on disk yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lasting {
    mark: Mark,
    /// Something was done since the last commit.
    touched: bool,
    /// And since the last one that was durable.
    owed: bool,
}

impl Lasting {
    /// Whether all records are there.
    pub(super) fn is_whole(&self) -> bool {
        self.mark.whole
    }
}

impl Keeper {
    /// Its store is durable: `mark` says whose records they are, and where the keeper stands. With `kept` they are there
    /// already; otherwise the store is cleared.
    pub fn lasting(mut self, mut mark: Mark, kept: bool) -> Result<Keeper, DataletError> {
        self.position = mark.position;
        // What the caller says of deletes is not what the store remembers.
        let known = if kept { mark_of(self.shelf.store.as_mut())?.map(|mark| mark.deleted) } else { None };
        mark.deleted = known.unwrap_or_else(|| Deleted::since(mark.position));
        self.deletes = mark.deleted.deletes();
        match kept {
            true => self.find_deadlines()?,
            false => self.shelf.clear(Epoch(0))?,
        }
        self.lasting = Some(Lasting { mark, touched: !kept, owed: true });
        self.commit(true)?;
        Ok(self)
    }

    /// The deadlines of the records that are there.
    fn find_deadlines(&mut self) -> Result<(), DataletError> {
        let mut cursor = Cursor::Start;
        while cursor != Cursor::End {
            let mut page = Page::new(1024, 1 << 20);
            self.shelf.walk(&mut cursor, &mut page)?;
            for (key, stored) in page.pairs() {
                let (meta, _) = self.shelf.meta_of(key, stored)?;
                self.deadlines.set(key, meta.deadline_ms);
            }
        }
        Ok(())
    }

    /// Runs tasks, then commits: what is told of them outlives the process, with `durably` the machine too.
    pub fn run_group(&mut self, group: Vec<(Now, Task)>, durably: bool) -> Vec<Done> {
        // One that looks at one key is run at once.
        if group.len() > 1 || group.iter().any(|(_, task)| task.is_run()) {
            group.iter().for_each(|(_, task)| self.expect(task));
        }
        let mut done: Vec<Done> = group.into_iter().map(|(now, task)| self.run(now, task)).collect();
        if planted(Fault::AnswerBeforeCommit) && done.len() % 2 == 1 {
            return done;
        }
        if let Err(error) = self.commit(durably) {
            done = done.into_iter().map(|done| broken(done.into_request(), &error)).collect();
            self.broken = Some(error);
        }
        done
    }

    /// Ends a group of tasks. Without a durable store nothing is to be done.
    pub fn commit(&mut self, durably: bool) -> Result<(), DataletError> {
        let Some(lasting) = self.lasting.as_mut().filter(|_| self.broken.is_none()) else {
            return if self.broken.is_none() { self.shelf.commit(&[], durably) } else { Ok(()) };
        };
        let moved = lasting.mark.position != self.position;
        let touched = lasting.touched || moved;
        if !(touched || durably && lasting.owed) {
            return Ok(());
        }
        lasting.mark.position = self.position;
        (lasting.touched, lasting.owed) = (false, !durably);
        let mut bytes = Vec::new();
        lasting.mark.encode(&mut bytes);
        self.shelf.commit(&bytes, durably)
    }

    /// The same, between groups: where it fails, the next group is told.
    pub fn commit_or_break(&mut self, durably: bool) {
        if let Err(error) = self.commit(durably) {
            self.broken = Some(error);
        }
    }

    /// Whether something is done that a failure of the machine would undo.
    pub fn owes_disk(&self) -> bool {
        self.lasting.as_ref().is_some_and(|lasting| lasting.owed)
    }

    /// All records of a fill are there: they count from now on.
    pub fn become_whole(&mut self) {
        self.set_whole(true);
        self.commit_or_break(true);
    }

    /// The shard begins in this epoch, and all of it is here.
    pub(super) fn begin_at(&mut self, born: Epoch) {
        self.set_whole(true);
        self.touch();
        if let Some(lasting) = &mut self.lasting {
            lasting.mark.born = born;
        }
    }

    pub(super) fn set_whole(&mut self, whole: bool) {
        if let Some(lasting) = &mut self.lasting {
            lasting.touched |= lasting.mark.whole != whole;
            lasting.mark.whole = whole;
        }
    }

    pub(super) fn note_delete(&mut self, slot: u16, place: Position) {
        self.deletes.note(slot, place);
        if let Some(lasting) = &mut self.lasting {
            lasting.mark.deleted.note(slot, place);
        }
    }

    /// From now on this is what is known of deletes; what the mark can hold of it is that something was deleted.
    pub(super) fn set_deletes(&mut self, deletes: Deletes, place: Position) {
        self.deletes = deletes;
        if let Some(lasting) = &mut self.lasting {
            lasting.mark.deleted = Deleted::since(place);
        }
    }

    pub(super) fn touch(&mut self) {
        if let Some(lasting) = &mut self.lasting {
            lasting.touched = true;
        }
    }
}

/// What a store remembers of its last commit, if there was one.
pub fn mark_of(store: &mut dyn Datalet) -> Result<Option<Mark>, DataletError> {
    let Some(bytes) = store.mark()? else { return Ok(None) };
    let mark = Mark::from_bytes(Bytes::from(bytes));
    let foreign = "its last commit is not one that this version of Sartor knows; start the newer one";
    mark.map(Some).map_err(|_| DataletError::Failed(foreign.into()))
}
