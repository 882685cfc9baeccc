//! A cache behind sessions: what a server of several mounts needs besides `FileSystem`.
//!
//! Invariants: between the start of a server and the moment when the mounts of the last one have said what
//! they hold, nothing that one of them may hold goes: their numbers are pinned, and the sessions let no
//! call in that could drop data. Called by `session`.

use super::data_servers::Ownership;
use super::drain::DrainList;
use super::flash::Flash;
use super::nodes::Nodes;
use super::overlays::Overlays;
use super::parts::Parts;
use super::pfs::{PfsDir, PfsStat, errno, proc_path};
use super::pfs_inodes::PfsInodes;
use super::publishing::Publishing;
use super::stack::Stack;
use forebay_credentials::acting::Who;
use forebay_proto::attr::FileKind;
use forebay_proto::control::PathBytes;
use forebay_proto::net::session::ClientId;
use forebay_proto::{Caller, Errno, Ino, Result};
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What mounts hold of a cache, and may do.
pub struct Mounts {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    drain_list: Arc<DrainList>,
    publishing: Arc<Publishing>,
    ownership: Arc<Ownership>,
    inodes: Arc<PfsInodes>,
    overlays: Arc<Overlays>,
}

impl Mounts {
    pub(crate) fn new(parts: &Parts, stack: &Stack, overlays: &Arc<Overlays>) -> Mounts {
        Mounts {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            drain_list: parts.drain_list.clone(),
            publishing: parts.publishing.clone(),
            ownership: stack.ownership.clone(),
            inodes: stack.inodes.clone(),
            overlays: overlays.clone(),
        }
    }
}

impl Mounts {
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
        self.overlays.as_judged(caller, &[parent], || {
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
        self.overlays.as_judged(caller, &[parent], || {
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
}

impl Mounts {
    /// Paths of files that are known, by the numbers that mounts have of them.
    pub fn names_of(&self, inos: impl Iterator<Item = Ino>) -> Vec<(u64, PathBytes)> {
        let distinct: HashSet<Ino> = inos.collect();
        let named = |ino: Ino| {
            let path = self.nodes.path(ino).ok()?;
            Some((ino.0, PathBytes::new(&[b"/", &path[..]].concat())))
        };
        distinct.into_iter().filter_map(named).collect()
    }
}
