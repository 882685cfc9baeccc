//! `forebay report`: what a trace says, as distributions and findings. Reads the files of a trace twice, block by
//! block, and keeps tables whose size does not grow with the number of events.
//!
//! Invariants: a part of a trace that cannot be read is named in [`Report::problems`], and the rest is reported;
//! numbers in findings are those of [`Report`], not estimates without a source.
//! Called by `crates/cli`; the statistics are in `crates/ensemble`.

mod advice;
mod assemble;
mod buffers;
mod bursts;
mod convoy;
mod findings;
mod gather;
mod html;
mod lanes;
pub mod load;
mod text;
pub mod timeline;

pub use advice::Advice;
pub use buffers::{BufferFile, BufferSeen, BufferStep, Kind as BufferKind, StallSeen};
pub use bursts::{Burst, BurstRow, Bursts};
pub use findings::Finding;
pub use html::{Run, html};
pub use lanes::Lanes;
pub use text::text;

use serde::Serialize;
use std::path::PathBuf;

/// Version of the JSON.
pub const REPORT_VERSION: u32 = 1;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A directory or file cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Nothing in it can be read as a trace.
    #[error("no trace in {}{}", listed(places), because(file.as_deref(), why))]
    Nothing {
        /// Where it was looked for.
        places: Vec<PathBuf>,
        /// The file there that is no trace, if it is known.
        file: Option<PathBuf>,
        /// What was wrong with what is there, or nothing.
        why: String,
    },
}

/// Places, as people read them.
pub fn listed(places: &[PathBuf]) -> String {
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn because(file: Option<&std::path::Path>, why: &str) -> String {
    match (file, why) {
        (Some(file), why) => format!(": {}: {why}", file.display()),
        (None, "") => String::new(),
        (None, why) => format!(": {why}"),
    }
}

/// What is taken in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Also files of the system (/usr, /etc, /proc ...), pipes, sockets, terminals and other devices.
    pub all_files: bool,
}

/// What a trace says. Times are seconds, from the begin of the first process.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`REPORT_VERSION`]
    pub version: u32,
    /// Commands of the runs.
    pub commands: Vec<String>,
    /// Number of processes that have a trace.
    pub processes: u64,
    /// Processes that did not end by themselves: killed, or running still.
    pub killed: u64,
    /// Hosts.
    pub hosts: u64,
    /// Tasks: ranks if a launcher gave ranks, else processes that did I/O.
    pub tasks: u64,
    /// True if tasks are ranks.
    pub ranks: bool,
    /// Calls that were read from the trace.
    pub events: u64,
    /// Calls on files that are left out (see [`Options::all_files`]).
    pub left_out: u64,
    /// Calls that the recorder could not keep.
    pub lost: u64,
    /// What is missing from this report, and why; empty if it is complete.
    pub problems: Vec<String>,
    /// What a reader must know although nothing is missing: a clock that was set, files that are told of together.
    pub notes: Vec<String>,
    /// From the first call to the end of the last.
    pub span_s: f64,
    /// Where the time of all tasks went.
    pub totals: Totals,
    /// Bursts of I/O with pauses between.
    pub phases: Vec<Phase>,
    /// Distributions, those with the most time first.
    pub groups: Vec<Group>,
    /// Files with the most time.
    pub files: Vec<FileUse>,
    /// Number of files that were used; a problem says so if there are more.
    pub file_count: u64,
    /// How bytes came over time.
    pub progress: Vec<Progress>,
    /// Rates of tasks.
    pub rates: Option<Rates>,
    /// The period of the I/O.
    pub period: Option<PeriodSeen>,
    /// What stands out, the most costly first.
    pub findings: Vec<Finding>,
    /// Bursts of writes, as a table.
    pub bursts: Bursts,
    /// Which buffer the run asks for; none if it moved no bytes.
    pub advice: Option<Advice>,
    /// What the buffers did on which the run has files, for it and for others; empty if it used none, or nobody watched.
    pub buffers: Vec<BufferSeen>,
    /// Rates over time, in at most 400 steps.
    pub intensity: Vec<Intensity>,
    /// Share of the tasks that had moved their last byte, over time.
    pub tasks_done: Vec<Progress>,
    /// Bytes per second in calls, of tasks, the slowest first: all, or 256 of them in equal steps.
    pub task_rates: Vec<f64>,
    /// Which task was in which kind of call, over time.
    pub lanes: Lanes,
}

impl Report {
    /// True if there is nothing to show: no calls, or only such as are left out.
    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// True if any call moved bytes.
    fn moved_bytes(&self) -> bool {
        self.totals.read_bytes + self.totals.written_bytes > 0
    }

    /// A sentence for a run that hardly waits for I/O at all: then its findings are no matter.
    fn hardly_matters(&self) -> Option<&'static str> {
        let none = self.advice.as_ref().is_some_and(|advice| advice.buffer == "none");
        none.then_some("All I/O together takes less than 2 % of the tasks' time: what is found here hardly matters.")
    }
}

