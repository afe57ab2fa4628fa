//! One client's connection: what it chose, what it waits for, and its replies in order.

use super::command;
use super::gather::{Gather, Watched, render_one};
use super::plan::{Act, Ask, Env, Join, Plan, Queued, Shape};
use crate::resp::parse::Args;
use crate::resp::reply::{Reply, Version as Resp};
use crate::settings::Name;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::time::{Micros, millis};
use std::collections::VecDeque;

/// Commands that a transaction may hold.
const TRANSACTION_MAX: usize = 100_000;
/// "For ever", for a request that waits without a limit of its own.
const FOREVER_MS: u64 = 24 * 3600 * 1000;

/// What a reply is thought to take before one was seen.
const REPLY_BYTES_GUESS: usize = 16 << 10;
/// Replies that may be on their way at once, by what they are thought to take.
const REPLIES_BYTES_MAX: usize = 1 << 20;

/// The state of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Which one it is.
    pub session: SessionId,
    /// Its number for people.
    pub id: u64,
    /// Its peer's address.
    pub addr: String,
    /// The name its client gave it.
    pub name: String,
    /// The client's library and its version.
    pub library: (String, String),
    /// The protocol it speaks.
    pub resp: Resp,
    /// How fresh its reads must be.
    pub consistency: Consistency,
    /// The last command it sent.
    pub last_command: &'static str,
    /// Replies to be written.
    pub out: Vec<u8>,
    /// To be closed once its replies are written.
    pub closing: bool,
    /// Whether replies are wanted (CLIENT REPLY).
    pub replies: Replies,
    pending: VecDeque<Pending>,
    next_tag: u32,
    /// What its replies take: the largest one lately.
    reply_bytes: usize,
    transaction: Option<Transaction>,
    watched: Vec<Watched>,
    /// WATCHes whose answers are not here yet.
    watching: usize,
}

/// What CLIENT REPLY chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// Not this command's, nor the next one's.
    SkipThisAndNext,
    /// Not this command's.
    SkipThis,
}

#[derive(Debug, Default)]
struct Transaction {
    queued: Vec<Plan>,
    /// A command was refused, so EXEC will be.
    spoiled: bool,
}

/// A command whose reply is not written yet; it has the numbers from `first` on.
#[derive(Debug)]
struct Pending {
    first: u32,
    body: Body,
    mute: bool,
}

#[derive(Debug)]
enum Body {
    One(Shape),
    Gather(Box<Gather>),
    Ready(Vec<u8>),
}

impl Connection {
    /// A fresh connection.
    pub fn new(session: SessionId, id: u64, addr: String) -> Connection {
        Connection {
            session,
            id,
            addr,
            name: String::new(),
            library: (String::new(), String::new()),
            resp: Resp::Two,
            consistency: Consistency::Mode,
            last_command: "",
            out: Vec::new(),
            closing: false,
            replies: Replies::On,
            pending: VecDeque::new(),
            next_tag: 0,
            reply_bytes: REPLY_BYTES_GUESS,
            transaction: None,
            watched: Vec::new(),
            watching: 0,
        }
    }

    /// Commands whose replies are not written yet.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// How many commands it may have in flight: fewer where replies are large, so that a client that asks
    /// for much and reads nothing fills no memory.
    pub fn window(&self, pipeline_max: usize) -> usize {
        (REPLIES_BYTES_MAX / self.reply_bytes.max(1)).clamp(1, pipeline_max)
    }

    /// Whether MULTI began a transaction.
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Whether this command must wait until earlier ones are answered: EXEC needs what WATCH learns.
    pub fn must_wait(&self, args: &Args) -> bool {
        self.watching > 0 && args.get(0).eq_ignore_ascii_case(b"exec")
    }

