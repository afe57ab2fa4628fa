//! The command line: `sartor up`, `serve`, `coordinator`, `status`, `switch`, `verify`, `bench`, `sim`, `chaos`.

mod bench;
mod chaos;
mod local;
mod resp;
mod sim;
mod status;
mod supervise;
mod switch;
mod up;
mod verify;

use clap::builder::TypedValueParser;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Makes a distributed key-value store out of one that runs on one machine.
#[derive(Parser)]
#[command(name = "sartor", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a cluster of processes on this machine
    Up(up::UpArgs),
    /// Run one node from a TOML file
    Serve {
        /// The file
        #[arg(long)]
        config: PathBuf,
    },
    /// Run the coordinator from a TOML file
    Coordinator {
        /// The file
        #[arg(long)]
        config: PathBuf,
    },
    /// Tell how a cluster is
    Status(status::StatusArgs),
    /// Give a table another mode, while it serves
    Switch(switch::SwitchArgs),
    /// Compare the copies of each shard, while the cluster serves
    Verify(verify::VerifyArgs),
    /// Load a key-value store, and tell how it did
    Bench(bench::BenchArgs),
    /// Simulate a mode under faults, seed by seed
    Sim(sim::SimArgs),
    /// Run a cluster of processes under faults and check what clients saw
    Chaos(chaos::ChaosArgs),
}

/// What went wrong, and the exit code that says so: 2 for bad input and for what could not be told, 1 for the rest.
pub struct Failed {
    code: u8,
    text: String,
}

impl Failed {
    /// The input is wrong.
    pub fn input(text: impl Into<String>) -> Failed {
        Failed { code: 2, text: text.into() }
    }

    /// What was asked cannot be told.
    pub fn undecided(text: impl Into<String>) -> Failed {
        Failed { code: 2, text: text.into() }
    }

    /// Something else is.
    pub fn other(text: impl Into<String>) -> Failed {
        Failed { code: 1, text: text.into() }
    }
}

/// Prints a line. That nobody reads it any more (`| head`) is no reason to fail.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// For a number of things that must not be none: a check of nothing would succeed.
pub fn at_least_one() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..)
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && std::env::args().len() > 1 => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            eprintln!("sartor: {line}; see: sartor --help");
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    let done = match cli.verb {
        Verb::Up(args) => up::run(&args),
        Verb::Serve { config } => supervise::die_with_parent()
            .and_then(|()| sartor_server::config::load(&config).map_err(Failed::input))
            .and_then(|config| sartor_server::node::run(config).map_err(Failed::other)),
        Verb::Coordinator { config } => supervise::die_with_parent()
            .and_then(|()| sartor_server::config::load(&config).map_err(Failed::input))
            .and_then(|config| sartor_server::coordinator::run(&config).map_err(Failed::other)),
        Verb::Status(args) => status::run(&args),
        Verb::Switch(args) => switch::run(&args),
        Verb::Verify(args) => verify::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Sim(args) => sim::run(&args),
        Verb::Chaos(args) => chaos::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("sartor: {}", failed.text);
            ExitCode::from(failed.code)
        }
    }
}
