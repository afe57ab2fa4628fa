//! What runs led to, in several forms.

pub mod environment;
mod hgrm;
mod html;
mod json;
mod marks;
mod svg;
mod table;
mod ycsb;

use super::args::{BenchArgs, Output};
use super::plan::Plan;
use super::run::Outcome;
use crate::say;
use environment::Environment;
use marks::Mark;
use sartor_core::workload::{ACTIONS, Mix};
use std::path::Path;

/// All that is known after the runs.
pub struct Report<'a> {
    plan: &'a Plan,
    runs: Vec<Outcome>,
    environment: Environment,
    marks: Vec<Mark>,
}

impl<'a> Report<'a> {
    /// Of these runs, with what others marked meanwhile.
    pub fn new(
        plan: &'a Plan,
        runs: Vec<Outcome>,
        environment: Environment,
        marks: Option<&Path>,
    ) -> Result<Report<'a>, String> {
        let marks = marks.map_or(Ok(Vec::new()), marks::read)?;
        Ok(Report { plan, runs, environment, marks })
    }

    /// Prints it.
    pub fn print(&self, output: Output) {
        match output {
            Output::Table => table::print(self),
            Output::Ycsb => say(format_args!("{}", ycsb::lines(self).trim_end())),
            Output::Json => say(format_args!("{}", json::whole(self))),
        }
    }

    /// Writes the files that were asked for.
    pub fn write(&self, args: &BenchArgs) -> Result<(), String> {
        let put = |path: &Path, text: String| {
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        if let Some(path) = &args.json {
            put(path, json::whole(self).to_string())?;
        }
        if let Some(path) = &args.hgrm {
            put(path, hgrm::text(&self.middle().record.all()))?;
        }
        if let Some(path) = &args.html {
            put(path, html::page(self))?;
        }
        Ok(())
    }

    /// The run whose throughput is the median; of several rates, of the highest.
    fn middle(&self) -> &Outcome {
        let highest = self
            .runs
            .iter()
            .filter_map(|run| run.rate)
            .fold(None, |most: Option<f64>, rate| Some(most.map_or(rate, |most| most.max(rate))));
        let mut order: Vec<&Outcome> = self.runs.iter().filter(|run| run.rate == highest).collect();
        order.sort_by(|a, b| a.rate_met().total_cmp(&b.rate_met()));
        order[(order.len() - 1) / 2]
    }
}

/// A mix in words.
pub fn mix(mix: &Mix) -> String {
    let total: f64 = mix.iter().sum();
    let shares = ACTIONS.iter().zip(mix).filter(|(_, share)| **share > 0.0);
    let words = shares.map(|(action, share)| {
        let percent = format!("{:.1}", 100.0 * share / total);
        format!("{} % {}", percent.trim_end_matches(".0"), action.name())
    });
    words.collect::<Vec<_>>().join(", ")
}

/// A number with separators.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0.4), "0");
        assert_eq!(grouped(999.6), "1,000");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(-1234.0), "-1,234");
    }

    #[test]
    fn mixes_are_words() {
        assert_eq!(mix(&[30.0, 1.0, 0.0, 0.0, 0.0]), "96.8 % READ, 3.2 % UPDATE");
    }
}
