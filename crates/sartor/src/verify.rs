//! `sartor verify`: whether the copies of each shard are equal, slot by slot, while the cluster serves.
//!
//! ```text
//!  any node ◀── START ──   each shard's head orders a survey, which gives its place in the history
//!  each copy ◀─ RESULT ─   what it held at that place, until all have told
//! ```
//!
//! A copy that cannot tell may be one that has just been replaced, so such shards are asked anew a few times.

use crate::{Failed, resp, say, status};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sartor_server::status::{ShardStatus, Status};
use sartor_server::survey::{Finding, Started, State};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often shards are asked that could not tell.
const ATTEMPTS: usize = 3;
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
const POLL_EVERY: Duration = Duration::from_millis(100);
/// A survey that gets on with nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// A node that does not answer for so long is hanging.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Longer than requests wait in a node.
const START_WITHIN: Duration = Duration::from_secs(15);
/// Slots of a shard that are printed.
const LINES_MAX: usize = 20;

/// Arguments of `sartor verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "table")]
    output: status::Output,
}

/// A copy of a shard.
struct Copy {
    node: u16,
    addr: String,
    finding: Finding,
    /// Why it cannot tell.
    trouble: Option<String>,
}

/// A shard that is asked.
struct Shard {
    id: u16,
    at: (u64, u64),
    copies: Vec<Copy>,
    trouble: Option<String>,
}

/// A slot in which copies differ: each one's node, records and digest.
type Difference = (u16, Vec<(u16, u64, String)>);

/// Runs the verb.
pub fn run(args: &VerifyArgs) -> Result<(), Failed> {
    let mut endpoints = vec![args.endpoint.clone()];
    let mut shards: BTreeMap<u16, Shard> = BTreeMap::new();
    let mut sentence = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            sleep(ATTEMPT_EVERY);
        }
        let (endpoint, status) = reach(&endpoints)?;
        let wanted: Vec<&ShardStatus> =
            status.shards.iter().filter(|shard| shards.get(&shard.id).is_none_or(Shard::is_open)).collect();
        for shard in ask(&endpoint, &status, &wanted)? {
            shards.insert(shard.id, shard);
        }
        endpoints.extend(status.nodes.iter().map(|node| node.addr.clone()));
        sentence = (status.health != "healthy").then(|| status.sentence());
        if !shards.values().any(Shard::is_open) {
            break;
        }
    }
    let shards: Vec<Shard> = shards.into_values().collect();
    match args.output {
        status::Output::Json => say(format_args!("{}", as_json(&shards))),
        status::Output::Table => print(&shards, sentence.as_deref()),
    }
    let differing: usize = shards.iter().map(|shard| shard.differences().len()).sum();
    let open = shards.iter().filter(|shard| shard.is_open()).count();
    match (differing, open) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failed::undecided(format!("{open} of {} shards could not be verified", shards.len()))),
        (1, _) => Err(Failed::other("the copies of 1 slot differ")),
        _ => Err(Failed::other(format!("the copies of {differing} slots differ"))),
    }
}

