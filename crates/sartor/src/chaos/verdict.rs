//! What clients saw, judged.

use super::load::{CONNECTIONS, History, Key, Shared};
use super::run::Met;
use crate::resp::{Connection, Reply};
use sartor_sim::history::{Answer, Ask, Call, Held, Outcome, explain, invented, lost, went_back};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Final reads are by clients with numbers from here on.
const READERS: u32 = 1 << 31;
/// Keys in one question; all of one shard, so that they are read at one moment.
const KEYS_AT_ONCE: usize = 200;
const PATIENCE: Duration = Duration::from_secs(10);
/// Calls that are printed before and after the one that is wrong.
const AROUND: usize = 8;
/// How long before a fault a write may have been acknowledged that a mode without a strong promise loses.
const LAG_US: u64 = 100_000;

/// An acknowledged write that is gone.
pub struct Lost {
    /// Which, in words.
    pub text: String,
    /// How long before a fault it was acknowledged, in µs, and the fault; negative: after its begin.
    pub before: Option<(i64, String)>,
    /// Whether the mode may lose it.
    pub allowed: bool,
}

/// The judgement of a run.
#[derive(Default)]
pub struct Verdict {
    /// What must never happen, each in a few lines.
    pub violations: Vec<String>,
    /// Acknowledged writes that are gone.
    pub lost: Vec<Lost>,
    /// How long after the load until all nodes held the same, at the latest, in ms.
    pub agreed_ms: u64,
}

type Read = BTreeMap<Key, (Held, u64, u64)>;

