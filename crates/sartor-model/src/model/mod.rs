//! What happens in a step, and what must hold in every state.

use crate::Planted;
use crate::coordinator::{Coordinator, NODES};
use crate::history::{ASKS, CLIENTS, Client, is_linear};
use crate::intern::{Alone, Id, Interner, Memo};
use crate::local::{Frame, Local, SHARD, Store};
use crate::world::{Config, Step, Told, World};
use sartor_core::coordinator::ReplicaReport;
use sartor_core::ids::{Epoch, Position};
use sartor_core::wire::frame::{Header, Kind};
use stateright::{Model, Property};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

mod steps;
mod turns;

/// The session that looks whether a node serves.
const PROBE: u32 = 9;
/// Who stands still for ever.
const DEAD: u8 = u8::MAX;

/// What a node is asked to do, as a key of what was computed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    Frame(Id),
    Map(Id, u8),
    Ask(u32, u32),
    Wake,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Turn {
    node: Id,
    frames: Vec<Id>,
    leases: Vec<Id>,
    told: Vec<Told>,
    broken: bool,
}

/// What a node would answer at once.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    /// The epoch in which it serves.
    serves: Option<u64>,
    /// The value it reads.
    value: Option<u8>,
}

/// What is known of a frame.
#[derive(Clone, Copy)]
struct About {
    to: u8,
    epoch: u64,
    /// It tells only how far somebody is: where it tells nothing new now, it never will.
    is_news: bool,
    is_ack: bool,
    /// The last entry in it, between members.
    entries: Option<u64>,
    /// It comes at once where it can, if the world is a quick one.
    is_quick: bool,
}

/// What is known of a node.
#[derive(Clone, Copy)]
struct Standing {
    map_epoch: u64,
    epoch: u64,
    /// Where its store stands, and the number of what it holds.
    store: Option<(Position, Id)>,
}

type TurnKey = (Id, Cause, u8, u8);

/// The model.
#[derive(Default)]
pub struct Chain {
    /// How large the world is.
    pub config: Config,
    locals: Interner<Alone<Local>>,
    stores: Interner<Store>,
    frames: Interner<Frame>,
    coordinators: Interner<Coordinator>,
    turns: Memo<TurnKey, Arc<Turn>>,
    probes: Memo<(Id, u8), Probe>,
    about: Memo<Id, About>,
    standings: Memo<Id, Standing>,
    reports: Interner<Vec<ReplicaReport>>,
    reported: Memo<Id, Id>,
    decisions: Memo<(Id, [Id; NODES]), Id>,
    moot: Memo<(Id, Id, u8), bool>,
    /// What was seen to happen, and how often.
    sights: Mutex<BTreeMap<&'static str, u64>>,
}

impl Chain {
    /// A model of this world.
    pub fn new(config: Config) -> Chain {
        Chain { config, ..Chain::default() }
    }

