//! Joins: operations grouped by shard on the way out, outcomes made one reply on the way back.

use super::consistency::words;
use super::glob;
use super::plan::{Env, Join, Queued, ScanJoin, Shape, Whole, WholeAsk};
use crate::front::{admin, range, verify};
use crate::resp::reply::{Reply, Version as Resp};
use bytes::Bytes;
use sartor_core::datalet::Cursor;
use sartor_core::ids::{Epoch, ShardId};
use sartor_core::operation::{Batch, Failure, FailureKind, Op, Outcome, Version};
use sartor_core::run::{Answer, Packer, Run, may_run};

/// What WATCH remembers: where a key lives, and which version it had.
pub type Watched = (ShardId, Bytes, Version);

/// Where a part's outcome will be found: in which request, and at which step of its batch.
#[derive(Clone, Copy, Debug)]
struct Place {
    request: usize,
    step: Option<usize>,
}

/// A command whose parts are on their way.
#[derive(Debug)]
pub struct Gather {
    join: Join,
    places: Vec<Place>,
    outcomes: Vec<Option<Outcome>>,
    left: usize,
    /// Where tables as a whole are asked: how to ask again.
    again: Option<Again>,
}

#[derive(Debug)]
struct Again {
    ask: WholeAsk,
    divided: Epoch,
    rounds: u8,
    /// So many parts at most.
    parts_max: usize,
}

/// So many more parts than at first a command may have when it is asked again.
const MORE_PARTS: usize = 16;

impl Gather {
    /// Groups parts by shard: one request each. Parts that share a shard are one atomic batch; in a
    /// transaction (with what it watched) all are.
    pub fn new(
        parts: Vec<(ShardId, Op)>,
        join: Join,
        transaction: Option<Vec<Watched>>,
    ) -> (Gather, Vec<(ShardId, Op)>) {
        let (join, again) = match join {
            Join::Whole(whole) => {
                let Whole { ask, join, divided, rounds } = *whole;
                let parts_max = parts.len() + MORE_PARTS;
                // Where everything is removed, the node sees to the parts itself.
                let again = !ask.removes();
                (join, again.then_some(Again { ask, divided, rounds, parts_max }))
            }
            join => (join, None),
        };
        let is_transaction = transaction.is_some();
        let mut groups: Vec<(ShardId, Batch)> = Vec::new();
        let count = parts.len();
        let mut places = Vec::with_capacity(count);
        let group = |groups: &mut Vec<(ShardId, Batch)>, shard| {
            groups.iter().position(|(of, _)| *of == shard).unwrap_or_else(|| {
                let steps = Vec::with_capacity(count / (groups.len() + 1));
                groups.push((shard, Batch { steps, ..Batch::default() }));
                groups.len() - 1
            })
        };
        for (shard, key, version) in transaction.unwrap_or_default() {
            let request = group(&mut groups, shard);
            groups[request].1.watched.push((key, version));
        }
        for (shard, op) in parts {
            let request = group(&mut groups, shard);
            let steps = &mut groups[request].1.steps;
            places.push(Place { request, step: Some(steps.len()) });
            steps.push(op);
        }
        let mut requests = Vec::with_capacity(groups.len());
        for (index, (shard, mut batch)) in groups.into_iter().enumerate() {
            let op = match batch.steps.len() {
                1 if !is_transaction => {
                    places
                        .iter_mut()
                        .filter(|place| place.request == index)
                        .for_each(|place| place.step = None);
                    batch.steps.remove(0)
                }
                _ => Op::Batch(batch),
            };
            requests.push((shard, op));
        }
        let (left, outcomes) = (requests.len(), vec![None; requests.len()]);
        (Gather { join, places, outcomes, left, again }, requests)
    }

    /// An answer came; true when it was the last one.
    pub fn settle(&mut self, request: usize, outcome: Outcome) -> bool {
        if self.outcomes[request].replace(outcome).is_none() {
            self.left -= 1;
        }
        self.left == 0
    }

