//! How long keys and values are.

use crate::random::{Random, mix};
use libm::{log, pow};

/// A distribution of lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All the same.
    Fixed(u32),
    /// Evenly from the first to the second.
    Uniform(u32, u32),
    /// Keys of Facebook's ETC pool: generalized extreme value (Atikoglu et al., SIGMETRICS 2012, section 5).
    EtcKeys,
    /// Values of the same: 15 short lengths with a probability each, and a generalized Pareto tail.
    EtcValues,
}

/// Memcached takes no longer keys.
const ETC_KEY_MAX: f64 = 250.0;
/// Nor longer values, by default.
const ETC_VALUE_MAX: f64 = 1_000_000.0;

/// Location, scale and shape of the keys.
const ETC_KEYS: (f64, f64, f64) = (30.7984, 8.20449, 0.078688);
/// Scale and shape of the values that are not short.
const ETC_VALUES: (f64, f64) = (214.476, 0.348238);
/// Probabilities of values of 0 to 14 bytes.
const ETC_SHORT: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
    0.08989, 0.00092, 0.00326, 0.01980,
];

impl Sizes {
    /// A length.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform(low, high) => random.between(low.into(), high.max(low).into()) as u32,
            Sizes::EtcKeys => etc_key(random),
            Sizes::EtcValues => etc_value(random),
        }
    }

    /// The length that belongs to a record, always the same.
    pub fn of(&self, record: u64) -> u32 {
        match *self {
            Sizes::Fixed(size) => size,
            _ => self.draw(&mut Random::new(mix(record))),
        }
    }

    /// The longest.
    pub fn max(&self) -> u32 {
        match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform(low, high) => high.max(low),
            Sizes::EtcKeys => ETC_KEY_MAX as u32,
            Sizes::EtcValues => ETC_VALUE_MAX as u32,
        }
    }
}

fn etc_key(random: &mut Random) -> u32 {
    let (location, scale, shape) = ETC_KEYS;
    // The logarithm of 0 is left out.
    let u = 1.0 - random.unit();
    let x = location + scale / shape * (pow(-log(u), -shape) - 1.0);
    if x < ETC_KEY_MAX { x.max(1.0) as u32 } else { ETC_KEY_MAX as u32 }
}

fn etc_value(random: &mut Random) -> u32 {
    let mut u = random.unit();
    for (size, share) in ETC_SHORT.iter().enumerate() {
        if u < *share {
            return size as u32;
        }
        u -= share;
    }
    let (scale, shape) = ETC_VALUES;
    let rest = 1.0 - random.unit();
    let x = ETC_SHORT.len() as f64 + scale / shape * (pow(rest, -shape) - 1.0);
    x.min(ETC_VALUE_MAX) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn sorted(sizes: Sizes) -> Vec<u32> {
        let mut random = Random::new(9);
        let mut drawn: Vec<u32> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
        drawn.sort_unstable();
        drawn
    }

    fn near(met: u32, expected: f64) -> bool {
        (f64::from(met) - expected).abs() <= 1.0 + 0.03 * expected
    }

    #[test]
    fn etc_keys_have_the_published_quantiles() {
        let drawn = sorted(Sizes::EtcKeys);
        let (location, scale, shape) = ETC_KEYS;
        for percent in [1, 25, 50, 75, 99] {
            let u = f64::from(percent) / 100.0;
            let expected = location + scale / shape * (pow(-log(u), -shape) - 1.0);
            let met = drawn[drawn.len() * percent as usize / 100];
            assert!(near(met, expected - 0.5), "{percent} %: {met}, not {expected}");
        }
        assert!(drawn[drawn.len() - 1] <= 250);
    }

    #[test]
    fn etc_values_are_short_or_have_a_long_tail() {
        let drawn = sorted(Sizes::EtcValues);
        let short = drawn.iter().filter(|&&size| size < 15).count() as f64 / drawn.len() as f64;
        assert!((short - 0.44155).abs() < 0.006, "{short}");
        let two = drawn.iter().filter(|&&size| size == 2).count() as f64 / drawn.len() as f64;
        assert!((two - 0.1782).abs() < 0.005, "{two}");
        let tail: Vec<u32> = drawn.into_iter().filter(|&size| size >= 15).collect();
        let (scale, shape) = ETC_VALUES;
        for percent in [50, 90, 99] {
            let rest = 1.0 - f64::from(percent) / 100.0;
            let expected = 15.0 + scale / shape * (pow(rest, -shape) - 1.0);
            let met = tail[tail.len() * percent as usize / 100];
            let off = (f64::from(met) - expected).abs() / expected;
            assert!(off < 0.08, "{percent} %: {met}, not {expected}");
        }
    }

    #[test]
    fn a_record_keeps_its_length() {
        for sizes in [Sizes::Fixed(16), Sizes::Uniform(3, 90), Sizes::EtcKeys, Sizes::EtcValues] {
            assert!((0..1000).all(|record| sizes.of(record) == sizes.of(record)));
            assert!((0..1000).all(|record| sizes.of(record) <= sizes.max()));
        }
        let lengths: Vec<u32> = (0..100).map(|record| Sizes::Uniform(3, 90).of(record)).collect();
        assert!(lengths.iter().min() < lengths.iter().max());
    }
}