    /// What was seen to happen, and how often.
    pub fn sights(&self) -> BTreeMap<&'static str, u64> {
        self.sights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many states of nodes, frames and turns there were.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.locals.count(), self.frames.count(), self.turns.count())
    }

    fn see(&self, what: &'static str) {
        *self.sights.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// Puts what a turn gave into the world.
    fn take(&self, world: &mut World, node: u8, turn: &Turn) {
        world.nodes[usize::from(node)] = turn.node;
        world.broken |= turn.broken;
        world.net.extend(&turn.frames);
        for told in &turn.told {
            self.tell(world, node, told);
        }
    }

    fn tell(&self, world: &mut World, node: u8, told: &Told) {
        let Some(client) = world.clients.get_mut(told.session as usize) else { return };
        if !client.waits || u32::from(client.done) != told.tag {
            world.broken = true;
            return;
        }
        let Some(answer) = told.answer else { return };
        client.waits = false;
        client.answers[usize::from(client.done)] = answer;
        client.done += 1;
        let epoch = self.standing(world.nodes[usize::from(node)]).epoch;
        match told.tag {
            0 if told.epoch < epoch => self.see("a write answered in a later view than it was ordered in"),
            0 => {}
            _ if node >= self.config.members => self.see("a read answered by the spare"),
            _ if epoch > 1 => self.see("a read answered after a failover"),
            _ => {}
        }
        if world.clients.iter().all(|client| client.done == ASKS) {
            self.see("all requests answered");
        }
    }

    fn run(&self, world: &mut World, node: u8, cause: Cause) {
        let clock = self.clock_of(world, node);
        let turn = self.turn(world.nodes[usize::from(node)], cause, clock, Some(clock));
        self.take(world, node, &turn);
    }

    /// The promise that a node would give another one now.
    fn promise(&self, world: &mut World, from: u8, to: u8) -> Option<Id> {
        let clock = self.clock_of(world, from);
        let turn = self.turn(world.nodes[usize::from(from)], Cause::Wake, clock, Some(clock));
        self.take(world, from, &turn);
        turn.leases.iter().copied().find(|frame| self.about(*frame).to == to)
    }

    /// What a node's clock reads.
    fn clock_of(&self, world: &World, node: u8) -> u8 {
        if self.config.planted == Planted::ClockStops && node == 2 { 0 } else { world.clock }
    }

    /// All that share a view, and do not stand still, renew their promises.
    fn renew_all(&self, world: &mut World) {
        for (a, b) in pairs() {
            let epoch = |node: u8| self.standing(world.nodes[usize::from(node)]).epoch;
            let free = |node: u8| world.paused[usize::from(node)] == 0;
            if epoch(a) == epoch(b) && free(a) && free(b) {
                self.renew(world, a, b);
            }
        }
    }

    /// Two nodes renew their promises: stamp, echo and stamp, echo.
    fn renew(&self, world: &mut World, a: u8, b: u8) {
        for (from, to) in [(a, b), (b, a), (a, b)] {
            let Some(frame) = self.promise(world, from, to) else { return };
            if self.about(frame).epoch != self.standing(world.nodes[usize::from(to)]).epoch {
                return;
            }
            self.run(world, to, Cause::Frame(frame));
        }
    }

    /// In a quick world, requests, answers and acknowledgements that were just sent come at once, unless their receiver
    /// stands still or is in another epoch; and those that waited for a node's map come with it.
    fn hurry(&self, before: &World, world: &mut World, step: Step) {
        let mut held = before.net.clone();
        if let Step::Adopt(node, _) = step {
            held.retain(|frame| self.about(*frame).to != node);
        }
        let comes = |world: &World, frame: &Id| {
            let about = self.about(*frame);
            let to = usize::from(about.to);
            let here = world.paused[to] == 0 && about.epoch == self.standing(world.nodes[to]).epoch;
            about.is_quick && here && !held.contains(frame)
        };
        self.renew_all(world);
        self.adopt_the_same(world);
        while let Some(place) = world.net.iter().position(|frame| comes(world, frame)) {
            let frame = world.net.swap_remove(place);
            self.run(world, self.about(frame).to, Cause::Frame(frame));
            self.renew_all(world);
            self.adopt_the_same(world);
        }
    }

    /// In a quick world a map that leaves the epoch as it is comes at once: somebody is filled, or counts.
    fn adopt_the_same(&self, world: &mut World) {
        self.decide(world);
        let coordinator = self.coordinators.get(world.coordinator);
        for node in 0..NODES as u8 {
            let standing = self.standing(world.nodes[usize::from(node)]);
            let same = coordinator.shard().epoch.0 == standing.epoch;
            if same
                && (standing.map_epoch as usize) < coordinator.maps.len()
                && world.paused[usize::from(node)] == 0
            {
                self.adopt(world, node, coordinator.maps.len() as u8 - 1);
            }
        }
    }

    fn tidy(&self, world: &mut World) {
        world.net.sort_unstable();
        world.net.dedup();
        let nodes = world.nodes;
        let clocks = [0, 1, 2, 3].map(|node| self.clock_of(world, node));
        let mut net = std::mem::take(&mut world.net);
        net.retain(|frame| world.paused[usize::from(self.about(*frame).to)] != DEAD);
        net.retain(|frame| {
            let to = usize::from(self.about(*frame).to);
            !self.is_moot(nodes[to], *frame, clocks[to])
        });
        world.net = net;
    }

    /// What a node reports, as a number. Where it stands does not matter to who succeeds in a chain.
    fn reports_of(&self, node: Id) -> Id {
        self.reported.get(node, || {
            let mut reports = self.locals.get(node).copy().node.reports();
            reports.iter_mut().for_each(|report| report.status.position = Position::ZERO);
            self.reports.put(reports)
        })
    }

    /// The coordinator decides by what all nodes report.
    fn decide(&self, world: &mut World) {
        let reports = world.nodes.map(|node| self.reports_of(node));
        world.coordinator = self.decisions.get((world.coordinator, reports), || {
            let mut coordinator = Coordinator::clone(&self.coordinators.get(world.coordinator));
            coordinator.decide(&reports.map(|id| self.reports.get(id)));
            coordinator.maps.truncate(self.config.epochs);
            if self.config.planted == Planted::CountsAtOnce {
                coordinator.count_newcomers();
            }
            self.see(coordinator.stage());
            self.coordinators.put(coordinator)
        });
    }

    fn hear(&self, world: &mut World, node: u8, silent: bool) {
        let mut coordinator = Coordinator::clone(&self.coordinators.get(world.coordinator));
        coordinator.silent[usize::from(node)] = silent;
        world.coordinator = self.coordinators.put(coordinator);
    }

    fn adopt(&self, world: &mut World, node: u8, number: u8) {
        let before = self.standing(world.nodes[usize::from(node)]).epoch;
        self.run(world, node, Cause::Map(world.coordinator, number));
        if self.config.planted == Planted::SaysItLeft
            && self.standing(world.nodes[usize::from(node)]).epoch > before
        {
            let coordinator = self.coordinators.get(world.coordinator);
            let shard = &coordinator.maps[usize::from(number)].shards[0];
            let gone = coordinator.maps[0].shards[0].members.iter();
            for member in gone.filter(|member| !shard.members.contains(member)) {
                let from = sartor_core::ids::WorkerId { node: member.node, worker: 0 };
                let header = Header {
                    kind: Kind::Left,
                    from,
                    incarnation: member.incarnation,
                    shard: SHARD,
                    epoch: Epoch(shard.epoch.0),
                };
                let frame = Frame { from: member.node.0 as u8, to: node, bytes: header.frame(|_| {}) };
                world.net.push(self.frames.put(frame));
            }
        }
    }

    fn two_views_serve(&self, world: &World) -> bool {
        let serving = self.living(world).filter_map(|(node, clock)| self.probe(node, clock).serves);
        let (mut least, mut most) = (u64::MAX, 0);
        serving.for_each(|epoch| (least, most) = (least.min(epoch), most.max(epoch)));
        most > least && least != u64::MAX
    }

    fn histories_differ(&self, world: &World) -> bool {
        let stores = world.nodes.map(|node| self.standing(node).store);
        let mut pairs = pairs().map(|(a, b)| (stores[usize::from(a)], stores[usize::from(b)]));
        pairs.any(|(a, b)| a.zip(b).is_some_and(|(a, b)| a.0 == b.0 && a.1 != b.1))
    }

    fn living<'a>(&'a self, world: &'a World) -> impl Iterator<Item = (Id, u8)> + 'a {
        let living = (0..NODES).filter(|node| world.paused[*node] != DEAD);
        living.map(|node| (world.nodes[node], self.clock_of(world, node as u8)))
    }

    fn explains(&self, world: &World) -> bool {
        let probes = self.living(world).map(|(node, clock)| self.probe(node, clock).value);
        is_linear(&world.clients, None)
            && probes.flatten().all(|value| is_linear(&world.clients, Some(value)))
    }
}

