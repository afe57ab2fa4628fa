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

use crate::datalet::{Cursor, Datalet, DataletError, Page};
use crate::deadlines::Deadlines;
pub use crate::deadlines::Deletes;
use crate::entry::{Entry, Packer, Write};
use crate::ids::{Epoch, Position};
use crate::mutants::{Fault, planted};
use crate::operation::{
    Action, Batch, Change, Context, Failure, FailureKind, Old, Op, Outcome, Request, Scan, Version, evaluate,
};
use crate::record::{Layout, Meta, Record};
use crate::routing::slot::slot_of;
use crate::run::{AnswerPacker, Deed, Run, Step};
use crate::shelf::Shelf;
use crate::survey::{Report, Survey, hash_of};
use crate::time::Now;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use bytes::{Bytes, BytesMut};

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
    /// Read a page of records from here on, about so many bytes, for this fill of another replica.
    Walk(Epoch, Cursor, usize),
    /// Take records of a walk elsewhere, in this fill. With a position, everything here goes first, and the
    /// replica stands at that position from now on.
    Fill(Epoch, Option<Box<Start>>, Vec<Record>),
    /// Go on with the survey, if one was begun, by so many records of about so many bytes together.
    Survey(usize, usize),
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
    /// The largest value it may make, in bytes.
    pub value_bytes_max: usize,
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
    fn into_request(self) -> Option<Request> {
        match self {
            Done::Evaluated(request, ..) | Done::Read(request, _) | Done::Looked(request, ..) => {
                Some(request)
            }
            Done::Replayed(replay, ..) => Some(replay.request),
            Done::Broken(request, _) => request,
            Done::Applied(_) | Done::Expired(..) | Done::Due(_) | Done::Checked => None,
            Done::Walked(..) | Done::Filled(_) | Done::Surveyed(_) => None,
        }
    }
}

impl Task {
    /// Whether it looks at several keys.
    pub fn is_run(&self) -> bool {
        match self {
            Task::Evaluate(Request { op, .. }, _)
            | Task::Read(Request { op, .. })
            | Task::Look(Request { op, .. }, _) => {
                matches!(op, Op::Run(run) if run.len() > 1)
            }
            Task::Replay(replay) => matches!(&replay.request.op, Op::Run(run) if run.len() > 1),
            Task::Apply(entry) => entry.writes.len() > 1,
            _ => false,
        }
    }

    fn into_request(self) -> Option<Request> {
        match self {
            Task::Evaluate(request, _) | Task::Read(request) | Task::Look(request, _) => Some(request),
            Task::Replay(replay) => Some(replay.request),
            Task::Apply(_) | Task::Expire(..) | Task::Due(_) | Task::Check => None,
            Task::Walk(..) | Task::Fill(..) | Task::Survey(..) => None,
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
}

/// Bounds of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperLimits {
    /// The largest value, in bytes.
    pub value_bytes_max: usize,
    /// Values that the answers to one batch may hold together, in bytes.
    pub batch_bytes_max: usize,
}

impl Default for KeeperLimits {
    fn default() -> Self {
        KeeperLimits { value_bytes_max: 16 << 20, batch_bytes_max: 128 << 20 }
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
    /// The life of the store that holds the records.
    generation: u64,
    survey: Option<Survey>,
}

/// An operation on one key, decided or not for us to decide.
enum Verdict {
    Decided(Outcome),
    Dead,
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
            survey: None,
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
            Task::Walk(fill, cursor, bytes_max) => match self.walk(cursor, bytes_max) {
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
        self.survey = Some(Survey::new(at, self.shelf.store.len()?));
        Ok(())
    }

    fn go_on(&mut self, page: Page) -> Result<bool, DataletError> {
        self.survey.as_mut().map_or(Ok(false), |survey| survey.go_on(&mut self.shelf, page))
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
        self.shelf.put(key, &value, meta)?;
        Ok(true)
    }

