//! What a server counts, at one moment: asked for over the control socket and of the ledger
//! (`forebay top`), and the source of `/metrics` and of the dashboard. What each figure means stands
//! in docs/METRICS.md. Counts begin at zero when the process starts.

use crate::Errno;
use crate::events::UtcTime;
use crate::kinds::StoreKind;
use crate::latency::Latency;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often, by name.
pub type Counts = BTreeMap<String, u64>;

/// All of a process that serves buffers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerMetrics {
    /// When.
    pub time: UtcTime,
    /// Version of the program.
    pub program: String,
    /// Host name.
    pub host: String,
    /// Identity of a `forebay serve`, 32 hex digits; `None` for a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
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
    /// The mount that the process is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountMetrics>,
}

/// All servers of a pool, as far as they answer; or one process that belongs to none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PoolMetrics {
    /// Those that told.
    pub servers: Vec<ServerMetrics>,
    /// Those that did not.
    pub unheard: Vec<Unheard>,
}

/// A server that did not tell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unheard {
    /// Its identity, 32 hex digits.
    pub server: String,
    /// Where it is, for people.
    pub host: String,
    /// Why, in words.
    pub why: String,
}

/// What went through one mount on this node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct MountMetrics {
    /// Where it is mounted.
    pub mount_point: String,
    /// The buffer's name; empty for a buffer of the mount's own.
    pub buffer: String,
    /// The kernel reads and writes files itself.
    pub fast_path: bool,
    /// Requests of the kernel, by kind.
    pub requests: Counts,
    /// How long they took here, by kind.
    pub latency: BTreeMap<String, Latency>,
    /// Bytes that the mount process read for programs.
    pub read_bytes: u64,
    /// Bytes that it wrote for them.
    pub written_bytes: u64,
    /// Errors that programs got, by errno.
    pub error_counts: Counts,
    /// Ordinary answers that were no success ([`is_ordinary`]), by errno.
    pub answer_counts: Counts,
}

impl MountMetrics {
    /// Counts what was answered, as an error or as an ordinary answer.
    pub fn answered(&mut self, errno: Errno, count: u64) {
        let into =
            if is_ordinary(errno) { &mut self.answer_counts } else { &mut self.error_counts };
        *into.entry(errno_name(errno)).or_default() += count;
    }
}

/// What the device of a buffer's own file system has read and written, by whatever way; the page cache is before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceMetrics {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
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
    /// Why it is not served, or what of it is not there (degraded).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How its store holds the capacity; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_kind: Option<StoreKind>,
    /// Parts of the buffer, over all of its servers but those that were given up; 0: the process that tells is none of
    /// several.
    #[serde(default)]
    pub part_count: u64,
    /// Capacity of this server's part.
    pub capacity_bytes: u64,
    /// Of it used, by whatever way it was written.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Calls answered, by kind: of mounts at a server, of the kernel at a mount.
    pub calls: Counts,
    /// How long they took, by kind.
    pub latency: BTreeMap<String, Latency>,
    /// Bytes that this process read for its callers. What kernels read themselves is not seen.
    pub read_bytes: u64,
    /// Bytes that it wrote for them.
    pub written_bytes: u64,
    /// What the device below a buffer has moved, also for kernels; `None` where nothing counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceMetrics>,
    /// Errors given, by who met them and by errno.
    pub error_counts: Errors,
    /// Ordinary answers to calls that were no success ([`is_ordinary`]), by errno.
    pub answer_counts: Counts,
    /// Mounts that are attached.
    pub sessions: u64,
    /// Mounts that the server had before it was started again, and that have not come back: for the time of a lease it waits for
    /// them before anything is changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub awaited_mounts: u64,
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
    /// What files in logs are doing; `None` where this process has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogMetrics>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Errors, by errno.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Errors {
    /// Of calls of mounts, or of the kernel.
    pub calls: Counts,
    /// Of files that could not be staged.
    pub staging: Counts,
}

/// An errno's name; `other` for a failure that has none.
pub fn errno_name(errno: Errno) -> String {
    if errno.0 == 0 { "other".into() } else { errno.name() }
}

/// True for what a file system answers in the course of things: that a name or an attribute is not there, that the caller
/// may not, or has asked for what cannot be. It tells of the caller, not of trouble here.
pub fn is_ordinary(errno: Errno) -> bool {
    matches!(
        errno.0,
        libc::ENOENT
            | libc::ENODATA
            | libc::ENOTTY
            | libc::EEXIST
            | libc::ENOTEMPTY
            | libc::ENOTDIR
            | libc::EISDIR
            | libc::ENXIO
            | libc::ERANGE
            | libc::EACCES
            | libc::EPERM
            | libc::EAGAIN
            | libc::EINTR
            | libc::ENAMETOOLONG
            | libc::ELOOP
            | libc::EXDEV
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::EINVAL
            | libc::EFBIG
            | libc::EMLINK
            | libc::ETXTBSY
            | libc::EDEADLK
    )
}

fn add_counts(into: &mut Counts, other: &Counts) {
    for (name, count) in other {
        *into.entry(name.clone()).or_default() += count;
    }
}

