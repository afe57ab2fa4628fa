//! Linearizability, shard by shard, of what was asked and answered while the table's mode promised it.
//!
//! Every answer names the place in the shard's history that it was true at, and `check.rs` has replayed that. So
//! a total order is given, and two things are left to show: every answered request is in the history that is true in the
//! end (nothing acknowledged was lost), and the order agrees with real time: who begins after another one has ended
//! sees at least as new a version of each key that both touch. That the order explains all answers and agrees with real
//! time is what linearizability means. Requests without an answer may be in the history at any later place. What a client
//! named and asked for several times is one request, which began with the first.

use crate::check::{Lines, has_no_place};
use crate::client::Asked;
use crate::world::{Record, World};
use bytes::Bytes;
use sartor_core::controlet::Promise;
use sartor_core::entry::Write;
use sartor_core::ids::ShardId;
use sartor_core::operation::{Consistency, Op, Outcome};
use sartor_core::time::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Checks all shards.
pub fn check(world: &World, lines: &Lines<'_>) -> Result<(), String> {
    let first = first_asked(world);
    for (shard, line) in &lines.last {
        let root = lines.roots[shard];
        let mut asked = Vec::new();
        for request in world.clients.iter().flat_map(|client| &client.asked).filter(|a| a.shard == *shard) {
            let Some((outcome, position)) = &request.answer else { continue };
            let strong = matches!(request.consistency, Consistency::Mode | Consistency::Strong);
            if !strong || !world.modes.held(Promise::Linearizable, request.times) {
                continue;
            }
            let placed = !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind));
            // What was before all copies died is gone.
            if placed && position.epoch >= root {
                if !lines.keeps(*shard, *position) {
                    // That no copy has what was told of before another mode began is no promise.
                    let none = matches!(request.op, Op::Wait { .. }) && *outcome == Outcome::Integer(0);
                    // An answer names a place that its connection has seen, if it was true there too; and who asks for less
                    // than the newest may have seen one that was lost.
                    let line = lines.all.get(&(*shard, position.epoch));
                    let there = line.and_then(|line| line.get(position.sequence as usize - 1));
                    let own = there.is_some_and(|record| record.op.as_ref() == Some(&request.op));
                    let raised = world.plan.levels && !own;
                    if none || raised {
                        continue;
                    }
                    return Err(format!("was answered at {position} and then lost: {request:?}"));
                }
                asked.push(request);
            }
        }
        real_time(*shard, line, &asked, &first)?;
    }
    Ok(())
}

/// Reads of bounded staleness, in whatever mode: what had been acknowledged so long before they were asked, and was not lost, they
/// saw. To clocks of nodes that is a bit longer.
pub fn check_bounded(world: &World, lines: &Lines<'_>) -> Result<(), String> {
    for (shard, line) in &lines.last {
        let placed = |asked: &&Asked| {
            let told = asked.answer.as_ref();
            let place = told.filter(|(o, _)| !matches!(o, Outcome::Failed(f) if has_no_place(f.kind)));
            asked.shard == *shard && place.is_some_and(|(_, place)| lines.keeps(*shard, *place))
        };
        let all = || world.clients.iter().flat_map(|client| &client.asked).filter(placed);
        let bounded = |asked: &&Asked| matches!(asked.consistency, Consistency::Bounded(_));
        if all().any(|asked| bounded(&asked)) {
            let asked: Vec<&Asked> = all().filter(|asked| asked.op.is_write() || bounded(asked)).collect();
            real_time(*shard, line, &asked, &first_asked(world))?;
        }
    }
    Ok(())
}

/// Places at which each key was written, and those at which all were removed.
struct Writes {
    keys: BTreeMap<Bytes, Vec<u64>>,
    clears: Vec<u64>,
}

impl Writes {
    fn of(line: &[&Record]) -> Writes {
        let mut writes = Writes { keys: BTreeMap::new(), clears: Vec::new() };
        for record in line {
            let sequence = record.entry.position.sequence;
            for write in record.entry.writes.iter() {
                match write {
                    Write::Put { key, .. } | Write::Delete { key } => {
                        writes.keys.entry(Bytes::copy_from_slice(key)).or_default().push(sequence);
                    }
                    Write::Clear => writes.clears.push(sequence),
                    Write::Survey => {}
                }
            }
        }
        writes
    }

