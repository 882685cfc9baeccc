//! Foreground first: a drain gives way while an application reads or writes through the cache.
//!
//! What a drain takes from the application is processor time (copies, checksums) and with it the
//! turn at flash; waiting for a slow PFS takes nothing. So each worker counts its own processor time,
//! and while the application is active it pauses for several times as long, less what it
//! waited anyway ([`pause_owed`]). Bounded: a drain is slowed but
//! never stopped; where writers wait for room there is no pause. What a kernel that has a file itself does with it is
//! not seen, so a drain gives way while one has; one that somebody waits for gives way only to what is seen
//! ([`gives_way`]): requests, and files whose times say that they are being written.

use super::super::counters::Counters;
use super::super::file::{CacheFile, DrainedOpen};
use super::super::flash::Flash;
use super::super::parts::Parts;
use super::super::pfs::nanoseconds;
use super::DrainList;
use forebay_policy::pace::{Seen, gives_way, pause_owed};
use forebay_proto::{Ino, Timestamp};
use forebay_store::objects::ObjectStat;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pause ends early when nobody is active any more: how often it is looked.
const LOOK: Duration = Duration::from_millis(4);
/// Looks at open files take at most one part in so many of a worker's time.
const LOOK_SHARE: u32 = 20;
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

    /// Called between pieces of a file, with no lock held that the application could wait for.
    pub fn give_way(&mut self, foreground: &Foreground, ino: Ino) {
        let pause = pause_owed(used().saturating_sub(self.cpu), self.began.elapsed());
        let until = Instant::now() + pause;
        while !pause.is_zero()
            && foreground.is_active(ino)
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

/// What the last look at the files that kernels have open has shown.
#[derive(Default)]
struct KernelWrites {
    look_again: Option<Instant>,
    ago: Option<Duration>,
}

/// What applications do with a cache meanwhile, as far as it can be seen.
pub(crate) struct Foreground {
    flash: Arc<Flash>,
    counters: Arc<Counters>,
    drain_list: Arc<DrainList>,
    kernel_writes: Mutex<KernelWrites>,
}

impl Foreground {
    pub fn new(parts: &Parts) -> Foreground {
        Foreground {
            flash: parts.flash.clone(),
            counters: parts.counters.clone(),
            drain_list: parts.drain_list.clone(),
            kernel_writes: Mutex::default(),
        }
    }
}

impl Foreground {
    /// When the application wrote last, as far as it can be seen.
    pub(crate) fn last_foreground_write(&self) -> Option<Instant> {
        self.counters.last_write().max(self.last_kernel_write())
    }

    /// When a kernel wrote a file itself last, by the objects of open ones.
    fn last_kernel_write(&self) -> Option<Instant> {
        let mut last: Option<Instant> = None;
        let listed = self.drain_list.files();
        let open = listed.iter().filter(|file| file.state.lock().opens.by_kernel() > 0);
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

    /// How long ago a kernel wrote a file itself, when that was looked at last: all workers look together.
    fn kernel_wrote_ago(&self) -> Option<Duration> {
        if self.counters.kernel_writes() == 0 {
            return None;
        }
        let mut seen = self.kernel_writes.lock();
        let now = Instant::now();
        if seen.look_again.is_none_or(|then| then <= now) {
            seen.ago = self.last_kernel_write().map(|at| at.elapsed());
            // Many listed files take long to go through.
            seen.look_again = Some(Instant::now() + LOOK.max(now.elapsed() * LOOK_SHARE));
        }
        seen.ago
    }

    /// True if the drain of a file gives way to an application that reads or writes, or could without being seen.
    pub(crate) fn is_active(&self, ino: Ino) -> bool {
        let seen = Seen {
            request_ago: self.counters.last_use().map(|at| at.elapsed()),
            kernels_have_files: self.counters.kernel_opens() > 0,
            is_waited_for: self.drain_list.is_asked(ino),
        };
        gives_way(&seen, || self.kernel_wrote_ago())
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
