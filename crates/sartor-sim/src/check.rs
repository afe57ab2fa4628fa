//! What must hold after a run in a mode that promises to converge.
//!
//! - Every answer was true at the place in the shard's history that it names, by a replay of that
//!   history; a connection's places never go back.
//! - A request took effect at most once, and not at all if it was refused.
//! - An EXEC that went through found every watched key untouched.
//! - Every living replica holds what the history says up to its position; with a living primary, all
//!   of it. Nothing stays unanswered in a healed network.

use crate::client::{Asked, TIMEOUT_US};
use crate::plan::FaultKind;
use crate::world::{Record, World};
use bytes::{Bytes, BytesMut};
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::keeper::{Done, Keeper, KeeperLimits, Task, Write};
use sartor_core::operation::{Action, Batch, Context, FailureKind, Old, Op, Outcome, Version, evaluate};
use sartor_core::time::{Micros, Now, millis};
use std::collections::BTreeMap;

/// What stores and turns may add to a deadline.
const SLACK_US: Micros = millis(1000);

/// Checks everything.
pub fn check(world: &mut World) -> Result<(), String> {
    answered(world)?;
    timely(world)?;
    monotonic(world)?;
    at_most_once(world)?;
    truthful(world)?;
    converged(world)
}

/// What a key held.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    value: Bytes,
    deadline_ms: Option<u64>,
    version: Position,
}

type Model = BTreeMap<Bytes, Held>;

fn apply(model: &mut Model, record: &Record) {
    for write in record.entry.writes.as_slice() {
        match write {
            Write::Put { key, value, deadline_ms } => {
                let version = record.entry.position;
                let held = Held { value: value.clone(), deadline_ms: *deadline_ms, version };
                model.insert(key.clone(), held);
            }
            Write::Delete { key } => {
                model.remove(key);
            }
            Write::Clear => model.clear(),
        }
    }
}

/// Requests of connections whose node is still the one they were sent to.
fn answered(world: &World) -> Result<(), String> {
    for client in &world.clients {
        let session = client.session;
        let open = world.clients.iter().filter(|c| c.session.index == session.index);
        if open.map(|c| c.session.generation).max() != Some(session.generation) {
            continue;
        }
        if let Some(tag) = client.asked.iter().position(|asked| asked.answer.is_none()) {
            return Err(format!("{session:?} never got an answer to {tag}: {:?}", client.asked[tag]));
        }
    }
    Ok(())
}

/// Where nothing stood still, a request is answered or given up in time.
fn timely(world: &World) -> Result<(), String> {
    let paused = world.plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Pause(_)));
    for asked in world.clients.iter().flat_map(|client| &client.asked).filter(|_| !paused) {
        let (from, to) = asked.times;
        if asked.answer.is_some() && to > from + TIMEOUT_US + SLACK_US {
            return Err(format!("was answered after {} ms: {asked:?}", (to - from) / 1000));
        }
    }
    Ok(())
}

fn monotonic(world: &World) -> Result<(), String> {
    for client in &world.clients {
        let mut seen: BTreeMap<ShardId, (usize, Position)> = BTreeMap::new();
        for (tag, asked) in client.asked.iter().enumerate() {
            let Some((outcome, position)) = &asked.answer else { continue };
            if matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind)) {
                continue;
            }
            let last = seen.insert(asked.shard, (tag, *position));
            if let Some((before, place)) = last.filter(|(_, place)| place > position) {
                let (first, second) = (&client.asked[before], asked);
                return Err(format!(
                    "{:?} went back from {place} to {position}: {first:?}, then {second:?}",
                    client.session
                ));
            }
        }
    }
    Ok(())
}

fn has_no_place(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Retry | FailureKind::Uncertain)
}

/// Values are unique, so equal operations are the same request.
fn is_unique(op: &Op) -> bool {
    match op {
        Op::Key(_, action) => matches!(action, Action::Set(_) | Action::Add(_) | Action::Append(_)),
        Op::Batch(batch) => batch.steps.iter().any(is_unique),
        _ => false,
    }
}

