//! What can be asked of a shard, what it answers, and the pure rules in between.
//!
//! [`evaluate`] decides one [`Action`] on one key from the record that is there. It is the
//! only place that knows what SET NX or INCR mean; who orders calls it, replicas apply what
//! came of it. The answers follow Redis to the letter, because every Redis client reads them.

use crate::datalet::Cursor;
use crate::ids::{Incarnation, Position, ShardId, WorkerId};
use crate::range::{Range, Ranged};
use crate::run::{Answers, Run};
use crate::time::Micros;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};

/// An operation of one client on one shard, on its way to be decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Where the answer goes.
    pub from: From,
    /// The shard that holds all its keys.
    pub shard: ShardId,
    /// What to do.
    pub op: Op,
    /// What the connection has already seen of this shard: an answer from before would go back in time. Its
    /// session adds what it knows.
    pub floor: Position,
    /// How fresh a read must be.
    pub consistency: Consistency,
    /// When its origin stops waiting, on the steady clock of the node that holds it.
    pub deadline_us: Micros,
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum From {
    /// A client's connection on this worker; `tag` is its request in the connection's order.
    Session {
        /// The connection.
        session: SessionId,
        /// The request's number in it.
        tag: u32,
    },
    /// Another worker, which forwarded it.
    Worker {
        /// The worker whose client it is.
        worker: WorkerId,
        /// That worker's life.
        incarnation: Incarnation,
        /// Its number for this shard.
        sequence: u64,
        /// All its requests below this number are settled.
        base: u64,
    },
    /// Nobody waits for an answer: the shard itself, or somebody whose request was ordered elsewhere.
    Nobody,
}

/// A client's connection: a place in the worker's table, and which user of that place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The place.
    pub index: u32,
    /// How often the place was used before.
    pub generation: u32,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// What the table's mode promises.
    #[default]
    Mode,
    /// Any replica's present state.
    Eventual,
    /// What this connection has seen or written, and perhaps no more.
    Causal,
    /// All that was acknowledged so long before the question.
    Bounded(Micros),
    /// The newest state; refused where the mode does not know it.
    Strong,
}

/// An operation on a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// On one key.
    Key(Bytes, Action),
    /// All or nothing, with nothing of others in between.
    Batch(Batch),
    /// Several on keys, each for itself, that came together.
    Run(Run),
    /// How many records there are, expired ones included until they are removed.
    Len,
    /// Remove everything.
    Clear,
    /// Begin a survey at every replica; answered with the place that it will tell of.
    Survey,
    /// A page of keys.
    Scan(Scan),
    /// Answer with a page of a range, in key order.
    Range(Box<Range>),
    /// Answer how many other replicas have all that the connection has seen: when `copies` have it, or
    /// soon anyway, so that who wants to wait longer asks again.
    Wait {
        /// Replicas wanted beside the one that ordered the write.
        copies: u16,
        /// How long at most.
        timeout_ms: u64,
    },
    /// Remove those of these records that are past their deadline.
    Expire(Vec<Bytes>),
    /// One of those on keys, under a name that its client chose: who asks again is told what came of it.
    Once(Box<Once>),
}

impl Op {
    /// Visits each key that it names.
    pub fn each_key(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Op::Key(key, _) => visit(key),
            Op::Run(run) => run.steps().for_each(|step| visit(step.key)),
            Op::Expire(keys) => keys.iter().for_each(|key| visit(key)),
            Op::Batch(batch) => {
                batch.watched.iter().for_each(|(key, _)| visit(key));
                batch.steps.iter().for_each(|step| step.each_key(visit));
            }
            Op::Once(once) => once.op.each_key(visit),
            Op::Len | Op::Clear | Op::Survey | Op::Scan(_) | Op::Range(_) | Op::Wait { .. } => {}
        }
    }
}

/// An operation that takes effect once for a time, however often it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Once {
    /// What its client calls it.
    pub id: Bytes,
    /// Of the whole command, so that another one under the same id is noticed; see `part/once.rs`.
    pub fingerprint: u64,
    /// [`Op::Key`], [`Op::Batch`], [`Op::Len`] or [`Op::Clear`].
    pub op: Op,
}

