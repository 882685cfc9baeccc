//! The PFS inodes of nodes: opened by the paths that are known, as the requester, if they still lead there.
//!
//! Invariants: what is opened has the key of its node, or the call is ESTALE: a directory or file that somebody exchanged on the
//! PFS is never taken for the one that the kernel means; a call that finds nothing while names are changed by us looks again ([`Moves`]).
//! Called for each call on names or attributes, and by opens and fills.

use super::data_servers::Ownership;
use super::file::CacheFile;
use super::moves::Moves;
use super::names::check_name;
use super::nodes::Nodes;
use super::parts::Parts;
use super::paths::joined;
use super::pfs::{PfsDir, PfsStat, errno, proc_path};
use super::publishing::{Look, Publishing};
use forebay_activity::Activity;
use forebay_credentials::acting::Who;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::descriptors;
use rustix::fs::{self as rfs, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How often the PFS file is opened again for fills when a drain has replaced it in between.
const SOURCE_TRIES: u32 = 3;

/// True if an open with these flags may change the file.
pub(super) fn writes(flags: u32) -> bool {
    flags as i32 & libc::O_ACCMODE != libc::O_RDONLY || flags as i32 & libc::O_TRUNC != 0
}

/// Opens PFS inodes of one cache.
pub(crate) struct PfsInodes {
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    moves: Arc<Moves>,
    publishing: Arc<Publishing>,
    activity: Arc<Activity>,
    ownership: Arc<Ownership>,
}

impl PfsInodes {
    /// Of the nodes of a cache.
    pub fn new(parts: &Parts, ownership: &Arc<Ownership>) -> PfsInodes {
        PfsInodes {
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            moves: parts.moves.clone(),
            publishing: parts.publishing.clone(),
            activity: parts.activity.clone(),
            ownership: ownership.clone(),
        }
    }
}

impl PfsInodes {
    /// The PFS inode of a node, as a descriptor for looking and for calls by /proc/self/fd.
    pub(crate) fn open_node(&self, ino: Ino, who: &Who) -> Result<OwnedFd> {
        let open = || self.moves.follow(|| self.open_node_now(ino, who));
        match open() {
            Err(Errno::ESTALE) if self.ownership.is_worth_another_look(ino) => open(),
            other => other,
        }
    }

    fn open_node_now(&self, ino: Ino, who: &Who) -> Result<OwnedFd> {
        let _settled = self.settled(ino);
        let known = self.nodes.get(ino)?;
        if let Some(held) = &known.held {
            return Ok(held.try_clone()?);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        if ino == Ino::ROOT {
            return self.pfs.open_at(b"", flags);
        }
        let mut last = Errno::ESTALE;
        for path in self.nodes.paths(ino) {
            let opened = {
                let _act = who.act()?;
                self.pfs.open_at(&path, flags)
            };
            match opened {
                Ok(fd) if self.pfs.stat_fd(fd.as_fd())?.key == known.key => return Ok(fd),
                Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The same without a requester: as the server, or else as who looked it up last.
    pub(crate) fn open_node_any(&self, ino: Ino) -> Result<OwnedFd> {
        match self.open_node(ino, &Who::server()) {
            Err(Errno::EACCES | Errno::EPERM) => self.open_node(ino, &self.nodes.get(ino)?.who),
            other => other,
        }
    }

    /// A node for a path below the PFS directory, referenced once (but for the root).
    pub(crate) fn walk(&self, path: &[u8], who: &forebay_credentials::acting::Who) -> Result<Ino> {
        let mut at = Ino::ROOT;
        let mut so_far = Vec::new();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            if !so_far.is_empty() {
                so_far.push(b'/');
            }
            so_far.extend_from_slice(name);
            let _settled = self.publishing.look();
            let stat = {
                let _act = who.act()?;
                self.pfs.stat(&so_far)?
            };
            let next = self.nodes.seen(at, name, stat.key, stat.kind(), who, 1);
            if at != Ino::ROOT {
                drop(self.nodes.forget(at, 1));
            }
            at = next;
        }
        Ok(at)
    }

    /// Keeps names and keys together ([`Publishing`]); who has to wait for a drain's exchange says so.
    pub(crate) fn settled(&self, ino: Ino) -> Look<'_> {
        if let Some(settled) = self.publishing.try_look() {
            return settled;
        }
        let begun = self.activity.begin();
        let settled = self.publishing.look();
        self.activity.end(begun, ActivityKind::Stall, ino, (0, 0), Stall::Drain as i64);
        settled
    }

    /// A directory without a requester, open for reading: as the server, or else as who looked it up last.
    pub(crate) fn open_list(&self, ino: Ino) -> Result<(Who, OwnedFd)> {
        let who = Who::server();
        match self.open_dir(&who, ino, OFlags::RDONLY) {
            Err(Errno::EACCES | Errno::EPERM) => {
                let who = self.nodes.get(ino)?.who;
                let dir = self.open_dir(&who, ino, OFlags::RDONLY)?;
                Ok((who, dir))
            }
            other => other.map(|dir| (who, dir)),
        }
    }

    /// The directory of a node, open for searching, if it still is that one.
    pub(crate) fn open_dir(&self, who: &Who, ino: Ino, flags: OFlags) -> Result<OwnedFd> {
        self.moves.follow(|| self.open_dir_now(who, ino, flags))
    }

    pub(crate) fn open_dir_now(&self, who: &Who, ino: Ino, flags: OFlags) -> Result<OwnedFd> {
        let known = self.nodes.get(ino)?;
        if let Some(held) = &known.held {
            // Removed: it is empty, and nothing can be made in it.
            let _act = who.act()?;
            let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let path = super::pfs::proc_path(held.as_fd(), b"");
            return rfs::open(&path[..], flags, Mode::empty()).map_err(errno);
        }
        let path = self.nodes.path(ino)?;
        let _act = who.act()?;
        let dir = self.pfs.open_at(&path, flags | OFlags::DIRECTORY).map_err(|e| match e {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => Errno::ESTALE,
            e => e,
        })?;
        match ino == Ino::ROOT || self.pfs.stat_fd(dir.as_fd())?.key == known.key {
            true => Ok(dir),
            false => Err(Errno::ESTALE),
        }
    }

    /// The directory that a name is to be made or removed in.
    pub(crate) fn open_parent(&self, who: &Who, parent: Ino, name: &[u8]) -> Result<OwnedFd> {
        check_name(name)?;
        self.open_dir(who, parent, OFlags::PATH)
    }

    /// The path of a name in a directory.
    pub(crate) fn path_below(&self, (dir, name): (Ino, &[u8])) -> Result<Vec<u8>> {
        Ok(joined(&self.nodes.path(dir)?, name))
    }

    /// Opens the PFS file as the requester, as they opened it in the mount (but for O_TRUNC), and
    /// says what it is.
    pub(crate) fn open_source(&self, ino: Ino, who: &Who, flags: u32) -> Result<(File, PfsStat)> {
        let open = || self.moves.follow(|| self.open_source_now(ino, who, flags));
        match open() {
            Err(Errno::ESTALE) if self.ownership.is_worth_another_look(ino) => open(),
            other => other,
        }
    }

    fn open_source_now(&self, ino: Ino, who: &Who, flags: u32) -> Result<(File, PfsStat)> {
        let _settled = self.settled(ino);
        let known = self.nodes.get(ino)?;
        let access = match flags as i32 & libc::O_ACCMODE {
            libc::O_WRONLY => OFlags::WRONLY,
            libc::O_RDWR => OFlags::RDWR,
            _ if writes(flags) => OFlags::RDWR,
            _ => OFlags::RDONLY,
        };
        let _act = who.act()?;
        if let Some(held) = &known.held {
            let path = proc_path(held.as_fd(), b"");
            let flags = access | OFlags::CLOEXEC;
            let open = || rustix::fs::open(&path[..], flags, Mode::empty());
            let fd = match open().map_err(super::pfs::errno) {
                Err(Errno::EACCES) if access == OFlags::RDONLY => {
                    drop(_act);
                    open().map_err(super::pfs::errno)?
                }
                opened => opened?,
            };
            let stat = self.pfs.stat_fd(fd.as_fd())?;
            return Ok((File::from(fd), stat));
        }
        let mut last = Errno::ENOENT;
        for path in self.nodes.paths(ino) {
            match self.pfs.open_file(&path, known.key, access) {
                // Who may execute a file need not be allowed to read it; the kernel has judged.
                Err(Errno::EACCES) if access == OFlags::RDONLY => {
                    drop(_act);
                    return self.pfs.open_file(&path, known.key, access);
                }
                Err(e @ (Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ELOOP)) => {
                    last = e;
                }
                other => return other,
            }
        }
        // Another file has its name, or nothing: the kernel looks again.
        Err(if last == Errno::ENOENT { Errno::ESTALE } else { last })
    }

    /// ESTALE if a drain has put another inode in the place of this one. With `meta` locked.
    pub(crate) fn must_be(&self, ino: Ino, stat: &PfsStat) -> Result<()> {
        match self.nodes.get(ino)?.key == stat.key {
            true => Ok(()),
            false => Err(Errno::ESTALE),
        }
    }

    /// The PFS file behind a cached one, for fills.
    pub(crate) fn source_of(&self, file: &Arc<CacheFile>) -> Result<Arc<File>> {
        if let Some(source) = file.source() {
            return Ok(source);
        }
        let writer = file.state.lock().record.writer.clone();
        for _ in 0..SOURCE_TRIES {
            let opened = match self.open_source(file.number(), &Who::server(), 0) {
                Err(Errno::EACCES | Errno::EPERM) => self.open_source(file.number(), &writer, 0),
                other => other,
            };
            let (source, stat) = match opened {
                Err(Errno::ESTALE) => continue,
                other => other?,
            };
            let state = file.state.lock();
            if state.record.key != stat.key {
                // A drain has put another inode in its place: this one has what was before.
                continue;
            }
            let source = Arc::new(source);
            // Kept only while somebody has it open; else, and where descriptors are few, with the caller.
            if state.opens.all() > 0 && descriptors::may_stay(&source) {
                file.set_source(Some(source.clone()));
            }
            return Ok(source);
        }
        Err(Errno::ESTALE)
    }
}
