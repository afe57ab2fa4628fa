//! Faults begin and end, at their time or in the middle of a repair.

use super::{Happening, World};
use crate::met::meet;
use crate::plan::{Blow, Fault, FaultKind, Target, Way};
use sartor_core::coordinator::COORDINATOR;
use sartor_core::ids::ShardId;
use sartor_core::keeper::Keeper;
use sartor_core::node::Node;
use sartor_core::routing::map::ClusterMap;
use sartor_core::stores::Stores;
use sartor_core::time::millis;
use std::sync::atomic::Ordering;

impl World {
    /// Says what happens, if that was asked for.
    pub(super) fn tell(&self, what: impl Fn() -> String) {
        if self.config.trace {
            println!("{:>6} ms  {}", self.now_us / 1000, what());
        }
    }

    pub(super) fn begin(&mut self, index: usize) {
        let Fault { kind, until, .. } = self.plan.faults[index];
        self.tell(|| format!("{kind:?} until {}", until / 1000));
        self.faults += 1;
        meet(self, kind);
        self.net.begin(kind);
        match kind {
            FaultKind::Pause(node) => {
                self.machines[usize::from(node)].paused.get_or_insert_with(Vec::new);
            }
            FaultKind::Crash(node) => self.crash(node),
            FaultKind::Blackout => {
                let map = self.writing.as_ref().or(self.disk.as_ref());
                let shards = map.into_iter().flat_map(|map| &map.shards);
                self.blackout = shards.map(|shard| (shard.id, shard.clone())).collect();
                self.blackout_life = self.coordinator_life;
                (0..self.machines.len() as u16).for_each(|node| self.crash(node));
            }
            FaultKind::StoreLoss(node) => {
                let machine = &self.machines[usize::from(node)];
                machine.mishaps.losses.fetch_add(1, Ordering::Relaxed);
                machine.disk.wipe();
            }
            FaultKind::StoreFailure(node) => {
                self.machines[usize::from(node)].mishaps.fails.store(true, Ordering::Relaxed);
            }
            FaultKind::StoreStall(node) => self.machines[usize::from(node)].stalled_until = until,
            FaultKind::CoordinatorCrash => self.crash_coordinator(),
            FaultKind::CoordinatorPause => {
                self.coordinator_paused.get_or_insert_with(Vec::new);
            }
            FaultKind::ClockJump(node, by) => self.machines[usize::from(node)].clock_offset_ms += by,
            FaultKind::Drift(node, rate) => {
                let now_us = self.now_us;
                self.machines[usize::from(node)].drift(now_us, rate);
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self, index: usize) {
        let Fault { kind, .. } = self.plan.faults[index];
        self.net.end(kind);
        match kind {
            FaultKind::Pause(node) => self.resume(node),
            FaultKind::StoreFailure(node) => {
                self.machines[usize::from(node)].mishaps.fails.store(false, Ordering::Relaxed);
            }
            FaultKind::CoordinatorPause => self.resume_coordinator(),
            _ => {}
        }
    }

    /// A link dies for ever.
    pub(super) fn part(&mut self) {
        let Some(Fault { kind, .. }) = self.plan.lasting else { return };
        self.tell(|| format!("{kind:?} for ever"));
        self.faults += 1;
        meet(self, kind);
        self.net.lasting = Some(kind);
    }

    /// The map has changed: blows that wait for that are armed, in a shard that the change is about.
    pub(super) fn arm(&mut self, map: &ClusterMap) {
        let old = self.disk.as_ref();
        let changed = map.shards.iter().find(|shard| old.and_then(|old| old.shard(shard.id)) != Some(*shard));
        let Some(shard) = changed.filter(|_| !self.net.healed) else { return };
        let before = old.and_then(|old| old.shard(shard.id)).map(|old| old.members.as_slice());
        let gone = before.unwrap_or_default().iter().find(|member| !shard.members.contains(member));
        if let Some(gone) = gone {
            self.removed.insert(shard.id, *gone);
        }
        for (index, blow) in self.plan.blows.iter().enumerate() {
            if blow.change == self.changes {
                self.armed.push((index, blow.messages, shard.id));
            }
        }
    }

    /// A message arrives: blows whose turn has come strike before it does.
    pub(super) fn strike(&mut self) {
        self.strike_the_others();
        if self.armed.is_empty() {
            return;
        }
        for (_, left, _) in &mut self.armed {
            *left = left.saturating_sub(1);
        }
        let ripe = |armed: &(usize, u64, ShardId)| armed.1 == 0;
        let striking: Vec<_> = self.armed.iter().copied().filter(ripe).collect();
        self.armed.retain(|armed| !ripe(armed));
        for (index, _, shard) in striking {
            let blow = self.plan.blows[index];
            if let Some(kind) = self.aim(blow, shard).filter(|_| !self.net.healed) {
                let (at, until) = (self.now_us, self.now_us + blow.lasts);
                self.strike_with(Fault { at, until, kind });
            }
        }
    }

    /// A fault that was not planned begins now.
    pub(super) fn strike_with(&mut self, fault: Fault) {
        let (until, place) = (fault.until, self.plan.faults.len());
        self.plan.faults.push(fault);
        self.begin(place);
        self.at(until, Happening::End(place));
    }

    /// All members of a shard crash but the one that they have just given up.
    fn strike_the_others(&mut self) {
        let Some((left, shard, slow)) = self.forsaken.take() else { return };
        if left > 0 {
            self.forsaken = Some((left - 1, shard, slow));
            return;
        }
        let shard = self.disk.as_ref().and_then(|map| map.shard(shard)).filter(|_| !self.net.healed);
        let others = shard.into_iter().flat_map(|shard| &shard.members).map(|member| member.node.0);
        for node in others.filter(|node| *node != slow).collect::<Vec<_>>() {
            let (at, kind) = (self.now_us, FaultKind::Crash(node));
            self.plan.faults.push(Fault { at, until: at + millis(500), kind });
            let fault = self.plan.faults.len() - 1;
            self.begin(fault);
            self.at(at + millis(500), Happening::End(fault));
        }
    }

    fn aim(&self, blow: Blow, shard: ShardId) -> Option<FaultKind> {
        let map = self.writing.as_ref().or(self.disk.as_ref())?;
        let gone = self.removed.get(&shard).copied();
        let shard = map.shard(shard)?;
        let member = match blow.target {
            Target::Newcomer => shard.joining.map(|joining| joining.member).or(shard.members.last().copied()),
            Target::First => shard.members.first().copied(),
            Target::Last => shard.members.last().copied(),
            Target::Removed => gone,
            Target::Coordinator => {
                return Some(match blow.way {
                    Way::Crash | Way::Empty => FaultKind::CoordinatorCrash,
                    Way::Pause | Way::Stall => FaultKind::CoordinatorPause,
                    Way::Isolate => FaultKind::Isolation(COORDINATOR.node.0),
                });
            }
        };
        let node = member?.node.0;
        Some(match blow.way {
            Way::Crash => FaultKind::Crash(node),
            Way::Pause => FaultKind::Pause(node),
            Way::Isolate => FaultKind::Isolation(node),
            Way::Empty => FaultKind::StoreLoss(node),
            Way::Stall => FaultKind::StoreStall(node),
        })
    }

    fn crash_coordinator(&mut self) {
        self.coordinator = None;
        // Its clock goes on in its next life.
        let deferred = self.coordinator_paused.take().unwrap_or_default();
        if deferred.iter().any(|happening| matches!(happening, Happening::Tick)) {
            self.at(self.now_us, Happening::Tick);
        }
        self.coordinator_life += 1;
        // What was not synced may be on disk all the same.
        if let Some(map) = self.writing.take()
            && self.random.percent(50)
        {
            self.disk = Some(map);
        }
        let delay = self.random.between(millis(100), millis(5000));
        self.at(self.now_us + delay, Happening::StartCoordinator);
    }

    fn resume_coordinator(&mut self) {
        for happening in self.coordinator_paused.take().unwrap_or_default() {
            self.at(self.now_us, happening);
        }
    }

    fn resume(&mut self, node: u16) {
        for happening in self.machines[usize::from(node)].paused.take().unwrap_or_default() {
            self.at(self.now_us, happening);
        }
    }

    /// Where stores are on disk, a node whose store failed ends and starts again, to see what is there.
    pub(super) fn maybe_restart(&mut self, node: u16) {
        let machine = &self.machines[usize::from(node)];
        let broken = |shard| machine.stores.get(shard).is_none_or(Keeper::is_broken);
        let mut seats = machine.node.iter().flat_map(Node::statuses);
        if seats.any(|(shard, _)| broken(shard)) {
            drop(seats);
            self.crash(node);
        }
    }

    fn crash(&mut self, node: u16) {
        let machine = &mut self.machines[usize::from(node)];
        if machine.node.take().is_none() {
            return;
        }
        machine.stores = Stores::default();
        machine.tasks.clear();
        machine.paused = None;
        for place in 0..self.open.len() {
            if self.clients[self.open[place]].node == node {
                self.reconnect(place);
            }
        }
        let delay = self.random.between(millis(50), millis(2000));
        self.at(self.now_us + delay, Happening::StartNode(node));
    }

    pub(super) fn heal(&mut self) {
        self.net.healed = true;
        self.resume_coordinator();
        for node in 0..self.machines.len() as u16 {
            let machine = &mut self.machines[usize::from(node)];
            machine.stalled_until = 0;
            machine.mishaps.fails.store(false, Ordering::Relaxed);
            self.resume(node);
        }
    }
}
