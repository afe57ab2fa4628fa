//! One run: a cluster, its load, fault after fault, and the judgement.

use super::cluster::{self, Cluster};
use super::fault::{Fault, Kind};
use super::load::{Load, Shared};
use super::report;
use super::verdict::{self, Verdict};
use crate::Failed;
use crate::local::Folder;
use indicatif::ProgressBar;
use sartor_core::random::Random;
use sartor_server::config::CoordinatorConfig;
use sartor_server::status::Status;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What does not heal within this does not heal.
const HEAL_US: u64 = 30_000_000;
const START: Duration = Duration::from_secs(30);
const LOOK_MS: u64 = 20;
const SECOND_US: u64 = 1_000_000;
/// Between the end of one fault and the next, so that what follows is its own doing.
const QUIET_MS: (u64, u64) = (1000, 2000);

/// What all runs share.
pub struct Plan<'a> {
    /// The shape of the cluster.
    pub config: CoordinatorConfig,
    /// Whether each process has a host of its own.
    pub hosts: bool,
    /// Faults and load of each run.
    pub seconds: u64,
    /// Whether the mode promises linearizability.
    pub strong: bool,
    /// Where things are kept.
    pub folder: &'a Folder,
    /// Says that all is to end.
    pub stop: &'a AtomicBool,
    /// Shows how far it is.
    pub bar: ProgressBar,
}

/// The faults to come: every kind before any comes again, at changing roles.
pub struct Deck {
    kinds: Vec<Kind>,
    left: Vec<Kind>,
    dealt: usize,
}

impl Deck {
    /// Of these kinds.
    pub fn new(kinds: Vec<Kind>) -> Deck {
        Deck { kinds, left: Vec::new(), dealt: 0 }
    }

    fn deal(&mut self, status: &Status, random: &mut Random) -> Fault {
        if self.left.is_empty() {
            self.left = self.kinds.clone();
        }
        let kind = self.left.swap_remove(random.below(self.left.len() as u64) as usize);
        // Another role in each round, and not the same for all kinds of one.
        let place = self.dealt + self.dealt / self.kinds.len().max(1);
        self.dealt += 1;
        Fault::aim(kind, place, status, random)
    }
}

/// A fault that was.
pub struct Met {
    /// Its kind.
    pub kind: Kind,
    /// What it was and whom it met.
    pub words: String,
    /// When it came.
    pub began_us: u64,
    /// When what can be taken back was taken back.
    pub ended_us: u64,
    /// When the cluster had all its copies again.
    pub whole_us: u64,
    /// The longest time without an acknowledged write on a shard that it concerned.
    pub gap_us: u64,
    /// Acknowledged writes a second while it lasted, but for its first second, by those in the second before;
    /// none where it did not last for long.
    pub held: Option<f64>,
    /// When that gap began, seen from the fault's begin.
    pub gap_from_us: i64,
}

/// What a run showed.
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Its faults.
    pub faults: Vec<Met>,
    /// The judgement.
    pub verdict: Verdict,
    /// Requests answered, refused, and neither.
    pub counts: [u64; 3],
    /// The longest time without an acknowledged write on a shard where nothing was wrong.
    pub quiet_us: u64,
}

/// Runs.
pub fn run(plan: &Plan<'_>, number: u64, seed: u64, deck: &mut Deck) -> Result<Outcome, Failed> {
    let mut config = plan.config.clone();
    config.dir = plan.folder.path.join(format!("run-{number}"));
    let mut random = Random::new(seed);
    let mut cluster = Cluster::start(config, plan.folder, plan.hosts)?;
    let status = await_start(plan, &mut cluster)?;
    let load = Load::start(Shared::new(cluster.endpoints.clone(), &status), seed);
    let (mut faults, mut broken) = (Vec::new(), Vec::new());
    let mut storm = Storm { plan, cluster: &mut cluster, shared: &load.shared };
    storm.sleep(1000)?;
    while faults.is_empty() || load.shared.now_us() < plan.seconds * 1_000_000 {
        match storm.fault(deck, &mut random) {
            Ok((met, healed)) => {
                plan.bar.suspend(|| report::fault(number, &met));
                faults.push(met);
                if let Err(violation) = healed {
                    broken.push(violation);
                    break;
                }
            }
            Err(failed) => return Err(failed),
        }
        storm.sleep(random.between(QUIET_MS.0, QUIET_MS.1))?;
    }
    let quiet_us = storm.quiet(&faults);
    let (shared, history) = load.end();
    plan.bar.set_message(format!("run {number}: judging {} requests", history.len()));
    let mut verdict = verdict::judge(&shared, history, plan.strong, &faults);
    broken.extend(shared.unexpected.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
    broken.extend(cluster.dead());
    verdict.violations.extend(broken);
    let counts = [0, 1, 2].map(|index: usize| shared.counts[index].load(Ordering::Relaxed));
    Ok(Outcome { seed, faults, verdict, counts, quiet_us })
}

fn await_start(plan: &Plan<'_>, cluster: &mut Cluster) -> Result<Status, Failed> {
    let began = Instant::now();
    loop {
        let why = match cluster.healthy() {
            Ok(status) => return Ok(status),
            Err(why) => why,
        };
        let ended = cluster.dead();
        if began.elapsed() > START || ended.is_some() {
            return Err(Failed::other(format!("the cluster did not start: {}", ended.unwrap_or(why))));
        }
        wait(plan, LOOK_MS)?;
    }
}

fn wait(plan: &Plan<'_>, ms: u64) -> Result<(), Failed> {
    let until = Instant::now() + Duration::from_millis(ms);
    loop {
        if plan.stop.load(Ordering::Relaxed) {
            return Err(Failed::other("interrupted"));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(LOOK_MS)));
    }
}

