//! Mean, standard deviation, skewness, and correlation of a value with the one before, each from sums
//! that can be merged.

/// Moments of values. Updates and merges by the formulas of Chan, Golub and LeVeque, which lose no digits
/// where values are large and alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    mean: f64,
    /// Sums of powers of the distance from the mean.
    m2: f64,
    m3: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments { count: 0, min: f64::INFINITY, max: 0.0, mean: 0.0, m2: 0.0, m3: 0.0 }
    }
}

impl Moments {
    /// Counts a value.
    pub fn add(&mut self, value: f64) {
        self.add_many(value, 1);
    }

    /// Counts a value so many times.
    pub fn add_many(&mut self, value: f64, count: u64) {
        self.merge(&Moments { count, min: value, max: value, mean: value, m2: 0.0, m3: 0.0 });
    }

    /// Counts all that `other` counted.
    pub fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let n = a + b;
        let d = other.mean - self.mean;
        self.m3 += other.m3
            + d.powi(3) * a * b * (a - b) / (n * n)
            + 3.0 * d * (a * other.m2 - b * self.m2) / n;
        self.m2 += other.m2 + d * d * a * b / n;
        self.mean += d * b / n;
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Mean; 0 if there are no values.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        self.mean * self.count as f64
    }

    /// Standard deviation, of the population.
    pub fn sd(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.m2 / self.count as f64).max(0.0).sqrt() }
    }

    /// Skewness: 0 if symmetric, 2 of an exponential distribution.
    pub fn skewness(&self) -> f64 {
        if self.m2 <= 0.0 { 0.0 } else { (self.count as f64).sqrt() * self.m3 / self.m2.powf(1.5) }
    }
}

/// How far a value tells the next one of the same task: correlation at lag 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Correlation {
    pairs: f64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Correlation {
    /// A value and the one after it.
    pub fn add(&mut self, value: f64, next: f64) {
        self.pairs += 1.0;
        self.x += value;
        self.y += next;
        self.xx += value * value;
        self.yy += next * next;
        self.xy += value * next;
    }

    /// Adds those of another task.
    pub fn merge(&mut self, other: &Correlation) {
        self.pairs += other.pairs;
        self.x += other.x;
        self.y += other.y;
        self.xx += other.xx;
        self.yy += other.yy;
        self.xy += other.xy;
    }

    /// Number of pairs.
    pub fn pairs(&self) -> u64 {
        self.pairs as u64
    }

    /// -1 to 1; 0 if there is nothing to tell.
    pub fn value(&self) -> f64 {
        let n = self.pairs;
        let (vx, vy) = (n * self.xx - self.x * self.x, n * self.yy - self.y * self.y);
        if n < 3.0 || vx <= 0.0 || vy <= 0.0 {
            return 0.0;
        }
        ((n * self.xy - self.x * self.y) / (vx * vy).sqrt()).clamp(-1.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn moments_of_known_values() {
        let mut moments = Moments::default();
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|value| moments.add(value));
        assert_eq!((moments.mean(), moments.sd()), (5.0, 2.0));
        // Third central moment 5.25, over 2^3.
        assert!((moments.skewness() - 0.65625).abs() < 1e-12);
        assert_eq!((moments.min, moments.max, moments.sum()), (2.0, 9.0, 40.0));
    }

    #[test]
    fn an_exponential_distribution_has_skewness_two() {
        let mut random = StdRng::seed_from_u64(1);
        let mut moments = Moments::default();
        for _ in 0..1_000_000 {
            moments.add(-(1.0 - random.random::<f64>()).ln());
        }
        assert!((moments.mean() - 1.0).abs() < 0.01 && (moments.sd() - 1.0).abs() < 0.01);
        assert!((moments.skewness() - 2.0).abs() < 0.05, "{}", moments.skewness());
    }

    #[test]
    fn correlation_tells_independent_draws_from_others() {
        let mut random = StdRng::seed_from_u64(2);
        let (mut free, mut bound) = (Correlation::default(), Correlation::default());
        let mut value: f64 = 0.0;
        for _ in 0..100_000 {
            free.add(random.random(), random.random());
            // A first-order process with coefficient 0.8.
            let next = 0.8 * value + random.random::<f64>() - 0.5;
            bound.add(value, next);
            value = next;
        }
        assert!(free.value().abs() < 0.02, "{}", free.value());
        assert!((bound.value() - 0.8).abs() < 0.02, "{}", bound.value());
        assert_eq!(Correlation::default().value(), 0.0);
    }
}
