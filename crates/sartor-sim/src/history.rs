//! Histories of concurrent clients of one key, and whether one order explains them.
//!
//! ```text
//!  client 1   ├──SET 7──┤              ├──GET 7──┤
//!  client 2        ├───SET 8 (nobody answered) ─ ─ ─ ─ ─ ─ ▶ may take effect at any later time, or never
//! ```
//!
//! Just-in-time linearization (Lowe, Testing for linearizability, 2017): go through the beginnings and ends in order of time
//! and keep every configuration that is still possible, which is what the key holds and which of the open calls took
//! effect. A call takes effect only when one that ends needs it. When a call ends and no configuration
//! lets it have taken effect with the answer it got, no order explains the history.
//!
//! The simulator knows the order and does not need this; clients of real processes do.

use std::collections::{BTreeMap, VecDeque};

/// What a key holds, if anything. Values are unique, so numbers do; a counter holds itself.
pub type Held = Option<u64>;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// What is there?
    Get,
    /// Put it there.
    Set(u64),
    /// Put it there if nothing is.
    SetAbsent(u64),
    /// Put it there and tell what was.
    Swap(u64),
    /// Remove it and tell whether anything was there.
    Delete,
    /// Remove it and tell what was there.
    Take,
    /// Add one; nothing counts as 0.
    Increment,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// This was or is there.
    Value(Held),
    /// Whether it did something.
    Bit(bool),
}

/// What a client knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect at one moment of its time.
    Answered(Answer),
    /// It had no effect and never will have.
    Refused,
    /// It takes effect once at any time after its begin, or never.
    Unknown,
}

/// A call of a client on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who asked.
    pub client: u32,
    /// What.
    pub ask: Ask,
    /// What became of it.
    pub outcome: Outcome,
    /// When it was asked, by a steady clock.
    pub start_us: u64,
    /// When the client knew.
    pub end_us: u64,
}

impl Ask {
    /// The answer of a key that holds this, and what it holds then.
    pub fn apply(self, held: Held) -> (Answer, Held) {
        match self {
            Ask::Get => (Answer::Value(held), held),
            Ask::Set(value) => (Answer::Done, Some(value)),
            Ask::SetAbsent(value) => (Answer::Bit(held.is_none()), held.or(Some(value))),
            Ask::Swap(value) => (Answer::Value(held), Some(value)),
            Ask::Delete => (Answer::Bit(held.is_some()), None),
            Ask::Take => (Answer::Value(held), None),
            Ask::Increment => {
                let sum = held.unwrap_or(0) + 1;
                (Answer::Value(Some(sum)), Some(sum))
            }
        }
    }

    /// What it puts there.
    pub fn value(self) -> Held {
        match self {
            Ask::Set(value) | Ask::SetAbsent(value) | Ask::Swap(value) => Some(value),
            _ => None,
        }
    }
}

impl Call {
    /// Whether it is known to have changed what the key holds.
    pub fn has_changed(&self) -> bool {
        match (self.ask, self.outcome) {
            (Ask::Get, _) | (_, Outcome::Refused | Outcome::Unknown) => false,
            (Ask::SetAbsent(_) | Ask::Delete, Outcome::Answered(answer)) => answer == Answer::Bit(true),
            (Ask::Take, Outcome::Answered(answer)) => answer != Answer::Value(None),
            _ => true,
        }
    }

    fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }
}

/// Why no order explains a history, or why none was looked for any longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The place of the call that cannot have got its answer.
    pub call: usize,
    /// What is wrong, as far as it is known.
    pub why: String,
}

/// Configurations that are looked at in all for one ending call, before giving up.
const LOOKED_AT_MAX: usize = 1_000_000;
/// Calls that are open at the same time.
const OPEN_MAX: usize = 128;

/// The key's content and the open calls that took effect.
#[derive(Clone, Copy)]
struct Configuration {
    held: Held,
    done: u128,
}

