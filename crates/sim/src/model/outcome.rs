//! What a simulation gives: figures of phases, of resources, of the buffer, and courses over time.

use super::stations::Class;
use serde::Serialize;

/// All of it. The same machine, program and seed give the same, byte for byte.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Machine and program.
    pub machine: String,
    /// The program.
    pub workload: String,
    /// Seed.
    pub seed: u64,
    /// Events handled.
    pub events: u64,
    /// When the last job ended.
    pub end_s: f64,
    /// When storage had everything.
    pub drained_s: f64,
    /// Where the bytes went.
    pub bytes: Bytes,
    /// Per job.
    pub jobs: Vec<JobOutcome>,
    /// Per kind of resource that did anything.
    pub resources: Vec<Resource>,
    /// The buffers.
    pub buffer: Option<BufferOutcome>,
    /// Over time.
    pub series: Series,
    /// What was decided about files, in order, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// What the machine file says without a measurement.
    pub assumptions: Vec<String>,
    /// What of the workload was replaced by something simpler.
    pub simplified: Vec<String>,
    /// What of it was replaced by wish: intervals of checkpoints.
    pub chosen: Vec<String>,
    /// Processes that one simulated process stands for, at most; 1: each was simulated.
    pub merged_processes: u32,
    /// Transfers that one simulated request stands for, at most.
    pub merged_transfers: u64,
}

/// A decision about a file by Forebay's rules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// When.
    pub at_s: f64,
    /// What.
    pub what: Decided,
    /// Its file.
    pub file: String,
    /// Which buffer decided it, or is the first of a file that was placed.
    pub buffer: u32,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decided {
    /// It drains now.
    Drain,
    /// Clean data of it goes.
    Evict,
    /// It goes to this server.
    Place,
}

/// Where written bytes are at the end: `written = past_buffer + drained + resident + lost + discarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Acknowledged to jobs, or under way when their job died.
    pub written: u64,
    /// Written to storage without the buffer, or through it.
    pub past_buffer: u64,
    /// Drained to storage.
    pub drained: u64,
    /// On flash only.
    pub resident: u64,
    /// Lost with a buffer before they were drained.
    pub lost: u64,
    /// Read from storage.
    pub read_storage: u64,
    /// Read from buffers.
    pub read_buffer: u64,
}

impl Bytes {
    /// Whether nothing came from nowhere and nothing vanished.
    pub fn conserved(&self) -> bool {
        self.written == self.past_buffer + self.drained + self.resident + self.lost
    }
}

/// A job.
#[derive(Clone, Debug, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// Processes.
    pub processes: u32,
    /// When it could have started.
    pub ready_s: f64,
    /// When it started: it waits for nodes.
    pub start_s: f64,
    /// When it ended.
    pub end_s: f64,
    /// How often it was killed by a failure and went on.
    pub restarts: u32,
    /// Work that was done again, in seconds.
    pub redone_s: f64,
    /// Its phases.
    pub phases: Vec<PhaseOutcome>,
}

/// A phase of a job, all repetitions together.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseOutcome {
    /// Its name.
    pub name: String,
    /// When the first process began it.
    pub start_s: f64,
    /// When the last one ended it.
    pub end_s: f64,
    /// From the first begin to the last end of each repetition, together.
    pub time_s: f64,
    /// Time in which at least one process was in a read or write.
    pub io_s: f64,
    /// Bytes written, as the processes see it.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Both over `io_s`.
    pub bytes_per_s: f64,
    /// Time that transfers waited for room in the buffer, all processes together.
    pub stalled_s: f64,
    /// Share of its transfers that waited for room.
    pub stalled_share: f64,
    /// The busiest kind of resource while it did I/O, and its share of time at work.
    pub bound_by: Option<Bound>,
}

/// The busiest resource.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    /// Which.
    pub resource: Class,
    /// Share of time at work, over those that had anything to do.
    pub busy_share: f64,
}

/// A kind of resource.
#[derive(Clone, Debug, Serialize)]
pub struct Resource {
    /// Which.
    pub resource: Class,
    /// How many there are.
    pub count: usize,
    /// How many had anything to do.
    pub used: usize,
    /// Share of time at work until everything was drained, over those used.
    pub busy_share: f64,
    /// Requests.
    pub requests: u64,
    /// Mean time that a request waited for its turn, in seconds.
    pub mean_wait_s: f64,
}

/// The buffers.
#[derive(Clone, Debug, Serialize)]
pub struct BufferOutcome {
    /// How many there are.
    pub count: u32,
    /// Capacity of one.
    pub capacity_bytes: u64,
    /// How full the fullest was, 0 to 1, of what storage did not have.
    pub peak_share: f64,
    /// Transfers that found it full.
    pub found_full: u64,
    /// Bytes that flash wrote, with copies, parity and rebuilds.
    pub flash_written_bytes: u64,
    /// Bytes that were written to the flash of lost buffers from what others had.
    pub rebuilt_bytes: u64,
}

/// Courses over time: of each interval, bytes and levels.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Length of an interval, in seconds.
    pub interval_s: f64,
    /// Bytes that jobs saw read or written in it.
    pub application_bytes: Vec<u64>,
    /// Bytes that storage read or wrote in it.
    pub storage_bytes: Vec<u64>,
    /// Most bytes in it that only buffers had.
    pub buffered_bytes: Vec<u64>,
}
