//! Attempts of a step of a run: which failures are tried again, how often, and how long is waited between.
//!
//! Invariants: another server of the buffer that does not answer is waited for without an end and costs no attempt; a PFS that
//! is gone stops the plan, because each further file would fail alike. Called by all that work on a run.

use super::fault::{Fault, Outcome, Sort};
use super::parts::Parts;
use super::pfs_watch::PfsWatch;
use super::request::PlanRequest;
use super::stop::{Pace, StopReason};
use forebay_proto::Errno;
use std::sync::Arc;
use std::time::Duration;

/// First pause before a retry, in milliseconds; it doubles each time.
const BACKOFF_FIRST_MS: u64 = 100;
/// Longest pause before a retry, in milliseconds.
const BACKOFF_MOST_MS: u64 = 5_000;
/// Pause before another server of the buffer that does not answer is asked again.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// The rules of one run.
pub(super) struct Retry {
    request: Arc<PlanRequest>,
    pace: Arc<Pace>,
    parts: Arc<Parts>,
    watch: Arc<PfsWatch>,
    /// The buffer has several servers.
    has_peers: bool,
}

impl Retry {
    /// Of a run whose buffer has other servers, or not.
    pub fn new(
        request: Arc<PlanRequest>,
        pace: Arc<Pace>,
        parts: Arc<Parts>,
        watch: Arc<PfsWatch>,
        has_peers: bool,
    ) -> Retry {
        Retry { request, pace, parts, watch, has_peers }
    }

    /// Tries a step, given the number of the attempt (from 1), until it succeeds or no attempt is left; then the last
    /// failure and the number of its attempt.
    pub fn call<T>(&self, mut step: impl FnMut(u32) -> Outcome<T>) -> Result<T, (Fault, u32)> {
        let mut attempt = 1;
        loop {
            match step(attempt) {
                Ok(value) => return Ok(value),
                Err(fault) => attempt = self.pause(fault, attempt)?,
            }
        }
    }

    /// Waits before the next attempt and tells its number, or says that there is none.
    pub fn pause(&self, fault: Fault, attempt: u32) -> Result<u32, (Fault, u32)> {
        if self.is_away(&fault) {
            // Waited for until the plan is stopped: no attempt of the item.
            self.parts.note_away();
            let slept = self.pace.sleep(AWAY_PAUSE);
            return slept.map(|()| attempt).map_err(|stop| (stop, attempt));
        }
        if !fault.is_retryable() || attempt > self.request.spec.retries {
            return Err((fault, attempt));
        }
        let pause_ms = BACKOFF_FIRST_MS << (attempt - 1).min(10);
        tracing::info!(plan = %self.request.plan, what = fault.what, errno = %fault.errno, attempt,
            "will be tried again");
        let slept = self.pace.sleep(Duration::from_millis(pause_ms.min(BACKOFF_MOST_MS)));
        slept.map_err(|stop| (stop, attempt))?;
        match self.watch.check() {
            Err(gone) if is_gone(&gone) => {
                // Each further file would fail alike, after all its retries.
                self.pace.stop(StopReason::Error);
                Err((gone, attempt))
            }
            // The next attempt tells more.
            _ => Ok(attempt + 1),
        }
    }

    /// True if another server of the buffer does not answer, or not yet.
    fn is_away(&self, fault: &Fault) -> bool {
        use Errno as E;
        self.has_peers
            && fault.side == self.request.buffer_side()
            && fault.sort == Sort::System
            && [E::EHOSTUNREACH, E::ETIMEDOUT].contains(&fault.errno)
    }
}

/// Whether a failed [`PfsWatch::check`] says that there is no use in going on.
pub(super) fn is_gone(fault: &Fault) -> bool {
    use Errno as E;
    fault.sort == Sort::Refused || [E::ENOTCONN, E::ENODEV, E::ENXIO].contains(&fault.errno)
}
