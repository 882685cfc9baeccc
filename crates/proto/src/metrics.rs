//! What a server counts, at one moment: asked for over the control socket and of the ledger
//! (`forebay top`), and the source of `/metrics` and of the dashboard. What each figure means stands
//! in docs/METRICS.md. Counts begin at zero when the process starts.

use crate::events::UtcTime;
use serde::{Deserialize, Serialize};

/// All of a process that serves buffers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerMetrics {
    /// When.
    pub time: UtcTime,
    /// Version of the program.
    pub program: String,
    /// Host name.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// CPU time that it has used, user and system, in seconds.
    pub cpu_s: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// What `forebay serve` gives in all; `None` for a mount that serves its own buffer.
    pub capacity_bytes: Option<u64>,
    /// Of it promised to buffers.
    pub reserved_bytes: Option<u64>,
    /// Its buffers that the asker may see.
    pub buffers: Vec<BufferMetrics>,
}

/// One buffer, as far as this server has it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BufferMetrics {
    /// Its name, or its mount point if it has none.
    pub buffer: String,
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// False if it cannot be served; then nothing else is known.
    pub up: bool,
    /// Capacity of this server's part.
    pub capacity_bytes: u64,
    /// Of it used, by whatever way it was written.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Calls answered: of mounts at a server, of the kernel at a mount.
    pub calls: Vec<CallCount>,
    /// Bytes that this process read for its callers. What kernels read themselves is not seen.
    pub read_bytes: u64,
    /// Bytes that it wrote for them.
    pub written_bytes: u64,
    /// Errors given, by errno.
    pub errors: Vec<ErrorCount>,
    /// Mounts that are attached.
    pub sessions: u64,
    /// Leases that they hold.
    pub leases: u64,
    /// Leases that were taken back.
    pub recalls: u64,
    /// Locks held.
    pub locks: u64,
    /// Requests for locks that wait.
    pub lock_waits: u64,
    /// Staging.
    pub staging: StagingMetrics,
    /// Events written to its record.
    pub events: u64,
    /// Events that could not be written.
    pub events_lost: u64,
    /// What only a cache has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheMetrics>,
}

/// How often something was called.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallCount {
    /// What, in lower case.
    pub kind: String,
    /// How often.
    pub count: u64,
}

/// Who met an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorSource {
    /// A call of a mount or of the kernel. ENOENT and ENODATA are ordinary answers there.
    Calls,
    /// A file that could not be staged.
    Staging,
}

impl ErrorSource {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            ErrorSource::Calls => "calls",
            ErrorSource::Staging => "staging",
        }
    }
}

/// How often an error was given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ErrorCount {
    /// By whom.
    pub source: ErrorSource,
    /// Which; 0 for one that is no errno.
    pub errno: i32,
    /// How often.
    pub count: u64,
}

/// Plans of a buffer.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StagingMetrics {
    /// Plans that wait.
    pub queued: u64,
    /// Plans that run.
    pub running: u64,
    /// Plans that ended with all done.
    pub done: u64,
    /// Plans that ended with failures.
    pub failed: u64,
    /// Plans that were cancelled.
    pub cancelled: u64,
    /// Bytes copied from the PFS, also those of copies that failed.
    pub in_bytes: u64,
    /// Bytes copied to the PFS.
    pub out_bytes: u64,
    /// Bytes that the plans of now have found and not yet copied; grows while they still look.
    pub backlog_bytes: u64,
    /// Bytes per second of the plans that run.
    pub rate_bytes_per_s: f64,
    /// Seconds until the last of them ends, if it can be told.
    pub eta_s: Option<f64>,
}

