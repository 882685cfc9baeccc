//! A cache behind sessions: what a server of several mounts needs besides `FileSystem`.
//!
//! Invariants: between the start of a server and the moment when the mounts of the last one have said what
//! they hold, nothing that one of them may hold goes: their numbers are pinned, and the sessions let no
//! call in that could drop data. Called by `session`.

use super::CacheFs;
use super::attach::Opening;
use super::pfs::{PfsStat, errno, proc_path};
use forebay_credentials::acting::Who;
use forebay_interfaces::references::References;
use forebay_proto::api::ops::*;
use forebay_proto::attr::FileKind;
use forebay_proto::net::session::ClientId;
use forebay_proto::{Caller, Errno, Ino, Result};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How often a file is looked for again that is forgotten, or drained, while a mount says that it has it open.
const REOPEN_TRIES: u32 = 3;

impl CacheFs {
    /// The mounts of the last server have said what they hold, or are away.
    pub fn mounts_are_back(&self, away: &[ClientId]) {
        self.nodes.end_restoring(away);
        self.drain_list.hold(false);
        self.ownership.look_what_is_clean();
    }

    /// A mount's session has ended while it held these: it may come back for what has a name.
    pub fn mount_left(&self, client: ClientId, inos: Vec<Ino>) {
        self.nodes.left(&[client], inos);
    }

    /// A mount has said what it holds, or will not come back.
    pub fn mount_is_back(&self, client: ClientId) {
        self.nodes.is_back(client);
    }

    /// Looks which names were given that the last server was giving when it was killed.
    pub(super) fn settle_moves(&self) {
        let mut moved = self.nodes.moved();
        // A name may be in a directory that was being moved too.
        for _ in 0..moved.len() {
            moved.retain(|(ino, parent, name, key)| {
                let Ok(path) = self.inodes.path_below((*parent, name)) else { return true };
                let is_there = self.pfs.stat(&path).is_ok_and(|stat| {
                    // Its data server may have put another inode there, which it has told before.
                    stat.key == *key || self.nodes.number(stat.key) == Some(*ino)
                });
                if is_there {
                    self.nodes.name(*ino, *parent, name);
                }
                !is_there
            });
        }
    }

    /// An error if the names of an inode do not lead a requester to it.
    pub fn may_reach(&self, caller: &Caller, ino: Ino) -> Result<()> {
        if self.nodes.get(ino)?.held.is_some() {
            return Err(Errno::ESTALE);
        }
        self.inodes.open_node(ino, &Who::of(caller)).map(drop)
    }

    /// An error if a requester may not look up names in a directory.
    pub fn may_search(&self, caller: &Caller, ino: Ino) -> Result<()> {
        let who = Who::of(caller);
        let dir = self.inodes.open_dir(&who, ino, OFlags::PATH)?;
        let _act = who.act()?;
        self.pfs.stat_at(dir.as_fd(), b".").map(drop)
    }

    /// The buffer has so much room from now on.
    pub fn set_capacity(&self, bytes: u64) {
        self.space.set_capacity(bytes);
    }

    /// A reference to an inode that a mount holds; false if it is not known.
    pub fn take_reference(&self, ino: Ino) -> bool {
        self.nodes.reference(ino)
    }

    /// ESTALE for a number that means nothing here.
    pub fn must_be_known(&self, ino: Ino) -> Result<()> {
        self.nodes.get(ino).map(|_| ())
    }

