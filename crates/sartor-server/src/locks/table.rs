//! Who of this node holds a name, and who waits for it: decided without a clock, thread or socket of its own.
//!
//! ```text
//!             take ──▶ service ──▶ taken          give ──▶ service ──▶ given
//!  (none) ──▶ Asked ────────────▶ Ours ──────────────────▶ Leaving ───────────▶ (none), or Asked if somebody waits
//!                                  └ passed on from one to the next   └ failed ▶ Stuck, tried again
//! ```
//!
//! The service is asked for a name by one call at a time, however many of this node want it.

use super::{LockEvent, Refused, Settings, Token};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Between attempts to give back what could not be given back.
const STUCK_FOR: Duration = Duration::from_millis(500);

/// Whether a lock is held still, as far as its service knows.
type IsHeld = Box<dyn Fn(&Token) -> bool + Send>;

/// The names, and who asked for them.
pub(super) struct Table {
    settings: Settings,
    is_held: IsHeld,
    names: HashMap<Bytes, Name>,
    orders: HashMap<u64, Order>,
    alarms: BTreeMap<AlarmAt, Alarm>,
    /// Tells alarms of the same moment apart.
    numbered: u64,
    takes: VecDeque<Bytes>,
    gives: VecDeque<(Bytes, Token)>,
    events: Vec<LockEvent>,
    closed: bool,
}

/// The calls that the service is to be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job {
    Take(Bytes),
    Give(Bytes, Token),
}

type AlarmAt = (Instant, u64);

enum Alarm {
    /// This one has waited long enough.
    Late(u64),
    /// This name was kept long enough.
    Idle(Bytes),
    /// This name is to be given back once more.
    Stuck(Bytes),
}

/// What one asked for: the first `held` names are held, the next one is waited for.
struct Order {
    names: Vec<Bytes>,
    held: usize,
    write: bool,
    late: Option<AlarmAt>,
}

enum Stage {
    /// The service is, or will be, asked for it.
    Asked,
    /// It is this node's turn.
    Ours { token: Token, since: Instant, idle_since: Instant },
    /// It is, or will be, given back.
    Leaving,
    /// It could not be given back.
    Stuck,
}

struct Name {
    stage: Stage,
    holders: usize,
    /// The holder writes.
    write: bool,
    /// Nobody of this node had it yet in this turn.
    fresh: bool,
    /// How often it was passed on in this turn.
    passed: u32,
    /// When it was kept long enough.
    idle: Option<AlarmAt>,
    waiting: VecDeque<u64>,
    /// What the service may hold still of a turn that is over.
    left: Option<Token>,
}

impl Name {
    fn new() -> Name {
        Name {
            stage: Stage::Asked,
            holders: 0,
            write: false,
            fresh: true,
            passed: 0,
            idle: None,
            waiting: VecDeque::new(),
            left: None,
        }
    }

    /// Whether the turn may go on to the next one of this node.
    fn passes(&self, now: Instant, settings: &Settings, is_held: &IsHeld) -> bool {
        let Stage::Ours { token, since, .. } = &self.stage else { return false };
        self.fresh || (self.passed < settings.passes && now < *since + settings.turn && is_held(token))
    }
}

impl Table {
    /// An empty table.
    pub(super) fn new(settings: Settings, is_held: impl Fn(&Token) -> bool + Send + 'static) -> Table {
        Table {
            settings,
            is_held: Box::new(is_held),
            names: HashMap::new(),
            orders: HashMap::new(),
            alarms: BTreeMap::new(),
            numbered: 0,
            takes: VecDeque::new(),
            gives: VecDeque::new(),
            events: Vec::new(),
            closed: false,
        }
    }

    /// Somebody wants these names.
    pub(super) fn acquire(&mut self, now: Instant, id: u64, mut names: Vec<Bytes>, write: bool) {
        if self.closed || self.orders.contains_key(&id) {
            self.events.push(LockEvent::Failed { id });
            return;
        }
        // In the same order for all: nobody waits for one who waits for it.
        names.sort_unstable();
        names.dedup();
        let late = Some(self.alarm(now + self.settings.wait, Alarm::Late(id)));
        self.orders.insert(id, Order { names, held: 0, write, late });
        self.go_on(now, vec![id]);
    }

