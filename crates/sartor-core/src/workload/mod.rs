//! Workloads: what clients ask, as data and seeded generators.
//!
//! ```text
//!  Workload (a row of WORKLOADS, or the user's) ──▶ Generator ──▶ Draw { action, record, value bytes }
//!                                    keys.rs, zipf.rs │ sizes.rs
//! ```

pub mod keys;
pub mod sizes;
mod table;
pub mod zipf;

pub use table::{WORKLOADS, workload};

use crate::random::Random;
use keys::{Chooser, Distribution};
use sizes::Sizes;

/// What a request does to a record; names as in YCSB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reads it.
    Read,
    /// Writes it anew.
    Update,
    /// Writes one that was not there.
    Insert,
    /// Reads it and those after it, in key order.
    Scan,
    /// Reads it, then writes it.
    ReadModifyWrite,
}

/// All of them, in the order of a mix.
pub const ACTIONS: [Action; 5] =
    [Action::Read, Action::Update, Action::Insert, Action::Scan, Action::ReadModifyWrite];

impl Action {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Action::Read => "READ",
            Action::Update => "UPDATE",
            Action::Insert => "INSERT",
            Action::Scan => "SCAN",
            Action::ReadModifyWrite => "READ-MODIFY-WRITE",
        }
    }
}

/// The share of each action, in the order of [`ACTIONS`]; only their proportions count.
pub type Mix = [f64; 5];

/// What clients ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it stands for.
    pub about: &'static str,
    /// Where its numbers come from.
    pub source: &'static str,
    /// What is done how often.
    pub mix: Mix,
    /// Which records.
    pub distribution: Distribution,
    /// How long keys are.
    pub key_bytes: Sizes,
    /// How long values are.
    pub value_bytes: Sizes,
}

/// A request to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// What to do.
    pub action: Action,
    /// To which record; for an insert the caller says which is next.
    pub record: u64,
    /// How much to write.
    pub value_bytes: u32,
}

/// Draws requests of a workload; one for each thread.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    /// Sums of the shares, of 1.
    bounds: Mix,
    chooser: Chooser,
    value_bytes: Sizes,
}

impl Generator {
    /// Number `part` of `parts` over records that are there.
    pub fn new(workload: &Workload, records: u64, seed: u64, part: u64, parts: u64) -> Generator {
        let total: f64 = workload.mix.iter().sum();
        let mut sum = 0.0;
        let bounds = workload.mix.map(|share| {
            sum += share / total;
            sum
        });
        Generator {
            random: Random::new(seed.wrapping_add(part)),
            bounds,
            chooser: Chooser::new(workload.distribution, records, part, parts),
            value_bytes: workload.value_bytes,
        }
    }

    /// The next request. `newest` is the number after the last record that is there.
    pub fn draw(&mut self, newest: u64) -> Draw {
        let at = self.random.unit();
        let place = self.bounds.iter().position(|bound| at < *bound);
        // The sum of the shares may round to a little less than 1.
        let action = place.map_or_else(|| self.last(), |place| ACTIONS[place]);
        let record = match action {
            Action::Insert => newest,
            _ => self.chooser.choose(newest, &mut self.random),
        };
        let value_bytes = match action {
            Action::Read | Action::Scan => 0,
            _ => self.value_bytes.draw(&mut self.random),
        };
        Draw { action, record, value_bytes }
    }

    fn last(&self) -> Action {
        let end = self.bounds[ACTIONS.len() - 1];
        let place = self.bounds.iter().position(|bound| *bound >= end).unwrap_or(0);
        ACTIONS[place]
    }

    /// The stream of numbers, for what else is left to chance.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_the_mix_says() {
        for workload in WORKLOADS {
            let mut generator = Generator::new(workload, 1000, 1, 0, 1);
            let mut counts = [0u32; 5];
            let draws = 100_000;
            for _ in 0..draws {
                let draw = generator.draw(1000);
                let place = ACTIONS.iter().position(|action| *action == draw.action).unwrap();
                counts[place] += 1;
                assert!(draw.record < 1000 || draw.action == Action::Insert, "{}: {draw:?}", workload.name);
            }
            let total: f64 = workload.mix.iter().sum();
            for (count, share) in counts.iter().zip(workload.mix) {
                let (met, wanted) = (f64::from(*count) / f64::from(draws), share / total);
                assert!((met - wanted).abs() < 0.01, "{}: {met}, not {wanted}", workload.name);
                assert!(share > 0.0 || *count == 0, "{}", workload.name);
            }
        }
    }

    #[test]
    fn half_of_the_records_of_etc_get_a_hundredth_of_the_requests() {
        let etc = workload("etc").unwrap();
        let (records, draws) = (1_000_000u64, 200_000);
        let Distribution::Zipfian(theta) = etc.distribution else { panic!("another distribution") };
        let zipf = zipf::Zipf::new(records, theta);
        let mut random = Random::new(2);
        let rare = (0..draws).filter(|_| zipf.draw(&mut random) > records / 2).count();
        assert!((0.007..0.013).contains(&(rare as f64 / f64::from(draws))), "{rare}");
    }

    #[test]
    fn one_seed_is_one_sequence() {
        let workload = workload("b").unwrap();
        let mut one = Generator::new(workload, 1000, 7, 0, 2);
        let mut same = Generator::new(workload, 1000, 7, 0, 2);
        let mut other = Generator::new(workload, 1000, 7, 1, 2);
        assert!((0..1000).all(|_| one.draw(1000) == same.draw(1000)));
        assert!((0..1000).any(|_| one.draw(1000) != other.draw(1000)));
    }
}
