//! Waiting for what a change over shards has locked: without a lock of our own, for a random time,
//! so that two who are in each other's way do not stay so; and not for ever.

use crate::Namespace;
use forebay_proto::{Errno, Result, Timing};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Longest pause at first and later.
const PAUSE_FIRST: Duration = Duration::from_micros(500);
const PAUSE_LONGEST: Duration = Duration::from_millis(50);

/// How long one operation has waited.
pub struct Patience {
    until: Instant,
    pause: Duration,
    random: RandomState,
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pauses: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::new()
    }
}

impl Patience {
    /// Of somebody who has not waited yet.
    pub fn new() -> Patience {
        let until = Instant::now() + Timing::current().retry;
        Patience {
            until,
            pause: PAUSE_FIRST,
            random: RandomState::new(),
            #[cfg(any(debug_assertions, feature = "failpoints"))]
            pauses: 0,
        }
    }

    #[cfg(any(debug_assertions, feature = "failpoints"))]
    fn pause_by_hand(&mut self) -> Option<bool> {
        self.pauses += 1;
        super::testing::pause(self.pauses)
    }

    /// Between a quarter of the pause and all of it.
    fn next(&mut self) -> Duration {
        let thousandths = 250 + self.random.hash_one(self.pause) % 750;
        let pause = self.pause * thousandths as u32 / 1000;
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        pause
    }
}

impl Namespace {
    /// Waits a moment after ERESTART. ETIMEDOUT when it was long enough: what is in the way is held
    /// by a server that is away.
    pub fn wait_for_shards(&self, patience: &mut Patience) -> Result<()> {
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if let Some(goes_on) = patience.pause_by_hand() {
            return if goes_on { Ok(()) } else { Err(Errno::ETIMEDOUT) };
        }
        if Instant::now() >= patience.until {
            return Err(Errno::ETIMEDOUT);
        }
        self.pause_for_shards(patience);
        Ok(())
    }

    /// Whether an operation that failed so is worth another attempt, after a moment: a server that it
    /// needs is away, and not for long yet, or is back: its answer was lost with a connection while another
    /// question was answered. Nothing was decided then.
    pub fn wait_for_server(&self, errno: Errno, patience: &mut Patience) -> bool {
        let Some(shards) = &self.shards else { return false };
        let was_away = matches!(errno, Errno::EHOSTUNREACH | Errno::ETIMEDOUT);
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if was_away && let Some(goes_on) = patience.pause_by_hand() {
            return goes_on;
        }
        let waits = was_away
            && match shards.away_for() {
                Some(away) => away < *shards.patience.read(),
                None => Instant::now() < patience.until,
            };
        if waits {
            self.pause_for_shards(patience);
        }
        waits
    }

    /// Does an operation of the server itself, again and again while something that it is about is
    /// locked, or a server that it needs is away.
    pub fn again<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let mut patience = Patience::new();
        loop {
            match operation() {
                Err(Errno::ERESTART) => self.wait_for_shards(&mut patience)?,
                Err(errno) if self.wait_for_server(errno, &mut patience) => {}
                other => return other,
            }
        }
    }

    fn pause_for_shards(&self, patience: &mut Patience) {
        let pause = patience.next();
        match &self.shards {
            Some(shards) => shards.holds().pause(pause),
            None => std::thread::sleep(pause),
        }
    }
}