/// Looks for an order that explains the history of a key which held nothing before.
pub fn explain(calls: &[Call]) -> Result<(), Violation> {
    // That is plainer said.
    invented(calls)?;
    let mut search = Search::new(calls);
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let asks_only = call.ask == Ask::Get && call.is_unknown();
        if call.outcome == Outcome::Refused || asks_only {
            continue;
        }
        moments.push((call.start_us, false, index));
        if !call.is_unknown() {
            moments.push((call.end_us, true, index));
        }
    }
    // Where a begin and an end fall together, the calls overlap.
    moments.sort_unstable();
    for (_, is_end, index) in moments {
        let done = if is_end { search.end(index) } else { search.begin(index) };
        done.map_err(|why| Violation { call: index, why })?;
    }
    Ok(())
}

struct Search<'a> {
    calls: &'a [Call],
    /// The open calls, each at its bit.
    open: Vec<Option<usize>>,
    /// Bits of calls without an answer: they need not ever take effect.
    unknown: u128,
    possible: Minimal,
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Call]) -> Search<'a> {
        let mut possible = Minimal::default();
        possible.insert(Configuration { held: None, done: 0 }, 0);
        Search { calls, open: Vec::new(), unknown: 0, possible }
    }

    fn begin(&mut self, index: usize) -> Result<(), String> {
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if free == OPEN_MAX {
            return Err(format!("undecided: more than {OPEN_MAX} calls without an answer"));
        }
        if free == self.open.len() {
            self.open.push(None);
        }
        self.open[free] = Some(index);
        if self.calls[index].is_unknown() {
            self.unknown |= 1 << free;
        }
        Ok(())
    }

    fn end(&mut self, index: usize) -> Result<(), String> {
        let bit = self.open.iter().position(|open| *open == Some(index)).unwrap_or(0);
        let mut next = Minimal::default();
        let mut seen = Minimal::default();
        let mut looked_at = 0;
        // The first to be looked at used up the fewest calls, so that most of the others need no look.
        let mut queue = VecDeque::from(self.possible.all());
        while let Some(one) = queue.pop_front() {
            if one.done & (1 << bit) != 0 {
                next.insert(Configuration { done: one.done & !(1 << bit), ..one }, self.unknown);
                continue;
            }
            if !seen.insert(one, self.unknown) {
                continue;
            }
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX {
                return Err("undecided: too many calls without an answer".into());
            }
            self.successors(one, &mut queue);
        }
        self.open[bit] = None;
        self.possible = next;
        if self.possible.is_empty() {
            return Err("no order explains its answer".into());
        }
        Ok(())
    }

    /// What is possible after one more of the open calls took effect.
    fn successors(&self, one: Configuration, into: &mut VecDeque<Configuration>) {
        for (bit, index) in self.open.iter().enumerate() {
            let Some(index) = *index else { continue };
            if one.done & (1 << bit) != 0 {
                continue;
            }
            let call = &self.calls[index];
            let (answer, held) = call.ask.apply(one.held);
            // Who has no answer and changes nothing may as well not be.
            let fits = match call.outcome {
                Outcome::Answered(given) => given == answer,
                _ => held != one.held,
            };
            if fits {
                into.push_back(Configuration { held, done: one.done | 1 << bit });
            }
        }
    }
}

/// Configurations of which none is like another one but with more calls used up that nobody has to have. Whatever
/// the other can become, the one can too.
#[derive(Default)]
struct Minimal {
    groups: BTreeMap<(Held, u128), Vec<u128>>,
}

impl Minimal {
    /// Whether that was new.
    fn insert(&mut self, one: Configuration, unknown: u128) -> bool {
        let group = self.groups.entry((one.held, one.done & !unknown)).or_default();
        let used = one.done & unknown;
        if group.iter().any(|other| other & used == *other) {
            return false;
        }
        group.retain(|other| used & other != used);
        group.push(used);
        true
    }