fn at_most_once(world: &World) -> Result<(), String> {
    let mut done: Vec<&Op> = Vec::new();
    for record in world.history.values().flatten() {
        done.extend(record.op.as_ref().filter(|op| is_unique(op)));
    }
    let mut keys: BTreeMap<String, u32> = BTreeMap::new();
    for op in done {
        *keys.entry(format!("{op:?}")).or_default() += 1;
    }
    if let Some((op, count)) = keys.iter().find(|(_, count)| **count > 1) {
        return Err(format!("took effect {count} times: {op}"));
    }
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        let refused = matches!(&asked.answer, Some((Outcome::Failed(f), _)) if f.kind == FailureKind::Retry);
        if refused && is_unique(&asked.op) && keys.contains_key(&format!("{:?}", asked.op)) {
            return Err(format!("was refused and took effect: {asked:?}"));
        }
    }
    Ok(())
}

/// Replays each history and asks at every place whether the answers given for it were true.
fn truthful(world: &World) -> Result<(), String> {
    let mut claims: BTreeMap<(ShardId, Epoch), BTreeMap<u64, Vec<&Asked>>> = BTreeMap::new();
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        let Some((outcome, position)) = &asked.answer else { continue };
        if !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind)) {
            let places = claims.entry((asked.shard, position.epoch)).or_default();
            places.entry(position.sequence).or_default().push(asked);
        }
    }
    for (key, places) in claims {
        let none = Vec::new();
        let history = world.history.get(&key).unwrap_or(&none);
        let mut model = Model::new();
        let mut at = 0;
        for (sequence, asked) in places {
            if sequence > history.len() as u64 {
                return Err(format!(
                    "an answer from a place that never was: {sequence} of {}",
                    history.len()
                ));
            }
            let mut before = None;
            while at < sequence {
                if at + 1 == sequence {
                    before = Some(model.clone());
                }
                apply(&mut model, &history[at as usize]);
                at += 1;
            }
            let own = before.zip(sequence.checked_sub(1).map(|i| &history[i as usize]));
            for asked in asked {
                verify(asked, own.as_ref(), &model, history, sequence)?;
            }
        }
    }
    Ok(())
}

fn verify(
    asked: &Asked,
    own: Option<&(Model, &Record)>,
    model: &Model,
    history: &[Record],
    sequence: u64,
) -> Result<(), String> {
    let Some((outcome, position)) = &asked.answer else { return Ok(()) };
    let ordered_here = own.filter(|(_, record)| record.op.as_ref() == Some(&asked.op) && asked.op.is_write());
    // What an operation changed at this very place, it decided on the state before. An operation that
    // others asked for too may also have come after and changed nothing.
    let mut explanations = Vec::new();
    if let Some((before, record)) = ordered_here {
        explanations.push((before.clone(), Some(record.unix_ms), sequence - 1));
    }
    if ordered_here.is_none() || !is_unique(&asked.op) {
        explanations.push((model.clone(), None, sequence));
    }
    let mut wrong = Ok(());
    for (state, unix_ms, until) in explanations {
        let mut after = state.clone();
        let Some(expected) = expected(asked, &mut after, unix_ms) else { return Ok(()) };
        // What changed something is in the history, at its own place.
        let vanished = unix_ms.is_none() && after != state;
        let differs = expected != *outcome || vanished;
        wrong = match &asked.op {
            Op::Batch(batch) if !differs => unchanged(batch, history, until),
            _ if vanished => Err("something was answered that never took effect".into()),
            _ if differs => Err(format!("the answer would be {expected:?}")),
            _ => Ok(()),
        };
        if wrong.is_ok() {
            return Ok(());
        }
    }
    wrong.map_err(|error| format!("at {position} of shard {} {error}: {asked:?}", asked.shard.0))
}

/// What the model answers; none where any answer will do.
fn expected(asked: &Asked, state: &mut Model, unix_ms: Option<u64>) -> Option<Outcome> {
    let (outcome, position) = asked.answer.as_ref()?;
    match &asked.op {
        Op::Key(_, Action::TimeToLive(_)) | Op::Scan(_) | Op::Wait { .. } => None,
        Op::Batch(_) if *outcome == Outcome::Aborted => None,
        Op::Key(key, action) => Some(answer(state, key, action, unix_ms, *position)),
        Op::Len => Some(Outcome::Integer(state.len() as i64)),
        Op::Clear => {
            state.clear();
            Some(Outcome::Done)
        }
        Op::Batch(batch) => {
            let steps = batch.steps.iter().map(|step| match step {
                Op::Key(key, action) => answer(state, key, action, unix_ms, *position),
                _ => Outcome::Nil,
            });
            Some(Outcome::Many(steps.collect()))
        }
    }
}

