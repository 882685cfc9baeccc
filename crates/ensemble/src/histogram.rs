//! Counts in buckets whose width grows with the value: 16 to an octave, so a value is known within 2.2 %.

use crate::moments::Moments;

/// Buckets between a value and twice that value.
pub const BUCKETS_PER_OCTAVE: u32 = 16;
/// Octaves: 2^44 ns are almost five hours. What is longer counts in the last bucket.
const OCTAVES: u32 = 44;
/// Buckets.
pub const BUCKETS: usize = (BUCKETS_PER_OCTAVE * OCTAVES) as usize;

/// A distribution of values of 0 and more: durations in ns, mostly.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Empty until the first value; then all buckets.
    counts: Vec<u64>,
    /// Of the values themselves, not of buckets.
    pub moments: Moments,
}

/// Where an octave's buckets begin: 2^63 * 2^(k/16) for k from 0 to 15, rounded up. With widths that are equal without the logarithm,
/// the first bucket of an octave would be twice as wide in the logarithm as its last one.
const EDGES: [u64; BUCKETS_PER_OCTAVE as usize] = [
    0x8000_0000_0000_0000,
    0x85aa_c367_cc48_7b15,
    0x8b95_c1e3_ea8b_d6e7,
    0x91c3_d373_ab11_c337,
    0x9837_f051_8db8_a970,
    0x9ef5_3260_91a1_11ae,
    0xa5fe_d6a9_b151_38eb,
    0xad58_3eea_42a1_4ac7,
    0xb504_f333_f9de_6485,
    0xbd08_a39f_580c_36bf,
    0xc567_2a11_5506_dade,
    0xce24_8c15_1f84_80e4,
    0xd744_fcca_d69d_6af5,
    0xe0cc_deec_2a94_e112,
    0xeac0_c6e7_dd24_392f,
    0xf525_7d15_2486_cc2d,
];

/// The bucket of a value. Values below 1 count as 1. Each operation of a benchmark counts, so no logarithm is computed: the value is
/// moved into the highest octave, and its bucket is looked for there in four steps.
pub fn bucket_of(value: u64) -> usize {
    let value = value.max(1);
    let octave = value.ilog2();
    if octave >= OCTAVES {
        return BUCKETS - 1;
    }
    let moved = value << value.leading_zeros();
    let mut within = 0;
    for step in [8, 4, 2, 1] {
        within += if moved >= EDGES[within + step] { step } else { 0 };
    }
    (octave * BUCKETS_PER_OCTAVE) as usize + within
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        self.counts[bucket_of(value)] += 1;
        self.moments.add(value as f64);
    }

    /// Counts a value so many times.
    pub fn add_many(&mut self, value: u64, times: u64) {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        self.counts[bucket_of(value)] += times;
        self.moments.add_many(value as f64, times);
    }

    /// Counts all that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            for (count, more) in self.counts.iter_mut().zip(&other.counts) {
                *count += more;
            }
        }
        self.moments.merge(&other.moments);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.moments.count
    }

    /// Each bucket: its number, its middle (geometric), and its count. Empty ones too.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, f64, u64)> + '_ {
        self.counts.iter().enumerate().map(|(at, count)| (at, middle(at as f64), *count))
    }

    /// The value below which a share `p` of all values is (0 to 1), interpolated within its bucket; the exact
    /// least and greatest at the ends. 0 if there are none.
    pub fn quantile(&self, p: f64) -> f64 {
        let found = quantile(&self.counts, p).unwrap_or(0.0);
        if self.count() == 0 { 0.0 } else { found.clamp(self.moments.min, self.moments.max) }
    }
}

/// The value below which a share `p` (0 to 1) of what `counts` counts lies, interpolated within its bucket. None if there
/// is nothing.
pub fn quantile(counts: &[u64], p: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = p.clamp(0.0, 1.0) * total as f64;
    let mut below = 0.0;
    let mut last = None;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= wanted {
            let share = ((wanted - below) / count).clamp(0.0, 1.0);
            return Some(edge(at as f64 + share));
        }
        below += count;
        last = Some(edge(at as f64 + 1.0));
    }
    last
}

/// The lower edge of a bucket, also of a part of one.
fn edge(at: f64) -> f64 {
    (at / f64::from(BUCKETS_PER_OCTAVE)).exp2()
}

/// The middle of a bucket.
pub(crate) fn middle(at: f64) -> f64 {
    edge(at + 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_halves_are_the_whole() {
        let (mut whole, mut halves) =
            (Histogram::default(), [Histogram::default(), Histogram::default()]);
        for at in 0..10_000_u64 {
            let value = at * at % 77_777;
            whole.add(value);
            halves[at as usize % 2].add(value);
        }
        let [mut first, second] = halves;
        first.merge(&second);
        assert_eq!(first.counts, whole.counts);
        assert_eq!(first.count(), 10_000);
        assert!((first.moments.sd() / whole.moments.sd() - 1.0).abs() < 1e-9);
        let (mut many, mut single) = (Histogram::default(), Histogram::default());
        for (value, times) in [(7, 3), (1 << 20, 40), (99, 0)] {
            many.add_many(value, times);
            (0..times).for_each(|_| single.add(value));
        }
        assert_eq!((&many.counts, many.count()), (&single.counts, single.count()));
        assert!((many.moments.sd() / single.moments.sd() - 1.0).abs() < 1e-9);
        assert_eq!((many.moments.min, many.moments.max), (7.0, (1 << 20) as f64));
        let mut empty = Histogram::default();
        empty.merge(&whole);
        assert_eq!(empty, whole);
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|value| histogram.add(value));
        for p in [0.01, 0.5, 0.9, 0.999] {
            let found = histogram.quantile(p) / (p * 100_000.0);
            assert!((found - 1.0).abs() < 0.045, "{p}: {found}");
        }
        assert_eq!((histogram.quantile(0.0), histogram.quantile(1.0)), (1.0, 100_000.0));
        assert_eq!(Histogram::default().quantile(0.5), 0.0);
    }

    /// What a bucket is: the whole number of sixteenths of an octave above 1.
    fn by_logarithm(value: u64) -> usize {
        ((value as f64).log2() * f64::from(BUCKETS_PER_OCTAVE)) as usize
    }

    #[test]
    fn buckets_are_those_of_the_logarithm() {
        for at in 0..BUCKETS {
            let lower = edge(at as f64).ceil() as u64;
            // Small octaves have fewer values than buckets.
            for value in lower.saturating_sub(2).max(1)..=lower + 2 {
                let wanted = by_logarithm(value).min(BUCKETS - 1);
                assert_eq!(bucket_of(value), wanted, "{value}");
            }
        }
        for value in 1..100_000 {
            assert_eq!(bucket_of(value), by_logarithm(value), "{value}");
        }
    }

    #[test]
    fn any_value_has_a_bucket() {
        let mut histogram = Histogram::default();
        [0, 1, u64::MAX, 1 << 44, (1 << 44) - 1].into_iter().for_each(|value| histogram.add(value));
        assert_eq!(histogram.counts[0], 2);
        assert_eq!(histogram.counts[BUCKETS - 1], 3);
    }
}
