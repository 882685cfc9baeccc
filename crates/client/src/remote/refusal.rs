//! A server that refuses this mount: its buffer was destroyed, or made anew with another secret.
//!
//! Calls then fail at once with EIO. The server is asked again after a pause that doubles
//! ([`PAUSE_FIRST`] to [`PAUSE_LONGEST`]), because what it refuses may come back, and the log says it
//! once for each reason. Used by [`super::peer`].

use forebay_proto::net::auth::Refusal;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// First and longest time in which a server that has refused is not asked.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);

struct Refused {
    why: String,
    until: Instant,
    pause: Duration,
}

/// Whether the server refuses this mount.
#[derive(Default)]
pub(super) struct Refusals {
    last: Mutex<Option<Refused>>,
    /// There is one: so that each call does not need the lock.
    some: AtomicBool,
}

impl Refusals {
    /// True while it need not be asked.
    pub(super) fn is_refused(&self) -> bool {
        self.some.load(Ordering::Acquire)
            && self.last.lock().as_ref().is_some_and(|refused| Instant::now() < refused.until)
    }

    /// It has refused; true if that is to be said.
    pub(super) fn refused(&self, refusal: &Refusal) -> bool {
        let mut last = self.last.lock();
        let (is_new, pause) = match &*last {
            // Several calls that were under way count as one.
            Some(before) if before.why == refusal.why && Instant::now() < before.until => {
                return false;
            }
            Some(before) => (before.why != refusal.why, (before.pause * 2).min(PAUSE_LONGEST)),
            None => (true, PAUSE_FIRST),
        };
        self.some.store(true, Ordering::Release);
        *last = Some(Refused { why: refusal.why.clone(), until: Instant::now() + pause, pause });
        is_new
    }

    /// It has answered.
    pub(super) fn over(&self) {
        if self.some.swap(false, Ordering::AcqRel) && self.last.lock().take().is_some() {
            tracing::warn!("the server does not refuse this mount any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(why: &str) -> Refusal {
        Refusal { errno: libc::ENOENT, why: why.into(), hint: None }
    }

    #[test]
    fn a_reason_is_said_once_and_the_pauses_grow() {
        let refusals = Refusals::default();
        assert!(!refusals.is_refused());
        assert!(refusals.refused(&refusal("gone")) && refusals.is_refused());
        assert!(!refusals.refused(&refusal("gone")), "it was said");
        for times in 1..20 {
            let pause = {
                let mut last = refusals.last.lock();
                let last = last.as_mut().unwrap();
                last.until = Instant::now();
                last.pause
            };
            assert_eq!(pause, (PAUSE_FIRST * (1 << (times - 1))).min(PAUSE_LONGEST));
            assert!(!refusals.is_refused());
            assert!(!refusals.refused(&refusal("gone")) && refusals.is_refused());
        }
        assert!(refusals.refused(&refusal("another secret")));
        refusals.over();
        assert!(!refusals.is_refused());
    }
}
