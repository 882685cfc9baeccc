//! What a mount may ask of a cache whose kernel is not believed.
//!
//! Where a mount shows the server's key, or is root's on the server's node, its kernel judges who may do
//! what, as for any file system, and calls carry the requester. A user's mount, or one with a buffer's secret, could
//! be any program: its calls have the rights of one user (`Session::acts_as`), and here each is held
//! to what this user may do on the PFS: nothing is reached but by names that were looked up as this user,
//! no data is read or written but of files that were opened so; what it says to hold from before a restart is
//! looked for by its names as this user. Called before any call on a cache.

use crate::session::Session;
use crate::session::reply::CallContext;
use forebay_cache::CacheFs;
use forebay_proto::net::Call;
use forebay_proto::{Errno, Ino, Result, ShardId};
use std::sync::Arc;

/// Access to a file or directory, as for `open(2)`.
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_WRONLY as u32;

/// Judges calls.
pub(super) struct CacheRights {
    /// Of this server.
    shard: ShardId,
    fs: Arc<CacheFs>,
}

impl CacheRights {
    pub(super) fn new(shard: ShardId, fs: &Arc<CacheFs>) -> CacheRights {
        CacheRights { shard, fs: Arc::clone(fs) }
    }

    /// An error if this mount may not do this. Each call is named here: one that is new is not allowed before somebody judged it.
    pub(super) fn must_be_allowed(&self, cx: &CallContext<'_>, call: &Call<'_>) -> Result<()> {
        if cx.session.acts_as().is_none() {
            return Ok(());
        }
        let held = |ino: Ino| self.must_hold(cx, ino);
        match *call {
            Call::Lookup { parent, .. }
            | Call::Mknod { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::Create { parent, .. }
            | Call::Tmpfile { parent, .. } => held(parent),
            Call::Link { ino, parent, .. } => held(ino).and_then(|()| held(parent)),
            Call::Rename { parent, new_parent, .. } => held(parent).and_then(|()| held(new_parent)),
            Call::Getattr(ino)
            | Call::Readlink(ino)
            | Call::Listxattr(ino)
            | Call::Setxattr { ino, .. }
            | Call::Removexattr { ino, .. }
            | Call::Fsyncdir(ino)
            | Call::DirLimit(ino) => held(ino),
            Call::Getxattr { ino, name } => held(ino).and_then(|()| self.must_see(cx, ino, name)),
            Call::Setattr { ino, ref change } => {
                held(ino)?;
                match change.size_bytes {
                    Some(_) => self.must_cut(cx, ino),
                    None => Ok(()),
                }
            }
            Call::List { ino, .. } => {
                held(ino)?;
                self.fs.mounts().may_open(&cx.caller, ino, READ)
            }
            Call::Open { ino, open_flags, .. } => {
                held(ino)?;
                let access = open_flags & libc::O_ACCMODE as u32;
                self.fs.mounts().may_open(&cx.caller, ino, access)
            }
            Call::Read { ino, .. } | Call::Seek { ino, .. } => must_read(cx.session, ino),
            Call::Write { ino, .. } | Call::Fallocate { ino, .. } => must_write(cx.session, ino),
            Call::CopyRange { source, target, .. } => {
                must_read(cx.session, source).and_then(|()| must_write(cx.session, target))
            }
            Call::Fsync { ino, .. } => held(ino),
            // Of the session itself, or of all files together; what this mount gives back; what a cache has not.
            Call::Attach(_)
            | Call::Join { .. }
            | Call::Renew
            | Call::Detach
            | Call::Places
            | Call::Probe
            | Call::Statfs
            | Call::SyncAll
            | Call::Forget(_)
            | Call::Release(_)
            | Call::Close(_)
            | Call::ReadObject { .. }
            | Call::WriteObject { .. }
            | Call::SyncObject { .. }
            | Call::LogBegin { .. }
            | Call::LogOpen { .. }
            | Call::LogPublish { .. }
            | Call::LogMap { .. } => Ok(()),
            // Each file is judged by who takes it up, takes it, or locks it.
            Call::Reclaim(_) | Call::Take { .. } | Call::TakeAll(_) | Call::Lock(_) => Ok(()),
        }
    }

    /// An error if this mount may not give a file another size.
    fn must_cut(&self, cx: &CallContext<'_>, ino: Ino) -> Result<()> {
        match cx.session.opens().may_write(ino) {
            true => Ok(()),
            false => self.fs.mounts().may_open(&cx.caller, ino, WRITE),
        }
    }

    /// An error if this mount may not read this attribute, as the kernel has it for xattr(7).
    fn must_see(&self, cx: &CallContext<'_>, ino: Ino, name: &[u8]) -> Result<()> {
        match (name.starts_with(b"user.forebay."), name.starts_with(b"user.")) {
            _ if name.starts_with(b"trusted.") => Err(Errno::ENODATA),
            (false, true) => self.fs.mounts().may_open(&cx.caller, ino, READ),
            _ => Ok(()),
        }
    }

    /// True if a listing may tell attributes, as `stat` of each name does.
    pub(super) fn may_stat_below(&self, cx: &CallContext<'_>, ino: Ino) -> bool {
        cx.session.acts_as().is_none() || self.fs.mounts().may_search(&cx.caller, ino).is_ok()
    }

    /// An error if this mount speaks of what it was not given.
    pub(super) fn must_know(&self, cx: &CallContext<'_>, ino: Ino) -> Result<()> {
        match cx.session.acts_as().is_some() {
            true => self.must_hold(cx, ino),
            false => Ok(()),
        }
    }

    fn must_hold(&self, cx: &CallContext<'_>, ino: Ino) -> Result<()> {
        if ino == Ino::ROOT || cx.session.holds(ino) {
            return Ok(());
        }
        // What another server has, this mount holds there.
        match ino.shard() != self.shard {
            true => self.fs.mounts().may_reach(&cx.caller, ino),
            false => Err(Errno::ESTALE),
        }
    }
}

fn must_read(session: &Session, ino: Ino) -> Result<()> {
    match session.opens().may_read(ino) {
        true => Ok(()),
        false => Err(Errno::EBADF),
    }
}

fn must_write(session: &Session, ino: Ino) -> Result<()> {
    match session.opens().may_write(ino) {
        true => Ok(()),
        false => Err(Errno::EBADF),
    }
}
