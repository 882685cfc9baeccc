//! Calls on the PFS that a drain makes with the rights of the writer.
//!
//! Invariants: the writer is tried first: where the PFS refuses root (root_squash) nobody else may. What takes the
//! place of another file never has that one's mode. Called by `publish` and `resolve`.

use super::super::attrs::grown;
use super::super::file::CacheFile;
use super::super::parts::Parts;
use super::super::pfs::{PfsDir, PfsStat, errno, proc_path};
use super::super::record::Owner;
use super::publish::Found;
use super::{Failed, failed};
use forebay_credentials::acting::Who;
use forebay_proto::Errno;
use rustix::fs::{self as rfs, Mode, OFlags, XattrFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

fn told(what: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| failed(errno, what)
}

/// Runs something as the writer; as the server where the writer may not (a file that was made
/// without the right to write, and written by who made it).
pub(super) fn as_writer<T>(
    file: &CacheFile,
    call: impl Fn() -> forebay_proto::Result<T>,
) -> forebay_proto::Result<T> {
    let writer = file.state.lock().record.writer.clone();
    let tried = writer.act().and_then(|_act| call());
    match tried {
        Err(Errno::EACCES | Errno::EPERM) => {
            let _act = Who::server().act()?;
            call()
        }
        other => other,
    }
}

/// PFS files that a drain writes to: their size, owner and rights.
pub(super) struct Targets {
    pfs: Arc<PfsDir>,
}

impl Targets {
    pub fn new(parts: &Parts) -> Targets {
        Targets { pfs: parts.pfs.clone() }
    }
}

impl Targets {
    /// Sets the size of what is drained to.
    pub(crate) fn resize_target(
        &self,
        file: &CacheFile,
        target: &File,
        size: u64,
    ) -> Result<(), Failed> {
        let resize = || rfs::ftruncate(target, size).map_err(errno);
        as_writer(file, resize).map_err(told("set the size of the PFS file"))
    }

    /// The temporary gets owner, xattrs (ACLs among them) and mode of the file that it replaces, and none
    /// that the directory's default ACL gave it. What cannot be done to it is done in place.
    pub(crate) fn copy_attributes(
        &self,
        file: &CacheFile,
        found: &Found,
        target: &File,
        own: &PfsStat,
    ) -> Result<(), Failed> {
        if let Some(owner) = found.instead_as {
            return self.give_owner(target, owner).map_err(told("give it its owner and mode"));
        }
        let old = self.pfs.open_at(&found.path, OFlags::PATH | OFlags::NOFOLLOW);
        let old = old.map_err(told("look at the PFS file"))?;
        self.copy_attributes_of(file, (old.as_fd(), &found.stat), target, own)
    }

    /// The same from an inode that is open, with these attributes.
    pub(crate) fn copy_attributes_of(
        &self,
        file: &CacheFile,
        (old, stat): (BorrowedFd<'_>, &PfsStat),
        target: &File,
        own: &PfsStat,
    ) -> Result<(), Failed> {
        let refused =
            |what: &'static str| move |e: Errno| Failed { in_place: true, ..failed(e, what) };
        if (own.uid, own.gid) != (stat.uid, stat.gid) {
            let uid = Some(rfs::Uid::from_raw(stat.uid));
            let gid = Some(rfs::Gid::from_raw(stat.gid));
            rfs::fchown(target, uid, gid).map_err(errno).map_err(refused("give it its owner"))?;
        }
        let path = proc_path(old, b"");
        let names = xattrs_of(&path).map_err(told("list its xattrs"))?;
        for name in &names {
            let value = match grown(|buffer| rfs::getxattr(&path[..], &name[..], buffer)) {
                // Removed since.
                Err(Errno::ENODATA) => continue,
                value => value.map_err(told("read its xattrs"))?,
            };
            let set =
                || rfs::fsetxattr(target, &name[..], &value, XattrFlags::empty()).map_err(errno);
            as_writer(file, set).map_err(refused("give it its xattrs"))?;
        }
        let inherited = xattrs_of(&proc_path(target.as_fd(), b""));
        for name in inherited.map_err(told("list its xattrs"))? {
            if !names.contains(&name) {
                let remove = || rfs::fremovexattr(target, &name[..]).map_err(errno);
                as_writer(file, remove).map_err(refused("take inherited xattrs off it"))?;
            }
        }
        let mode = Mode::from_raw_mode(stat.mode & 0o7777);
        let set = || rfs::fchmod(target, mode).map_err(errno);
        as_writer(file, set).map_err(refused("give it its mode"))
    }

    /// What is made in the place of a file can be used by nobody who could not use that: where its owner or group
    /// cannot be given it is for who wrote it alone. ACLs went with the file, and so does what the directory's
    /// default ACL gave; no program gets anybody's rights by this.
    pub(crate) fn give_owner(&self, target: &File, owner: Owner) -> forebay_proto::Result<()> {
        for name in xattrs_of(&proc_path(target.as_fd(), b""))? {
            if name.starts_with(b"system.posix_acl") {
                rfs::fremovexattr(target, &name[..]).map_err(errno)?;
            }
        }
        let own = self.pfs.stat_fd(target.as_fd())?;
        let is_its = (own.uid, own.gid) == (owner.uid, owner.gid) || {
            let uid = Some(rfs::Uid::from_raw(owner.uid));
            let gid = Some(rfs::Gid::from_raw(owner.gid));
            rfs::fchown(target, uid, gid).is_ok()
        };
        let mode = match is_its {
            true => owner.mode & 0o777,
            false => owner.mode & 0o700,
        };
        rfs::fchmod(target, Mode::from_raw_mode(mode)).map_err(errno)
    }

    /// Waits until the PFS has it.
    pub(crate) fn sync_target(&self, target: &File) -> Result<(), Failed> {
        let synced = self.pfs.weather().and_then(|()| rfs::fsync(target).map_err(errno));
        synced.map_err(told("fsync the PFS file"))
    }
}

/// Names of xattrs that a copy is to have; none on a file system that has none.
fn xattrs_of(path: &[u8]) -> forebay_proto::Result<Vec<Vec<u8>>> {
    let list = match grown(|buffer| rfs::listxattr(path, buffer)) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(Vec::new()),
        list => list?,
    };
    let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
    // The label is given by the policy of the PFS's node.
    Ok(names.filter(|name| name != b"security.selinux").map(<[u8]>::to_vec).collect())
}
