//! Figures of a run, with IOR's definitions, and their forms: table, JSON, CSV.
//!
//! With MIN and MAX over ranks: open = MAX(open stop) - MIN(open start); wr/rd and close likewise; total =
//! MAX(close stop) - MIN(open start). IOR's headline bandwidth is bytes / total, so it includes opening and closing;
//! its IOPS divide by wr/rd alone. Both bandwidths are given here. Latency is of single transfers: their
//! percentiles over all ranks, not IOR's mean of the fastest rank.
//!
//! Invariants: JSON has full precision under IOR's keys, with further keys of ours; a figure that is not known is
//! null or `-`, never 0.
//! Callers: `ior`, the command line.

use crate::residency::Cache;
use crate::shared::Measured;
use forebay_ensemble::histogram::quantile;
use serde_json::{Value, json};
use std::fmt::Write;

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writes.
    Write,
    /// Reads what was written, and compares.
    WriteCheck,
    /// Reads.
    Read,
    /// Reads, and compares; the comparison is in the time.
    ReadCheck,
}

impl Access {
    /// Its name in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Access::Write => "write",
            Access::WriteCheck => "writecheck",
            Access::Read => "read",
            Access::ReadCheck => "readcheck",
        }
    }

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        self == Access::Write
    }

    /// Whether it compares.
    pub fn checks(self) -> bool {
        matches!(self, Access::WriteCheck | Access::ReadCheck)
    }
}

/// Where the ranks stood at the deadline of `-D`.
#[derive(Clone, Debug, PartialEq)]
pub struct Stonewall {
    /// Bytes that all ranks had moved.
    pub total_bytes: u64,
    /// Bytes of the rank that had moved least.
    pub least_bytes: u64,
    /// When the last rank met it, in seconds from its first transfer.
    pub time_s: f64,
}

impl Stonewall {
    /// From what the ranks noted.
    pub fn of(ranks: &[Measured]) -> Stonewall {
        let bytes = || ranks.iter().map(|rank| rank.at_deadline_bytes);
        let last_ns = ranks.iter().map(|rank| rank.at_deadline_ns).max().unwrap_or(0);
        Stonewall {
            total_bytes: bytes().sum(),
            least_bytes: bytes().min().unwrap_or(0),
            time_s: last_ns as f64 / 1e9,
        }
    }
}

/// One phase.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What was done.
    pub access: Access,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// What each rank measured, by rank.
    pub ranks: Vec<Measured>,
    /// Durations of all transfers, in the buckets of `forebay_ensemble::histogram`.
    pub latency: Vec<u64>,
    /// Transfers that did not compare.
    pub differences: u64,
    /// With `-D`.
    pub stonewall: Option<Stonewall>,
    /// The page cache before a read.
    pub before: Option<Cache>,
    /// The page cache after the phase.
    pub after: Cache,
}

/// The times and rates of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Bytes moved.
    pub bytes: u64,
    /// Transfers.
    pub transfers: u64,
    /// From the first open's start to the last one's end, in seconds.
    pub open_s: f64,
    /// The same of the transfers.
    pub move_s: f64,
    /// The same of the closes.
    pub close_s: f64,
    /// From the first open's start to the last close's end.
    pub total_s: f64,
}

impl Figures {
    /// Bytes by the whole time: IOR's bandwidth, in bytes/s.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.total_s
    }

    /// Bytes by the time of the transfers alone, in bytes/s.
    pub fn move_bandwidth(&self) -> f64 {
        self.bytes as f64 / self.move_s
    }

    /// Transfers by the time of the transfers, per second.
    pub fn iops(&self) -> f64 {
        self.transfers as f64 / self.move_s
    }
}

const MIB: f64 = (1 << 20) as f64;

impl Phase {
    /// Times and rates over all ranks.
    pub fn figures(&self) -> Figures {
        let first = |stamp: usize| self.ranks.iter().map(|r| r.stamps_ns[stamp]).min().unwrap_or(0);
        let last = |stamp: usize| self.ranks.iter().map(|r| r.stamps_ns[stamp]).max().unwrap_or(0);
        let between = |start: usize, stop: usize| {
            // A phase shorter than the clock's step still took some time.
            last(stop).saturating_sub(first(start)).max(1) as f64 / 1e9
        };
        Figures {
            bytes: self.ranks.iter().map(|rank| rank.bytes).sum(),
            transfers: self.ranks.iter().map(|rank| rank.transfers).sum(),
            open_s: between(0, 1),
            move_s: between(2, 3),
            close_s: between(4, 5),
            total_s: between(0, 5),
        }
    }

