//! Foreground first: a drain gives way while an application reads or writes through the cache.
//!
//! What a drain takes from the application is processor time (copies, checksums) and with it the
//! turn at flash; waiting for a slow PFS takes nothing. So each worker counts its own processor time,
//! and while the application is active it pauses for several times as long, less what it
//! waited anyway ([`pause_owed`]). Bounded: a drain is slowed but
//! never stopped; where writers wait for room there is no pause.

use super::super::counters::Counters;
use super::super::file::{CacheFile, DrainedOpen};
use super::super::flash::Flash;
use super::super::parts::Parts;
use super::super::pfs::nanoseconds;
use super::DrainList;
use forebay_policy::pace::pause_owed;
use forebay_proto::Timestamp;
use forebay_store::objects::ObjectStat;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pause ends early when the application has been silent for so long.
const SILENCE: Duration = Duration::from_millis(20);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(4);

/// Open files that are looked at to see whether kernels write.
const KERNEL_FILES_SEEN_MAX: usize = 32;
/// Times of writes so far in the future are of a clock that was set back since, in nanoseconds.
const FUTURE_NS: i128 = 1_000_000_000;

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
    pub fn give_way(&mut self, foreground: &Foreground) {
        let pause = pause_owed(used().saturating_sub(self.cpu), self.began.elapsed());
        let until = Instant::now() + pause;
        while foreground.is_active()
            && !foreground.drain_list.is_pressed()
            && !foreground.drain_list.is_stopping()
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

/// What applications do with a cache meanwhile, as far as it can be seen.
pub(crate) struct Foreground {
    flash: Arc<Flash>,
    counters: Arc<Counters>,
    drain_list: Arc<DrainList>,
}

impl Foreground {
    pub fn new(parts: &Parts) -> Foreground {
        Foreground {
            flash: parts.flash.clone(),
            counters: parts.counters.clone(),
            drain_list: parts.drain_list.clone(),
        }
    }
}

impl Foreground {
    /// When the application wrote last, as far as it can be seen.
    pub(crate) fn last_foreground_write(&self) -> Option<Instant> {
        let mut last = self.counters.last_write();
        let listed = self.drain_list.files();
        let open = listed.iter().filter(|file| file.state.lock().locals > 0);
        for file in open.take(KERNEL_FILES_SEEN_MAX) {
            let Some(ago) = self.written_ago(file) else { continue };
            last = last.max(Instant::now().checked_sub(ago));
        }
        last
    }

    /// True if a file still is what was drained of it while it was open.
    pub(crate) fn has_nothing_since(&self, file: &CacheFile, drained: &DrainedOpen) -> bool {
        self.flash.stat(file.ino).is_ok_and(|object| drained.has(&object))
    }

    /// How long ago the data of a file was written, by its object.
    pub(crate) fn written_ago(&self, file: &CacheFile) -> Option<Duration> {
        age_of(&self.flash.stat(file.ino).ok()?)
    }

    /// True if an application reads or writes, or could without being seen: a kernel that has a
    /// file itself makes no requests.
    fn is_active(&self) -> bool {
        let recent = self.counters.last_use().is_some_and(|at| at.elapsed() < SILENCE);
        recent || self.counters.kernel_opens() > 0
    }
}

/// How long ago an object was written; `None` if its clock cannot tell.
pub(super) fn age_of(object: &ObjectStat) -> Option<Duration> {
    let now = Timestamp::now();
    let age = nanoseconds(now) - nanoseconds(object.mtime);
    // Else the clock was set back since: it has not been written since then.
    (age >= -FUTURE_NS)
        .then(|| Duration::from_nanos(age.clamp(0, i128::from(u32::MAX) * 1_000) as u64))
}
