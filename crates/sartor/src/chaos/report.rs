//! What is printed, and the same as JSON.

use super::fault::KINDS;
use super::run::{Met, Outcome};
use crate::say;
use serde_json::{Value, json};

/// Violations of one run that are printed whole.
const SHOWN_MAX: usize = 10;

/// A line for a fault that is over.
pub fn fault(run: u64, met: &Met) {
    let held = met.held.map_or_else(String::new, |held| format!(", load {:.0} %", held * 100.0));
    say(format_args!(
        "run {run} {:>7.2} s  {:<58} gap {:>5.2} s from {:>5.2}, whole after {:>5.2} s{held}",
        met.began_us as f64 / 1e6,
        met.words,
        met.gap_us as f64 / 1e6,
        met.gap_from_us as f64 / 1e6,
        (met.whole_us - met.began_us) as f64 / 1e6
    ));
}

/// What a run broke, and how much it did.
pub fn run(number: u64, outcome: &Outcome, strong: bool) {
    let verdict = &outcome.verdict;
    for violation in verdict.violations.iter().take(SHOWN_MAX) {
        say(format_args!("run {number}: VIOLATION: {violation}"));
    }
    for lost in verdict.lost.iter().filter(|lost| !lost.allowed).take(SHOWN_MAX) {
        say(format_args!("run {number}: LOST: {}{}", lost.text, age(lost.before.as_ref())));
    }
    let [answered, refused, unknown] = outcome.counts;
    let agreed = if strong {
        String::new()
    } else {
        format!("; all nodes agreed {} ms after the load", verdict.agreed_ms)
    };
    say(format_args!(
        "run {number}: {answered} requests answered, {refused} refused, {unknown} without an answer; {} violations, {} lost{agreed}",
        verdict.violations.len(),
        verdict.lost.len()
    ));
    let allowed = verdict.lost.iter().filter(|lost| lost.allowed);
    let oldest = allowed.max_by_key(|lost| lost.before.as_ref().map(|(us, _)| *us));
    if let Some(oldest) = oldest {
        say(format_args!(
            "run {number}: of what the mode may lose, the oldest: {}{}",
            oldest.text,
            age(oldest.before.as_ref())
        ));
    }
}

fn age(before: Option<&(i64, String)>) -> String {
    match before {
        Some((us, fault)) if *us >= 0 => format!("; acknowledged {:.1} ms before {fault}", *us as f64 / 1e3),
        Some((us, fault)) => format!("; acknowledged {:.1} ms after {fault}", -*us as f64 / 1e3),
        None => String::new(),
    }
}

/// Gaps and load by kind of fault.
pub fn table(outcomes: &[Outcome]) {
    say(format_args!(
        "\n{:<20}{:>8}{:>14}{:>14}{:>16}{:>14}",
        "FAULT", "COUNT", "GAP MEDIAN", "GAP WORST", "WHOLE MEDIAN", "LOAD MEDIAN"
    ));
    for (kind, name, _) in KINDS {
        let met: Vec<&Met> =
            outcomes.iter().flat_map(|outcome| &outcome.faults).filter(|met| met.kind == *kind).collect();
        if met.is_empty() {
            continue;
        }
        let of = |get: &dyn Fn(&Met) -> u64| met.iter().map(|met| get(met)).collect::<Vec<_>>();
        let gaps = of(&|met| met.gap_us);
        let worst = seconds(gaps.iter().max().copied().unwrap_or(0));
        let whole = seconds(median(of(&|met| met.whole_us - met.began_us)));
        let held: Vec<u64> = met.iter().filter_map(|met| Some((met.held? * 100.0) as u64)).collect();
        let load = if held.is_empty() { String::new() } else { format!("{} %", median(held)) };
        let gap = seconds(median(gaps));
        say(format_args!("{name:<20}{:>8}{gap:>14}{worst:>14}{whole:>16}{load:>14}", met.len()));
    }
    let quiet = outcomes.iter().map(|outcome| outcome.quiet_us).max().unwrap_or(0);
    say(format_args!("{:<20}{:>8}{:>14}{:>14}\n", "none", "", "", seconds(quiet)));
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    let (low, high) = (numbers.len().saturating_sub(1) / 2, numbers.len() / 2);
    match (numbers.get(low), numbers.get(high)) {
        (Some(low), Some(high)) => low.midpoint(*high),
        _ => 0,
    }
}

fn seconds(us: u64) -> String {
    format!("{:.3} s", us as f64 / 1e6)
}

/// Violations and losses that must not be.
pub fn totals(outcomes: &[Outcome]) -> (usize, usize, usize) {
    let faults = outcomes.iter().map(|outcome| outcome.faults.len()).sum();
    let violations = outcomes.iter().map(|outcome| outcome.verdict.violations.len()).sum();
    let lost = outcomes.iter().flat_map(|outcome| &outcome.verdict.lost).filter(|lost| !lost.allowed).count();
    (faults, violations, lost)
}

/// Everything, for programs.
pub fn json(outcomes: &[Outcome], mode: &str) -> Value {
    let (faults, violations, lost) = totals(outcomes);
    let runs: Vec<Value> = outcomes.iter().map(run_json).collect();
    json!({ "mode": mode, "faults": faults, "violations": violations, "lost": lost, "runs": runs })
}

fn run_json(outcome: &Outcome) -> Value {
    let fault = |met: &Met| {
        json!({
            "kind": met.kind.name(), "text": met.words, "began_us": met.began_us, "ended_us": met.ended_us,
            "whole_us": met.whole_us, "gap_us": met.gap_us, "gap_from_us": met.gap_from_us, "load_held": met.held,
        })
    };
    let lost = |lost: &super::verdict::Lost| {
        json!({
            "text": lost.text, "allowed": lost.allowed,
            "before_us": lost.before.as_ref().map(|(us, _)| *us),
            "fault": lost.before.as_ref().map(|(_, fault)| fault),
        })
    };
    let [answered, refused, unknown] = outcome.counts;
    json!({
        "seed": outcome.seed,
        "answered": answered, "refused": refused, "unknown": unknown,
        "quiet_gap_us": outcome.quiet_us,
        "agreed_ms": outcome.verdict.agreed_ms,
        "faults": outcome.faults.iter().map(fault).collect::<Vec<_>>(),
        "violations": outcome.verdict.violations,
        "lost": outcome.verdict.lost.iter().map(lost).collect::<Vec<_>>(),
    })
}
