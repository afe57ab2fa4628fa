//! Clients that wait until a table is there, is gone, or has another mode, datalet or number of copies.

use super::{Mail, Worker};
use crate::client::Client;
use crate::front::plan::ChangeAsk;
use crate::resp::reply::Reply;
use sartor_core::coordinator::split::refuses;
use sartor_core::coordinator::switch::TableShape;
use sartor_core::coordinator::wish::Change;
use sartor_core::coordinator::{Care, Repair};
use sartor_core::ids::Epoch;
use sartor_core::operation::SessionId;
use sartor_core::routing::map::{ClusterMap, Shard, Table};
use sartor_core::time::{Micros, Now, millis};

/// How often it is looked whether a change is done.
const LOOK_EVERY_US: Micros = millis(20);
/// So many may wait at a worker.
const WAITING_MAX: usize = 64;

/// Who waits for a change.
pub struct Waiting {
    session: SessionId,
    /// Its command's place among those of its connection.
    place: u32,
    ask: ChangeAsk,
    /// Whether it was in the map.
    begun: bool,
}

/// All of them.
#[derive(Default)]
pub struct Changes {
    waiting: Vec<Waiting>,
    look_at: Micros,
}

impl Changes {
    /// When to look again.
    pub fn wake_at(&self) -> Micros {
        if self.waiting.is_empty() { Micros::MAX } else { self.look_at }
    }
}

impl Worker {
    pub(super) fn await_change(&mut self, client: &mut Client, ask: &ChangeAsk) {
        if self.changes.waiting.len() >= WAITING_MAX {
            let mut reply = Vec::new();
            reply.error("TRYAGAIN too many clients wait for changes at this node");
            return client.connection.reply_now(reply);
        }
        let (session, place) = (client.connection.session, client.connection.await_worker());
        self.changes.waiting.push(Waiting { session, place, ask: ask.clone(), begun: false });
        self.changes.look_at = 0;
    }

    /// Wishes what is waited for, and answers what is done, or took too long.
    pub(super) fn tend_changes(&mut self, now: Now) {
        if now.steady_us < self.changes.wake_at() {
            return;
        }
        self.changes.look_at = now.steady_us + LOOK_EVERY_US;
        let Some(map) = self.map.clone() else { return };
        let care = match self.node.agent() {
            Some(agent) => agent.care().clone(),
            None => self.shared.care(),
        };
        let mut all = std::mem::take(&mut self.changes.waiting);
        if !all.is_empty() {
            // A node tells one wish at a time, the last one: each gets its turn.
            all.rotate_left(1);
        }
        for mut waiting in all {
            let is_in = waiting.ask.change.is_in(&map);
            if waiting.begun && !is_in && matches!(waiting.ask.change, Change::Create(_)) {
                self.answer_change(&waiting, |reply| reply.error("ERR somebody deleted the table meanwhile"));
                continue;
            }
            waiting.begun |= is_in;
            let why = match is_done(&map, &care, &waiting.ask) {
                Ok(()) => {
                    self.answer_change(&waiting, |reply| reply.simple("OK"));
                    continue;
                }
                Err(Not::Ever(why)) => {
                    self.answer_change(&waiting, |reply| reply.error(&format!("ERR {why}")));
                    continue;
                }
                Err(Not::Yet(why)) => why,
            };
            if now.steady_us >= waiting.ask.until_us {
                let text = format!("TRYAGAIN it is not done yet: {why}; send it again");
                self.answer_change(&waiting, |reply| reply.error(&text));
            } else if self.is_there(&waiting) {
                self.wish(now, &waiting.ask.change);
                self.changes.waiting.push(waiting);
            }
        }
    }

    /// The node's first worker speaks with the coordinator.
    pub(super) fn wish(&mut self, now: Now, change: &Change) {
        match self.mailboxes.first().filter(|_| self.me.worker != 0) {
            Some(first) => first.post(Mail::Wish(change.clone())),
            None => self.node.wish(now, change),
        }
    }

    /// Whether the client has not gone.
    fn is_there(&self, waiting: &Waiting) -> bool {
        let client = self.clients.get(waiting.session.index as usize).and_then(Option::as_ref);
        client.is_some_and(|client| client.connection.session == waiting.session)
    }

    fn answer_change(&mut self, waiting: &Waiting, write: impl FnOnce(&mut Vec<u8>)) {
        let index = waiting.session.index as usize;
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if client.connection.session == waiting.session {
            let mut reply = Vec::new();
            write(&mut reply);
            client.connection.answer_awaited(waiting.place, reply);
            self.mark_dirty(index);
        }
    }
}

/// Why a change is not done.
enum Not {
    /// It may be soon.
    Yet(String),
    /// It cannot be.
    Ever(String),
}

