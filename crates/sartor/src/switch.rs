//! `sartor switch`: another mode for a table, while it serves.

use crate::{Failed, resp, say, sim, status};
use clap::Args;
use sartor_core::controlet::{MODES, Mode, Promise, mode};
use std::time::{Duration, Instant};

/// Arguments of `sartor switch`.
#[derive(Args)]
pub struct SwitchArgs {
    /// The mode to switch to
    #[arg(long)]
    mode: String,
    /// The table
    #[arg(long, default_value = "default")]
    table: String,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,
    /// Seconds after which it is given up; the table is in the old mode or in the new one then, and serves
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

/// How long one request to the node waits; after it, what is missing is told.
const STEP_MS: u64 = 1000;

/// Runs the verb.
pub fn run(args: &SwitchArgs) -> Result<(), Failed> {
    let Some(new) = mode(MODES, &args.mode) else { return Err(sim::unknown_mode(&args.mode)) };
    let old = plan(args, new)?;
    if args.dry_run {
        return Ok(());
    }
    let started = Instant::now();
    let step = STEP_MS.to_string();
    let words = ["SARTOR.SWITCH", new.name, "TABLE", &args.table, "TIMEOUT", &step];
    let timeout = Duration::from_millis(STEP_MS + 5000);
    loop {
        match resp::ask_within(&args.endpoint, &words, timeout) {
            Ok(_) => break,
            Err(text) if !text.starts_with("TRYAGAIN") => return Err(Failed::other(text)),
            Err(text) if started.elapsed().as_secs() >= args.timeout => {
                return Err(Failed::other(format!("given up after {} s: {text}", args.timeout)));
            }
            Err(text) => say(format_args!("waiting: {}", text.trim_start_matches("TRYAGAIN "))),
        }
    }
    let took = started.elapsed().as_millis();
    say(format_args!("table {} is in {} after {took} ms; it was in {old}", args.table, new.name));
    Ok(())
}

/// Says what will happen; the mode that the table is in.
fn plan(args: &SwitchArgs, new: &Mode) -> Result<String, Failed> {
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    let shards: Vec<_> = status.shards.iter().filter(|shard| shard.table == args.table).collect();
    let Some(first) = shards.first() else {
        return Err(Failed::input(format!("there is no table {}", args.table)));
    };
    let promise = mode(MODES, &first.mode).map_or(Promise::Convergent, |mode| mode.promise);
    let weakest = if promise == new.promise { promise } else { Promise::Convergent };
    let copies: usize = shards.iter().map(|shard| shard.replicas.len()).sum();
    say(format_args!("table {}: {} to {}", args.table, first.mode, new.name));
    say(format_args!("  {} shards, {copies} copies; their data stay where they are", shards.len()));
    say(format_args!(
        "  requests wait while a shard goes over, none fails; reads may go on at the old mode's freshness"
    ));
    say(format_args!("  promised meanwhile: {}", words(weakest)));
    say(format_args!("  promised after it:  {}", words(new.promise)));
    Ok(first.mode.clone())
}

fn words(promise: Promise) -> &'static str {
    match promise {
        Promise::Linearizable => "each key is as if there were one copy (linearizable)",
        Promise::Convergent => {
            "a connection sees its own writes and never goes back; copies end equal (eventual)"
        }
    }
}
