//! When the machine stood still: a test that fails meanwhile may say nothing of what is tested.
//!
//! A thread sleeps for a moment again and again. Where much more time has gone than it slept, nothing of this process ran: the
//! machine, or its host, was stopped or starved.
//!
//! Called by [`run`](crate::run).

use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long it sleeps.
const SLEEP: Duration = Duration::from_millis(100);
/// So long from one look to the next is no late turn of a busy processor.
const STALL_LEAST: Duration = Duration::from_secs(1);

/// The stalls seen so far, each from the last look before it to the first one after it.
#[derive(Clone, Default)]
pub struct Stalls(Arc<Mutex<Vec<(Instant, Instant)>>>);

impl Stalls {
    /// Looks from now on, until the process ends.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch() -> Result<Stalls> {
        let stalls = Stalls::default();
        let noted = stalls.clone();
        let look = move || {
            let mut before = Instant::now();
            loop {
                std::thread::sleep(SLEEP);
                let now = Instant::now();
                noted.look(before, now);
                before = now;
            }
        };
        std::thread::Builder::new()
            .name("stalls".into())
            .spawn(look)
            .context("cannot start the thread that looks for stalls")?;
        Ok(stalls)
    }

    /// A look, with when the one before it was.
    fn look(&self, before: Instant, now: Instant) {
        let took = now.saturating_duration_since(before);
        if took >= STALL_LEAST {
            println!("the machine stood still for {:.1} s", took.as_secs_f64());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push((before, now));
        }
    }

    /// The longest that met the time between these, if there was one.
    pub fn longest_within(&self, from: Instant, to: Instant) -> Option<Duration> {
        let stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let met = stalls.iter().filter(|(began, ended)| *began <= to && *ended >= from);
        met.map(|(began, ended)| ended.saturating_duration_since(*began)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_comes_a_second_late_is_a_stall_of_who_ran_meanwhile() {
        let (stalls, start) = (Stalls::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        stalls.look(at(0), at(100));
        stalls.look(at(100), at(1_000));
        assert_eq!(stalls.longest_within(at(0), at(5_000)), None, "a busy processor");
        stalls.look(at(1_000), at(3_500));
        stalls.look(at(3_500), at(4_600));
        let longest = |from, to| stalls.longest_within(at(from), at(to));
        assert_eq!(longest(0, 5_000), Some(Duration::from_millis(2_500)));
        assert_eq!(longest(3_600, 5_000), Some(Duration::from_millis(1_100)));
        assert_eq!(longest(2_000, 2_100), Some(Duration::from_millis(2_500)), "within it");
        assert_eq!(longest(0, 900), None, "it had ended");
        assert_eq!(longest(4_700, 5_000), None, "it began later");
    }
}
