//! Draws from a histogram, and chance that is the same each time.

use crate::histogram::Histogram;

/// Quantiles of a histogram, for draws.
pub(crate) struct Table {
    values: Vec<f64>,
    /// Mean of the draws, in the histogram's unit.
    pub(crate) mean: f64,
    /// Their standard deviation.
    pub(crate) sd: f64,
}

impl Table {
    const ENTRIES: usize = 1 << 16;

    pub(crate) fn of(histogram: &Histogram) -> Table {
        let mut values = Vec::with_capacity(Table::ENTRIES + 1);
        let (count, entries) = (histogram.count() as f64, Table::ENTRIES as f64);
        let mut below = 0.0;
        let ratio = 0.5 / f64::from(crate::BUCKETS_PER_OCTAVE);
        for (_, middle, here) in histogram.buckets().filter(|(_, _, here)| *here > 0) {
            let above = below + here as f64;
            while (values.len() as f64) < above / count * entries {
                let share = (values.len() as f64 / entries * count - below) / here as f64;
                let value = middle * ((2.0 * share - 1.0) * ratio).exp2();
                values.push(value.clamp(histogram.moments.min, histogram.moments.max));
            }
            below = above;
        }
        if values.is_empty() {
            values.push(0.0);
        }
        let mut table = Table { values, mean: 0.0, sd: 0.0 };
        // A draw lies anywhere between an entry and the next one.
        let entries = table.values.len() as f64;
        let (mut sum, mut squares) = (0.0, 0.0);
        for at in 0..table.values.len() {
            let (low, high) = table.ends(at);
            sum += 0.5 * (low + high);
            squares += (low * low + low * high + high * high) / 3.0;
        }
        table.mean = sum / entries;
        table.sd = (squares / entries - table.mean * table.mean).max(0.0).sqrt();
        table
    }

    /// Between which values a draw of this entry lies.
    fn ends(&self, at: usize) -> (f64, f64) {
        // The last entry stands for the tail: draws there go up to the greatest value.
        let low = at.min(self.values.len() - 1);
        let high = (low + 1).min(self.values.len() - 1);
        (self.values[low], self.values[high])
    }

    pub(crate) fn draw(&self, random: &mut Random) -> f64 {
        let at = random.uniform() * self.values.len() as f64;
        let (low, high) = self.ends(at as usize);
        low + (high - low) * (at - at.floor())
    }
}

/// A generator with the constants of Marsaglia's xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    /// With a fixed seed: what is simulated twice is the same.
    pub(crate) fn new() -> Random {
        Random(0x243f_6a88_85a3_08d3)
    }

    /// From 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of a standard normal distribution, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let angle = std::f64::consts::TAU * self.uniform();
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_spread_of_the_histogram() {
        let mut of = Histogram::default();
        (1..=100_000).for_each(|value| of.add(value));
        let (table, mut random) = (Table::of(&of), Random::new());
        let (mut drawn, mut normal) = (crate::Moments::default(), crate::Moments::default());
        // A distance from the mean of a normal draw may be negative, which moments take.
        (0..1_000_000).for_each(|_| {
            drawn.add(table.draw(&mut random));
            normal.add(random.normal());
        });
        for (found, wanted) in
            [(table.mean, of.moments.mean()), (drawn.mean(), table.mean), (drawn.sd(), table.sd)]
        {
            assert!((found / wanted - 1.0).abs() < 0.01, "{found} {wanted}");
        }
        assert!(normal.mean().abs() < 0.01 && (normal.sd() - 1.0).abs() < 0.01, "{normal:?}");
    }
}