/// Adds what not every part of a buffer has.
fn add_to<T: Clone>(mine: &mut Option<T>, other: Option<&T>, add: impl FnOnce(&mut T, &T)) {
    match (mine.as_mut(), other) {
        (Some(mine), Some(other)) => add(mine, other),
        (None, Some(other)) => *mine = Some(other.clone()),
        (_, None) => {}
    }
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

/// Files in logs whose inodes a server has. The first five figures are of the files whose indexes it has in memory, which
/// are bounded in number: those used last since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogMetrics {
    /// Files.
    pub files: u64,
    /// Their logs, with those of mounts that have gone.
    pub log_count: u64,
    /// Bytes published in them.
    pub log_bytes: u64,
    /// Of these what counts; the rest was written over.
    pub live_bytes: u64,
    /// Pieces in their indexes.
    pub extents: u64,
    /// Logs that were begun.
    pub begun: u64,
    /// Publications by mounts.
    pub publications: u64,
    /// Pieces that were published; one that was written over before its publication is not counted.
    pub records: u64,
    /// Bytes of logs that were published.
    pub published_bytes: u64,
    /// Logs of mounts that had gone, which were read to their ends.
    pub read_logs: u64,
    /// Bytes that were brought together into the files' own objects.
    pub together_bytes: u64,
}

impl LogMetrics {
    fn add(&mut self, other: &LogMetrics) {
        self.files += other.files;
        self.log_count += other.log_count;
        self.log_bytes += other.log_bytes;
        self.live_bytes += other.live_bytes;
        self.extents += other.extents;
        self.begun += other.begun;
        self.publications += other.publications;
        self.records += other.records;
        self.published_bytes += other.published_bytes;
        self.read_logs += other.read_logs;
        self.together_bytes += other.together_bytes;
    }
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
        self.miss_bytes += other.miss_bytes;
        self.hits += other.hits;
        self.misses += other.misses;
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
        self.part_count = self.part_count.max(other.part_count);
        self.capacity_bytes += other.capacity_bytes;
        self.used_bytes += other.used_bytes;
        self.inodes += other.inodes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.sessions += other.sessions;
        self.awaited_mounts += other.awaited_mounts;
        self.leases += other.leases;
        self.recalls += other.recalls;
        self.locks += other.locks;
        self.lock_waits += other.lock_waits;
        self.events += other.events;
        self.events_lost += other.events_lost;
        self.staging.add(&other.staging);
        add_counts(&mut self.calls, &other.calls);
        for (kind, latency) in &other.latency {
            self.latency.entry(kind.clone()).or_default().add(latency);
        }
        add_counts(&mut self.error_counts.calls, &other.error_counts.calls);
        add_counts(&mut self.error_counts.staging, &other.error_counts.staging);
        add_counts(&mut self.answer_counts, &other.answer_counts);
        self.why = self.why.take().or_else(|| other.why.clone());
        self.store_kind = self.store_kind.or(other.store_kind);
        // Where one of the parts is not counted the sum would be a part that looks like all.
        self.device = self.device.zip(other.device).map(|(mine, other)| DeviceMetrics {
            read_bytes: mine.read_bytes + other.read_bytes,
            written_bytes: mine.written_bytes + other.written_bytes,
        });
        add_to(&mut self.cache, other.cache.as_ref(), CacheMetrics::add);
        add_to(&mut self.logs, other.logs.as_ref(), LogMetrics::add);
    }

    /// All calls.
    pub fn call_count(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Errors that tell of trouble.
    pub fn error_count(&self) -> u64 {
        self.error_counts.calls.values().chain(self.error_counts.staging.values()).sum()
    }

    /// Counts what calls were answered, as errors or as ordinary answers.
    pub fn answered(&mut self, errno: Errno, count: u64) {
        let into =
            if is_ordinary(errno) { &mut self.answer_counts } else { &mut self.error_counts.calls };
        *into.entry(errno_name(errno)).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_answers_are_no_errors() {
        let mut told = BufferMetrics::default();
        for errno in [libc::ENODATA, libc::ENOENT, libc::EACCES, libc::EEXIST, libc::EIO, 0] {
            told.answered(Errno(errno), 2);
        }
        assert_eq!(told.error_count(), 4);
        assert_eq!(told.error_counts.calls.keys().collect::<Vec<_>>(), ["EIO", "other"]);
        assert_eq!((told.answer_counts.len(), told.answer_counts["ENODATA"]), (4, 2));
    }

    #[test]
    fn the_parts_of_a_cache_add_up() {
        let part = |hit_bytes, miss_bytes| BufferMetrics {
            cache: Some(CacheMetrics {
                hit_bytes,
                miss_bytes,
                hits: 1,
                misses: 2,
                ..CacheMetrics::default()
            }),
            ..BufferMetrics::default()
        };
        let mut whole = part(100, 0);
        whole.add(&part(0, 100));
        let cache = whole.cache.unwrap();
        assert_eq!((cache.hit_ratio(), cache.hits, cache.misses), (Some(0.5), 2, 4));
    }
}
