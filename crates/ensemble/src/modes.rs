//! Modes: the peaks of a distribution over the logarithm of the value. Separate peaks are separate
//! classes of service: cache and device, one sharer and several, with a lock and without.
//!
//! A peak counts if the valley to a higher one is deeper than chance makes it, and enough values are in it.

use crate::histogram::{BUCKETS_PER_OCTAVE, Histogram, middle};

/// Least share of all values that a mode has.
const SHARE_MIN: f64 = 0.01;
/// Least number of values in it.
const COUNT_MIN: f64 = 8.0;
/// How many standard deviations of counting a valley is below the lower of its two peaks.
const DEPTH_SD: f64 = 4.0;
/// And at least how deep it is, as a share of that peak.
const DEPTH_MIN: f64 = 0.2;
/// A hill is what is higher than this share of its top.
const HILL: f64 = 0.5;
/// Its middle is its peak if it is at least so high; else the hill is not even, and the top is.
const MIDDLE_MIN: f64 = 0.9;
/// How many standard deviations of counting a place is below the fullest one of its hill before it is a valley.
const DIP_SD: f64 = 1.5;
/// Width of the smoothing kernel, in buckets (standard deviation), for this many values; less data, more.
const KERNEL: (f64, f64) = (1.6, 20_000.0);
const KERNEL_MAX: f64 = 6.0;

/// A peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mode {
    /// Where it is: the middle of the bucket of its peak.
    pub value: f64,
    /// From where to where it goes: the valleys, or the ends.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// Share of all values between these.
    pub share: f64,
    /// Number of values between these.
    pub count: u64,
}

/// The modes of a distribution, from the least value to the greatest. At least one if there are values.
pub fn modes(of: &Histogram) -> Vec<Mode> {
    let counts: Vec<f64> = of.buckets().map(|(_, _, count)| count as f64).collect();
    let total = of.count() as f64;
    if total == 0.0 {
        return Vec::new();
    }
    let width = width_for(total);
    let smooth = smoothed(&counts, width);
    let mut cuts = valleys(&smooth, width);
    // What is too small belongs to the neighbour with the higher valley between.
    loop {
        let parts = parts(&cuts, counts.len());
        let mass = |(from, to): (usize, usize)| counts[from..to].iter().sum::<f64>();
        let small = parts.iter().position(|part| {
            parts.len() > 1 && (mass(*part) < SHARE_MIN * total || mass(*part) < COUNT_MIN)
        });
        let Some(at) = small else {
            return parts.into_iter().map(|part| mode(part, &counts, total)).collect();
        };
        let (left, right) = (at.checked_sub(1), (at < cuts.len()).then_some(at));
        let gone = match (left, right) {
            (Some(left), Some(right)) if smooth[cuts[left]] < smooth[cuts[right]] => right,
            (Some(left), _) => left,
            (None, Some(right)) => right,
            (None, None) => return Vec::new(),
        };
        cuts.remove(gone);
    }
}

fn parts(cuts: &[usize], end: usize) -> Vec<(usize, usize)> {
    let begins = [0].into_iter().chain(cuts.iter().copied());
    begins.zip(cuts.iter().copied().chain([end])).collect()
}

/// Width of the kernel for so many values.
fn width_for(values: f64) -> f64 {
    (KERNEL.0 * (KERNEL.1 / values.max(1.0)).powf(0.2)).clamp(KERNEL.0, KERNEL_MAX)
}

/// Counts with a normal kernel over them.
fn smoothed(counts: &[f64], width: f64) -> Vec<f64> {
    let reach = (4.0 * width).ceil() as i64;
    let kernel: Vec<f64> =
        (-reach..=reach).map(|d| (-0.5 * (d as f64 / width).powi(2)).exp()).collect();
    let sum: f64 = kernel.iter().sum();
    let mut smooth = vec![0.0; counts.len()];
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
        for (step, weight) in kernel.iter().enumerate() {
            let to = at as i64 + step as i64 - reach;
            if let Some(place) = usize::try_from(to).ok().and_then(|to| smooth.get_mut(to)) {
                *place += count * weight / sum;
            }
        }
    }
    smooth
}

