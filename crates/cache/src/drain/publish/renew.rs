//! Attributes that change while a drain copies data: the temporary gets them before it takes the file's place, and no data is
//! copied again.
//!
//! Invariants: our own changes wait meanwhile (`meta`), and what others change is looked at once more; what has another name
//! or other data than the drain has begun with is not gone on with. A kill leaves what it leaves in the copying: a temporary on
//! record. Called by `publish`.

use super::super::super::file::CacheFile;
use super::super::super::pfs::{PfsStat, errno};
use super::super::{Failed, Outcome, at, failed};
use super::find::Found;
use super::{Beside, Job, Publisher};
use forebay_proto::{Errno, Timestamp};
use rustix::fs::{self as rfs, Mode, OFlags};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

/// How often attributes are copied that others change meanwhile.
const TRIES: u32 = 3;

/// A rename by us came in between, say: everything once more with what is so now.
fn moved() -> Failed {
    failed(Errno::EAGAIN, "follow a rename")
}

/// What tells that an inode has other attributes.
fn attributes(stat: &PfsStat) -> (u32, u32, u32, Timestamp) {
    (stat.mode, stat.uid, stat.gid, stat.ctime)
}

impl Publisher {
    /// The file that a temporary is to replace, as it is now; the temporary has its attributes when this returns, and the time
    /// that a program has set. EAGAIN: it is another one, or has other names or other data. With `meta` locked.
    pub(super) fn with_attributes_as_now(
        &self,
        file: &Arc<CacheFile>,
        (found, beside): (&Found, &Beside<'_>),
        (target, job): (&File, &Job),
    ) -> Outcome<PfsStat> {
        let mut copied = attributes(&found.stat);
        let is_its = found.instead_as.is_none();
        let mut has_new_time = is_its && file.state.lock().drain_run.set_mtime().is_some();
        for _ in 0..=TRIES {
            let now = self.pfs.stat_at(beside.dir.as_fd(), beside.name).map_err(|_| moved())?;
            if now.key != found.stat.key {
                return Err(moved());
            }
            if attributes(&now) == copied && !has_new_time {
                return Ok(now);
            }
            let base = file.state.lock().record.base;
            // Of another file that ours is to replace, somebody has decided with what it was.
            if !is_its || now.nlink != found.stat.nlink || !base.holds_data(&now) {
                return Err(moved());
            }
            self.renew(file, beside, (target, job), &now)?;
            (copied, has_new_time) = (attributes(&now), false);
        }
        Err(moved())
    }

    /// Gives a temporary the attributes that the file has now, and waits until the PFS has them.
    fn renew(
        &self,
        file: &CacheFile,
        beside: &Beside<'_>,
        (target, job): (&File, &Job),
        now: &PfsStat,
    ) -> Outcome<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let old = rfs::openat(beside.dir, beside.name, flags, Mode::empty()).map_err(errno);
        let old = old.map_err(|e| match e {
            Errno::ENOENT => moved(),
            e => failed(e, "look at the PFS file"),
        })?;
        let own = self.pfs.stat_fd(target.as_fd()).map_err(at("look at the file beside it"))?;
        self.targets.copy_attributes_of(file, (old.as_fd(), now), target, &own)?;
        self.set_times(file, target, job, Some(now.atime))?;
        forebay_failpoint::step("a drain has put on what was changed meanwhile");
        self.targets.sync_target(target)
    }
}
