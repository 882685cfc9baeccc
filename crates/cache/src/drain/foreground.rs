//! Foreground first: a drain gives way while an application reads or writes through the cache.
//!
//! What a drain takes from the application is processor time (copies, checksums) and with it the
//! turn at flash; waiting for a slow PFS takes nothing. So each worker counts its own processor time,
//! and while the application is active it pauses for several times as long, less what it
//! waited anyway ([`pause_owed`]). Bounded: a drain is slowed but
//! never stopped; where writers wait for room there is no pause.

use super::super::CacheFs;
use forebay_policy::pace::pause_owed;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

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

impl Turn {
    /// From now on.
    pub fn begin() -> Turn {
        Turn { began: Instant::now(), cpu: used() }
    }

    /// Called between pieces, with no lock held that the application could wait for.
    pub fn give_way(&mut self, fs: &CacheFs) {
        let pause = pause_owed(used().saturating_sub(self.cpu), self.began.elapsed());
        let until = Instant::now() + pause;
        while fs.foreground_is_active()
            && !fs.drain_list.is_pressed()
            && !fs.drain_list.is_stopping()
        {
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
