//! `sartor table`: tables come, are shown, and go.

use crate::status::{self, Output};
use crate::{Failed, say, waiting};
use clap::{Args, Subcommand};
use sartor_server::status::{ShardStatus, Status, TableStatus};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// The verbs of `sartor table`.
#[derive(Subcommand)]
pub enum TableVerb {
    /// Make a table, empty
    Create(CreateArgs),
    /// Tell which tables there are
    List(ListArgs),
    /// Tell what a table is, and where its shards are
    Show(ShowArgs),
    /// Divide the shard of a table in ranges that has a key, at that key, while it serves
    Split(SplitArgs),
    /// Delete a table with all that is in it
    Delete(DeleteArgs),
}

/// Arguments of `sartor table split`.
#[derive(Args)]
pub struct SplitArgs {
    /// The table's name
    name: String,
    /// The first key of the new shard
    key: String,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// Seconds after which it is not waited for any longer
    #[arg(long, default_value = "600")]
    timeout: u64,
}

/// Arguments of `sartor table create`. What is not said is as in the table default.
#[derive(Args)]
pub struct CreateArgs {
    /// Its name: small letters, digits, - and _
    name: String,
    /// Its datalet, or several, which the nodes have in turn, as in hash,tree,log
    #[arg(long)]
    datalet: Option<String>,
    /// Its mode
    #[arg(long)]
    mode: Option<String>,
    /// How keys are spread over shards: hash or range
    #[arg(long)]
    partition: Option<String>,
    /// Its shards, where keys are spread by hash
    #[arg(long)]
    shards: Option<u16>,
    /// Copies of each shard
    #[arg(long)]
    copies: Option<u8>,
    /// Keys at which a table in ranges is divided, in order, as in g,n,t; one shard more than keys
    #[arg(long, value_delimiter = ',')]
    split_at: Vec<String>,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// Seconds after which it is not waited for any longer
    #[arg(long, default_value = "30")]
    timeout: u64,
}

/// Arguments of `sartor table list`.
#[derive(Args)]
pub struct ListArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
}

/// Arguments of `sartor table show`.
#[derive(Args)]
pub struct ShowArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    list: ListArgs,
}

/// Arguments of `sartor table delete`.
#[derive(Args)]
pub struct DeleteArgs {
    /// Its name
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// Seconds after which it is not waited for any longer
    #[arg(long, default_value = "30")]
    timeout: u64,
}