fn is_done(map: &ClusterMap, care: &Care, ask: &ChangeAsk) -> Result<(), Not> {
    match &ask.change {
        Change::Reshape(table, shape) => {
            let table = map.table(*table).ok_or_else(|| Not::Ever("the table was deleted".into()))?;
            is_reshaped(map, care, (table, shape), ask.fills).map_err(Not::Yet)
        }
        Change::Create(new) => match map.table_named(&new.name) {
            Some(_) if !ask.change.is_in(map) => {
                Err(Not::Ever(format!("there is a table {} already, another one", new.name)))
            }
            Some(table) => serves(map, care, table).map_err(Not::Yet),
            None => Err(Not::Yet("the coordinator has not begun it".into())),
        },
        Change::Delete(table) => is_deleted(map, care, *table).map_err(Not::Yet),
        Change::Split(table, at) => {
            let table = map.table(*table).ok_or_else(|| Not::Ever("the table was deleted".into()))?;
            match map.shards_of(table.id).find(|shard| shard.lower == *at) {
                Some(part) if part.part_of.is_none() => serves(map, care, table).map_err(Not::Yet),
                Some(part) => Err(Not::Yet(how_far(care, part))),
                None => match refuses(map, table.id, at) {
                    Some(why) => Err(Not::Ever(why)),
                    None => Err(Not::Yet(begins_later(map, care, table))),
                },
            }
        }
    }
}

/// Why a division goes on.
fn how_far(care: &Care, part: &Shard) -> String {
    let closed = part.part_of.is_some_and(|part| part.closed);
    let fills: Vec<&Repair> = care.repairs.iter().filter(|repair| repair.shard == part.id).collect();
    match fills.iter().min_by_key(|fill| fill.done) {
        Some(fill) if !closed => {
            format!(
                "shard {} is being prepared: {} records copied, of at most {}",
                part.id.0, fill.done, fill.total
            )
        }
        _ => format!("not all copies of shard {} are ready", part.id.0),
    }
}

/// Why one has not begun.
fn begins_later(map: &ClusterMap, care: &Care, table: &Table) -> String {
    let busy = |shard: &&Shard| {
        shard.part_of.is_some() || shard.joining.is_some() || care.unproven.contains(&shard.id)
    };
    match map.shards_of(table.id).find(busy) {
        Some(shard) if shard.part_of.is_some() => "another shard of the table is being divided".into(),
        Some(shard) => format!("shard {} is being repaired", shard.id.0),
        None => "the coordinator has not begun it".into(),
    }
}

/// Whether a new table serves, and every node knows it.
fn serves(map: &ClusterMap, care: &Care, table: &Table) -> Result<(), String> {
    all_know(care, table.switched.max(table.divided))?;
    match map.shards_of(table.id).find(|shard| care.unproven.contains(&shard.id)) {
        Some(shard) => Err(format!("not all copies of shard {} serve", shard.id.0)),
        None => Ok(()),
    }
}

fn is_deleted(map: &ClusterMap, care: &Care, table: u16) -> Result<(), String> {
    if map.table(table).is_some() {
        return Err("the coordinator has not begun it".into());
    }
    let of_it = |shard: &&Shard| shard.table == table;
    all_know(care, map.shards.iter().filter(of_it).map(|shard| shard.epoch).max().unwrap_or_default())
}

fn all_know(care: &Care, epoch: Epoch) -> Result<(), String> {
    match care.epoch.min(care.known) < epoch {
        true => Err("not all nodes have heard of it".into()),
        false => Ok(()),
    }
}

/// Whether every copy of every shard is as it should be; else what is missing.
fn is_reshaped(
    map: &ClusterMap,
    care: &Care,
    (table, shape): (&Table, &TableShape),
    fills: bool,
) -> Result<(), String> {
    if care.epoch < table.switched {
        return Err("the coordinator was not heard yet".into());
    }
    let begun = TableShape::of(table) == *shape;
    for shard in map.shards_of(table.id) {
        let id = shard.id;
        let unproven = care.unproven.contains(&id);
        let repair = care.repairs.iter().find(|repair| repair.shard == id);
        if let Some(repair) = repair.filter(|_| unproven || (begun && fills)) {
            let (node, done, total) = (repair.node.0, repair.done, repair.total);
            return Err(format!("node {node} is being filled for shard {}: {done} of {total} records", id.0));
        }
        if !begun && !shard.outdated.is_empty() {
            let kind = &table.datalet_before;
            return Err(format!("shard {} has copies in {kind} yet, and changes its datalet first", id.0));
        }
        if unproven {
            return Err(format!("not all copies of shard {} serve", id.0));
        }
        let late = care.lags.iter().filter(|lag| lag.shard == id).map(|lag| lag.us / 1000).max();
        if let Some(late_ms) = late.filter(|late_ms| !begun && *late_ms >= 100) {
            return Err(format!("a copy of shard {} is {late_ms} ms behind", id.0));
        }
        let (has, wants, old) = (shard.members.len(), usize::from(shape.copies), shard.outdated.len());
        if begun && fills && (has != wants || old > 0) {
            let kind = &table.datalet_before;
            let old = if old > 0 { format!(", {old} in {kind}") } else { String::new() };
            return Err(format!("shard {} has {has} of {wants} copies{old}", id.0));
        }
    }
    if begun { Ok(()) } else { Err("the coordinator has not begun it".into()) }
}