    /// A percentile of the transfers' durations, in seconds.
    pub fn latency_s(&self, share: f64) -> Option<f64> {
        quantile(&self.latency, share).map(|ns| ns / 1e9)
    }

    /// IOR's "latency", in seconds: of the process for which it is least, its time in transfers by their number. It is no latency
    /// of a transfer, but scripts that read IOR's results know the key.
    pub fn ior_latency_s(&self) -> Option<f64> {
        let of = |rank: &Measured| {
            let time_ns = rank.stamps_ns[3].saturating_sub(rank.stamps_ns[2]);
            time_ns as f64 / 1e9 / rank.transfers as f64
        };
        self.ranks.iter().filter(|rank| rank.transfers > 0).map(of).reduce(f64::min)
    }

    /// What may be said of the page cache: of a read what was in it before, of a write what it still holds back.
    pub fn cache_word(&self) -> String {
        let percent = |part: u64, total: u64| {
            if total == 0 { 0.0 } else { 100.0 * part as f64 / total as f64 }
        };
        match (self.before, self.after) {
            (Some(Cache::Seen(pages)), _) if pages.resident == 0 => "cold".into(),
            (Some(Cache::Seen(pages)), _) => {
                format!("{:.0}% cached", percent(pages.resident, pages.total))
            }
            (None, Cache::Seen(pages)) => match pages.dirty {
                Some(dirty) => format!("{:.0}% unwritten", percent(dirty, pages.total)),
                None => "unknown".into(),
            },
            (Some(Cache::Memory), _) | (None, Cache::Memory) => "memory".into(),
            (Some(Cache::Unseen), _) | (None, Cache::Unseen) => "unknown".into(),
        }
    }

    /// As JSON: IOR's keys first, then ours.
    pub fn json(&self) -> Value {
        let figures = self.figures();
        let bytes_per_second = figures.bandwidth();
        json!({
            "access": self.access.word(),
            "bwMiB": bytes_per_second / MIB,
            "blockKiB": self.block_bytes as f64 / 1024.0,
            "xferKiB": self.transfer_bytes as f64 / 1024.0,
            "iops": figures.iops(),
            "latency": self.ior_latency_s(),
            "openTime": figures.open_s,
            "wrRdTime": figures.move_s,
            "closeTime": figures.close_s,
            "totalTime": figures.total_s,
            "repetition": self.repetition,
            "bytes": figures.bytes,
            "transfers": figures.transfers,
            "bandwidth_bytes_per_s": bytes_per_second,
            "transfer_bandwidth_bytes_per_s": figures.move_bandwidth(),
            "latency_s": {
                "p50": self.latency_s(0.5),
                "p95": self.latency_s(0.95),
                "p99": self.latency_s(0.99),
                "max": self.latency_s(1.0),
            },
            "differences": self.differences,
            "cache": self.cache_word(),
            "cache_before": self.before.map(cache_json),
            "cache_after": cache_json(self.after),
            "stonewall": self.stonewall.as_ref().map(|wall| json!({
                "bytes": wall.total_bytes,
                "least_bytes": wall.least_bytes,
                "time_s": wall.time_s,
            })),
            "ranks": self.ranks.iter().enumerate().map(|(rank, measured)| json!({
                "rank": rank,
                "stamps_ns": measured.stamps_ns,
                "transfers": measured.transfers,
                "bytes": measured.bytes,
            })).collect::<Vec<_>>(),
        })
    }
}

fn cache_json(cache: Cache) -> Value {
    match cache {
        Cache::Seen(pages) => json!({
            "pages": pages.total, "resident": pages.resident, "unwritten": pages.dirty,
        }),
        Cache::Memory => json!("memory"),
        Cache::Unseen => json!("unknown"),
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its phases, in order.
    pub phases: Vec<Phase>,
}

/// Largest, least, mean and standard deviation (of a population, as IOR's) of some repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Largest.
    pub max: f64,
    /// Least.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
}