    fn all(&self) -> Vec<Configuration> {
        let of = |((held, known), group): (&(Held, u128), &Vec<u128>)| {
            let (held, known) = (*held, *known);
            group.iter().map(move |used| Configuration { held, done: known | used }).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(of).collect()
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// The newest acknowledged changes that are missing in what the key holds in the end. None of them is
/// named wrongly, whatever became of calls without an answer; of a counter their number is right, and they are those that
/// others answered again.
pub fn lost(calls: &[Call], last: Held) -> Vec<usize> {
    let changed = || calls.iter().enumerate().filter(|(_, call)| call.has_changed());
    if calls.iter().any(|call| call.ask == Ask::Increment) {
        return lost_counts(calls, last.unwrap_or(0));
    }
    // When that what is there now had come there, at the latest.
    let settled_us = match last {
        Some(value) => calls.iter().find(|call| call.ask.value() == Some(value)).and_then(end_us),
        None => {
            let erases = |call: &&Call| matches!(call.ask, Ask::Delete | Ask::Take);
            let mut erasers = calls.iter().filter(erases).filter(|c| c.has_changed() || c.is_unknown());
            erasers.try_fold(0, |latest, call| Some(end_us(call)?.max(latest)))
        }
    };
    let Some(settled_us) = settled_us else { return Vec::new() };
    let newest =
        changed().filter(|(_, call)| call.start_us > settled_us).max_by_key(|(_, call)| call.start_us);
    newest.map(|(index, _)| index).into_iter().collect()
}

fn lost_counts(calls: &[Call], last: u64) -> Vec<usize> {
    let sum = |index: &usize| match calls[*index].outcome {
        Outcome::Answered(Answer::Value(Some(sum))) => sum,
        _ => 0,
    };
    let mut done: Vec<usize> = (0..calls.len()).filter(|index| calls[*index].has_changed()).collect();
    let missing = done.len().saturating_sub(last as usize);
    done.sort_by_key(|index| calls[*index].end_us);
    let mut smallest = last + 1;
    let mut undone = Vec::new();
    for index in done.iter().rev() {
        // What counted no further later on had forgotten this one.
        if sum(index) >= smallest {
            undone.push(*index);
        }
        smallest = smallest.min(sum(index));
    }
    let others = done.iter().rev().filter(|index| !undone.contains(index)).copied();
    let others: Vec<usize> = others.collect();
    undone.into_iter().chain(others).take(missing).collect()
}

/// Looks for answers that tell of a value that was never written, or whose write was refused. That must hold
/// in every mode.
pub fn invented(calls: &[Call]) -> Result<(), Violation> {
    if calls.iter().any(|call| call.ask == Ask::Increment) {
        return Ok(());
    }
    let written: BTreeMap<u64, &Call> =
        calls.iter().filter_map(|call| Some((call.ask.value()?, call))).collect();
    for (index, call) in calls.iter().enumerate() {
        let Outcome::Answered(Answer::Value(Some(value))) = call.outcome else { continue };
        let why = match written.get(&value) {
            None => "it tells of a value that nobody ever wrote",
            Some(writer) if writer.outcome == Outcome::Refused => {
                "it tells of a value whose write was refused"
            }
            Some(writer) if writer.start_us > call.end_us => "it tells of a value before that was written",
            Some(_) => continue,
        };
        return Err(Violation { call: index, why: why.into() });
    }
    Ok(())
}

/// Looks for a client that was shown something, then something else, and then the first again. That must not be where
/// all see the same order, each of them some place of it and never an earlier one; unless it was in an excused time.
pub fn went_back(calls: &[Call], excused: impl Fn(u64, u64) -> bool) -> Result<(), Violation> {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|index| (calls[*index].start_us, calls[*index].end_us));
    // What each client saw last, and when it saw each value for the last time.
    let mut now: BTreeMap<u32, u64> = BTreeMap::new();
    let mut before: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for index in order {
        let call = &calls[index];
        let seen = match call.outcome {
            Outcome::Answered(Answer::Value(Some(value))) => value,
            _ => continue,
        };
        let last = now.insert(call.client, seen);
        let earlier = before.insert((call.client, seen), call.start_us);
        if let Some(from_us) = earlier.filter(|from_us| last != Some(seen) && !excused(*from_us, call.end_us))
        {
            let why = format!(
                "it was shown to the same client {} µs before, and then another",
                call.start_us - from_us
            );
            return Err(Violation { call: index, why });
        }
    }
    Ok(())
}

fn end_us(call: &Call) -> Option<u64> {
    (!call.is_unknown()).then_some(call.end_us)
}
