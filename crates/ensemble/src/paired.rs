//! Medians and spreads of paired samples.
//!
//! A figure here is never one run: it is the median of the ratios of pairs of neighbouring
//! samples, with the 10th and 90th percentile and a confidence interval of the median. The
//! machine may be loaded; both halves of a pair see nearly the same load.
//!
//! Callers: `bench`, and the command line's `forebay bench compare` and `suite`.

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

/// Share of a sample that its process may have waited for a processor before the sample counts
/// as disturbed by other load.
const WAIT_SHARE_MAX: f64 = 0.05;
/// Pairs run at most for each pair wanted.
const ATTEMPTS_PER_PAIR: usize = 3;
/// Share of the wanted pairs below which disturbed ones are used too.
const UNDISTURBED_MIN: f64 = 0.25;

/// Collects pairs until enough of them are undisturbed.
///
/// A pair is disturbed if on either side the client waited for a processor during more than
/// [`WAIT_SHARE_MAX`] of its time: the same rule for both sides, which says nothing about how
/// fast either was. If nearly all pairs are disturbed, all are used; the row says so.
#[derive(Debug)]
pub struct Pairs {
    wanted: usize,
    ratios: Vec<(f64, bool)>,
}

impl Pairs {
    /// For `wanted` undisturbed pairs.
    pub fn new(wanted: usize) -> Pairs {
        Pairs { wanted, ratios: Vec::new() }
    }

    /// True while more pairs are to be run.
    pub fn more(&self) -> bool {
        self.undisturbed() < self.wanted
            && self.ratios.len() < self.wanted.saturating_mul(ATTEMPTS_PER_PAIR)
    }

    /// Pairs run so far.
    pub fn run(&self) -> usize {
        self.ratios.len()
    }

    /// Takes the pair's ratio, and per side the waited and the elapsed nanoseconds.
    pub fn take(&mut self, ratio: f64, waits: [(u64, u64); 2]) {
        let calm = |(waited, elapsed): (u64, u64)| waited as f64 <= WAIT_SHARE_MAX * elapsed as f64;
        self.ratios.push((ratio, waits.into_iter().all(calm)));
    }

    fn undisturbed(&self) -> usize {
        self.ratios.iter().filter(|(_, calm)| *calm).count()
    }

    /// The ratios to use, and whether they are the undisturbed ones.
    fn used(&self) -> (Vec<f64>, bool) {
        let enough = self.undisturbed() as f64 >= UNDISTURBED_MIN * self.wanted as f64;
        let chosen = self.ratios.iter().filter(|(_, calm)| *calm || !enough);
        (chosen.map(|(ratio, _)| *ratio).collect(), enough)
    }

    /// Summary of the ratios that are used, how many pairs were run, and whether the row had to
    /// use disturbed ones.
    pub fn summary(&self) -> Option<(Summary, usize, bool)> {
        let (ratios, calm) = self.used();
        Summary::of(&ratios).map(|summary| (summary, self.ratios.len(), !calm))
    }
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

    #[test]
    fn disturbed_pairs_are_run_again_and_left_out() {
        let mut pairs = Pairs::new(4);
        let mut turn = 0;
        while pairs.more() {
            // Every other pair is disturbed on one side, and then half as fast.
            let disturbed = turn % 2 == 1;
            let waits = [(0, 1000), (if disturbed { 500 } else { 10 }, 1000)];
            pairs.take(if disturbed { 0.5 } else { 1.0 }, waits);
            turn += 1;
        }
        let (summary, run, disturbed) = pairs.summary().unwrap();
        assert_eq!((summary.count, summary.p10, run, disturbed), (4, 1.0, 7, false));
    }

    #[test]
    fn where_all_pairs_are_disturbed_the_row_says_so() {
        let mut pairs = Pairs::new(4);
        while pairs.more() {
            pairs.take(0.9, [(900, 1000), (0, 1000)]);
        }
        let (summary, run, disturbed) = pairs.summary().unwrap();
        assert_eq!((summary.count, run, disturbed), (12, 12, true));
    }
}