impl Summary {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Some(Summary {
            max: values.iter().copied().reduce(f64::max)?,
            min: values.iter().copied().reduce(f64::min)?,
            mean,
            sd: variance.sqrt(),
        })
    }
}

/// The head of the table.
pub fn table_head() -> String {
    format!(
        "{:<10} {:>11} {:>11} {:>11} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>4}  {}\n",
        "access",
        "bw(MiB/s)",
        "data(MiB/s)",
        "IOPS",
        "p50(s)",
        "p99(s)",
        "max(s)",
        "xfer(KiB)",
        "open(s)",
        "wr/rd(s)",
        "close(s)",
        "total(s)",
        "iter",
        "page cache"
    )
}

impl Phase {
    /// Its line of the table.
    pub fn table_line(&self) -> String {
        let figures = self.figures();
        let latency = |quantile| match self.latency_s(quantile) {
            Some(seconds) => format!("{seconds:.6}"),
            None => "-".into(),
        };
        format!(
            "{:<10} {:>11.2} {:>11.2} {:>11.2} {:>10} {:>10} {:>10} {:>10.2} {:>10.6} {:>10.6} {:>10.6} {:>10.6} {:>4}  {}\n",
            self.access.word(),
            figures.bandwidth() / MIB,
            figures.move_bandwidth() / MIB,
            figures.iops(),
            latency(0.5),
            latency(0.99),
            latency(1.0),
            self.transfer_bytes as f64 / 1024.0,
            figures.open_s,
            figures.move_s,
            figures.close_s,
            figures.total_s,
            self.repetition,
            self.cache_word()
        )
    }
}

impl Run {
    /// The summary of each kind of phase that IOR prints at the end; nothing for a single repetition.
    pub fn summary_table(&self) -> String {
        let mut text = format!(
            "{:<10} {:>12} {:>12} {:>12} {:>10} {:>12} {:>12}\n",
            "operation", "max(MiB/s)", "min(MiB/s)", "mean(MiB/s)", "sd", "mean(OPs)", "mean(s)"
        );
        for (access, phases) in self.by_access() {
            let of = |value: fn(&Figures) -> f64| {
                Summary::of(&phases.iter().map(|p| value(&p.figures())).collect::<Vec<_>>())
            };
            let (Some(bw), Some(ops), Some(time)) = (
                of(|f| f.bandwidth() / MIB),
                of(|f| f.transfers as f64 / f.total_s),
                of(|f| f.total_s),
            ) else {
                continue;
            };
            let _ = writeln!(
                text,
                "{:<10} {:>12.2} {:>12.2} {:>12.2} {:>10.2} {:>12.2} {:>12.6}",
                access.word(),
                bw.max,
                bw.min,
                bw.mean,
                bw.sd,
                ops.mean,
                time.mean
            );
        }
        text
    }

    /// The phases of each kind, in the order in which the kinds first came.
    pub fn by_access(&self) -> Vec<(Access, Vec<&Phase>)> {
        let mut kinds: Vec<(Access, Vec<&Phase>)> = Vec::new();
        for phase in &self.phases {
            match kinds.iter_mut().find(|(access, _)| *access == phase.access) {
                Some((_, phases)) => phases.push(phase),
                None => kinds.push((phase.access, vec![phase])),
            }
        }
        kinds
    }

    /// The summary as JSON, with IOR's keys.
    pub fn summary_json(&self) -> Vec<Value> {
        let summaries = self.by_access().into_iter().filter_map(|(access, phases)| {
            let of = |value: fn(&Figures) -> f64| {
                Summary::of(&phases.iter().map(|p| value(&p.figures())).collect::<Vec<_>>())
            };
            let bw = of(|f| f.bandwidth() / MIB)?;
            let ops = of(|f| f.transfers as f64 / f.total_s)?;
            let time = of(|f| f.total_s)?;
            Some(json!({
                "operation": access.word(),
                "repetitions": phases.len(),
                "blockSize": phases[0].block_bytes,
                "transferSize": phases[0].transfer_bytes,
                "numTasks": phases[0].ranks.len(),
                "bwMaxMIB": bw.max, "bwMinMIB": bw.min, "bwMeanMIB": bw.mean, "bwStdMIB": bw.sd,
                "OPsMax": ops.max, "OPsMin": ops.min, "OPsMean": ops.mean, "OPsSD": ops.sd,
                "MeanTime": time.mean,
            }))
        });
        summaries.collect()
    }

