//! A seeded stream of numbers (xoshiro256**): the same seed gives the same stream on
//! every machine, for simulations and workloads. Not for secrets.

/// The generator; its state is the four words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random([u64; 4]);

impl Random {
    /// A stream for `seed`, spread by splitmix64 so that near seeds give far streams.
    pub fn new(seed: u64) -> Random {
        let mut state = seed;
        let mut word = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        Random([word(), word(), word(), word()])
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in 0..1, 1 left out.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// One round of splitmix64: a bijection that scatters its argument.
pub fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_stream() {
        let (mut a, mut b, mut c) = (Random::new(7), Random::new(7), Random::new(8));
        for _ in 0..100 {
            assert_eq!(a.bits(), b.bits());
            assert_ne!(a.bits(), c.bits());
            b.bits();
        }
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut random = Random::new(1);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[random.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
