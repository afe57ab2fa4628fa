//! What is outside of the cluster: logs, which never lose what they hold, but calls and answers get lost, and at times nobody
//! answers; and a lock service.

use super::{Happening, World};
use bytes::Bytes;
use sartor_core::controlet::part::log::{LogCall, LogEvent};
use sartor_core::ids::{Incarnation, NodeId, ShardId, WorkerId};
use sartor_core::node::locking::{LockCall, LockEvent};
use sartor_core::random::{Random, mix};
use sartor_core::time::{Micros, millis};
use std::collections::BTreeMap;

/// Who gets no answer waits for so long.
const PATIENCE_US: Micros = millis(1000);
/// So many messages come in one part.
const PART: usize = 3;

/// All of them.
pub struct Outside {
    logs: BTreeMap<ShardId, Held>,
    /// Of its own, so that the seeds of other modes mean what they meant.
    random: Random,
    /// Nobody answers then.
    away: (Micros, Micros),
}

/// What one holds: messages from an offset on.
#[derive(Default)]
struct Held {
    trimmed: u64,
    messages: Vec<Bytes>,
}

impl Held {
    fn end(&self) -> u64 {
        self.trimmed + self.messages.len() as u64
    }

    fn answer(&mut self, call: LogCall) -> Vec<LogEvent> {
        match call {
            LogCall::Read { after } => {
                let numbered = (self.trimmed + 1..).zip(self.messages.iter().cloned());
                let left: Vec<(u64, Bytes)> = numbered.filter(|(offset, _)| *offset > after).collect();
                let mut parts: Vec<LogEvent> = left
                    .chunks(PART)
                    .map(|part| LogEvent::Read { messages: part.to_vec(), end: None })
                    .collect();
                parts.push(LogEvent::Read { messages: Vec::new(), end: Some(self.end()) });
                parts
            }
            LogCall::Append { after, payload } if after == self.end() => {
                self.messages.push(payload);
                vec![LogEvent::Appended { offset: self.end() }]
            }
            LogCall::Append { .. } => vec![LogEvent::Refused],
            LogCall::Trim { up_to } => {
                let count = up_to.saturating_sub(self.trimmed).min(self.messages.len() as u64);
                self.messages.drain(..count as usize);
                self.trimmed += count;
                Vec::new()
            }
        }
    }
}

impl Outside {
    /// Empty ones.
    pub fn new(seed: u64, run_ms: u64) -> Outside {
        let mut random = Random::new(mix(seed ^ 0x106));
        let from = random.below(millis(run_ms));
        let lasts = if random.percent(50) { random.below(millis(6000)) } else { 0 };
        Outside { logs: BTreeMap::new(), random, away: (from, from + lasts) }
    }

    fn delay(&mut self, healed: bool) -> Micros {
        let most = if self.random.percent(5) && !healed { millis(3000) } else { 2000 };
        100 + self.random.below(most)
    }
}

impl World {
    pub(super) fn send_to_log(&mut self, node: u16, shard: ShardId, number: u64, call: LogCall) {
        let from = WorkerId { node: NodeId(node), worker: 0 };
        let life = self.machines[usize::from(node)].incarnation;
        let (begin, end) = self.outside.away;
        let lost = (begin..end).contains(&self.now_us) || self.outside.random.percent(4);
        let lost = lost && !self.net.healed;
        if lost {
            self.give_up_call((from, life), shard, number, &call);
            if self.outside.random.percent(50) {
                return;
            }
            // It comes late, and nobody waits for its answer.
        }
        let late = if lost { PATIENCE_US } else { 0 };
        let at = self.now_us + late + self.outside.delay(self.net.healed);
        self.at(at, Happening::Ask(from, life, shard, number, call));
    }

    fn give_up_call(&mut self, to: (WorkerId, Incarnation), shard: ShardId, number: u64, call: &LogCall) {
        if !matches!(call, LogCall::Trim { .. }) {
            let at = self.now_us + PATIENCE_US;
            self.at(at, Happening::Told(to.0, to.1, shard, number, LogEvent::Failed));
        }
    }

    pub(super) fn ask_log(
        &mut self,
        from: (WorkerId, Incarnation),
        shard: ShardId,
        number: u64,
        call: LogCall,
    ) {
        let mut events = self.outside.logs.entry(shard).or_default().answer(call.clone());
        if events.len() > 1 && self.outside.random.percent(10) && !self.net.healed {
            // The connection is lost between parts.
            events.truncate(self.outside.random.below(events.len() as u64) as usize);
            events.push(LogEvent::Failed);
        }
        if self.outside.random.percent(4) && !self.net.healed {
            return self.give_up_call(from, shard, number, &call);
        }
        // Parts of an answer come in order.
        let at = self.now_us + self.outside.delay(self.net.healed);
        for event in events {
            self.at(at, Happening::Told(from.0, from.1, shard, number, event));
        }
    }
}

/// A lock service that lies: everybody gets what he asks for, and some do not. Nothing may rest on it.
impl World {
    pub(super) fn ask_locks(&mut self, node: u16, call: &LockCall) {
        let LockCall::Acquire { id, .. } = *call else { return };
        let to = WorkerId { node: NodeId(node), worker: 0 };
        let life = self.machines[usize::from(node)].incarnation;
        let at = self.now_us + self.outside.delay(self.net.healed);
        let fails = self.outside.random.percent(3) && !self.net.healed;
        let event = if fails { LockEvent::Failed { id } } else { LockEvent::Held { id } };
        self.at(at, Happening::Lock(to, life, event));
    }
}
