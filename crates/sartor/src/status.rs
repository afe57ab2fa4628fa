//! `sartor status`: how a cluster is, from any of its nodes.

use crate::{Failed, resp, say};
use clap::{Args, ValueEnum};
use sartor_server::status::Status;

/// Arguments of `sartor status`.
#[derive(Args)]
pub struct StatusArgs {
    /// The RESP address of any node
    #[arg(long, default_value = "127.0.0.1:7379")]
    endpoint: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// How to print something.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Asks a node.
pub fn fetch(endpoint: &str) -> Result<Status, String> {
    let json = resp::ask(endpoint, &["SARTOR.STATUS"])?;
    serde_json::from_str(&json).map_err(|error| format!("{endpoint} answered with another format: {error}"))
}

/// Runs the verb.
pub fn run(args: &StatusArgs) -> Result<(), Failed> {
    let status = fetch(&args.endpoint).map_err(Failed::other)?;
    match args.output {
        Output::Json => {
            let json = serde_json::to_string(&status).map_err(|error| Failed::other(error.to_string()))?;
            say(format_args!("{json}"));
        }
        Output::Table => print(&status),
    }
    Ok(())
}

/// Prints it for people.
pub fn print(status: &Status) {
    say(format_args!("{}", status.sentence()));
    let nodes = if status.tolerates == 1 { "node" } else { "nodes" };
    say(format_args!("{} more {nodes} may die before a shard stops serving.\n", status.tolerates));
    say(format_args!(
        "coordinator  {}  pid {}  {}",
        status.coordinator.addr, status.coordinator.pid, status.coordinator.state
    ));
    for other in status.coordinators.iter().filter(|other| other.addr != status.coordinator.addr) {
        say(format_args!("             {}  {}", other.addr, other.state));
    }
    say(format_args!("\n{:<6}{:<24}{:<10}STATE", "NODE", "RESP", "PID"));
    for node in &status.nodes {
        say(format_args!("{:<6}{:<24}{:<10}{}", node.id, node.addr, node.pid, node.state));
    }
    say(format_args!("\n{:<7}{:<10}{:<13}{:<14}REPLICAS", "SHARD", "TABLE", "MODE", "HAS"));
    for shard in &status.shards {
        let slots: Vec<String> = shard.slots.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        let has = shard.lower.as_ref().map_or_else(|| slots.join(","), |lower| format!("from '{lower}'"));
        let replica = |r: &sartor_server::status::ReplicaStatus| match r.lag_ms {
            0..100 => format!("{}:{} ({})", r.node, r.role, r.datalet),
            lag_ms => format!("{}:{} ({}, {lag_ms} ms behind)", r.node, r.role, r.datalet),
        };
        let replicas: Vec<String> = shard.replicas.iter().map(replica).collect();
        say(format_args!(
            "{:<7}{:<10}{:<13}{:<14}{}",
            shard.id,
            shard.table,
            shard.mode,
            has,
            replicas.join("  ")
        ));
    }
    for (one, other) in &status.estranged {
        say(format_args!(
            "nodes {one} and {other} do not reach each other: no shard gets both until that link works again"
        ));
    }
    for repair in &status.repairs {
        let percent = (repair.done * 100).checked_div(repair.total).unwrap_or(0);
        say(format_args!(
            "repair: shard {} is copied to node {}: {} of {} records ({percent} %)",
            repair.shard, repair.node, repair.done, repair.total
        ));
    }
}
