//! One client's connection: what it chose, what it waits for, and its replies in order.

use super::command;
use super::gather::{Gather, Watched, packed};
use super::plan::{Act, Ask, Env, Join, Plan, Queued, Shape};
use super::runs::{Command, Runs, STEP_BYTES_MAX};
use crate::resp::hot::Hot;
use crate::resp::parse::Args;
use crate::resp::reply::Version as Resp;
use crate::settings::Name;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{Action, Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::time::millis;
use std::collections::VecDeque;

mod replies;
mod runs;

/// Commands that a transaction may hold.
const TRANSACTION_MAX: usize = 100_000;

/// What a reply is thought to take before one was seen.
const REPLY_BYTES_GUESS: usize = 16 << 10;
/// Replies that may be on their way at once, by what they are thought to take.
const REPLIES_BYTES_MAX: usize = 1 << 20;

/// Bytes of requests that may be on their way at once.
const REQUESTS_BYTES_MAX: usize = 64 << 20;

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
    /// The table that it works in.
    pub table: u16,
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
    /// Runs whose commands are pending.
    runs: Vec<Answering>,
    /// How many commands are pending, and how many of them are in the worker's pool.
    commands: usize,
    pooled: usize,
    next_tag: u32,
    /// What its replies take: the largest one lately, and the largest one that was just written.
    reply_bytes: usize,
    largest: usize,
    /// GETs that found something, and that did not, since somebody asked.
    pub hits: (u64, u64),
    /// Bytes of requests on their way.
    request_bytes: usize,
    /// Bytes of replies that wait for earlier ones.
    ready_bytes: usize,
    /// Raised by whatever forgets watched keys: an answer to an older WATCH is not remembered.
    watch_era: u32,
    transaction: Option<Transaction>,
    watched: Vec<Watched>,
    /// WATCHes whose answers are not here yet.
    watching: usize,
    /// Commands that the worker answers later: what comes after them waits.
    awaiting: usize,
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
    bytes: usize,
    /// A command was refused, so EXEC will be.
    spoiled: bool,
}

/// A run and its answers.
#[derive(Debug)]
struct Answering {
    tag: u32,
    answer: Option<Outcome>,
    /// Where the next one lies.
    at: usize,
    /// Commands whose replies are not written yet.
    left: u32,
}

/// A command whose reply is not written yet, or several of a run; it has the numbers from `first` on.
#[derive(Debug)]
struct Pending {
    first: u32,
    commands: u32,
    body: Body,
    mute: bool,
    /// Of its requests.
    bytes: usize,
    /// The protocol and the watches as they were when it came.
    resp: Resp,
    watch_era: u32,
}

#[derive(Debug)]
enum Body {
    One(Shape),
    /// The next ones of this run.
    Run(u32),
    Gather(Box<Gather>),
    /// The worker answers it later.
    Awaited,
    Ready(Vec<u8>),
}

