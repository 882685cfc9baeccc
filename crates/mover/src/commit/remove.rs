//! What a commit removes from the PFS: the tree it displaced, or, given up, the one it made.
//!
//! Invariants: with the requester's rights, from open directories, through no link, never across
//! file systems, and never a directory that has this commit's published version in it. A tree's
//! versioned name and manifest go first: who follows them finds nothing, not a part. Called by the commit's phases (`mod`).

use super::place::{beside, is_beside};
use super::{CommitRun, refused};
use crate::endpoint::Source;
use crate::fault::{Fault, Outcome};
use crate::meta::Dir;
use crate::pfs::{RequesterPfs, errno, fd};
use crate::stop::{Pace, StopReason};
use forebay_failpoint::step;
use forebay_proto::attr::FileKind;
use forebay_proto::commit::{PublishedBy, is_reserved};
use forebay_proto::{Errno, Result};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use std::os::fd::AsRawFd;
use std::sync::Arc;

const WHAT: &str = "remove old tree";
/// Deepest tree that is removed: each level holds a descriptor.
const DEPTH_MAX: usize = 4_000;

impl CommitRun<'_> {
    /// Removes or renames what the published tree displaced.
    pub(super) fn clean_once(&self) -> Outcome<()> {
        let (run, commit, site) = (self.run, self.commit, self.site());
        let (place, pfs, remover) = (&commit.place, site.pfs, self.remover());
        let by = commit.status().by;
        if by == Some(PublishedBy::Rename) {
            return Ok(());
        }
        run.watch.check()?;
        let parent = site.parent()?;
        if by == Some(PublishedBy::Symlink) {
            remover.name(&parent, &place.link_temp())?;
            let old = commit.old_link.lock().clone().filter(|old| is_beside(&place.name, old));
            if let (Some(old), false) = (old, commit.keep_old) {
                if old != place.staging {
                    remover.tree(&parent, &old)?;
                }
            }
            return site.sync_parent();
        }
        let fault = Fault::target(WHAT);
        if site.has_version(&place.staging_path).map_err(&fault)? {
            let why = "somebody moved the new tree to where the old one was; nothing is removed";
            return Err(refused(Errno::EEXIST, WHAT, why));
        }
        if commit.keep_old {
            let _acting = pfs.act("rename", &place.staging).map_err(&fault)?;
            let at = fd(&parent).map_err(&fault)?;
            let kept = place.kept_name();
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(at, &place.staging[..], at, &kept[..], flags) {
                // An earlier run did it.
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(fault(errno(e))),
            }
        } else {
            remover.tree(&parent, &place.staging)?;
        }
        site.sync_parent()
    }

    /// Removes what was made beside the place.
    pub(super) fn undo_once(&self) -> Outcome<()> {
        let (place, site, remover) = (&self.commit.place, self.site(), self.remover());
        self.run.watch.check()?;
        let parent = match site.parent() {
            Err(fault) if fault.errno == Errno::ENOENT => return Ok(()),
            parent => parent?,
        };
        remover.name(&parent, &place.link_temp())?;
        remover.tree(&parent, &place.staging)?;
        site.sync_parent()
    }

    /// Removes what earlier commits to the same place could not remove: their PFS was away.
    pub(super) fn remove_leftovers(&self) {
        for version in &self.run.old_versions {
            let name = beside(&self.commit.place.name, version);
            let parent = self.site().parent();
            let removed = parent.and_then(|parent| self.remover().tree(&parent, &name));
            if let Err(fault) = removed {
                tracing::warn!(plan = %self.run.request.plan, %version, errno = %fault.errno,
                    "what an earlier commit left could not be removed");
            }
        }
    }

    fn remover(&self) -> TreeRemover<'_> {
        TreeRemover { pfs: &self.run.pfs, pace: &self.run.pace }
    }
}

/// Removes names and trees of the PFS.
struct TreeRemover<'a> {
    pfs: &'a RequesterPfs,
    pace: &'a Pace,
}

impl TreeRemover<'_> {
    /// Removes a name that is no directory; of nothing: done.
    fn name(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        let _acting = self.pfs.act("remove", name).map_err(&fault)?;
        match rustix::fs::unlinkat(fd(parent).map_err(&fault)?, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(fault(errno(e))),
        }
    }

    /// Removes a directory and all below it; of nothing: done.
    fn tree(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        match self.pfs.stat_at(parent, name) {
            Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(fault(e)),
            Ok(meta) if meta.kind != FileKind::Dir => return self.name(parent, name),
            Ok(_) => {}
        }
        let top = self.enter(parent, name).map_err(&fault)?;
        let device = self.pfs.dir_meta(&top)?.dev;
        let names = self.pfs.list(&top)?;
        for reserved in names.iter().filter(|name| is_reserved(name)) {
            self.name(&top, reserved)?;
        }
        step("a tree that goes has no versioned name");
        let rest: Vec<_> = names.into_iter().filter(|name| !is_reserved(name)).collect();
        let mut frames = vec![(top, rest)];
        let mut path = vec![name.to_vec()];
        while let Some((dir, names)) = frames.last_mut() {
            if self.pace.stopping() == Some(StopReason::Shutdown) {
                return Err(Fault::stopped());
            }
            let Some(next) = names.pop() else {
                frames.pop();
                let above = frames.last().map_or(parent, |(dir, _)| dir);
                if let Some(name) = path.pop() {
                    self.dir(above, &name)?;
                }
                continue;
            };
            let meta = match self.pfs.stat_at(dir, &next) {
                Err(Errno::ENOENT) => continue,
                meta => meta.map_err(&fault)?,
            };
            if meta.kind != FileKind::Dir {
                self.name(dir, &next)?;
                continue;
            }
            let below = self.enter(dir, &next).map_err(&fault)?;
            if self.pfs.dir_meta(&below)?.dev != device {
                let why = "another file system is mounted in it; unmount that and remove it";
                return Err(refused(Errno::EXDEV, WHAT, why));
            }
            if frames.len() >= DEPTH_MAX {
                let why = format!("it is deeper than {DEPTH_MAX} directories");
                return Err(refused(Errno::ELOOP, WHAT, why));
            }
            let names = self.pfs.list(&below)?;
            frames.push((below, names));
            path.push(next);
        }
        Ok(())
    }

    /// Removes an empty directory.
    fn dir(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        let _acting = self.pfs.act("remove", name).map_err(&fault)?;
        match rustix::fs::unlinkat(fd(parent).map_err(&fault)?, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(fault(errno(e))),
        }
    }

    /// Opens a directory whose names are to be removed; its owner may have forbidden that by mode.
    fn enter(&self, parent: &Dir, name: &[u8]) -> Result<Dir> {
        let _acting = self.pfs.act("open", name)?;
        // O_PATH goes together with these flags only.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(fd(parent)?, name, flags, Mode::empty()).map_err(errno)?;
        let stat = rustix::fs::fstat(&found).map_err(errno)?;
        if stat.st_uid == self.pfs.identity.uid() && stat.st_mode & 0o700 != 0o700 {
            let path = format!("/proc/self/fd/{}", found.as_raw_fd());
            let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700);
            rustix::fs::chmod(path, mode).map_err(errno)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.pfs.open_at(parent, name, flags, Mode::empty())?;
        Ok(Dir::Pfs(Arc::new(opened)))
    }
}