    /// What to ask again: for a WAIT that is not content yet, and where a table was divided meanwhile.
    pub fn ask_again(&mut self, env: &Env<'_>) -> Option<Vec<(ShardId, Op)>> {
        if self.again.is_some() {
            return self.ask_whole_again(env);
        }
        let now = env.now.steady_us;
        let Join::Wait(wait) = &self.join else { return None };
        let content = |outcome: &Option<Outcome>| match outcome {
            Some(Outcome::Integer(copies)) => *copies >= wait.copies,
            _ => true,
        };
        let failed = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Failed(_)));
        let done = self.outcomes.iter().all(content) || self.outcomes.iter().any(failed);
        if done || now >= wait.until_us {
            return None;
        }
        self.outcomes.fill(None);
        self.left = self.outcomes.len();
        Some(wait.parts.clone())
    }

    fn ask_whole_again(&mut self, env: &Env<'_>) -> Option<Vec<(ShardId, Op)>> {
        let again = self.again.as_mut()?;
        let divided = again.ask.divided(env);
        if divided == again.divided {
            return None;
        }
        again.divided = divided;
        let text = "the table is being divided; try again";
        let parts = match again.ask.parts(env) {
            Ok(parts) if again.rounds > 0 && parts.len() <= again.parts_max => parts,
            Ok(_) => {
                self.outcomes[0] = Some(Failure::outcome(FailureKind::Retry, text));
                return None;
            }
            Err(_) => {
                let gone = "the table was deleted; SELECT another one";
                self.outcomes[0] = Some(Failure::outcome(FailureKind::Invalid, gone));
                return None;
            }
        };
        again.rounds -= 1;
        self.places = (0..parts.len()).map(|request| Place { request, step: None }).collect();
        (self.outcomes, self.left) = (vec![None; parts.len()], parts.len());
        Some(parts)
    }

    /// How many numbers of requests it needs: more than at first, where more shards may be asked again.
    pub fn tags(&self) -> u32 {
        self.again.as_ref().map_or(self.outcomes.len(), |again| again.parts_max) as u32
    }

    /// Whether it is a WATCH.
    pub fn is_watch(&self) -> bool {
        matches!(self.join, Join::Watch(_))
    }

    /// Writes the reply; what WATCH should remember, if this was one.
    pub fn finish(self, resp: Resp, env: &mut Env<'_>, out: &mut Vec<u8>) -> Vec<Watched> {
        let mut requests: Vec<Outcome> =
            self.outcomes.into_iter().map(|o| o.unwrap_or(Outcome::Nil)).collect();
        let mut steps = vec![0; requests.len()];
        let stepped = self.places.iter().filter(|place| place.step.is_some());
        stepped.for_each(|place| steps[place.request] += 1);
        requests.iter_mut().zip(steps).for_each(|(outcome, steps)| refuse_unfit(outcome, steps));
        // How far the answers of each run are read: its parts come in order.
        let mut read = vec![0; requests.len()];
        if let Join::Array = self.join {
            // MGET: what one shard cannot answer does not take the others' answers away.
            out.array(self.places.len());
            for Place { request, step } in self.places {
                match (&requests[request], step) {
                    (Outcome::Run(answers), _) => {
                        render_step(answers.take(&mut read[request]).as_ref(), resp, out);
                    }
                    (Outcome::Many(steps), Some(step)) => render_one(&steps[step], Shape::Plain, resp, out),
                    (other, _) => render_one(other, Shape::Plain, resp, out),
                }
            }
            return Vec::new();
        }
        let of_place = |place: &Place| match (&requests[place.request], place.step) {
            (Outcome::Many(steps), Some(step)) => steps.get(step).cloned().unwrap_or(Outcome::Nil),
            (Outcome::Run(answers), _) => {
                let answer = answers.take(&mut read[place.request]);
                answer.map_or(Outcome::Nil, |answer| answer.to_outcome())
            }
            (other, _) => other.clone(),
        };
        let outcomes: Vec<Outcome> = self.places.iter().map(of_place).collect();
        match self.join {
            Join::Watch(keys) => return watch(keys, &outcomes, out),
            Join::Exec(queued) => exec(queued, &requests, &outcomes, resp, env, out),
            join => render(&join, &outcomes, resp, env, out),
        }
        Vec::new()
    }
}

/// What was remembered under an id of a shard that was divided since may be the answer to more than is asked now.
fn refuse_unfit(outcome: &mut Outcome, steps: usize) {
    if let Outcome::Many(answers) = outcome
        && answers.len() != steps
    {
        let text =
            "it took effect before the table was divided; what it answered then cannot be told any more";
        *outcome = Failure::outcome(FailureKind::Uncertain, text);
    }
}

