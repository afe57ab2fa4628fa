//! What must hold after a run.
//!
//! - Every answer was true at the place in the shard's history that it names, by a replay of that
//!   history.
//! - A request took effect at most once, and not at all if it was refused.
//! - An EXEC that went through found every watched key untouched.
//! - In the end all copies are there and hold what the history says. Nothing stays unanswered in a healed
//!   network, and every shard takes writes at every node.
//! - What clients named took effect once: see `once.rs`.
//! - A survey that ended tells what the shard held at its place, whatever was written while it went on.
//! - Where the mode promises to converge: a connection's places never go back, unless a failover lost them.
//! - Where it promises linearizability: see `linear.rs`.

use crate::client::{Asked, PROBES, TIMEOUT_US};
use crate::plan::FaultKind;
use crate::world::{Part, Record, World};
use bytes::{Bytes, BytesMut};
use sartor_core::controlet::rules::{Answers, Carries};
use sartor_core::controlet::{Promise, mode};
use sartor_core::entry::Write;
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::keeper::{Done, Keeper, KeeperLimits, Start, Task};
use sartor_core::operation::{
    Action, Batch, Consistency, Context, FailureKind, Old, Op, Outcome, Version, evaluate,
};
use sartor_core::range::{Range, Ranged};
use sartor_core::record::{Meta, Record as StoredRecord};
use sartor_core::routing::map::{ClusterMap, Member};
use sartor_core::survey::Found;
use sartor_core::time::{Micros, Now, millis};
use std::collections::BTreeMap;

/// What stores and turns may add to a deadline.
const SLACK_US: Micros = millis(1000);

/// Checks everything.
pub fn check(world: &mut World) -> Result<(), String> {
    answered(world)?;
    timely(world)?;
    let lines = Lines::of(world);
    crate::linear::check(world, &lines)?;
    crate::linear::check_bounded(world, &lines)?;
    monotonic(world, &lines)?;
    at_most_once(world, &lines)?;
    crate::once::check(world, &lines)?;
    truthful(world, &lines)?;
    divided(world, &lines)?;
    durable(world, &lines)?;
    probed(world)?;
    surveyed(world, &lines)?;
    let mut wanted = BTreeMap::new();
    for (shard, line) in &lines.last {
        let mut keeper = lines.replayed(world, *shard, line)?;
        wanted.insert(*shard, (line.len() as u64, keeper.digest().map_err(|error| error.to_string())?));
    }
    converged(world, &wanted)
}

fn probed(world: &World) -> Result<(), String> {
    let probes = || world.clients.iter().filter(|client| client.session.index >= PROBES);
    if probes().count() == 0 {
        return Err("there never was a map".into());
    }
    for asked in probes().flat_map(|client| &client.asked) {
        let took_ms = asked.times.1.saturating_sub(asked.times.0) / 1000;
        if !matches!(asked.answer, Some((Outcome::Done, _))) || took_ms > 1000 {
            return Err(format!("a healed cluster answered after {took_ms} ms: {asked:?}"));
        }
    }
    Ok(())
}

/// What a key held.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    value: Bytes,
    deadline_ms: Option<u64>,
    version: Position,
}

type Model = BTreeMap<Bytes, Held>;

/// What lies from `kept` on, nothing removes any more.
fn apply(model: &mut Model, record: &Record, kept: Option<&Bytes>) {
    for write in record.entry.writes.iter() {
        match write {
            Write::Put { key, value, deadline_ms } => {
                let version = record.entry.position;
                let held = Held { value: Bytes::copy_from_slice(value), deadline_ms, version };
                model.insert(Bytes::copy_from_slice(key), held);
            }
            Write::Delete { key } => {
                model.remove(key);
            }
            Write::Clear => model.retain(|key, _| kept.is_some_and(|kept| key >= kept)),
            Write::Survey => {}
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
            let node = client.node;
            let asked = &client.asked[tag];
            return Err(format!("{session:?} of node {node} never got an answer to {tag}: {asked:?}"));
        }
    }
    Ok(())
}

