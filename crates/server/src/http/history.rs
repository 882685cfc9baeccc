//! What the page draws: samples of the last hour, taken one after the other, the oldest give way.

use super::Shared;
use forebay_proto::metrics::{BufferMetrics, CacheMetrics, ServerMetrics};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two samples.
pub const HISTORY_PERIOD: Duration = Duration::from_secs(2);
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
            cache: buffer.cache.as_ref().map(CachePoint::of),
        }
    }
}

/// All buffers at one moment.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Sample {
    time_ms: u64,
    /// By the buffer's identity: its name may be given anew.
    points: Vec<(String, Point)>,
}

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    points: usize,
}

/// The samples.
#[derive(Default)]
pub(super) struct History(Mutex<Kept>);

/// What is told.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    period_ms: u64,
    now: &'a ServerMetrics,
    samples: Vec<Sample>,
}

fn ms(metrics: &ServerMetrics) -> u64 {
    metrics.time.0 / 1_000_000
}

impl History {
    /// Takes a sample.
    pub(super) fn take(&self, metrics: &ServerMetrics) {
        let points: Vec<_> =
            metrics.buffers.iter().map(|b| (b.uuid.clone(), Point::of(b))).collect();
        let mut kept = self.0.lock();
        kept.points += points.len();
        kept.samples.push_back(Sample { time_ms: ms(metrics), points });
        while kept.samples.len() > HISTORY_SAMPLES_MAX || kept.points > HISTORY_POINTS_MAX {
            let Some(oldest) = kept.samples.pop_front() else { return };
            kept.points -= oldest.points.len();
        }
    }

    /// The samples after a time, and what is now.
    pub(super) fn told<'a>(&self, after_ms: u64, now: &'a ServerMetrics) -> Told<'a> {
        let kept = self.0.lock();
        let newer = kept.samples.iter().filter(|sample| sample.time_ms > after_ms);
        Told {
            period_ms: HISTORY_PERIOD.as_millis() as u64,
            now,
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
            shared.history.take(&shared.watched.metrics());
            next = Instant::now() + HISTORY_PERIOD;
        }
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
    }
}