/// An atomic batch: it changes nothing where a watched key is not shown unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Keys and the versions they must still have.
    pub watched: Vec<(Bytes, Version)>,
    /// [`Op::Key`], [`Op::Len`] and [`Op::Clear`] only.
    pub steps: Vec<Op>,
}

/// A step of a walk over a shard's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scan {
    /// Where the last page ended.
    pub cursor: Cursor,
    /// About how many records to look at.
    pub count: u32,
}

/// What to do with one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Its value.
    Get,
    /// Its value from byte `start` to `end`, both included, negative from the end.
    GetRange(i64, i64),
    /// Its value; then its expiry is changed.
    GetExpire(Expiry),
    /// Its value; then it is removed.
    GetDelete,
    /// 1 if it is there, else 0.
    Exists,
    /// The length of its value, 0 if it is not there.
    Length,
    /// What is left of its life.
    TimeToLive(TimeUnit),
    /// What WATCH remembers.
    Version,
    /// Set it.
    Set(Set),
    /// Remove it: 1 if it was there, else 0.
    Delete,
    /// Add to the decimal number it holds (0 if it is not there).
    Add(i64),
    /// Append to its value.
    Append(Bytes),
    /// Write into its value from this byte on, after zeros where it is shorter.
    SetRange(u64, Bytes),
    /// Change when it expires: 1 if done, 0 if it is not there or the condition fails.
    Expire(Expiry, ExpireIf),
    /// Let it live for ever: 1 if it had a deadline, else 0.
    Persist,
}

/// A SET with all its options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Set {
    /// The new value.
    pub value: Bytes,
    /// When it expires.
    pub expiry: Expiry,
    /// Whether the key must be there, or must not.
    pub only_if: Option<Presence>,
    /// Answer with the old value.
    pub get: bool,
}

/// A condition on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// It must be there.
    Present,
    /// It must not be there.
    Absent,
}

/// When a record stops to be. Relative times become absolute where the operation is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// Never.
    #[default]
    Never,
    /// As before.
    Keep,
    /// Milliseconds after the operation is ordered.
    After(u64),
    /// At this time, in ms since 1970.
    At(u64),
}

/// A condition on an EXPIRE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpireIf {
    /// None.
    #[default]
    Always,
    /// Only where there is no deadline yet.
    None,
    /// Only where there is one.
    Some,
    /// Only to a later one; no deadline is the latest.
    Later,
    /// Only to an earlier one.
    Earlier,
}

/// How TTL, PTTL, EXPIRETIME and PEXPIRETIME answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// Seconds left.
    Seconds,
    /// Milliseconds left.
    Millis,
    /// Unix time in seconds.
    UnixSeconds,
    /// Unix time in milliseconds.
    UnixMillis,
}

/// What WATCH remembers of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// It was written at this place.
    Written(Position),
    /// It was not there when the replica had applied all up to this place.
    AbsentAt(Position),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done as asked.
    Done,
    /// A value.
    Value(Bytes),
    /// No such key, or the condition did not hold.
    Nil,
    /// A number.
    Integer(i64),
    /// What a batch's steps answered.
    Many(Vec<Outcome>),
    /// What a run's steps answered.
    Run(Answers),
    /// A watched key changed; the batch did nothing.
    Aborted,
    /// What to remember for WATCH.
    Version(Version),
    /// Keys, and where to go on.
    Page(Vec<Bytes>, Cursor),
    /// A page of a range.
    Ranged(Box<Ranged>),
    /// No page, as these records in it, with their deadlines, are dead by the clock here: who orders must judge.
    Dead(Vec<(Bytes, u64)>),
    /// Not done, or not known to be done.
    Failed(Failure),
}

/// Why something was not done, and what the client should do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// What the client should do.
    pub kind: FailureKind,
    /// One line for people: what happened, to what, what to do.
    pub text: Cow<'static, str>,
}

