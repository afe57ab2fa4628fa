//! The place between a controlet and its datalet: records, expiry, versions, and the order
//! in which a shard's entries take effect.
//!
//! ```text
//!  controlet ── Task ──▶ Keeper ── get, put, delete ──▶ Datalet (values, in an envelope)
//!            ◀── Done ──            meta, if beside ──▶ Datalet (metas)
//! ```
//!
//! A keeper runs tasks in the order given, one at a time. At the replica that orders, it evaluates
//! operations and numbers what they changed; at the others it applies those entries. It is the only
//! one to know how a record lies in the store ([`Layout`]).

mod applying;
mod deciding;
mod dividing;
mod lasting;
mod task;

use crate::datalet::{Cursor, Datalet, DataletError, Page};
use crate::deadlines::Deadlines;
pub use crate::deadlines::Deletes;
use crate::entry::{Entry, Packer, Write};
use crate::ids::{Epoch, Position};
use crate::mutants::{Fault, planted};
use crate::operation::{Op, Outcome, Request};
use crate::record::{Bounds, Layout, Meta};
use crate::run::AnswerPacker;
use crate::shelf::Shelf;
use crate::survey::{Report, Survey, hash_of};
use crate::time::Now;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::{Bytes, BytesMut};
use deciding::out_of_memory;
use lasting::Lasting;
pub use lasting::{Deleted, Mark, mark_of};
use task::broken;
pub use task::{Done, Replay, Start, Task, Walked};

/// Bounds of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperLimits {
    /// Which records all stores of its table take: whatever one replica decides, the others can do.
    pub bounds: Bounds,
    /// Values that the answers to one batch may hold together, in bytes.
    pub batch_bytes_max: usize,
}

impl Default for KeeperLimits {
    fn default() -> Self {
        let bounds = Bounds { value_bytes_max: 16 << 20, ..Bounds::default() };
        KeeperLimits { bounds, batch_bytes_max: 128 << 20 }
    }
}

/// A replica's records.
pub struct Keeper {
    shelf: Shelf,
    position: Position,
    deadlines: Deadlines,
    deletes: Deletes,
    arena: BytesMut,
    /// What the operation that is being decided has changed so far.
    changes: Packer,
    /// What the steps of the run that is being decided answered so far.
    answers: AnswerPacker,
    limits: KeeperLimits,
    /// The store failed once: what it holds is not known any more.
    broken: Option<DataletError>,
    /// There is no memory for more.
    full: bool,
    /// Records past their deadline that a look has found so far.
    dead: Option<Vec<Bytes>>,
    /// All replicas do what is being decided, each with a store of its own kind.
    replays: bool,
    /// The life of the store that holds the records.
    generation: u64,
    survey: Option<Survey>,
    /// What is on disk, where the store is durable.
    lasting: Option<Lasting>,
    /// How far records are removed that are another shard's.
    leaving: Cursor,
}

impl Keeper {
    /// Keeps records in `store`, metas included.
    pub fn enveloped(store: Box<dyn Datalet>, limits: KeeperLimits) -> Keeper {
        Keeper::new(Shelf::new(store, None), limits)
    }

    /// Keeps values raw in `store` and their metas in `metas`.
    pub fn beside(store: Box<dyn Datalet>, metas: Box<dyn Datalet>, limits: KeeperLimits) -> Keeper {
        Keeper::new(Shelf::new(store, Some(metas)), limits)
    }

    fn new(shelf: Shelf, limits: KeeperLimits) -> Keeper {
        Keeper {
            generation: shelf.generation(),
            shelf,
            position: Position::ZERO,
            deadlines: Deadlines::default(),
            deletes: Deletes::default(),
            arena: BytesMut::new(),
            changes: Packer::default(),
            answers: AnswerPacker::default(),
            limits,
            broken: None,
            full: false,
            dead: None,
            replays: false,
            survey: None,
            lasting: None,
            leaving: Cursor::Start,
        }
    }

    /// How its records are kept.
    pub fn layout(&self) -> Layout {
        if self.shelf.metas.is_some() { Layout::Beside } else { Layout::Envelope }
    }

    /// Whether its store failed, or lost what was in it.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Why it can go on no longer, if so.
    pub fn broken(&self) -> Option<&DataletError> {
        self.broken.as_ref()
    }

    /// All entries up to here have taken effect.
    pub fn position(&self) -> Position {
        self.position
    }

    /// An empty replica begins its life in `epoch`: what was watched before is not known to be unchanged.
    #[must_use]
    pub fn starting_in(mut self, epoch: Epoch) -> Keeper {
        self.position = Position { epoch, sequence: 0 };
        self.deletes = Deletes::since(self.position);
        self
    }

