//! The period of a series of amounts in equal steps of time, by its correlation with itself.

/// Least correlation that is called a period.
const CONFIDENCE_MIN: f64 = 0.3;
/// A period must come so often in the series.
const TIMES_MIN: usize = 3;

/// A period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Period {
    /// Steps from one burst to the next.
    pub steps: f64,
    /// Correlation of the series with itself so much later: 1 if all bursts are alike.
    pub confidence: f64,
}

/// The shortest lag at which a series is like itself, if there is one.
pub fn period(series: &[f64]) -> Option<Period> {
    let count = series.len();
    let mean = series.iter().sum::<f64>() / count.max(1) as f64;
    let centred: Vec<f64> = series.iter().map(|value| value - mean).collect();
    let power: f64 = centred.iter().map(|value| value * value).sum();
    if count < 2 * TIMES_MIN || power <= 0.0 {
        return None;
    }
    let at_lag = |lag: usize| {
        let sum: f64 = centred.iter().zip(&centred[lag..]).map(|(a, b)| a * b).sum();
        // As if all of the series was there.
        sum / power * count as f64 / (count - lag) as f64
    };
    let lags: Vec<f64> = (0..=count / TIMES_MIN).map(at_lag).collect();
    // After the first fall below 0: a burst is like itself a moment later.
    let begin = lags.iter().position(|value| *value < 0.0)?;
    let greatest = lags[begin..].iter().copied().fold(f64::MIN, f64::max);
    if greatest < CONFIDENCE_MIN {
        return None;
    }
    // The top of the first hill that is nearly as high as the highest: multiples of a period are as good.
    let first = (begin.max(1)..lags.len()).find(|lag| lags[*lag] >= 0.8 * greatest)?;
    // What goes on within a burst makes ripples on it.
    let hill = (first..lags.len()).take_while(|lag| lags[*lag] >= 0.4 * greatest);
    let lag = hill.max_by(|a, b| lags[*a].total_cmp(&lags[*b]))?;
    let (before, here) = (lags[lag - 1], lags[lag]);
    let after = lags.get(lag + 1).copied().unwrap_or(before);
    let bend = before - 2.0 * here + after;
    let shift = if bend < 0.0 { (0.5 * (before - after) / bend).clamp(-0.5, 0.5) } else { 0.0 };
    Some(Period { steps: lag as f64 + shift, confidence: here.min(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn a_planted_period_is_found_within_two_percent() {
        let mut random = StdRng::seed_from_u64(8);
        for wanted in [20.0, 57.3, 400.0] {
            let series: Vec<f64> = (0..4096)
                .map(|at| {
                    let within = (f64::from(at) % wanted) / wanted;
                    let burst = if within < 0.2 { 100.0 } else { 0.0 };
                    burst * (0.7 + 0.6 * random.random::<f64>()) + random.random::<f64>()
                })
                .collect();
            let found = period(&series).unwrap();
            assert!((found.steps / wanted - 1.0).abs() < 0.02, "{found:?} {wanted}");
            assert!(found.confidence > 0.7, "{found:?}");
        }
    }

    #[test]
    fn what_has_no_period_gets_none() {
        let mut random = StdRng::seed_from_u64(9);
        let noise: Vec<f64> = (0..4096).map(|_| random.random()).collect();
        assert_eq!(period(&noise), None);
        let ramp: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(period(&ramp), None);
        assert_eq!((period(&[]), period(&[1.0; 100])), (None, None));
    }
}
