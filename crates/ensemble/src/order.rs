//! Order statistics: a phase of N tasks ends at the slowest, so its time is the greatest of N draws.
//! F_N(t) = F(t)^N; the median of the greatest is F^-1(2^(-1/N)).

use crate::draws::{Random, Table};
use crate::histogram::Histogram;

/// Draws of a simulation: enough for 1 %.
const SIMULATED_DRAWS: u64 = 4_000_000;
/// Rounds of one, at most and at least.
const ROUNDS: std::ops::RangeInclusive<u64> = 30..=2_000;

/// Up to so many draws a sum is simulated; with more it is normal.
const SUMMED_DRAWS: u64 = 64;

/// 1 + 1/2 + ... + 1/n: the mean of the greatest of n exponential draws of mean 1.
pub fn harmonic(n: u64) -> f64 {
    if n < 1_000 {
        return (1..=n).map(|at| 1.0 / at as f64).sum();
    }
    let n = n as f64;
    // Euler's constant, and the first terms of the asymptotic series.
    n.ln() + 0.577_215_664_901_532_9 + 1.0 / (2.0 * n) - 1.0 / (12.0 * n * n)
}

/// Median of the greatest of `n` draws.
pub fn median_max(of: &Histogram, n: u64) -> f64 {
    of.quantile((-1.0 / n.max(1) as f64).exp2())
}

/// Mean of the greatest of `n` draws: the sum over buckets of their middle times the part of F^n in them.
pub fn expected_max(of: &Histogram, n: u64) -> f64 {
    let count = of.count() as f64;
    let (mut below, mut power_below, mut mean) = (0.0, 0.0, 0.0);
    for (_, middle, here) in of.buckets().filter(|(_, _, here)| *here > 0) {
        below += here as f64;
        let power = (below / count).powf(n.max(1) as f64);
        mean += middle.clamp(of.moments.min, of.moments.max) * (power - power_below);
        power_below = power;
    }
    mean
}

/// Mean of the slowest of `tasks` where each makes `draws` independent draws, one after the other.
pub fn slowest_sum(of: &Histogram, tasks: u64, draws: u64) -> f64 {
    if draws <= 1 {
        return expected_max(of, tasks);
    }
    if draws <= SUMMED_DRAWS {
        return simulated_sum(of, tasks, draws);
    }
    // The sum of many draws is normal.
    let draws = draws as f64;
    let median = normal_quantile((-1.0 / tasks.max(1) as f64).exp2());
    draws * of.moments.mean() + median * of.moments.sd() * draws.sqrt()
}

/// The same, simulated with a fixed seed: the same histogram gives the same answer.
fn simulated_sum(of: &Histogram, tasks: u64, draws: u64) -> f64 {
    if of.count() == 0 || tasks == 0 {
        return 0.0;
    }
    let (table, mut random) = (Table::of(of), Random::new());
    let rounds = SIMULATED_DRAWS / tasks.saturating_mul(draws).max(1);
    let rounds = rounds.clamp(*ROUNDS.start(), *ROUNDS.end());
    // Bounded in time: of more tasks, the slowest of so many, which is a little less.
    let simulated = tasks.min(SIMULATED_DRAWS / ROUNDS.start() / draws).max(1);
    let mut task = || (0..draws).map(|_| table.draw(&mut random)).sum::<f64>();
    let mut slowest = || (0..simulated).map(|_| task()).fold(0.0, f64::max);
    (0..rounds).map(|_| slowest()).sum::<f64>() / rounds as f64
}

