//! Waiting for what a change over shards has locked: without a lock of our own, for a random time,
//! so that two who are in each other's way do not stay so; and not for ever.

use super::links::ShardLinks;
use crate::holds::Holds;
use forebay_proto::{Errno, Result, ShardId, Timing};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause at first and later.
const PAUSE_FIRST: Duration = Duration::from_micros(500);
const PAUSE_LONGEST: Duration = Duration::from_millis(50);
/// How long a shard is asked again to apply what is decided, if its answer was lost with a connection: clients that reach it see the
/// old state until then.
const APPLY_AGAIN: Duration = Duration::from_secs(5);
/// The same if it cannot be reached: so, most likely, nobody sees what it has.
const REACH_AGAIN: Duration = Duration::from_millis(500);

/// How long one operation has waited.
pub struct Patience {
    begun: Instant,
    retry: Duration,
    pause: Duration,
    random: RandomState,
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    pauses: u32,
}

/// Whether an operation that has waited for so long waits on for a server. The one that was lost last has been `away` for as long: that
/// may be another one than is needed, and lost again and again, so there is an end to it.
fn waits_on(
    away: Option<Duration>,
    waited: Duration,
    (patience, retry): (Duration, Duration),
) -> bool {
    match away {
        Some(away) => away < patience && waited < patience + retry,
        None => waited < retry,
    }
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::new()
    }
}

impl Patience {
    /// Of somebody who has not waited yet.
    pub fn new() -> Patience {
        Patience {
            begun: Instant::now(),
            retry: Timing::current().retry,
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

    /// Whether a shard that failed so is asked once more, after a moment, to apply what is decided; which it may be as often as one likes.
    /// One that has been away for long is not waited for.
    pub(super) fn applies_again(
        &mut self,
        (shard, errno): (ShardId, Errno),
        links: &ShardLinks,
        holds: &Holds,
    ) -> bool {
        let longest = match errno {
            Errno::ETIMEDOUT => APPLY_AGAIN,
            Errno::EHOSTUNREACH => REACH_AGAIN,
            _ => return false,
        };
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if let Some(goes_on) = self.pause_by_hand() {
            return goes_on;
        }
        let longest = longest.min(links.patience());
        let away = links.has_been_away(shard).unwrap_or_default();
        let goes_on = self.begun.elapsed().max(away) < longest;
        if goes_on {
            holds.pause(self.next());
        }
        goes_on
    }

    /// Between a quarter of the pause and all of it.
    fn next(&mut self) -> Duration {
        let thousandths = 250 + self.random.hash_one(self.pause) % 750;
        let pause = self.pause * thousandths as u32 / 1000;
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        pause
    }
}

/// Waits for other shards. In a buffer of one, nobody has to.
pub struct ShardWaits {
    holds: Arc<Holds>,
    links: Option<Arc<ShardLinks>>,
}

impl ShardWaits {
    /// For what `holds` has, and for the shards of `links`.
    pub(crate) fn new(holds: Arc<Holds>, links: Option<Arc<ShardLinks>>) -> ShardWaits {
        ShardWaits { holds, links }
    }

    /// Waits a moment after ERESTART. ETIMEDOUT when it was long enough: what is in the way is held
    /// by a server that is away.
    pub fn pause(&self, patience: &mut Patience) -> Result<()> {
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if let Some(goes_on) = patience.pause_by_hand() {
            return if goes_on { Ok(()) } else { Err(Errno::ETIMEDOUT) };
        }
        if patience.begun.elapsed() >= patience.retry {
            return Err(Errno::ETIMEDOUT);
        }
        self.sleep(patience);
        Ok(())
    }

    /// Whether an operation that failed so is worth another attempt, after a moment: a server that it
    /// needs is away, and not for long yet, or is back: its answer was lost with a connection while another
    /// question was answered. Nothing was decided then.
    pub fn wait_for_server(&self, errno: Errno, patience: &mut Patience) -> bool {
        let Some(links) = &self.links else { return false };
        let was_away = matches!(errno, Errno::EHOSTUNREACH | Errno::ETIMEDOUT);
        #[cfg(any(debug_assertions, feature = "failpoints"))]
        if was_away && let Some(goes_on) = patience.pause_by_hand() {
            return goes_on;
        }
        let times = (links.patience(), patience.retry);
        let waits = was_away && waits_on(links.away_for(), patience.begun.elapsed(), times);
        if waits {
            self.sleep(patience);
        }
        waits
    }

    /// Does an operation of the server itself, again and again while something that it is about is
    /// locked, or a server that it needs is away.
    pub fn again<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let mut patience = Patience::new();
        loop {
            match operation() {
                Err(Errno::ERESTART) => self.pause(&mut patience)?,
                Err(errno) if self.wait_for_server(errno, &mut patience) => {}
                other => return other,
            }
        }
    }

    fn sleep(&self, patience: &mut Patience) {
        let pause = patience.next();
        self.holds.pause(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_comes_and_goes_makes_nobody_wait_for_another_one_without_end() {
        let seconds = Duration::from_secs;
        let times = (seconds(40), seconds(30));
        let waits = |away, waited| waits_on(away, seconds(waited), times);
        assert!(waits(Some(seconds(39)), 39) && !waits(Some(seconds(40)), 1));
        // Lost a moment ago, by what was lost before.
        assert!(waits(Some(seconds(0)), 69) && !waits(Some(seconds(0)), 70));
        assert!(waits(None, 29) && !waits(None, 30));
        assert!(!waits_on(Some(seconds(0)), seconds(0), (Duration::ZERO, seconds(30))));
    }
}