/// The few kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// Had no effect; the same request may succeed later.
    Retry,
    /// Nobody knows whether it took effect.
    Uncertain,
    /// The request is wrong and stays wrong.
    Invalid,
    /// This table, mode or engine cannot do it.
    Unsupported,
    /// The store failed.
    Data,
    /// There is no memory for it; it had no effect.
    Full,
    /// Its keys are another shard's now; it had no effect. Clients are not told: it is sent there.
    Moved,
}

impl Outcome {
    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        match self {
            Outcome::Value(value) => value.len(),
            Outcome::Run(answers) => answers.packed().len(),
            Outcome::Many(outcomes) => outcomes.iter().map(|outcome| 32 + outcome.size()).sum(),
            Outcome::Ranged(ranged) => ranged.size(),
            Outcome::Page(keys, _) => keys.iter().map(|key| 32 + key.len()).sum(),
            Outcome::Dead(keys) => keys.iter().map(|(key, _)| 32 + key.len()).sum(),
            _ => 0,
        }
    }

    /// A copy that holds its own bytes only: a slice keeps the whole buffer that it was cut from.
    #[must_use]
    pub fn detached(&self) -> Outcome {
        match self {
            Outcome::Value(value) => Outcome::Value(Bytes::copy_from_slice(value)),
            Outcome::Many(outcomes) => Outcome::Many(outcomes.iter().map(Outcome::detached).collect()),
            Outcome::Run(answers) => Outcome::Run(Answers::new(Bytes::copy_from_slice(answers.packed()))),
            other => other.clone(),
        }
    }
}

impl Failure {
    /// An outcome that failed.
    pub fn outcome(kind: FailureKind, text: impl Into<Cow<'static, str>>) -> Outcome {
        Outcome::Failed(Failure { kind, text: text.into() })
    }
}

impl Op {
    /// An operation that does nothing but to mark a place in the history.
    pub fn fence() -> Op {
        Op::Expire(Vec::new())
    }

    /// Whether it only marks a place.
    pub fn is_fence(&self) -> bool {
        matches!(self, Op::Expire(keys) if keys.is_empty())
    }

    /// Whether it removes everything in its shard, so that it is about parts of it too.
    pub fn clears(&self) -> bool {
        match self {
            Op::Clear => true,
            Op::Once(once) => once.op.clears(),
            Op::Batch(batch) => batch.steps.iter().any(Op::clears),
            _ => false,
        }
    }

    /// Whether all of its keys lie before this one; it need not name any.
    pub fn lies_before(&self, end: &[u8]) -> bool {
        let mut before = true;
        self.each_key(&mut |key| before &= key < end);
        before
    }

    /// Whether it may change the shard, so that only the replica that orders can take it.
    pub fn is_write(&self) -> bool {
        match self {
            Op::Key(_, action) => action.is_write(),
            Op::Run(run) => run.is_write(),
            Op::Batch(batch) => !batch.watched.is_empty() || batch.steps.iter().any(Op::is_write),
            // What it answers is remembered, also where it only reads.
            Op::Clear | Op::Survey | Op::Expire(_) | Op::Once(_) => true,
            Op::Len | Op::Scan(_) | Op::Range(_) | Op::Wait { .. } => false,
        }
    }

    /// Whether it may need more memory than there is now.
    pub fn grows(&self) -> bool {
        match self {
            Op::Key(_, action) => action.grows(),
            Op::Run(run) => run.grows(),
            Op::Batch(batch) => batch.steps.iter().any(Op::grows),
            Op::Once(once) => once.op.grows(),
            Op::Clear
            | Op::Survey
            | Op::Expire(_)
            | Op::Len
            | Op::Scan(_)
            | Op::Range(_)
            | Op::Wait { .. } => false,
        }
    }

    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        match self {
            Op::Key(key, Action::Set(set)) => key.len() + set.value.len(),
            Op::Key(key, Action::Append(value) | Action::SetRange(_, value)) => key.len() + value.len(),
            Op::Key(key, _) => key.len(),
            Op::Batch(batch) => {
                let watched: usize = batch.watched.iter().map(|(key, _)| 64 + key.len()).sum();
                watched + batch.steps.iter().map(|step| 64 + step.size()).sum::<usize>()
            }
            Op::Run(run) => run.size(),
            Op::Once(once) => 64 + once.id.len() + once.op.size(),
            Op::Expire(keys) => keys.iter().map(|key| 16 + key.len()).sum(),
            Op::Range(range) => range.size(),
            Op::Len | Op::Clear | Op::Survey | Op::Scan(_) | Op::Wait { .. } => 0,
        }
    }
}

