//! Changes of PFS files by us, after which they still are what the base says.
//!
//! Invariant: the base's times follow a change only if the file was as it says right before; what somebody else did
//! in between is seen by the next open. Called by `names`, `attrs`, and for names at another server by `data_servers`.

use super::clock::Clocks;
use super::file::CacheFile;
use super::flash::Flash;
use super::parts::Parts;
use super::pfs::PfsDir;
use super::pfs_inodes::PfsInodes;
use super::record::Base;
use forebay_credentials::acting::Who;
use forebay_proto::attr::Timestamp;
use forebay_proto::{Ino, Result};
use parking_lot::MutexGuard;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Makes our own changes of PFS files.
pub(crate) struct OwnChanges {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    clocks: Arc<Clocks>,
    inodes: Arc<PfsInodes>,
}

impl OwnChanges {
    pub fn new(parts: &Parts, inodes: &Arc<PfsInodes>) -> OwnChanges {
        OwnChanges {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            clocks: parts.clocks.clone(),
            inodes: inodes.clone(),
        }
    }
}

impl OwnChanges {
    /// Does something to a PFS file that moves its ctime, and lets the base follow if the file was
    /// as the base says before.
    pub(crate) fn own_change<T>(
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

    /// The same for what is done to the inode itself. It is opened with `meta` locked: a drain that put another inode under the
    /// name after the look would leave the change on the one that goes.
    pub(crate) fn own_change_of_inode<T>(
        &self,
        file: Option<&Arc<CacheFile>>,
        ino: Ino,
        who: &Who,
        change: impl FnOnce(BorrowedFd<'_>) -> Result<T>,
    ) -> Result<T> {
        let _meta = file.map(|file| file.meta.lock());
        let inode = self.inodes.open_node(ino, who)?;
        match file {
            Some(file) => self.change_and_follow(file, inode.as_fd(), || change(inode.as_fd())),
            None => change(inode.as_fd()),
        }
    }

    /// The same with the file's `meta` locked.
    pub(crate) fn own_change_locked<T>(
        &self,
        file: &Arc<CacheFile>,
        ino: Ino,
        who: &Who,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let inode = self.inodes.open_node(ino, who)?;
        self.change_and_follow(file, inode.as_fd(), change)
    }

    /// The same with the PFS inode open.
    fn change_and_follow<T>(
        &self,
        file: &Arc<CacheFile>,
        inode: BorrowedFd<'_>,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = self.pfs.stat_fd(inode)?;
        let done = change()?;
        forebay_failpoint::step("a file's name or attributes are changed on the PFS");
        // The change is made; if it cannot be looked at, the next open takes it for foreign.
        if let Ok(after) = self.pfs.stat_fd(inode) {
            self.follow_own_change(file, &Base::of(&before), &Base::of(&after))?;
        }
        Ok(done)
    }

    /// The base follows what we have changed, if the file was as it says before.
    pub(crate) fn follow_own_change(
        &self,
        file: &CacheFile,
        before: &Base,
        after: &Base,
    ) -> Result<()> {
        self.clocks.stamped(after.ctime);
        if let Err(error) = self.move_ctime(file, after.ctime) {
            tracing::warn!(%error, ino = %file.ino, "a change of attributes may not show in a file's ctime");
        }
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

impl OwnChanges {
    /// `stat` of a dirty file shows the later one of two ctimes, that of the PFS inode and that of the data. Where the PFS's
    /// clock is behind ours, its stamp of a change that we have made may not be later than what was shown before: then the
    /// data's moves, which the kernel stamps later than any that somebody has looked at.
    fn move_ctime(&self, file: &CacheFile, on_pfs: Timestamp) -> Result<()> {
        {
            let state = file.state.lock();
            if !state.record.is_dirty() || state.is_lost() || state.is_gone() {
                return Ok(());
            }
        }
        // This is the look. What nobody has written shows the PFS's ctime alone.
        let object = self.flash.stat(file.ino)?;
        if on_pfs > object.ctime || file.state.lock().evidence.is_untouched(&object) {
            return Ok(());
        }
        // An access time of the data is shown to nobody, and no other call moves the ctime alone.
        file.set_times(Some(forebay_store::clock::stamp()), None)
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
