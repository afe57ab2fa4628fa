//! Requests that travel together: runs of one connection, and the pool of all.

use super::{TASKS_MAX, Worker};
use crate::client::Client;
use crate::front::connection::Joined;
use crate::front::pool::{POOL, Pooled};
use crate::settings::Name;
use bytes::Buf;
use sartor_core::node::{Event, Reply as Answered};
use sartor_core::operation::{Consistency, From, Op, Outcome, Request};
use sartor_core::time::{Now, millis};

impl Worker {
    /// Takes the requests at the front of the buffer as steps of runs, as far as possible: whether there were any.
    pub(super) fn join_runs(&mut self, now: Now, client: &mut Client, pipeline_max: usize) -> bool {
        if client.held.is_some() || !client.parser.is_idle() {
            return false;
        }
        let env = env!(self, now, client.connection);
        let max = client.room(pipeline_max);
        let (bytes, commands) =
            client.connection.join_hot(&client.buffer, max, &env, &mut self.runs, &mut self.requests);
        client.buffer.advance(bytes);
        self.counts.commands += commands as u64;
        if !self.requests.is_empty() {
            self.step_requests(now);
        }
        commands > 0
    }

    /// Takes the request at the front of the buffer into the pool, if that is its place.
    pub(super) fn join_pool(&mut self, now: Now, client: &mut Client) -> Joined {
        if client.held.is_some() || !client.parser.is_idle() {
            return Joined::No;
        }
        let env = env!(self, now, client.connection);
        let node = &mut self.node;
        let floor = |session, shard| node.seen(session, shard);
        let joined = client.connection.join_pool(&client.buffer, &env, &mut self.pool, floor);
        if let Joined::Bytes(len) = joined {
            client.buffer.advance(len);
            self.counts.commands += 1;
        }
        joined
    }

    /// Sends what is in the pool.
    pub(super) fn close_pool(&mut self, now: Now) {
        while let Some(Pooled { tag, shard, run, floor }) = self.pool.close() {
            let from = From::Session { session: POOL, tag };
            let deadline_us = now.steady_us + millis(self.shared.settings.get(Name::RequestTimeoutMs));
            let consistency = Consistency::Mode;
            self.requests.push(Request { from, shard, op: Op::Run(run), floor, consistency, deadline_us });
        }
        self.step_requests(now);
    }

    /// An answer to a run of the pool: each connection gets its part.
    pub(super) fn answer_pooled(&mut self, reply: &Answered) {
        let owners = self.pool.land(reply.tag);
        let mut at = 0;
        for (session, tag) in &owners {
            let answer = match &reply.outcome {
                Outcome::Run(answers) => answers.take(&mut at),
                _ => None,
            };
            let index = session.index as usize;
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            if client.connection.session != *session {
                continue;
            }
            self.node.note_seen(*session, reply.shard, reply.position);
            client.connection.on_pooled(*tag, answer.as_ref(), &reply.outcome);
            let (hits, misses) = std::mem::take(&mut client.connection.hits);
            (self.counts.hits, self.counts.misses) = (self.counts.hits + hits, self.counts.misses + misses);
            self.mark_dirty(index);
        }
        self.pool.give_back(owners);
    }

    pub(super) fn close_runs(&mut self, now: Now, client: &mut Client) {
        if !self.runs.is_empty() {
            let env = env!(self, now, client.connection);
            client.connection.close_runs(&env, &mut self.runs, &mut self.requests);
            self.step_requests(now);
        }
    }

    pub(super) fn step_requests(&mut self, now: Now) {
        for request in self.requests.drain(..) {
            self.node.step(now, Event::Request(request), &mut self.actions);
        }
        if self.actions.tasks.len() >= TASKS_MAX {
            self.run_stores(now);
        }
    }
}
