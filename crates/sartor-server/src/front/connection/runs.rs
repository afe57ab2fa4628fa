//! Commands that travel together with others: as steps of the connection's own runs, or in the worker's pool.

use super::{Answering, Body, Connection, Joined, Pending, Replies, name_of, within_limits};
use crate::front::gather::{render_one, render_step};
use crate::front::plan::{Env, Shape};
use crate::front::pool::Pool;
use crate::front::runs::{Command, Runs};
use crate::resp::hot;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::run::Answer;

impl Connection {
    /// Takes a command as the next step of a run, if that can be: it must be a plain one on a small key and value.
    pub(super) fn join(
        &mut self,
        command: Command<'_>,
        env: &Env<'_>,
        runs: &mut Runs,
        requests: &mut Vec<Request>,
    ) -> bool {
        let Ok(shard) = env.shard_of(command.key()) else { return false };
        let tag = match runs.join(shard, command) {
            Some(tag) => tag,
            None => self.open_run(shard, command, env, runs, requests),
        };
        self.push_step(tag, command.size());
        true
    }

    pub(super) fn open_run(
        &mut self,
        shard: ShardId,
        command: Command<'_>,
        env: &Env<'_>,
        runs: &mut Runs,
        requests: &mut Vec<Request>,
    ) -> u32 {
        if runs.has(shard) {
            self.close_runs(env, runs, requests);
        }
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        runs.open(shard, tag, env.heads(shard), command);
        self.runs.push(Answering { tag, answer: None, at: 0, left: 0 });
        tag
    }

    /// Takes as many requests off the front of `buffer` as can be steps of runs, `max` at most: their bytes, and
    /// how many they are.
    pub fn join_hot(
        &mut self,
        buffer: &[u8],
        max: usize,
        env: &Env<'_>,
        runs: &mut Runs,
        requests: &mut Vec<Request>,
    ) -> (usize, usize) {
        let (mut at, mut commands) = (0, 0);
        if !self.may_run() || self.is_pooled() {
            return (0, 0);
        }
        while commands < max
            && let Some((hot, len)) = hot::find(&buffer[at..])
        {
            if !within_limits(hot, env) || !self.join(Command::Hot(hot), env, runs, requests) {
                break;
            }
            self.last_command = name_of(hot);
            (at, commands) = (at + len, commands + 1);
        }
        (at, commands)
    }

    /// Whether commands of it are in the worker's pool: what cannot join them must wait for them.
    pub fn is_pooled(&self) -> bool {
        self.pooled > 0
    }

    /// Takes the request at the front of `buffer` into the worker's pool, if it is the only one or others are there
    /// already: its bytes. `floor` tells what the connection has seen of a shard.
    pub fn join_pool(
        &mut self,
        buffer: &[u8],
        env: &Env<'_>,
        pool: &mut Pool,
        floor: impl FnOnce(SessionId, ShardId) -> Position,
    ) -> Joined {
        if !env.pools
            || !self.may_run()
            || self.pooled != self.commands
            || self.consistency != Consistency::Mode
        {
            return Joined::No;
        }
        let Some((hot, len)) = hot::find(buffer) else { return Joined::No };
        if (self.commands == 0 && len < buffer.len()) || !within_limits(hot, env) {
            return Joined::No;
        }
        let command = Command::Hot(hot);
        let shard = match env.shard_of(command.key()) {
            Ok(shard) if env.heads(shard) => shard,
            _ => return Joined::No,
        };
        if !pool.join(shard, command, (self.session, self.next_tag), floor(self.session, shard)) {
            return Joined::Full;
        }
        self.last_command = name_of(hot);
        self.pooled += 1;
        self.push(Body::One(Shape::Plain), 1, command.size());
        Joined::Bytes(len)
    }

    /// A command of the pool was answered.
    pub fn on_pooled(&mut self, tag: u32, answer: Option<&Answer<'_>>, failed: &Outcome) {
        self.pooled -= 1;
        self.largest = 0;
        let resp = self.resp;
        self.hits.0 += u64::from(matches!(answer, Some(Answer::Value(_))));
        self.hits.1 += u64::from(matches!(answer, Some(Answer::Nil)));
        let render = |out: &mut Vec<u8>| match failed {
            Outcome::Run(_) => render_step(answer, resp, out),
            failed => render_one(failed, Shape::Plain, resp, out),
        };
        match self.pending.iter_mut().position(|pending| pending.first == tag) {
            Some(0) => {
                let before = self.out.len();
                render(&mut self.out);
                self.largest = self.out.len() - before;
                self.pop_pending();
                self.write_ready();
            }
            Some(place) => {
                let mut reply = Vec::new();
                render(&mut reply);
                self.ready_bytes += reply.len();
                self.pending[place].body = Body::Ready(reply);
            }
            None => {}
        }
        self.reply_bytes = self.largest.max(self.reply_bytes - self.reply_bytes / 16);
    }

    pub(super) fn may_run(&self) -> bool {
        self.transaction.is_none() && self.replies == Replies::On
    }

    /// Sends the open runs off.
    pub fn close_runs(&mut self, env: &Env<'_>, runs: &mut Runs, requests: &mut Vec<Request>) {
        for (tag, shard, run) in runs.close() {
            if let Some(answering) = self.runs.iter_mut().rev().find(|answering| answering.tag == tag) {
                answering.left = run.len();
            }
            let from = From::Session { session: self.session, tag };
            requests.push(Request { from, ..self.request(shard, Op::Run(run), env) });
        }
    }

    pub(super) fn push_step(&mut self, tag: u32, bytes: usize) {
        self.commands += 1;
        self.request_bytes += bytes;
        if let Some(Pending { body: Body::Run(last), commands, bytes: sum, .. }) = self.pending.back_mut()
            && *last == tag
        {
            (*commands, *sum) = (*commands + 1, *sum + bytes);
            return;
        }
        let (first, resp, watch_era) = (self.next_tag, self.resp, self.watch_era);
        let body = Body::Run(tag);
        self.pending.push_back(Pending { first, commands: 1, body, mute: false, bytes, resp, watch_era });
    }
}