/// Batches as runs, where they can be: those cost less. A batch is no more atomic than a run.
pub fn packed(requests: Vec<(ShardId, Op)>) -> Vec<(ShardId, Op)> {
    let pack = |op: Op| match &op {
        Op::Batch(batch) => pack(batch).map_or(op, |run| Op::Run(run.bounded())),
        _ => op,
    };
    requests.into_iter().map(|(shard, op)| (shard, pack(op))).collect()
}

fn pack(batch: &Batch) -> Option<Run> {
    let mut packer = Packer::with_capacity(batch.steps.iter().map(|step| step.size() + 16).sum());
    for step in &batch.steps {
        match step {
            Op::Key(key, action) if may_run(action) && packer.has_room(step.size() + 16) => {
                packer.push(key, action);
            }
            _ => return None,
        }
    }
    batch.watched.is_empty().then(|| packer.take())
}

/// Writes one outcome.
pub fn render_one(outcome: &Outcome, shape: Shape, resp: Resp, out: &mut Vec<u8>) {
    match (shape, outcome) {
        (_, Outcome::Failed(failure)) => out.error(&error_text(failure)),
        (Shape::Bit, outcome) => out.integer(i64::from(*outcome == Outcome::Done)),
        (Shape::Type, outcome) => out.simple(if *outcome == Outcome::Integer(0) { "none" } else { "string" }),
        (Shape::Told(level), outcome) => {
            out.array(2);
            render_one(outcome, Shape::Plain, resp, out);
            out.bulk(words(level).as_bytes());
        }
        (Shape::Plain, Outcome::Value(value)) => out.bulk(value),
        (Shape::Plain, Outcome::Done) => out.extend_from_slice(b"+OK\r\n"),
        (Shape::Plain, Outcome::Nil) => out.null(resp),
        (Shape::Plain, Outcome::Integer(number)) => out.integer(*number),
        (Shape::Plain, Outcome::Aborted) => out.null_array(resp),
        (Shape::Plain, Outcome::Many(outcomes)) => {
            out.array(outcomes.len());
            outcomes.iter().for_each(|outcome| render_one(outcome, Shape::Plain, resp, out));
        }
        (
            Shape::Plain,
            Outcome::Version(_) | Outcome::Page(..) | Outcome::Ranged(_) | Outcome::Dead(_) | Outcome::Run(_),
        ) => out.error("ERR internal: an outcome that has no reply"),
    }
}

/// Writes what a step of a run answered.
pub fn render_step(answer: Option<&Answer<'_>>, resp: Resp, out: &mut Vec<u8>) {
    match answer {
        Some(Answer::Value(value)) => out.bulk(value),
        Some(Answer::Done) => out.extend_from_slice(b"+OK\r\n"),
        Some(Answer::Nil) => out.null(resp),
        Some(Answer::Integer(number)) => out.integer(*number),
        Some(Answer::Other(outcome)) => render_one(outcome, Shape::Plain, resp, out),
        None => out.error("ERR internal: a run with too few answers"),
    }
}

/// A failure as clients read it.
pub fn error_text(failure: &Failure) -> String {
    let prefix = match failure.kind {
        FailureKind::Retry | FailureKind::Moved => "LOADING",
        FailureKind::Uncertain => "UNCERTAIN",
        FailureKind::Full => "OOM",
        FailureKind::Invalid | FailureKind::Unsupported | FailureKind::Data => "ERR",
    };
    format!("{prefix} {}", failure.text)
}

/// The error of a command of which some part failed. Where others were done, it is not a plain no.
fn failure_of(outcomes: &[Outcome]) -> Option<Failure> {
    let failures = failures_of(outcomes);
    let count = failures.clone().count();
    let worst = failures.max_by_key(|failure| failure.kind == FailureKind::Uncertain)?;
    if count == outcomes.len() || worst.kind == FailureKind::Uncertain {
        return Some(worst.clone());
    }
    let (done, all) = (outcomes.len() - count, outcomes.len());
    let text = format!("{done} of {all} parts took effect, the others did not: {}", worst.text);
    Some(Failure { kind: FailureKind::Uncertain, text: text.into() })
}

fn failures_of(outcomes: &[Outcome]) -> impl Iterator<Item = &Failure> + Clone {
    outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Failed(failure) => Some(failure),
        _ => None,
    })
}