impl Action {
    /// Whether it may change the record.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Action::Get
                | Action::GetRange(..)
                | Action::Exists
                | Action::Length
                | Action::TimeToLive(_)
                | Action::Version
        )
    }

    /// Whether it may need more memory than there is now.
    pub fn grows(&self) -> bool {
        matches!(self, Action::Set(_) | Action::Add(_) | Action::Append(_) | Action::SetRange(..))
    }

    /// Whether it may answer with a value.
    pub fn answers_value(&self) -> bool {
        matches!(
            self,
            Action::Get
                | Action::GetRange(..)
                | Action::GetExpire(_)
                | Action::GetDelete
                | Action::Set(Set { get: true, .. })
        )
    }

    /// Whether it depends on the record that is there: a plain SET does not, so it costs no read.
    pub fn needs_old(&self) -> bool {
        !matches!(self, Action::Set(Set { expiry, only_if: None, get: false, .. }) if *expiry != Expiry::Keep)
    }
}

/// The record that is there, seen from an operation.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    /// The user's value.
    pub value: &'a [u8],
    /// When it expires, in ms since 1970.
    pub deadline_ms: Option<u64>,
    /// Where it was written.
    pub version: Position,
}

/// What surrounds an operation.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The ordering replica's wall clock.
    pub unix_ms: u64,
    /// All entries up to here are applied.
    pub position: Position,
    /// The largest value that may come to be.
    pub value_bytes_max: usize,
}

/// What becomes of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// It is this from now on.
    Put {
        /// The user's value.
        value: Bytes,
        /// When it expires, in ms since 1970.
        deadline_ms: Option<u64>,
    },
    /// It is gone.
    Delete,
}

/// Decides `action` on a record that is alive (`old`), or not there. Values in the answer are cut
/// from `arena`, which costs no allocation for each.
pub fn evaluate(
    action: &Action,
    old: Option<Old<'_>>,
    context: &Context,
    arena: &mut BytesMut,
) -> (Outcome, Change) {
    let Some(old) = old else { return evaluate_absent(action, context) };
    match action {
        Action::Get => (value(old.value, arena), Change::None),
        Action::GetRange(start, end) => (value(range(old.value, *start, *end), arena), Change::None),
        Action::GetExpire(expiry) => {
            let change =
                if *expiry == Expiry::Keep { Change::None } else { put_old(old, *expiry, context, arena) };
            (value(old.value, arena), change)
        }
        Action::GetDelete => (value(old.value, arena), Change::Delete),
        Action::Exists => (Outcome::Integer(1), Change::None),
        Action::Length => (Outcome::Integer(old.value.len() as i64), Change::None),
        Action::TimeToLive(unit) => (time_to_live(old.deadline_ms, *unit, context.unix_ms), Change::None),
        Action::Version => (Outcome::Version(Version::Written(old.version)), Change::None),
        Action::Set(set) => evaluate_set(set, Some(old), context, arena),
        Action::Delete => (Outcome::Integer(1), Change::Delete),
        Action::Add(by) => add(parse_integer(old.value), *by, old.deadline_ms, arena),
        Action::Append(tail) => splice(old.value, old.value.len(), tail, old.deadline_ms, context, arena),
        Action::SetRange(_, part) if part.is_empty() => {
            (Outcome::Integer(old.value.len() as i64), Change::None)
        }
        Action::SetRange(at, part) => splice(old.value, to_usize(*at), part, old.deadline_ms, context, arena),
        Action::Expire(expiry, only_if) => evaluate_expire(old, *expiry, *only_if, context, arena),
        Action::Persist if old.deadline_ms.is_none() => (Outcome::Integer(0), Change::None),
        Action::Persist => (Outcome::Integer(1), put_old(old, Expiry::Never, context, arena)),
    }
}

