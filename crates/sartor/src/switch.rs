//! `sartor switch`: another mode, datalet or number of copies for a table, while it serves.

use crate::{Failed, say, sim, status, waiting};
use clap::Args;
use core::fmt;
use sartor_core::controlet::{Mode, Promise, mode};
use sartor_server::modes::modes;
use std::time::Instant;

/// Arguments of `sartor switch`.
#[derive(Args)]
pub struct SwitchArgs {
    /// The mode to switch to
    #[arg(long, help = sim::mode_help("The mode to switch to"))]
    mode: Option<String>,
    /// How many copies each shard should have
    #[arg(long)]
    copies: Option<u8>,
    /// The datalet to go over to, copy by copy
    #[arg(long)]
    datalet: Option<String>,
    /// The table
    #[arg(long, default_value = "default")]
    table: String,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,
    /// Seconds after which it is not waited for any longer; the table serves, and what was begun goes on [default: 30, or 3600
    /// where copies are filled]
    #[arg(long)]
    timeout: Option<u64>,
}

/// Runs the verb.
pub fn run(args: &SwitchArgs) -> Result<(), Failed> {
    let new = match &args.mode {
        Some(name) => Some(mode(modes(), name).ok_or_else(|| sim::unknown_mode(name))?),
        None => None,
    };
    if new.is_none() && args.copies.is_none() && args.datalet.is_none() {
        return Err(Failed::input("nothing to change; name one at least: --mode, --copies, --datalet"));
    }
    let before = plan(args, new)?;
    if args.dry_run {
        return Ok(());
    }
    let started = Instant::now();
    wait(args)?;
    let after = Shown::of(args)?;
    say(format_args!(
        "table {}: {after} after {} ms; it was {before}",
        args.table,
        started.elapsed().as_millis()
    ));
    Ok(())
}

/// Asks again and again until it is done, and tells what is missing.
fn wait(args: &SwitchArgs) -> Result<(), Failed> {
    let copies = args.copies.map(|copies| copies.to_string());
    let mut words = vec!["SARTOR.SWITCH"];
    words.extend(args.mode.as_deref());
    for (name, value) in [("COPIES", copies.as_deref()), ("DATALET", args.datalet.as_deref())] {
        words.extend(value.map(|value| [name, value]).into_iter().flatten());
    }
    words.extend(["TABLE", &args.table]);
    let fills = args.copies.is_some() || args.datalet.is_some();
    let timeout_s = args.timeout.unwrap_or(if fills { 3600 } else { 30 });
    waiting::until_done(&args.endpoint, &words, timeout_s)
}

/// What a table is.
struct Shown {
    mode: String,
    datalet: String,
    copies: usize,
    shards: usize,
}

impl Shown {
    fn of(args: &SwitchArgs) -> Result<Shown, Failed> {
        let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
        let shards: Vec<_> = status.shards.iter().filter(|shard| shard.table == args.table).collect();
        let Some(first) = shards.first() else {
            return Err(Failed::input(format!("there is no table {}", args.table)));
        };
        let mut kinds: Vec<&str> =
            shards.iter().flat_map(|shard| &shard.replicas).map(|replica| replica.datalet.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let copies = shards.iter().map(|shard| shard.replicas.len()).max().unwrap_or(0);
        Ok(Shown { mode: first.mode.clone(), datalet: kinds.join(" and "), copies, shards: shards.len() })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { mode, datalet, copies, .. } = self;
        write!(f, "{mode}, {copies} {} in {datalet}", if *copies == 1 { "copy" } else { "copies" })
    }
}

/// Says what will happen; what the table is now.
fn plan(args: &SwitchArgs, new: Option<&'static Mode>) -> Result<Shown, Failed> {
    let now = Shown::of(args)?;
    let old = mode(modes(), &now.mode).map_or(Promise::Convergent, |mode| mode.promise);
    let after = new.map_or(old, |mode| mode.promise);
    let weakest = if old == after { old } else { Promise::Convergent };
    say(format_args!("table {}: {} shards in {now}", args.table, now.shards));
    if let Some(new) = new {
        say(format_args!("  {} to {}: its data stay where they are", now.mode, new.name));
    }
    if let Some(copies) = args.copies {
        say(format_args!("  {} to {copies} copies: nodes are filled, or copies leave", now.copies));
    }
    if let Some(datalet) = &args.datalet {
        say(format_args!("  {} to {datalet}: copy by copy, each filled beside the others", now.datalet));
    }
    say(format_args!(
        "  requests wait while a shard goes over, none fails; reads may go on at the old mode's freshness"
    ));
    say(format_args!("  promised meanwhile: {}", words(weakest)));
    say(format_args!("  promised after it:  {}", words(after)));
    Ok(now)
}

fn words(promise: Promise) -> &'static str {
    match promise {
        Promise::Linearizable => "each key is as if there were one copy (linearizable)",
        Promise::Convergent => {
            "a connection sees its own writes and never goes back; copies end equal (eventual)"
        }
    }
}