/// Where nothing stood still, a request is answered or given up in time.
fn timely(world: &World) -> Result<(), String> {
    let paused = world
        .plan
        .faults
        .iter()
        .any(|fault| matches!(fault.kind, FaultKind::Pause(_) | FaultKind::StoreStall(_)));
    for asked in world.clients.iter().flat_map(|client| &client.asked).filter(|_| !paused) {
        let (from, to) = asked.times;
        if asked.answer.is_some() && to > from + TIMEOUT_US + SLACK_US {
            return Err(format!("was answered after {} ms: {asked:?}", (to - from) / 1000));
        }
    }
    Ok(())
}

fn monotonic(world: &World, lines: &Lines) -> Result<(), String> {
    for client in &world.clients {
        let mut seen: BTreeMap<ShardId, (usize, Position)> = BTreeMap::new();
        for (tag, asked) in client.asked.iter().enumerate() {
            let Some((outcome, position)) = &asked.answer else { continue };
            // Who asks again is told of the past.
            let again = matches!(asked.op, Op::Once(_)) || asked.consistency == Consistency::Eventual;
            if again
                || !world.modes.held(Promise::Convergent, asked.times)
                || matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind))
            {
                continue;
            }
            let last = seen.insert(asked.shard, (tag, *position));
            let kept = |place: &Position| lines.keeps(asked.shard, *place);
            if let Some((before, place)) = last.filter(|(_, place)| place > position && kept(place)) {
                if was_asked_again(world, &client.asked[before]) {
                    continue;
                }
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

/// A request that had no answer when its head was replaced is done anew if it changed nothing, and so may
/// know of later ones of the same connection.
fn was_asked_again(world: &World, asked: &Asked) -> bool {
    let (from, to) = asked.times;
    // The nodes hear of a view after it was decided.
    let mut views = world.views.iter().filter(|(shard, _)| *shard == asked.shard);
    views.any(|(_, at)| *at + VIEW_US > from && *at < to)
}

/// Until the last node has heard of a view: the longest pause, and a bit.
const VIEW_US: Micros = millis(17_000);

/// Whether such a failure tells nothing of any place in the history.
pub fn has_no_place(kind: FailureKind) -> bool {
    use FailureKind::{Data, Full, Retry, Uncertain, Unsupported};
    matches!(kind, Retry | Uncertain | Full | Data | Unsupported)
}

/// Values are unique, so equal operations are the same request.
fn is_unique(op: &Op) -> bool {
    match op {
        Op::Key(_, action) => matches!(action, Action::Set(_) | Action::Add(_) | Action::Append(_)),
        Op::Batch(batch) => batch.steps.iter().any(is_unique),
        Op::Run(run) => run.grows(),
        Op::Once(_) => true,
        _ => false,
    }
}

fn at_most_once(world: &World, lines: &Lines) -> Result<(), String> {
    let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (shard, line) in &lines.last {
        for record in line {
            if let Some(op) = record.op.as_ref().filter(|op| is_unique(op)) {
                // What names stand for is kept in memory.
                let named = matches!(op, Op::Once(_));
                let mut named_keys = 0;
                op.each_key(&mut |_| named_keys += 1);
                // What is about a shard as a whole may be done again for what became another one.
                if named && world.config.splits && (named_keys == 0 || lines.forgot(world)) {
                    continue;
                }
                let life = if named { world.life_of(*shard, record.entry.position) } else { 0 };
                keys.entry(format!("{op:?}")).or_default().push(life);
            }
        }
    }
    let twice = |lives: &Vec<usize>| lives.windows(2).any(|pair| pair[0] == pair[1]);
    if let Some((op, lives)) = keys.iter().find(|(_, lives)| twice(lives)) {
        return Err(format!("took effect {} times: {op}", lives.len()));
    }
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        let refused = matches!(&asked.answer, Some((Outcome::Failed(f), _)) if f.kind == FailureKind::Retry);
        // Who asks again may be done what was refused first.
        let refused = refused && !matches!(asked.op, Op::Once(_));
        if refused && is_unique(&asked.op) && keys.contains_key(&format!("{:?}", asked.op)) {
            return Err(format!("was refused and took effect: {asked:?}"));
        }
    }
    Ok(())
}

/// Where a write is told once two members have it, it is not lost with one of them; where a log outside has it, not while a
/// member lives.
fn durable(world: &World, lines: &Lines) -> Result<(), String> {
    let rules = mode(world.config.modes, world.config.mode).map(|mode| mode.rules);
    let at_log = rules.is_some_and(|rules| rules.answers == Answers::AtLog);
    let at_two = rules.is_some_and(|rules| rules.answers == Answers::AtTwo);
    let carries_entries = rules.is_some_and(|rules| rules.carries == Carries::Entries);
    if world.config.switches || !(at_two || at_log) {
        return Ok(());
    }
    for asked in world.clients.iter().flat_map(|client| &client.asked).filter(|asked| asked.op.is_write()) {
        let Some((outcome, place)) = &asked.answer else { continue };
        let tells = !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind));
        // Where only what changed is passed on, what changed nothing has no place of its own: it names one that it saw.
        let tells = tells
            && (!carries_entries || is_unique(&asked.op) && lines.is_of(asked.shard, *place, &asked.op));
        // Where all copies were lost, it began anew.
        let anew = lines.roots.get(&asked.shard).is_none_or(|root| place.epoch < *root);
        if tells && !anew && !lines.keeps(asked.shard, *place) {
            let mut views = world.members.range((asked.shard, place.epoch)..);
            let Some((_, then)) = views.next() else { continue };
            if at_log {
                return Err(format!("was lost although the log has it: {asked:?}"));
            }
            let views: Vec<&Vec<Member>> =
                views.take_while(|((shard, _), _)| *shard == asked.shard).map(|(_, view)| view).collect();
            let went = |member: &&Member| views.iter().any(|view| !view.contains(member));
            if then.len() > 1 && then.iter().filter(went).count() < 2 {
                return Err(format!("was lost with one member of {then:?}: {asked:?}"));
            }
        }
    }
    Ok(())
}

