//! What a replay measured, as a table, JSON and CSV.
//!
//! The time of a phase is from its first process's begin to its last one's end; rates are bytes by that time. A phase is over
//! when its slowest process is: that process's time stands beside the mean.
//!
//! Invariant: a figure that is not known is null or `-`, never 0.
//! Callers: `replay`, the command line.

use super::board::{Board, CLASSES, CacheWords, Class, Record};
use forebay_ensemble::histogram::quantile;
use forebay_workload::language::Workload;
use serde_json::{Value, json};
use std::fmt::Write;

/// Results of all phases, in the order of jobs, phases and repetitions.
#[derive(Clone, Debug)]
pub struct Played {
    /// Each repetition of each phase that somebody took part in.
    pub phases: Vec<PhaseResult>,
    /// What the figures do not mean.
    pub notes: Vec<String>,
}

/// One repetition of a phase.
#[derive(Clone, Debug)]
pub struct PhaseResult {
    /// Number of the job.
    pub job: u32,
    /// Its name.
    pub job_name: String,
    /// Number of the phase.
    pub phase: u32,
    /// Its name.
    pub name: String,
    /// The repetition, from 0.
    pub repeat: u32,
    /// What each process did, by process; those that took no part are left out.
    pub processes: Vec<(u32, Record)>,
    /// Durations by class, over all repetitions of the phase.
    pub latency: [Vec<u64>; CLASSES],
    /// The page cache before a phase that reads.
    pub before: CacheWords,
    /// The page cache after a phase that writes.
    pub after: CacheWords,
}

const MIB: f64 = (1 << 20) as f64;

impl PhaseResult {
    fn sum(&self, value: impl Fn(&Record) -> u64) -> u64 {
        self.processes.iter().map(|(_, record)| value(record)).sum()
    }

    /// When the first process began it, CLOCK_MONOTONIC.
    pub fn begin_ns(&self) -> u64 {
        self.processes.iter().map(|(_, record)| record.begin_ns).min().unwrap_or(0)
    }

    /// From the first begin to the last end, in seconds; at least a nanosecond.
    pub fn time_s(&self) -> f64 {
        let end = self.processes.iter().map(|(_, record)| record.end_ns).max().unwrap_or(0);
        end.saturating_sub(self.begin_ns()).max(1) as f64 / 1e9
    }

    /// Time of each process, in seconds.
    pub fn process_times_s(&self) -> Vec<f64> {
        let time = |record: &Record| record.end_ns.saturating_sub(record.begin_ns) as f64 / 1e9;
        self.processes.iter().map(|(_, record)| time(record)).collect()
    }

    /// The slowest process, and its time in seconds.
    pub fn slowest(&self) -> (u32, f64) {
        let times = self.process_times_s();
        let pairs = self.processes.iter().map(|(process, _)| *process).zip(times);
        pairs.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
    }

    /// Bytes read, or written.
    pub fn bytes(&self, written: bool) -> u64 {
        self.sum(|record| record.bytes[usize::from(written)])
    }

    /// Operations of a class.
    pub fn calls(&self, class: Class) -> u64 {
        self.sum(|record| record.calls[class as usize])
    }

    /// Time that processes spent in operations of a class, together, in seconds.
    pub fn busy_s(&self, class: Class) -> f64 {
        self.sum(|record| record.busy_ns[class as usize]) as f64 / 1e9
    }

    /// All operations.
    pub fn all_calls(&self) -> u64 {
        Class::ALL.iter().map(|class| self.calls(*class)).sum()
    }

    /// Transfers that did not read what was written.
    pub fn differences(&self) -> u64 {
        self.sum(|record| record.differences)
    }

    /// The rate of the slowest process in bytes/s, times the processes: what a phase that all wait for is worth, and how
    /// checkpoints are scored. None if nothing moved.
    pub fn rate_of_slowest(&self) -> Option<f64> {
        let rates = self.processes.iter().filter_map(|(_, record)| {
            let bytes = record.bytes[0] + record.bytes[1];
            let ns = record.end_ns.saturating_sub(record.begin_ns).max(1);
            (bytes > 0).then(|| bytes as f64 * 1e9 / ns as f64)
        });
        rates.min_by(f64::total_cmp).map(|rate| rate * self.processes.len() as f64)
    }

