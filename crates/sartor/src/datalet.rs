//! `sartor datalet`: the kinds of stores there are, and whether one does what it must.

use crate::{Failed, say, status};
use clap::{Args, Subcommand};
use sartor_datalets::conformance::{self, Verdict};
use sartor_datalets::{Engine, Options, engines, find, kinds};
use serde_json::{Value, json};

/// The verbs of `sartor datalet`.
#[derive(Subcommand)]
pub enum DataletVerb {
    /// Tell which kinds there are, and what each can do
    List(ListArgs),
    /// Check that a store does what a datalet must: exit code 0 if all of it holds, 1 if not
    Check(CheckArgs),
}

/// Arguments of `sartor datalet list`.
#[derive(Args)]
pub struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value = "table")]
    output: status::Output,
}

/// Arguments of `sartor datalet check`.
#[derive(Args)]
pub struct CheckArgs {
    /// A kind, with an address where it has one: hash, redis://127.0.0.1:6379, memcached://127.0.0.1
    kind: String,
    /// Remove what is in a store over the network first
    #[arg(long)]
    clear: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "table")]
    output: status::Output,
}

/// Runs the verb.
pub fn run(verb: &DataletVerb) -> Result<(), Failed> {
    match verb {
        DataletVerb::List(args) => list(args),
        DataletVerb::Check(args) => check(args),
    }
}

fn list(args: &ListArgs) -> Result<(), Failed> {
    if args.output == status::Output::Json {
        let engines: Vec<Value> = engines().map(as_json).collect();
        say(format_args!("{}", json!({ "datalets": engines })));
        return Ok(());
    }
    let columns =
        ["KIND", "ORDERED", "BACK", "DURABLE", "WALKS", "EVICTS", "EXPIRES", "KEYS TO", "VALUES TO"];
    print_row(&columns.map(String::from), "");
    for engine in engines() {
        let flags = [
            engine.ordered,
            engine.descending,
            engine.durable,
            engine.walks,
            engine.evicting,
            engine.expiring,
        ];
        let mut row = vec![engine.name.to_owned()];
        row.extend(flags.map(|flag| if flag { "yes" } else { "no" }.to_owned()));
        row.extend([engine.key_bytes_max, engine.value_bytes_max].map(size));
        print_row(&row, engine.about);
    }
    say(format_args!("\nWritten as: {}", kinds()));
    Ok(())
}

fn print_row(row: &[String], about: &str) {
    let cells: String = row.iter().map(|cell| format!("{cell:<10}")).collect();
    say(format_args!("{}", format!("{cells}{about}").trim_end()));
}

fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn as_json(engine: &Engine) -> Value {
    json!({
        "name": engine.name,
        "about": engine.about,
        "ordered": engine.ordered,
        "descending": engine.descending,
        "durable": engine.durable,
        "walks": engine.walks,
        "evicting": engine.evicting,
        "expiring": engine.expiring,
        "remote": engine.remote,
        "started_by_sartor": engine.own.is_some(),
        "key_bytes_min": engine.key_bytes_min,
        "key_bytes_max": engine.key_bytes_max,
        "value_bytes_max": engine.value_bytes_max,
    })
}

fn check(args: &CheckArgs) -> Result<(), Failed> {
    let (engine, address) = find(&args.kind).map_err(Failed::input)?;
    let options = Options { address, ..Options::default() };
    let declared = (engine.declared)(&options).map_err(|error| Failed::undecided(error.to_string()))?;
    let engine = declared.as_ref().unwrap_or(engine);
    if engine.remote {
        let mut store = (engine.open)(&options).map_err(|error| Failed::undecided(error.to_string()))?;
        let len = store.len().map_err(|error| Failed::undecided(error.to_string()))?;
        if len > 0 && !args.clear {
            return Err(Failed::input(format!(
                "there are {len} pairs in that store, and the check removes all: name an empty one, or say --clear"
            )));
        }
    }
    let verdicts = conformance::check(engine, &options);
    let failed = verdicts.iter().filter(|verdict| verdict.result.is_err()).count();
    match args.output {
        status::Output::Json => print_json(engine, &verdicts),
        status::Output::Table => print(engine, &verdicts),
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failed::other(format!("{failed} of {} checks failed", verdicts.len()))),
    }
}

fn print(engine: &Engine, verdicts: &[Verdict]) {
    for Verdict { check, result } in verdicts {
        match result {
            Ok(()) => say(format_args!("ok      {check}")),
            Err(why) => say(format_args!("FAILED  {check}: {why}")),
        }
    }
    if verdicts.iter().all(|verdict| verdict.result.is_ok()) {
        say(format_args!("\n{} does all that it declares: {} checks", engine.name, verdicts.len()));
    }
}

fn print_json(engine: &Engine, verdicts: &[Verdict]) {
    let checks: Vec<Value> = verdicts
        .iter()
        .map(|Verdict { check, result }| json!({ "check": check, "failed": result.as_ref().err() }))
        .collect();
    say(format_args!("{}", json!({ "engine": as_json(engine), "checks": checks })));
}
