//! Random numbers that are the same on every machine.
//!
//! Source: xoshiro256++ of D. Blackman and S. Vigna (2019), seeded by SplitMix64 as they recommend. Logarithms are
//! `libm`'s.

/// A generator. Two with different (seed, stream) give numbers that have nothing to do with each other.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator number `stream` of `seed`: a use of its own for each process, failure law, or arrival.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut word = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(17);
        let mut next = || {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = word;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// At least 0 and below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// 0 to n-1, for n of at least 1. The error of multiplying instead of rejecting is below n/2^64.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Exponentially distributed with this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_seed_and_well_spread() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..4).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(2, 1));
        assert_ne!(draw(1, 2), draw(1, 3));
        let mut random = Random::new(7, 0);
        let count = 100_000;
        let mean = (0..count).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(count);
        assert!((mean - 3.0).abs() < 0.05, "{mean}");
        let sum: u64 = (0..count).map(|_| random.below(10)).sum();
        assert!((sum as f64 / f64::from(count) - 4.5).abs() < 0.05, "{sum}");
    }
}
