//! `sartor sim`: the simulator, seed by seed, on all cores.

use crate::{Failed, say};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sartor_core::controlet::{MODES, mode};
use sartor_sim::{Config, Summary};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Arguments of `sartor sim`.
#[derive(Args)]
pub struct SimArgs {
    /// The mode to simulate
    #[arg(long, default_value = "ms+sc")]
    mode: String,
    /// How many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first one
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this one
    #[arg(long)]
    seed: Option<u64>,
    /// Print faults and cluster maps of that one as they come
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Simulated seconds of faults and load for each
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// Runs the verb.
pub fn run(args: &SimArgs) -> Result<(), Failed> {
    let Some(mode) = mode(MODES, &args.mode) else { return Err(unknown_mode(&args.mode)) };
    let config =
        Config { mode: mode.name, run_ms: args.seconds * 1000, trace: args.trace, ..Config::default() };
    let (first, seeds) = args.seed.map_or((args.first, args.seeds), |seed| (seed, 1));
    let started = Instant::now();
    let next = AtomicU64::new(first);
    let total = Mutex::new(Summary::default());
    let failures = Mutex::new(Vec::new());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {elapsed} of {duration}");
    let bar = ProgressBar::new(seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    // A panic is a finding: it is reported with its seed, not printed where it happens.
    std::panic::set_hook(Box::new(|_| {}));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    match (sartor_sim::run(seed, &config), total.lock(), failures.lock()) {
                        (Ok(summary), Ok(mut total), _) => sum(&mut total, &summary),
                        (Err(error), _, Ok(mut failures)) => failures.push((seed, error)),
                        _ => return,
                    }
                    bar.inc(1);
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    bar.finish_and_clear();
    let total = total.into_inner().unwrap_or_default();
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort();
    for (seed, error) in failures.iter().take(10) {
        say(format_args!("seed {seed}: {error}"));
        say(format_args!(
            "  again: sartor sim --mode {} --seed {seed} --seconds {}",
            mode.name, args.seconds
        ));
    }
    say(format_args!(
        "{}: {} of {seeds} seeds passed; {} operations ({} succeeded), {} faults, {:.1} simulated hours in {:.1} s",
        mode.name,
        seeds - failures.len() as u64,
        total.operations,
        total.succeeded,
        total.faults,
        total.simulated_ms as f64 / 3_600_000.0,
        started.elapsed().as_secs_f64()
    ));
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failed::other(format!("{} seeds failed", failures.len()))),
    }
}

/// The one line for a mode that does not exist.
pub fn unknown_mode(name: &str) -> Failed {
    let names: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
    Failed::input(format!("unknown mode '{name}'; there is: {}", names.join(", ")))
}

fn sum(total: &mut Summary, one: &Summary) {
    total.operations += one.operations;
    total.succeeded += one.succeeded;
    total.faults += one.faults;
    total.simulated_ms += one.simulated_ms;
}
