//! What can happen next in a world, and what comes of it.

use super::{Cause, Chain, DEAD, pairs};
use crate::coordinator::NODES;
use crate::history::{ASKS, CLIENTS, Client};
use crate::world::{Step, World};

impl Chain {
    pub(super) fn all_steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken {
            return;
        }
        for client in 0..CLIENTS {
            let Client { waits, done, .. } = world.clients[client];
            let places = if done == 0 { &self.config.writes } else { &self.config.reads };
            if !waits && done < ASKS {
                let places = places[client].iter().filter(|node| world.paused[usize::from(**node)] == 0);
                steps.extend(places.clone().map(|node| Step::Ask(client as u8, *node)));
                if world.left.pauses > 0 {
                    steps.extend(places.map(|node| Step::AskAndStall(client as u8, *node)));
                }
            }
        }
        self.frame_steps(world, steps);
        let free = |node: &u8| world.paused[usize::from(*node)] == 0;
        steps.extend(
            (0..NODES as u8)
                .filter(|node| !free(node) && world.paused[usize::from(*node)] != DEAD)
                .map(Step::Wake),
        );
        if world.left.pauses > 0 {
            steps.extend((0..NODES as u8).filter(free).map(Step::Stop));
        }
        if !self.config.quick {
            steps.push(Step::Renew);
        }
        if world.left.late > 0 {
            for (a, b) in pairs().filter(|(a, b)| free(a) && free(b)) {
                steps.extend([Step::Promise(a, b), Step::Promise(b, a)]);
            }
        }
        // While all live and are heard, time only makes them renew their promises and repeat what is on its way.
        let hearing = self.coordinators.get(world.coordinator).silent == [false; NODES];
        if world.left.steps > 0 && !(self.config.quick && hearing && world.paused == [0; NODES]) {
            steps.push(Step::Pass);
        }
        self.coordinator_steps(world, steps);
    }

    /// A client begins its next request.
    pub(super) fn begin(&self, world: &mut World, client: u8) -> Cause {
        let other = world.clients[1 - usize::from(client)].done;
        let asks = &mut world.clients[usize::from(client)];
        asks.waits = true;
        asks.saw[usize::from(asks.done)] = other;
        Cause::Ask(u32::from(client), u32::from(asks.done))
    }

    pub(super) fn apply(&self, world: &mut World, step: Step) -> bool {
        match step {
            Step::Ask(client, node) => {
                let cause = self.begin(world, client);
                self.run(world, node, cause);
            }
            Step::Deliver(frame) => {
                world.net.retain(|other| *other != frame);
                self.run(world, self.about(frame).to, Cause::Frame(frame));
            }
            Step::Repeat(frame) => {
                world.left.duplicates -= 1;
                self.run(world, self.about(frame).to, Cause::Frame(frame));
            }
            Step::Stall(frame) => {
                world.left.pauses -= 1;
                world.net.retain(|other| *other != frame);
                let to = self.about(frame).to;
                let clock = self.clock_of(world, to);
                let turn = self.turn(world.nodes[usize::from(to)], Cause::Frame(frame), clock, None);
                self.take(world, to, &turn);
                world.paused[usize::from(to)] = 1;
            }
            Step::Stop(node) => {
                world.left.pauses -= 1;
                world.paused[usize::from(node)] = 1;
            }
            Step::AskAndStall(client, node) => {
                world.left.pauses -= 1;
                let cause = self.begin(world, client);
                let clock = self.clock_of(world, node);
                let turn = self.turn(world.nodes[usize::from(node)], cause, clock, None);
                self.take(world, node, &turn);
                world.paused[usize::from(node)] = 1;
            }
            Step::Wake(node) => {
                world.paused[usize::from(node)] = 0;
                self.run(world, node, Cause::Wake);
            }
            Step::Renew => self.renew_all(world),
            Step::Promise(a, b) => {
                world.left.late -= 1;
                let Some(frame) = self.promise(world, a, b) else { return false };
                world.net.push(frame);
            }
            Step::Pass => {
                let paused = world.paused;
                world.left.steps -= 1;
                world.clock += 1;
                // Whose timers run out when is not told apart: what they send is on its way, and may stay there.
                for node in (0..NODES as u8).filter(|node| paused[usize::from(*node)] == 0) {
                    self.run(world, node, Cause::Wake);
                }
            }
            Step::Suspect(node) => {
                world.left.suspicions -= 1;
                self.hear(world, node, true);
            }
            Step::Crash(node) => {
                world.left.crashes -= 1;
                world.paused[usize::from(node)] = DEAD;
                self.hear(world, node, true);
            }
            Step::Hear(node) => self.hear(world, node, false),
            Step::Adopt(node, number) => self.adopt(world, node, number),
        }
        true
    }

    pub(super) fn frame_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for &frame in &world.net {
            let about = self.about(frame);
            let to = usize::from(about.to);
            // What is newer than the node's map waits for it, as it does in the node.
            if world.paused[to] > 0 || about.epoch > self.standing(world.nodes[to]).epoch {
                continue;
            }
            steps.push(Step::Deliver(frame));
            if world.left.duplicates > 0 {
                steps.push(Step::Repeat(frame));
            }
            if world.left.pauses > 0 {
                steps.push(Step::Stall(frame));
            }
        }
    }

    pub(super) fn coordinator_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let coordinator = self.coordinators.get(world.coordinator);
        let count = coordinator.maps.len();
        if count < self.config.epochs {
            let heard = (0..NODES as u8).filter(|node| !coordinator.silent[usize::from(*node)]);
            for node in heard.clone().filter(|_| world.left.suspicions > 0) {
                steps.push(Step::Suspect(node));
            }
            for node in
                heard.filter(|node| world.left.crashes > 0 && world.paused[usize::from(*node)] != DEAD)
            {
                steps.push(Step::Crash(node));
            }
            if self.config.returns {
                let silent = (0..NODES as u8).filter(|node| coordinator.silent[usize::from(*node)]);
                let silent = silent.filter(|node| world.paused[usize::from(*node)] != DEAD);
                steps.extend(silent.map(Step::Hear));
            }
        }
        for node in (0..NODES as u8).filter(|node| world.paused[usize::from(*node)] == 0) {
            let known = self.standing(world.nodes[usize::from(node)]).map_epoch as usize;
            let oldest = if self.config.old_maps { known } else { known.max(count - 1) };
            steps.extend((oldest..count).map(|number| Step::Adopt(node, number as u8)));
        }
    }
}
