//! Lines as YCSB prints them: `[READ], 99thPercentileLatency(us), 417`.

use super::Report;
use sartor_core::workload::{ACTIONS, Action};
use std::fmt::Write;

pub(super) fn lines(report: &Report) -> String {
    let run = report.middle();
    let record = &run.record;
    let count = |action: Action| record.of(action).map_or(0, hdrhistogram::Histogram::len);
    // To YCSB a read-modify-write is one operation.
    let operations = record.answered.saturating_sub(count(Action::ReadModifyWrite));
    let mut text = String::new();
    let mut line = |group: &str, name: &str, value: String| {
        let _ = writeln!(text, "[{group}], {name}, {value}");
    };
    line("OVERALL", "RunTime(ms)", format!("{:.0}", run.seconds * 1000.0));
    line("OVERALL", "Throughput(ops/sec)", (operations as f64 / run.seconds).to_string());
    for action in ACTIONS {
        let Some(latencies) = record.of(action) else { continue };
        let name = action.name();
        let us = |ns: u64| (ns / 1000).to_string();
        let missing = if action == Action::Read { record.missing.min(latencies.len()) } else { 0 };
        line(name, "Operations", latencies.len().to_string());
        line(name, "AverageLatency(us)", (latencies.mean() / 1e3).to_string());
        line(name, "MinLatency(us)", us(latencies.min()));
        line(name, "MaxLatency(us)", us(latencies.max()));
        line(name, "50thPercentileLatency(us)", us(latencies.value_at_quantile(0.5)));
        line(name, "95thPercentileLatency(us)", us(latencies.value_at_quantile(0.95)));
        line(name, "99thPercentileLatency(us)", us(latencies.value_at_quantile(0.99)));
        line(name, "Return=OK", (latencies.len() - missing).to_string());
        if missing > 0 {
            line(name, "Return=NOT_FOUND", missing.to_string());
        }
    }
    let errors: u64 = record.errors.values().sum();
    if errors > 0 {
        line("OVERALL", "Return=ERROR", errors.to_string());
    }
    text
}