fn evaluate_absent(action: &Action, context: &Context) -> (Outcome, Change) {
    let arena = &mut BytesMut::new();
    match action {
        Action::Get | Action::GetExpire(_) | Action::GetDelete => (Outcome::Nil, Change::None),
        Action::GetRange(..) => (Outcome::Value(Bytes::new()), Change::None),
        Action::Exists | Action::Length | Action::Delete | Action::Expire(..) | Action::Persist => {
            (Outcome::Integer(0), Change::None)
        }
        Action::TimeToLive(_) => (Outcome::Integer(-2), Change::None),
        Action::Version => (Outcome::Version(Version::AbsentAt(context.position)), Change::None),
        Action::Set(set) => evaluate_set(set, None, context, arena),
        Action::Add(by) => add(Some(0), *by, None, arena),
        Action::Append(tail) => splice(&[], 0, tail, None, context, arena),
        Action::SetRange(_, part) if part.is_empty() => (Outcome::Integer(0), Change::None),
        Action::SetRange(at, part) => splice(&[], to_usize(*at), part, None, context, arena),
    }
}

fn evaluate_set(
    set: &Set,
    old: Option<Old<'_>>,
    context: &Context,
    arena: &mut BytesMut,
) -> (Outcome, Change) {
    let allowed = match set.only_if {
        None => true,
        Some(Presence::Present) => old.is_some(),
        Some(Presence::Absent) => old.is_none(),
    };
    let outcome = match (set.get, old) {
        (true, Some(old)) => value(old.value, arena),
        (true, None) => Outcome::Nil,
        (false, _) if allowed => Outcome::Done,
        (false, _) => Outcome::Nil,
    };
    if !allowed {
        return (outcome, Change::None);
    }
    let deadline_ms = deadline(set.expiry, old.and_then(|old| old.deadline_ms), context.unix_ms);
    (outcome, put(set.value.clone(), deadline_ms, context.unix_ms))
}

fn evaluate_expire(
    old: Old<'_>,
    expiry: Expiry,
    only_if: ExpireIf,
    context: &Context,
    arena: &mut BytesMut,
) -> (Outcome, Change) {
    let new = deadline(expiry, old.deadline_ms, context.unix_ms).unwrap_or(u64::MAX);
    let allowed = match only_if {
        ExpireIf::Always => true,
        ExpireIf::None => old.deadline_ms.is_none(),
        ExpireIf::Some => old.deadline_ms.is_some(),
        ExpireIf::Later => old.deadline_ms.is_some_and(|now| new > now),
        ExpireIf::Earlier => old.deadline_ms.is_none_or(|now| new < now),
    };
    if allowed {
        (Outcome::Integer(1), put_old(old, expiry, context, arena))
    } else {
        (Outcome::Integer(0), Change::None)
    }
}

/// The same value under another expiry.
fn put_old(old: Old<'_>, expiry: Expiry, context: &Context, arena: &mut BytesMut) -> Change {
    let deadline_ms = deadline(expiry, old.deadline_ms, context.unix_ms);
    put(cut(old.value, arena), deadline_ms, context.unix_ms)
}

/// A put that is already past its deadline is a delete.
fn put(value: Bytes, deadline_ms: Option<u64>, unix_ms: u64) -> Change {
    match deadline_ms {
        Some(at) if at <= unix_ms => Change::Delete,
        _ => Change::Put { value, deadline_ms },
    }
}

fn deadline(expiry: Expiry, old: Option<u64>, unix_ms: u64) -> Option<u64> {
    match expiry {
        Expiry::Never => None,
        Expiry::Keep => old,
        Expiry::After(ms) => Some(unix_ms.saturating_add(ms)),
        Expiry::At(at) => Some(at),
    }
}

fn add(old: Option<i64>, by: i64, deadline_ms: Option<u64>, arena: &mut BytesMut) -> (Outcome, Change) {
    let Some(old) = old else {
        let text = "value is not an integer or out of range";
        return (Failure::outcome(FailureKind::Invalid, text), Change::None);
    };
    let Some(sum) = old.checked_add(by) else {
        let text = "increment or decrement would overflow";
        return (Failure::outcome(FailureKind::Invalid, text), Change::None);
    };
    let mut digits = [0; 20];
    let value = cut(format_integer(sum, &mut digits), arena);
    (Outcome::Integer(sum), Change::Put { value, deadline_ms })
}

