//! How long calls take: counted by many threads, told as a histogram (docs/METRICS.md). No I/O, no locks.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets, in nanoseconds, ascending: about three a decade, 3 us to 30 s.
pub const LATENCY_BOUNDS_NS: [u64; 15] = [
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Buckets: one for each bound, and one for what took longer.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS_NS.len() + 1;

/// Counts how long something took. Adding is two relaxed additions.
#[derive(Debug)]
pub struct LatencyCounts {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for LatencyCounts {
    fn default() -> LatencyCounts {
        let zero = || AtomicU64::new(0);
        LatencyCounts { buckets: std::array::from_fn(|_| zero()), sum_ns: zero() }
    }
}

impl LatencyCounts {
    /// One took this long.
    pub fn note(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_NS.partition_point(|bound_ns| *bound_ns < took_ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(took_ns, Relaxed);
    }

    /// Adds what was counted here to a sum.
    pub fn add_to(&self, sum: &mut Latency) {
        for (into, bucket) in sum.buckets.iter_mut().zip(&self.buckets) {
            *into += bucket.load(Relaxed);
        }
        sum.sum_s += self.sum_ns.load(Relaxed) as f64 / 1e9;
    }
}

/// How long calls of one kind took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Seconds of all together.
    pub sum_s: f64,
    /// How many took at most [`LATENCY_BOUNDS_NS`], and longer than the bound before; last: how many took longer than
    /// all bounds.
    pub buckets: Vec<u64>,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { sum_s: 0.0, buckets: vec![0; LATENCY_BUCKETS] }
    }
}

impl Latency {
    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds those of another process.
    pub fn add(&mut self, other: &Latency) {
        self.sum_s += other.sum_s;
        for (into, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *into += bucket;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_in_the_bucket_that_its_time_belongs_to() {
        let counts = LatencyCounts::default();
        for us in [0, 3, 4, 10, 29_000_000, 31_000_000] {
            counts.note(Duration::from_micros(us));
        }
        let mut told = Latency::default();
        counts.add_to(&mut told);
        assert_eq!((told.buckets[0], told.buckets[1], told.buckets[2]), (2, 2, 0));
        assert_eq!((told.buckets[14], told.buckets[15], told.count()), (1, 1, 6));
        assert!((told.sum_s - 60.000_017).abs() < 1e-9, "{}", told.sum_s);
    }
}
