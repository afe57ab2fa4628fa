//! What clients do.

use super::Happening;
use super::World;
use crate::client::Client;
use sartor_core::node::Event;
use sartor_core::operation::SessionId;

impl World {
    /// A healed cluster must take a write for each shard at each node.
    pub(super) fn probe(&mut self) {
        let Some(map) = self.map().cloned() else { return };
        for node in 0..self.machines.len() as u16 {
            let generation = self.clients.len() as u32;
            let session = SessionId { index: crate::client::PROBES + u32::from(node), generation };
            let mut client = Client::at(session, node);
            let deadline_us = self.now(node).steady_us + crate::client::TIMEOUT_US;
            // Who does not reach a shard's head cannot forward to it.
            let cut =
                |head: u16| self.plan.lasting.as_ref().is_some_and(|fault| fault.kind.joins(node, head));
            let shards = map.shards.iter().filter(|s| s.members.first().is_some_and(|m| !cut(m.node.0)));
            let requests: Vec<_> =
                shards.map(|shard| client.probe(shard, self.now_us, deadline_us)).collect();
            self.clients.push(client);
            for request in requests {
                self.step(node, Event::Request(request));
            }
        }
    }

    /// One client sends one request; then the next one is due.
    pub(super) fn client(&mut self) {
        if self.net.healed {
            return;
        }
        // Long runs are for faults: they need not be as busy.
        let longest = if self.config.run_ms > 30_000 { 50_000 } else { 20_000 };
        let pause = self.random.between(500, longest);
        self.at(self.now_us + pause, Happening::Client);
        let Some(map) = self.map().cloned() else { return };
        let place = self.random.below(self.open.len() as u64) as usize;
        let index = self.open[place];
        if self.random.percent(1) {
            self.reconnect(place);
            return;
        }
        let unique = self.happenings;
        let client = &mut self.clients[index];
        let up =
            self.machines[usize::from(client.node)].node.as_ref().is_some_and(|node| node.map().is_some());
        if up && client.is_ready() {
            let node = client.node;
            let machine = &self.machines[usize::from(node)];
            let own = machine.node.as_ref().and_then(|node| node.map());
            // Where shards come and go, a node that is behind does not know all that others know.
            let map = own.filter(|_| self.config.splits).map_or(map, |own| (**own).clone());
            let deadline_us = machine.steady(self.now_us) + crate::client::TIMEOUT_US;
            let times = (self.now_us, deadline_us);
            let again = self.again.pick(&mut self.random, &self.clients, &self.open);
            let client = &mut self.clients[index];
            let request = match again {
                Some((shard, op)) => client.send(shard, op, times),
                None => client.ask(&mut self.random, &map, times, unique),
            };
            self.again.note(index, client);
            self.step(node, Event::Request(request));
        }
    }

    /// The client hangs up and comes again, perhaps to another node.
    pub(super) fn reconnect(&mut self, place: usize) {
        let old = &self.clients[self.open[place]];
        let (session, node) = (old.session, old.node);
        self.step(node, Event::Closed(session));
        self.open[place] = self.clients.len();
        self.connect(SessionId { generation: session.generation + 1, ..session });
    }

    /// A client comes, to some node.
    pub(super) fn connect(&mut self, session: SessionId) {
        let nodes = self.machines.len() as u64;
        let mut client = Client::new(&mut self.random, session, nodes, self.plan.keys);
        (client.levels, client.ranges) = (self.plan.levels, self.plan.ranges);
        self.clients.push(client);
    }
}
