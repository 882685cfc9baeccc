//! When a dirty file drains that nobody asked for: by its policy, and by what programs do meanwhile.
//!
//! Called by the workers of the drain for what is next in the list, and by `sums` for a quiet moment.

use super::super::CacheFs;
use super::super::file::CacheFile;
use super::super::pfs::nanoseconds;
use super::super::record::State;
use super::LOOK_AGAIN;
use super::policy::When;
use crate::objects::ObjectStat;
use forebay_proto::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest that a file waits for a quiet moment.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(60);
/// Shortest pause between two looks whether an open file was written.
const OPEN_LOOK_MIN: Duration = Duration::from_secs(1);
/// Open files that are looked at to see whether kernels write.
const KERNEL_FILES_SEEN_MAX: usize = 32;
/// Times of writes so far in the future are of a clock that was set back since, in nanoseconds.
const FUTURE_NS: i128 = 1_000_000_000;

impl CacheFs {
    /// When a file may drain that nobody asked for; `None` = now.
    pub(super) fn not_before(
        &self,
        file: &Arc<CacheFile>,
        since: Instant,
        now: Instant,
    ) -> Option<Instant> {
        let (waits, opens, last_write, kernel_writes) = {
            let state = file.state.lock();
            let waits = state.record.state == State::Conflict || state.is_lost();
            (waits, state.opens, state.last_write, state.may_kernel_write())
        };
        if waits {
            return Some(now + LOOK_AGAIN);
        }
        let policy = self.policy_of(file.number());
        if self.drainer.is_pressed() && policy.when != When::Never && !kernel_writes {
            return None;
        }
        let due = self.limit_of(&policy, since)?;
        let at = match policy.when {
            When::Never | When::End => Some(now + LOOK_AGAIN),
            When::Close if opens == 0 => None,
            When::Close => Some(now + LOOK_AGAIN),
            When::Idle(quiet) => {
                self.not_before_quiet(file, quiet, since, now, last_write, kernel_writes)
            }
        }?;
        Some(due.map_or(at, |due| at.min(due)))
    }

    /// The same for who waits for a quiet moment.
    fn not_before_quiet(
        &self,
        file: &Arc<CacheFile>,
        quiet: Duration,
        since: Instant,
        now: Instant,
        last_write: Instant,
        kernel_writes: bool,
    ) -> Option<Instant> {
        if kernel_writes && let Some(later) = self.not_before_open(file, quiet, now) {
            return Some(later);
        }
        let own = last_write + quiet;
        if own > now {
            return Some(own);
        }
        if now.saturating_duration_since(since) > QUIET_WAIT_MAX.max(quiet * 2) {
            return None;
        }
        let busy = self.last_foreground_write()? + quiet;
        (busy > now).then_some(busy)
    }

    /// A file that a kernel has open for writing stays dirty, but what was written there is to be on the PFS all the
    /// same: a log that is open for days. When it may drain; `None` = now.
    fn not_before_open(
        &self,
        file: &Arc<CacheFile>,
        quiet: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let Ok(object) = self.flash.stat(file.ino) else { return Some(now + QUIET_WAIT_MAX) };
        let Some(ago) = age_of(&object) else { return Some(now + QUIET_WAIT_MAX) };
        if ago < quiet {
            return Some(now + (quiet - ago));
        }
        let state = file.state.lock();
        let nothing_new = state.drained_open.is_some_and(|open| open.has(&object));
        if nothing_new || state.is_untouched(&object) {
            return Some(now + (ago / 8).clamp(quiet.max(OPEN_LOOK_MIN), QUIET_WAIT_MAX));
        }
        state.drained_open.map(|open| open.not_again_before).filter(|until| *until > now)
    }

    /// When the application wrote last, as far as it can be seen.
    pub(super) fn last_foreground_write(&self) -> Option<Instant> {
        let mut last = self.counters.last_write();
        let listed = self.drainer.files();
        let open = listed.iter().filter(|file| file.state.lock().locals > 0);
        for file in open.take(KERNEL_FILES_SEEN_MAX) {
            let Some(ago) = self.written_ago(file) else { continue };
            last = last.max(Instant::now().checked_sub(ago));
        }
        last
    }

    /// How long ago the data of a file was written, by its object.
    pub(super) fn written_ago(&self, file: &CacheFile) -> Option<Duration> {
        age_of(&self.flash.stat(file.ino).ok()?)
    }
}

/// How long ago an object was written; `None` if its clock cannot tell.
fn age_of(object: &ObjectStat) -> Option<Duration> {
    let now = Timestamp::now();
    let age = nanoseconds(now) - nanoseconds(object.mtime);
    // Else the clock was set back since: it has not been written since then.
    (age >= -FUTURE_NS)
        .then(|| Duration::from_nanos(age.clamp(0, i128::from(u32::MAX) * 1_000) as u64))
}
