//! What operations come to, by the records that are here.

use super::{FULL, FULL_ELSEWHERE, Keeper};
use crate::datalet::{DataletError, Page};
use crate::entry::Write;
use crate::ids::Position;
use crate::mutants::{Fault, planted};
use crate::operation::{
    Action, Batch, Change, Context, Failure, FailureKind, Old, Op, Outcome, Scan, Version, evaluate,
};
use crate::range::{Range, Ranged};
use crate::routing::slot::slot_of;
use crate::run::{Deed, Run, Step};
use crate::time::Now;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;

/// Records of a page that are to be judged at once.
const JUDGED_MAX: usize = 512;

/// An operation on one key, decided or not for us to decide.
enum Verdict {
    Decided(Outcome),
    Dead,
}

impl Keeper {
    pub(super) fn decide(&mut self, now: Now, op: &Op, position: Position) -> Result<Outcome, DataletError> {
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
            other => Ok(self.overview(now, other, Some(position))?.unwrap_or(Outcome::Nil)),
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
            if !self.shelf.has(key, position.epoch) {
                // The other shard sees to it.
                self.deadlines.set(key, None);
            } else if dead {
                self.change(Write::Delete { key }, position)?;
            }
        }
        Ok(Outcome::Done)
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
    pub(super) fn answer(&mut self, now: Now, op: &Op) -> Result<Option<Outcome>, DataletError> {
        match op {
            Op::Key(key, action) => self.decide_key(now, key, action, None).map(outcome_of),
            Op::Batch(batch) => self.read_batch(now, batch),
            Op::Run(run) => self.run_steps(now, run, None),
            other => self.overview(now, other, None),
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
            value_bytes_max: self.limits.bounds.value_bytes_max,
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
        let (mut outcome, mut change) = decided.unwrap_or_else(|| evaluate(action, None, &context, arena));
        if let Change::Put { value, .. } = &change
            && let Some(why) = self.limits.bounds.refuse(key, value.len())
        {
            (outcome, change) = (Failure::outcome(FailureKind::Invalid, why), Change::None);
        }
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
                other => self.overview(now, other, Some(position))?.unwrap_or(Outcome::Nil),
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
                    match self.limits.bounds.refuse(key, value.len()) {
                        Some(why) => self.answers.push(&Failure::outcome(FailureKind::Invalid, why)),
                        None => {
                            self.change(Write::Put { key, value, deadline_ms: None }, position)?;
                            self.answers.done();
                        }
                    }
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
        // Where nothing expires, the value says all: its meta would be another record to find.
        if self.shelf.metas.is_some() && self.deadlines.is_empty() {
            self.shelf.store.get(key, &mut |value| {
                answers.value(value);
                found = Some(true);
            })?;
            return Ok(found);
        }
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
                other => self.overview(now, other, None)?,
            };
            let Some(outcome) = outcome else { return Ok(None) };
            budget.spend(&outcome);
            outcomes.push(outcome);
        }
        Ok(Some(Outcome::Many(outcomes)))
    }

    /// Operations on the shard as a whole, which change nothing but that the dead go; none if who orders must answer.
    fn overview(
        &mut self,
        now: Now,
        op: &Op,
        order: Option<Position>,
    ) -> Result<Option<Outcome>, DataletError> {
        match op {
            Op::Len => can(self.shelf.len().map(|len| Some(Outcome::Integer(len as i64)))),
            Op::Scan(scan) => can(self.scan(now, scan, order.is_some())),
            Op::Range(range) => can(self.range(now, range, order)),
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

    fn range(
        &mut self,
        now: Now,
        range: &Range,
        order: Option<Position>,
    ) -> Result<Option<Outcome>, DataletError> {
        let mut page = Page::new(range.limit.max(1) as usize, range.bytes_max as usize);
        self.shelf.scan(range, &mut page)?;
        let next = page.pairs().last().filter(|_| page.is_full()).and_then(|(key, _)| range.after(key));
        let (mut pairs, mut dead) = (Vec::with_capacity(page.pairs().len()), Vec::new());
        for (key, stored) in page.into_pairs() {
            let (meta, start) = self.shelf.meta_of(&key, &stored)?;
            let (is_dead, at) = (meta.is_dead(now.unix_ms), meta.deadline_ms.unwrap_or(u64::MAX));
            let judges = order.is_some() || self.dead.is_some();
            if !is_dead || (!judges && range.is_alive(&key, at)) {
                pairs.push((key, range.values.then(|| stored.slice(start..))));
                continue;
            }
            // Who has not seen it here must not see it elsewhere later: it goes with this operation. In a replay that would go at
            // some replicas only, as not all stores can scan.
            match (order, &mut self.dead) {
                (Some(_), _) if self.replays => {}
                (Some(position), _) if !self.shelf.has(&key, position.epoch) => {}
                (Some(position), _) => self.change(Write::Delete { key: &key }, position)?,
                (None, Some(found)) => found.push(key),
                _ if range.judged.is_none() => return Ok(None),
                _ if planted(Fault::AsideUnjudged) => {}
                _ if dead.len() < JUDGED_MAX => dead.push((key, at)),
                _ => break,
            }
        }
        if !dead.is_empty() {
            return Ok(Some(Outcome::Dead(dead)));
        }
        Ok(Some(Outcome::Ranged(Box::new(Ranged { pairs, next }))))
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

/// What a store cannot do is told to who asks for it, and is no failure of the store.
fn can(done: Result<Option<Outcome>, DataletError>) -> Result<Option<Outcome>, DataletError> {
    match done {
        Err(DataletError::Unsupported(why)) => Ok(Some(Failure::outcome(FailureKind::Unsupported, why))),
        done => done,
    }
}

fn too_large() -> Outcome {
    let text = "the answers or writes are too large for one request; ask for fewer keys";
    Failure::outcome(FailureKind::Invalid, text)
}

pub(super) fn out_of_memory(text: &'static str) -> Outcome {
    Failure::outcome(FailureKind::Full, text)
}

fn outcome_of(verdict: Verdict) -> Option<Outcome> {
    match verdict {
        Verdict::Decided(outcome) => Some(outcome),
        Verdict::Dead => None,
    }
}