    fn evaluate(&mut self, now: Now, request: Request, epoch: Epoch) -> Done {
        // The steps of a run are looked at one by one.
        if self.full && request.op.grows() && !matches!(request.op, Op::Run(_)) {
            return Done::Evaluated(request, out_of_memory(FULL), None);
        }
        let position = self.position.next(epoch);
        // What is remembered has a place in the history, also where it changes nothing.
        let (op, remembered) = match &request.op {
            Op::Once(once) => (&once.op, true),
            op => (op, false),
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
        let (full, limit) = (self.full, self.limits.value_bytes_max);
        (self.full, self.limits.value_bytes_max) = (false, replay.value_bytes_max);
        let unix_ms = if planted(Fault::OwnClock) { now.unix_ms } else { replay.unix_ms };
        let outcome = self.decide(Now { unix_ms, ..now }, op, position);
        (self.full, self.limits.value_bytes_max) = (full, limit);
        match outcome {
            Ok(outcome) => {
                self.position = position;
                let entry = Entry { position, writes: self.changes.take() };
                Done::Replayed(replay, outcome, entry)
            }
            Err(error) => self.fail(Some(replay.request), error),
        }
    }

    fn decide(&mut self, now: Now, op: &Op, position: Position) -> Result<Outcome, DataletError> {
        match op {
            Op::Key(key, action) => self.order_key(now, key, action, position),
            Op::Batch(batch) => self.decide_batch(now, batch, position),
            Op::Run(run) => Ok(self.run_steps(now, run, Some(position))?.unwrap_or(Outcome::Nil)),
            Op::Clear => {
                self.change(Write::Clear, position)?;
                Ok(Outcome::Done)
            }
            Op::Survey => {
                self.change(Write::Survey, position)?;
                Ok(Outcome::Version(Version::Written(position)))
            }
            Op::Expire(keys) => self.remove_the_dead(now, keys, position),
            other => Ok(self.overview(now, other, true)?.unwrap_or(Outcome::Nil)),
        }
    }

    fn remove_the_dead(
        &mut self,
        now: Now,
        keys: &[Bytes],
        position: Position,
    ) -> Result<Outcome, DataletError> {
        for key in keys {
            let mut dead = false;
            self.shelf.get(key, &mut |meta, _| dead = meta.is_dead(now.unix_ms))?;
            if dead {
                self.change(Write::Delete { key }, position)?;
            }
        }
        Ok(Outcome::Done)
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

    fn order_key(
        &mut self,
        now: Now,
        key: &[u8],
        action: &Action,
        position: Position,
    ) -> Result<Outcome, DataletError> {
        match self.decide_key(now, key, action, Some(position))? {
            Verdict::Decided(outcome) => Ok(outcome),
            Verdict::Dead => unreachable!("who orders judges records past their deadline"),
        }
    }

    /// None if who orders must judge whether a record is past its deadline.
    fn answer(&mut self, now: Now, op: &Op) -> Result<Option<Outcome>, DataletError> {
        match op {
            Op::Key(key, action) => self.decide_key(now, key, action, None).map(outcome_of),
            Op::Batch(batch) => self.read_batch(now, batch),
            Op::Run(run) => self.run_steps(now, run, None),
            other => self.overview(now, other, false),
        }
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

    /// Decides `action`; with a position it orders and may write, without it only reads.
    fn decide_key(
        &mut self,
        now: Now,
        key: &[u8],
        action: &Action,
        order: Option<Position>,
    ) -> Result<Verdict, DataletError> {
        let context = Context {
            unix_ms: now.unix_ms,
            position: self.position,
            value_bytes_max: self.limits.value_bytes_max,
        };
        let arena = &mut self.arena;
        let mut dead = false;
        let mut decided = None;
        if action.needs_old() {
            self.shelf.get(key, &mut |meta, value| {
                dead = meta.is_dead(now.unix_ms);
                if !dead {
                    let old = Old { value, deadline_ms: meta.deadline_ms, version: meta.version };
                    decided = Some(evaluate(action, Some(old), &context, arena));
                }
            })?;
        }
        if dead && order.is_none() {
            let Some(found) = &mut self.dead else { return Ok(Verdict::Dead) };
            found.push(Bytes::copy_from_slice(key));
        }
        // A dead record goes with this operation, so it is absent from this place on.
        let position = order.filter(|_| dead).unwrap_or(context.position);
        let context = Context { position, ..context };
        let (outcome, change) = decided.unwrap_or_else(|| evaluate(action, None, &context, arena));
        let write = match &change {
            Change::None if !dead || order.is_none() => return Ok(Verdict::Decided(outcome)),
            Change::None | Change::Delete => Write::Delete { key },
            Change::Put { value, deadline_ms } => Write::Put { key, value, deadline_ms: *deadline_ms },
        };
        let Some(position) = order else { unreachable!("reads change nothing") };
        self.change(write, position)?;
        Ok(Verdict::Decided(outcome))
    }

    fn decide_batch(&mut self, now: Now, batch: &Batch, position: Position) -> Result<Outcome, DataletError> {
        for (key, version) in &batch.watched {
            if !self.is_unchanged(now, key, *version)? {
                return Ok(Outcome::Aborted);
            }
        }
        let mut outcomes = Vec::with_capacity(batch.steps.len());
        let mut budget = Budget(self.limits.batch_bytes_max);
        for step in &batch.steps {
            let outcome = match step {
                step if !budget.allows(step) => too_large(),
                Op::Key(key, action) => {
                    let before = self.changes.bytes();
                    let outcome = self.order_key(now, key, action, position)?;
                    budget.charge(self.changes.bytes() - before);
                    outcome
                }
                Op::Clear => {
                    self.change(Write::Clear, position)?;
                    Outcome::Done
                }
                other => self.overview(now, other, true)?.unwrap_or(Outcome::Nil),
            };
            budget.spend(&outcome);
            outcomes.push(outcome);
        }
        Ok(Outcome::Many(outcomes))
    }

    /// The commands of a run, one after the other; none if the replica that orders must judge one.
    fn run_steps(
        &mut self,
        now: Now,
        run: &Run,
        order: Option<Position>,
    ) -> Result<Option<Outcome>, DataletError> {
        self.answers.clear();
        let answers_max = if run.is_bounded() { self.limits.batch_bytes_max } else { usize::MAX };
        for Step { key, deed } in run.steps() {
            match deed {
                deed if self.answers.len() >= answers_max && deed.answers_value() => {
                    self.answers.push(&too_large());
                }
                deed if self.full && deed.grows() => self.answers.push(&out_of_memory(FULL)),
                deed if run.refuses_growth() && deed.grows() => {
                    self.answers.push(&out_of_memory(FULL_ELSEWHERE));
                }
                Deed::Get => match self.get(now, key)? {
                    Some(true) => {}
                    Some(false) => self.answers.nil(),
                    None => {
                        match (order, &mut self.dead) {
                            (Some(position), _) => self.change(Write::Delete { key }, position)?,
                            (None, Some(found)) => found.push(Bytes::copy_from_slice(key)),
                            (None, None) => return Ok(None),
                        }
                        self.answers.nil();
                    }
                },
                Deed::Set(value) => {
                    let Some(position) = order else { unreachable!("reads change nothing") };
                    self.change(Write::Put { key, value, deadline_ms: None }, position)?;
                    self.answers.done();
                }
                Deed::Other(action) => match self.decide_key(now, key, &action, order)? {
                    Verdict::Decided(outcome) => self.answers.push(&outcome),
                    Verdict::Dead => return Ok(None),
                },
            }
        }
        Ok(Some(Outcome::Run(self.answers.take())))
    }

    /// Adds the value of a key to the answers: whether it is there; none if it is past its deadline.
    fn get(&mut self, now: Now, key: &[u8]) -> Result<Option<bool>, DataletError> {
        let (mut found, answers) = (Some(false), &mut self.answers);
        self.shelf.get(key, &mut |meta, value| {
            if meta.is_dead(now.unix_ms) {
                found = None;
            } else {
                answers.value(value);
                found = Some(true);
            }
        })?;
        Ok(found)
    }

    fn read_batch(&mut self, now: Now, batch: &Batch) -> Result<Option<Outcome>, DataletError> {
        let mut outcomes = Vec::with_capacity(batch.steps.len());
        let mut budget = Budget(self.limits.batch_bytes_max);
        for step in &batch.steps {
            let outcome = match step {
                step if !budget.allows(step) => Some(too_large()),
                Op::Key(key, action) => outcome_of(self.decide_key(now, key, action, None)?),
                other => self.overview(now, other, false)?,
            };
            let Some(outcome) = outcome else { return Ok(None) };
            budget.spend(&outcome);
            outcomes.push(outcome);
        }
        Ok(Some(Outcome::Many(outcomes)))
    }

    /// Operations on the shard as a whole that change nothing; none if who orders must answer.
    fn overview(&mut self, now: Now, op: &Op, orders: bool) -> Result<Option<Outcome>, DataletError> {
        match op {
            Op::Len => Ok(Some(Outcome::Integer(self.shelf.store.len()? as i64))),
            Op::Scan(scan) => self.scan(now, scan, orders),
            Op::Key(..)
            | Op::Batch(_)
            | Op::Run(_)
            | Op::Once(_)
            | Op::Expire(_)
            | Op::Clear
            | Op::Survey
            | Op::Wait { .. } => {
                Ok(Some(Failure::outcome(FailureKind::Unsupported, "not allowed inside of a batch")))
            }
        }
    }

    fn scan(&mut self, now: Now, scan: &Scan, orders: bool) -> Result<Option<Outcome>, DataletError> {
        let mut cursor = scan.cursor.clone();
        let mut page = Page::new(scan.count as usize, 1 << 20);
        self.shelf.walk(&mut cursor, &mut page)?;
        let mut keys = Vec::with_capacity(page.pairs().len());
        for (key, stored) in page.into_pairs() {
            match self.shelf.meta_of(&key, &stored)?.0.is_dead(now.unix_ms) {
                false => keys.push(key),
                true if orders || self.dead.is_some() => {}
                true => return Ok(None),
            }
        }
        Ok(Some(Outcome::Page(keys, cursor)))
    }

    /// Whether a key is provably as it was when it was watched. A record tells its own version; that
    /// a key was absent all the time is known only while nothing in its slot was deleted.
    fn is_unchanged(&mut self, now: Now, key: &Bytes, version: Version) -> Result<bool, DataletError> {
        let mut found = None;
        self.shelf.get(key, &mut |meta, _| found = Some(meta))?;
        if planted(Fault::WatchIgnored) {
            return Ok(true);
        }
        Ok(match version {
            Version::Written(at) => {
                found.is_some_and(|meta| meta.version == at && !meta.is_dead(now.unix_ms))
            }
            Version::AbsentAt(at) => found.is_none() && self.deletes.last_in(slot_of(key)) <= at,
        })
    }

    fn apply(&mut self, entry: Entry) -> Result<(), DataletError> {
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

    fn expire(
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

    fn walk(&mut self, mut cursor: Cursor, bytes_max: usize) -> Result<Walked, DataletError> {
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

    fn fill(&mut self, start: Option<Start>, records: Vec<Record>) -> Result<(), DataletError> {
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

    fn write(&mut self, write: Write<'_>, position: Position) -> Result<(), DataletError> {
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

    fn clear(&mut self, position: Position) -> Result<(), DataletError> {
        self.end_survey("everything was removed (FLUSHALL) while it ran");
        self.deadlines = Deadlines::default();
        self.deletes = Deletes::since(position);
        self.shelf.clear()
    }
}

/// What the answers and writes of a batch may still hold: a few words can ask for the same large value
/// many times.
struct Budget(usize);

impl Budget {
    /// A step that answers with a value needs some of it; one that is refused has no effect.
    fn allows(&self, step: &Op) -> bool {
        self.0 > 0 || !matches!(step, Op::Key(_, action) if action.answers_value() || action.is_write())
    }

    fn spend(&mut self, outcome: &Outcome) {
        if let Outcome::Value(value) = outcome {
            self.charge(value.len().max(1));
        }
    }

    fn charge(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes);
    }
}

fn too_large() -> Outcome {
    let text = "the answers or writes are too large for one request; ask for fewer keys";
    Failure::outcome(FailureKind::Invalid, text)
}

/// What a growing operation is told where there is no room.
pub const FULL: &str = "command not allowed when used memory > 'maxmemory'.";
/// The same where a replica of another node has no room.
pub const FULL_ELSEWHERE: &str = "command not allowed when used memory > 'maxmemory' at another copy.";

fn out_of_memory(text: &'static str) -> Outcome {
    Failure::outcome(FailureKind::Full, text)
}

fn outcome_of(verdict: Verdict) -> Option<Outcome> {
    match verdict {
        Verdict::Decided(outcome) => Some(outcome),
        Verdict::Dead => None,
    }
}

/// A planted fault: the record never expires.
fn without_deadline(mut write: Write<'_>) -> Write<'_> {
    if let Write::Put { deadline_ms, .. } = &mut write {
        *deadline_ms = None;
    }
    write
}

fn broken(request: Option<Request>, error: &DataletError) -> Done {
    Done::Broken(request, Failure { kind: FailureKind::Data, text: format!("{error}").into() })
}
