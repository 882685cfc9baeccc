//! What the page draws: samples of the last hour, taken one after the other, the oldest give way. In a pool a sample
//! has the shards of buffers on all servers that answer.

use super::Shared;
use forebay_proto::latency::LATENCY_BOUNDS_NS;
use forebay_proto::metrics::{
    BufferMetrics, CacheMetrics, MountMetrics, PoolMetrics, ServerMetrics, Unheard,
};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Shortest time between two samples.
pub const HISTORY_PERIOD: Duration = Duration::from_secs(2);
/// In a large pool the time is this for each of its servers, so that servers that all look at all others are not busy with it.
pub const HISTORY_PERIOD_PER_SERVER: Duration = Duration::from_millis(250);
/// Most samples: an hour.
pub const HISTORY_SAMPLES_MAX: usize = 1_800;
/// Most points (a buffer in a sample) of all samples together: some 20 MiB. With many buffers the
/// time that is kept is shorter.
pub const HISTORY_POINTS_MAX: usize = 100_000;

/// One buffer in a sample. Sums since the start, so that a rate of any two samples is right.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Point {
    used_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    in_bytes: u64,
    out_bytes: u64,
    calls: u64,
    errors: u64,
    backlog_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_read_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_written_bytes: Option<u64>,
    #[serde(flatten)]
    cache: Option<CachePoint>,
}

/// What a cache has besides.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct CachePoint {
    dirty_bytes: u64,
    hit_bytes: u64,
    miss_bytes: u64,
    drained_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_eta_s: Option<f64>,
}

impl CachePoint {
    fn of(cache: &CacheMetrics) -> CachePoint {
        CachePoint {
            dirty_bytes: cache.dirty_bytes,
            hit_bytes: cache.hit_bytes,
            miss_bytes: cache.miss_bytes,
            drained_bytes: cache.drained_bytes,
            drain_eta_s: cache.drain_eta_s,
        }
    }
}

impl Point {
    /// Of a mount of a served buffer: what went through it.
    fn of_mount(mount: &MountMetrics) -> Point {
        let calls = mount.requests.values().sum();
        let errors = mount.error_counts.values().sum();
        let (read_bytes, written_bytes) = (mount.read_bytes, mount.written_bytes);
        Point { read_bytes, written_bytes, calls, errors, ..Point::of(&BufferMetrics::default()) }
    }

    fn of(buffer: &BufferMetrics) -> Point {
        Point {
            used_bytes: buffer.used_bytes,
            read_bytes: buffer.read_bytes,
            written_bytes: buffer.written_bytes,
            in_bytes: buffer.staging.in_bytes,
            out_bytes: buffer.staging.out_bytes,
            calls: buffer.call_count(),
            errors: buffer.error_count(),
            backlog_bytes: buffer.staging.backlog_bytes,
            device_read_bytes: buffer.device.map(|device| device.read_bytes),
            device_written_bytes: buffer.device.map(|device| device.written_bytes),
            cache: buffer.cache.as_ref().map(CachePoint::of),
        }
    }
}

/// One server's part of a buffer in a sample.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct PartPoint {
    /// The buffer's identity: its name may be given anew. Of a mount its mount point.
    of: String,
    /// The server. Rates are those of each server, added up: one that comes back is no leap of the sum.
    server: String,
    #[serde(flatten)]
    point: Point,
}

/// All buffers at one moment.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Sample {
    time_ms: u64,
    points: Vec<PartPoint>,
}

/// A buffer with all of its parts.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    sum: BufferMetrics,
    parts: Vec<Part>,
    /// Servers that have a part of it, those that do not answer among them.
    server_count: u64,
    /// Servers whose part is in the sum.
    told_count: u64,
    /// Some of them are not in the sum: what is used is at least that. The capacity is that of all.
    partial: bool,
}

impl Whole {
    fn of(buffer: &BufferMetrics, part: Part) -> Whole {
        let sum = buffer.clone();
        Whole { sum, parts: vec![part], server_count: 1, told_count: 0, partial: false }
    }

    /// Once all parts that were told of are there. Parts of a buffer are equally large.
    fn complete(&mut self) {
        let told = self.parts.iter().filter(|part| part.up).count() as u64;
        let parts = self.parts.len() as u64;
        (self.told_count, self.server_count) = (told, self.sum.part_count.max(parts));
        let missing = self.server_count - told;
        self.partial = missing > 0 && told > 0;
        if self.partial {
            let one = self.parts.iter().map(|part| part.capacity_bytes).max().unwrap_or(0);
            self.sum.capacity_bytes = one * self.server_count;
        }
    }
}

/// A part of a buffer.
#[derive(Serialize)]
struct Part {
    host: String,
    up: bool,
    why: Option<String>,
    used_bytes: u64,
    capacity_bytes: u64,
}