    /// The last write to a key up to a place.
    fn version(&self, key: &Bytes, place: u64) -> u64 {
        let last =
            |places: &[u64]| places.partition_point(|at| *at <= place).checked_sub(1).map(|i| places[i]);
        let own = self.keys.get(key).and_then(|places| last(places));
        own.max(last(&self.clears)).unwrap_or(0)
    }
}

fn keys_of(op: &Op) -> BTreeSet<Bytes> {
    match op {
        Op::Key(key, _) => BTreeSet::from([key.clone()]),
        Op::Run(run) => run.steps().map(|step| Bytes::copy_from_slice(step.key)).collect(),
        Op::Batch(batch) => batch.steps.iter().flat_map(keys_of).collect(),
        Op::Once(once) => keys_of(&once.op),
        _ => BTreeSet::new(),
    }
}

/// When each named operation was asked for first.
fn first_asked(world: &World) -> BTreeMap<&Bytes, Micros> {
    let mut first: BTreeMap<&Bytes, Micros> = BTreeMap::new();
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        if let Op::Once(once) = &asked.op {
            let at = first.entry(&once.id).or_insert(asked.times.0);
            *at = asked.times.0.min(*at);
        }
    }
    first
}

fn real_time(
    shard: ShardId,
    line: &[&Record],
    asked: &[&Asked],
    first: &BTreeMap<&Bytes, Micros>,
) -> Result<(), String> {
    let start_of = |request: &Asked| match (&request.op, request.consistency) {
        (Op::Once(once), _) => first.get(&once.id).copied().unwrap_or(request.times.0),
        // Clocks of nodes may run faster or slower by 8 %.
        (_, Consistency::Bounded(us)) => request.times.0.saturating_sub(us + us / 8),
        _ => request.times.0,
    };
    let writes = Writes::of(line);
    let place_of = |request: &Asked| request.answer.as_ref().map_or(0, |(_, position)| position.sequence);
    let mut by_end: Vec<&Asked> = asked.to_vec();
    by_end.sort_by_key(|request| request.times.1);
    let mut by_start: Vec<&Asked> = asked.to_vec();
    by_start.sort_by_key(|request| start_of(request));
    let mut seen: BTreeMap<Bytes, (u64, &Asked)> = BTreeMap::new();
    let mut newest: Option<(u64, &Asked)> = None;
    // What bounded reads saw binds nobody.
    by_end.retain(|request| !matches!(request.consistency, Consistency::Bounded(_)));
    let mut ended = by_end.into_iter().peekable();
    for request in by_start {
        while let Some(before) = ended.next_if(|before| before.times.1 < start_of(request)) {
            let place = place_of(before);
            for key in keys_of(&before.op) {
                let version = writes.version(&key, place);
                if seen.get(&key).is_none_or(|(newest, _)| *newest < version) {
                    seen.insert(key, (version, before));
                }
            }
            let looks_at_all = matches!(before.op, Op::Len | Op::Range(_));
            let tells_of_all = before.op.is_write() || looks_at_all;
            let own =
                line.get((place as usize).wrapping_sub(1)).is_some_and(|r| r.op.as_ref() == Some(&before.op));
            if tells_of_all && (own || looks_at_all) && newest.is_none_or(|(at, _)| at < place) {
                newest = Some((place, before));
            }
        }
        let place = place_of(request);
        for key in keys_of(&request.op) {
            let version = writes.version(&key, place);
            if let Some((newer, before)) = seen.get(&key).filter(|(newer, _)| *newer > version) {
                return Err(format!(
                    "shard {}: {request:?} saw {key:?} as of {version}, after {before:?} had seen {newer}",
                    shard.0
                ));
            }
        }
        if let (Op::Len | Op::Range(_), Some((newer, before))) =
            (&request.op, newest.filter(|(newer, _)| *newer > place))
        {
            return Err(format!("shard {}: {request:?} at {place}, after {before:?} at {newer}", shard.0));
        }
    }
    Ok(())
}