/// Sums over all tasks.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Totals {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that read.
    pub reads: u64,
    /// Calls that write.
    pub writes: u64,
    /// Opens, closes, names and attributes.
    pub metadata_calls: u64,
    /// Calls that wait for the medium.
    pub syncs: u64,
    /// Seconds in reads.
    pub read_s: f64,
    /// Seconds in writes.
    pub write_s: f64,
    /// Seconds in metadata.
    pub metadata_s: f64,
    /// Seconds in syncs.
    pub sync_s: f64,
    /// Seconds in the rest: locks, seeks, mappings.
    pub other_s: f64,
}

impl Totals {
    /// Seconds in all calls.
    pub fn all_s(&self) -> f64 {
        self.read_s + self.write_s + self.metadata_s + self.sync_s + self.other_s
    }
}

/// A burst of I/O.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// Begin.
    pub from_s: f64,
    /// End.
    pub to_s: f64,
    /// Bytes read in it.
    pub read_bytes: u64,
    /// Bytes written in it.
    pub written_bytes: u64,
    /// What it is: write, read, read and write, metadata.
    pub kind: &'static str,
}

/// The distribution of one call, of one class of size, in one phase.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// The call.
    pub call: &'static str,
    /// Class of size, in words; empty for calls without a size.
    pub size: &'static str,
    /// Index of the phase.
    pub phase: usize,
    /// Number of calls.
    pub count: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Seconds in them.
    pub sum_s: f64,
    /// Mean, s.
    pub mean_s: f64,
    /// Standard deviation, s.
    pub sd_s: f64,
    /// Skewness.
    pub skewness: f64,
    /// Least, s.
    pub min_s: f64,
    /// Median, s.
    pub p50_s: f64,
    /// 99 of 100 are below, s.
    pub p99_s: f64,
    /// 999 of 1000 are below, s.
    pub p999_s: f64,
    /// Greatest, s.
    pub max_s: f64,
    /// Peaks of the distribution.
    pub modes: Vec<ModeSeen>,
    /// The distribution: middle of each bucket that has calls, s (a bucket is 1/16 of an octave wide), and their number.
    pub histogram: Vec<(f64, u64)>,
    /// How far a call tells the next one of its task (-1 to 1).
    pub correlation: f64,
    /// The slowest task, if several took part.
    pub slowest: Option<Slowest>,
    /// What splitting each transfer would bring, if calls are independent but for `own_share`.
    pub split: Vec<SplitGain>,
    /// Share of the variance of the tasks' times that independent calls do not explain: tasks are slow by themselves. 0 also of
    /// tasks with one call each, and where `split` is empty.
    pub own_share: f64,
}

/// A peak, and what it can be.
#[derive(Debug, Clone, Serialize)]
pub struct ModeSeen {
    /// Its peak, s.
    pub value_s: f64,
    /// Share of the calls.
    pub share: f64,
    /// What it can be.
    pub meaning: String,
}

/// The slowest task against the one that chance makes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Slowest {
    /// Tasks that took part.
    pub tasks: u64,
    /// The task.
    pub task: u64,
    /// Calls of a task, the mean.
    pub calls: f64,
    /// Time of the slowest task, s.
    pub measured_s: f64,
    /// What it would be if all calls were independent draws from the distribution, s.
    pub predicted_s: f64,
}

/// The slowest task's time with smaller transfers, as a share of now.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SplitGain {
    /// Parts of each transfer.
    pub parts: u64,
    /// Time of the slowest task against now.
    pub ratio: f64,
}

/// A file.
#[derive(Debug, Clone, Serialize)]
pub struct FileUse {
    /// Path.
    pub path: String,
    /// Calls.
    pub calls: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Seconds in its calls.
    pub time_s: f64,
    /// Processes that used it.
    pub processes: u64,
}

/// A point of the progress curve.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Progress {
    /// When.
    pub at_s: f64,
    /// Share of the bytes that were moved until then.
    pub share: f64,
}

/// What goes on in a step of time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Intensity {
    /// Begin of the step.
    pub at_s: f64,
    /// Bytes read a second.
    pub read_bytes_per_s: f64,
    /// Bytes written a second.
    pub written_bytes_per_s: f64,
    /// Tasks that are in a call, the mean.
    pub busy_tasks: f64,
}

/// Bytes per second in calls, of tasks.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rates {
    /// The slowest task.
    pub slowest_task: u64,
    /// Its rate, bytes a second.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The fastest.
    pub max: f64,
    /// Of all tasks together, over the time in which any was in a call that moves data.
    pub together: f64,
}

/// A period.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PeriodSeen {
    /// Seconds from burst to burst.
    pub period_s: f64,
    /// 0 to 1.
    pub confidence: f64,
}

/// Reads traces and says what is in them.
///
/// # Errors
/// Nothing there can be read as a trace. What can be read in part is reported in part.
pub fn report(places: &[PathBuf], options: Options) -> Result<Report, ReportError> {
    let trace = load::Trace::open(places)?;
    let timeline = timeline::Timeline::of(&trace, options);
    let gathered = gather::Gathered::of(&trace, options, &timeline);
    Ok(assemble::report(gathered, trace, timeline))
}
