//! What the copies on this node found when they were surveyed, as JSON for `sartor verify`.

use crate::stores::Stores;
use sartor_core::ids::{Position, ShardId};
use sartor_core::survey::{Found, Report, hash_kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a shard is surveyed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Started {
    /// The shard.
    pub shard: u16,
    /// The place in its history.
    pub epoch: u64,
    /// See `epoch`.
    pub sequence: u64,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a copy found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Finding {
    /// How it stands.
    pub state: State,
    /// Records seen so far.
    pub done: u64,
    /// About how many there are.
    pub total: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How it hashes: only alike ones can be compared.
    pub hash: String,
    /// The slots that hold records, each with their number and digest.
    pub slots: Vec<(u16, u64, String)>,
}

/// How a survey stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// This node has no copy of the shard.
    #[default]
    Absent,
    /// The copy is not there yet.
    Waiting,
    /// It was past that place when it came here, or another survey took the place of this one.
    Missed,
    /// It goes on.
    Running,
    /// The result is here.
    Done,
    /// It could not be ended.
    Failed,
}

/// A copy: how far it is, and its last survey.
type Copy = (Position, Option<Report>);

/// The copies of all workers of a node, as of a moment ago.
#[derive(Clone, Default)]
pub struct Surveys(Arc<Mutex<BTreeMap<u8, BTreeMap<ShardId, Copy>>>>);

impl Surveys {
    /// Takes note of the copies of a worker.
    pub fn publish(&self, worker: u8, stores: &Stores) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, stores.surveyed());
    }

    /// What the copy here found at that place.
    pub fn result(&self, shard: ShardId, at: Position) -> Finding {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = workers.values().find_map(|copies| copies.get(&shard)).cloned();
        drop(workers);
        let hash = format!("{:032x}", hash_kind());
        let bare = |state| Finding { state, hash: hash.clone(), ..Finding::default() };
        let Some((position, report)) = copy else { return bare(State::Absent) };
        match report.filter(|report| report.at == at).map(|report| report.found) {
            None if position < at => bare(State::Waiting),
            None => bare(State::Missed),
            Some(Found::Running { done, total }) => Finding { done, total, ..bare(State::Running) },
            Some(Found::Failed(why)) => Finding { reason: why.into_owned(), ..bare(State::Failed) },
            Some(Found::Done(sums)) => {
                let slot = |(slot, sum): &(u16, sartor_core::survey::SlotSum)| {
                    (*slot, sum.records, format!("{:032x}", sum.digest))
                };
                let slots: Vec<(u16, u64, String)> = sums.iter().map(slot).collect();
                let total = slots.iter().map(|(_, records, _)| records).sum();
                Finding { done: total, total, slots, ..bare(State::Done) }
            }
        }
    }
}