/// `old` with `part` written over it from byte `at` on.
fn splice(
    old: &[u8],
    at: usize,
    part: &[u8],
    deadline_ms: Option<u64>,
    context: &Context,
    arena: &mut BytesMut,
) -> (Outcome, Change) {
    let len = old.len().max(at.saturating_add(part.len()));
    if len > context.value_bytes_max {
        let text = "string exceeds maximum allowed size (value-bytes-max)";
        return (Failure::outcome(FailureKind::Invalid, text), Change::None);
    }
    let before = &old[..old.len().min(at)];
    arena.reserve(len);
    arena.put_slice(before);
    arena.put_bytes(0, at - before.len());
    arena.put_slice(part);
    arena.put_slice(old.get(at + part.len()..).unwrap_or_default());
    (Outcome::Integer(len as i64), Change::Put { value: arena.split().freeze(), deadline_ms })
}

fn time_to_live(deadline_ms: Option<u64>, unit: TimeUnit, unix_ms: u64) -> Outcome {
    let Some(at) = deadline_ms else { return Outcome::Integer(-1) };
    let left = at.saturating_sub(unix_ms);
    Outcome::Integer(match unit {
        TimeUnit::Seconds => left.saturating_add(500) / 1000,
        TimeUnit::Millis => left,
        TimeUnit::UnixSeconds => at.saturating_add(500) / 1000,
        TimeUnit::UnixMillis => at,
    } as i64)
}

/// Redis's GETRANGE: both ends included, negative ones count from the end.
fn range(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    let place = |at: i64| if at < 0 { (len.saturating_add(at)).max(0) } else { at };
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let (start, end) = (place(start), place(end).min(len - 1));
    if len == 0 || start > end { &[] } else { &value[start as usize..=end as usize] }
}

fn to_usize(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn value(bytes: &[u8], arena: &mut BytesMut) -> Outcome {
    Outcome::Value(cut(bytes, arena))
}

/// A copy of `bytes`, cut from the arena.
fn cut(bytes: &[u8], arena: &mut BytesMut) -> Bytes {
    arena.extend_from_slice(bytes);
    arena.split().freeze()
}

/// The number that `text` is exactly: no sign `+`, no leading zeros, no spaces.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 || (digits[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?;
        number = if negative { number.checked_sub(digit)? } else { number.checked_add(digit)? };
    }
    Some(number)
}

