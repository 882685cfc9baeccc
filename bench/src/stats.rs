//! Medians and spreads of paired samples.
//!
//! A figure here is never one run: it is the median of the ratios of pairs of neighbouring
//! samples, with the 10th and 90th percentile and a confidence interval of the median. The
//! machine may be loaded; both halves of a pair see nearly the same load.

use serde::Serialize;

/// A sample of values, summarised.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct Summary {
    /// How many values.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Lower end of the 95 % confidence interval of the median, by order statistics.
    pub median_low: f64,
    /// Upper end of it.
    pub median_high: f64,
}

impl Summary {
    /// Summarises; `None` without values.
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.is_empty() {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = median_interval(sorted.len());
        Some(Summary {
            count: sorted.len(),
            median: quantile(&sorted, 0.5),
            p10: quantile(&sorted, 0.1),
            p90: quantile(&sorted, 0.9),
            median_low: sorted[low],
            median_high: sorted[high],
        })
    }
}

/// Quantile of sorted values by linear interpolation between the two nearest ranks.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Indices of the order statistics that hold the median with at least 95 %: the largest `k`
/// with P(Binomial(n, 1/2) < k) <= 0.025, and its mirror. For few values: the extremes.
fn median_interval(count: usize) -> (usize, usize) {
    let mut below = 0.0;
    let mut term = 0.5_f64.powi(count as i32);
    let mut low = 0;
    for k in 0..count {
        below += term;
        if below > 0.025 {
            break;
        }
        low = k + 1;
        term *= (count - k) as f64 / (k + 1) as f64;
    }
    let low = low.saturating_sub(1).min((count - 1) / 2);
    (low, count - 1 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!(summary.median, 3.0);
        assert!((summary.p10 - 1.4).abs() < 1e-9);
        assert!((summary.p90 - 4.6).abs() < 1e-9);
        assert!(Summary::of(&[]).is_none());
        assert_eq!(Summary::of(&[7.0]).unwrap().median_low, 7.0);
    }

    #[test]
    fn interval_of_the_median_is_the_binomial_one() {
        // Tables of the sign test: n = 10 gives the 2nd and 9th value, n = 41 the 14th and 28th.
        assert_eq!(median_interval(10), (1, 8));
        assert_eq!(median_interval(41), (13, 27));
        assert_eq!(median_interval(3), (0, 2));
    }
}
