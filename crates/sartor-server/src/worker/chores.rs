//! What is done now and then, and at the end of each turn.

use super::{CHORES_EVERY_US, COORDINATOR_SILENT_US, Mail, Worker};
use crate::node::News;
use crate::settings::Name;
use crate::stats::add;
use crate::status::CoordinatorNews;
use sartor_core::coordinator::COORDINATOR;
use sartor_core::ids::{NodeId, WorkerId};
use sartor_core::time::{Now, millis};

/// A log that is sealed for so many looks is not this cluster's.
const SEALED_CHORES: u32 = 50;

impl Worker {
    /// What is done now and then: timeouts, and news of the cluster.
    pub(super) fn chores(&mut self, now: Now) {
        self.chores_at = now.steady_us + CHORES_EVERY_US;
        // Other workers of this node may have made room, or the limit may be another one.
        self.weigh(now);
        self.tend_splitting(now);
        if self.accept_again {
            self.accept(now);
        }
        self.links.accept(self.poll.registry());
        self.shared.surveys.publish(self.me.worker, &self.stores);
        let stall = millis(self.shared.settings.get(Name::StallTimeoutMs));
        let idle = self.shared.settings.get(Name::IdleTimeoutMs);
        for index in 0..self.clients.len() {
            let Some(client) = &mut self.clients[index] else { continue };
            let silent = now.steady_us.saturating_sub(client.last_read);
            let half_a_request = !client.stalled
                && client.parser.is_inside(&client.buffer)
                && client.connection.in_flight() == 0;
            let unread = client.connection.out.len() > client.written;
            let stuck = now.steady_us.saturating_sub(client.last_progress) > stall;
            let is_idle = idle > 0 && silent > millis(idle) && client.connection.in_flight() == 0;
            if (half_a_request && silent > stall) || (unread && stuck) || is_idle {
                self.close(index);
            } else if !unread {
                client.last_progress = now.steady_us;
            }
        }
        for (shard, status) in self.node.statuses() {
            // A moment of it is a failover that this node has not heard of.
            let for_long = self.sealed.entry(shard).or_default();
            *for_long = if status.sealed { for_long.saturating_add(1) } else { 0 };
            if *for_long == SEALED_CHORES {
                eprintln!(
                    "sartor: the log of shard {} was sealed by a newer epoch than this cluster's: does another cluster of the same number use it? Give one of them another number in its files",
                    shard.0
                );
            }
            if !status.differs {
                self.differing.remove(&shard);
            } else if self.differing.insert(shard) {
                let at = status.position;
                eprintln!(
                    "sartor: the copy of shard {} here is not what the first one has at {at}; it is given up and filled anew. Please report this",
                    shard.0
                );
            }
        }
        if self.me.worker != 0
            && let Some(first) = self.mailboxes.first()
        {
            first.post(Mail::Reports(self.me.worker, self.node.reports()));
        }
        if let Some(agent) = self.node.agent() {
            let (addr, pid) = agent.coordinator();
            let is_up = agent.heard_us().is_some_and(|at| now.steady_us - at < COORDINATOR_SILENT_US);
            if !is_up {
                self.links.probe(now.steady_us, self.poll.registry());
            }
            let dead = |node: &u16| self.links.is_unreachable(WorkerId { node: NodeId(*node), worker: 0 });
            let nodes = self.map.as_ref().map_or(0, |map| map.nodes.len() as u16);
            let unreachable = if is_up { Vec::new() } else { (0..nodes).filter(dead).collect() };
            let coordinator = CoordinatorNews { addr: addr.to_owned(), pid, is_up };
            let coordinators =
                coordinator.all(&self.shared.config.coordinator, self.links.failures(COORDINATOR));
            let (reports, care) = (agent.reports().to_vec(), agent.care().clone());
            self.shared.publish(News { reports, coordinator, coordinators, care, unreachable });
        }
    }

    pub(super) fn count(&mut self) {
        let (counts, stats) = (std::mem::take(&mut self.counts), &self.shared.stats);
        add(&stats.turns, 1);
        if counts.commands + counts.bytes_in + counts.bytes_out > 0 {
            add(&stats.commands, counts.commands);
            add(&stats.bytes_in, counts.bytes_in);
            add(&stats.bytes_out, counts.bytes_out);
            add(&stats.hits, counts.hits);
            add(&stats.misses, counts.misses);
        }
    }
}