    /// What a name leads to, if a mount may know it. Its number has this name from now on: a rename that
    /// a kill cut may have given it one that nobody noted.
    pub fn peek(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<(Ino, FileKind)>> {
        self.as_judged(caller, &[parent], || {
            let who = Who::of(caller);
            let dir = self.inodes.open_parent(&who, parent, name)?;
            let _settled = self.publishing.look();
            let Some(stat) = self.stat_as(&who, &dir, name)? else { return Ok(None) };
            let ino = self.nodes.number(stat.key);
            let ino = ino.inspect(|ino| self.nodes.name(*ino, parent, name));
            Ok(ino.map(|ino| (ino, stat.kind())))
        })
    }

    /// What the PFS has under a name, if there is one.
    fn stat_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Option<PfsStat>> {
        self.as_judged(caller, &[parent], || {
            let who = Who::of(caller);
            let dir = self.inodes.open_parent(&who, parent, name)?;
            self.stat_as(&who, &dir, name)
        })
    }

    fn stat_as(&self, who: &Who, dir: &OwnedFd, name: &[u8]) -> Result<Option<PfsStat>> {
        let _act = who.act()?;
        match self.pfs.stat_at(dir.as_fd(), name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// An error if the PFS would not let a requester open this so.
    pub fn may_open(&self, caller: &Caller, ino: Ino, access: u32) -> Result<()> {
        let who = Who::of(caller);
        let node = self.inodes.open_node(ino, &who)?;
        let _act = who.act()?;
        let flags = OFlags::from_bits_retain(access & libc::O_ACCMODE as u32);
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = proc_path(node.as_fd(), b"");
        rustix::fs::open(&path[..], flags, Mode::empty()).map(drop).map_err(errno)
    }

    /// True if there is such a name.
    pub fn exists(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<bool> {
        Ok(self.stat_name(caller, parent, name)?.is_some())
    }

    /// True if there is a whiteout of that name.
    pub fn is_whiteout(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<bool> {
        let is_one = |stat: PfsStat| stat.kind() == FileKind::CharDev && stat.rdev == 0;
        Ok(self.stat_name(caller, parent, name)?.is_some_and(is_one))
    }

    /// The object of an open file, for the kernel that has it already.
    pub fn object(&self, ino: Ino) -> Result<Arc<File>> {
        let file = self.nodes.get(ino)?.file.ok_or(Errno::ESTALE)?;
        Ok(Arc::new(self.flash.open(file.ino)?))
    }

    /// The inode on flash that has an open file's data, and the size of the file.
    pub fn data_of(&self, ino: Ino) -> Result<(Ino, u64)> {
        let file = self.nodes.get(ino)?.file.ok_or(Errno::ESTALE)?;
        Ok((file.ino, self.flash.stat(file.ino)?.size_bytes))
    }

    /// Opens that a mount has from before a restart of the server, or of its session. `local`: its
    /// kernel has the object. `may_have_written`: and may have written it while nobody knew. True
    /// if a kernel may be writing it; ESTALE if the file is gone.
    pub fn reopen(
        &self,
        ino: Ino,
        count: u64,
        local: bool,
        may_have_written: bool,
    ) -> Result<bool> {
        let known = self.nodes.get(ino)?;
        if known.kind != FileKind::File {
            return Err(Errno::ESTALE);
        }
        // The mount has it open whatever the metadata server knows; at the next start all counts as written.
        let _writing = self.ownership.may_write(ino).inspect_err(|error| {
            tracing::warn!(%ino, %error, "the metadata server does not hear that a file may be written");
        });
        let opening = self.file_to_reopen(ino)?;
        let file = opening.file();
        let _meta = file.meta.lock();
        let mut state = file.state.lock();
        if state.gone {
            return Err(Errno::ESTALE);
        }
        if may_have_written && !state.is_lost() {
            // Read once at its close, as after any write by a kernel.
            self.data.mark_dirty(file, &mut state)?;
            state.save(&self.flash, file, |record| record.whole = true)?;
            state.at_open = None;
        }
        state.opens += count;
        if local {
            state.locals += count;
            state.maybe_in_kernel = true;
            if may_have_written && !state.is_lost() {
                self.kernel_may_write(&mut state);
            }
        }
        Ok(state.record.whole)
    }

    /// What is on flash of a file that a mount has open. Nothing of it is forgotten any more; what is just being forgotten
    /// is made anew: its name is there.
    fn file_to_reopen(&self, ino: Ino) -> Result<Opening> {
        let mut tries = 0;
        loop {
            let known = self.nodes.get(ino)?;
            if let Some(opening) = known.file.and_then(Opening::of) {
                return Ok(opening);
            }
            let who = &known.who;
            let fd = self.inodes.open_node(ino, &Who::server());
            let fd = fd.or_else(|_| self.inodes.open_node(ino, who))?;
            let stat = self.pfs.stat_fd(fd.as_fd())?;
            match self.cached_files.attach_to_open(ino, &stat, who) {
                Err(Errno::ESTALE) if tries < REOPEN_TRIES => tries += 1,
                opening => return opening,
            }
        }
    }

    /// How long what the PFS says may be believed, in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        self.options.ttl.as_millis() as u64
    }
}

impl References for CacheFs {
    fn take_reference(&self, ino: Ino) -> bool {
        CacheFs::take_reference(self, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        NameOps::forget(self, ino, count);
    }
}
