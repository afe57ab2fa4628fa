//! A page that needs nothing else: plots, tables, and what they were made on.

use super::svg::{Line, Plot, escape};
use super::{Report, grouped, table};
use crate::bench::run::Outcome;
use std::fmt::Write;

/// Quantiles along the x axis of latencies, evenly by how many times less is left to 100 %.
const QUANTILES: [(f64, &str); 7] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.99999, "99.999 %"),
];
/// Lines in a plot; more cannot be told apart.
const LINES_MAX: usize = 6;
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
svg{width:100%;margin:.6em 0}svg text{font:11px system-ui,sans-serif}svg .t{font-size:13px;font-weight:600}\
.e{text-anchor:end;fill:#555}.c{text-anchor:middle;fill:#555}.k{fill:#a00}.g{stroke:#ddd}.m{stroke:#c00;stroke-dasharray:3 3}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15em .9em .15em 0;text-align:right}\
td:first-child,th:first-child{text-align:left}td.l{text-align:left;overflow-wrap:anywhere}";

pub(super) fn page(report: &Report) -> String {
    let title = format!("sartor bench: {}", report.plan.workload.name);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{}</title><style>{STYLE}</style><h1>{}</h1><p>{}<br>{}</p>",
        escape(&title),
        escape(&title),
        escape(&table::what(report.plan)),
        escape(&table::how(report.plan))
    );
    page.push_str(&runs(report));
    if report.runs.len() > 1 {
        page.push_str(&throughput_and_latency(report).draw());
    }
    page.push_str(&quantiles(report).draw());
    for plot in over_time(report) {
        page.push_str(&plot.draw());
    }
    page.push_str("<h2>Made on</h2><table>");
    for (name, value) in &report.environment.0 {
        let _ = write!(page, "<tr><td>{name}</td><td class=\"l\">{}</td></tr>", escape(value));
    }
    page.push_str("</table></html>\n");
    page
}

fn name(report: &Report, place: usize, run: &Outcome) -> String {
    match run.rate {
        Some(rate) => format!("{} offered", grouped(rate)),
        None if report.runs.len() > 1 => format!("run {}", place + 1),
        None => "all requests".into(),
    }
}

fn runs(report: &Report) -> String {
    let mut text = String::from(
        "<table><tr><th></th><th>requests</th><th>requests/s</th><th>p50 us</th><th>p99 us</th><th>p99.9 us</th><th>errors</th>",
    );
    for processes in &report.plan.cpu {
        let _ = write!(text, "<th>CPU us/request, {}</th>", escape(&processes.name));
    }
    text.push_str("</tr>");
    for (place, run) in report.runs.iter().enumerate() {
        let all = run.record.all();
        let us = |quantile: f64| all.value_at_quantile(quantile) as f64 / 1e3;
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td>{:.1}</td><td>{}</td>",
            escape(&name(report, place, run)),
            grouped(run.record.answered as f64),
            grouped(run.rate_met()),
            us(0.5),
            us(0.99),
            us(0.999),
            grouped(run.record.errors.values().sum::<u64>() as f64)
        );
        for seconds in &run.cpu {
            let _ = write!(text, "<td>{:.2}</td>", seconds * 1e6 / run.record.answered.max(1) as f64);
        }
        text.push_str("</tr>");
    }
    text.push_str("</table>");
    text
}

fn throughput_and_latency(report: &Report) -> Plot {
    let line = |quantile: f64, name: &str| {
        let us = |run: &Outcome| run.record.all().value_at_quantile(quantile) as f64 / 1e3;
        let mut points: Vec<(f64, f64)> = report.runs.iter().map(|run| (run.rate_met(), us(run))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: name.into(), points }
    };
    Plot {
        title: "Latency by throughput".into(),
        x: "requests/s",
        y: "us",
        lines: vec![line(0.99, "p99"), line(0.5, "p50")],
        marks: Vec::new(),
        ticks: None,
        log_y: true,
        dots: true,
    }
}

fn quantiles(report: &Report) -> Plot {
    let nines = |quantile: f64| -(1.0 - quantile).log10();
    let line = |(place, run): (usize, &Outcome)| {
        let all = run.record.all();
        let steps = (0..=100).map(|step| f64::from(step) / 100.0 * nines(QUANTILES[6].0));
        let point = |x: f64| (x, all.value_at_quantile(1.0 - 10f64.powf(-x)) as f64 / 1e3);
        Line { name: name(report, place, run), points: steps.map(point).collect() }
    };
    Plot {
        title: "Latency by percentile".into(),
        x: "requests that took no longer",
        y: "us",
        lines: report.runs.iter().enumerate().take(LINES_MAX).map(line).collect(),
        marks: Vec::new(),
        ticks: Some(QUANTILES.iter().map(|(quantile, words)| (nines(*quantile), (*words).into())).collect()),
        log_y: true,
        dots: false,
    }
}

/// Of the run that counts.
fn over_time(report: &Report) -> [Plot; 2] {
    let run = report.middle();
    let width = run.point_seconds;
    // The last one is not whole.
    let whole = ((run.seconds / width + 1e-6) as usize).max(1);
    let line = |name: &str, value: &dyn Fn(&crate::bench::record::Point) -> f64| {
        let points = run.record.points.iter().take(whole).enumerate();
        Line {
            name: name.into(),
            points: points.map(|(place, point)| (place as f64 * width, value(point))).collect(),
        }
    };
    let marks = || {
        let inside = |at: &f64| *at >= 0.0 && *at <= run.seconds;
        let all = report.marks.iter().map(|mark| (mark.at - run.began, mark.words.clone()));
        all.filter(|(at, _)| inside(at)).collect::<Vec<_>>()
    };
    let us = |point: &crate::bench::record::Point, quantile: f64| {
        point.latencies.value_at_quantile(quantile) as f64 / 1e3
    };
    let plot = |title: &str, y: &'static str, lines: Vec<Line>, log_y: bool| Plot {
        title: title.into(),
        x: "seconds",
        y,
        lines,
        marks: marks(),
        ticks: None,
        log_y,
        dots: false,
    };
    let answered = line("answered", &|point| point.answered as f64 / width);
    let errors = line("errors", &|point| point.errors as f64 / width);
    let latencies = vec![line("p99", &|point| us(point, 0.99)), line("p50", &|point| us(point, 0.5))];
    [
        plot("Throughput over time", "requests/s", vec![answered, errors], false),
        plot("Latency over time", "us", latencies, true),
    ]
}
