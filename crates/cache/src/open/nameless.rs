//! Files that are made without a name (O_TMPFILE), as long as they have none.
//!
//! The PFS makes such a file, too, and keeps nothing of it when this server ends. What is written lies on flash, on record as
//! `nameless`: nothing of it drains, and it goes with its last open. The first `linkat` gives it its name on the PFS; from
//! then on it is a file like any other.
//!
//! Invariant: the record tells the name, on flash that survives a power cut, before the PFS has it, and that the file is
//! nameless no more after that. So a kill or a power cut leaves the file with what was fsynced of it under that name, or
//! nothing. On a PFS that makes no such files (NFS, GlusterFS, Lustre) the call is EOPNOTSUPP, as it is there: programs then
//! make a name and remove it. Called by `filesystem`, `names` (link), `open` (the last close), and `recover`.

use super::super::attach::Opening;
use super::super::file::CacheFile;
use super::super::names::{give_group_of, masked};
use super::super::pfs::{PfsStat, errno};
use super::super::record::Record;
use super::Opens;
use forebay_credentials::acting::Who;
use forebay_proto::api::{CreateArgs, Opened};
use forebay_proto::{Caller, Entry, Errno, Ino, Result};
use forebay_store::descriptors;
use rustix::fs::{self as rfs, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What a file system answers that makes no files without a name.
fn not_supported(error: rustix::io::Errno) -> Errno {
    match errno(error) {
        Errno::EISDIR | Errno::EINVAL => Errno::EOPNOTSUPP,
        other => other,
    }
}

impl Opens {
    /// Makes a file without a name on the PFS, and opens it here.
    pub(crate) fn make_nameless(
        &self,
        caller: &Caller,
        parent: Ino,
        args: CreateArgs,
        want_local: bool,
    ) -> Result<(Entry, Opened)> {
        let who = Who::of(caller);
        let (made, stat) = {
            let dir = self.inodes.open_dir(&who, parent, OFlags::PATH)?;
            let _act = who.act()?;
            let mode = Mode::from_raw_mode(masked(dir.as_fd(), args));
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let made = rfs::openat(&dir, ".", flags, mode).map_err(not_supported)?;
            give_group_of(&who, dir.as_fd(), made.as_fd());
            let stat = self.pfs.stat_fd(made.as_fd())?;
            (File::from(made), stat)
        };
        descriptors::for_a_program(&made)?;
        self.clocks.stamped(stat.ctime);
        let held = OwnedFd::from(made.try_clone()?);
        let ino = self.nodes.made_nameless(parent, stat.key, &who, held);
        let opened = self.open_nameless(ino, made.as_fd(), &stat, who, want_local);
        let answer = opened.and_then(|(file, opened)| {
            Ok((Entry { attr: self.attributes.attr_of(ino, &stat, Some(&file))? }, opened))
        });
        answer.inspect_err(|_| drop(self.nodes.forget(ino, 1)))
    }

    fn open_nameless(
        &self,
        ino: Ino,
        made: BorrowedFd<'_>,
        stat: &PfsStat,
        who: Who,
        want_local: bool,
    ) -> Result<(Arc<CacheFile>, Opened)> {
        let record = Record { nameless: true, ..self.records.new_record(stat, b"", &who) };
        let file = self.cached_files.make(ino, record, 0).map_err(|e| match e {
            // Something is on record of an inode that the PFS had under this number.
            Errno::EEXIST => Errno::EAGAIN,
            e => e,
        })?;
        let opening = Opening::of(self.nodes.attach(ino, file)?).ok_or(Errno::ESTALE)?;
        let file = opening.file();
        // A default ACL of the directory.
        let opened = self.attributes.note_acl(file, made).and_then(|()| {
            let _meta = file.meta.lock();
            self.open_attached(file, ino, who, want_local)
        });
        if opened.is_err() {
            self.end_nameless(file);
        }
        Ok((file.clone(), opened?))
    }

    /// Nobody has it open any more: nobody can give it a name.
    pub(crate) fn end_nameless(&self, file: &Arc<CacheFile>) {
        let _meta = file.meta.lock();
        let ends = {
            let state = file.state.lock();
            state.record.nameless && !state.is_gone() && state.opens.all() == 0
        };
        if !ends {
            return;
        }
        if let Err(error) = self.leftovers.lose(file) {
            tracing::warn!(ino = %file.ino, %error, "a file without a name stays on flash until the next start");
        }
    }
}