    /// Runs a command: its reply is written or awaited, its requests are added to `requests`. What only
    /// the worker can answer is returned.
    pub fn run(&mut self, args: &Args, env: &mut Env<'_>, requests: &mut Vec<Request>) -> Option<Ask> {
        self.replies = match self.replies {
            Replies::SkipThis => Replies::On,
            Replies::SkipThisAndNext => Replies::SkipThis,
            other => other,
        };
        let plan = match self.plan(args, env) {
            Ok(plan) => plan,
            Err(text) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.spoiled = true;
                }
                self.error(&text);
                return None;
            }
        };
        match plan {
            Plan::Key(key, action, shape) if self.transaction.is_none() => {
                match env.shard_of(&key) {
                    Ok(shard) => {
                        let request = self.request(shard, Op::Key(key, action), env);
                        requests.push(request);
                        self.push(Body::One(shape), 1);
                    }
                    Err(text) => self.error(&text),
                }
                None
            }
            Plan::Connection(act) => {
                self.act(act, env, requests);
                None
            }
            plan if self.transaction.is_some() => {
                self.queue(plan);
                None
            }
            Plan::Local(reply) => {
                self.reply_now(reply);
                None
            }
            Plan::Parts(parts, join) => {
                self.watching += usize::from(matches!(join, Join::Watch(_)));
                self.spread(parts, join, None, env, requests);
                None
            }
            Plan::Worker(ask) => Some(ask),
            Plan::Key(..) => None,
        }
    }

    fn plan(&mut self, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
        let Some(command) = command::find(args.get(0)) else { return Err(unknown(args)) };
        if !command.takes(args.len()) {
            return Err(format!("ERR wrong number of arguments for '{}' command", command.name));
        }
        self.last_command = command.name;
        (command.handler)(self, args, env)
    }

    fn queue(&mut self, plan: Plan) {
        let refused = match (&self.transaction, &plan) {
            (_, Plan::Worker(_)) => Some("ERR this command is not allowed inside of MULTI"),
            (_, Plan::Parts(_, Join::Scan(_) | Join::Least | Join::Info(_))) => {
                Some("ERR SCAN, WAIT and INFO are not allowed inside of MULTI")
            }
            (Some(transaction), _) if transaction.queued.len() >= TRANSACTION_MAX => {
                Some("ERR the transaction is too long")
            }
            _ => None,
        };
        let Some(transaction) = &mut self.transaction else { return };
        match refused {
            Some(text) => {
                transaction.spoiled = true;
                self.error(text);
            }
            None => {
                transaction.queued.push(plan);
                self.reply_now(b"+QUEUED\r\n".to_vec());
            }
        }
    }

    fn act(&mut self, act: Act, env: &mut Env<'_>, requests: &mut Vec<Request>) {
        match act {
            Act::Multi if self.transaction.is_some() => self.error("ERR MULTI calls can not be nested"),
            Act::Multi => {
                self.transaction = Some(Transaction::default());
                self.ok();
            }
            Act::Exec => self.exec(env, requests),
            Act::Discard if self.transaction.take().is_none() => self.error("ERR DISCARD without MULTI"),
            Act::Discard => {
                self.watched.clear();
                self.ok();
            }
            Act::Unwatch => {
                self.watched.clear();
                self.ok();
            }
            Act::Refuse(text) => self.error(text),
            Act::Quit => {
                self.ok();
                self.closing = true;
            }
            Act::Reset => {
                let fresh = Connection::new(self.session, self.id, std::mem::take(&mut self.addr));
                let old = std::mem::replace(self, fresh);
                (self.pending, self.out, self.next_tag) = (old.pending, old.out, old.next_tag);
                self.watching = old.watching;
                self.reply_now(b"+RESET\r\n".to_vec());
            }
        }
    }

    fn exec(&mut self, env: &mut Env<'_>, requests: &mut Vec<Request>) {
        let Some(transaction) = self.transaction.take() else { return self.error("ERR EXEC without MULTI") };
        let watched = std::mem::take(&mut self.watched);
        if transaction.spoiled {
            return self.error("EXECABORT Transaction discarded because of previous errors.");
        }
        let (mut parts, mut joins) = (Vec::new(), Vec::new());
        for plan in transaction.queued {
            let (queued, own) = match plan {
                Plan::Local(reply) => (Queued::Local(reply), Vec::new()),
                Plan::Parts(own, join) => (Queued::Joined(join), own),
                Plan::Key(key, action, shape) => match env.shard_of(&key) {
                    Ok(shard) => (Queued::Joined(Join::One(shape)), vec![(shard, Op::Key(key, action))]),
                    Err(text) => return self.error(&text),
                },
                Plan::Connection(_) | Plan::Worker(_) => continue,
            };
            joins.push((queued, own.len()));
            parts.extend(own);
        }
        let mut shards: Vec<ShardId> = parts.iter().map(|(shard, _)| *shard).collect();
        shards.extend(watched.iter().map(|(shard, ..)| *shard));
        shards.sort();
        shards.dedup();
        let crosses = shards.len() > 1;
        if crosses && (!watched.is_empty() || env.settings.get(Name::ExecAcrossShards) == 0) {
            return self.error(
                "CROSSSLOT Keys in request don't hash to the same shard; put {hash tags} into the keys",
            );
        }
        self.spread(parts, Join::Exec(joins), Some(watched), env, requests);
    }

    /// Sends a command's parts out, grouped by shard.
    fn spread(
        &mut self,
        parts: Vec<(ShardId, Op)>,
        join: Join,
        transaction: Option<Vec<Watched>>,
        env: &mut Env<'_>,
        requests: &mut Vec<Request>,
    ) {
        let (gather, grouped) = Gather::new(parts, join, transaction);
        let count = grouped.len() as u32;
        if count == 0 {
            let mut reply = Vec::new();
            gather.finish(self.resp, env, &mut reply);
            return self.reply_now(reply);
        }
        for (index, (shard, op)) in grouped.into_iter().enumerate() {
            let mut request = self.request(shard, op, env);
            request.from =
                From::Session { session: self.session, tag: self.next_tag.wrapping_add(index as u32) };
            requests.push(request);
        }
        self.push(Body::Gather(Box::new(gather)), count);
    }

    fn request(&self, shard: ShardId, op: Op, env: &Env<'_>) -> Request {
        let from = From::Session { session: self.session, tag: self.next_tag };
        let deadline_us = env.now.steady_us + timeout(&op, env.settings.get(Name::RequestTimeoutMs));
        Request { from, shard, op, floor: Position::ZERO, consistency: self.consistency, deadline_us }
    }

    fn push(&mut self, body: Body, tags: u32) {
        let mute = self.replies != Replies::On;
        self.pending.push_back(Pending { first: self.next_tag, body, mute });
        self.next_tag = self.next_tag.wrapping_add(tags);
    }

    /// A shard answered.
    pub fn on_reply(&mut self, tag: u32, outcome: Outcome, env: &mut Env<'_>) {
        let before = self.out.len();
        self.take_reply(tag, outcome, env);
        let written = self.out.len() - before;
        self.reply_bytes = written.max(self.reply_bytes - self.reply_bytes / 16);
    }

    fn take_reply(&mut self, tag: u32, outcome: Outcome, env: &mut Env<'_>) {
        let first = self.pending.front().map_or(0, |pending| pending.first);
        // Numbers wrap around; what counts is how far they are from the oldest.
        let offset = tag.wrapping_sub(first);
        let after = self.pending.partition_point(|pending| pending.first.wrapping_sub(first) <= offset);
        let Some(pending) = after.checked_sub(1).and_then(|index| self.pending.get_mut(index)) else {
            return;
        };
        match &mut pending.body {
            Body::One(shape) if after == 1 => {
                if !pending.mute {
                    render_one(&outcome, *shape, self.resp, &mut self.out);
                }
                self.pending.pop_front();
            }
            Body::One(shape) => {
                let mut reply = Vec::new();
                render_one(&outcome, *shape, self.resp, &mut reply);
                pending.body = Body::Ready(reply);
            }
            Body::Gather(gather) => {
                let request = tag.wrapping_sub(pending.first) as usize;
                if gather.settle(request, outcome)
                    && let Body::Gather(gather) =
                        std::mem::replace(&mut pending.body, Body::Ready(Vec::new()))
                {
                    self.finish(after - 1, *gather, env);
                }
            }
            Body::Ready(_) => {}
        }
        self.write_ready();
    }

    fn finish(&mut self, index: usize, gather: Gather, env: &mut Env<'_>) {
        let mut reply = Vec::new();
        let is_watch = gather.is_watch();
        let watched = gather.finish(self.resp, env, &mut reply);
        if is_watch {
            self.watching = self.watching.saturating_sub(1);
            self.watched.extend(watched);
        }
        self.pending[index].body = Body::Ready(reply);
    }

    fn write_ready(&mut self) {
        while let Some(Pending { body: Body::Ready(reply), mute, .. }) = self.pending.front() {
            if !mute {
                self.out.extend_from_slice(reply);
            }
            self.pending.pop_front();
        }
    }

    /// Answers in turn: now if nothing is awaited, else after what is.
    pub fn reply_now(&mut self, reply: Vec<u8>) {
        if self.pending.is_empty() && self.replies == Replies::On {
            self.out.extend_from_slice(&reply);
        } else {
            self.push(Body::Ready(reply), 1);
            self.write_ready();
        }
    }

    fn ok(&mut self) {
        self.reply_now(b"+OK\r\n".to_vec());
    }

    /// Answers with an error in turn.
    pub fn error(&mut self, text: &str) {
        let mut reply = Vec::new();
        reply.error(text);
        self.reply_now(reply);
    }
}

fn timeout(op: &Op, request_ms: u64) -> Micros {
    millis(match op {
        Op::Wait { timeout_ms: 0, .. } => FOREVER_MS,
        Op::Wait { timeout_ms, .. } => request_ms + (*timeout_ms).min(FOREVER_MS),
        _ => request_ms,
    })
}

/// Redis's wording to the letter: clients look for it.
fn unknown(args: &Args) -> String {
    let cut = |bytes: &[u8]| bytes[..bytes.len().min(128)].escape_ascii().to_string();
    let mut words = String::new();
    for index in 1..args.len() {
        if words.len() > 128 {
            break;
        }
        words += &format!("'{}' ", cut(args.get(index)));
    }
    format!("ERR unknown command '{}', with args beginning with: {words}", cut(args.get(0)))
}
