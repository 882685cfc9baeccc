//! Bursts of writes, as a table that says what a burst buffer has to take: how many of which size, and how long nobody writes
//! after each. The columns are those of Table I of "On the role of burst buffers in leadership-class storage systems"
//! (Liu and others, MSST 2012).

use crate::timeline::Bin;
use serde::Serialize;

/// Bursts above this count, unless all are smaller.
const ABOVE_BYTES: u64 = 1 << 30;
/// Then those of at least this part of the greatest.
const ABOVE_SHARE: f64 = 0.1;
/// A pause ends a burst: at least this share of the run, and so many steps, but no more than so many seconds.
const PAUSE_SHARE: f64 = 0.02;
const PAUSE_STEPS: usize = 2;
const PAUSE_MAX_S: f64 = 1.0;
/// Bursts whose sizes differ by no more are one row.
const ALIKE: f64 = 1.25;
/// Bursts that are listed one by one.
const LISTED: usize = 1_000;

/// A burst.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Burst {
    /// Begin.
    pub from_s: f64,
    /// End.
    pub to_s: f64,
    /// Bytes written in it.
    pub written_bytes: u64,
    /// Seconds to the next one; none after the last.
    pub idle_s: Option<f64>,
}

/// Bursts of one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BurstRow {
    /// How many.
    pub count: u64,
    /// Mean size.
    pub burst_bytes: u64,
    /// The same for each node.
    pub node_bytes: u64,
    /// Median of the seconds in which nobody writes after it; none if only the end comes after it.
    pub idle_s: Option<f64>,
    /// Mean rate in it, bytes a second.
    pub bytes_per_s: f64,
}

/// The table.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Bursts {
    /// Nodes.
    pub nodes: u64,
    /// Only bursts above this count.
    pub above_bytes: u64,
    /// Bytes written in all bursts, the smaller ones too.
    pub written_bytes: u64,
    /// The table, greatest bursts first.
    pub rows: Vec<BurstRow>,
    /// The bursts themselves, up to 1,000.
    pub bursts: Vec<Burst>,
}

impl Bursts {
    /// Of the steps of a timeline.
    pub fn of(steps: &[Bin], step_s: f64, nodes: u64) -> Bursts {
        let all = found(steps, step_s);
        let greatest = all.iter().map(|burst| burst.written_bytes).max().unwrap_or(0);
        let above_bytes = ABOVE_BYTES.min((greatest as f64 * ABOVE_SHARE) as u64);
        let mut kept: Vec<Burst> =
            all.iter().copied().filter(|burst| burst.written_bytes > above_bytes).collect();
        // Smaller ones between are part of the pause: nobody needs a buffer for them.
        for at in 0..kept.len() {
            kept[at].idle_s = kept.get(at + 1).map(|next| (next.from_s - kept[at].to_s).max(0.0));
        }
        let mut by_size = kept.clone();
        by_size.sort_by_key(|burst| std::cmp::Reverse(burst.written_bytes));
        let mut rows: Vec<Vec<Burst>> = Vec::new();
        for burst in by_size {
            match rows.last_mut() {
                Some(row) if row[0].written_bytes as f64 <= ALIKE * burst.written_bytes as f64 => {
                    row.push(burst);
                }
                _ => rows.push(vec![burst]),
            }
        }
        let written_bytes = all.iter().map(|burst| burst.written_bytes).sum();
        let rows = rows.iter().map(|row| one_row(row, nodes)).collect();
        kept.truncate(LISTED);
        Bursts { nodes, above_bytes, written_bytes, rows, bursts: kept }
    }
}

fn found(steps: &[Bin], step_s: f64) -> Vec<Burst> {
    let share = (steps.len() as f64 * PAUSE_SHARE).min(PAUSE_MAX_S / step_s) as usize;
    let pause = share.max(PAUSE_STEPS);
    let mut bursts: Vec<(usize, usize, f64)> = Vec::new();
    for (at, step) in steps.iter().enumerate().filter(|(_, step)| step.written_bytes > 0.0) {
        match bursts.last_mut() {
            Some(burst) if at < burst.1 + pause => {
                burst.1 = at + 1;
                burst.2 += step.written_bytes;
            }
            _ => bursts.push((at, at + 1, step.written_bytes)),
        }
    }
    let each = |(from, to, bytes): &(usize, usize, f64)| Burst {
        from_s: *from as f64 * step_s,
        to_s: *to as f64 * step_s,
        written_bytes: bytes.round() as u64,
        idle_s: None,
    };
    bursts.iter().map(each).collect()
}

fn one_row(bursts: &[Burst], nodes: u64) -> BurstRow {
    let count = bursts.len() as u64;
    let total: u64 = bursts.iter().map(|burst| burst.written_bytes).sum();
    let seconds: f64 = bursts.iter().map(|burst| burst.to_s - burst.from_s).sum();
    let mut idle: Vec<f64> = bursts.iter().filter_map(|burst| burst.idle_s).collect();
    idle.sort_by(f64::total_cmp);
    BurstRow {
        count,
        burst_bytes: total / count.max(1),
        node_bytes: total / count.max(1) / nodes.max(1),
        idle_s: idle.get(idle.len() / 2).copied(),
        bytes_per_s: total as f64 / seconds.max(1e-9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_counted_by_size_with_the_pauses_after_them() {
        // 3 of 8 GiB, each 10 steps of 0.1 s long and 40 steps apart, a small write in a pause, then one of 2 GiB.
        let mut steps = vec![Bin::default(); 400];
        for burst in 0..3 {
            for at in 0..10 {
                steps[20 + burst * 50 + at].written_bytes = 0.8 * f64::from(1 << 30);
            }
        }
        steps[50].written_bytes = 1e3;
        for step in &mut steps[300..310] {
            step.written_bytes = 0.2 * f64::from(1 << 30);
        }
        let table = Bursts::of(&steps, 0.1, 4);
        assert_eq!((table.rows.len(), table.above_bytes), (2, (0.8 * f64::from(1 << 30)) as u64));
        let big = table.rows[0];
        assert_eq!((big.count, big.burst_bytes >> 30, big.node_bytes >> 30), (3, 8, 2));
        assert!((big.idle_s.unwrap_or(0.0) - 4.0).abs() < 1e-6, "{big:?}");
        assert!((big.bytes_per_s / f64::from(1 << 30) - 8.0).abs() < 1e-6, "{big:?}");
        let last = table.rows[1];
        assert_eq!((last.count, last.burst_bytes >> 30, last.idle_s), (1, 2, None));
        assert_eq!(table.written_bytes, (26 << 30) + 1_000);
        assert!(Bursts::of(&[], 0.1, 1).rows.is_empty());
    }
}
