//! What a store is asked, and what comes of it.

use crate::datalet::{Cursor, DataletError};
use crate::deadlines::Deletes;
use crate::entry::Entry;
use crate::ids::{Epoch, Position};
use crate::operation::{Failure, FailureKind, Op, Outcome, Request};
use crate::record::{Bounds, Record};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;

/// What a controlet asks of its store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Decide an operation on the newest state, and number what it changes in this epoch.
    Evaluate(Request, Epoch),
    /// Answer a read from the state that is here; a record past its deadline is not for us to judge.
    Read(Request),
    /// Answer a read at the replica that orders, by its wall clock at that time, and tell which records are past
    /// their deadline.
    Look(Request, u64),
    /// Apply an entry that was ordered elsewhere.
    Apply(Entry),
    /// Do an operation at the place that it was given.
    Replay(Replay),
    /// See which records are past their deadline, up to so many.
    Due(usize),
    /// Remove up to `limit` records past their deadline, as one entry of this epoch.
    Expire(Epoch, usize),
    /// Nothing but to see whether the store still has what was in it.
    Check,
    /// Read a page of records from here on, about so many bytes, for this fill of another replica: of those only that have
    /// changed since a place, if it has what there was then.
    Walk(Epoch, Cursor, usize, Option<Position>),
    /// Take records of a walk elsewhere, in this fill. With a start, everything here goes first, or what may have been deleted
    /// since the place where it stood, and the replica stands at that position from now on.
    Fill(Epoch, Option<Box<Start>>, Vec<Record>),
    /// Go on with the survey, if one was begun, by so many records of about so many bytes together.
    Survey(usize, usize),
    /// Read a page of the records from this key on, from here on, about so many bytes: they become another shard's.
    Part(Bytes, Cursor, usize),
    /// Entries from this epoch on touch nothing that lies from this key on.
    Keep(Bytes, Epoch),
    /// Do what an entry of the shard that this one becomes a part of does here.
    Follow(Entry),
    /// All that is here is to be on disk.
    Settle,
    /// All is here: from now on this copy stands at the beginning of its shard, which is in that epoch.
    Seal(Epoch),
    /// What lies from this key on is another shard's: it is not seen any more, so many records, and some of them are removed.
    Leave(Bytes, u64),
}

/// An operation with its place. What comes of it depends on nothing but the records at that place, so that it is the same
/// at every replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replay {
    /// It.
    pub request: Request,
    /// Its place.
    pub position: Position,
    /// The wall clock of who gave it that place.
    pub unix_ms: u64,
    /// The records it may make.
    pub bounds: Bounds,
}

/// What came of a [`Task`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// Decided: the answer, and the entry to replicate if anything changed.
    Evaluated(Request, Outcome, Option<Entry>),
    /// Read; without an outcome, the replica that orders must answer.
    Read(Request, Option<Outcome>),
    /// Read, with those records left out that are past their deadline: these.
    Looked(Request, Outcome, Vec<Bytes>),
    /// Applied up to here.
    Applied(Position),
    /// Done at its place: the answer, and what it changed, if anything.
    Replayed(Replay, Outcome, Entry),
    /// These are past their deadline.
    Due(Vec<Bytes>),
    /// Removed, if any; `more` are due already.
    Expired(Option<Entry>, bool),
    /// The store is what it was.
    Checked,
    /// A page for that fill, as it was at the position that the replica had reached.
    Walked(Epoch, Walked),
    /// The records of that fill are here.
    Filled(Epoch),
    /// Part of a survey is done; whether there is more to do.
    Surveyed(bool),
    /// A page of records for another shard.
    Parted(Walked),
    /// An entry was followed, or a part is kept.
    Followed,
    /// Everything is here, so many records, and outlives whatever the store does.
    Sealed(u64),
    /// Some records that are another shard's were removed; whether there are more.
    Left(bool),
    /// The store failed: this replica can go on no longer.
    Broken(Option<Request>, Failure),
}

impl Done {
    /// What comes of a task for a store that is not there.
    pub fn missing(task: Task) -> Done {
        broken(task.into_request(), &DataletError::Failed("the store could not be opened".into()))
    }
}

impl Done {
    pub(super) fn into_request(self) -> Option<Request> {
        match self {
            Done::Evaluated(request, ..) | Done::Read(request, _) | Done::Looked(request, ..) => {
                Some(request)
            }
            Done::Replayed(replay, ..) => Some(replay.request),
            Done::Broken(request, _) => request,
            Done::Applied(_) | Done::Expired(..) | Done::Due(_) | Done::Checked => None,
            Done::Walked(..) | Done::Filled(_) | Done::Surveyed(_) => None,
            Done::Parted(_) | Done::Followed | Done::Sealed(_) | Done::Left(_) => None,
        }
    }
}

impl Task {
    /// Whether it looks at several keys.
    pub fn is_run(&self) -> bool {
        self.keys() > 1
    }

    /// At how many keys it looks, as far as that is told; one at least.
    pub fn keys(&self) -> usize {
        match self {
            Task::Evaluate(Request { op, .. }, _)
            | Task::Read(Request { op, .. })
            | Task::Look(Request { op, .. }, _)
            | Task::Replay(Replay { request: Request { op, .. }, .. }) => match op {
                Op::Run(run) => run.len() as usize,
                _ => 1,
            },
            Task::Apply(entry) => entry.writes.len(),
            _ => 1,
        }
    }

    pub(super) fn into_request(self) -> Option<Request> {
        match self {
            Task::Evaluate(request, _) | Task::Read(request) | Task::Look(request, _) => Some(request),
            Task::Replay(replay) => Some(replay.request),
            Task::Apply(_) | Task::Expire(..) | Task::Due(_) | Task::Check => None,
            Task::Walk(..) | Task::Fill(..) | Task::Survey(..) => None,
            Task::Part(..) | Task::Keep(..) | Task::Follow(_) | Task::Settle => None,
            Task::Seal(_) | Task::Leave(..) => None,
        }
    }
}

/// Where the records of a fill begin to be true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// The place.
    pub at: Position,
    /// What the walked replica remembers of deletes at that place.
    pub deletes: Deletes,
    /// Of the records that stand here up to this place, those are true that were not changed or deleted since; otherwise
    /// all are to go.
    pub since: Option<Position>,
}

/// A page of a walk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Walked {
    /// Its records.
    pub records: Vec<Record>,
    /// Where to go on.
    pub next: Cursor,
    /// The entry up to which it tells the truth.
    pub at: Position,
    /// How many records the replica holds.
    pub total: u64,
    /// Of the first page: what the replica remembers of deletes.
    pub deletes: Option<Deletes>,
    /// Its records are those that have changed since then, as was asked for; otherwise all.
    pub since: Option<Position>,
}

pub(super) fn broken(request: Option<Request>, error: &DataletError) -> Done {
    Done::Broken(request, Failure { kind: FailureKind::Data, text: format!("{error}").into() })
}
