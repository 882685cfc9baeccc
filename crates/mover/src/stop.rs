//! Stopping a plan, and pacing it: one signal that every wait of a plan listens to, and the
//! token bucket of its rate limit.

use super::fault::{Fault, Outcome};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Why a plan stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The requester cancelled it.
    Cancel,
    /// The server ends; the plan goes on with the next one.
    Shutdown,
    /// An error, and the plan was not to go on after errors; or a worker panicked.
    Error,
}

/// Longest piece of a second that a bucket saves up, so that a pause is not followed by a burst.
const BURST_S: f64 = 0.1;
/// Smallest piece of a copy under a rate limit, in bytes.
const MIN_PIECE_BYTES: u64 = 64 << 10;

/// Longest part of a pause without a sign of life.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How often what waits for more looks whether it is still asked about.
const METER_LOOK: Duration = Duration::from_secs(1);

struct Bucket {
    rate_bytes_per_s: u64,
    tokens_bytes: f64,
    filled: Instant,
}

/// The signal and the bucket of one plan.
pub(super) struct Pace {
    state: Mutex<PaceState>,
    changed: Condvar,
    born: Instant,
    /// Milliseconds from `born` to the last moment at which a thread of the plan was seen between two calls.
    seen_ms: AtomicU64,
    /// Threads in calls on our own flash, which take as long as they take.
    on_flash: AtomicUsize,
}

/// While it lives, a thread of the plan waits for our own flash and not for the PFS.
pub(super) struct OnFlash<'a>(&'a Pace);

impl Drop for OnFlash<'_> {
    fn drop(&mut self) {
        self.0.seen();
        self.0.on_flash.fetch_sub(1, Relaxed);
    }
}

/// Whether the plan stops, and how fast it may go.
struct PaceState {
    stop: Option<StopReason>,
    /// The limit of the whole plan; 0 = none.
    plan_bytes_per_s: u64,
    /// Servers that share it.
    servers: u64,
    bucket: Bucket,
    meter: Option<Meter>,
}

/// How far a part of another server's file may go: that one keeps the limit.
struct Meter {
    allowed_bytes: u64,
    taken_bytes: u64,
    heard: Instant,
    /// It stops when it has heard nothing for so long.
    patience: Duration,
}

impl Pace {
    /// With a rate limit in bytes per second; 0 = none.
    pub fn new(rate_bytes_per_s: u64) -> Pace {
        let bucket = Bucket { rate_bytes_per_s, tokens_bytes: 0.0, filled: Instant::now() };
        let state = PaceState {
            stop: None,
            plan_bytes_per_s: rate_bytes_per_s,
            servers: 1,
            bucket,
            meter: None,
        };
        Pace {
            state: Mutex::new(state),
            changed: Condvar::new(),
            born: Instant::now(),
            seen_ms: AtomicU64::new(0),
            on_flash: AtomicUsize::new(0),
        }
    }

    /// A sign of life: the calling thread is in no call on the PFS.
    pub fn seen(&self) {
        self.seen_ms.store(self.born.elapsed().as_millis() as u64, Relaxed);
    }

    /// How long no thread of the plan has been seen between two calls: a running plan then waits for its
    /// PFS. Zero while it waits for our own flash.
    pub fn silence(&self) -> Duration {
        if self.on_flash.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.born.elapsed().saturating_sub(Duration::from_millis(self.seen_ms.load(Relaxed)))
    }