/// Replays each epoch's history and asks at every place whether the answers given for it were true.
fn truthful(world: &World, lines: &Lines) -> Result<(), String> {
    let mut claims: BTreeMap<(ShardId, Epoch), BTreeMap<u64, Vec<&Asked>>> = BTreeMap::new();
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        let Some((outcome, position)) = &asked.answer else { continue };
        // What the whole did under that name, its part tells as of its beginning.
        let is_inherited = matches!(asked.op, Op::Once(_))
            && position.sequence == 0
            && world.parts.contains_key(&asked.shard);
        if !is_inherited && !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind)) {
            let places = claims.entry((asked.shard, position.epoch)).or_default();
            places.entry(position.sequence).or_default().push(asked);
        }
    }
    for (key, places) in claims {
        let none = Vec::new();
        let history = lines.all.get(&key).unwrap_or(&none);
        let mut model = lines.begin(key);
        let mut at = 0;
        for (sequence, asked) in places {
            let own = sequence.checked_sub(1).and_then(|index| history.get(index as usize));
            if sequence > 0 && own.is_none_or(|record| record.entry.position.epoch != key.1) {
                return Err(format!("an answer from a place that never was: {sequence}: {:?}", asked[0]));
            }
            let mut before = None;
            while at < sequence {
                if at + 1 == sequence {
                    before = Some(model.clone());
                }
                let record = history[at as usize];
                apply(&mut model, record, end_at(world, key.0, record.entry.position.epoch));
                at += 1;
            }
            let own = before.zip(own.copied());
            for asked in asked {
                verify(world, asked, own.as_ref(), &model, (history, sequence), lines)?;
            }
        }
    }
    Ok(())
}

