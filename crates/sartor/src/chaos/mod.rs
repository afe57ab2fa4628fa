//! `sartor chaos`: a cluster of real processes under faults, and whether what its clients saw is what was promised.
//!
//! ```text
//!  run.rs ──▶ fault.rs ──▶ cluster.rs (processes) and net.rs (proxy.rs on loopback, hosts.rs in network namespaces)
//!    └─────▶ load.rs (clients, their history) ──▶ verdict.rs (sartor-sim's history.rs) ──▶ report.rs
//! ```

mod cluster;
mod fault;
mod hosts;
mod load;
mod net;
mod proxy;
mod report;
mod run;
mod verdict;

use crate::local::{self, Folder};
use crate::sim::{mode_help, unknown_mode};
use crate::{Failed, at_least_one, say};
use clap::Args;
use fault::Kind;
use indicatif::{ProgressBar, ProgressStyle};
use run::{Deck, Outcome, Plan};
use sartor_core::controlet::{Promise, mode};
use sartor_server::config::CoordinatorConfig;
use sartor_server::modes::modes;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Arguments of `sartor chaos`.
#[derive(Args)]
pub struct ChaosArgs {
    /// Seconds of faults and load in each run
    #[arg(long, default_value_t = 60, value_parser = at_least_one())]
    seconds: u64,
    /// How many runs, each with a new cluster
    #[arg(long, default_value_t = 1, value_parser = at_least_one())]
    runs: u64,
    /// All nodes, standbys included
    #[arg(long, default_value_t = 4)]
    nodes: u16,
    /// Nodes that wait to replace one that fails
    #[arg(long, default_value_t = 1)]
    standbys: u16,
    /// Parts of the key space
    #[arg(long, default_value_t = 3)]
    shards: u16,
    /// Copies of each shard
    #[arg(long, default_value_t = 3)]
    copies: u8,
    /// How to replicate
    #[arg(long, default_value = "ms+sc", help = mode_help("How to replicate"))]
    mode: String,
    /// A log outside, for modes that write to one
    #[arg(long)]
    log: Option<String>,
    /// Locks outside, for modes that ask for them
    #[arg(long)]
    locks: Option<String>,
    /// What to replicate
    #[arg(long, default_value = "hash")]
    datalet: String,
    /// A network namespace for each process instead of loopback; needs root
    #[arg(long)]
    hosts: bool,
    /// Kinds of faults, separated by commas [default: all]
    #[arg(long)]
    faults: Option<String>,
    /// The first run's; faults and requests follow from it, their times do not [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Judge as if the mode promised linearizability
    #[arg(long)]
    strict: bool,
    /// A node that is silent for so long is replaced, in ms
    #[arg(long, default_value_t = 500)]
    detect_ms: u64,
    /// Write everything to this file, too
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where to keep files and what processes say [default: a temporary folder, kept if something is wrong]
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: &ChaosArgs) -> Result<(), Failed> {
    let Some(promise) = mode(modes(), &args.mode).map(|mode| mode.promise) else {
        return Err(unknown_mode(&args.mode));
    };
    let mut deck = Deck::new(Kind::parse(args.faults.as_deref())?);
    let config = config(args)?;
    if args.hosts {
        hosts::Hosts::enter().map_err(Failed::other)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    let mut folder = Folder::open(args.dir.as_deref())?;
    let seed = args.seed.map_or_else(local::random_number, Ok).map_err(Failed::other)?;
    let style = ProgressStyle::with_template("{spinner} run {pos} of {len}: {msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new(args.runs).with_style(style);
    let strong = args.strict || promise == Promise::Linearizable;
    let (hosts, seconds) = (args.hosts, args.seconds);
    let plan = Plan { config, hosts, seconds, strong, folder: &folder, stop: &stop, bar };
    say(format_args!(
        "chaos: {} s of {}, seed {seed}, files in {}",
        args.seconds,
        args.mode,
        folder.path.display()
    ));
    let mut outcomes = Vec::new();
    for number in 1..=args.runs {
        plan.bar.set_position(number);
        let outcome = run::run(&plan, number, seed.wrapping_add(number - 1), &mut deck)?;
        plan.bar.suspend(|| report::run(number, &outcome, strong));
        outcomes.push(outcome);
        if let Some(path) = &args.json {
            write_json(path, &outcomes, &args.mode)?;
        }
    }
    plan.bar.finish_and_clear();
    conclude(&outcomes, &mut folder)
}

fn write_json(path: &std::path::Path, outcomes: &[Outcome], mode: &str) -> Result<(), Failed> {
    let text = report::json(outcomes, mode).to_string();
    std::fs::write(path, text)
        .map_err(|error| Failed::other(format!("cannot write {}: {error}", path.display())))
}

fn conclude(outcomes: &[Outcome], folder: &mut Folder) -> Result<(), Failed> {
    report::table(outcomes);
    let (faults, violations, lost) = report::totals(outcomes);
    let line = format!(
        "chaos: {} runs, {faults} faults, {violations} violations, {lost} lost acknowledged writes",
        outcomes.len()
    );
    say(format_args!("{line}"));
    if violations + lost == 0 {
        return Ok(());
    }
    folder.keep();
    Err(Failed::other(format!("what the processes said is in {}", folder.path.display())))
}

fn config(args: &ChaosArgs) -> Result<CoordinatorConfig, Failed> {
    let random = || local::random_number().map_err(Failed::other);
    let config = CoordinatorConfig {
        cluster: random()?,
        seed: random()?,
        listen: String::new(),
        http: String::new(),
        unprotected: false,
        announce: None,
        metadata: "file".into(),
        dir: PathBuf::new(),
        nodes: args.nodes,
        standbys: args.standbys,
        workers: 1,
        shards: args.shards,
        copies: args.copies,
        mode: args.mode.clone(),
        datalet: args.datalet.clone(),
        log: args.log.clone(),
        locks: args.locks.clone(),
        detect_ms: args.detect_ms,
    };
    local::check(&config, 1)?;
    Ok(config)
}
