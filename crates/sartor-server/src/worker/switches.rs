//! Clients that wait until a table has another mode, datalet or number of copies.

use super::{Mail, Worker};
use crate::client::Client;
use crate::front::plan::SwitchAsk;
use crate::resp::reply::Reply;
use sartor_core::coordinator::Care;
use sartor_core::coordinator::switch::TableShape;
use sartor_core::operation::SessionId;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::{Micros, Now, millis};

/// How often it is looked whether a switch is done.
const LOOK_EVERY_US: Micros = millis(20);
/// So many may wait at a worker.
const WAITING_MAX: usize = 64;

/// Who waits for a switch.
pub struct Waiting {
    session: SessionId,
    /// Its command's place among those of its connection.
    place: u32,
    ask: SwitchAsk,
}

/// All of them.
#[derive(Default)]
pub struct Switches {
    waiting: Vec<Waiting>,
    look_at: Micros,
}

impl Switches {
    /// When to look again.
    pub fn wake_at(&self) -> Micros {
        if self.waiting.is_empty() { Micros::MAX } else { self.look_at }
    }
}

impl Worker {
    pub(super) fn await_switch(&mut self, client: &mut Client, ask: &SwitchAsk) {
        if self.switches.waiting.len() >= WAITING_MAX {
            let mut reply = Vec::new();
            reply.error("TRYAGAIN too many clients wait for a switch at this node");
            return client.connection.reply_now(reply);
        }
        let (session, place) = (client.connection.session, client.connection.await_worker());
        self.switches.waiting.push(Waiting { session, place, ask: ask.clone() });
        self.switches.look_at = 0;
    }

    /// Wishes what is waited for, and answers what is done, or took too long.
    pub(super) fn tend_switches(&mut self, now: Now) {
        if now.steady_us < self.switches.wake_at() {
            return;
        }
        self.switches.look_at = now.steady_us + LOOK_EVERY_US;
        let Some(map) = self.map.clone() else { return };
        let care = match self.node.agent() {
            Some(agent) => agent.care().clone(),
            None => self.shared.care(),
        };
        for waiting in std::mem::take(&mut self.switches.waiting) {
            let Err(why) = is_done(&map, &care, &waiting.ask) else {
                self.answer_switch(&waiting, |reply| reply.simple("OK"));
                continue;
            };
            if now.steady_us >= waiting.ask.until_us {
                let text = format!("TRYAGAIN the switch is not done yet: {why}; send it again");
                self.answer_switch(&waiting, |reply| reply.error(&text));
            } else if self.is_there(&waiting) {
                self.wish(now, waiting.ask.table, &waiting.ask.shape);
                self.switches.waiting.push(waiting);
            }
        }
    }

    /// The node's first worker speaks with the coordinator.
    pub(super) fn wish(&mut self, now: Now, table: u16, shape: &TableShape) {
        match self.mailboxes.first().filter(|_| self.me.worker != 0) {
            Some(first) => first.post(Mail::Wish(table, shape.clone())),
            None => self.node.wish(now, table, shape),
        }
    }

    /// Whether the client has not gone.
    fn is_there(&self, waiting: &Waiting) -> bool {
        let client = self.clients.get(waiting.session.index as usize).and_then(Option::as_ref);
        client.is_some_and(|client| client.connection.session == waiting.session)
    }

    fn answer_switch(&mut self, waiting: &Waiting, write: impl FnOnce(&mut Vec<u8>)) {
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

/// Whether every copy of every shard is as it should be; else what is missing.
fn is_done(map: &ClusterMap, care: &Care, ask: &SwitchAsk) -> Result<(), String> {
    let Some(table) = map.tables.get(usize::from(ask.table)) else { return Err("the table is gone".into()) };
    if care.epoch < table.switched {
        return Err("the coordinator was not heard yet".into());
    }
    let begun = TableShape::of(table) == ask.shape;
    for shard in map.shards.iter().filter(|shard| shard.table == ask.table) {
        let id = shard.id;
        let unproven = care.unproven.contains(&id);
        let repair = care.repairs.iter().find(|repair| repair.shard == id);
        if let Some(repair) = repair.filter(|_| unproven || (begun && ask.fills)) {
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
        let (has, wants, old) = (shard.members.len(), usize::from(ask.shape.copies), shard.outdated.len());
        if begun && ask.fills && (has != wants || old > 0) {
            let kind = &table.datalet_before;
            let old = if old > 0 { format!(", {old} in {kind}") } else { String::new() };
            return Err(format!("shard {} has {has} of {wants} copies{old}", id.0));
        }
    }
    if begun { Ok(()) } else { Err("the coordinator has not begun it".into()) }
}