    /// The calling thread begins a call on our own flash that may take long.
    pub fn on_flash(&self) -> OnFlash<'_> {
        self.on_flash.fetch_add(1, Relaxed);
        OnFlash(self)
    }

    /// Of what goes no further than [`Pace::allow`] says, and stops when it hears nothing for so long.
    pub fn metered(patience: Duration) -> Pace {
        let pace = Pace::new(0);
        let meter = Meter { allowed_bytes: 0, taken_bytes: 0, heard: Instant::now(), patience };
        pace.state.lock().meter = Some(meter);
        pace
    }

    /// Of a metered one: so many bytes may be taken in all.
    pub fn allow(&self, bytes: u64) {
        if let Some(meter) = &mut self.state.lock().meter {
            meter.allowed_bytes = bytes;
            meter.heard = Instant::now();
        }
        self.changed.notify_all();
    }

    /// Of a metered one: bytes taken so far.
    pub fn taken_bytes(&self) -> u64 {
        self.state.lock().meter.as_ref().map_or(0, |meter| meter.taken_bytes)
    }

    /// The rate limit of this server, in bytes per second; 0 = none.
    pub fn rate(&self) -> u64 {
        self.state.lock().bucket.rate_bytes_per_s
    }

    /// Takes `bytes` that another server has moved, without waiting; true if the bucket is not
    /// overdrawn.
    pub fn charge(&self, bytes: u64) -> bool {
        let bucket = &mut self.state.lock().bucket;
        if bucket.rate_bytes_per_s == 0 {
            return true;
        }
        bucket.refill();
        bucket.tokens_bytes -= bytes as f64;
        bucket.tokens_bytes >= 0.0
    }

    /// Asks everybody to stop. The first reason stands, but for a cancel, which always wins.
    pub fn stop(&self, reason: StopReason) {
        let mut state = self.state.lock();
        if state.stop.is_none() || reason == StopReason::Cancel {
            state.stop = Some(reason);
        }
        self.changed.notify_all();
    }

    /// Why to stop, if so.
    pub fn stopping(&self) -> Option<StopReason> {
        self.state.lock().stop
    }

    /// Fails if the plan is being stopped.
    pub fn check(&self) -> Outcome<()> {
        self.seen();
        if self.stopping().is_some() { Err(Fault::stopped()) } else { Ok(()) }
    }

    /// Sleeps, or fails as soon as the plan is being stopped.
    pub fn sleep(&self, time: Duration) -> Outcome<()> {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        while state.stop.is_none() && Instant::now() < end {
            self.seen();
            self.changed.wait_until(&mut state, end.min(Instant::now() + BEAT_EVERY));
        }
        self.seen();
        if state.stop.is_some() { Err(Fault::stopped()) } else { Ok(()) }
    }

    /// Changes the rate limit; sleepers notice at once.
    pub fn set_rate(&self, rate_bytes_per_s: u64) {
        let mut state = self.state.lock();
        state.plan_bytes_per_s = rate_bytes_per_s;
        self.apply_rate(&mut state);
    }

    /// Divides the rate limit among so many servers, of which this is one; tells what each has
    /// (0: no limit).
    pub fn divide(&self, servers: u64) -> u64 {
        let mut state = self.state.lock();
        if state.servers != servers {
            state.servers = servers.max(1);
            self.apply_rate(&mut state);
        }
        state.bucket.rate_bytes_per_s
    }

    fn apply_rate(&self, state: &mut PaceState) {
        let rate_bytes_per_s = match state.plan_bytes_per_s {
            0 => 0,
            rate => (rate / state.servers).max(1),
        };
        if rate_bytes_per_s == state.bucket.rate_bytes_per_s {
            return;
        }
        state.bucket.refill();
        state.bucket.rate_bytes_per_s = rate_bytes_per_s;
        state.bucket.tokens_bytes = state.bucket.tokens_bytes.min(0.0);
        self.changed.notify_all();
    }

    /// Largest piece to copy at once: small enough that a limited plan flows evenly.
    pub fn piece_bytes(&self, most_bytes: u64) -> u64 {
        match self.state.lock().bucket.rate_bytes_per_s {
            0 => most_bytes,
            rate => (rate / 10).clamp(MIN_PIECE_BYTES, most_bytes),
        }
    }

    /// Takes `bytes` from the bucket, waiting until it is not overdrawn.
    pub fn take(&self, bytes: u64) -> Outcome<()> {
        self.seen();
        let mut state = self.state.lock();
        if state.stop.is_some() {
            return Err(Fault::stopped());
        }
        self.take_metered(&mut state, bytes)?;
        if state.bucket.rate_bytes_per_s == 0 {
            return Ok(());
        }
        state.bucket.refill();
        state.bucket.tokens_bytes -= bytes as f64;
        loop {
            if state.stop.is_some() {
                return Err(Fault::stopped());
            }
            state.bucket.refill();
            let bucket = &state.bucket;
            if bucket.rate_bytes_per_s == 0 || bucket.tokens_bytes >= 0.0 {
                return Ok(());
            }
            self.seen();
            let wait_s = -bucket.tokens_bytes / bucket.rate_bytes_per_s as f64;
            self.changed.wait_for(&mut state, Duration::from_secs_f64(wait_s.clamp(0.001, 1.0)));
        }
    }

    fn take_metered(&self, state: &mut MutexGuard<'_, PaceState>, bytes: u64) -> Outcome<()> {
        if let Some(meter) = &mut state.meter {
            meter.taken_bytes += bytes;
        }
        while let Some(meter) = &state.meter {
            if state.stop.is_some() || meter.heard.elapsed() > meter.patience {
                return Err(Fault::stopped());
            }
            if meter.taken_bytes <= meter.allowed_bytes {
                break;
            }
            self.changed.wait_for(state, METER_LOOK);
        }
        Ok(())
    }
}

impl Bucket {
    fn refill(&mut self) {
        let now = Instant::now();
        let rate = self.rate_bytes_per_s as f64;
        let earned = now.duration_since(self.filled).as_secs_f64() * rate;
        self.filled = now;
        self.tokens_bytes = match self.rate_bytes_per_s {
            0 => 0.0,
            _ => (self.tokens_bytes + earned).min(rate * BURST_S),
        };
    }
}