    /// Somebody gives back what it holds, or waits no longer.
    pub(super) fn release(&mut self, now: Instant, id: u64) {
        let Some(order) = self.orders.remove(&id) else { return };
        if let Some(late) = order.late {
            self.alarms.remove(&late);
        }
        for (index, name) in order.names.iter().take(order.held + 1).enumerate() {
            let Some(entry) = self.names.get_mut(name) else { continue };
            if index < order.held {
                entry.holders -= 1;
                if let Stage::Ours { idle_since, .. } = &mut entry.stage {
                    *idle_since = now;
                }
            } else if let Some(place) = entry.waiting.iter().position(|waits| *waits == id) {
                entry.waiting.remove(place);
            }
            // At once: who gets this name may wait for the next one, before that is given back.
            let granted = self.serve(now, name);
            self.go_on(now, granted);
        }
    }

    /// The service has answered a `Take`.
    pub(super) fn taken(&mut self, now: Instant, name: &Bytes, answer: Result<Token, Refused>) {
        let Some(entry) = self.names.get_mut(name) else { return };
        match answer {
            Ok(token) => {
                entry.stage = Stage::Ours { token, since: now, idle_since: now };
                (entry.fresh, entry.passed, entry.left) = (true, 0, None);
                let granted = self.serve(now, name);
                self.go_on(now, granted);
            }
            Err(refused) => {
                let lost = if refused.away { entry.waiting.drain(..).collect() } else { Vec::new() };
                match refused.residue.or(entry.left) {
                    Some(token) => self.give(name, token),
                    None => self.ended(name),
                }
                for id in lost {
                    self.fail(now, id);
                }
            }
        }
    }

    /// The service has answered a `Give`.
    pub(super) fn given(&mut self, now: Instant, name: &Bytes, token: Token, done: bool) {
        let Some(entry) = self.names.get_mut(name) else { return };
        entry.left = (!done).then_some(token);
        if done || !entry.waiting.is_empty() {
            self.ended(name);
        } else {
            entry.stage = Stage::Stuck;
            self.alarm(now + STUCK_FOR, Alarm::Stuck(name.clone()));
        }
    }

