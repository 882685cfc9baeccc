//! When a dirty file drains that nobody asked for: by its policy, and by what programs do meanwhile.
//!
//! Called by the workers of the drain for what is next in the list, and by `sums` for a quiet moment.

use super::super::CacheFs;
use super::super::file::{CacheFile, DrainedOpen};
use super::super::pfs::nanoseconds;
use super::super::record::State;
use forebay_policy::Moment;
use forebay_policy::due::{CacheFacts, Costly, Due, FileFacts, KernelFile, due};
use forebay_proto::Timestamp;
use forebay_store::objects::ObjectStat;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Open files that are looked at to see whether kernels write.
const KERNEL_FILES_SEEN_MAX: usize = 32;
/// Times of writes so far in the future are of a clock that was set back since, in nanoseconds.
const FUTURE_NS: i128 = 1_000_000_000;

/// Facts for which files are looked at.
struct Looks<'a> {
    fs: &'a CacheFs,
    file: &'a CacheFile,
}

impl Costly for Looks<'_> {
    fn kernel_file(&mut self) -> Option<KernelFile> {
        let object = self.fs.flash.stat(self.file.ino).ok()?;
        let written_ago = age_of(&object)?;
        let state = self.file.state.lock();
        Some(KernelFile {
            written_ago,
            nothing_new: state.drained_open.is_some_and(|open| open.has(&object))
                || state.is_untouched(&object),
            not_again_before: state
                .drained_open
                .map(|open| self.fs.origin.moment(open.not_again_before)),
        })
    }

    fn last_foreground_write(&mut self) -> Option<Moment> {
        Some(self.fs.origin.moment(self.fs.last_foreground_write()?))
    }
}

impl CacheFs {
    /// When a file may drain that nobody asked for.
    pub(super) fn due_of(&self, file: &Arc<CacheFile>, since: Instant, now: Instant) -> Due {
        let facts = {
            let state = file.state.lock();
            FileFacts {
                since: self.origin.moment(since),
                last_write: self.origin.moment(state.last_write),
                opens: state.opens,
                kernel_writes: state.may_kernel_write(),
                needs_decision: state.record.state == State::Conflict || state.is_lost(),
            }
        };
        let policy = self.policies.policy_of(file.number());
        let cache = CacheFacts {
            is_pressed: self.drain_list.is_pressed(),
            is_over_watermark: self.policies.is_over(&policy),
        };
        let mut looks = Looks { fs: self, file };
        due(&policy, &facts, cache, self.origin.moment(now), &mut looks)
    }

    /// When the application wrote last, as far as it can be seen.
    pub(super) fn last_foreground_write(&self) -> Option<Instant> {
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