/// Everything that faults need.
struct Storm<'a> {
    plan: &'a Plan<'a>,
    cluster: &'a mut Cluster,
    shared: &'a Shared,
}

impl Storm<'_> {
    fn sleep(&mut self, ms: u64) -> Result<(), Failed> {
        self.tell("");
        wait(self.plan, ms)
    }

    fn tell(&self, what: &str) {
        let seconds = self.shared.now_us() / 1_000_000;
        self.plan.bar.set_message(format!("{seconds} of {} s {what}", self.plan.seconds));
        self.plan.bar.tick();
    }

    /// Lets a fault come and go, and waits until all is well: the fault, and what did not heal.
    fn fault(&mut self, deck: &mut Deck, random: &mut Random) -> Result<(Met, Result<(), String>), Failed> {
        let status = self.cluster.healthy().or_else(|_| self.await_whole(self.shared.now_us()));
        let status = status.map_err(Failed::other)?;
        let fault = deck.deal(&status, random);
        let words = fault.words(&status);
        self.tell(&words);
        let began_us = self.shared.now_us();
        let plan = self.plan;
        fault.begin(self.cluster, &mut |_, ms| wait(plan, ms))?;
        fault.end(self.cluster)?;
        let ended_us = self.shared.now_us();
        let healed = self.await_whole(ended_us).map(drop);
        let whole_us = self.shared.now_us();
        // The write that ends the gap may not be there yet.
        wait(plan, 100)?;
        let settled_us = began_us + SECOND_US;
        let before = self.rate(began_us.saturating_sub(SECOND_US), began_us);
        let held = (ended_us > settled_us + SECOND_US / 2)
            .then(|| self.rate(settled_us, ended_us) / before.max(1.0));
        let concerned = fault.shards(&status);
        let gaps = concerned.iter().map(|shard| self.gap(*shard, began_us, whole_us));
        let (gap_us, from_us) = gaps.max().unwrap_or_default();
        let gap_from_us = from_us as i64 - began_us as i64;
        if plan.stop.load(Ordering::Relaxed) {
            return Err(Failed::other("interrupted"));
        }
        Ok((Met { kind: fault.kind, words, began_us, ended_us, whole_us, gap_us, gap_from_us, held }, healed))
    }

    /// Waits until every node says that all is well, or says what is not.
    fn await_whole(&mut self, since_us: u64) -> Result<Status, String> {
        loop {
            let why = match self.cluster.healthy() {
                Ok(status) => return Ok(status),
                Err(why) => why,
            };
            if let Some(dead) = self.cluster.dead() {
                return Err(format!("a process died by itself: {dead}"));
            }
            let stopped = self.plan.stop.load(Ordering::Relaxed);
            if stopped || self.shared.now_us() > since_us + HEAL_US {
                let told: Vec<String> = self
                    .cluster
                    .statuses()
                    .into_iter()
                    .enumerate()
                    .map(|(node, status)| {
                        format!("  node {node}: {}", status.map_or_else(|e| e, |s| cluster::brief(&s)))
                    })
                    .collect();
                let seconds = HEAL_US / 1_000_000;
                return Err(format!("does not heal within {seconds} s: {why}\n{}", told.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    /// The longest time between acknowledged writes of a shard that follow each other, of which the
    /// second came after `from_us` and the first before `to_us`; and when it began.
    fn gap(&self, shard: usize, from_us: u64, to_us: u64) -> (u64, u64) {
        let mut moments =
            self.shared.acknowledged[shard].lock().unwrap_or_else(PoisonError::into_inner).clone();
        moments.push(0);
        moments.push(self.shared.now_us());
        moments.sort_unstable();
        let touching = moments.windows(2).filter(|pair| pair[1] > from_us && pair[0] < to_us);
        touching.map(|pair| (pair[1] - pair[0], pair[0])).max().unwrap_or_default()
    }

    /// Acknowledged writes a second, of all shards.
    fn rate(&self, from_us: u64, to_us: u64) -> f64 {
        let count = |shard: &Mutex<Vec<u64>>| {
            let moments = shard.lock().unwrap_or_else(PoisonError::into_inner);
            moments.iter().filter(|moment| (from_us..to_us).contains(moment)).count()
        };
        let count: usize = self.shared.acknowledged.iter().map(count).sum();
        count as f64 * 1e6 / (to_us - from_us).max(1) as f64
    }

    /// The longest such time where nothing was wrong.
    fn quiet(&self, faults: &[Met]) -> u64 {
        let starts = std::iter::once(500_000).chain(faults.iter().map(|fault| fault.whole_us + 200_000));
        let ends = faults.iter().map(|fault| fault.began_us);
        let quiet = starts.zip(ends).filter(|(from, to)| from < to);
        let shards = 0..self.shared.acknowledged.len();
        let longest = |(from, to): (u64, u64)| {
            shards.clone().map(|shard| self.inside(shard, from, to)).max().unwrap_or(0)
        };
        quiet.map(longest).max().unwrap_or(0)
    }

    /// The same between writes that were both acknowledged in that time.
    fn inside(&self, shard: usize, from_us: u64, to_us: u64) -> u64 {
        let mut moments =
            self.shared.acknowledged[shard].lock().unwrap_or_else(PoisonError::into_inner).clone();
        moments.retain(|moment| (from_us..to_us).contains(moment));
        moments.sort_unstable();
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}
