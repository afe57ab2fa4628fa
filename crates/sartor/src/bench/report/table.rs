//! For people.

use super::{Report, grouped, mix};
use crate::bench::plan::{Amount, Plan, Waits};
use crate::bench::run::Outcome;
use crate::say;
use hdrhistogram::Histogram;
use sartor_core::workload::sizes::Sizes;
use sartor_core::workload::{ACTIONS, Action};

/// Who loads has no room left from here on; then the numbers tell of the load, not of the target.
const BUSY: f64 = 0.95;

pub(super) fn print(report: &Report) {
    let plan = report.plan;
    say(format_args!("{}", what(plan)));
    say(format_args!("{}", how(plan)));
    for run in &report.runs {
        if let Some(rate) = run.rate {
            say(format_args!("\noffered: {} requests/s", grouped(rate)));
        } else if report.runs.len() > 1 {
            say(format_args!(""));
        }
        print_run(plan, run);
    }
    if report.runs.len() > 1 && !plan.is_open() {
        let rates: Vec<f64> = report.runs.iter().map(Outcome::rate_met).collect();
        let (low, high) =
            rates.iter().fold((f64::MAX, 0.0f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
        say(format_args!(
            "\nmedian of {} runs: {} requests/s ({} to {})",
            rates.len(),
            grouped(report.middle().rate_met()),
            grouped(low),
            grouped(high)
        ));
    }
}

/// The workload in a line.
pub(super) fn what(plan: &Plan) -> String {
    let workload = &plan.workload;
    format!(
        "{}: {}; {} over {} records, keys of {}, values of {}",
        workload.name,
        mix(&workload.mix),
        workload.distribution.name(),
        grouped(plan.records as f64),
        sizes(workload.key_bytes),
        sizes(workload.value_bytes)
    )
}

fn sizes(sizes: Sizes) -> String {
    match sizes {
        Sizes::Fixed(bytes) => format!("{bytes} B"),
        Sizes::Uniform(low, high) => format!("{low} to {high} B"),
        Sizes::EtcKeys | Sizes::EtcValues => "lengths as in ETC".into(),
    }
}

/// How it was run, in a line.
pub(super) fn how(plan: &Plan) -> String {
    let targets: Vec<String> = plan.targets.iter().map(ToString::to_string).collect();
    let amount = match plan.amount {
        Amount::Seconds(seconds) => format!("{seconds} s"),
        Amount::Requests(count) => format!("{} requests", grouped(count as f64)),
    };
    let waits = match plan.waits {
        Waits::None => String::new(),
        waits => format!(", WAIT {} for {}", plan.wait_replicas, waits.name()),
    };
    format!(
        "{}: {} connections, depth {}, {} {}, {} loop, {amount} after {} s{waits}",
        targets.join(", "),
        plan.connections,
        plan.depth,
        plan.threads,
        if plan.threads == 1 { "thread" } else { "threads" },
        if plan.is_open() { "open" } else { "closed" },
        plan.warmup,
    )
}

fn print_run(plan: &Plan, run: &Outcome) {
    say(format_args!(
        "{:<20}{:>12}{:>13}{:>11}{:>10}{:>10}{:>10}{:>10}{:>11}",
        "", "requests", "requests/s", "mean us", "p50", "p95", "p99", "p99.9", "max"
    ));
    let line = |name: &str, latencies: &Histogram<u64>| {
        let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
        say(format_args!(
            "{name:<20}{:>12}{:>13}{:>11.1}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>11.1}",
            grouped(latencies.len() as f64),
            grouped(latencies.len() as f64 / run.seconds),
            latencies.mean() / 1e3,
            us(0.5),
            us(0.95),
            us(0.99),
            us(0.999),
            latencies.max() as f64 / 1e3
        ));
    };
    let mut kinds = 0;
    for action in ACTIONS {
        if let Some(latencies) = run.record.of(action) {
            line(action.name(), latencies);
            kinds += usize::from(action != Action::ReadModifyWrite);
        }
    }
    if kinds != 1 {
        line("all requests", &run.record.all());
    }
    print_rest(plan, run);
}

fn print_rest(plan: &Plan, run: &Outcome) {
    let record = &run.record;
    for (processes, seconds) in plan.cpu.iter().zip(&run.cpu) {
        say(format_args!(
            "CPU of {}: {:.2} us a request, {} requests a CPU second, {:.0} % of a core",
            processes.name,
            seconds * 1e6 / record.answered.max(1) as f64,
            grouped(record.answered as f64 / seconds.max(1e-9)),
            100.0 * seconds / run.seconds
        ));
    }
    if record.missing > 0 {
        say(format_args!("not found: {} reads; --load fills the records", grouped(record.missing as f64)));
    }
    for (kind, count) in &record.errors {
        say(format_args!("errors {kind}: {}", grouped(*count as f64)));
    }
    if record.errors.contains_key("MOVED") {
        say(format_args!("MOVED: the target wants clients that know its cluster; name a node that forwards"));
    }
    if record.reconnects > 0 {
        say(format_args!("connections made again: {}", record.reconnects));
    }
    if record.unanswered > 0 {
        say(format_args!(
            "without an answer at the end: {} requests; their time until then is among the latencies",
            grouped(record.unanswered as f64)
        ));
    }
    let busy = run.own_cpu / run.seconds / plan.threads as f64;
    if busy > BUSY {
        say(format_args!(
            "the load took {:.0} % of its {} of CPU: it may be the limit; use more --threads",
            busy * 100.0,
            if plan.threads == 1 { "thread" } else { "threads" }
        ));
    }
}
