//! `sartor bench`: loads a key-value store, and tells how it did.
//!
//! ```text
//!  args.rs, properties.rs ─▶ plan.rs ─▶ run.rs ─▶ driver.rs, one a thread ─▶ report/
//!        the generators: sartor-core's workload/ ──┘  │ connection.rs, protocol/, pace.rs
//!                                                     └ record.rs
//! ```

mod args;
mod connection;
mod cpu;
mod driver;
mod echo;
mod pace;
mod plan;
mod properties;
mod protocol;
mod record;
mod report;
mod run;
mod target;
#[cfg(test)]
mod tests;

pub use args::BenchArgs;

use crate::{Failed, say};
use plan::Plan;
use report::Report;
use report::environment::Environment;
use sartor_core::workload::WORKLOADS;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs the verb.
pub fn run(args: &BenchArgs) -> Result<(), Failed> {
    if args.list {
        list();
        return Ok(());
    }
    if let Some(address) = &args.echo {
        let bytes = args.value_bytes.as_deref().unwrap_or("32").parse();
        let bytes = bytes.map_err(|_| Failed::input("--echo wants --value-bytes as a number"))?;
        return echo::serve(address, bytes);
    }
    let plan = Plan::new(args).map_err(Failed::input)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    raise_limit(&plan)?;
    for target in &plan.targets {
        target.probe(plan.protocol, plan.table.as_deref()).map_err(Failed::other)?;
    }
    if args.load {
        run::load(&plan, &stop).map_err(Failed::other)?;
    }
    let environment = Environment::find(&plan);
    let runs = run::all(&plan, &stop).map_err(Failed::other)?;
    let report = Report::new(&plan, runs, environment, args.mark_file.as_deref()).map_err(Failed::other)?;
    report.print(args.output);
    report.write(args).map_err(Failed::other)
}

fn list() {
    say(format_args!("{:<15}{:<48}SOURCE", "WORKLOAD", "WHAT"));
    for workload in WORKLOADS {
        let what = format!("{} ({})", report::mix(&workload.mix), workload.distribution.name());
        say(format_args!("{:<15}{:<48}{}", workload.name, workload.about, workload.source));
        say(format_args!("{:<15}{what}", ""));
    }
}

/// Each connection is a file to the kernel.
fn raise_limit(plan: &Plan) -> Result<(), Failed> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = plan.connections as u64 + 64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let wanted = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    match raised {
        Ok(()) if wanted >= needed => Ok(()),
        _ => Err(Failed::other(format!(
            "{} connections need {needed} open files; raise the limit (ulimit -n)",
            plan.connections
        ))),
    }
}
