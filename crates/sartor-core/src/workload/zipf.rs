//! Zipf's distribution over 1 to n, drawn by rejection-inversion (Hörmann and Derflinger 1996).
//!
//! It is exact for every exponent, needs no table and no sum over n, and so n can be large or grow.

use crate::random::Random;
use libm::{exp, expm1, log, log1p};

/// Draws rank k in 1..=n with a probability in proportion to `1 / k^theta`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    /// The hat's integral at 1.5, less 1, and at n + 0.5: what is drawn uniformly lies between.
    low: f64,
    high: f64,
    /// Distance from k below which nothing can be rejected.
    sure: f64,
}

impl Zipf {
    /// Over 1 to `n`, at least 1, with an exponent of 0 or more.
    pub fn new(n: u64, theta: f64) -> Zipf {
        let n = n.max(1);
        let mut zipf = Zipf { n, theta, low: 0.0, high: 0.0, sure: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n as f64 + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.hat(2.0));
        zipf
    }

    /// A rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(area);
            let k = ((x + 0.5) as u64).clamp(1, self.n);
            let rank = k as f64;
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.hat(rank) {
                return k;
            }
        }
    }

    fn hat(&self, x: f64) -> f64 {
        exp(-self.theta * log(x))
    }

    /// The hat's integral from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let log_x = log(x);
        expm1_over((1.0 - self.theta) * log_x) * log_x
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding may lead below the pole.
        let t = (area * (1.0 - self.theta)).max(-1.0);
        exp(log1p_over(t) * area)
    }
}

/// `(e^x - 1) / x`, also near 0.
fn expm1_over(x: f64) -> f64 {
    if x > -1e-8 && x < 1e-8 { 1.0 + x / 2.0 } else { expm1(x) / x }
}

/// `ln(1 + x) / x`, also near 0.
fn log1p_over(x: f64) -> f64 {
    if x > -1e-8 && x < 1e-8 { 1.0 - x / 2.0 } else { log1p(x) / x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn ranks_come_as_often_as_they_should() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let (n, draws) = (50, 200_000);
            let zipf = Zipf::new(n, theta);
            let mut random = Random::new(11);
            let mut counts = vec![0u64; n as usize];
            for _ in 0..draws {
                counts[zipf.draw(&mut random) as usize - 1] += 1;
            }
            let sum: f64 = (1..=n).map(|k| libm::pow(k as f64, -theta)).sum();
            for k in [1, 2, 3, 10, 50] {
                let expected = draws as f64 * libm::pow(k as f64, -theta) / sum;
                let met = counts[k as usize - 1] as f64;
                // Five standard deviations.
                let off = 5.0 * libm::sqrt(expected);
                assert!((met - expected).abs() < off, "theta {theta}, rank {k}: {met}, not {expected}");
            }
        }
    }

    #[test]
    fn one_rank_is_always_drawn() {
        let (zipf, mut random) = (Zipf::new(1, 0.99), Random::new(1));
        assert!((0..100).all(|_| zipf.draw(&mut random) == 1));
    }
}