impl Model for Chain {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let nodes: Vec<Id> =
            (0..NODES as u8).map(|node| self.locals.put(Alone::new(Local::new(node)))).collect();
        let coordinator = self.coordinators.put(Coordinator::new(self.config.members));
        let mut world = World {
            nodes: [nodes[0], nodes[1], nodes[2], nodes[3]],
            paused: [0; NODES],
            coordinator,
            net: Vec::new(),
            clients: [Client::default(); CLIENTS],
            clock: 0,
            left: self.config.budget,
            broken: false,
        };
        (0..NODES as u8).for_each(|node| self.adopt(&mut world, node, 0));
        let mut before = None;
        while before.as_ref() != Some(&world) {
            before = Some(world.clone());
            for (a, b) in pairs() {
                self.renew(&mut world, a, b);
            }
            for frame in std::mem::take(&mut world.net) {
                self.run(&mut world, self.about(frame).to, Cause::Frame(frame));
            }
            self.tidy(&mut world);
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.all_steps(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let happened = self.apply(&mut next, step);
        if self.config.quick {
            self.hurry(world, &mut next, step);
        }
        self.decide(&mut next);
        self.tidy(&mut next);
        (happened && next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |model: &Chain, world: &World| model.explains(world)),
            Property::always("one view serves", |model: &Chain, world: &World| !model.two_views_serve(world)),
            Property::always("one history", |model: &Chain, world: &World| !model.histories_differ(world)),
            Property::always("no invariant of the core is broken", |_: &Chain, world: &World| !world.broken),
        ]
    }
}

/// All pairs of nodes.
fn pairs() -> impl Iterator<Item = (u8, u8)> {
    (0..NODES as u8).flat_map(|a| (a + 1..NODES as u8).map(move |b| (a, b)))
}
