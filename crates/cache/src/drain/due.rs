//! When a dirty file drains that nobody asked for: by its policy, and by what programs do meanwhile.
//!
//! Called by the workers of the drain for what is next in the list, and by `sums` for a quiet moment.

use super::super::file::CacheFile;
use super::super::record::SyncState;
use super::Drainer;
use super::foreground::age_of;
use forebay_policy::Moment;
use forebay_policy::due::{CacheFacts, Costly, Due, FileFacts, KernelFile, due};
use std::sync::Arc;
use std::time::Instant;

/// Facts for which files are looked at.
struct Looks<'a> {
    drainer: &'a Drainer,
    file: &'a CacheFile,
}

impl Costly for Looks<'_> {
    fn kernel_file(&mut self) -> Option<KernelFile> {
        let object = self.drainer.flash.stat(self.file.ino).ok()?;
        let written_ago = age_of(&object)?;
        let state = self.file.state.lock();
        Some(KernelFile {
            written_ago,
            nothing_new: state.evidence.drained_open().is_some_and(|open| open.has(&object))
                || state.evidence.is_untouched(&object),
            not_again_before: state
                .evidence
                .drained_open()
                .map(|open| self.drainer.origin.moment(open.not_again_before)),
        })
    }

    fn last_foreground_write(&mut self) -> Option<Moment> {
        Some(self.drainer.origin.moment(self.drainer.foreground.last_foreground_write()?))
    }
}

impl Drainer {
    /// When a file may drain that nobody asked for.
    pub(crate) fn due_of(&self, file: &Arc<CacheFile>, since: Instant, now: Instant) -> Due {
        let facts = {
            let state = file.state.lock();
            FileFacts {
                since: self.origin.moment(since),
                last_write: self.origin.moment(state.last_write),
                opens: state.opens.all(),
                kernel_writes: state.may_kernel_write(),
                needs_decision: state.record.state == SyncState::Conflict || state.is_lost(),
            }
        };
        let policy = self.policies.policy_of(file.number());
        let cache = CacheFacts {
            is_pressed: self.drain_list.is_pressed(),
            is_over_watermark: self.policies.is_over(&policy),
        };
        let mut looks = Looks { drainer: self, file };
        due(&policy, &facts, cache, self.origin.moment(now), &mut looks)
    }
}
