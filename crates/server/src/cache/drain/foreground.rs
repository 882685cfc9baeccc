//! Foreground first: a drain gives way while an application reads or writes through the cache.
//!
//! What a drain takes from the application is processor time (copies, checksums) and with it the
//! turn at flash; waiting for a slow PFS takes nothing. So each worker counts its own processor time,
//! and while the application is active it pauses for [`GIVE_WAY_TIMES`] times as long, less what it
//! waited anyway. Bounded: a pause is at most [`GIVE_WAY_MAX`] for each piece, so a drain is slowed but
//! never stopped; where writers wait for room there is no pause.

use super::super::CacheFs;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Pause for each bit of processor time that was used.
const GIVE_WAY_TIMES: u32 = 4;
/// Longest pause for one piece.
const GIVE_WAY_MAX: Duration = Duration::from_millis(100);
/// A pause ends early when the application has been silent for so long.
const SILENCE: Duration = Duration::from_millis(20);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(4);

/// What a worker has used since its last pause.
pub(crate) struct Turn {
    began: Instant,
    cpu: Duration,
}

/// Processor time of this thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

/// The pause that is owed for this much processor time out of so much time.
fn owed(cpu: Duration, passed: Duration) -> Duration {
    let waited = passed.saturating_sub(cpu);
    (cpu * GIVE_WAY_TIMES).saturating_sub(waited).min(GIVE_WAY_MAX)
}

impl Turn {
    /// From now on.
    pub fn begin() -> Turn {
        Turn { began: Instant::now(), cpu: used() }
    }

    /// Called between pieces, with no lock held that the application could wait for.
    pub fn give_way(&mut self, fs: &CacheFs) {
        let pause = owed(used().saturating_sub(self.cpu), self.began.elapsed());
        let until = Instant::now() + pause;
        while fs.foreground_is_active() && !fs.drainer.is_pressed() && !fs.drainer.is_stopping() {
            let now = Instant::now();
            if now >= until {
                break;
            }
            std::thread::sleep(LOOK.min(until - now));
        }
        *self = Turn::begin();
    }
}

impl CacheFs {
    /// True if an application reads or writes, or could without being seen: a kernel that has a
    /// file itself makes no requests.
    fn foreground_is_active(&self) -> bool {
        let recent = self.counters.last_use().is_some_and(|at| at.elapsed() < SILENCE);
        recent || self.counters.kernel_opens() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_owed_for_processor_time_and_not_for_waiting() {
        let ms = Duration::from_millis;
        assert_eq!(owed(ms(3), ms(3)), ms(12));
        assert_eq!(owed(ms(3), ms(8)), ms(7));
        // A slow PFS is pause enough.
        assert_eq!(owed(ms(3), ms(40)), Duration::ZERO);
        assert_eq!(owed(ms(500), ms(500)), GIVE_WAY_MAX);
    }
}