fn verify(
    world: &World,
    asked: &Asked,
    own: Option<&(Model, &Record)>,
    model: &Model,
    (history, sequence): (&[&Record], u64),
    lines: &Lines,
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
    if !asked.op.is_write() {
        let place = Position { sequence, ..*position };
        let states = without_the_dead(model, lines, (asked.shard, place));
        explanations.extend(states.into_iter().map(|state| (state, None, sequence)));
    }
    let mut wrong = Ok(());
    for (state, unix_ms, until) in explanations {
        let mut after = state.clone();
        // What was found dead may have become another shard's to remove before it was told.
        let later =
            world.parts.values().filter(|part| part.whole == asked.shard && part.closed.1 < asked.times.1);
        let bound = end_at(world, asked.shard, position.epoch).or(later.map(|part| &part.lower).min());
        let Some(expected) = expected(asked, &mut after, unix_ms, bound) else { return Ok(()) };
        // What changed something is in the history, at its own place.
        let vanished = unix_ms.is_none() && after != state;
        let differs = !agrees(&expected, &unpacked(outcome)) || vanished;
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

/// What a read may have found that judged records by a clock: those are left out that were past their deadline for whatever
/// touched them next.
fn without_the_dead(model: &Model, lines: &Lines, (shard, place): (ShardId, Position)) -> Vec<Model> {
    let mortal = model.iter().filter_map(|(key, held)| Some((key, held.deadline_ms?)));
    let mortal: Vec<(&Bytes, u64)> = mortal.collect();
    if mortal.is_empty() {
        return Vec::new();
    }
    let judged = |key: &Bytes, deadline_ms: u64| {
        let touches = |write: Write<'_>| write == Write::Clear || write.key() == Some(key);
        lines.after(shard, place).any(|line| {
            let next = line.iter().find(|record| record.entry.writes.iter().any(touches));
            next.is_some_and(|record| record.unix_ms >= deadline_ms)
        })
    };
    let dead: Vec<_> = mortal.into_iter().filter(|(key, deadline_ms)| judged(key, *deadline_ms)).collect();
    let without = |now_ms: u64| {
        let mut state = model.clone();
        let gone = dead.iter().filter(|(_, deadline_ms)| *deadline_ms <= now_ms);
        gone.for_each(|(key, _)| drop(state.remove(*key)));
        state
    };
    dead.iter().map(|(_, deadline_ms)| without(*deadline_ms)).collect()
}

/// Whether an answer is what was expected. That a key was absent may be known of a later place than the answer
/// claims.
fn agrees(expected: &Outcome, outcome: &Outcome) -> bool {
    match (expected, outcome) {
        (Outcome::Version(Version::AbsentAt(claimed)), Outcome::Version(Version::AbsentAt(known))) => {
            claimed.sequence <= known.sequence
        }
        _ => expected == outcome,
    }
}

/// An answer in the form in which the model answers.
fn unpacked(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Run(answers) => Outcome::Many(answers.iter().map(|answer| answer.to_outcome()).collect()),
        other => other.clone(),
    }
}

/// What the model answers; none where any answer will do.
fn expected(
    asked: &Asked,
    state: &mut Model,
    unix_ms: Option<u64>,
    bound: Option<&Bytes>,
) -> Option<Outcome> {
    let (outcome, position) = asked.answer.as_ref()?;
    let op = if let Op::Once(once) = &asked.op { &once.op } else { &asked.op };
    match op {
        Op::Key(_, Action::TimeToLive(_)) | Op::Scan(_) | Op::Wait { .. } | Op::Survey | Op::Once(_) => None,
        Op::Expire(_) => None,
        // What is another shard's may be there yet, or be gone.
        Op::Len if bound.is_some() => None,
        Op::Range(range) if bound.is_some_and(|bound| range.end.as_ref().is_none_or(|end| end > bound)) => {
            None
        }
        Op::Range(range) => Some(Outcome::Ranged(Box::new(ranged(state, range)))),
        Op::Batch(_) if *outcome == Outcome::Aborted => None,
        Op::Key(key, action) => Some(answer(state, key, action, unix_ms, *position)),
        Op::Run(run) => {
            let steps = run.steps().map(|step| {
                let key = Bytes::copy_from_slice(step.key);
                answer(state, &key, &step.deed.to_action(), unix_ms, *position)
            });
            Some(Outcome::Many(steps.collect()))
        }
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

/// What a range answers that fits into one page.
fn ranged(model: &Model, range: &Range) -> Ranged {
    let from = model.range(range.start.clone()..);
    let held = from.take_while(|(key, _)| range.end.as_ref().is_none_or(|end| *key < end));
    let pair = |(key, held): (&Bytes, &Held)| (key.clone(), range.values.then(|| held.value.clone()));
    let mut pairs: Vec<_> = held.map(pair).collect();
    if range.reverse {
        pairs.reverse();
    }
    Ranged { pairs, next: None }
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
fn unchanged(batch: &Batch, history: &[&Record], until: u64) -> Result<(), String> {
    for (key, version) in &batch.watched {
        let (Version::Written(at) | Version::AbsentAt(at)) = version;
        let upto = history.iter().take(until as usize);
        let since = upto.filter(|record| record.entry.position > *at);
        let touches = |write: Write<'_>| match write {
            Write::Put { key: k, .. } | Write::Delete { key: k } => k == key,
            Write::Clear => true,
            Write::Survey => false,
        };
        for record in since {
            if record.entry.writes.iter().any(touches) {
                return Err(format!(
                    "EXEC went through although {key:?} changed at {}",
                    record.entry.position
                ));
            }
        }
    }
    Ok(())
}

/// How many copies there can be: two nodes that do not reach each other cannot both hold one.
fn copies(world: &World, map: &ClusterMap) -> usize {
    let apart = usize::from(world.plan.lasting.is_some());
    usize::from(map.tables[0].copies).min(world.machines.len() - apart)
}

/// Each shard's length and digest, by its history, against what its replicas hold.
fn converged(world: &mut World, wanted: &BTreeMap<ShardId, (u64, u64)>) -> Result<(), String> {
    let map = world.map().cloned().ok_or("there never was a map")?;
    for shard in &map.shards {
        let id = shard.id.0;
        // Where not all nodes reach each other, there may be none to take a copy in another datalet.
        let renewed = shard.outdated.is_empty() || world.plan.lasting.is_some();
        let partial = shard.joining.is_some() || !renewed;
        if shard.is_vacant() || (shard.part_of.is_some() && world.plan.lasting.is_some()) {
            continue;
        }
        if shard.members.len() != copies(world, &map) || partial {
            return Err(format!("shard {id} is not repaired: {shard:?}"));
        }
        let (length, wants) = wanted[&shard.id];
        for member in &shard.members {
            let node = member.node.0;
            let machine = &mut world.machines[usize::from(node)];
            if machine.node.is_none() || machine.incarnation != member.incarnation {
                return Err(format!("shard {id} counts on a former life of node {node}"));
            }
            let keeper = machine.stores.get_mut(shard.id);
            let keeper = keeper.ok_or(format!("node {node} never opened shard {id}"))?;
            let place = keeper.position();
            if place.sequence != length {
                return Err(format!("shard {id} on node {node} stays at {place} of {length}"));
            }
            if keeper.digest().map_err(|error| error.to_string())? != wants {
                return Err(format!(
                    "shard {id} on node {node} at {place} holds other records than were ordered"
                ));
            }
        }
    }
    Ok(())
}

/// The last survey of each replica, against what its history says.
fn surveyed(world: &World, lines: &Lines) -> Result<(), String> {
    for shard in world.map().iter().flat_map(|map| &map.shards) {
        for member in &shard.members {
            let keeper = world.machines[usize::from(member.node.0)].stores.get(shard.id);
            let Some(report) = keeper.and_then(Keeper::surveyed) else { continue };
            if let Found::Failed(_) = report.found {
                continue;
            }
            let (id, node, at) = (shard.id.0, member.node.0, report.at);
            if !lines.keeps(shard.id, at) {
                return Err(format!("node {node} surveyed shard {id} at {at}, which never was"));
            }
            let mut keeper =
                lines.replayed(world, shard.id, &lines.last[&shard.id][..at.sequence as usize])?;
            while keeper.run(Now::default(), Task::Survey(1 << 10, 1 << 20)) == Done::Surveyed(true) {}
            let wanted = keeper.surveyed();
            if wanted.as_ref() != Some(&report) {
                return Err(format!("node {node} surveyed shard {id} as {report:?}, not {wanted:?}"));
            }
        }
    }
    Ok(())
}

/// The histories of all shards, as each epoch left them.
pub struct Lines<'a> {
    /// All up to the end of an epoch that ordered something.
    pub all: BTreeMap<(ShardId, Epoch), Vec<&'a Record>>,
    /// What is true in the end.
    pub last: BTreeMap<ShardId, Vec<&'a Record>>,
    /// When it began: later than at first where all copies were lost.
    pub roots: BTreeMap<ShardId, Epoch>,
    /// The epoch in which each line began.
    starts: BTreeMap<(ShardId, Epoch), Epoch>,
    /// What parts of other shards began with, in which epoch.
    bases: BTreeMap<ShardId, (Epoch, Model)>,
}

impl<'a> Lines<'a> {
    fn of(world: &'a World) -> Lines<'a> {
        // Clones of references, so that the world can be looked at otherwise meanwhile.
        let mut all: BTreeMap<(ShardId, Epoch), Vec<&Record>> = BTreeMap::new();
        let mut starts = BTreeMap::new();
        for (&(shard, epoch), segment) in &world.history {
            let parent = all.get(&(shard, segment.parent.epoch));
            let parent = parent.map(|line| &line[..segment.parent.sequence as usize]);
            let line = parent.unwrap_or_default().iter().copied().chain(&segment.records).collect();
            all.insert((shard, epoch), line);
            let start = starts.get(&(shard, segment.parent.epoch)).copied();
            starts.insert((shard, epoch), start.unwrap_or(segment.parent.epoch));
        }
        let (mut last, mut roots) = (BTreeMap::new(), BTreeMap::new());
        for shard in world.map().iter().flat_map(|map| &map.shards) {
            let heads = shard.members.first().and_then(|head| {
                let machine = &world.machines[usize::from(head.node.0)];
                machine.stores.get(shard.id).map(Keeper::position)
            });
            let end = heads.unwrap_or_default();
            let line = all.get(&(shard.id, end.epoch)).cloned().unwrap_or_default();
            roots.insert(shard.id, line.first().map_or(end.epoch, |record| record.entry.position.epoch));
            last.insert(shard.id, line);
        }
        let mut lines = Lines { all, last, roots, starts, bases: BTreeMap::new() };
        for (shard, part) in &world.parts {
            let base = lines.part(world, part);
            lines.bases.insert(*shard, (part.born, base));
        }
        lines
    }

    /// Whether what names stand for may be forgotten that took effect in another shard, of which this one was a part: all its
    /// copies died.
    pub fn forgot(&self, world: &World) -> bool {
        let again = |part: &ShardId| {
            let born = world.map().and_then(|map| map.shard(*part)).map(|shard| shard.born);
            self.bases.get(part).map(|(epoch, _)| *epoch) != born
        };
        world.lives_max() > 0 || world.parts.keys().any(again)
    }

    /// What a line of this shard began with.
    fn begin(&self, (shard, epoch): (ShardId, Epoch)) -> Model {
        let start = self.starts.get(&(shard, epoch)).copied().unwrap_or(epoch);
        let base = self.bases.get(&shard).filter(|(born, _)| *born == start);
        base.map_or_else(Model::new, |(_, base)| base.clone())
    }

    /// What the whole had of a part when it took nothing more for it.
    fn part(&self, world: &World, part: &Part) -> Model {
        // Of the view in which it opened, else of the last one before.
        let of = |from: Epoch, to: Epoch| self.all.range((part.whole, from)..=(part.whole, to));
        let goes_on = |(key, _): &(&(ShardId, Epoch), _)| {
            self.starts.get(*key).is_some_and(|start| *start <= part.view)
        };
        let after = of(part.view, Epoch(u64::MAX)).find(goes_on);
        let Some((key, line)) = after.or_else(|| of(part.born, part.view).next_back()) else {
            return Model::new();
        };
        let mut model = self.begin(*key);
        let before = line.iter().filter(|record| record.entry.position.epoch < part.born);
        before.for_each(|record| {
            apply(&mut model, record, end_at(world, part.whole, record.entry.position.epoch));
        });
        let end = end_at(world, part.whole, Epoch(part.closed.0.0 - 1));
        model.retain(|key, _| *key >= part.lower && end.is_none_or(|end| key < end));
        model
    }

    /// A replica that applied exactly these entries.
    fn replayed(&self, world: &World, shard: ShardId, line: &[&Record]) -> Result<Keeper, String> {
        let store = Box::new(sartor_datalets::tree::Tree::default());
        let mut keeper = Keeper::enveloped(store, KeeperLimits::default());
        let born = world.map().and_then(|map| map.shard(shard)).map_or(Epoch(0), |shard| shard.born);
        let first = line.first().and_then(|record| self.starts.get(&(shard, record.entry.position.epoch)));
        let base = self.begin((shard, first.copied().unwrap_or(born)));
        let record = |(key, held): (Bytes, Held)| {
            let meta = Meta { version: held.version, deadline_ms: held.deadline_ms };
            StoredRecord { key, value: held.value, meta }
        };
        let at = Position { epoch: Epoch(0), sequence: 0 };
        let start = Start { at, deletes: Default::default(), since: None };
        let fill = Task::Fill(Epoch(0), Some(Box::new(start)), base.into_iter().map(record).collect());
        let entries = line.iter().map(|record| Task::Apply(record.entry.clone()));
        let end = end_at(world, shard, Epoch(u64::MAX)).cloned();
        let leave = end.map(|end| Task::Leave(end, 0));
        for task in std::iter::once(fill).chain(leave).chain(entries) {
            if let Done::Broken(_, failure) = keeper.run(Now::default(), task) {
                return Err(failure.text.into_owned());
            }
        }
        Ok(keeper)
    }

    /// Whether what is at a place came of this operation.
    fn is_of(&self, shard: ShardId, place: Position, op: &Op) -> bool {
        let line = self.all.get(&(shard, place.epoch));
        let index = (place.sequence as usize).checked_sub(1);
        let record = line.zip(index).and_then(|(line, index)| line.get(index));
        record.is_some_and(|record| record.op.as_ref() == Some(op))
    }

    /// What came after a place, as each epoch that went on from it left it.
    fn after(&self, shard: ShardId, place: Position) -> impl Iterator<Item = &[&'a Record]> {
        let lines = self.all.iter().filter(move |((of, _), _)| *of == shard).map(|(_, line)| line);
        lines.filter_map(move |line| {
            let before = (place.sequence as usize).checked_sub(1).and_then(|index| line.get(index));
            let holds = before.is_some_and(|record| record.entry.position == place);
            (holds || place.sequence == 0).then(|| &line[place.sequence as usize..])
        })
    }

    /// Whether a place is in the history that is true in the end.
    pub fn keeps(&self, shard: ShardId, place: Position) -> bool {
        let record =
            place.sequence.checked_sub(1).and_then(|index| self.last.get(&shard)?.get(index as usize));
        record.map_or(place.sequence == 0, |record| record.entry.position == place)
    }
}

/// The first key that a shard did not have any more in an epoch.
fn end_at(world: &World, shard: ShardId, epoch: Epoch) -> Option<&Bytes> {
    let parts = world.parts.values().filter(|part| part.whole == shard && part.closed.0 <= epoch);
    parts.map(|part| &part.lower).min()
}

/// A shard that was divided has nothing to do with what is in the other part any more.
fn divided(world: &World, lines: &Lines) -> Result<(), String> {
    for (id, part) in &world.parts {
        let of_whole = lines.all.iter().filter(|((shard, _), _)| *shard == part.whole);
        let late = |record: &&&Record| record.entry.position.epoch >= part.born;
        let puts = |write: Write<'_>| matches!(write, Write::Put { key, .. } if key >= &part.lower[..]);
        for record in of_whole.flat_map(|(_, line)| line).filter(late) {
            if record.entry.writes.iter().any(puts) {
                return Err(format!("shard {} wrote what is shard {}'s: {record:?}", part.whole.0, id.0));
            }
        }
        for asked in world.clients.iter().flat_map(|client| &client.asked) {
            let (Some((outcome, place)), true) = (&asked.answer, asked.shard == part.whole) else { continue };
            let placed = !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind));
            let strong = matches!(asked.consistency, Consistency::Mode | Consistency::Strong)
                && world.modes.held(Promise::Linearizable, asked.times);
            let names = matches!(asked.op, Op::Key(..) | Op::Run(_) | Op::Batch(_));
            let late = asked.times.0 > part.opened || place.epoch >= part.born;
            if placed && strong && names && late && !asked.op.lies_before(&part.lower) {
                return Err(format!("shard {} answered for shard {}: {asked:?}", part.whole.0, id.0));
            }
        }
    }
    Ok(())
}
