//! For programs: everything.

use super::Report;
use crate::bench::plan::{Amount, Plan};
use crate::bench::run::Outcome;
use hdrhistogram::Histogram;
use sartor_core::workload::{ACTIONS, Action};
use serde_json::{Map, Value, json};

pub(super) fn whole(report: &Report) -> Value {
    let plan = report.plan;
    let marks = report.marks.iter().map(|mark| json!({ "at": mark.at, "words": mark.words }));
    json!({
        "environment": report.environment.0,
        "settings": settings(plan),
        "runs": report.runs.iter().map(|run| of_run(plan, run)).collect::<Vec<_>>(),
        "median_requests_per_second": report.middle().rate_met(),
        "marks": marks.collect::<Vec<_>>(),
    })
}

fn settings(plan: &Plan) -> Value {
    let workload = &plan.workload;
    let mix: Map<String, Value> = ACTIONS
        .iter()
        .zip(workload.mix)
        .map(|(action, share)| (action.name().into(), share.into()))
        .collect();
    let (seconds, requests) = match plan.amount {
        Amount::Seconds(seconds) => (Some(seconds), None),
        Amount::Requests(count) => (None, Some(count)),
    };
    json!({
        "targets": plan.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "protocol": plan.protocol.name(),
        "workload": workload.name,
        "source": workload.source,
        "mix": mix,
        "distribution": format!("{:?}", workload.distribution),
        "key_bytes": format!("{:?}", workload.key_bytes),
        "value_bytes": format!("{:?}", workload.value_bytes),
        "records": plan.records,
        "connections": plan.connections,
        "depth": plan.depth,
        "threads": plan.threads,
        "loop": if plan.is_open() { "open" } else { "closed" },
        "warmup": plan.warmup,
        "seconds": seconds,
        "requests": requests,
        "wait": plan.waits.name(),
        "seed": plan.seed,
    })
}

fn of_run(plan: &Plan, run: &Outcome) -> Value {
    let record = &run.record;
    let actions: Map<String, Value> = ACTIONS
        .into_iter()
        .filter_map(|action| Some((action.name().into(), of_latencies(record.of(action)?))))
        .collect();
    let cpu: Map<String, Value> = plan
        .cpu
        .iter()
        .zip(&run.cpu)
        .map(|(processes, seconds)| (processes.name.clone(), of_cpu(*seconds, record.answered)))
        .collect();
    let reads = record.of(Action::Read).map_or(0, Histogram::len);
    json!({
        "offered": run.rate,
        "began": run.began,
        "seconds": run.seconds,
        "requests": record.answered,
        "requests_per_second": run.rate_met(),
        "latency": of_latencies(&record.all()),
        "actions": actions,
        "hits": reads.saturating_sub(record.missing),
        "not_found": record.missing,
        "errors": record.errors,
        "reconnects": record.reconnects,
        "unanswered": record.unanswered,
        "cpu": cpu,
        "load_cpu_seconds": run.own_cpu,
        "points": points(run),
    })
}

fn of_cpu(seconds: f64, requests: u64) -> Value {
    json!({
        "seconds": seconds,
        "us_per_request": seconds * 1e6 / requests.max(1) as f64,
        "requests_per_cpu_second": if seconds > 0.0 { Some(requests as f64 / seconds) } else { None },
    })
}

fn of_latencies(latencies: &Histogram<u64>) -> Value {
    let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "count": latencies.len(),
        "mean_us": latencies.mean() / 1e3,
        "min_us": latencies.min() as f64 / 1e3,
        "p50_us": us(0.5),
        "p90_us": us(0.9),
        "p95_us": us(0.95),
        "p99_us": us(0.99),
        "p999_us": us(0.999),
        "p9999_us": us(0.9999),
        "max_us": latencies.max() as f64 / 1e3,
    })
}

fn points(run: &Outcome) -> Vec<Value> {
    let point = |(place, point): (usize, &crate::bench::record::Point)| {
        json!({
            "seconds": place as f64 * run.point_seconds,
            "requests_per_second": point.answered as f64 / run.point_seconds,
            "errors": point.errors,
            "p50_us": point.latencies.value_at_quantile(0.5) as f64 / 1e3,
            "p99_us": point.latencies.value_at_quantile(0.99) as f64 / 1e3,
            "max_us": point.latencies.max() as f64 / 1e3,
        })
    };
    run.record.points.iter().enumerate().map(point).collect()
}
