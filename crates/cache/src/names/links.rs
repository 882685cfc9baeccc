//! More names of a file: links, among them the first name of one that was made without.

use super::super::pfs::{PfsStat, errno, proc_path};
use super::{At, Names};
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::{Caller, Entry, Errno, Ino, Result};
use rustix::fs::{self as rfs, AtFlags, OFlags};
use std::os::fd::{AsFd, BorrowedFd};

impl Names {
    /// Gives a file its first name, at `to` in the open directory `dir`; as it was, and as it is. `None`: it has, or had, one.
    /// With the file's `meta` locked.
    fn link_nameless(
        &self,
        who: &Who,
        ino: Ino,
        dir: BorrowedFd<'_>,
        to: At<'_>,
    ) -> Result<Option<(PfsStat, PfsStat)>> {
        let known = self.nodes.get(ino)?;
        let (Some(file), Some(held)) = (known.file, known.held) else { return Ok(None) };
        {
            let state = file.state.lock();
            if state.is_gone() || !state.record.nameless {
                return Ok(None);
            }
        }
        let path = PathBytes::new(&self.inodes.path_below(to)?);
        file.state.lock().save_synced(&self.flash, &file, |record| record.path = path)?;
        forebay_failpoint::step("a file without a name is about to get one");
        let before = self.pfs.stat_fd(held.as_fd())?;
        {
            let _act = who.act()?;
            let from = proc_path(held.as_fd(), b"");
            rfs::linkat(rfs::CWD, &from[..], dir, to.1, AtFlags::SYMLINK_FOLLOW).map_err(errno)?;
        }
        forebay_failpoint::step("a file without a name has one on the PFS");
        self.nodes.name(ino, to.0, to.1);
        self.nodes.hold(ino, None);
        {
            let mut state = file.state.lock();
            state.save(&self.flash, &file, |record| record.nameless = false)?;
            if state.record.is_dirty() {
                self.dirty.list_dirty(&file, &mut state);
            }
        }
        forebay_failpoint::step("a file without a name has one on record");
        Ok(Some((before, self.pfs.stat_at(dir, to.1)?)))
    }

    /// link.
    pub(crate) fn make_link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Entry> {
        let who = Who::of(caller);
        let known = self.nodes.get(ino)?;
        if known.kind == FileKind::Dir {
            return Err(Errno::EPERM);
        }
        let dir = self.inodes.open_parent(&who, parent, name)?;
        let (before, stat) = self.moves.follow(|| {
            let known = self.nodes.get(ino)?;
            self.ownership.while_one_inode(ino, known.kind, || {
                self.own_changes.own_change(known.file.as_ref(), ino, &who, || {
                    match self.link_nameless(&who, ino, dir.as_fd(), (parent, name))? {
                        Some(linked) => Ok(linked),
                        None => self.link_one_of(&who, ino, (dir.as_fd(), name)),
                    }
                })
            })
        })?;
        let entry = self.entry(parent, name, &stat, &who)?;
        if self.ownership.is_elsewhere(ino, known.kind) {
            let client = caller.request.client;
            self.ownership.tell_left(self.ownership.touched(
                client,
                ino,
                &before,
                Some(&stat),
                None,
            ));
        }
        Ok(entry)
    }

    /// Links whichever of the known names still leads to the inode; the newest mostly does. As it was, and as
    /// it is.
    fn link_one_of(
        &self,
        who: &Who,
        ino: Ino,
        to: (BorrowedFd<'_>, &[u8]),
    ) -> Result<(PfsStat, PfsStat)> {
        let names = self.nodes.names(ino);
        let mut last = if names.is_empty() { Errno::ENOENT } else { Errno::ESTALE };
        for (old_parent, old_name) in names.iter().rev() {
            let old_dir = match self.inodes.open_dir_now(who, *old_parent, OFlags::PATH) {
                Err(e) => {
                    last = e;
                    continue;
                }
                opened => opened?,
            };
            // A drain puts another inode under a name, and its key on the node.
            let _settled = self.publishing.look();
            let _act = who.act()?;
            let before = match self.pfs.stat_at(old_dir.as_fd(), old_name) {
                Ok(stat) if self.nodes.number(stat.key) == Some(ino) => stat,
                Ok(_) | Err(Errno::ENOENT) => continue,
                Err(e) => return Err(e),
            };
            rfs::linkat(&old_dir, &**old_name, to.0, to.1, AtFlags::empty()).map_err(errno)?;
            return Ok((before, self.pfs.stat_at(to.0, to.1)?));
        }
        Err(last)
    }
}
