//! `sartor sim --mutants`: plants protocol faults one after the other, and looks whether the simulator finds them.

use super::seeds::Seeds;
use crate::{Failed, say};
use sartor_core::controlet::MODES;
use sartor_core::mutants::{MUTANTS, Mutant, plant};
use sartor_sim::Config;
use std::time::Instant;

/// Found within so many seeds, or there is a hole in what the seeds try, or in what is checked.
const SEEDS_MAX: u64 = 10_000;

/// Runs all of them, or the one of that name.
pub fn run(only: Option<&str>) -> Result<(), Failed> {
    let wanted: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| only.is_none_or(|name| mutant.name == name)).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        return Err(Failed::input(format!("no such mutant; there is: {}", names.join(", "))));
    }
    say(format_args!(
        "{:<24}{:<11}{:<11}{:>7}{:>8}  WHAT SHOWED IT",
        "MUTANT", "MODE", "FOUND", "SEEDS", "TIME"
    ));
    let mut found = 0;
    for mutant in &wanted {
        found += usize::from(hunt(mutant));
    }
    say(format_args!("mutants: {found} of {} found", wanted.len()));
    match found == wanted.len() {
        true => Ok(()),
        false => Err(Failed::other(String::from("a planted fault was not found"))),
    }
}

fn hunt(mutant: &Mutant) -> bool {
    let started = Instant::now();
    let config = Config { run_ms: 20_000, ..Config::of(MODES, mutant.mode).unwrap_or_default() };
    plant(Some(mutant.fault));
    let seeds = Seeds { config, first: 0, count: SEEDS_MAX, until_found: true };
    let failures = seeds.run(false).1;
    plant(None);
    let (state, needed, why) = match failures.first() {
        Some((seed, error)) => ("found", seed + 1, error.as_str()),
        None => ("NOT FOUND", SEEDS_MAX, "nothing"),
    };
    let why: String = why.chars().take(90).collect();
    let (name, mode, took) = (mutant.name, mutant.mode, started.elapsed().as_secs_f64());
    say(format_args!("{name:<24}{mode:<11}{state:<11}{needed:>7}{took:>7.1}s  {why}"));
    !failures.is_empty()
}