fn render(join: &Join, outcomes: &[Outcome], resp: Resp, env: &mut Env<'_>, out: &mut Vec<u8>) {
    if let Join::Array = join {
        out.array(outcomes.len());
        return outcomes.iter().for_each(|outcome| render_one(outcome, Shape::Plain, resp, out));
    }
    if let Join::Whole(whole) = join {
        // In a transaction it is not asked again.
        return render(&whole.join, outcomes, resp, env, out);
    }
    if let Join::Surveys(shards) = join {
        return verify::write_started(shards, outcomes, out);
    }
    let failure = match join {
        Join::Info(..) => None,
        // Reading has no effect: a part that failed is a plain no.
        Join::Range(_) => failures_of(outcomes).next().cloned(),
        _ => failure_of(outcomes),
    };
    if let Some(failure) = failure {
        return out.error(&error_text(&failure));
    }
    let numbers = outcomes.iter().map(|outcome| match outcome {
        Outcome::Integer(number) => *number,
        _ => 0,
    });
    match join {
        Join::One(shape) => {
            outcomes.iter().take(1).for_each(|outcome| render_one(outcome, *shape, resp, out));
        }
        Join::Sum => out.integer(numbers.sum()),
        Join::Wait(_) => out.integer(numbers.min().unwrap_or(0)),
        Join::AllDone => out.simple("OK"),
        Join::Scan(scan) => page(scan, outcomes, env, out),
        Join::Range(join) => range::write(*join, outcomes, resp, out),
        Join::Info(sections, tables) => {
            admin::info_text(sections, tables.iter().copied().zip(numbers), env, out);
        }
        Join::Array | Join::Surveys(_) | Join::Watch(_) | Join::Exec(_) | Join::Whole(_) => {}
    }
}

fn page(scan: &ScanJoin, outcomes: &[Outcome], env: &mut Env<'_>, out: &mut Vec<u8>) {
    let Some(Outcome::Page(keys, cursor)) = outcomes.first() else {
        return out.error("ERR internal: SCAN without a page");
    };
    let (part, next) = place_of(scan.shard, env);
    let next = match (cursor, next) {
        (Cursor::End, None) => 0,
        (Cursor::End, Some(shard)) => env.cursors.to_number(part + 1, shard, Cursor::Start),
        (cursor, _) => env.cursors.to_number(part, scan.shard, cursor.clone()),
    };
    let fits = |key: &&Bytes| {
        !scan.nothing && scan.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, key))
    };
    let keys: Vec<&Bytes> = keys.iter().filter(fits).collect();
    out.array(2);
    out.bulk(next.to_string().as_bytes());
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
}

/// Which part of its table a shard is, and the next one.
fn place_of(shard: ShardId, env: &Env<'_>) -> (usize, Option<ShardId>) {
    let table = env.map.and_then(|map| map.shard(shard)).map(|shard| shard.table);
    let all = env.map.iter().flat_map(|map| map.takers_of(table.unwrap_or_default())).map(|shard| shard.id);
    let all: Vec<ShardId> = all.collect();
    let part = all.iter().position(|known| *known == shard).unwrap_or(all.len());
    (part, all.get(part + 1).copied())
}

fn watch(keys: Vec<(ShardId, Bytes)>, outcomes: &[Outcome], out: &mut Vec<u8>) -> Vec<Watched> {
    if let Some(failure) = failure_of(outcomes) {
        // Versions were only read: a part that failed is a plain no.
        out.error(&error_text(&Failure { kind: FailureKind::Retry, ..failure }));
        return Vec::new();
    }
    out.simple("OK");
    let versions = keys.into_iter().zip(outcomes).filter_map(|((shard, key), outcome)| match outcome {
        Outcome::Version(version) => Some((shard, key, *version)),
        _ => None,
    });
    versions.collect()
}

fn exec(
    queued: Vec<(Queued, usize)>,
    requests: &[Outcome],
    outcomes: &[Outcome],
    resp: Resp,
    env: &mut Env<'_>,
    out: &mut Vec<u8>,
) {
    if requests.contains(&Outcome::Aborted) {
        return out.null_array(resp);
    }
    if let Some(failure) = failure_of(requests) {
        return out.error(&error_text(&failure));
    }
    out.array(queued.len());
    let mut rest = outcomes;
    for (queued, count) in queued {
        let (own, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        match queued {
            Queued::Local(reply) => out.extend_from_slice(&reply),
            Queued::Joined(join) => render(&join, own, resp, env, out),
        }
    }
}
