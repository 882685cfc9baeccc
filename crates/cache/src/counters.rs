//! What a cache has done since its start, for status and for finding quiet moments.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that the drain's rate is told over, where more than [`SAMPLES_MIN`] pieces drain in it.
const RATE_OVER: Duration = Duration::from_secs(5);
/// Pieces that it is told over at least, however slow they are, and samples kept at most.
const SAMPLES_MIN: usize = 3;
const SAMPLES_MAX: usize = 256;
/// So many times the usual time between two pieces without one, and nothing drains any more.
const STALE_AFTER: f64 = 4.0;

/// The counters.
pub(crate) struct Counters {
    start: Instant,
    hit_bytes: AtomicU64,
    filled_bytes: AtomicU64,
    written_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    /// Written by drains, also by those that failed.
    sent_bytes: AtomicU64,
    /// Of them, by those that failed.
    wasted_bytes: AtomicU64,
    /// Of these, what was not written again yet.
    owed_bytes: AtomicU64,
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
    /// Bytes sent so far at the begin of the drain and after each piece.
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
            sent_bytes: AtomicU64::new(0),
            wasted_bytes: AtomicU64::new(0),
            owed_bytes: AtomicU64::new(0),
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

    /// A file begins to drain: after a pause its time counts from here.
    pub fn drain_begins(&self) {
        let mut samples = self.samples.lock();
        let now = Instant::now();
        if rate_of(&samples, now).is_none_or(|rate| rate == 0.0) {
            samples.clear();
            samples.push_back((now, self.sent_bytes.load(Ordering::Relaxed)));
        }
    }

    /// A drain under way has written a piece. What an attempt that failed had written comes again with the next one,
    /// and is told as drained once.
    pub fn sent(&self, bytes: u64) {
        let total = self.sent_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut again = 0;
        let pay = |owed: u64| {
            again = owed.min(bytes);
            Some(owed - again)
        };
        let _owed = self.owed_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
        self.drained_bytes.fetch_add(bytes - again, Ordering::Relaxed);
        let mut samples = self.samples.lock();
        let now = Instant::now();
        samples.push_back((now, total));
        let is_old = |at: &(Instant, u64)| now.duration_since(at.0) > RATE_OVER;
        while samples.len() > SAMPLES_MAX
            || (samples.len() > SAMPLES_MIN && samples.front().is_some_and(is_old))
        {
            samples.pop_front();
        }
    }

    /// What a drain has written counts for nothing: it failed, or the file was written meanwhile.
    pub fn wasted(&self, bytes: u64) {
        self.wasted_bytes.fetch_add(bytes, Ordering::Release);
        self.owed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that are drained, or sent by drains under way.
    pub fn on_their_way(&self) -> u64 {
        let wasted = self.wasted_bytes.load(Ordering::Acquire);
        self.sent_bytes.load(Ordering::Acquire).saturating_sub(wasted)
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

    /// Bytes per second that drain now, by the last pieces; 0 if nothing does, or none is through yet.
    pub fn drain_rate(&self) -> f64 {
        rate_of(&self.samples.lock(), Instant::now()).unwrap_or(0.0)
    }
}

/// The rate by samples in order; `None` if they tell none.
fn rate_of(samples: &VecDeque<(Instant, u64)>, now: Instant) -> Option<f64> {
    let ((from, first), (to, last)) = (samples.front()?, samples.back()?);
    let pieces = samples.len().checked_sub(1).filter(|pieces| *pieces > 0)?;
    let between_s = to.duration_since(*from).as_secs_f64() / pieces as f64;
    // The piece under way takes as long as the others did; what it takes longer makes the rate less.
    let late_s = now.duration_since(*to).as_secs_f64() - between_s;
    let stale_s = (STALE_AFTER * between_s).max(RATE_OVER.as_secs_f64() / 5.0);
    if late_s > stale_s {
        return Some(0.0);
    }
    let took_s = between_s * pieces as f64 + late_s.max(0.0);
    Some((last - first) as f64 / took_s.max(0.001))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of pieces of 4 MiB, each `every_s` seconds, that end `ago_s` before the given time.
    fn pieces(count: u64, every_s: f64) -> (VecDeque<(Instant, u64)>, Instant) {
        let start = Instant::now();
        let at = |i: u64| start + Duration::from_secs_f64(every_s * i as f64);
        ((0..=count).map(|i| (at(i), i << 22)).collect(), at(count))
    }

    #[test]
    fn a_slow_drain_has_its_rate_between_two_pieces_too() {
        // 4 MiB each 8 s: half a MiB a second, also 8 s after the last piece.
        let (samples, end) = pieces(2, 8.0);
        for later_s in [0.0, 1.0, 7.9] {
            let rate = rate_of(&samples, end + Duration::from_secs_f64(later_s)).unwrap();
            assert!((rate / f64::from(1 << 19) - 1.0).abs() < 0.01, "{later_s}: {rate}");
        }
        // One that is late makes it less, and at last there is none.
        let late = rate_of(&samples, end + Duration::from_secs(24)).unwrap();
        assert!((late / f64::from(1 << 18) - 1.0).abs() < 0.01, "{late}");
        assert_eq!(rate_of(&samples, end + Duration::from_secs(60)), Some(0.0));
        assert_eq!(rate_of(&pieces(0, 1.0).0, end), None);
    }

    #[test]
    fn a_drain_after_a_pause_does_not_count_the_pause() {
        let counters = Counters::new();
        counters.drain_begins();
        counters.sent(1 << 20);
        {
            // As if that had been an hour ago.
            let mut samples = counters.samples.lock();
            let hour = Duration::from_secs(3_600);
            samples.iter_mut().for_each(|(at, _)| *at -= hour);
        }
        assert_eq!(counters.drain_rate(), 0.0);
        counters.drain_begins();
        std::thread::sleep(Duration::from_millis(20));
        counters.sent(1 << 20);
        assert!(counters.drain_rate() > 1e6, "{}", counters.drain_rate());
    }

    #[test]
    fn what_attempts_that_failed_wrote_is_told_as_drained_once() {
        let counters = Counters::new();
        for _ in 0..3 {
            counters.sent(40);
            assert_eq!((counters.bytes()[4], counters.on_their_way()), (40, 40));
            counters.wasted(40);
            assert_eq!((counters.bytes()[4], counters.on_their_way()), (40, 0));
        }
        counters.sent(30);
        counters.sent(30);
        assert_eq!((counters.bytes()[4], counters.on_their_way()), (60, 60));
    }
}