/// What only a cache has.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CacheMetrics {
    /// Bytes that the PFS does not have yet.
    pub dirty_bytes: u64,
    /// Bytes that requests read and that were on flash when they came.
    pub hit_bytes: u64,
    /// Bytes that requests read and that were not.
    #[serde(default)]
    pub miss_bytes: u64,
    /// Requests that found all of what they read on flash.
    #[serde(default)]
    pub hits: u64,
    /// Requests that did not.
    #[serde(default)]
    pub misses: u64,
    /// Bytes fetched from the PFS, with what was read ahead.
    pub filled_bytes: u64,
    /// Bytes drained to the PFS.
    pub drained_bytes: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Files whose drain has failed.
    pub failed_files: u64,
    /// Files that both sides have changed.
    pub conflicts: u64,
    /// Bytes per second that drain now.
    pub drain_bytes_per_s: f64,
    /// Seconds until nothing is dirty, if it can be told.
    pub drain_eta_s: Option<f64>,
}

impl CacheMetrics {
    /// The part of what requests read that was on flash when they came, if anything was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let read = self.hit_bytes.saturating_add(self.miss_bytes);
        (read > 0).then(|| self.hit_bytes as f64 / read as f64)
    }
}

impl CacheMetrics {
    /// The part of another server is added to this one's.
    fn add(&mut self, other: &CacheMetrics) {
        self.dirty_bytes += other.dirty_bytes;
        self.hit_bytes += other.hit_bytes;
        self.filled_bytes += other.filled_bytes;
        self.drained_bytes += other.drained_bytes;
        self.evicted_bytes += other.evicted_bytes;
        self.failed_files += other.failed_files;
        self.conflicts += other.conflicts;
        self.drain_bytes_per_s += other.drain_bytes_per_s;
        self.drain_eta_s = later(self.drain_eta_s, other.drain_eta_s);
    }
}

impl StagingMetrics {
    fn add(&mut self, other: &StagingMetrics) {
        self.queued += other.queued;
        self.running += other.running;
        self.done += other.done;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.in_bytes += other.in_bytes;
        self.out_bytes += other.out_bytes;
        self.backlog_bytes += other.backlog_bytes;
        self.rate_bytes_per_s += other.rate_bytes_per_s;
        self.eta_s = later(self.eta_s, other.eta_s);
    }
}

/// Servers work side by side: all is done when the last of them is.
fn later(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

impl BufferMetrics {
    /// The part of another server is added to this one's: the figures of the whole buffer.
    pub fn add(&mut self, other: &BufferMetrics) {
        self.up |= other.up;
        self.capacity_bytes += other.capacity_bytes;
        self.used_bytes += other.used_bytes;
        self.inodes += other.inodes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.sessions += other.sessions;
        self.leases += other.leases;
        self.recalls += other.recalls;
        self.locks += other.locks;
        self.lock_waits += other.lock_waits;
        self.events += other.events;
        self.events_lost += other.events_lost;
        self.staging.add(&other.staging);
        for call in &other.calls {
            match self.calls.iter_mut().find(|mine| mine.kind == call.kind) {
                Some(mine) => mine.count += call.count,
                None => self.calls.push(call.clone()),
            }
        }
        for error in &other.errors {
            let same = |e: &&mut ErrorCount| (e.source, e.errno) == (error.source, error.errno);
            match self.errors.iter_mut().find(same) {
                Some(mine) => mine.count += error.count,
                None => self.errors.push(error.clone()),
            }
        }
        match (&mut self.cache, &other.cache) {
            (Some(mine), Some(other)) => mine.add(other),
            (mine @ None, Some(other)) => *mine = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// All calls.
    pub fn call_count(&self) -> u64 {
        self.calls.iter().map(|call| call.count).sum()
    }

    /// Errors that tell of trouble: ENOENT and ENODATA are ordinary answers of a file system, and so is ENOTTY: many
    /// programs ask of each file that they open whether it is a terminal.
    pub fn error_count(&self) -> u64 {
        let ordinary = |e: &&ErrorCount| {
            e.source == ErrorSource::Calls
                && [libc::ENOENT, libc::ENODATA, libc::ENOTTY].contains(&e.errno)
        };
        let all = self.errors.iter().filter(|e| !ordinary(e));
        all.map(|e| e.count).sum()
    }
}
