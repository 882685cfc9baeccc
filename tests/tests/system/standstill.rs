//! For how long the machine stood still, as a thread sees that sleeps for a moment again and again: where much more time has gone
//! than it slept, nothing of this process ran. A test that measures how long a call takes does not count that time.
//!
//! Invariant: what is told grows only, and has what is under way at the time of the question. Used by `shared_links`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps.
const SLEEP: Duration = Duration::from_millis(20);
/// So much more than it slept is no late turn of a busy processor.
const LEAST: Duration = Duration::from_millis(250);

/// What was seen by the last look.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    stood: Duration,
}

impl Seen {
    /// All time without a turn until `now`.
    fn until(self, now: Instant) -> Duration {
        let late = now.saturating_duration_since(self.at).saturating_sub(SLEEP);
        self.stood + if late >= LEAST { late } else { Duration::ZERO }
    }
}

/// Looks until it is dropped.
pub struct Standstill {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Standstill {
    /// Looks from now on.
    pub fn watch() -> Standstill {
        let seen = Arc::new(Mutex::new(Seen { at: Instant::now(), stood: Duration::ZERO }));
        let over = Arc::new(AtomicBool::new(false));
        let (noted, ended) = (Arc::clone(&seen), Arc::clone(&over));
        let look = move || {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(SLEEP);
                let mut seen = noted.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                *seen = Seen { at: now, stood: seen.until(now) };
            }
        };
        Standstill { seen, over, thread: Some(std::thread::spawn(look)) }
    }

    /// For how long the machine stood still since the start.
    pub fn so_far(&self) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.until(Instant::now())
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nothing_ran_is_counted_and_late_turns_are_not() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let seen = Seen { at: start, stood: Duration::from_secs(1) };
        assert_eq!(seen.until(at(20)), Duration::from_secs(1));
        assert_eq!(seen.until(at(200)), Duration::from_secs(1), "a busy processor");
        assert_eq!(seen.until(at(3_020)), Duration::from_secs(4));
        let later = Seen { at: at(3_020), stood: seen.until(at(3_020)) };
        assert_eq!(later.until(at(3_040)), Duration::from_secs(4));
        assert_eq!(later.until(start), Duration::from_secs(4), "a look from before");
    }
}
