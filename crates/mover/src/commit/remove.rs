//! What a commit removes from the PFS: the tree it displaced, or, given up, the one it made.
//!
//! Invariants: with the requester's rights, from open directories, through no link, never across
//! file systems, and never a directory that has this commit's published version in it. A tree's
//! versioned name and manifest go first: who follows them finds nothing, not a part.

use super::place::{beside, is_beside};
use super::{Commit, refused};
use crate::endpoint::Source;
use crate::fault::{Fault, Outcome};
use crate::meta::Dir;
use crate::pfs::{errno, fd};
use crate::run::Run;
use crate::stop::StopReason;
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

impl Run {
    /// Removes or renames what the published tree displaced.
    pub(super) fn clean_once(&self, commit: &Commit) -> Outcome<()> {
        let place = &commit.place;
        let by = commit.status().by;
        if by == Some(PublishedBy::Rename) {
            return Ok(());
        }
        self.check_pfs()?;
        let parent = self.parent_of(commit)?;
        if by == Some(PublishedBy::Symlink) {
            self.remove_name(&parent, &place.link_temp())?;
            let old = commit.old_link.lock().clone().filter(|old| is_beside(&place.name, old));
            if let (Some(old), false) = (old, commit.keep_old) {
                if old != place.staging {
                    self.remove_tree(&parent, &old)?;
                }
            }
            return self.sync_parent(commit);
        }
        let fault = Fault::target(WHAT);
        if self.has_version(commit, &place.staging_path).map_err(&fault)? {
            let why = "somebody moved the new tree to where the old one was; nothing is removed";
            return Err(refused(Errno::EEXIST, WHAT, why));
        }
        if commit.keep_old {
            let _acting = self.pfs.act("rename", &place.staging).map_err(&fault)?;
            let at = fd(&parent).map_err(&fault)?;
            let kept = place.kept_name();
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(at, &place.staging[..], at, &kept[..], flags) {
                // An earlier run did it.
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(e) => return Err(fault(errno(e))),
            }
        } else {
            self.remove_tree(&parent, &place.staging)?;
        }
        self.sync_parent(commit)
    }

    /// Removes what was made beside the place.
    pub(super) fn undo_once(&self, commit: &Commit) -> Outcome<()> {
        self.check_pfs()?;
        let parent = match self.parent_of(commit) {
            Err(fault) if fault.errno == Errno::ENOENT => return Ok(()),
            parent => parent?,
        };
        self.remove_name(&parent, &commit.place.link_temp())?;
        self.remove_tree(&parent, &commit.place.staging)?;
        self.sync_parent(commit)
    }

    /// Removes what earlier commits to the same place could not remove: their PFS was away.
    pub(super) fn remove_leftovers(&self, commit: &Commit) {
        for version in &self.old_versions {
            let name = beside(&commit.place.name, version);
            let removed =
                self.parent_of(commit).and_then(|parent| self.remove_tree(&parent, &name));
            if let Err(fault) = removed {
                tracing::warn!(plan = %self.plan, %version, errno = %fault.errno,
                    "what an earlier commit left could not be removed");
            }
        }
    }

    fn remove_name(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        let _acting = self.pfs.act("remove", name).map_err(&fault)?;
        match rustix::fs::unlinkat(fd(parent).map_err(&fault)?, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(fault(errno(e))),
        }
    }

    /// Removes a directory and all below it; of nothing: done.
    fn remove_tree(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        match self.pfs.stat_at(parent, name) {
            Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(fault(e)),
            Ok(meta) if meta.kind != FileKind::Dir => return self.remove_name(parent, name),
            Ok(_) => {}
        }
        let top = self.enter_to_remove(parent, name).map_err(&fault)?;
        let device = self.pfs.dir_meta(&top)?.dev;
        let names = self.pfs.list(&top)?;
        for reserved in names.iter().filter(|name| is_reserved(name)) {
            self.remove_name(&top, reserved)?;
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
                    self.remove_dir(above, &name)?;
                }
                continue;
            };
            let meta = match self.pfs.stat_at(dir, &next) {
                Err(Errno::ENOENT) => continue,
                meta => meta.map_err(&fault)?,
            };
            if meta.kind != FileKind::Dir {
                self.remove_name(dir, &next)?;
                continue;
            }
            let below = self.enter_to_remove(dir, &next).map_err(&fault)?;
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

    fn remove_dir(&self, parent: &Dir, name: &[u8]) -> Outcome<()> {
        let fault = Fault::target(WHAT);
        let _acting = self.pfs.act("remove", name).map_err(&fault)?;
        match rustix::fs::unlinkat(fd(parent).map_err(&fault)?, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(fault(errno(e))),
        }
    }

    /// Opens a directory whose names are to be removed; its owner may have forbidden that by mode.
    fn enter_to_remove(&self, parent: &Dir, name: &[u8]) -> Result<Dir> {
        let _acting = self.pfs.act("open", name)?;
        // O_PATH goes together with these flags only.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(fd(parent)?, name, flags, Mode::empty()).map_err(errno)?;
        let stat = rustix::fs::fstat(&found).map_err(errno)?;
        if stat.st_uid == self.identity.uid() && stat.st_mode & 0o700 != 0o700 {
            let path = format!("/proc/self/fd/{}", found.as_raw_fd());
            let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700);
            rustix::fs::chmod(path, mode).map_err(errno)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = self.pfs.open_at(parent, name, flags, Mode::empty())?;
        Ok(Dir::Pfs(Arc::new(opened)))
    }
}