/// What an action answers, and does, on a state of the model.
fn answer(
    model: &mut Model,
    key: &Bytes,
    action: &Action,
    unix_ms: Option<u64>,
    position: Position,
) -> Outcome {
    // Only who orders judges whether a record is past its deadline.
    let dead = |held: &&Held| unix_ms.is_some_and(|now| held.deadline_ms.is_some_and(|at| at <= now));
    let held = model.get(key).filter(|held| !dead(held)).cloned();
    let old = held.as_ref().map(|h| Old { value: &h.value, deadline_ms: h.deadline_ms, version: h.version });
    let context = Context { unix_ms: unix_ms.unwrap_or(0), position, value_bytes_max: 16 << 20 };
    let (outcome, change) = evaluate(action, old, &context, &mut BytesMut::new());
    match change {
        sartor_core::operation::Change::None => {}
        sartor_core::operation::Change::Delete => {
            model.remove(key);
        }
        sartor_core::operation::Change::Put { value, deadline_ms } => {
            model.insert(key.clone(), Held { value, deadline_ms, version: position });
        }
    }
    outcome
}

/// No entry after the watch, up to `until`, touched a watched key.
fn unchanged(batch: &Batch, history: &[Record], until: u64) -> Result<(), String> {
    for (key, version) in &batch.watched {
        let (Version::Written(at) | Version::AbsentAt(at)) = version;
        let since = history.iter().filter(|r| (at.sequence + 1..=until).contains(&r.entry.position.sequence));
        let touches = |write: &Write| match write {
            Write::Put { key: k, .. } | Write::Delete { key: k } => k == key,
            Write::Clear => true,
        };
        for record in since {
            if record.entry.position.epoch == at.epoch && record.entry.writes.as_slice().iter().any(touches) {
                return Err(format!(
                    "EXEC went through although {key:?} changed at {}",
                    record.entry.position
                ));
            }
        }
    }
    Ok(())
}

fn converged(world: &mut World) -> Result<(), String> {
    let map = world.map().cloned().ok_or("there never was a map")?;
    for shard in &map.shards {
        let none = Vec::new();
        let history = world.history.get(&(shard.id, shard.epoch)).unwrap_or(&none);
        let alive = |m: &&sartor_core::routing::map::Member| {
            let machine = &world.machines[usize::from(m.node.0)];
            machine.node.is_some() && machine.incarnation == m.incarnation
        };
        let primary_lives = shard.members.first().is_some_and(|primary| alive(&primary));
        let members: Vec<_> = shard.members.iter().filter(alive).copied().collect();
        for member in members {
            let node = world.machines[usize::from(member.node.0)].node.as_ref();
            // One that was cut off because memory ended stays behind until it is filled anew.
            let lost =
                node.is_some_and(|node| node.statuses().any(|(id, status)| id == shard.id && status.lost));
            let keeper = world.machines[usize::from(member.node.0)].stores.get_mut(shard.id);
            let keeper = keeper.ok_or(format!("node {} never opened shard {}", member.node.0, shard.id.0))?;
            let place = keeper.position().sequence;
            if primary_lives && !lost && place != history.len() as u64 {
                return Err(format!(
                    "shard {} on node {} stays at {place} of {}",
                    shard.id.0,
                    member.node.0,
                    history.len()
                ));
            }
            let holds = keeper.digest().map_err(|error| error.to_string())?;
            let wants = replay(&history[..place as usize])?;
            if holds != wants {
                let (shard, node) = (shard.id.0, member.node.0);
                return Err(format!(
                    "shard {shard} on node {node} at {place} holds other records than were ordered"
                ));
            }
        }
    }
    Ok(())
}

/// The digest of a replica that applied exactly these entries.
fn replay(history: &[Record]) -> Result<u64, String> {
    let store = Box::new(sartor_datalets::tree::Tree::default());
    let mut keeper = Keeper::enveloped(store, KeeperLimits::default());
    for record in history {
        if let Done::Broken(_, failure) = keeper.run(Now::default(), Task::Apply(record.entry.clone())) {
            return Err(failure.text.into_owned());
        }
    }
    keeper.digest().map_err(|error| error.to_string())
}