/// Reads everything at every node, and judges.
pub fn judge(shared: &Shared, history: History, strong: bool, faults: &[Met]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut keys: BTreeMap<Key, Vec<(u16, Call)>> = BTreeMap::new();
    for (key, node, call) in history {
        keys.entry(key).or_default().push((node, call));
    }
    let names: Vec<Key> = keys.keys().copied().collect();
    let began = Instant::now();
    let reads = loop {
        // What all said in this pass they knew when it began.
        let passed_ms = began.elapsed().as_millis() as u64;
        let reads = read_all(shared, &names, strong);
        let agree = reads.as_ref().is_ok_and(|reads| same(reads));
        // A strong cluster gets no second chance to agree, only to answer.
        if agree || began.elapsed() > PATIENCE || (strong && reads.is_ok()) {
            verdict.agreed_ms = passed_ms;
            break reads;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let reads = match reads {
        Ok(reads) => reads,
        Err(error) => {
            verdict.violations.push(format!("does not answer in the end: {error}"));
            return verdict;
        }
    };
    if !strong && !same(&reads) {
        let differ = names.iter().filter(|key| reads.iter().any(|read| read[*key].0 != reads[0][*key].0));
        let first: Vec<String> = differ.clone().take(5).map(|key| shared.name(*key)).collect();
        let count = differ.count();
        verdict.violations.push(format!(
            "nodes differ {} s after the load on {count} keys, such as {}",
            PATIENCE.as_secs(),
            first.join(", ")
        ));
    }
    for (key, calls) in keys {
        let calls: Vec<Call> = calls.into_iter().map(|(_, call)| call).collect();
        judge_key(shared, key, calls, &reads, strong, faults, &mut verdict);
    }
    verdict
}

fn judge_key(
    shared: &Shared,
    key: Key,
    mut calls: Vec<Call>,
    reads: &[Read],
    strong: bool,
    faults: &[Met],
    verdict: &mut Verdict,
) {
    let gone = lost(&calls, reads[0][&key].0);
    for &index in &gone {
        let call = &calls[index];
        let before = nearest(call.end_us, faults);
        let lag = |before: &(i64, String)| before.0 <= LAG_US as i64;
        let allowed = !strong && before.as_ref().is_some_and(lag);
        let text = format!(
            "lost: {} of key {}, which holds {} in the end",
            words(call),
            shared.name(key),
            held(reads[0][&key].0)
        );
        verdict.lost.push(Lost { text, before, allowed });
    }
    let asked = calls.len();
    for (node, read) in reads.iter().enumerate() {
        let (value, start_us, end_us) = read[&key];
        let outcome = Outcome::Answered(Answer::Value(value));
        calls.push(Call { client: READERS + node as u32, ask: Ask::Get, outcome, start_us, end_us });
    }
    // A failover may lose what somebody saw.
    let excused =
        |from_us, to_us| faults.iter().any(|fault| fault.began_us <= to_us && from_us <= fault.whole_us);
    let broken = match strong {
        true => explain(&calls),
        false => invented(&calls).and_then(|()| went_back(&calls, excused)),
    };
    let Err(violation) = broken else { return };
    // A loss that shows in the end is counted as that.
    if violation.call >= asked && !gone.is_empty() {
        return;
    }
    let text = format!("key {}: {}", shared.name(key), violation.why);
    verdict.violations.push(format!("{text}\n{}", around(&calls, violation.call)));
}

/// The fault that may have taken a write acknowledged then.
fn nearest(acknowledged_us: u64, faults: &[Met]) -> Option<(i64, String)> {
    let fault = faults.iter().find(|fault| acknowledged_us <= fault.whole_us)?;
    Some((fault.began_us as i64 - acknowledged_us as i64, fault.words.clone()))
}

fn same(reads: &[Read]) -> bool {
    let values = |read: &Read| read.values().map(|(held, ..)| *held).collect::<Vec<_>>();
    reads.windows(2).all(|pair| values(&pair[0]) == values(&pair[1]))
}

fn read_all(shared: &Shared, keys: &[Key], strong: bool) -> Result<Vec<Read>, String> {
    shared.endpoints.iter().map(|endpoint| read_node(shared, endpoint, keys, strong)).collect()
}

fn read_node(shared: &Shared, endpoint: &str, keys: &[Key], strong: bool) -> Result<Read, String> {
    let failed = |error: std::io::Error| format!("{endpoint}: {error}");
    let mut connection = Connection::open(endpoint, PATIENCE).map_err(failed)?;
    if !strong {
        // Any copy will do: they are to be equal.
        connection.ask(&[b"READONLY"]).map_err(failed)?;
    }
    let mut read = Read::new();
    for of_shard in keys.chunk_by(|one, other| one.0 == other.0) {
        for keys in of_shard.chunks(KEYS_AT_ONCE) {
            let names: Vec<String> = keys.iter().map(|key| shared.name(*key)).collect();
            let mut words: Vec<&[u8]> = vec![b"MGET"];
            words.extend(names.iter().map(String::as_bytes));
            let start_us = shared.now_us();
            let reply = connection.ask(&words).map_err(failed)?;
            let end_us = shared.now_us();
            let Reply::Array(values) = reply else { return Err(format!("{endpoint}: {reply:?}")) };
            for (key, value) in keys.iter().zip(values) {
                let held = match value {
                    Reply::Nil => None,
                    Reply::Text(text) => String::from_utf8_lossy(&text).parse().ok(),
                    other => return Err(format!("{endpoint}: {other:?}")),
                };
                read.insert(*key, (held, start_us, end_us));
            }
        }
    }
    Ok(read)
}

/// The calls around one, in order of their begin.
fn around(calls: &[Call], index: usize) -> String {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|at| (calls[*at].start_us, calls[*at].end_us));
    let place = order.iter().position(|at| *at == index).unwrap_or(0);
    // Who wrote what it tells of belongs to the story too.
    let told = match calls[index].outcome {
        Outcome::Answered(Answer::Value(value)) => value,
        _ => None,
    };
    let writer = calls.iter().position(|call| told.is_some() && call.ask.value() == told);
    let near = place.saturating_sub(AROUND)..(place + AROUND).min(order.len());
    let mut shown: Vec<usize> = order[near].to_vec();
    shown.extend(writer.filter(|writer| !shown.contains(writer)));
    shown.sort_by_key(|at| (calls[*at].start_us, calls[*at].end_us));
    let line = |at: &usize| format!("  {} {}", if *at == index { ">" } else { " " }, words(&calls[*at]));
    shown.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn words(call: &Call) -> String {
    let who = match call.client.checked_sub(READERS) {
        Some(node) => format!("final read at node {node}"),
        None => format!("client {}.{}", call.client / CONNECTIONS, call.client % CONNECTIONS),
    };
    let asked = match call.ask.value() {
        Some(value) => format!("{} {}", name(call.ask), held(Some(value))),
        None => name(call.ask).into(),
    };
    let (from, to) = (seconds(call.start_us), seconds(call.end_us));
    let became = match call.outcome {
        Outcome::Answered(Answer::Done) => "done".into(),
        Outcome::Answered(Answer::Bit(bit)) => (if bit { "yes" } else { "no" }).into(),
        Outcome::Answered(Answer::Value(value)) => held(value),
        Outcome::Refused => "refused".into(),
        Outcome::Unknown => "no answer".into(),
    };
    format!("{from} to {to}  {who}: {asked} -> {became}")
}

fn name(ask: Ask) -> &'static str {
    match ask {
        Ask::Get => "GET",
        Ask::Set(_) => "SET",
        Ask::SetAbsent(_) => "SET NX",
        Ask::Swap(_) => "SET GET",
        Ask::Delete => "DEL",
        Ask::Take => "GETDEL",
        Ask::Increment => "INCR",
    }
}

/// Values are a client's number and its count.
fn held(value: Held) -> String {
    match value {
        None => "nothing".into(),
        Some(value) if value >> 32 > 0 => format!("{}.{}", (value >> 32) - 1, value & 0xffff_ffff),
        Some(value) => value.to_string(),
    }
}

fn seconds(us: u64) -> String {
    format!("{:.6}", us as f64 / 1e6)
}
