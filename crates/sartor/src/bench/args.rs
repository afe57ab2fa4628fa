//! The command line of `sartor bench`.

use super::pace::Arrivals;
use super::plan::Waits;
use super::protocol::Protocol;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How to print the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// Lines as YCSB prints them
    Ycsb,
    /// For programs
    Json,
}

/// Arguments of `sartor bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// Where to send requests, HOST:PORT or unix:/path; several share the connections
    #[arg(long, default_value = "127.0.0.1:7379", value_delimiter = ',')]
    pub target: Vec<String>,
    /// What the target speaks
    #[arg(long, value_enum, default_value = "resp")]
    pub protocol: Protocol,
    /// The table, or the number of Redis's database, that every connection chooses first
    #[arg(long)]
    pub table: Option<String>,
    /// A workload by name; --list tells them [default: 95 % reads of uniform keys, 16 B keys, 32 B values]
    #[arg(long, short)]
    pub workload: Option<String>,
    /// List the workloads and end
    #[arg(long)]
    pub list: bool,
    /// Shares of requests: get=95,set=5 (get, set, insert, rmw)
    #[arg(long)]
    pub mix: Option<String>,
    /// A YCSB property, name=value
    #[arg(short = 'p', value_name = "NAME=VALUE")]
    pub property: Vec<String>,
    /// A file of YCSB properties
    #[arg(short = 'P', value_name = "FILE")]
    pub property_file: Option<PathBuf>,
    /// Records that are there [default: 100000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Which records: uniform, zipfian, latest, hotspot, sequential
    #[arg(long)]
    pub distribution: Option<String>,
    /// Exponent of zipfian and latest
    #[arg(long)]
    pub theta: Option<f64>,
    /// Length of keys: 16, 10-40 or etc
    #[arg(long)]
    pub key_bytes: Option<String>,
    /// Length of values: 32, 10-500 or etc
    #[arg(long)]
    pub value_bytes: Option<String>,
    /// Write every record once before
    #[arg(long)]
    pub load: bool,
    /// Connections of all threads together [default: 50]
    #[arg(long, short)]
    pub connections: Option<usize>,
    /// Requests on their way on each connection
    #[arg(long, default_value_t = 1)]
    pub depth: usize,
    /// Threads of the load
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Open loop: requests a second of all threads together, whatever the target does; a run for each rate
    #[arg(long, value_delimiter = ',')]
    pub rate: Vec<f64>,
    /// How the requests of an open loop are spread
    #[arg(long, value_enum, default_value = "constant")]
    pub arrivals: Arrivals,
    /// Seconds before anything counts
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Seconds that count [default: 10]
    #[arg(long, conflicts_with = "requests")]
    pub seconds: Option<f64>,
    /// Requests that count, instead of seconds
    #[arg(long, short = 'n')]
    pub requests: Option<u64>,
    /// Runs; the median counts
    #[arg(long, default_value_t = 1)]
    pub repeats: u32,
    /// Follow writes by WAIT, which is no request of its own: a write is done when replicas have it
    #[arg(long, value_enum, default_value = "none")]
    pub wait: Waits,
    /// How many replicas WAIT asks for
    #[arg(long, default_value_t = 2)]
    pub wait_replicas: u32,
    /// CPU of these processes by request: NAME=PID or NAME=PID,PID
    #[arg(long, value_name = "NAME=PID")]
    pub cpu: Vec<String>,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Write everything to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the latencies to this file, as HdrHistogram's percentile table in us
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
    /// Write a report with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Lines "UNIX-SECONDS WORDS" that others append while it runs; they are marked in plots over time
    #[arg(long, value_name = "FILE")]
    pub mark_file: Option<PathBuf>,
    /// Serve instead: answer every RESP request at this address with the same value of --value-bytes
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub echo: Option<String>,
}