fn name_of(server: &ServerMetrics) -> String {
    server.server.clone().unwrap_or_else(|| format!("{}:{}", server.host, server.pid))
}

/// The buffers of all servers, each once.
fn wholes<'a>(servers: impl Iterator<Item = &'a ServerMetrics>) -> Vec<Whole> {
    let mut all: Vec<Whole> = Vec::new();
    for server in servers {
        for buffer in &server.buffers {
            let part = Part {
                host: server.host.clone(),
                up: buffer.up,
                why: buffer.why.clone(),
                used_bytes: buffer.used_bytes,
                capacity_bytes: buffer.capacity_bytes,
            };
            match all.iter_mut().find(|whole| whole.sum.uuid == buffer.uuid) {
                Some(whole) => {
                    whole.sum.add(buffer);
                    whole.parts.push(part);
                }
                None => all.push(Whole::of(buffer, part)),
            }
        }
    }
    all.iter_mut().for_each(Whole::complete);
    all.sort_by(|a, b| a.sum.buffer.cmp(&b.sum.buffer));
    all
}

/// A server of the pool.
#[derive(Serialize)]
struct Member {
    host: String,
    uptime_s: f64,
    cpu_s: f64,
    resident_bytes: u64,
    capacity_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
}

impl Member {
    fn of(server: &ServerMetrics) -> Member {
        Member {
            host: server.host.clone(),
            uptime_s: server.uptime_s,
            cpu_s: server.cpu_s,
            resident_bytes: server.resident_bytes,
            capacity_bytes: server.capacity_bytes,
            reserved_bytes: server.reserved_bytes,
        }
    }
}

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    points: usize,
}

/// The samples.
#[derive(Default)]
pub(super) struct History(Mutex<Kept>);

/// How long to wait between two samples, of a process with so many other servers.
fn period(others: usize) -> Duration {
    HISTORY_PERIOD.max(HISTORY_PERIOD_PER_SERVER * u32::try_from(others).unwrap_or(u32::MAX))
}

/// What is told.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    period_ms: u64,
    /// Upper bounds of the buckets of latencies.
    latency_bounds_s: Vec<f64>,
    /// This process.
    now: &'a ServerMetrics,
    /// Buffers with their parts on all servers of the pool that answer.
    buffers: Vec<Whole>,
    /// Those servers, this one first.
    servers: Vec<Member>,
    unheard: &'a [Unheard],
    samples: Vec<Sample>,
}

fn ms(metrics: &ServerMetrics) -> u64 {
    metrics.time.0 / 1_000_000
}

impl History {
    /// Takes a sample.
    pub(super) fn take(&self, metrics: &ServerMetrics, others: &PoolMetrics) {
        let mut points = Vec::new();
        for server in [metrics].into_iter().chain(&others.servers) {
            let name = name_of(server);
            points.extend(server.buffers.iter().map(|buffer| PartPoint {
                of: buffer.uuid.clone(),
                server: name.clone(),
                point: Point::of(buffer),
            }));
            let mount = server.mount.iter().filter(|_| server.buffers.is_empty());
            points.extend(mount.map(|mount| PartPoint {
                of: mount.mount_point.clone(),
                server: name.clone(),
                point: Point::of_mount(mount),
            }));
        }
        let mut kept = self.0.lock();
        kept.points += points.len();
        kept.samples.push_back(Sample { time_ms: ms(metrics), points });
        while kept.samples.len() > HISTORY_SAMPLES_MAX || kept.points > HISTORY_POINTS_MAX {
            let Some(oldest) = kept.samples.pop_front() else { return };
            kept.points -= oldest.points.len();
        }
    }

    /// The samples after a time, and what is now.
    pub(super) fn told<'a>(
        &self,
        after_ms: u64,
        now: &'a ServerMetrics,
        others: &'a PoolMetrics,
    ) -> Told<'a> {
        let servers = || [now].into_iter().chain(&others.servers);
        let kept = self.0.lock();
        let newer = kept.samples.iter().filter(|sample| sample.time_ms > after_ms);
        Told {
            period_ms: period(others.servers.len()).as_millis() as u64,
            latency_bounds_s: LATENCY_BOUNDS_NS.map(|bound_ns| bound_ns as f64 / 1e9).to_vec(),
            now,
            buffers: wholes(servers()),
            servers: servers().map(Member::of).collect(),
            unheard: &others.unheard,
            samples: newer.cloned().collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        let kept = self.0.lock();
        (kept.samples.len(), kept.points)
    }
}

/// Takes samples until the server ends.
pub(super) fn gather(shared: &Shared) {
    let mut next = Instant::now();
    while !shared.is_ending() {
        if Instant::now() >= next {
            let began = Instant::now();
            shared.watched.look();
            let others = shared.watched.others();
            shared.history.take(&shared.watched.metrics(), &others);
            next = began + period(others.servers.len());
        }
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
    }
}