impl Body {
    fn ready_bytes(&self) -> usize {
        if let Body::Ready(reply) = self { reply.len() } else { 0 }
    }
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
            table: 0,
            consistency: Consistency::Mode,
            last_command: "",
            out: Vec::new(),
            closing: false,
            replies: Replies::On,
            pending: VecDeque::new(),
            runs: Vec::new(),
            commands: 0,
            pooled: 0,
            next_tag: 0,
            reply_bytes: REPLY_BYTES_GUESS,
            largest: 0,
            hits: (0, 0),
            request_bytes: 0,
            ready_bytes: 0,
            watch_era: 0,
            transaction: None,
            watched: Vec::new(),
            watching: 0,
            awaiting: 0,
        }
    }

    /// Commands whose replies are not written yet.
    pub fn in_flight(&self) -> usize {
        self.commands
    }

    /// How many commands it may have in flight: fewer where replies are large, so that a client that asks
    /// for much and reads nothing fills no memory.
    pub fn window(&self, pipeline_max: usize) -> usize {
        let full = self.request_bytes > REQUESTS_BYTES_MAX || self.ready_bytes > REPLIES_BYTES_MAX;
        if full || self.awaiting > 0 {
            return 1;
        }
        (REPLIES_BYTES_MAX / self.reply_bytes.max(1)).clamp(1, pipeline_max)
    }

    /// Bytes it holds for requests on their way and for its transaction.
    pub fn held_bytes(&self) -> usize {
        self.ready_bytes
            + self.request_bytes
            + self.transaction.as_ref().map_or(0, |transaction| transaction.bytes)
    }

    /// How many keys it watches.
    pub fn watches(&self) -> usize {
        self.watched.len()
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
    pub fn run(
        &mut self,
        args: &Args,
        env: &mut Env<'_>,
        runs: &mut Runs,
        requests: &mut Vec<Request>,
    ) -> Option<Ask> {
        self.begin_command();
        let plan = match self.plan(args, env) {
            Ok(plan) => plan,
            Err(text) => {
                self.spoil(&text);
                return None;
            }
        };
        if let Plan::Key(key, action, Shape::Plain) = &plan
            && self.may_run()
            && Command::Key(key, action).fits()
            && self.join(Command::Key(key, action), env, runs, requests)
        {
            return None;
        }
        self.close_runs(env, runs, requests);
        match plan {
            Plan::Key(key, action, shape) if self.transaction.is_none() => {
                match env.shard_of(&key) {
                    Ok(shard) => {
                        let request = self.request(shard, Op::Key(key, action), env);
                        let bytes = request.op.size();
                        requests.push(request);
                        self.push(Body::One(shape), 1, bytes);
                    }
                    Err(text) => self.error(&text),
                }
                None
            }
            Plan::Connection(act) => {
                self.act(act, env, requests);
                None
            }
            Plan::Read(key, consistency) if self.transaction.is_none() => {
                match env.shard_of(&key) {
                    Ok(shard) => {
                        let request = self.request(shard, Op::Key(key, Action::Get), env);
                        let bytes = request.op.size();
                        requests.push(Request { consistency, ..request });
                        self.push(Body::One(Shape::Told(consistency)), 1, bytes);
                    }
                    Err(text) => self.error(&text),
                }
                None
            }
            plan if self.transaction.is_some() => {
                self.queue(plan, env.settings.size(Name::RequestBytesMax));
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
            Plan::Once(id, parts, join) => {
                // Of each shard there is one, whatever is being made of it.
                let taker = |shard| env.map.map_or(shard, |map| map.taker_of(shard));
                let parts = parts.into_iter().map(|(shard, op)| (taker(shard), op)).collect();
                let (gather, grouped) = Gather::new(parts, join, None);
                let named = |(shard, op)| (shard, id.name(op));
                self.gather(gather, grouped.into_iter().map(named).collect(), env, requests);
                None
            }
            Plan::Worker(ask) => Some(ask),
            Plan::Key(..) | Plan::Read(..) => None,
        }
    }

    /// A command that could not even be read: its error, as if it had been run.
    pub fn refuse(&mut self, text: &str) {
        self.begin_command();
        self.spoil(text);
    }

    fn begin_command(&mut self) {
        self.replies = match self.replies {
            Replies::SkipThis => Replies::On,
            Replies::SkipThisAndNext => Replies::SkipThis,
            other => other,
        };
    }

    /// An error; a transaction it comes in will not be run.
    fn spoil(&mut self, text: &str) {
        if let Some(transaction) = &mut self.transaction {
            transaction.spoiled = true;
        }
        self.error(text);
    }

    fn plan(&mut self, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
        let Some(command) = command::find(args.get(0)) else { return Err(unknown(args)) };
        if !command.takes(args.len()) {
            return Err(format!("ERR wrong number of arguments for '{}' command", command.name));
        }
        if self.transaction.is_some() && command.flags.contains(&"connection") {
            return Err(format!("ERR {} is not allowed inside of MULTI", command.name.to_uppercase()));
        }
        self.last_command = command.name;
        (command.handler)(self, args, env)
    }

    fn queue(&mut self, plan: Plan, bytes_max: usize) {
        let bytes = 64 + size_of_plan(&plan);
        let refused = match (&self.transaction, &plan) {
            (_, Plan::Worker(_) | Plan::Once(..) | Plan::Read(..)) => {
                Some("ERR this command is not allowed inside of MULTI")
            }
            (_, Plan::Parts(_, Join::Scan(_) | Join::Wait(_) | Join::Info(..) | Join::Surveys(_))) => {
                Some("ERR SCAN, WAIT, INFO and SARTOR.VERIFY are not allowed inside of MULTI")
            }
            (Some(transaction), _) if transaction.queued.len() >= TRANSACTION_MAX => {
                Some("ERR the transaction is too long")
            }
            (Some(transaction), _) if transaction.bytes + bytes > bytes_max => {
                Some("ERR the transaction is larger than request-bytes-max")
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
                transaction.bytes += bytes;
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
            Act::Discard | Act::Unwatch => {
                self.forget_watches();
                self.ok();
            }
            Act::Consistency(level) => {
                self.consistency = level;
                self.ok();
            }
            Act::Table(table) => {
                self.table = table;
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
                (self.runs, self.commands, self.hits) = (old.runs, old.commands, old.hits);
                (self.pooled, self.awaiting) = (old.pooled, old.awaiting);
                (self.request_bytes, self.ready_bytes) = (old.request_bytes, old.ready_bytes);
                (self.watching, self.watch_era) = (old.watching, old.watch_era.wrapping_add(1));
                self.reply_now(b"+RESET\r\n".to_vec());
            }
        }
    }

    fn exec(&mut self, env: &mut Env<'_>, requests: &mut Vec<Request>) {
        let Some(transaction) = self.transaction.take() else { return self.error("ERR EXEC without MULTI") };
        let watched = self.forget_watches();
        if transaction.spoiled {
            return self.error("EXECABORT Transaction discarded because of previous errors.");
        }
        let (mut parts, mut joins) = (Vec::new(), Vec::new());
        for plan in transaction.queued {
            let (queued, own) = match plan {
                Plan::Local(reply) => (Queued::Local(reply), Vec::new()),
                Plan::Parts(own, join) => match by_now(own, &join, env) {
                    Ok(own) => (Queued::Joined(join), own),
                    Err(text) => return self.error(&text),
                },
                Plan::Key(key, action, shape) => match env.shard_of(&key) {
                    Ok(shard) => (Queued::Joined(Join::One(shape)), vec![(shard, Op::Key(key, action))]),
                    Err(text) => return self.error(&text),
                },
                Plan::Connection(_) | Plan::Worker(_) | Plan::Once(..) | Plan::Read(..) => continue,
            };
            joins.push((queued, own.len()));
            parts.extend(own);
        }
        let mut shards: Vec<ShardId> = parts.iter().map(|(shard, _)| *shard).collect();
        // Where a table was divided since, the key is in another shard.
        let moved = |(shard, key, version): Watched| {
            let table = env.map.and_then(|map| map.shard(shard)).map(|shard| shard.table);
            let home = table.and_then(|table| env.routes.shard_of(table, &key));
            (home.unwrap_or(shard), key, version)
        };
        let watched: Vec<Watched> = watched.into_iter().map(moved).collect();
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

    fn forget_watches(&mut self) -> Vec<Watched> {
        self.watch_era = self.watch_era.wrapping_add(1);
        std::mem::take(&mut self.watched)
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
        let is_transaction = transaction.is_some();
        let (gather, grouped) = Gather::new(parts, join, transaction);
        self.gather(gather, if is_transaction { grouped } else { packed(grouped) }, env, requests);
    }

    /// Sends one operation a shard; the reply follows when all are answered.
    fn gather(
        &mut self,
        gather: Gather,
        grouped: Vec<(ShardId, Op)>,
        env: &mut Env<'_>,
        requests: &mut Vec<Request>,
    ) {
        let count = grouped.len() as u32;
        if count == 0 {
            let mut reply = Vec::new();
            gather.finish(self.resp, env, &mut reply);
            return self.reply_now(reply);
        }
        let bytes = grouped.iter().map(|(_, op)| op.size()).sum();
        self.ask(self.next_tag, grouped, env, requests);
        let tags = gather.tags();
        self.push(Body::Gather(Box::new(gather)), tags, bytes);
    }

    /// Asks shards under the numbers from `first` on.
    fn ask(&self, first: u32, parts: Vec<(ShardId, Op)>, env: &Env<'_>, requests: &mut Vec<Request>) {
        for (index, (shard, op)) in parts.into_iter().enumerate() {
            let tag = first.wrapping_add(index as u32);
            let from = From::Session { session: self.session, tag };
            requests.push(Request { from, ..self.request(shard, op, env) });
        }
    }

    fn request(&self, shard: ShardId, op: Op, env: &Env<'_>) -> Request {
        let from = From::Session { session: self.session, tag: self.next_tag };
        let deadline_us = env.now.steady_us + millis(env.settings.get(Name::RequestTimeoutMs));
        Request { from, shard, op, floor: Position::ZERO, consistency: self.consistency, deadline_us }
    }
}

/// The shards of a command that was queued a while ago: tables may have been divided since.
fn by_now(parts: Vec<(ShardId, Op)>, join: &Join, env: &Env<'_>) -> Result<Vec<(ShardId, Op)>, String> {
    if let Join::Whole(whole) = join {
        return whole.ask.parts(env);
    }
    let home = |(shard, op)| match &op {
        Op::Key(key, _) => Ok((env.shard_of(key)?, op)),
        _ => Ok((shard, op)),
    };
    parts.into_iter().map(home).collect()
}

/// What became of a request that might join the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It has joined, and had so many bytes.
    Bytes(usize),
    /// It goes another way.
    No,
    /// What is in the pool must be sent first.
    Full,
}

fn name_of(hot: Hot<'_>) -> &'static str {
    if matches!(hot, Hot::Get(_)) { "get" } else { "set" }
}

fn within_limits(hot: Hot<'_>, env: &Env<'_>) -> bool {
    let (key, value) = match hot {
        Hot::Get(key) => (key, 0),
        Hot::Set(key, value) => (key, value.len()),
    };
    let max = |name| env.settings.size(name);
    key.len() <= max(Name::KeyBytesMax)
        && value <= max(Name::ValueBytesMax)
        && key.len() + value < STEP_BYTES_MAX.min(max(Name::RequestBytesMax))
}

fn size_of_plan(plan: &Plan) -> usize {
    match plan {
        Plan::Local(reply) => reply.len(),
        Plan::Key(key, action, _) => Op::Key(key.clone(), action.clone()).size(),
        Plan::Read(key, _) => key.len(),
        Plan::Parts(parts, _) | Plan::Once(_, parts, _) => parts.iter().map(|(_, op)| 64 + op.size()).sum(),
        Plan::Connection(_) | Plan::Worker(_) => 0,
    }
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
