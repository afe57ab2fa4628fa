//! Runs of a plan, one after the other: threads, the window that counts, CPU, progress.

use super::cpu;
use super::driver::{Driver, Shared, Window};
use super::plan::{Amount, Plan};
use super::record::{POINTS_MAX, Record};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{ScopedJoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nobody answers: such a long silence ends a run whose requests are numbered.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const POINT_MIN_NS: f64 = 1e8;

/// What one run led to.
pub struct Outcome {
    /// What was asked for in an open loop, in requests a second.
    pub rate: Option<f64>,
    /// Seconds that count.
    pub seconds: f64,
    /// What was counted.
    pub record: Record,
    /// Seconds between points over time.
    pub point_seconds: f64,
    /// CPU seconds of the processes of the plan, in its order.
    pub cpu: Vec<f64>,
    /// CPU seconds of the load itself.
    pub own_cpu: f64,
    /// When it began to count, as Unix time.
    pub began: f64,
}

impl Outcome {
    /// Answered requests a second.
    pub fn rate_met(&self) -> f64 {
        self.record.answered as f64 / self.seconds
    }
}

/// All runs of a plan.
pub fn all(plan: &Plan, stop: &Arc<AtomicBool>) -> Result<Vec<Outcome>, String> {
    let rates: Vec<Option<f64>> = match plan.is_open() {
        true => plan.rates.iter().map(|rate| Some(*rate)).collect(),
        false => vec![None],
    };
    let mut outcomes = Vec::new();
    let total = rates.len() as u32 * plan.repeats;
    for repeat in 0..plan.repeats {
        for rate in &rates {
            let words = format!("run {} of {total}", outcomes.len() + 1);
            outcomes.push(one(plan, *rate, plan.seed.wrapping_add(u64::from(repeat) << 32), &words, stop)?);
            if stop.load(Relaxed) {
                return Err("interrupted; nothing was reported".into());
            }
        }
    }
    Ok(outcomes)
}

/// Writes every record once.
pub fn load(plan: &Plan, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let outcome = one(&plan.load(), None, plan.seed, "load", stop)?;
    if stop.load(Relaxed) {
        return Err("interrupted while filling".into());
    }
    let failed: u64 = outcome.record.errors.values().sum();
    match outcome.record.errors.keys().next() {
        None => Ok(()),
        Some(kind) => Err(format!(
            "{failed} of {} records were not written, the first error is {kind}; make room or wait, and load again",
            plan.records
        )),
    }
}

fn one(
    plan: &Plan,
    rate: Option<f64>,
    seed: u64,
    words: &str,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome, String> {
    let shared = Shared::new(plan.records, stop.clone());
    let mut drivers = Vec::new();
    for part in 0..plan.threads {
        drivers.push(
            Driver::new(plan, &shared, seed, part).map_err(|error| format!("cannot connect: {error}"))?,
        );
    }
    let barrier = Barrier::new(plan.threads + 1);
    let window = window(plan, shared.now());
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() + plan.warmup;
    let (mut records, watched) = std::thread::scope(|scope| {
        let threads: Vec<_> = drivers
            .into_iter()
            .enumerate()
            .map(|(part, driver)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    driver.run(window, part, rate, seed)
                })
            })
            .collect();
        barrier.wait();
        let watched =
            watch(plan, &shared, window, words, &|| threads.iter().all(ScopedJoinHandle::is_finished));
        let records: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
        (records, watched)
    });
    let mut record = Record::new(window.begin_ns, window.point_ns);
    for counted in records.drain(..) {
        match counted {
            Ok(Ok(counted)) => record.add(&counted),
            Ok(Err(error)) => return Err(format!("the load failed: {error}")),
            Err(_) => return Err("a thread of the load failed".into()),
        }
    }
    let (cpu, own_cpu) = watched?;
    let end = window.end_ns.unwrap_or(record.last_ns);
    let seconds = (end.saturating_sub(window.begin_ns) as f64 / 1e9).max(1e-9);
    Ok(Outcome { rate, seconds, record, point_seconds: window.point_ns as f64 / 1e9, cpu, own_cpu, began })
}

fn window(plan: &Plan, now: u64) -> Window {
    let begin_ns = now + (plan.warmup * 1e9) as u64;
    match plan.amount {
        Amount::Seconds(seconds) => {
            let point_ns = (seconds * 1e9 / 100.0).clamp(POINT_MIN_NS, 1e9);
            let point_ns = point_ns.max(seconds * 1e9 / POINTS_MAX as f64) as u64;
            Window { start_ns: now, begin_ns, end_ns: Some(begin_ns + (seconds * 1e9) as u64), point_ns }
        }
        Amount::Requests(_) => Window { start_ns: now, begin_ns, end_ns: None, point_ns: 1_000_000_000 },
    }
}

/// Shows progress, and measures CPU over the window: of the processes, and of this one.
fn watch(
    plan: &Plan,
    shared: &Shared,
    window: Window,
    words: &str,
    is_done: &dyn Fn() -> bool,
) -> Result<(Vec<f64>, f64), String> {
    let bar = bar(plan, words);
    let mut before: Option<(Vec<f64>, f64)> = None;
    let (mut seen, mut since) = (0, Instant::now());
    let silent = loop {
        let now = shared.now();
        if before.is_none() && now >= window.begin_ns {
            before = Some(spent(plan).inspect_err(|_| shared.stop.store(true, Relaxed))?);
        }
        if window.end_ns.is_some_and(|end| now >= end) || is_done() {
            break false;
        }
        let answered = shared.answered.load(Relaxed);
        if answered != seen {
            (seen, since) = (answered, Instant::now());
        }
        if window.end_ns.is_none() && since.elapsed() > PATIENCE {
            shared.stop.store(true, Relaxed);
            break true;
        }
        show(&bar, plan, window, now, answered);
        let next = [Some(window.begin_ns), window.end_ns].into_iter().flatten().filter(|at| *at > now).min();
        sleep(LOOK_EVERY.min(Duration::from_nanos(next.map_or(u64::MAX, |at| at - now))));
    };
    let after = spent(plan)?;
    bar.finish_and_clear();
    if silent {
        return Err(format!("no answer for {} s: the target hangs", PATIENCE.as_secs()));
    }
    // A run that ended within its warm-up spent nothing that counts.
    let before = before.unwrap_or_else(|| after.clone());
    let cpu = after.0.iter().zip(&before.0).map(|(after, before)| after - before).collect();
    Ok((cpu, after.1 - before.1))
}

fn spent(plan: &Plan) -> Result<(Vec<f64>, f64), String> {
    let cpu = plan.cpu.iter().map(cpu::Processes::seconds).collect::<Result<_, _>>()?;
    Ok((cpu, cpu::own_seconds()?))
}

fn bar(plan: &Plan, words: &str) -> ProgressBar {
    let length = match plan.amount {
        Amount::Seconds(seconds) => ((plan.warmup + seconds) * 1000.0) as u64,
        Amount::Requests(count) => count,
    };
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {percent} %, {msg}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
    ProgressBar::new(length).with_style(style).with_prefix(words.to_owned())
}

fn show(bar: &ProgressBar, plan: &Plan, window: Window, now: u64, answered: u64) {
    let seconds = now.saturating_sub(window.start_ns) as f64 / 1e9;
    match plan.amount {
        Amount::Seconds(_) => bar.set_position((seconds * 1000.0) as u64),
        Amount::Requests(_) => bar.set_position(answered),
    }
    bar.set_message(format!("{answered} requests, {:.0} a second", answered as f64 / seconds.max(1e-3)));
}
