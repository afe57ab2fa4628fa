//! The command line: `sartor up`, `serve`, `coordinator`, `status`, `switch`, `table`, `verify`, `scan`, `datalet`, `bench`, `sim`, `chaos`.
//!
//! The program `sartor` is [`run`]. A program of your own, with a store of yours beside those that Sartor brings along (or with a mode
//! of yours, see [`with_modes`]), is
//!
//! ```no_run
//! # use sartor::{DataletError, Engine};
//! # fn open(_: &sartor::Options) -> Result<Box<dyn sartor::Datalet>, DataletError> { unimplemented!() }
//! fn main() -> std::process::ExitCode {
//!     sartor::with([Engine {
//!         name: "mine", // as in `up --datalet mine`
//!         about: "what it is, in a line",
//!         open, // makes one: something that implements Datalet
//!         ..Engine::BUILT_IN // what it cannot do; say here what yours can
//!     }])
//!     .run()
//! }
//! ```

mod bench;
mod chaos;
mod datalet;
mod local;
mod resp;
mod scan;
mod sim;
mod status;
mod supervise;
mod switch;
mod table;
mod up;
mod verify;
mod waiting;

pub use sartor_core;
pub use sartor_core::controlet::{Mode, Promise, Succession};
pub use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
pub use sartor_core::record::Layout;
pub use sartor_datalets::conformance;
pub use sartor_datalets::{Engine, Options};
pub use sartor_sim::Summary;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
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
    /// Become another program, and end with the process that asks for it
    #[command(name = supervise::LEASH, hide = true)]
    Leash {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Tell how a cluster is
    Status(status::StatusArgs),
    /// Give a table another mode, while it serves
    Switch(switch::SwitchArgs),
    /// Make, list, show or delete tables
    #[command(subcommand)]
    Table(table::TableVerb),
    /// Compare the copies of each shard, while the cluster serves
    Verify(verify::VerifyArgs),
    /// Print keys in their order
    Scan(scan::ScanArgs),
    /// Tell which datalets there are, or check one
    #[command(subcommand)]
    Datalet(datalet::DataletVerb),
    /// Load a key-value store, and tell how it did
    Bench(bench::BenchArgs),
    /// Simulate a mode under faults, seed by seed
    Sim(sim::SimArgs),
    /// Run a cluster of processes under faults and check what clients saw
    Chaos(chaos::ChaosArgs),
}

/// What went wrong, and the exit code that says so: 2 for bad input and for what could not be told, 1 for the rest.
pub(crate) struct Failed {
    code: u8,
    text: String,
}

impl Failed {
    /// The input is wrong.
    pub(crate) fn input(text: impl Into<String>) -> Failed {
        Failed { code: 2, text: text.into() }
    }

    /// What was asked cannot be told.
    pub(crate) fn undecided(text: impl Into<String>) -> Failed {
        Failed { code: 2, text: text.into() }
    }

    /// Something else is.
    pub(crate) fn other(text: impl Into<String>) -> Failed {
        Failed { code: 1, text: text.into() }
    }
}

/// Prints a line. That nobody reads it any more (`| head`) is no reason to fail.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// For a number of things that must not be none: a check of nothing would succeed.
pub(crate) fn at_least_one() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..)
}

/// What is added to Sartor in a program of one's own.
#[derive(Default)]
pub struct Additions {
    engines: Vec<Engine>,
    modes: Vec<Mode>,
}

/// Sartor with these engines beside its own; their names must be new.
pub fn with(engines: impl IntoIterator<Item = Engine>) -> Additions {
    Additions { engines: engines.into_iter().collect(), ..Additions::default() }
}

/// Sartor with these modes beside its own; their names must be new.
pub fn with_modes(modes: impl IntoIterator<Item = Mode>) -> Additions {
    Additions::default().and_modes(modes)
}

/// Runs a mode in the simulator, as `sim --mode` does, with each of these seeds for so many simulated seconds: what was done,
/// or the first seed in which it broke its promise, and how. For the tests of a mode of one's own.
pub fn simulate(mode: Mode, seeds: std::ops::Range<u64>, seconds: u64) -> Result<Summary, String> {
    let all = sartor_server::modes::beside_ours(vec![mode])?;
    // There are few, and the simulator wants them for as long as the process lives.
    let config = sartor_sim::Config::of(all.leak(), mode.name).ok_or("there is no such mode")?;
    let config = sartor_sim::Config { run_ms: seconds * 1000, ..config };
    let mut total = Summary::default();
    for seed in seeds {
        total.add(&sartor_sim::run(seed, &config).map_err(|why| format!("seed {seed}: {why}"))?);
    }
    Ok(total)
}

impl Additions {
    /// And these modes.
    #[must_use]
    pub fn and_modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Additions {
        self.modes.extend(modes);
        self
    }

    /// Does what the command line says. To be called at the start of `main`, on every node of a cluster in the same program:
    /// `up` starts the program that it is part of.
    pub fn run(self) -> ExitCode {
        let engines = self.engines.into_iter().try_for_each(sartor_datalets::register);
        if let Err(text) = engines.and_then(|()| sartor_server::modes::register(self.modes)) {
            eprintln!("sartor: {text}");
            return ExitCode::from(2);
        }
        run()
    }
}

/// The first line of what is wrong, and where it ends in a colon what follows it.
fn in_a_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let more: Vec<&str> = lines.take_while(|line| first.ends_with(':') && !line.is_empty()).collect();
    [&[first], &more[..]].concat().join(" ")
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // A verb without its own verb is told which there are.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        Err(error) if error.use_stderr() && std::env::args().len() > 1 => {
            eprintln!("sartor: {}; see: sartor --help", in_a_line(&error.to_string()));
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    sartor_datalets::launch_by(supervise::leashed);
    let done = match cli.verb {
        Verb::Up(args) => up::run(&args),
        Verb::Serve { config } => supervise::die_with_parent()
            .and_then(|()| sartor_server::config::load(&config).map_err(Failed::input))
            .and_then(|config| sartor_server::node::run(config).map_err(Failed::other)),
        Verb::Coordinator { config } => supervise::die_with_parent()
            .and_then(|()| sartor_server::config::load(&config).map_err(Failed::input))
            .and_then(|config| sartor_server::coordinator::run(&config).map_err(Failed::other)),
        Verb::Leash { words } => supervise::run_leashed(&words),
        Verb::Status(args) => status::run(&args),
        Verb::Switch(args) => switch::run(&args),
        Verb::Table(verb) => table::run(&verb),
        Verb::Verify(args) => verify::run(&args),
        Verb::Scan(args) => scan::run(&args),
        Verb::Datalet(verb) => datalet::run(&verb),
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