    /// What time brings.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(entry) = self.alarms.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Alarm::Late(id) => self.fail(now, id),
                Alarm::Idle(name) => {
                    let granted = self.serve(now, &name);
                    self.go_on(now, granted);
                }
                Alarm::Stuck(name) => {
                    let stuck = self.names.get(&name).filter(|entry| matches!(entry.stage, Stage::Stuck));
                    if let Some(token) = stuck.and_then(|entry| entry.left) {
                        self.give(&name, token);
                    }
                }
            }
        }
    }

    /// When time brings something.
    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.keys().next().map(|at| at.0)
    }

    /// Nobody is served any more; what is held is given back.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.takes.clear();
        self.alarms.clear();
        self.orders.clear();
        for (name, entry) in &mut self.names {
            entry.waiting.clear();
            entry.holders = 0;
            if let Stage::Ours { token, .. } = &entry.stage {
                self.gives.push_back((name.clone(), *token));
                entry.stage = Stage::Leaving;
            }
        }
    }

    /// The next call. What is given back goes first: others wait for it. Only that, if not `takes`.
    pub(super) fn next_job(&mut self, takes: bool) -> Option<Job> {
        if let Some((name, token)) = self.gives.pop_front() {
            return Some(Job::Give(name, token));
        }
        while takes && let Some(name) = self.takes.pop_front() {
            let Some(entry) = self.names.get(&name) else { continue };
            if !entry.waiting.is_empty() {
                return Some(Job::Take(name));
            }
            // Whoever wanted it has gone.
            match entry.left {
                Some(token) => return Some(self.leave(name, token)),
                None => self.names.remove(&name),
            };
        }
        None
    }

    /// How many calls wait: takes, gives.
    pub(super) fn jobs(&self) -> (usize, usize) {
        (self.takes.len(), self.gives.len())
    }

    /// What happened since the last call.
    pub(super) fn events(&mut self) -> Vec<LockEvent> {
        std::mem::take(&mut self.events)
    }

    /// These have what they waited for: on to their next names.
    fn go_on(&mut self, now: Instant, mut ids: Vec<u64>) {
        while let Some(id) = ids.pop() {
            let Some(order) = self.orders.get_mut(&id) else { continue };
            let Some(name) = order.names.get(order.held).cloned() else {
                if let Some(late) = order.late.take() {
                    self.alarms.remove(&late);
                }
                self.events.push(LockEvent::Held { id });
                continue;
            };
            let holds_others = order.held > 0;
            let entry = self.names.entry(name.clone());
            let is_new = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
            let entry = entry.or_insert_with(Name::new);
            entry.waiting.push_back(id);
            if is_new || matches!(entry.stage, Stage::Stuck) {
                entry.stage = Stage::Asked;
                match holds_others {
                    // Somebody may wait for those.
                    true => self.takes.push_front(name),
                    false => self.takes.push_back(name),
                }
            } else {
                ids.extend(self.serve(now, &name));
            }
        }
    }

    /// Lets in who may hold this name now, and gives it back if it is not to be kept.
    fn serve(&mut self, now: Instant, name: &Bytes) -> Vec<u64> {
        let mut granted = Vec::new();
        let Some(entry) = self.names.get_mut(name) else { return granted };
        let Stage::Ours { token, since, idle_since } = entry.stage else { return granted };
        if let Some(idle) = entry.idle.take() {
            self.alarms.remove(&idle);
        }
        // Readers that are let in together count once.
        let mut may_pass = None;
        while let Some(&id) = entry.waiting.front() {
            let Some(order) = self.orders.get_mut(&id) else {
                entry.waiting.pop_front();
                continue;
            };
            let fits = entry.holders == 0 || !(entry.write || order.write);
            if !fits || !*may_pass.get_or_insert_with(|| entry.passes(now, &self.settings, &self.is_held)) {
                break;
            }
            entry.waiting.pop_front();
            entry.holders += 1;
            entry.write = order.write;
            order.held += 1;
            granted.push(id);
        }
        if !granted.is_empty() {
            entry.passed += u32::from(!entry.fresh);
            entry.fresh = false;
        }
        if entry.holders > 0 {
            return granted;
        }
        let kept_until = (idle_since + self.settings.hold).min(since + self.settings.turn);
        let keeps =
            entry.waiting.is_empty() && now < kept_until && entry.passes(now, &self.settings, &self.is_held);
        if !keeps {
            self.give(name, token);
            return granted;
        }
        let idle = self.alarm(kept_until, Alarm::Idle(name.clone()));
        if let Some(entry) = self.names.get_mut(name) {
            entry.idle = Some(idle);
        }
        granted
    }

    fn give(&mut self, name: &Bytes, token: Token) {
        let Job::Give(name, token) = self.leave(name.clone(), token) else { return };
        self.gives.push_back((name, token));
    }

    fn leave(&mut self, name: Bytes, token: Token) -> Job {
        if let Some(entry) = self.names.get_mut(&name) {
            entry.stage = Stage::Leaving;
        }
        Job::Give(name, token)
    }

    /// The turn is over: the next one, if somebody waits.
    fn ended(&mut self, name: &Bytes) {
        match self.names.get_mut(name) {
            Some(entry) if !entry.waiting.is_empty() => {
                entry.stage = Stage::Asked;
                self.takes.push_back(name.clone());
            }
            _ => drop(self.names.remove(name)),
        }
    }

    fn fail(&mut self, now: Instant, id: u64) {
        if self.orders.contains_key(&id) {
            self.release(now, id);
            self.events.push(LockEvent::Failed { id });
        }
    }

    fn alarm(&mut self, at: Instant, what: Alarm) -> AlarmAt {
        self.numbered += 1;
        self.alarms.insert((at, self.numbered), what);
        (at, self.numbered)
    }
}

#[cfg(test)]
mod tests;
