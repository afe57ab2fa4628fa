//! `sartor sim`: the simulator, seed by seed, on all cores.

#[cfg(feature = "mutants")]
mod mutants;
mod seeds;

use crate::{Failed, at_least_one, say};
use clap::Args;
use sartor_server::modes::{modes, names};
use sartor_sim::met::PHASES;
use sartor_sim::{Config, Summary};
use seeds::Seeds;
use std::time::{Duration, Instant};

/// Arguments of `sartor sim`.
#[derive(Args)]
pub struct SimArgs {
    /// The mode to simulate
    #[arg(long, default_value = "ms+sc", help = mode_help("The mode to simulate; `switch`: any, and users change it while it runs; `split`: any, and users divide the table"))]
    mode: String,
    /// How many seeds
    #[arg(long, default_value_t = 1000, value_parser = at_least_one())]
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
    #[arg(long, default_value_t = 60, value_parser = at_least_one())]
    seconds: u64,
    /// Print how often each fault met each role in each phase
    #[arg(long)]
    met: bool,
    /// Plant each known protocol fault in turn, and see that it is found; needs a build with --features mutants
    #[arg(long)]
    mutants: bool,
    /// Only this one
    #[arg(long, requires = "mutants")]
    mutant: Option<String>,
}

/// Runs the verb.
pub fn run(args: &SimArgs) -> Result<(), Failed> {
    if args.mutants {
        return run_mutants(args.mutant.as_deref());
    }
    let Some(config) = Config::of(modes(), &args.mode) else { return Err(unknown_mode(&args.mode)) };
    let config = Config { run_ms: args.seconds * 1000, trace: args.trace, ..config };
    let (first, count) = args.seed.map_or((args.first, args.seeds), |seed| (seed, 1));
    let started = Instant::now();
    let seeds = Seeds { config, first, count, until_found: false };
    let (total, failures) = seeds.run(true);
    for (seed, error) in failures.iter().take(10) {
        say(format_args!("seed {seed}: {error}"));
        say(format_args!(
            "  again: sartor sim --mode {} --seed {seed} --seconds {}",
            args.mode, args.seconds
        ));
    }
    if args.met {
        print_met(&total);
    }
    print_total(&args.mode, &total, count - failures.len() as u64, count, started.elapsed());
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failed::other(format!("{} seeds failed", failures.len()))),
    }
}

#[cfg(feature = "mutants")]
fn run_mutants(only: Option<&str>) -> Result<(), Failed> {
    mutants::run(only)
}

#[cfg(not(feature = "mutants"))]
fn run_mutants(_only: Option<&str>) -> Result<(), Failed> {
    Err(Failed::input(
        "this build has no faults to plant; use: cargo run --release --features mutants -- sim --mutants",
    ))
}

fn print_total(mode: &str, total: &Summary, passed: u64, count: u64, took: Duration) {
    let hours = total.simulated_ms as f64 / 3_600_000.0;
    let switches = match total.switches {
        0 => String::new(),
        count if mode == "split" => format!(", {count} divisions"),
        count => format!(", {count} switches"),
    };
    let years_an_hour = hours / (365.25 * 24.0) / (took.as_secs_f64() / 3600.0);
    say(format_args!(
        "{mode}: {passed} of {count} seeds passed; {} operations ({} succeeded), {} faults{switches}, {hours:.1} simulated hours in {:.1} s ({years_an_hour:.2} simulated years an hour)",
        total.operations,
        total.succeeded,
        total.faults,
        took.as_secs_f64(),
    ));
}

fn print_met(total: &Summary) {
    let [steady, taking, filling, joining] = PHASES;
    say(format_args!("{:<16}{:<14}{steady:>10}{taking:>13}{filling:>10}{joining:>10}", "FAULT", "MET"));
    for (fault, role, [a, b, c, d]) in total.met.rows() {
        say(format_args!("{fault:<16}{role:<14}{a:>10}{b:>13}{c:>10}{d:>10}"));
    }
}

/// What `--help` says of an option that takes a mode: the program may have more than Sartor's own.
pub fn mode_help(about: &str) -> String {
    format!("{about}; there is: {}", names())
}

/// The one line for a mode that does not exist.
pub fn unknown_mode(name: &str) -> Failed {
    Failed::input(format!("unknown mode '{name}'; there is: {}", names()))
}
