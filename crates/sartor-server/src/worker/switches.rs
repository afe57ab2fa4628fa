//! Clients that wait for a table's other mode.

use super::{Mail, Worker};
use crate::client::Client;
use crate::front::plan::SwitchAsk;
use crate::resp::reply::Reply;
use sartor_core::coordinator::Care;
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
                let mode = waiting.ask.mode;
                let text = format!("TRYAGAIN the switch to {mode} is not done yet: {why}; send it again");
                self.answer_switch(&waiting, |reply| reply.error(&text));
            } else {
                self.wish(now, waiting.ask.table, waiting.ask.mode);
                self.switches.waiting.push(waiting);
            }
        }
    }

    /// The node's first worker speaks with the coordinator.
    pub(super) fn wish(&mut self, now: Now, table: u16, mode: &'static str) {
        match self.mailboxes.first().filter(|_| self.me.worker != 0) {
            Some(first) => first.post(Mail::Wish(table, mode)),
            None => self.node.wish(now, table, mode),
        }
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

/// Whether every copy of every shard is in the mode; else what is missing.
fn is_done(map: &ClusterMap, care: &Care, ask: &SwitchAsk) -> Result<(), String> {
    let Some(table) = map.tables.get(usize::from(ask.table)) else { return Err("the table is gone".into()) };
    let shards = || map.shards.iter().filter(|shard| shard.table == ask.table);
    let repaired = |id| care.repairs.iter().any(|repair| repair.shard == id);
    let unproven = shards().find(|shard| care.unproven.contains(&shard.id));
    match unproven {
        _ if care.epoch < table.switched => Err("the coordinator was not heard yet".into()),
        Some(shard) if repaired(shard.id) => Err(format!("shard {} is being repaired", shard.id.0)),
        Some(shard) => Err(format!("not all copies of shard {} serve", shard.id.0)),
        None if table.mode != ask.mode => Err("the coordinator has not begun it".into()),
        None => Ok(()),
    }
}
