//! Users switch the table to other modes; when which promise held.

use super::splits::bound;
use super::{Happening, World};
use crate::plan::{Fault, FaultKind};
use sartor_core::controlet::{Promise, mode};
use sartor_core::coordinator::switch::TableShape;
use sartor_core::coordinator::wish::Change;
use sartor_core::random::{Random, mix};
use sartor_core::routing::map::{ClusterMap, Table};
use sartor_core::time::{Micros, millis};

/// Who wants a switch says so again and again, as often as this.
const TRIES_MAX: u8 = 60;
const AGAIN_US: Micros = millis(100);

/// A user who wants another mode.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// At which node he says so.
    pub node: u16,
    /// How often he did.
    pub tries: u8,
    pub(super) what: What,
}

/// What he wants.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Mode(&'static str),
    Copies(u8),
    Datalet(&'static str),
    Split(u64),
}

/// What the table's modes promised when.
#[derive(Clone, Debug, Default)]
pub struct Modes {
    /// Times in which every shard was in a mode of that promise, from when users were told so.
    periods: Vec<(Promise, Micros, Micros)>,
    /// Switches that were decided.
    pub switched: u64,
}

impl Modes {
    /// Whether a request that was asked and answered then had that promise all the time.
    pub fn held(&self, promise: Promise, (from, to): (Micros, Micros)) -> bool {
        self.periods.iter().any(|(held, begin, end)| *held == promise && *begin <= from && to <= *end)
    }

    fn is_open(&self) -> bool {
        self.periods.last().is_some_and(|(_, _, end)| *end == Micros::MAX)
    }
}

impl What {
    /// The table as it would be then.
    fn reshape(self, table: &Table) -> TableShape {
        let shape = TableShape::of(table);
        match self {
            What::Mode(mode) => TableShape { mode: mode.into(), ..shape },
            What::Copies(copies) => TableShape { copies, ..shape },
            What::Datalet(datalet) => TableShape { datalet: datalet.into(), ..shape },
            What::Split(_) => shape,
        }
    }

    fn change(self, map: &ClusterMap) -> Change {
        match self {
            What::Split(key) => Change::Split(0, bound(key)),
            what => Change::Reshape(0, what.reshape(&map.tables[0])),
        }
    }
}

impl World {
    /// About one switch in eight seconds, often two in a row.
    pub(super) fn plan_switches(&mut self, seed: u64) {
        if !self.config.switches {
            return;
        }
        self.plan_reshapes(seed);
        for _ in 0..(self.config.run_ms / 8000).max(2) {
            let mut at = self.random.between(millis(500), millis(self.config.run_ms * 9 / 10));
            for _ in 0..self.random.between(1, 2) {
                let node = self.random.below(self.machines.len() as u64) as u16;
                let modes = self.config.modes;
                let mode = modes[self.random.below(modes.len() as u64) as usize].name;
                self.at(at, Happening::Wish(Wanted { node, tries: 0, what: What::Mode(mode) }));
                at += self.random.below(millis(1500));
            }
        }
    }

    /// In half of the seeds the table gets other numbers of copies, and other datalets, too. By chances of its own, so that
    /// all others mean what they meant.
    fn plan_reshapes(&mut self, seed: u64) {
        if !matches!(seed % 4, 0 | 3) {
            return;
        }
        let mut random = Random::new(mix(seed));
        let copies_max = (self.machines.len() as u64).min(3);
        for _ in 0..random.between(1, 4) {
            let at = random.between(millis(500), millis(self.config.run_ms * 9 / 10));
            let what = match random.below(3) {
                0 => What::Datalet(if random.percent(50) { "hash" } else { "tree" }),
                _ => What::Copies(random.between(1, copies_max) as u8),
            };
            let node = random.below(self.machines.len() as u64) as u16;
            self.at(at, Happening::Wish(Wanted { node, tries: 0, what }));
        }
    }

    pub(super) fn want(&mut self, wanted: Wanted) {
        let has = self.map().is_some_and(|map| wanted.what.change(map).is_in(map));
        if self.net.healed || wanted.tries == TRIES_MAX || (has && wanted.tries > 0) {
            return;
        }
        let now = self.now(wanted.node);
        if let Some(node) = &mut self.machines[usize::from(wanted.node)].node {
            let change = node.map().map(|map| wanted.what.change(map));
            change.into_iter().for_each(|change| node.wish(now, &change));
            self.plan_turn(wanted.node);
        }
        let again = Wanted { tries: wanted.tries + 1, ..wanted };
        self.at(self.now_us + AGAIN_US, Happening::Wish(again));
    }

    fn promise(&self, map: &ClusterMap) -> Option<Promise> {
        mode(self.config.modes, &map.tables[0].mode).map(|mode| mode.promise)
    }

    /// From the moment that the coordinator decides for another promise, the old one is not kept any more.
    pub(super) fn note_decided(&mut self, map: &ClusterMap) {
        let before = self.disk.as_ref().map(|old| &old.tables[0]);
        if before.is_some_and(|old| old.mode != map.tables[0].mode) {
            self.modes.switched += 1;
            self.maybe_forsake(map);
            self.maybe_isolate(map);
        }
        let (promise, now_us) = (self.promise(map), self.now_us);
        if let Some((held, _, end)) = self.modes.periods.last_mut()
            && promise != Some(*held)
        {
            *end = now_us.min(*end);
        }
    }

    /// Now and then all but one of a shard's members crash while it takes the new mode.
    fn maybe_forsake(&mut self, map: &ClusterMap) {
        if self.random.percent(15) && !self.net.healed {
            let shard = &map.shards[self.random.below(map.shards.len() as u64) as usize];
            let last = shard.members[self.random.below(shard.members.len() as u64) as usize];
            self.forsaken = Some((self.random.below(300), shard.id, last.node.0));
        }
    }

    /// Now and then a member does not hear of it for long, nor do the others hear it: it may go on only as the old mode allows.
    /// By chances of its own, and not in the seeds that are kept, which have fewer modes.
    fn maybe_isolate(&mut self, map: &ClusterMap) {
        let mut random = Random::new(mix(self.now_us));
        if self.config.modes.len() <= 2 || self.net.healed || !random.percent(10) {
            return;
        }
        let shard = &map.shards[random.below(map.shards.len() as u64) as usize];
        let member = shard.members[random.below(shard.members.len() as u64) as usize];
        let (at, until) = (self.now_us, self.now_us + random.between(millis(1000), millis(8000)));
        self.strike_with(Fault { at, until, kind: FaultKind::Isolation(member.node.0) });
    }

    /// From the moment that users are told that a switch is done, all is promised.
    pub(super) fn note_proven(&mut self) {
        let Some(coordinator) = self.coordinator.as_ref().filter(|_| !self.modes.is_open()) else { return };
        let promise = coordinator.map().and_then(|map| self.promise(map));
        let begins = self.modes.periods.is_empty();
        // What is decided and not kept yet may promise something else.
        if let Some(promise) = promise
            && self.writing.is_none()
            && (begins || coordinator.care().unproven.is_empty())
        {
            let from = if begins { 0 } else { self.now_us };
            self.modes.periods.push((promise, from, Micros::MAX));
        }
    }
}
