//! The coordinator, its disk, and what it may not do.

use super::{Happening, World};
use bytes::Bytes;
use sartor_core::coordinator::{Action, COORDINATOR, Coordinator, CoordinatorSettings, Event, Spec};
use sartor_core::ids::Epoch;
use sartor_core::routing::map::{ClusterMap, Member, Partition, Shard};
use sartor_core::time::Now;
use sartor_core::wire::frame::Header;

impl World {
    pub(super) fn notify(&mut self, notice: Event) {
        let now = self.now(u16::MAX);
        let mut orders = Vec::new();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.step(now, notice, &mut orders);
        }
        for order in orders {
            match order {
                Action::Persist(map) => {
                    let epoch = map.epoch;
                    self.judge_restarts(&map);
                    self.judge_removals(&map);
                    self.note_decided(&map);
                    self.tell(|| format!("map {}: {}", map.epoch.0, describe(&map)));
                    self.changes += 1;
                    self.arm(&map);
                    self.writing = Some(map);
                    let delay = self.random.between(100, 20_000);
                    let life = self.coordinator_life;
                    self.at(self.now_us + delay, Happening::Persisted(life, epoch));
                }
                Action::Send(to, frame) => self.send(COORDINATOR.node.0, to, frame),
            }
        }
        self.note_proven();
    }

    /// The disk has what it was given.
    pub(super) fn on_written(&mut self, life: u64, epoch: Epoch) {
        if life == self.coordinator_life
            && let Some(map) = self.writing.take()
        {
            self.disk = Some(map);
            self.notify(Event::Persisted(epoch));
        }
    }

    /// A shard may begin anew only when nobody has its data any more; and no epoch is used twice.
    fn judge_restarts(&mut self, map: &ClusterMap) {
        for shard in &map.shards {
            self.members.insert((shard.id, shard.epoch), shard.members.clone());
        }
        self.note_parts(map);
        let Some(old) = &self.disk else { return };
        if map.epoch <= old.epoch {
            self.error = Some(format!("epoch {} follows {}", map.epoch.0, old.epoch.0));
        }
        if self.coordinator_life == self.blackout_life {
            // Who saw them die one after the other went on with the last one.
            self.blackout.clear();
        }
        for (shard, old) in map.shards.iter().zip(&old.shards) {
            if old.members.is_empty() {
                continue;
            }
            if shard.epoch != old.epoch {
                self.views.push((shard.id, self.now_us));
            }
            if shard.start != old.start || shard.born != old.born {
                let dark = self.blackout.remove(&shard.id);
                let before = dark.as_ref().unwrap_or(old);
                self.error = self.error.take().or_else(|| self.judge_resumed(shard, before));
            }
            let later = |dark: &Shard| dark.members.iter().all(|member| !shard.members.contains(member));
            if self.blackout.get(&shard.id).is_some_and(later) {
                // It has gone on, where nothing was ever written from the same place.
                self.blackout.remove(&shard.id);
            }
            if shard.start != old.start && shard.start != shard.beginning() {
                self.resumed.entry(shard.id).or_default().push(shard.epoch);
            }
            let anew = |member: &Member| !old.members.contains(member);
            if shard.inherited && shard.start == shard.beginning() && shard.members.iter().all(anew) {
                // What it remembered of names is gone.
                self.resumed.entry(shard.id).or_default().push(shard.epoch);
            }
            let newcomer = old.joining.map(|joining| joining.member);
            let knowing = || old.members.iter().filter(|member| Some(**member) != newcomer);
            let stays = knowing().any(|member| shard.members.contains(member));
            // What a replica says of itself may be wrong; its store is not asked but looked at.
            let lives = |member: &&Member| {
                let machine = &self.machines[usize::from(member.node.0)];
                let holds = machine.stores.get(shard.id).is_some_and(|keeper| !keeper.is_broken());
                machine.incarnation == member.incarnation && machine.node.is_some() && holds
            };
            let anew = shard.born != old.born || !stays;
            if anew && knowing().any(|member| lives(&member)) {
                let (shard, epoch) = (shard.id.0, map.epoch.0);
                self.error =
                    Some(format!("shard {shard} begins anew in {epoch} while {:?} lives", old.members));
            }
        }
    }

    /// A heartbeat of somebody who died may still come, and tell that he lives: who believes it goes on with him, whatever is on
    /// others' disks.
    pub(super) fn note_ghost(&mut self, frame: &Bytes) {
        let Ok((header, _)) = Header::parse(frame.clone()) else { return };
        let Some(machine) = self.machines.get(usize::from(header.from.node.0)) else { return };
        let lives = machine.node.is_some() && machine.incarnation == header.incarnation;
        if !lives && self.coordinator.is_some() {
            self.blackout.clear();
        }
    }

    /// Where all died, what was on disk of the one that stood furthest is what goes on.
    fn judge_resumed(&self, shard: &Shard, old: &Shard) -> Option<String> {
        let newcomer = old.joining.map(|joining| joining.member);
        let knowing = old.members.iter().filter(|member| Some(**member) != newcomer);
        let marks = knowing.flat_map(|member| self.machines[usize::from(member.node.0)].disk.marks());
        let ours = marks.filter(|mark| mark.shard == shard.id && mark.born == old.born && mark.whole);
        let best = ours
            .map(|mark| mark.position)
            .max()
            .filter(|best| shard.born != old.born || *best > shard.start)?;
        Some(format!("shard {} begins again at {}, but there is a disk at {best}", shard.id.0, shard.start))
    }

    /// Some time after all is healed, every shard has all its copies; nothing had to be given up for that first.
    pub(super) fn inspect(&mut self) {
        for node in self.machines.iter().filter_map(|machine| machine.node.as_ref()) {
            self.tell(|| format!("node {}: {:?}", node.id().0, node.reports()));
        }
        self.tell(|| format!("{:?}", self.coordinator.as_ref().map(|c| (c.care(), c.outdated()))));
        let estranged = self.coordinator.as_ref().is_none_or(|c| !c.care().estranged.is_empty());
        if estranged || self.plan.lasting.is_some() {
            return;
        }
        let lacks = |map: &ClusterMap, shard: &Shard| {
            let copies = map.table_of(shard).map_or(0, |table| usize::from(table.copies));
            !shard.is_vacant()
                && shard.part_of.is_none()
                && (shard.members.len() != copies || shard.joining.is_some() || !shard.outdated.is_empty())
        };
        let lacking = self.map().and_then(|map| map.shards.iter().find(|shard| lacks(map, shard))).cloned();
        if let Some(shard) = lacking {
            let (id, members, joining) = (shard.id.0, shard.members, shard.joining);
            self.error = Some(format!("shard {id} is not repaired yet: {members:?}, {joining:?}"));
        }
    }

    pub(super) fn start_coordinator(&mut self) {
        self.coordinator_life += 1;
        let spec = Spec {
            cluster: 1,
            seed: 9,
            nodes: self.plan.holders + self.plan.standbys,
            standbys: self.plan.standbys,
            workers: 1,
            partition: if self.plan.split { Partition::Range } else { Partition::Hash },
            shards: self.plan.shards,
            copies: self.plan.copies,
            mode: self.config.mode.into(),
            datalet: self.plan.datalet.into(),
        };
        let (now, settings): (Now, _) = (self.now(u16::MAX), CoordinatorSettings::default());
        let (disk, modes) = (self.disk.clone(), self.config.modes);
        self.coordinator = Some(Coordinator::new(now, spec, settings, "coordinator".into(), 1, disk, modes));
    }
}

/// The members of each shard, with their lives where those are not the first.
fn describe(map: &ClusterMap) -> String {
    let name = |member: &Member| match member.incarnation.0 {
        1 => format!("{}", member.node.0),
        life => format!("{}'{life}", member.node.0),
    };
    let shard = |shard: &Shard| {
        let members: Vec<String> = shard.members.iter().map(name).collect();
        let joining =
            shard.joining.map_or_else(String::new, |joining| format!(" +{}", name(&joining.member)));
        let part = shard.part_of.map_or_else(String::new, |part| {
            format!(" {} part of {}", if part.closed { "closed" } else { "open" }, part.whole.0)
        });
        format!("shard {} at {}: {}{joining}{part}", shard.id.0, shard.epoch.0, members.join(" "))
    };
    let mode = map.tables.first().map_or("", |table| &table.mode);
    format!("{mode}; {}", map.shards.iter().map(shard).collect::<Vec<_>>().join("; "))
}