/// The valleys that are deep enough, by taking away the shallowest until all are.
fn valleys(smooth: &[f64], width: f64) -> Vec<usize> {
    // Peaks and the lowest place between each two.
    let mut peaks: Vec<usize> = Vec::new();
    for at in 0..smooth.len() {
        let before = if at == 0 { -1.0 } else { smooth[at - 1] };
        // A plateau counts at its begin.
        let after =
            smooth[at..].iter().find(|value| **value != smooth[at]).copied().unwrap_or(-1.0);
        if smooth[at] > 0.0 && smooth[at] > before && smooth[at] > after {
            peaks.push(at);
        }
    }
    let lowest = |from: usize, to: usize| {
        let middle = (from + to) / 2;
        let least = (from..=to).map(|at| smooth[at]).fold(f64::INFINITY, f64::min);
        // Of several, the one nearest to the middle: between peaks that are far apart there are only zeros.
        (from..=to)
            .filter(|at| smooth[*at] <= least)
            .min_by_key(|at| at.abs_diff(middle))
            .unwrap_or(middle)
    };
    let mut cuts: Vec<usize> = peaks.windows(2).map(|pair| lowest(pair[0], pair[1])).collect();
    // Values that a smoothed count rests on, for its error by chance.
    let values = 2.0 * std::f64::consts::PI.sqrt() * width;
    loop {
        let depth = |at: usize| {
            let (lower, valley) = (smooth[peaks[at]].min(smooth[peaks[at + 1]]), smooth[cuts[at]]);
            let chance = DEPTH_SD * ((lower + valley) / values).sqrt();
            (lower - valley) / chance.max(DEPTH_MIN * lower).max(f64::MIN_POSITIVE)
        };
        let shallow = (0..cuts.len()).map(|at| (depth(at), at)).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, at)) = shallow.filter(|(depth, _)| *depth < 1.0) else { return cuts };
        let lower = if smooth[peaks[at]] < smooth[peaks[at + 1]] { at } else { at + 1 };
        cuts.remove(at);
        peaks.remove(lower);
    }
}

fn mode((from, to): (usize, usize), counts: &[f64], total: f64) -> Mode {
    let mass: f64 = counts[from..to].iter().sum();
    let used = |at: &usize| counts[*at] > 0.0;
    let first = (from..to).find(used).unwrap_or(from);
    let last = (from..to).rev().find(used).unwrap_or(from);
    let half = 0.5 / f64::from(BUCKETS_PER_OCTAVE);
    Mode {
        value: middle((first + peak(&counts[first..=last])) as f64),
        from: middle(first as f64) / half.exp2(),
        to: middle(last as f64) * half.exp2(),
        share: mass / total,
        count: mass as u64,
    }
}

/// The bucket of the peak of a mode's buckets: the middle of the hill around the greatest smoothed count, since the top itself wanders
/// by chance on a wide hill. The median of all is no peak: it lies in the tail of a mode with a long one, and in the
/// valley of one with two tops.
fn peak(counts: &[f64]) -> usize {
    let smooth = smoothed(counts, width_for(counts.iter().sum()));
    let top = greatest(0..counts.len(), |at| smooth[at], counts.len() / 2);
    let on_hill = |at: &usize| smooth[*at] >= HILL * smooth[top];
    let begin = (0..=top).rev().take_while(on_hill).last().unwrap_or(top);
    let end = (top..counts.len()).take_while(on_hill).last().unwrap_or(top);
    let weights = (begin..=end).map(|at| (at as f64 * counts[at], counts[at]));
    let (moment, mass) = weights.fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let centre = if mass > 0.0 { (moment / mass).round() as usize } else { top };
    let centre = if smooth[centre] < MIDDLE_MIN * smooth[top] { top } else { centre };
    // Few values have a wide kernel, which makes one hill of two peaks.
    let beside = |at: usize| counts[at.saturating_sub(1)..(at + 2).min(counts.len())].iter().sum();
    let fullest = greatest(begin..end + 1, beside, centre);
    let (here, there) = (beside(centre), beside(fullest));
    let dip = there - here > DIP_SD * (there + here).sqrt();
    let at = if dip { fullest } else { centre };
    // Of three buckets side by side the fullest is what one sees as the peak.
    greatest(at.saturating_sub(1)..(at + 2).min(counts.len()), |at| counts[at], at)
}