/// Runs the verb.
pub fn run(verb: &TableVerb) -> Result<(), Failed> {
    match verb {
        TableVerb::Create(args) => create(args),
        TableVerb::List(args) => list(args),
        TableVerb::Show(args) => show(args),
        TableVerb::Split(args) => split(args),
        TableVerb::Delete(args) => delete(args),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failed> {
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    if find(&status, &args.name).is_ok() {
        let name = &args.name;
        return Err(Failed::input(format!("there is a table {name} already; see: sartor table show {name}")));
    }
    let (shards, copies) = (args.shards.map(|n| n.to_string()), args.copies.map(|n| n.to_string()));
    let mut words = vec!["SARTOR.TABLE", "CREATE", &args.name];
    let options = [
        ("DATALET", &args.datalet),
        ("MODE", &args.mode),
        ("PARTITION", &args.partition),
        ("SHARDS", &shards),
        ("COPIES", &copies),
    ];
    for (option, value) in options {
        words.extend(value.iter().flat_map(|value| [option, value.as_str()]));
    }
    words.extend(args.split_at.iter().flat_map(|key| ["SPLIT-AT", key.as_str()]));
    let started = Instant::now();
    waiting::until_done(&args.endpoint, &words, args.timeout)?;
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    say(format_args!("{}, after {} ms", sentence(find(&status, &args.name)?), started.elapsed().as_millis()));
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), Failed> {
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    if matches!(args.output, Output::Json) {
        say(format_args!("{}", json!(status.tables)));
        return Ok(());
    }
    say(format_args!(
        "{:<8}{:<18}{:<13}{:<18}{:<8}{:<11}SHARDS",
        "NUMBER", "TABLE", "MODE", "DATALET", "COPIES", "PARTITION"
    ));
    for table in &status.tables {
        let TableStatus { id, name, mode, datalet, copies, partition, shards } = table;
        say(format_args!("{id:<8}{name:<18}{mode:<13}{datalet:<18}{copies:<8}{partition:<11}{shards}"));
    }
    Ok(())
}

fn show(args: &ShowArgs) -> Result<(), Failed> {
    let status = status::fetch(&args.list.endpoint).map_err(Failed::other)?;
    let table = find(&status, &args.name)?;
    let shards: Vec<&ShardStatus> = status.shards.iter().filter(|shard| shard.table == args.name).collect();
    if matches!(args.list.output, Output::Json) {
        say(format_args!("{}", json!({ "table": table, "shards": shards })));
        return Ok(());
    }
    say(format_args!("{}", sentence(table)));
    for (place, shard) in shards.iter().enumerate() {
        let nodes: Vec<String> = shard.replicas.iter().map(|replica| replica.node.to_string()).collect();
        let has = match (&shard.lower, shards.get(place + 1).and_then(|next| next.lower.as_ref())) {
            (Some(lower), Some(next)) => format!("from '{lower}' to '{next}'"),
            (Some(lower), None) => format!("from '{lower}' on"),
            (None, _) => {
                let slots = shard.slots.iter().map(|(first, last)| format!("{first}-{last}"));
                format!("slots {}", slots.collect::<Vec<_>>().join(","))
            }
        };
        say(format_args!("  shard {}: {has}, on nodes {}", shard.id, nodes.join(" ")));
    }
    Ok(())
}

fn split(args: &SplitArgs) -> Result<(), Failed> {
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    find(&status, &args.name)?;
    let started = Instant::now();
    let words = ["SARTOR.TABLE", "SPLIT", &args.name, &args.key];
    waiting::until_done(&args.endpoint, &words, args.timeout)?;
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    say(format_args!("{}, after {} ms", sentence(find(&status, &args.name)?), started.elapsed().as_millis()));
    Ok(())
}

fn delete(args: &DeleteArgs) -> Result<(), Failed> {
    let status = status::fetch(&args.endpoint).map_err(Failed::other)?;
    let table = find(&status, &args.name)?;
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failed::input(format!(
                "nobody can be asked here whether to delete {}; say --yes",
                args.name
            )));
        }
        say(format_args!("{}", sentence(table)));
        let _ = write!(std::io::stdout(), "Delete it with all that is in it? Its name, to go on: ");
        let _ = std::io::stdout().flush();
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        if read.is_err() || answer.trim() != args.name {
            return Err(Failed::input("nothing was deleted"));
        }
    }
    // Who is told that there is none, after it was begun, is told that it is done.
    let none = format!("ERR there is no table {}", args.name);
    let delete = ["SARTOR.TABLE", "DELETE", &args.name];
    waiting::until_done_or(&args.endpoint, &delete, args.timeout, |error| error.starts_with(&none))?;
    say(format_args!("table {} is gone", args.name));
    Ok(())
}

fn find<'a>(status: &'a Status, name: &str) -> Result<&'a TableStatus, Failed> {
    let none = || {
        let names: Vec<&str> = status.tables.iter().map(|table| table.name.as_str()).collect();
        Failed::input(format!("there is no table {name}; there is: {}", names.join(", ")))
    };
    status.tables.iter().find(|table| table.name == name).ok_or_else(none)
}

fn sentence(table: &TableStatus) -> String {
    let TableStatus { id, name, mode, datalet, copies, partition, shards } = table;
    let (shards, copies) =
        (counted(*shards, "shard", "shards"), counted(usize::from(*copies), "copy", "copies"));
    format!("table {name} (number {id}): {mode}, {copies} in {datalet}, {shards} by {partition}")
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