/// The value below which a standard normal draw is with probability `p`.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if normal_below(middle) < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Probability that a standard normal draw is below `z`: Simpson's rule over the density.
fn normal_below(z: f64) -> f64 {
    const STEPS: u32 = 200;
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let step = z / f64::from(STEPS);
    let weight = |at: u32| match at {
        0 | STEPS => 1.0,
        at if at % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let sum: f64 = (0..=STEPS).map(|at| weight(at) * density(f64::from(at) * step)).sum();
    0.5 + sum * step / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// Unit of the draws: a histogram counts whole numbers.
    const UNIT: f64 = 1e6;

    fn exponential(random: &mut StdRng) -> f64 {
        -(1.0 - random.random::<f64>()).ln()
    }

    fn normal(random: &mut StdRng) -> f64 {
        let angle = std::f64::consts::TAU * random.random::<f64>();
        (2.0 * exponential(random)).sqrt() * angle.cos()
    }

    fn histogram(mut draw: impl FnMut() -> f64) -> Histogram {
        let mut histogram = Histogram::default();
        (0..2_000_000).for_each(|_| histogram.add((draw() * UNIT) as u64));
        histogram
    }

    #[test]
    fn harmonic_numbers() {
        assert!((harmonic(256) - 6.124).abs() < 0.001, "{}", harmonic(256));
        assert!((harmonic(4096) - 8.8951).abs() < 0.001);
        let summed: f64 = (1..=1_000).map(|at| 1.0 / f64::from(at)).sum();
        assert!((harmonic(1_000) - summed).abs() < 1e-9);
    }

    #[test]
    fn the_slowest_of_n_exponential_draws() {
        let mut random = StdRng::seed_from_u64(3);
        let of = histogram(|| exponential(&mut random));
        for n in [16, 64, 256, 1024, 4096] {
            let mean = expected_max(&of, n) / UNIT / harmonic(n);
            assert!((mean - 1.0).abs() < 0.03, "mean of {n}: {mean}");
            let median = -(1.0 - (-1.0 / n as f64).exp2()).ln();
            let found = median_max(&of, n) / UNIT / median;
            assert!((found - 1.0).abs() < 0.03, "median of {n}: {found}");
        }
    }

    #[test]
    fn the_slowest_of_n_lognormal_draws() {
        let mut random = StdRng::seed_from_u64(4);
        let of = histogram(|| (0.5 * normal(&mut random)).exp());
        // Phi^-1(2^(-1/N)) for N = 16, 256, 4096, found by bisection of the error function.
        for (n, z) in [(16, 1.7235), (256, 2.7817), (4096, 3.5840)] {
            let found = median_max(&of, n) / UNIT / (0.5_f64 * z).exp();
            assert!((found - 1.0).abs() < 0.03, "median of {n}: {found}");
            // And the mean against one that is simulated from fresh draws.
            let rounds = 400_000 / n;
            let simulated: f64 = (0..rounds)
                .map(|_| (0..n).map(|_| normal(&mut random)).fold(f64::MIN, f64::max))
                .map(|greatest| (0.5 * greatest).exp())
                .sum::<f64>()
                / rounds as f64;
            let found = expected_max(&of, n) / UNIT / simulated;
            assert!((found - 1.0).abs() < 0.03, "mean of {n}: {found}");
        }
    }

    #[test]
    fn the_slowest_sum_of_draws() {
        for (p, z) in [(0.5, 0.0), (0.957_603, 1.7235), (0.999_830_8, 3.5840)] {
            assert!((normal_quantile(p) - z).abs() < 0.001, "{p}: {}", normal_quantile(p));
        }
        let mut random = StdRng::seed_from_u64(10);
        let of = histogram(|| exponential(&mut random));
        for (tasks, draws) in [(64, 1_u64), (64, 20), (64, 500)] {
            let fresh = |random: &mut StdRng| (0..draws).map(|_| exponential(random)).sum::<f64>();
            let rounds = 200_000 / (tasks * draws) + 5;
            let simulated: f64 = (0..rounds)
                .map(|_| (0..tasks).map(|_| fresh(&mut random)).fold(0.0, f64::max))
                .sum();
            let ratio = slowest_sum(&of, tasks, draws) / UNIT / (simulated / rounds as f64);
            assert!((ratio - 1.0).abs() < 0.03, "{tasks} of {draws}: {ratio}");
        }
    }
}