/// The place of the greatest value; of several, the one nearest to `near`.
fn greatest(places: std::ops::Range<usize>, of: impl Fn(usize) -> f64, near: usize) -> usize {
    let most = places.clone().map(&of).fold(f64::NEG_INFINITY, f64::max);
    let full = places.filter(|at| of(*at) >= most);
    full.min_by_key(|at| at.abs_diff(near)).unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn normal(random: &mut StdRng) -> f64 {
        let angle = std::f64::consts::TAU * random.random::<f64>();
        (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt() * angle.cos()
    }

    /// Values of lognormal components: median, spread of the logarithm, weight.
    fn planted(components: &[(f64, f64, f64)], values: usize, random: &mut StdRng) -> Histogram {
        let mut histogram = Histogram::default();
        for _ in 0..values {
            let mut which = random.random::<f64>();
            let mut chosen = components[0];
            for component in components {
                chosen = *component;
                which -= component.2;
                if which < 0.0 {
                    break;
                }
            }
            histogram.add((chosen.0 * (chosen.1 * normal(random)).exp()) as u64);
        }
        histogram
    }

    #[test]
    fn planted_modes_are_found_where_they_are() {
        let mut random = StdRng::seed_from_u64(6);
        let mixtures: &[&[(f64, f64, f64)]] = &[
            &[(1e5, 0.3, 1.0)],
            &[(1e4, 0.2, 0.5), (1e6, 0.5, 0.5)],
            // A rare slow class.
            &[(1e6, 0.15, 0.98), (8e6, 0.15, 0.02)],
            // Harmonics: one, two and four sharers.
            &[(1e6, 0.12, 0.6), (2e6, 0.12, 0.3), (4e6, 0.12, 0.1)],
            &[(2e3, 0.2, 0.4), (5e4, 0.2, 0.3), (1e6, 0.3, 0.28), (9e7, 0.3, 0.02)],
        ];
        for (number, mixture) in mixtures.iter().enumerate() {
            for values in [5_000, 50_000] {
                let found = modes(&planted(mixture, values, &mut random));
                assert_eq!(found.len(), mixture.len(), "{number} of {values}: {found:?}");
                for (mode, (value, _, weight)) in found.iter().zip(*mixture) {
                    assert!((mode.value / value - 1.0).abs() < 0.1, "{number}: {mode:?} {value}");
                    assert!((mode.share - weight).abs() < 0.03, "{number}: {mode:?} {weight}");
                    assert!(mode.from <= mode.value && mode.value <= mode.to);
                }
            }
        }
    }

    /// Values in the middles of buckets, from one bucket on.
    fn filled(first: usize, counts: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for (at, count) in counts.iter().enumerate() {
            (0..*count).for_each(|_| histogram.add(middle((first + at) as f64) as u64));
        }
        histogram
    }

    #[test]
    fn a_mode_is_at_a_peak_and_not_in_a_valley() {
        // Two peaks that are one mode, as chance could make the valley: the median lies in it.
        let two = [20, 0, 1, 0, 1, 0, 1, 0, 0, 22];
        // More values in a long tail than in the peak: the median lies in the tail.
        let tail: Vec<u64> =
            [50, 150, 400, 150, 50].into_iter().chain(std::iter::repeat_n(15, 80)).collect();
        // Nothing at the place of the greatest smoothed count.
        let apart = [9, 0, 0, 0, 9];
        for (counts, wanted) in [(&two[..], vec![0, 9]), (&tail[..], vec![2]), (&apart, vec![0, 4])]
        {
            let found = modes(&filled(300, counts));
            assert!(!found.is_empty());
            for mode in &found {
                let at = crate::histogram::bucket_of(mode.value as u64) - 300;
                assert!(wanted.contains(&at), "{at} of {counts:?}: {found:?}");
            }
        }
    }

    #[test]
    fn one_mode_is_found_of_one() {
        let mut random = StdRng::seed_from_u64(7);
        let mut right = 0;
        for round in 0..100 {
            let values = [200, 2_000, 20_000][round % 3];
            let of = match round % 2 {
                0 => planted(&[(1e6, 0.1 + 0.008 * round as f64, 1.0)], values, &mut random),
                _ => {
                    let mut of = Histogram::default();
                    let mut draw = || -(1.0 - random.random::<f64>()).ln();
                    (0..values).for_each(|_| of.add((1e6 * draw()) as u64));
                    of
                }
            };
            right += usize::from(modes(&of).len() == 1);
        }
        assert!(right >= 95, "{right} of 100");
    }

    #[test]
    fn few_or_no_values_are_no_trouble() {
        assert!(modes(&Histogram::default()).is_empty());
        let mut one = Histogram::default();
        one.add(5_000);
        let found = modes(&one);
        assert!(found.len() == 1 && found[0].count == 1);
        assert!((found[0].value / 5_000.0 - 1.0).abs() < 0.05, "{found:?}");
    }
}