    /// IOR's CSV, with full precision and our columns behind.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter,data(MiB/s),p50(s),p99(s),max(s),cache\n",
        );
        for phase in &self.phases {
            let figures = phase.figures();
            let latency =
                |quantile| phase.latency_s(quantile).map_or(String::new(), |s| format!("{s:.9}"));
            let _ = writeln!(
                text,
                "{},{:.6},{:.6},{},{},{},{:.9},{:.9},{:.9},{:.9},{},{},{:.6},{},{},{},{}",
                phase.access.word(),
                figures.bandwidth() / MIB,
                figures.iops(),
                phase.ior_latency_s().map_or(String::new(), |s| format!("{s:.9}")),
                phase.block_bytes as f64 / 1024.0,
                phase.transfer_bytes as f64 / 1024.0,
                figures.open_s,
                figures.move_s,
                figures.close_s,
                figures.total_s,
                phase.ranks.len(),
                phase.repetition,
                figures.move_bandwidth() / MIB,
                latency(0.5),
                latency(0.99),
                latency(1.0),
                phase.cache_word()
            );
        }
        text
    }

    /// Transfers that did not compare, over all phases.
    pub fn differences(&self) -> u64 {
        self.phases.iter().map(|phase| phase.differences).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::Pages;

    fn rank(stamps_ns: [u64; 6], bytes: u64, transfers: u64) -> Measured {
        Measured {
            stamps_ns,
            transfers,
            bytes,
            differences: 0,
            at_deadline_bytes: 0,
            at_deadline_ns: 0,
        }
    }

    fn phase(ranks: Vec<Measured>) -> Phase {
        Phase {
            access: Access::Write,
            repetition: 0,
            block_bytes: 100,
            transfer_bytes: 10,
            ranks,
            latency: vec![0; forebay_ensemble::histogram::BUCKETS],
            differences: 0,
            stonewall: None,
            before: None,
            after: Cache::Memory,
        }
    }

    #[test]
    fn times_are_from_the_first_start_to_the_last_stop() {
        let s = 1_000_000_000;
        let phase = phase(vec![
            rank([0, s, s, 5 * s, 5 * s, 6 * s], 60, 6),
            rank([s, 2 * s, 2 * s, 9 * s, 9 * s, 10 * s], 40, 4),
            rank([s, 2 * s, 2 * s, 5 * s, 5 * s, 6 * s], 0, 0),
        ]);
        // Of the first one.
        assert_eq!(phase.ior_latency_s(), Some(4.0 / 6.0));
        let figures = phase.figures();
        assert_eq!(
            (figures.open_s, figures.move_s, figures.close_s, figures.total_s),
            (2.0, 8.0, 5.0, 10.0)
        );
        assert_eq!((figures.bandwidth(), figures.move_bandwidth()), (10.0, 12.5));
        assert_eq!(figures.iops(), 10.0 / 8.0);
    }

    #[test]
    fn a_phase_is_cold_only_if_the_cache_was_seen_empty() {
        let mut phase = phase(vec![rank([0; 6], 1, 1)]);
        phase.access = Access::Read;
        let seen = |resident| Some(Cache::Seen(Pages { total: 100, resident, dirty: Some(0) }));
        for (before, word) in [
            (seen(0), "cold"),
            (seen(37), "37% cached"),
            (Some(Cache::Memory), "memory"),
            (Some(Cache::Unseen), "unknown"),
        ] {
            phase.before = before;
            assert_eq!(phase.cache_word(), word);
        }
    }

    #[test]
    fn the_deviation_is_a_populations() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).expect("values");
        assert_eq!((summary.mean, summary.sd, summary.min, summary.max), (5.0, 2.0, 2.0, 9.0));
        assert_eq!(Summary::of(&[]), None);
    }
}
