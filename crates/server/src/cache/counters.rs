//! What a cache has done since its start, for status and for finding quiet moments.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that the drain's rate is told over.
const RATE_OVER: Duration = Duration::from_secs(5);
/// Most samples kept for it.
const SAMPLES_MAX: usize = 256;

/// The counters.
pub(crate) struct Counters {
    start: Instant,
    hit_bytes: AtomicU64,
    filled_bytes: AtomicU64,
    written_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    drained_bytes: AtomicU64,
    drained_files: AtomicU64,
    miss_bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Milliseconds after the start, plus 1; 0 = never.
    last_write_ms: AtomicU64,
    /// The same of any read or write.
    last_use_ms: AtomicU64,
    /// Opens by which kernels have files themselves.
    kernel_opens: AtomicU64,
    /// Of them, those for writing.
    kernel_writes: AtomicU64,
    samples: Mutex<VecDeque<(Instant, u64)>>,
}

impl Counters {
    /// All zero.
    pub fn new() -> Counters {
        Counters {
            start: Instant::now(),
            hit_bytes: AtomicU64::new(0),
            filled_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            drained_bytes: AtomicU64::new(0),
            drained_files: AtomicU64::new(0),
            miss_bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            last_write_ms: AtomicU64::new(0),
            last_use_ms: AtomicU64::new(0),
            kernel_opens: AtomicU64::new(0),
            kernel_writes: AtomicU64::new(0),
            samples: Mutex::default(),
        }
    }

    /// A request read `length` bytes, of which so many were not on flash when it came.
    pub fn read(&self, length: u64, missing: u64) {
        self.hit_bytes.fetch_add(length - missing.min(length), Ordering::Relaxed);
        self.miss_bytes.fetch_add(missing.min(length), Ordering::Relaxed);
        let count = if missing == 0 { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        self.last_use_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    pub fn kernel_opened(&self) {
        self.kernel_opens.fetch_add(1, Ordering::Relaxed);
    }

    pub fn kernel_closed(&self) {
        self.kernel_opens.fetch_sub(1, Ordering::Relaxed);
        self.last_use_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Opens by which kernels have files themselves, now.
    pub fn kernel_opens(&self) -> u64 {
        self.kernel_opens.load(Ordering::Relaxed)
    }

    pub fn kernel_writes_one_more(&self) {
        self.kernel_writes.fetch_add(1, Ordering::AcqRel);
    }

    pub fn kernel_writes_one_less(&self) {
        self.kernel_writes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Files that kernels may write themselves, now.
    pub fn kernel_writes(&self) -> u64 {
        self.kernel_writes.load(Ordering::Acquire)
    }

    pub fn filled(&self, bytes: u64) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let now_ms = self.now_ms();
        self.last_write_ms.store(now_ms, Ordering::Relaxed);
        self.last_use_ms.store(now_ms, Ordering::Relaxed);
    }

    pub fn evicted(&self, bytes: u64) {
        self.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn drained(&self, bytes: u64) {
        let total = self.drained_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut samples = self.samples.lock();
        samples.push_back((Instant::now(), total));
        if samples.len() > SAMPLES_MAX {
            samples.pop_front();
        }
    }

    pub fn drained_file(&self) {
        self.drained_files.fetch_add(1, Ordering::Relaxed);
    }

    /// When a request wrote last.
    pub fn last_write(&self) -> Option<Instant> {
        self.at(&self.last_write_ms)
    }

    /// When a request read or wrote last, or a kernel gave a file back.
    pub fn last_use(&self) -> Option<Instant> {
        self.at(&self.last_use_ms)
    }

    fn at(&self, ms: &AtomicU64) -> Option<Instant> {
        match ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(self.start + Duration::from_millis(ms - 1)),
        }
    }

    /// Bytes that requests read and that were not on flash when they came; requests that found all
    /// of what they read there; requests that did not.
    pub fn reads(&self) -> [u64; 3] {
        [&self.miss_bytes, &self.hits, &self.misses].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// `(hit, filled, written, evicted, drained)` in bytes.
    pub fn bytes(&self) -> [u64; 5] {
        [
            &self.hit_bytes,
            &self.filled_bytes,
            &self.written_bytes,
            &self.evicted_bytes,
            &self.drained_bytes,
        ]
        .map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Bytes per second that were drained over the last seconds.
    pub fn drain_rate(&self) -> f64 {
        let mut samples = self.samples.lock();
        let now = Instant::now();
        while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > RATE_OVER) {
            samples.pop_front();
        }
        match (samples.front(), samples.back()) {
            (Some((from, first)), Some((_, last))) if last > first => {
                (last - first) as f64 / now.duration_since(*from).as_secs_f64().max(0.001)
            }
            _ => 0.0,
        }
    }
}
