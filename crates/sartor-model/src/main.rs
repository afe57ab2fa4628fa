//! Explores the chain to the end, in worlds of several shapes, and prints how many states there were.
//!
//! `sartor-model` explores all of [`SCOPES`], `sartor-model NAME...` those, of [`LARGE`] too.

use sartor_model::model::Chain;
use sartor_model::world::{Budget, Config};
use stateright::report::{ReportData, ReportDiscovery, Reporter};
use stateright::{Checker, Model};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is explored: a name, what may go wrong, and whether most frames come at once.
type Scope = (&'static str, Budget, bool);

/// Those that end within minutes, with 10 GB of memory.
const SCOPES: &[Scope] = &[
    ("crash", budget([1, 0, 2, 1, 1]), true),
    ("suspicion", budget([0, 1, 0, 0, 1]), true),
    ("two-crashes", budget([2, 0, 2, 0, 2]), true),
];

/// Those that need more time and memory: only by name.
const LARGE: &[Scope] = &[
    ("pause", budget([0, 1, 0, 1, 1]), true),
    ("two-suspicions", budget([0, 2, 0, 0, 1]), true),
    ("slow", budget([1, 0, 0, 0, 0]), false),
];

const fn budget([crashes, suspicions, duplicates, pauses, steps]: [u8; 5]) -> Budget {
    Budget { crashes, suspicions, duplicates, pauses, late: 0, steps }
}

struct Progress;

impl<M: Model> Reporter<M> for Progress {
    fn report_checking(&mut self, data: ReportData) {
        let ReportData { total_states, unique_states, max_depth, duration, .. } = data;
        let seconds = duration.as_secs();
        println!("  {total_states} states ({unique_states} unique), depth {max_depth}, {seconds} s");
    }

    fn report_discoveries(&mut self, _: &M, _: BTreeMap<&'static str, ReportDiscovery<M>>) {}

    fn delay(&self) -> Duration {
        Duration::from_secs(5)
    }
}

/// Explores one scope; the number of violations.
fn explore(name: &str, budget: Budget, quick: bool) -> usize {
    println!("{name}: {budget:?}, quick: {quick}");
    let begun = Instant::now();
    let config = Config { budget, quick, ..Config::default() };
    let checker = Chain::new(config).checker().threads(2).spawn_bfs().report(&mut Progress);
    let violations = checker.discoveries();
    for (what, path) in &violations {
        println!("  violated: {what}");
        for (world, step) in path.clone().into_vec() {
            println!("    {:?} {:?} then {step:?}", world.clients, world.paused);
        }
    }
    for (what, times) in checker.model().sights() {
        println!("  seen: {what} ({times})");
    }
    let (nodes, frames, turns) = checker.model().sizes();
    println!(
        "  {nodes} states of nodes, {frames} frames, {turns} turns of nodes, {} s",
        begun.elapsed().as_secs()
    );
    let (states, unique, depth) = (checker.state_count(), checker.unique_state_count(), checker.max_depth());
    println!("model: {states} states ({unique} unique), depth {depth}, {} violations", violations.len());
    violations.len()
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let named = |(name, ..): &&Scope| names.iter().any(|wanted| wanted == name);
    let wanted: Vec<&Scope> = match names.is_empty() {
        true => SCOPES.iter().collect(),
        false => SCOPES.iter().chain(LARGE).filter(named).collect(),
    };
    let violations: usize = wanted.iter().map(|(name, budget, quick)| explore(name, *budget, *quick)).sum();
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