/// The decimal digits of `number`, written at the end of `into`.
pub fn format_integer(number: i64, into: &mut [u8; 20]) -> &[u8] {
    let mut at = into.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        into[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        into[at] = b'-';
    }
    &into[at..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const NOW: Context = Context { unix_ms: 1_000_000, position: Position::ZERO, value_bytes_max: 64 };

    fn run(action: Action, old: Option<(&str, Option<u64>)>) -> (Outcome, Change) {
        let old = old.map(|(value, deadline_ms)| Old {
            value: value.as_bytes(),
            deadline_ms,
            version: Position::ZERO,
        });
        evaluate(&action, old, &NOW, &mut BytesMut::new())
    }

    fn put_of(value: &'static str, deadline_ms: Option<u64>) -> Change {
        Change::Put { value: Bytes::from_static(value.as_bytes()), deadline_ms }
    }

    fn set(expiry: Expiry, only_if: Option<Presence>, get: bool) -> Action {
        Action::Set(Set { value: Bytes::from_static(b"new"), expiry, only_if, get })
    }

    #[test]
    fn integers_are_read_as_strictly_as_redis_does() {
        for number in [0, 1, -1, 42, i64::MAX, i64::MIN, -9_000_000_000] {
            assert_eq!(parse_integer(number.to_string().as_bytes()), Some(number));
            assert_eq!(format_integer(number, &mut [0; 20]), number.to_string().as_bytes());
        }
        for wrong in ["", "-", "+1", " 1", "1 ", "01", "-0", "-01", "1.0", "9223372036854775808", "a"] {
            assert_eq!(parse_integer(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn set_obeys_its_conditions() {
        let done = Outcome::Done;
        assert_eq!(run(set(Expiry::Never, None, false), None), (done.clone(), put_of("new", None)));
        let absent = Some(Presence::Absent);
        assert_eq!(run(set(Expiry::Never, absent, false), Some(("a", None))), (Outcome::Nil, Change::None));
        let present = Some(Presence::Present);
        assert_eq!(run(set(Expiry::Never, present, false), None), (Outcome::Nil, Change::None));
        assert_eq!(
            run(set(Expiry::Keep, present, true), Some(("a", Some(2_000_000)))),
            (Outcome::Value(Bytes::from_static(b"a")), put_of("new", Some(2_000_000)))
        );
        assert_eq!(run(set(Expiry::After(5), None, false), None).1, put_of("new", Some(1_000_005)));
        assert_eq!(run(set(Expiry::At(7), None, false), Some(("a", None))), (done, Change::Delete));
    }

    #[test]
    fn add_counts_and_refuses() {
        assert_eq!(run(Action::Add(5), None), (Outcome::Integer(5), put_of("5", None)));
        let old = Some(("10", Some(2_000_000)));
        assert_eq!(run(Action::Add(-11), old), (Outcome::Integer(-1), put_of("-1", Some(2_000_000))));
        assert!(matches!(run(Action::Add(1), Some(("x", None))), (Outcome::Failed(_), Change::None)));
        let top = i64::MAX.to_string();
        assert!(matches!(run(Action::Add(1), Some((&top, None))), (Outcome::Failed(_), Change::None)));
    }

    #[test]
    fn append_and_set_range_are_bounded() {
        let tail = |n: usize| Bytes::from("x".repeat(n));
        assert_eq!(run(Action::Append(tail(2)), Some(("a", None))).1, put_of("axx", None));
        assert!(matches!(run(Action::Append(tail(65)), None), (Outcome::Failed(_), Change::None)));
        assert_eq!(run(Action::SetRange(2, tail(1)), Some(("abcd", None))).1, put_of("abxd", None));
        assert_eq!(run(Action::SetRange(2, tail(1)), None).1, put_of("\0\0x", None));
        assert!(matches!(run(Action::SetRange(u64::MAX, tail(1)), None), (Outcome::Failed(_), Change::None)));
    }

    #[test]
    fn ranges_count_from_both_ends() {
        let cases = [((0, -1), "hello"), ((1, 2), "el"), ((-3, -1), "llo"), ((-1, -3), ""), ((5, 9), "")];
        for ((start, end), expected) in cases {
            assert_eq!(range(b"hello", start, end), expected.as_bytes(), "{start}..={end}");
        }
        assert_eq!(range(b"hello", -100, 100), b"hello");
        assert_eq!(range(b"", 0, -1), b"");
    }

    #[test]
    fn expire_obeys_its_conditions() {
        let later = Expiry::At(3_000_000);
        let old = Some(("a", Some(2_000_000)));
        for (only_if, with, without) in [
            (ExpireIf::Always, 1, 1),
            (ExpireIf::None, 0, 1),
            (ExpireIf::Some, 1, 0),
            (ExpireIf::Later, 1, 0),
            (ExpireIf::Earlier, 0, 1),
        ] {
            assert_eq!(run(Action::Expire(later, only_if), old).0, Outcome::Integer(with), "{only_if:?}");
            let got = run(Action::Expire(later, only_if), Some(("a", None))).0;
            assert_eq!(got, Outcome::Integer(without), "{only_if:?}");
        }
        assert_eq!(run(Action::Expire(Expiry::At(1), ExpireIf::Always), old).1, Change::Delete);
        assert_eq!(run(Action::Persist, old), (Outcome::Integer(1), put_of("a", None)));
        assert_eq!(run(Action::TimeToLive(TimeUnit::Seconds), old).0, Outcome::Integer(1000));
        assert_eq!(run(Action::TimeToLive(TimeUnit::Seconds), None).0, Outcome::Integer(-2));
    }
}
