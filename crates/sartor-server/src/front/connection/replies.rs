//! Replies: in the order of the commands, whatever is answered first.

use super::{Body, Connection, Pending, Replies};
use crate::front::gather::{Gather, render_one, render_step};
use crate::front::plan::{Env, Shape};
use crate::resp::reply::{Reply, Version as Resp};
use sartor_core::operation::{Outcome, Request};
use sartor_core::run::Answer;

impl Connection {
    pub(super) fn push(&mut self, body: Body, tags: u32, bytes: usize) {
        let mute = self.replies != Replies::On;
        self.request_bytes += bytes;
        self.ready_bytes += body.ready_bytes();
        let (resp, watch_era) = (self.resp, self.watch_era);
        let (first, commands) = (self.next_tag, 1);
        self.pending.push_back(Pending { first, commands, body, mute, bytes, resp, watch_era });
        self.commands += 1;
        self.next_tag = self.next_tag.wrapping_add(tags);
    }

    /// A shard answered.
    pub fn on_reply(&mut self, tag: u32, outcome: Outcome, env: &mut Env<'_>, requests: &mut Vec<Request>) {
        self.largest = 0;
        match self.runs.iter_mut().find(|run| run.tag == tag) {
            Some(run) => {
                run.answer = Some(outcome);
                self.write_ready();
            }
            None => self.take_reply(tag, outcome, env, requests),
        }
        self.reply_bytes = self.largest.max(self.reply_bytes - self.reply_bytes / 16);
    }

    pub(super) fn take_reply(
        &mut self,
        tag: u32,
        outcome: Outcome,
        env: &mut Env<'_>,
        requests: &mut Vec<Request>,
    ) {
        match outcome {
            Outcome::Value(_) => self.hits.0 += 1,
            Outcome::Nil => self.hits.1 += 1,
            _ => {}
        }
        let first = self.pending.front().map_or(0, |pending| pending.first);
        // Numbers wrap around; what counts is how far they are from the oldest.
        let offset = tag.wrapping_sub(first);
        let after = self.pending.partition_point(|pending| pending.first.wrapping_sub(first) <= offset);
        let Some(pending) = after.checked_sub(1).and_then(|index| self.pending.get_mut(index)) else {
            return;
        };
        match &mut pending.body {
            Body::One(shape) if after == 1 => {
                let before = self.out.len();
                if !pending.mute {
                    render_one(&outcome, *shape, pending.resp, &mut self.out);
                }
                self.largest = self.out.len() - before;
                self.pop_pending();
            }
            Body::One(shape) => {
                let mut reply = Vec::new();
                render_one(&outcome, *shape, pending.resp, &mut reply);
                self.ready_bytes += reply.len();
                pending.body = Body::Ready(reply);
            }
            Body::Gather(gather) => {
                let request = tag.wrapping_sub(pending.first) as usize;
                if !gather.settle(request, outcome) {
                    return;
                }
                let gone = self.closing;
                if let Some(parts) = gather.ask_again(env).filter(|_| !gone) {
                    let first = pending.first;
                    return self.ask(first, parts, env, requests);
                }
                if let Body::Gather(gather) = std::mem::replace(&mut pending.body, Body::Ready(Vec::new())) {
                    self.finish(after - 1, *gather, env);
                }
            }
            Body::Ready(_) | Body::Run(_) | Body::Awaited => {}
        }
        self.write_ready();
    }

    pub(super) fn finish(&mut self, index: usize, gather: Gather, env: &mut Env<'_>) {
        let mut reply = Vec::new();
        let is_watch = gather.is_watch();
        let (resp, era) = (self.pending[index].resp, self.pending[index].watch_era);
        let watched = gather.finish(resp, env, &mut reply);
        if is_watch {
            self.watching = self.watching.saturating_sub(1);
            if era == self.watch_era {
                self.watched.extend(watched);
            }
        }
        self.ready_bytes += reply.len();
        self.pending[index].body = Body::Ready(reply);
    }

    pub(super) fn write_ready(&mut self) {
        while let Some(pending) = self.pending.front() {
            match &pending.body {
                Body::Ready(reply) => {
                    if !pending.mute {
                        self.out.extend_from_slice(reply);
                    }
                    self.largest = self.largest.max(reply.len());
                    self.ready_bytes -= reply.len();
                }
                Body::Run(tag) => {
                    let (tag, commands, resp) = (*tag, pending.commands, pending.resp);
                    if !self.write_steps(tag, commands, resp) {
                        return;
                    }
                }
                Body::One(_) | Body::Gather(_) | Body::Awaited => return,
            }
            self.pop_pending();
        }
    }

    /// Writes the replies to the next commands of a run; false while there are none.
    pub(super) fn write_steps(&mut self, tag: u32, commands: u32, resp: Resp) -> bool {
        let Some(index) = self.runs.iter().position(|run| run.tag == tag) else { return true };
        let run = &mut self.runs[index];
        let Some(answer) = &run.answer else { return false };
        for _ in 0..commands {
            let before = self.out.len();
            if let Outcome::Run(answers) = answer {
                let step = answers.take(&mut run.at);
                self.hits.0 += u64::from(matches!(step, Some(Answer::Value(_))));
                self.hits.1 += u64::from(matches!(step, Some(Answer::Nil)));
                render_step(step.as_ref(), resp, &mut self.out);
            } else {
                render_one(answer, Shape::Plain, resp, &mut self.out);
            }
            self.largest = self.largest.max(self.out.len() - before);
        }
        run.left -= commands;
        if run.left == 0 {
            self.runs.remove(index);
        }
        true
    }

    pub(super) fn pop_pending(&mut self) {
        if let Some(pending) = self.pending.pop_front() {
            self.request_bytes -= pending.bytes;
            self.commands -= pending.commands as usize;
        }
    }

    /// A command that the worker answers later; its place.
    pub fn await_worker(&mut self) -> u32 {
        let place = self.next_tag;
        self.push(Body::Awaited, 1, 0);
        self.awaiting += 1;
        place
    }

    /// The answer to the command in that place.
    pub fn answer_awaited(&mut self, place: u32, reply: Vec<u8>) {
        let awaited =
            |pending: &&mut Pending| pending.first == place && matches!(pending.body, Body::Awaited);
        if let Some(pending) = self.pending.iter_mut().find(awaited) {
            self.ready_bytes += reply.len();
            pending.body = Body::Ready(reply);
            self.awaiting -= 1;
            self.write_ready();
        }
    }

    /// Answers in turn: now if nothing is awaited, else after what is.
    pub fn reply_now(&mut self, reply: Vec<u8>) {
        if self.pending.is_empty() && self.replies == Replies::On {
            self.out.extend_from_slice(&reply);
        } else {
            self.push(Body::Ready(reply), 1, 0);
            self.write_ready();
        }
    }

    pub(super) fn ok(&mut self) {
        self.reply_now(b"+OK\r\n".to_vec());
    }

    /// Answers with an error in turn.
    pub fn error(&mut self, text: &str) {
        let mut reply = Vec::new();
        reply.error(text);
        self.reply_now(reply);
    }
}
