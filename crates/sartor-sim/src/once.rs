//! Operations that clients name and ask for again, at other nodes too; and what must hold of them.
//!
//! - A name has at most one entry in the history that is true in the end, and none if all who asked were refused.
//!   What names stand for is kept in memory: after all copies died and began again from disk, a name may have another one.
//! - All who asked and were told something that is kept were told the same, which is what that entry answered.

use crate::check::{Lines, has_no_place};
use crate::client::{Asked, Client};
use crate::world::World;
use bytes::Bytes;
use sartor_core::controlet::part::once::fingerprint;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::{FailureKind, Once, Op, Outcome};
use sartor_core::random::Random;
use std::collections::BTreeMap;

/// Named operations that may be asked for again.
#[derive(Default)]
pub struct Again {
    /// Each one's connection, and its place among that one's requests.
    asked: Vec<(usize, usize)>,
}

/// Puts some operations under a name that no other one has.
pub fn named(random: &mut Random, op: Op, unique: u64) -> Op {
    let fits = match &op {
        Op::Batch(batch) => batch.watched.is_empty(),
        Op::Key(_, action) => !matches!(action, sartor_core::operation::Action::Version),
        other => matches!(other, Op::Len | Op::Clear),
    };
    if !fits || !random.percent(15) {
        return op;
    }
    let (id, fingerprint) = (Bytes::from(format!("once{unique}")), fingerprint([&op].into_iter()));
    Op::Once(Box::new(Once { id, fingerprint, op }))
}

impl Again {
    /// The newest request of this connection was made.
    pub fn note(&mut self, index: usize, client: &Client) {
        let last = client.asked.len() - 1;
        if matches!(client.asked[last].op, Op::Once(_)) {
            self.asked.push((index, last));
        }
    }

    /// What somebody asks for again now, if anybody does: whose answer was lost or unknown, some who have it, and
    /// some who cannot wait.
    pub fn pick(&mut self, random: &mut Random, clients: &[Client], open: &[usize]) -> Option<(ShardId, Op)> {
        if self.asked.is_empty() || !random.percent(25) {
            return None;
        }
        let place = random.below(self.asked.len() as u64) as usize;
        let (index, tag) = self.asked[place];
        let asked = &clients[index].asked[tag];
        let (ends, percent) = match &asked.answer {
            Some((Outcome::Failed(failure), _)) if has_no_place(failure.kind) => (true, 100),
            Some(_) => (true, 30),
            None if open.contains(&index) => (false, 20),
            None => (true, 100),
        };
        if ends {
            self.asked.swap_remove(place);
        }
        random.percent(percent).then(|| (asked.shard, asked.op.clone()))
    }
}

fn name_of(op: &Op) -> Option<&Bytes> {
    if let Op::Once(once) = op { Some(&once.id) } else { None }
}

/// Checks all names.
pub fn check(world: &World, lines: &Lines<'_>) -> Result<(), String> {
    if world.config.splits && lines.forgot(world) {
        return Ok(());
    }
    let mut entries: BTreeMap<&Bytes, Vec<Position>> = BTreeMap::new();
    for record in lines.last.values().flatten() {
        if let Some(id) = record.op.as_ref().and_then(name_of) {
            entries.entry(id).or_default().push(record.entry.position);
        }
    }
    let mut names: BTreeMap<&Bytes, Vec<&Asked>> = BTreeMap::new();
    for asked in world.clients.iter().flat_map(|client| &client.asked) {
        let mut keys = 0;
        asked.op.each_key(&mut |_| keys += 1);
        // What is about a shard as a whole may be done again for what became another one.
        if let Some(id) = name_of(&asked.op).filter(|_| keys > 0 || !world.config.splits) {
            names.entry(id).or_default().push(asked);
        }
    }
    for (id, asked) in names {
        let places = entries.get(id).map_or(&[][..], Vec::as_slice);
        // Of each life of the shard by itself.
        for life in 0..=world.lives_max() {
            let of_life = |shard: ShardId, position: Position| world.life_of(shard, position) == life;
            let places: Vec<Position> =
                places.iter().copied().filter(|place| of_life(asked[0].shard, *place)).collect();
            let told = |asked: &Asked| match &asked.answer {
                Some((Outcome::Failed(failure), _)) if has_no_place(failure.kind) => true,
                Some((_, at)) => of_life(asked.shard, *at),
                None => true,
            };
            let asked: Vec<&Asked> = asked.iter().copied().filter(|asked| told(asked)).collect();
            judge(&asked, &places, lines).map_err(|error| format!("{error}: {asked:?}"))?;
        }
    }
    Ok(())
}

fn judge(asked: &[&Asked], places: &[Position], lines: &Lines<'_>) -> Result<(), String> {
    if places.len() > 1 {
        return Err(format!("took effect more than once, at {places:?}"));
    }
    let refused = |asked: &&Asked| match &asked.answer {
        Some((Outcome::Failed(failure), _)) => {
            matches!(failure.kind, FailureKind::Retry | FailureKind::Full)
        }
        _ => false,
    };
    if !places.is_empty() && !asked.is_empty() && asked.iter().all(refused) {
        return Err("was refused and took effect".into());
    }
    let mut told: Option<&Outcome> = None;
    for asked in asked {
        let Some((outcome, position)) = &asked.answer else { continue };
        let placed = !matches!(outcome, Outcome::Failed(failure) if has_no_place(failure.kind));
        if !placed || !lines.keeps(asked.shard, *position) {
            continue;
        }
        // A part that began with what the whole remembered tells of no place before its own first one.
        if places != [*position] && position.sequence > 0 {
            return Err(format!("was answered at {position}, but took effect at {places:?}"));
        }
        if told.is_some_and(|first| first != outcome) {
            return Err("was answered differently".into());
        }
        told = Some(outcome);
    }
    Ok(())
}