    /// The duration that a share of a class's operations did not exceed, in seconds.
    pub fn latency_s(&self, class: Class, share: f64) -> Option<f64> {
        quantile(&self.latency[class as usize], share).map(|ns| ns / 1e9)
    }

    /// The class of most operations of the phase: transfers before names.
    pub fn main_class(&self) -> Class {
        let transfers = [Class::Read, Class::Write];
        let moved = transfers.into_iter().max_by_key(|class| self.calls(*class));
        match moved.filter(|class| self.calls(*class) > 0) {
            Some(class) => class,
            None => {
                // Of as many the first one: an open before its close.
                let others = Class::ALL.into_iter().rev().max_by_key(|class| self.calls(*class));
                others.unwrap_or(Class::Names)
            }
        }
    }

    /// What may be said of the page cache.
    pub fn cache_word(&self) -> String {
        let percent = |part: u64, total: u64| 100.0 * part as f64 / total.max(1) as f64;
        match (self.before.kind, self.after.kind) {
            (1, _) if self.before.total == 0 => "-".into(),
            (1, _) if self.before.resident == 0 => "cold".into(),
            (0, 1) if self.after.total == 0 => "-".into(),
            (1, _) => format!("{:.0}% cached", percent(self.before.resident, self.before.total)),
            (2, _) | (0, 2) => "memory".into(),
            (0, 1) if self.after.dirty != u64::MAX => {
                format!("{:.0}% unwritten", percent(self.after.dirty, self.after.total))
            }
            (0, 0) => "-".into(),
            _ => "unknown".into(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let time_s = self.time_s();
        let (slowest, slowest_s) = self.slowest();
        let times = self.process_times_s();
        let mean_s = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let classes: serde_json::Map<String, Value> = Class::ALL
            .iter()
            // Of what many calls moved unseen there are bytes and time, and no number.
            .filter(|class| self.calls(**class) > 0 || self.busy_s(**class) > 0.0)
            .map(|&class| {
                let value = json!({
                    "calls": self.calls(class),
                    "busy_s": self.busy_s(class),
                    "calls_per_s": self.calls(class) as f64 / time_s,
                    "latency_s": {
                        "p50": self.latency_s(class, 0.5),
                        "p95": self.latency_s(class, 0.95),
                        "p99": self.latency_s(class, 0.99),
                        "max": self.latency_s(class, 1.0),
                    },
                });
                (class.word().to_string(), value)
            })
            .collect();
        json!({
            "job": self.job_name,
            "phase": self.name,
            "repetition": self.repeat,
            "processes": self.processes.len(),
            "time_s": time_s,
            "process_time_s": { "mean": mean_s, "max": slowest_s, "slowest": slowest },
            "read_bytes": self.bytes(false),
            "written_bytes": self.bytes(true),
            "read_bytes_per_s": rate(self.bytes(false), time_s),
            "written_bytes_per_s": rate(self.bytes(true), time_s),
            "slowest_times_processes_bytes_per_s": self.rate_of_slowest(),
            "operations": classes,
            "differences": self.differences(),
            "cache": self.cache_word(),
            "cache_before": cache_json(&self.before),
            "cache_after": cache_json(&self.after),
            "ranks": self.processes.iter().map(|(process, record)| json!({
                "process": process,
                "begin_ns": record.begin_ns,
                "end_ns": record.end_ns,
                "waited_ns": record.waited_ns,
                "read_bytes": record.bytes[0],
                "written_bytes": record.bytes[1],
                "calls": record.calls,
                "at_limit": record.at_limit,
                "at_limit_s": record.at_limit_ns as f64 / 1e9,
            })).collect::<Vec<_>>(),
        })
    }

    /// Its line of the table.
    pub fn table_line(&self) -> String {
        let time_s = self.time_s();
        let main = self.main_class();
        let rate = |bytes: u64| match rate(bytes, time_s) {
            Some(rate) => format!("{:.2}", rate / MIB),
            None => "-".into(),
        };
        let latency = |share| match self.latency_s(main, share) {
            Some(seconds) => format!("{seconds:.6}"),
            None => "-".into(),
        };
        format!(
            "{:<12} {:<20} {:>4} {:>5} {:>11.6} {:>11.6} {:>11} {:>11} {:>11.2} {:>10} {:>10} {:>10}  {}\n",
            cut(&self.job_name, 12),
            cut(&self.name, 20),
            self.repeat,
            self.processes.len(),
            time_s,
            self.slowest().1,
            rate(self.bytes(false)),
            rate(self.bytes(true)),
            self.all_calls() as f64 / time_s,
            latency(0.5),
            latency(0.99),
            latency(1.0),
            self.cache_word()
        )
    }
}

/// Bytes by seconds; None if there were none.
fn rate(bytes: u64, time_s: f64) -> Option<f64> {
    (bytes > 0).then(|| bytes as f64 / time_s)
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

fn cache_json(words: &CacheWords) -> Value {
    match words.kind {
        1 => json!({
            "pages": words.total,
            "resident": words.resident,
            "unwritten": (words.dirty != u64::MAX).then_some(words.dirty),
        }),
        2 => json!("memory"),
        3 => json!("unknown"),
        _ => Value::Null,
    }
}

/// The head of the table.
pub fn table_head() -> String {
    format!(
        "{:<12} {:<20} {:>4} {:>5} {:>11} {:>11} {:>11} {:>11} {:>11} {:>10} {:>10} {:>10}  {}\n",
        "job",
        "phase",
        "iter",
        "procs",
        "time(s)",
        "slowest(s)",
        "read(MiB/s)",
        "write(MiB/s)",
        "ops/s",
        "p50(s)",
        "p99(s)",
        "max(s)",
        "page cache"
    )
}

impl Played {
    pub(super) fn gather(workload: &Workload, board: &Board, notes: Vec<String>) -> Played {
        let mut phases = Vec::new();
        for (number, job) in workload.jobs.iter().enumerate() {
            let number = number as u32;
            for phase in 0..job.phase_count() {
                let latency = Class::ALL.map(|class| board.latency(number, phase, class));
                for repeat in 0..job.phase_repeat(phase) {
                    let processes: Vec<(u32, Record)> = (0..job.processes)
                        .map(|process| {
                            let record = board.record((number, job), (phase, repeat), process);
                            (process, record)
                        })
                        .filter(|(_, record)| record.begin_ns > 0)
                        .collect();
                    if processes.is_empty() {
                        continue;
                    }
                    phases.push(PhaseResult {
                        job: number,
                        job_name: job.name.clone(),
                        phase,
                        name: job.phase_name(phase).to_string(),
                        repeat,
                        processes,
                        latency: latency.clone(),
                        before: board.cache(number, (phase, repeat), false),
                        after: board.cache(number, (phase, repeat), true),
                    });
                }
            }
        }
        Played { phases, notes }
    }

    /// Transfers that did not compare.
    pub fn differences(&self) -> u64 {
        self.phases.iter().map(PhaseResult::differences).sum()
    }

    /// From the first phase's begin to the last one's end, in seconds.
    pub fn time_s(&self) -> f64 {
        let begin = self.phases.iter().map(PhaseResult::begin_ns).min().unwrap_or(0);
        let ends = self.phases.iter().flat_map(|phase| &phase.processes);
        let end = ends.map(|(_, record)| record.end_ns).max().unwrap_or(0);
        end.saturating_sub(begin).max(1) as f64 / 1e9
    }

    /// As CSV.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "job,phase,iter,procs,time(s),slowest(s),read_bytes,written_bytes,operations,class,p50(s),p99(s),max(s),differences,cache\n",
        );
        for phase in &self.phases {
            let main = phase.main_class();
            let latency =
                |share| phase.latency_s(main, share).map_or(String::new(), |s| format!("{s:.9}"));
            let _ = writeln!(
                text,
                "{},{},{},{},{:.9},{:.9},{},{},{},{},{},{},{},{},{}",
                field(&phase.job_name),
                field(&phase.name),
                phase.repeat,
                phase.processes.len(),
                phase.time_s(),
                phase.slowest().1,
                phase.bytes(false),
                phase.bytes(true),
                phase.all_calls(),
                main.word(),
                latency(0.5),
                latency(0.99),
                latency(1.0),
                phase.differences(),
                phase.cache_word()
            );
        }
        text
    }
}

/// A field of CSV.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}
