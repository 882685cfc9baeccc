//! Changes of PFS files by us, after which they still are what the base says.
//!
//! Invariant: the base's times follow a change only if the file was as it says right before; what somebody else did
//! in between is seen by the next open. Called by `names`, `attrs`, and for names at another server by `homes`.

use super::CacheFs;
use super::act::Who;
use super::file::CacheFile;
use super::record::Base;
use forebay_proto::{Ino, Result};
use parking_lot::MutexGuard;
use std::os::fd::AsFd;
use std::sync::Arc;

impl CacheFs {
    /// Does something to a PFS file that moves its ctime, and lets the base follow if the file was
    /// as the base says before.
    pub(super) fn own_change<T>(
        &self,
        file: Option<&Arc<CacheFile>>,
        ino: Ino,
        who: &Who,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(file) = file else { return change() };
        let _meta = file.meta.lock();
        self.own_change_locked(file, ino, who, change)
    }

    /// The same with the file's `meta` locked.
    pub(super) fn own_change_locked<T>(
        &self,
        file: &Arc<CacheFile>,
        ino: Ino,
        who: &Who,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let fd = self.open_node(ino, who)?;
        let before = self.pfs.stat_fd(fd.as_fd())?;
        let done = change()?;
        crate::step::step("a file's name or attributes are changed on the PFS");
        // The change is made; if it cannot be looked at, the next open takes it for foreign.
        if let Ok(after) = self.pfs.stat_fd(fd.as_fd()) {
            self.follow_own_change(file, &Base::of(&before), &Base::of(&after))?;
        }
        Ok(done)
    }

    /// The base follows what we have changed, if the file was as it says before.
    pub(super) fn follow_own_change(
        &self,
        file: &CacheFile,
        before: &Base,
        after: &Base,
    ) -> Result<()> {
        self.clocks.stamped(after.ctime);
        let mut state = file.state.lock();
        let base = state.record.base;
        // What is dirty is not believed by its ctime.
        let same_data = (base.size, base.mtime) == (before.size, before.mtime);
        let held = same_data && (base.ctime == before.ctime || state.record.is_dirty());
        if !held || base.size != after.size {
            // Its data is somebody else's; whose it is we have said.
            return match before.owner == after.owner {
                true => Ok(()),
                false => state.save(&self.flash, file, |record| record.base.owner = after.owner),
            };
        }
        state.save(&self.flash, file, |record| {
            record.base.mtime = after.mtime;
            record.base.ctime = after.ctime;
            record.base.owner = after.owner;
        })
    }
}

/// Locks the `meta` of the files of a rename, in an order that all threads have: two renames may have the
/// same two files, one the other way round.
pub(super) fn lock_metas(files: &[Option<Arc<CacheFile>>; 2]) -> Vec<MutexGuard<'_, ()>> {
    let mut files: Vec<&Arc<CacheFile>> = files.iter().flatten().collect();
    files.sort_by_key(|file| file.ino);
    files.dedup_by_key(|file| file.ino);
    files.into_iter().map(|file| file.meta.lock()).collect()
}
