//! Which record a request is for.

use super::zipf::Zipf;
use crate::random::Random;

/// How records are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Each as often as any other.
    Uniform,
    /// By Zipf's law with this exponent; popular records lie scattered over all.
    Zipfian(f64),
    /// By Zipf's law with this exponent, the newest first.
    Latest(f64),
    /// A share of the requests goes to a share of the records, the first ones.
    Hotspot {
        /// Share of the records that is hot.
        records: f64,
        /// Share of the requests that goes there.
        requests: f64,
    },
    /// One after the other, and over again.
    Sequential,
}

/// YCSB's exponent.
pub const THETA: f64 = 0.99;

impl Distribution {
    /// By its name, with the usual parameters.
    pub fn named(name: &str) -> Option<Distribution> {
        Some(match name {
            "uniform" => Distribution::Uniform,
            "zipfian" => Distribution::Zipfian(THETA),
            "latest" => Distribution::Latest(THETA),
            "hotspot" => Distribution::Hotspot { records: 0.2, requests: 0.8 },
            "sequential" => Distribution::Sequential,
            _ => return None,
        })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian(_) => "zipfian",
            Distribution::Latest(_) => "latest",
            Distribution::Hotspot { .. } => "hotspot",
            Distribution::Sequential => "sequential",
        }
    }
}

/// All names.
pub const DISTRIBUTIONS: &[&str] = &["uniform", "zipfian", "latest", "hotspot", "sequential"];

/// Chooses record numbers.
#[derive(Clone, Debug)]
pub struct Chooser {
    distribution: Distribution,
    records: u64,
    zipf: Zipf,
    scatter: Scatter,
    next: u64,
    step: u64,
}

impl Chooser {
    /// Over `records` records that are there when it begins. Of several choosers, number `part` of `parts`
    /// takes its own in a sequence.
    pub fn new(distribution: Distribution, records: u64, part: u64, parts: u64) -> Chooser {
        let records = records.max(1);
        let theta = match distribution {
            Distribution::Zipfian(theta) | Distribution::Latest(theta) => theta,
            _ => 0.0,
        };
        Chooser {
            distribution,
            records,
            zipf: Zipf::new(records, theta),
            scatter: Scatter::new(records),
            next: part % records,
            step: parts.max(1),
        }
    }

    /// A record; `newest` is the number after the last one that is there. Only `latest` looks at records that
    /// came since the start.
    pub fn choose(&mut self, newest: u64, random: &mut Random) -> u64 {
        match self.distribution {
            Distribution::Uniform => random.below(self.records),
            Distribution::Zipfian(_) => self.scatter.place(self.zipf.draw(random) - 1),
            Distribution::Latest(_) => newest.saturating_sub(self.zipf.draw(random)),
            Distribution::Hotspot { records, requests } => {
                let hot = ((self.records as f64 * records) as u64).clamp(1, self.records);
                let cold = self.records - hot;
                if cold == 0 || random.unit() < requests {
                    random.below(hot)
                } else {
                    hot + random.below(cold)
                }
            }
            Distribution::Sequential => {
                let record = self.next;
                self.next = (self.next + self.step) % self.records;
                record
            }
        }
    }
}

/// A fixed rearrangement of 0..n: every rank has one place, and neighbours lie far apart.
#[derive(Clone, Debug)]
struct Scatter {
    n: u64,
    factor: u64,
}

impl Scatter {
    fn new(n: u64) -> Scatter {
        // Near the golden section of n, which spreads multiples most evenly.
        let mut factor = (n as f64 * 0.618_033_988_749_894_9) as u64 | 1;
        while gcd(factor, n) != 1 {
            factor += 1;
        }
        Scatter { n, factor }
    }

    fn place(&self, rank: u64) -> u64 {
        let product = u128::from(rank) * u128::from(self.factor) + u128::from(self.n / 3);
        (product % u128::from(self.n)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn counts(distribution: Distribution, records: u64, draws: u64) -> Vec<u64> {
        let mut chooser = Chooser::new(distribution, records, 0, 1);
        let mut random = Random::new(5);
        let mut counts = vec![0; records as usize];
        for _ in 0..draws {
            counts[chooser.choose(records, &mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_is_even() {
        let counts = counts(Distribution::Uniform, 100, 100_000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipfian_is_skewed_and_scattered() {
        let records = 1000;
        let counts = counts(Distribution::Zipfian(THETA), records, 200_000);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|&record| core::cmp::Reverse(counts[record]));
        let sum: f64 = (1..=records).map(|k| libm::pow(k as f64, -THETA)).sum();
        let share = counts[order[0]] as f64 / 200_000.0;
        assert!((share - 1.0 / sum).abs() < 0.005, "{share}");
        // The ten most popular are not neighbours.
        let mut top = order[..10].to_vec();
        top.sort_unstable();
        assert!(top.windows(2).all(|pair| pair[1] - pair[0] > 5), "{top:?}");
    }

    #[test]
    fn latest_follows_what_is_inserted() {
        let mut chooser = Chooser::new(Distribution::Latest(THETA), 1000, 0, 1);
        let mut random = Random::new(3);
        let draws: Vec<u64> = (0..1000).map(|_| chooser.choose(5000, &mut random)).collect();
        assert!(draws.iter().all(|record| (4000..5000).contains(record)));
        assert!(draws.iter().filter(|&&record| record >= 4990).count() > 250);
    }

    #[test]
    fn a_hotspot_is_hot() {
        let counts = counts(Distribution::Hotspot { records: 0.2, requests: 0.8 }, 100, 100_000);
        let hot: u64 = counts[..20].iter().sum();
        assert!((79_000..81_000).contains(&hot), "{hot}");
        assert!(counts[20..].iter().all(|&count| count > 100));
    }

    #[test]
    fn several_sequences_cover_all_once() {
        let mut seen = vec![0; 30];
        for part in 0..3 {
            let mut chooser = Chooser::new(Distribution::Sequential, 30, part, 3);
            (0..10).for_each(|_| seen[chooser.choose(30, &mut Random::new(1)) as usize] += 1);
        }
        assert_eq!(seen, [1; 30]);
    }

    #[test]
    fn every_rank_has_its_own_place() {
        for n in [1, 2, 3, 10, 97, 1000, 4096] {
            let scatter = Scatter::new(n);
            let mut places: Vec<u64> = (0..n).map(|rank| scatter.place(rank)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..n), "{n}");
        }
    }
}