/// The first node that answers.
fn reach(endpoints: &[String]) -> Result<(String, Status), Failed> {
    let mut first = None;
    for endpoint in endpoints {
        match status::fetch(endpoint) {
            Ok(status) => return Ok((endpoint.clone(), status)),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(Failed::undecided(first.unwrap_or_default()))
}

/// Surveys these shards, until all their copies have told what they hold or why they cannot.
fn ask(endpoint: &str, status: &Status, wanted: &[&ShardStatus]) -> Result<Vec<Shard>, Failed> {
    let mut words = vec!["SARTOR.VERIFY".to_owned(), "START".to_owned()];
    words.extend(wanted.iter().map(|shard| shard.id.to_string()));
    let json = resp::ask_within(endpoint, &words, START_WITHIN).map_err(Failed::undecided)?;
    let started: Vec<Started> = serde_json::from_str(&json)
        .map_err(|error| Failed::undecided(format!("{endpoint} answered with another format: {error}")))?;
    let mut shards: Vec<Shard> = Vec::new();
    for shard in wanted {
        let begun = started.iter().find(|started| started.shard == shard.id);
        let begun = begun.cloned().unwrap_or_default();
        let copy = |node: u16| {
            let addr = status.nodes.iter().find(|known| known.id == node).map(|known| known.addr.clone());
            Copy { node, addr: addr.unwrap_or_default(), finding: Finding::default(), trouble: None }
        };
        let copies = shard.replicas.iter().map(|replica| copy(replica.node)).collect();
        shards.push(Shard {
            id: shard.id,
            at: (begun.epoch, begun.sequence),
            copies,
            trouble: begun.error.clone(),
        });
    }
    poll(&mut shards);
    Ok(shards)
}

fn poll(shards: &mut [Shard]) {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("verifying [{bar:40}] {percent} % of {len} records, {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    let (mut news, mut since) = (0, Instant::now());
    loop {
        let mut silent = BTreeSet::new();
        shards.iter_mut().for_each(|shard| shard.poll(&mut silent));
        let copies = || shards.iter().flat_map(|shard| &shard.copies);
        bar.set_length(copies().map(|copy| copy.finding.total).sum());
        bar.set_position(copies().map(|copy| copy.finding.done).sum());
        let open = copies().filter(|copy| copy.waits()).count();
        let now = copies().map(|copy| copy.finding.done + u64::from(!copy.waits())).sum::<u64>();
        if now != news {
            (news, since) = (now, Instant::now());
        }
        if open == 0 || since.elapsed() > PATIENCE {
            break;
        }
        sleep(POLL_EVERY);
    }
    for copy in shards.iter_mut().flat_map(|shard| &mut shard.copies).filter(|copy| copy.waits()) {
        copy.trouble = Some(match copy.finding.state {
            State::Waiting => "has not applied the entries up to the survey".into(),
            _ => format!("stopped at {} of {} records", copy.finding.done, copy.finding.total),
        });
    }
    bar.finish_and_clear();
}

impl Copy {
    fn waits(&self) -> bool {
        self.trouble.is_none() && self.finding.state != State::Done
    }

    fn poll(&mut self, shard: u16, at: (u64, u64)) {
        let words = ["SARTOR.VERIFY", "RESULT", &shard.to_string(), &at.0.to_string(), &at.1.to_string()];
        let answer = resp::ask_within(&self.addr, &words, ANSWER_WITHIN);
        let finding = answer.and_then(|json| {
            serde_json::from_str::<Finding>(&json)
                .map_err(|error| format!("answers with another format: {error}"))
        });
        match finding {
            Ok(finding) => {
                self.trouble = match finding.state {
                    State::Absent => Some("has no copy of it any more".into()),
                    State::Missed => Some("got its copy since, or was asked for another survey".into()),
                    State::Failed => Some(finding.reason.clone()),
                    State::Waiting | State::Running | State::Done => None,
                };
                self.finding = finding;
            }
            Err(error) => self.trouble = Some(error),
        }
    }
}

impl Shard {
    fn poll(&mut self, silent: &mut BTreeSet<u16>) {
        let (id, at) = (self.id, self.at);
        if self.trouble.is_some() {
            let none = |copy: &mut Copy| copy.trouble = Some("was not asked".into());
            return self.copies.iter_mut().for_each(none);
        }
        for copy in self.copies.iter_mut().filter(|copy| copy.waits()) {
            if silent.contains(&copy.node) {
                // It was waited for once in this round.
                copy.trouble = Some(format!("no node answers at {}", copy.addr));
                continue;
            }
            copy.poll(id, at);
            if copy.trouble.is_some() && copy.finding.state == State::Absent {
                silent.insert(copy.node);
            }
        }
    }

    fn told(&self) -> impl Iterator<Item = &Copy> {
        self.copies.iter().filter(|copy| copy.finding.state == State::Done)
    }

    /// Why it is not known whether its copies are equal.
    fn troubles(&self) -> Vec<String> {
        if let Some(trouble) = &self.trouble {
            return vec![trouble.clone()];
        }
        let of_copy = |copy: &Copy| {
            let trouble = copy.trouble.as_ref()?;
            Some(format!("node {} {}", copy.node, trouble))
        };
        let mut troubles: Vec<String> = self.copies.iter().filter_map(of_copy).collect();
        let hashes: BTreeSet<&String> = self.told().map(|copy| &copy.finding.hash).collect();
        if hashes.len() > 1 {
            troubles.push("its nodes run versions whose digests cannot be compared".into());
        }
        if self.copies.is_empty() {
            troubles.push("it has no copies".into());
        }
        troubles
    }

    /// Whether nothing can be said of it yet.
    fn is_open(&self) -> bool {
        !self.troubles().is_empty() && self.differences().is_empty()
    }

    fn differences(&self) -> Vec<Difference> {
        let hashes: BTreeSet<&String> = self.told().map(|copy| &copy.finding.hash).collect();
        if hashes.len() > 1 {
            return Vec::new();
        }
        let mut slots: BTreeMap<u16, BTreeMap<u16, (u64, &str)>> = BTreeMap::new();
        for copy in self.told() {
            for (slot, records, digest) in &copy.finding.slots {
                slots.entry(*slot).or_default().insert(copy.node, (*records, digest));
            }
        }
        let mut differences = Vec::new();
        for (slot, found) in slots {
            let of = |copy: &Copy| {
                let (records, digest) = found.get(&copy.node).copied().unwrap_or((0, "none"));
                (copy.node, records, digest.to_owned())
            };
            let copies: Vec<_> = self.told().map(of).collect();
            if copies.windows(2).any(|pair| (pair[0].1, &pair[0].2) != (pair[1].1, &pair[1].2)) {
                differences.push((slot, copies));
            }
        }
        differences
    }

    fn counts(&self) -> (usize, u64) {
        self.told().next().map_or((0, 0), |copy| (copy.finding.slots.len(), copy.finding.total))
    }
}

fn print(shards: &[Shard], sentence: Option<&str>) {
    for shard in shards {
        let differences = shard.differences();
        for (slot, copies) in differences.iter().take(LINES_MAX) {
            let copy = |(place, (node, records, digest)): (usize, &(u16, u64, String))| {
                let unit = if place == 0 { " records" } else { "" };
                format!("node {node} has {records}{unit} (digest {})", &digest[..digest.len().min(16)])
            };
            let copies: Vec<String> = copies.iter().enumerate().map(copy).collect();
            say(format_args!("shard {} slot {slot}: {}", shard.id, copies.join(", ")));
        }
        if differences.len() > LINES_MAX {
            say(format_args!("shard {}: {} more slots differ", shard.id, differences.len() - LINES_MAX));
        }
        for trouble in shard.troubles() {
            say(format_args!("shard {} could not be verified: {trouble}", shard.id));
        }
    }
    if let Some(sentence) = sentence {
        say(format_args!("{sentence}"));
    }
    let clear: Vec<&Shard> =
        shards.iter().filter(|shard| !shard.is_open() && shard.differences().is_empty()).collect();
    let copies: usize = clear.iter().map(|shard| shard.copies.len()).sum();
    let slots: usize = clear.iter().map(|shard| shard.counts().0).sum();
    let records: u64 = clear.iter().map(|shard| shard.counts().1).sum();
    let (equal, all) = (clear.len(), shards.len());
    let what = format!("{copies} replicas, {slots} slots, {records} records");
    match equal == all {
        true => say(format_args!("verified: {all} shards, {what}: all equal")),
        false => say(format_args!("equal: {equal} of {all} shards, {what}")),
    }
}

fn as_json(shards: &[Shard]) -> Value {
    let of_slot = |(slot, copies): &Difference| {
        let copies: Vec<Value> = copies
            .iter()
            .map(|(node, records, digest)| json!({ "node": node, "records": records, "digest": digest }))
            .collect();
        json!({ "slot": slot, "copies": copies })
    };
    let of_shard = |shard: &Shard| {
        let differences = shard.differences();
        let verdict = match (differences.is_empty(), shard.is_open()) {
            (false, _) => "differs",
            (true, true) => "unknown",
            (true, false) => "equal",
        };
        json!({
            "shard": shard.id,
            "verdict": verdict,
            "epoch": shard.at.0,
            "sequence": shard.at.1,
            "replicas": shard.copies.iter().map(|copy| copy.node).collect::<Vec<_>>(),
            "slots": shard.counts().0,
            "records": shard.counts().1,
            "differs": differences.iter().map(of_slot).collect::<Vec<_>>(),
            "unknown": shard.troubles(),
        })
    };
    json!({ "shards": shards.iter().map(of_shard).collect::<Vec<_>>() })
}