    /// A hint that this task will be run soon.
    pub fn expect(&mut self, task: &Task) {
        let store = &mut self.shelf.store;
        match task {
            Task::Evaluate(Request { op, .. }, _)
            | Task::Read(Request { op, .. })
            | Task::Look(Request { op, .. }, _)
            | Task::Replay(Replay { request: Request { op, .. }, .. }) => match op {
                Op::Key(key, _) => store.expect(key),
                Op::Run(run) => run.steps().for_each(|step| store.expect(step.key)),
                _ => {}
            },
            Task::Apply(entry) => {
                let keys = entry.writes.iter().filter_map(|write| write.key());
                keys.for_each(|key| store.expect(key));
            }
            _ => {}
        }
    }

    /// About how many bytes of memory its records take.
    pub fn bytes(&self) -> u64 {
        let metas = self.shelf.metas.as_ref().map_or(0, |metas| metas.bytes());
        self.shelf.store.bytes() + metas + self.deadlines.bytes()
    }

    /// From now on, operations that make records larger are refused, or are not.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// From now on its table takes these records.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.limits.bounds = bounds;
    }

    /// Takes over the deadlines that its store had of its own, where metas are kept beside.
    pub fn adopting(mut self) -> Result<Keeper, DataletError> {
        let mut found = Vec::new();
        if let Some(metas) = &mut self.shelf.metas {
            self.shelf.store.adopt_deadlines(&mut |key, at| found.push((Bytes::copy_from_slice(key), at)))?;
            for (key, at) in &found {
                let meta = Meta { version: Position::ZERO, deadline_ms: Some(*at) };
                let mut bytes = Vec::new();
                meta.encode(&mut bytes);
                metas.put(key, &bytes)?;
                self.deadlines.set(key, meta.deadline_ms);
            }
        }
        Ok(self)
    }

    /// Runs one task. Once the store has failed it is not asked again; nor once it came back empty, which
    /// is looked at after the task: its result may be due to that.
    pub fn run(&mut self, now: Now, task: Task) -> Done {
        if let Some(error) = &self.broken {
            return broken(task.into_request(), error);
        }
        let done = self.run_unchecked(now, task);
        let same = self.shelf.generation() == self.generation || planted(Fault::IgnoreGeneration);
        if same || self.broken.is_some() {
            return done;
        }
        let text = "the datalet lost what was in it: it restarted, or was emptied by somebody else";
        self.fail(done.into_request(), DataletError::Failed(text.into()))
    }

    fn run_unchecked(&mut self, now: Now, task: Task) -> Done {
        match task {
            Task::Evaluate(request, epoch) => self.evaluate(now, request, epoch),
            Task::Read(request) => match self.answer(now, &request.op) {
                Ok(outcome) => Done::Read(request, outcome),
                Err(error) => self.fail(Some(request), error),
            },
            Task::Look(request, unix_ms) => self.look(Now { unix_ms, ..now }, request),
            Task::Apply(entry) => {
                let position = entry.position;
                match self.apply(entry) {
                    Ok(()) => Done::Applied(position),
                    Err(error) => self.fail(None, error),
                }
            }
            Task::Replay(replay) => self.replay(now, replay),
            Task::Due(limit) => {
                let due = self.deadlines.due(now.unix_ms, limit);
                Done::Due(due.iter().map(|key| Bytes::copy_from_slice(key)).collect())
            }
            Task::Expire(epoch, limit) => match self.expire(now, epoch, limit) {
                Ok((entry, more)) => Done::Expired(entry, more),
                Err(error) => self.fail(None, error),
            },
            Task::Check => Done::Checked,
            Task::Walk(fill, cursor, bytes_max, since) => match self.walk(cursor, bytes_max, since) {
                Ok(walked) => Done::Walked(fill, walked),
                Err(error) => self.fail(None, error),
            },
            Task::Fill(fill, start, records) => match self.fill(start.map(|start| *start), records) {
                Ok(()) => Done::Filled(fill),
                Err(error) => self.fail(None, error),
            },
            Task::Survey(records_max, bytes_max) => match self.go_on(Page::new(records_max, bytes_max)) {
                Ok(more) => Done::Surveyed(more),
                Err(error) => self.fail(None, error),
            },
            Task::Part(..)
            | Task::Keep(..)
            | Task::Follow(_)
            | Task::Settle
            | Task::Seal(_)
            | Task::Leave(..) => self.divide(task).unwrap_or_else(|error| self.fail(None, error)),
        }
    }

    fn fail(&mut self, request: Option<Request>, error: DataletError) -> Done {
        let done = broken(request, &error);
        self.changes.clear();
        self.end_survey("its store failed");
        self.broken = Some(error);
        done
    }

    /// How the last survey stands; none if there was none, or records came by a fill since.
    pub fn surveyed(&self) -> Option<Report> {
        self.survey.as_ref().map(Survey::report)
    }

    fn begin_survey(&mut self, at: Position) -> Result<(), DataletError> {
        self.survey = Some(Survey::new(at, self.shelf.len()?));
        Ok(())
    }

    fn go_on(&mut self, page: Page) -> Result<bool, DataletError> {
        let done = self.survey.as_mut().map_or(Ok(false), |survey| survey.go_on(&mut self.shelf, page));
        if matches!(done, Err(DataletError::Unsupported(_))) {
            self.end_survey("its datalet cannot be walked");
            return Ok(false);
        }
        done
    }

    fn end_survey(&mut self, why: &'static str) {
        if let Some(survey) = &mut self.survey {
            survey.fail(why);
        }
    }

    /// A number that two replicas share when they hold the same records, versions included.
    pub fn digest(&mut self) -> Result<u64, DataletError> {
        let (mut cursor, mut digest) = (Cursor::Start, 0u64);
        while cursor != Cursor::End {
            let mut page = Page::new(256, 1 << 20);
            self.shelf.walk(&mut cursor, &mut page)?;
            for (key, stored) in page.pairs() {
                let (meta, start) = self.shelf.meta_of(key, stored)?;
                digest = digest.wrapping_add(hash_of(key, &stored[start..], &meta) as u64);
            }
        }
        Ok(digest)
    }

    /// Changes the value of a record in this replica only: for who wants to see that it is found. Whether it is there.
    pub fn corrupt(&mut self, key: &[u8]) -> Result<bool, DataletError> {
        let mut found = None;
        self.shelf.get(key, &mut |meta, value| found = Some((meta, value.to_vec())))?;
        let Some((meta, mut value)) = found else { return Ok(false) };
        match value.last_mut() {
            Some(last) => *last ^= 1,
            None => value.push(1),
        }
        self.touch();
        self.shelf.put(key, &value, meta)?;
        Ok(true)
    }

    fn evaluate(&mut self, now: Now, request: Request, epoch: Epoch) -> Done {
        // The steps of a run are looked at one by one.
        if self.full && request.op.grows() && !matches!(request.op, Op::Run(_)) {
            return Done::Evaluated(request, out_of_memory(FULL), None);
        }
        let position = self.position.next(epoch);
        // What is remembered has a place in the history, also where it changes nothing; so has what only marks one.
        let (op, remembered) = match &request.op {
            Op::Once(once) => (&once.op, true),
            op => (op, op.is_fence()),
        };
        match self.decide(now, op, position) {
            Ok(outcome) => {
                let entry = self.take_entry(position, remembered);
                Done::Evaluated(request, outcome, entry)
            }
            Err(error) => self.fail(Some(request), error),
        }
    }

    fn replay(&mut self, now: Now, replay: Replay) -> Done {
        let position = replay.position;
        assert_eq!(
            position.sequence,
            self.position.sequence + 1,
            "operations are done in order, without a gap"
        );
        let op = if let Op::Once(once) = &replay.request.op { &once.op } else { &replay.request.op };
        // Who gave it its place has looked whether there is room.
        let (full, bounds) = (self.full, self.limits.bounds);
        (self.full, self.limits.bounds, self.replays) = (false, replay.bounds, true);
        let unix_ms = if planted(Fault::OwnClock) { now.unix_ms } else { replay.unix_ms };
        let outcome = self.decide(Now { unix_ms, ..now }, op, position);
        (self.full, self.limits.bounds, self.replays) = (full, bounds, false);
        match outcome {
            Ok(outcome) => {
                self.position = position;
                let entry = Entry { position, writes: self.changes.take() };
                Done::Replayed(replay, outcome, entry)
            }
            Err(error) => self.fail(Some(replay.request), error),
        }
    }

    /// What was changed, as the entry at `position`; an empty one only if something is to be remembered there.
    fn take_entry(&mut self, position: Position, remembered: bool) -> Option<Entry> {
        if self.changes.is_empty() && !remembered {
            return None;
        }
        self.position = position;
        Some(Entry { position, writes: self.changes.take() })
    }

    /// Does what an entry at `position` will tell the other replicas to do.
    fn change(&mut self, write: Write<'_>, position: Position) -> Result<(), DataletError> {
        self.changes.push(write);
        self.write(write, position)
    }

    fn look(&mut self, now: Now, request: Request) -> Done {
        self.dead = Some(Vec::new());
        let outcome = self.answer(now, &request.op);
        let dead = self.dead.take().unwrap_or_default();
        match outcome {
            Ok(outcome) => Done::Looked(request, outcome.unwrap_or(Outcome::Nil), dead),
            Err(error) => self.fail(Some(request), error),
        }
    }
}

/// What a growing operation is told where there is no room.
pub const FULL: &str = "command not allowed when used memory > 'maxmemory'.";
/// The same where a replica of another node has no room.
pub const FULL_ELSEWHERE: &str = "command not allowed when used memory > 'maxmemory' at another copy.";
