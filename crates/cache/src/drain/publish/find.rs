//! The PFS file of a cached one: where it is now, and whether it still is what the base says.
//!
//! Invariants: what has another key is another file; a drain that finds nothing while we change names ourselves looks again, and
//! calls it no conflict; a name of ours counts for nobody. Called by `publish`.

use super::super::super::data_servers::NowAt;
use super::super::super::file::CacheFile;
use super::super::super::pfs::{Key, PfsStat, errno, proc_path};
use super::super::super::record::{Draining, Owner};
use super::super::{Failed, Outcome, at, failed};
use super::Publisher;
use forebay_proto::Errno;
use rustix::fs::{self as rfs, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A PFS file that was found, and by which path.
pub(crate) struct Found {
    pub path: Vec<u8>,
    pub stat: PfsStat,
    /// It has no name that is known any more.
    pub inode: Option<Arc<OwnedFd>>,
    /// It is another file, which ours replaces: that is to have this owner and mode.
    pub instead_as: Option<Owner>,
}

impl Publisher {
    /// The PFS file of a cached one, as the base says; a conflict if it is not so.
    pub(crate) fn find_unchanged(&self, file: &Arc<CacheFile>) -> Outcome<Found> {
        let is_as_was = |found: &Found| {
            let state = file.state.lock();
            let r = &state.record;
            r.draining == Some(Draining::InPlace) || r.base.holds_data(&found.stat)
        };
        let found = self.find_on_pfs(file)?;
        if is_as_was(&found) {
            return Ok(found);
        }
        // Once more without a change of attributes by us, which the base is just about to follow.
        let _meta = file.meta.lock();
        let found = self.find_on_pfs(file)?;
        if is_as_was(&found) {
            return Ok(found);
        }
        let base = file.state.lock().record.base;
        tracing::warn!(?base, found = ?found.stat, "changed before the drain");
        Err(Failed::conflict("the PFS file was changed by somebody else"))
    }

    /// Finds the PFS file of a cached one by the names that are known here or, of names at another server,
    /// there. ENOENT and another file there are conflicts: somebody removed or replaced it; but not
    /// while we change names ourselves.
    fn find_on_pfs(&self, file: &Arc<CacheFile>) -> Outcome<Found> {
        let mut paths = self.nodes.paths(file.number());
        let key = {
            let state = file.state.lock();
            let recorded = [Some(&state.record.path), state.record.was_at.as_ref()];
            paths.extend(recorded.into_iter().flatten().map(|path| path.as_bytes().to_vec()));
            state.record.key
        };
        match self.find_by(file, key, paths) {
            Err(Failed { conflict: true, .. }) if !self.ownership.has_names() => {}
            other => return other,
        }
        let away = at("ask the metadata server where it is");
        match self.ownership.look_again(file.number(), key, Duration::ZERO).map_err(away)? {
            NowAt::Paths(paths) => self.find_by(file, key, paths),
            NowAt::AsBefore => self.find_by(file, key, Vec::new()),
            NowAt::Removed => Err(failed(Errno::EAGAIN, "hear that it was removed")),
        }
    }

    fn find_by(&self, file: &CacheFile, key: Key, paths: Vec<Vec<u8>>) -> Outcome<Found> {
        let moves = self.moves.ended();
        let mut gone = "it was removed on the PFS, or renamed";
        for path in paths {
            match self.pfs.stat(&path) {
                Ok(stat) if stat.key == key => {
                    return Ok(Found { path, stat, inode: None, instead_as: None });
                }
                Ok(_) => gone = "another file has its name on the PFS",
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(e) => return Err(failed(e, "look at the PFS file")),
            }
        }
        let inode = file.inode.lock().clone();
        // A name of ours counts for nobody.
        let of_ours = u32::from(file.state.lock().record.kept_as.is_some());
        match inode.as_ref().map(|inode| self.pfs.stat_fd(inode.as_fd())) {
            Some(Ok(stat)) if stat.key == key && stat.nlink > of_ours => {
                Ok(Found { path: Vec::new(), stat, inode, instead_as: None })
            }
            _ if self.moves.are_none_since(moves) => Err(Failed::conflict(gone)),
            _ => Err(failed(Errno::EAGAIN, "follow a rename")),
        }
    }

    /// Opens what was found for writing.
    pub(crate) fn open_found(&self, found: &Found) -> forebay_proto::Result<(File, PfsStat)> {
        let (target, stat) = match &found.inode {
            None => self.pfs.open_file(&found.path, found.stat.key, OFlags::RDWR)?,
            Some(inode) => {
                let path = proc_path(inode.as_fd(), b"");
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let fd = rfs::open(&path[..], flags, Mode::empty()).map_err(errno)?;
                let stat = self.pfs.stat_fd(fd.as_fd())?;
                (File::from(fd), stat)
            }
        };
        // Reading it back is no access of the file. A PFS that does not say whose it is refuses this.
        let _ = rfs::fcntl_setfl(&target, OFlags::NOATIME);
        Ok((target, stat))
    }
}
