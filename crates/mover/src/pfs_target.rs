//! The PFS as a target: files are written under a temporary name beside their own, dressed,
//! fsynced, verified and renamed.
//!
//! A temporary name is `.forebay-PLAN.TOKEN-N.tmp`, where the random TOKEN belongs to the plan,
//! so that what carries it is the plan's own and can be removed after a kill. The journal names
//! the directory before the first temporary is made in it (`journal`, record `Dir`).

use super::endpoint::{At, MakeTop, PRIVATE_MODE, Target, no_parent, not_a_directory};
use super::fault::{Fault, Outcome, Sort, Where};
use super::meta::{Dir, Meta, Temp, TempAt, Xattrs, decode_rdev};
use super::paths::{join, split};
use super::pfs::{RequesterPfs, below_fd, errno, fd};
use forebay_credentials::identity::Acting;
use forebay_proto::attr::{FileKind, Timestamp};
use forebay_proto::{Errno, Result};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// End of a temporary name.
const TEMP_SUFFIX: &[u8] = b".tmp";

impl RequesterPfs {
    fn temp_name(&self, number: u64) -> Vec<u8> {
        let mut name = self.temp_prefix.clone();
        name.extend_from_slice(number.to_string().as_bytes());
        name.extend_from_slice(TEMP_SUFFIX);
        name
    }

    /// Makes something under a temporary name and renames it into place.
    fn by_rename(
        &self,
        at: At<'_>,
        what: &'static str,
        make: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<()>,
    ) -> Outcome<()> {
        let fault = Fault::target(what);
        let _acting = self.act("make", at.name).map_err(&fault)?;
        let dir = fd(at.dir).map_err(&fault)?;
        let temp = self.temp_name(at.temp);
        let made = make(dir, &temp).and_then(|()| self.give_name(dir, &temp, at.name));
        // Also after success: rename(2) does nothing between two names of one inode.
        match rustix::fs::unlinkat(dir, &temp, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) if made.is_ok() => return Err(fault(errno(e))),
            Err(e) => tracing::warn!(error = %e, "a temporary name could not be removed"),
        }
        made.map_err(|e| self.named_already(e).unwrap_or_else(|| fault(e)))
    }

    /// Renames a temporary name to its final one, replacing what is there if the plan may.
    fn give_name(&self, dir: BorrowedFd<'_>, temp: &[u8], name: &[u8]) -> Result<()> {
        if !self.no_clobber {
            return rustix::fs::renameat(dir, temp, dir, name).map_err(errno);
        }
        let hooked = self.hook.as_ref().map_or(Ok(()), |hook| hook("noreplace", name));
        let renamed = hooked.and_then(|()| {
            rustix::fs::renameat_with(dir, temp, dir, name, RenameFlags::NOREPLACE).map_err(errno)
        });
        let named = match renamed {
            // A file system that cannot rename so makes hard links, which replace nothing either.
            Err(Errno::EINVAL | Errno::ENOSYS) => {
                let linked = rustix::fs::linkat(dir, temp, dir, name, AtFlags::empty());
                let unnamed = |()| rustix::fs::unlinkat(dir, temp, AtFlags::empty());
                linked.and_then(unnamed).map_err(errno)
            }
            renamed => renamed,
        };
        match named {
            // A hard link that a killed run of this plan had already made. The temporary name goes later.
            Err(Errno::EEXIST) if is_same_file(dir, temp, name) => Ok(()),
            named => named,
        }
    }

    /// What is told of a name that was taken after the plan had looked, if the plan replaces nothing.
    fn named_already(&self, e: Errno) -> Option<Fault> {
        let why = "something got this name while the file was copied, and is left as it is \
                   (--no-clobber)";
        (self.no_clobber && e == Errno::EEXIST).then(|| Fault {
            errno: e,
            ..Fault::of(Sort::Refused, Where::Target, "rename target", why)
        })
    }

    /// Owner, xattrs, mode, times of an open object. What the requester may not give away is
    /// left as `cp -p` leaves it, and then suid or sgid is dropped.
    fn dress_fd(&self, fd: BorrowedFd<'_>, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let fault = Fault::target("set attributes");
        let mode = self.own(meta, |uid, gid| rustix::fs::fchown(fd, uid, gid), fd)?;
        let mut lost = None;
        for (name, value) in xattrs {
            let set = rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty());
            if let Err(e) = set {
                lost = Some((name, errno(e)));
            }
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(|e| fault(errno(e)))?;
        rustix::fs::futimens(fd, &times(meta)).map_err(|e| fault(errno(e)))?;
        match lost {
            None => Ok(()),
            Some((name, e)) if e == Errno::ENOSPC || e == Errno::EDQUOT => {
                let name = String::from_utf8_lossy(name);
                Err(Fault { why: Some(format!("xattr {name}: {e}")), ..fault(e) })
            }
            Some((name, e)) => Err(Fault::lost_xattr(name, e)),
        }
    }

    /// Sets the owner as far as the requester may; returns the mode bits that may be set then.
    fn own(
        &self,
        meta: &Meta,
        chown: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
        fd: BorrowedFd<'_>,
    ) -> Outcome<u32> {
        let fault = Fault::target("set owner");
        let now = rustix::fs::fstat(fd).map_err(|e| fault(errno(e)))?;
        let mut owner = (now.st_uid, now.st_gid);
        if owner.1 != meta.gid || owner.0 != meta.uid {
            let uid = self.identity.is_superuser().then(|| Uid::from_raw(meta.uid));
            match chown(uid, Some(Gid::from_raw(meta.gid))) {
                Ok(()) => owner = (uid.map_or(owner.0, Uid::as_raw), meta.gid),
                Err(rustix::io::Errno::PERM) if !self.identity.is_superuser() => {}
                Err(e) => return Err(fault(errno(e))),
            }
        }
        let mut mode = meta.mode;
        if owner.0 != meta.uid {
            mode &= !libc::S_ISUID;
        }
        if owner.1 != meta.gid && meta.kind != FileKind::Dir {
            mode &= !libc::S_ISGID;
        }
        Ok(mode)
    }

    /// The deepest directory on the way to `path` that exists.
    fn deepest<'p>(&self, path: &'p [u8]) -> Outcome<Deepest<'p>> {
        let what = "open target directory";
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut missing: Vec<&[u8]> = Vec::new();
        let mut at = path;
        loop {
            match self.open_named(at, flags) {
                Ok(fd) => return Ok(Deepest { fd, at, missing }),
                Err(Errno::ENOENT) => {
                    let (parent, name) =
                        split(at).ok_or_else(|| Fault::target(what)(Errno::ENOENT))?;
                    missing.push(name);
                    at = parent;
                }
                Err(e) => return Err(self.named_target(e, what)),
            }
        }
    }

    /// Refuses a path, of which directories may be missing, at or below a mount point at which nothing is mounted.
    pub(super) fn must_be_mounted_above(&self, path: &[u8]) -> Outcome<()> {
        // Where the requester may not look, nothing is known to be missed.
        let Ok(Deepest { fd, at, .. }) = self.deepest(path) else { return Ok(()) };
        self.must_be_mounted(fd.as_fd(), at)
    }

    /// Makes a directory of those on the way to a target, with exactly this mode unless a default
    /// ACL of its parent decides: the umask of this process is the server's, not the requester's.
    /// Without a mode it is private.
    fn make_on_the_way(&self, dir: &Dir, name: &[u8], mode: Option<u32>) -> Outcome<Dir> {
        let fault = Fault::target("make directory");
        let exactly = {
            let _acting = self.act("mkdir", name).map_err(&fault)?;
            let at = fd(dir).map_err(&fault)?;
            let (asked, exactly) = match mode {
                None => (PRIVATE_MODE, None),
                Some(_) if has_default_acl(at) => (0o777, None),
                Some(mode) => (mode, Some(mode)),
            };
            match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(asked)) {
                Ok(()) => exactly,
                Err(rustix::io::Errno::EXIST) => None,
                Err(e) => return Err(fault(errno(e))),
            }
        };
        // Durable before anything is put below it.
        self.fsync_dir(dir)?;
        let opened = self.enter_at(dir, name).map_err(&fault)?;
        if let Some(mode) = exactly {
            let _acting = self.act("chmod", name).map_err(&fault)?;
            let at = fd(&opened).map_err(&fault)?;
            let now = rustix::fs::fstat(at).map_err(|e| fault(errno(e)))?.st_mode & 0o7777;
            if now & 0o777 != mode {
                // The bits above are the parent's gift (setgid).
                let mode = Mode::from_raw_mode((now & !0o777) | mode);
                rustix::fs::fchmod(at, mode).map_err(|e| fault(errno(e)))?;
            }
        }
        Ok(opened)
    }
}

/// The deepest directory on the way to a path that exists.
struct Deepest<'p> {
    fd: OwnedFd,
    /// Its path.
    at: &'p [u8],
    /// The names that are missing below it, the last one first.
    missing: Vec<&'p [u8]>,
}

/// Whether the modes of what is made in a directory are given by its ACL.
fn has_default_acl(dir: BorrowedFd<'_>) -> bool {
    rustix::fs::fgetxattr(dir, "system.posix_acl_default", &mut [0u8; 0][..]).is_ok()
}

/// True if two names of a directory lead to one file.
fn is_same_file(dir: BorrowedFd<'_>, one: &[u8], other: &[u8]) -> bool {
    let file = |name: &[u8]| {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    file(one).is_some_and(|found| file(other) == Some(found))
}

/// Both times, for `utimensat`.
fn times(meta: &Meta) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

impl Target for RequesterPfs {
    fn make_top(&self, path: &[u8], how: &MakeTop) -> Outcome<Dir> {
        let Deepest { fd, at, mut missing } = self.deepest(path)?;
        // First, since a directory that is missing is on the file system that is not there.
        if !how.parents {
            self.must_be_mounted(fd.as_fd(), at)?;
        }
        if let (Some(first), false) = (missing.last(), how.allows(missing.len())) {
            return Err(no_parent(&join(at, b"", first)));
        }
        let mut dir = Dir::Pfs(Arc::new(fd));
        while let Some(name) = missing.pop() {
            dir = self.make_on_the_way(&dir, name, how.mode(missing.is_empty()))?;
        }
        Ok(dir)
    }

    fn find_top(&self, path: &[u8], how: &MakeTop) -> Outcome<(Dir, Vec<Vec<u8>>)> {
        let Deepest { fd, at, missing } = self.deepest(path)?;
        if !how.parents {
            self.must_be_mounted(fd.as_fd(), at)?;
        }
        if missing.is_empty() {
            return Ok((Dir::Pfs(Arc::new(fd)), Vec::new()));
        }
        let mut below = at.to_vec();
        let paths: Vec<_> = missing
            .iter()
            .rev()
            .map(|name| {
                below = join(&below, b"", name);
                below.clone()
            })
            .collect();
        match how.allows(paths.len()) {
            true => Ok((Dir::Missing, paths)),
            false => Err(no_parent(&paths[0])),
        }
    }

    fn find_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        match self.enter_at(dir, name) {
            Err(Errno::ENOENT) => Ok(Dir::Missing),
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(not_a_directory()),
            opened => opened.map_err(Fault::target("open target directory")),
        }
    }

    fn look(&self, path: &[u8]) -> Outcome<Option<Meta>> {
        let found = match self.open_named(path, OFlags::PATH) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(self.named_target(e, "open target")),
        };
        let stat = rustix::fs::fstat(&found).map_err(|e| Fault::target("stat target")(errno(e)))?;
        Ok(Meta::of_stat(&stat))
    }

    fn reopen(&self, top: &[u8], rel: &[u8]) -> Outcome<Dir> {
        self.walk_down(top, rel).map_err(Fault::target("open target directory"))
    }

    fn stat(&self, dir: &Dir, name: &[u8]) -> Outcome<Option<Meta>> {
        match self.stat_at(dir, name) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(Fault::target("stat target")(e)),
        }
    }

    fn make_dir(&self, dir: &Dir, name: &[u8]) -> Outcome<Dir> {
        let fault = Fault::target("make directory");
        let acting = self.act("mkdir", name).map_err(&fault)?;
        let at = fd(dir).map_err(&fault)?;
        // Private until it is complete; the source's mode comes last.
        match rustix::fs::mkdirat(at, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(fault(errno(e))),
        }
        drop(acting);
        let opened = self.enter_at(dir, name).map_err(|e| match e {
            Errno::ENOTDIR | Errno::ELOOP => not_a_directory(),
            e => Fault::target("open target directory")(e),
        })?;
        let _acting = self.act("stat", name).map_err(&fault)?;
        let at = fd(&opened).map_err(&fault)?;
        let stat = rustix::fs::fstat(at).map_err(|e| fault(errno(e)))?;
        if stat.st_uid == self.identity.uid() && stat.st_mode & 0o700 != 0o700 {
            // Left so by an earlier run: without this its own owner could not write in it.
            let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700);
            rustix::fs::fchmod(at, mode).map_err(|e| fault(errno(e)))?;
        }
        Ok(opened)
    }

    fn begin(&self, dir: &Dir, _size_bytes: u64, temp: u64) -> Outcome<Temp> {
        let fault = Fault::target("create target");
        let name = self.temp_name(temp);
        let _acting = self.act("create", &name).map_err(&fault)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = self.open_at(dir, &name, flags, mode).map_err(&fault)?;
        let ino = rustix::fs::fstat(&opened).map_err(|e| fault(errno(e)))?.st_ino;
        Ok(Temp { file: std::fs::File::from(opened).into(), at: TempAt::Pfs { name, ino } })
    }

    fn grow(&self, _temp: &Temp, _size_bytes: u64) -> Outcome<()> {
        Ok(())
    }

    fn writing(&self) -> Outcome<Option<Acting>> {
        self.identity.enter().map(Some).map_err(Fault::target("write target"))
    }

    fn dress(&self, temp: &Temp, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let _acting = self.act("dress", b"").map_err(Fault::target("set attributes"))?;
        let file = temp.file.kernel().map_err(Fault::target("set attributes"))?;
        self.dress_fd(file.as_fd(), meta, xattrs)
    }

    fn fsync(&self, temp: &Temp) -> Outcome<()> {
        let fault = Fault::target("fsync target");
        let _acting = self.act("fsync", b"").map_err(&fault)?;
        rustix::fs::fsync(temp.file.kernel().map_err(&fault)?).map_err(|e| fault(errno(e)))
    }

    fn publish(&self, temp: &Temp, dir: &Dir, name: &[u8]) -> Outcome<Meta> {
        let fault = Fault::target("rename target");
        let TempAt::Pfs { name: old, .. } = &temp.at else { return Err(fault(Errno::EBADF)) };
        let _acting = self.act("rename", name).map_err(&fault)?;
        let at = fd(dir).map_err(&fault)?;
        let named = self.give_name(at, old, name);
        named.map_err(|e| self.named_already(e).unwrap_or_else(|| fault(e)))?;
        let stat =
            rustix::fs::fstat(temp.file.kernel().map_err(&fault)?).map_err(|e| fault(errno(e)))?;
        Meta::of_stat(&stat).ok_or_else(|| fault(Errno::EINVAL))
    }

    fn abandon(&self, temp: &Temp, dir: &Dir) -> bool {
        let TempAt::Pfs { name, .. } = &temp.at else { return true };
        let removed = self.identity.enter().and_then(|_acting| {
            rustix::fs::unlinkat(fd(dir)?, name, AtFlags::empty()).map_err(errno)
        });
        if let Err(error) = &removed {
            let name = String::from_utf8_lossy(name).into_owned();
            tracing::warn!(name, %error, "a temporary file could not be removed; it is tried again at the end");
        }
        removed.is_ok()
    }

    fn remove_temp(&self, dir: &Dir, name: &[u8], ino: u64) -> Outcome<bool> {
        let fault = Fault::target("remove leftovers");
        let now = match self.stat_at(dir, name) {
            Err(Errno::ENOENT) => return Ok(false),
            now => now.map_err(&fault)?,
        };
        if now.kind != FileKind::File || now.ino != ino {
            return Ok(false);
        }
        let _acting = self.act("sweep", name).map_err(&fault)?;
        let at = fd(dir).map_err(&fault)?;
        rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(|e| fault(errno(e)))?;
        Ok(true)
    }

    fn symlink(&self, at: At<'_>, to: &[u8], meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let mut lost = None;
        self.by_rename(at, "make symbolic link", |dir, temp| {
            rustix::fs::symlinkat(to, dir, temp).map_err(errno)?;
            lost = self.dress_name(dir, temp, meta, xattrs)?;
            Ok(())
        })?;
        lost.map_or(Ok(()), Err)
    }

    fn node(&self, at: At<'_>, meta: &Meta, xattrs: &Xattrs) -> Outcome<()> {
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        let mut lost = None;
        self.by_rename(at, "make special file", |dir, temp| {
            let dev = decode_rdev(meta.rdev);
            rustix::fs::mknodat(dir, temp, kind, Mode::RUSR | Mode::WUSR, dev).map_err(errno)?;
            lost = self.dress_name(dir, temp, meta, xattrs)?;
            Ok(())
        })?;
        lost.map_or(Ok(()), Err)
    }

    fn link(&self, old_dir: &Dir, old_name: &[u8], at: At<'_>) -> Outcome<()> {
        self.by_rename(at, "make hard link", |dir, temp| {
            rustix::fs::linkat(fd(old_dir)?, old_name, dir, temp, AtFlags::empty()).map_err(errno)
        })
    }

    fn finish_dir(&self, dir: &Dir, attrs: Option<(&Meta, &Xattrs)>) -> Outcome<()> {
        let fault = Fault::target("set attributes of directory");
        let Some((meta, xattrs)) = attrs else { return Ok(()) };
        let _acting = self.act("dress", b"").map_err(&fault)?;
        self.dress_fd(fd(dir).map_err(&fault)?, meta, xattrs)
    }

    fn fsync_dir(&self, dir: &Dir) -> Outcome<()> {
        let fault = Fault::target("fsync directory");
        let _acting = self.act("fsync", b"").map_err(&fault)?;
        rustix::fs::fsync(fd(dir).map_err(&fault)?).map_err(|e| fault(errno(e)))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn sweep(&self, dir: &Dir, prefix: &[u8]) -> Outcome<()> {
        let fault = Fault::target("remove leftovers");
        let _acting = self.act("sweep", b"").map_err(&fault)?;
        let at = fd(dir).map_err(&fault)?;
        let entries = rustix::fs::Dir::read_from(at).map_err(|e| fault(errno(e)))?;
        for entry in entries {
            let entry = entry.map_err(|e| fault(errno(e)))?;
            let name = entry.file_name();
            let ours = name.to_bytes().starts_with(prefix);
            if ours && name.to_bytes().ends_with(TEMP_SUFFIX) {
                rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(|e| fault(errno(e)))?;
            }
        }
        Ok(())
    }
}

impl RequesterPfs {
    /// Owner, xattrs, mode and times of something that cannot be opened, by its temporary name;
    /// tells of an xattr that was refused.
    fn dress_name(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        meta: &Meta,
        xattrs: &Xattrs,
    ) -> Result<Option<Fault>> {
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        let uid = self.identity.is_superuser().then(|| Uid::from_raw(meta.uid));
        match rustix::fs::chownat(dir, name, uid, Some(Gid::from_raw(meta.gid)), no_follow) {
            Ok(()) => {}
            Err(rustix::io::Errno::PERM) if !self.identity.is_superuser() => {}
            Err(e) => return Err(errno(e)),
        }
        let path = below_fd(dir, name);
        let mut lost = None;
        for (key, value) in xattrs {
            let set = rustix::fs::lsetxattr(&path[..], key.as_slice(), value, XattrFlags::empty());
            match set.map_err(errno) {
                Ok(()) => {}
                Err(e @ (Errno::ENOSPC | Errno::EDQUOT)) => return Err(e),
                Err(e) => lost = Some(Fault::lost_xattr(key, e)),
            }
        }
        if meta.kind != FileKind::Symlink {
            let mode = Mode::from_raw_mode(meta.mode);
            rustix::fs::chmodat(dir, name, mode, AtFlags::empty()).map_err(errno)?;
        }
        rustix::fs::utimensat(dir, name, &times(meta), no_follow).map_err(errno)?;
        Ok(lost)
    }
}

/// Which file system a path lies on, as far as it exists; an empty mount point is another one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct FsIdentity {
    /// The deepest part of the PFS's path that existed at the start.
    pub path: forebay_proto::control::PathBytes,
    dev: u64,
    fs_id: u64,
    fs_type: i64,
}

impl FsIdentity {
    /// Looks at the deepest existing directory on the way to `path`.
    pub fn of(pfs: &RequesterPfs, path: &[u8]) -> Outcome<FsIdentity> {
        let mut at = path;
        loop {
            match FsIdentity::exactly(pfs, at) {
                Ok(id) => return Ok(id),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(pfs.named_target(e, "open target directory")),
            }
            let Some((parent, _)) = split(at) else {
                return Err(pfs.named_target(Errno::ENOENT, "open target directory"));
            };
            at = parent;
        }
    }

    fn exactly(pfs: &RequesterPfs, path: &[u8]) -> Result<FsIdentity> {
        let found = pfs.open_named(path, OFlags::PATH | OFlags::DIRECTORY)?;
        let stat = rustix::fs::fstat(&found).map_err(errno)?;
        let fs = rustix::fs::fstatfs(&found).map_err(errno)?;
        Ok(FsIdentity {
            path: forebay_proto::control::PathBytes::new(path),
            dev: stat.st_dev,
            fs_id: rustix::fs::fstatvfs(&found).map_err(errno)?.f_fsid,
            fs_type: fs.f_type as i64,
        })
    }

    /// Fails unless the path still lies on the file system it lay on. `side` is the PFS's.
    pub fn check(&self, pfs: &RequesterPfs, side: Where) -> Outcome<()> {
        let what = "check the PFS";
        let gone = |why: &str| {
            let why = format!("{why}; is it mounted? What was copied stays, start it again then");
            Fault { errno: Errno::ENODEV, ..Fault::of(Sort::Refused, side, what, why) }
        };
        let now = match FsIdentity::exactly(pfs, self.path.as_bytes()) {
            Ok(now) => now,
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                return Err(gone("its directory is gone"));
            }
            Err(e) => return Err(Fault { side, ..pfs.named_target(e, what) }),
        };
        // Device numbers of network file systems change at a remount, file system ids of others.
        let same_id = self.fs_id != 0 && now.fs_id == self.fs_id;
        if now.fs_type == self.fs_type && (same_id || now.dev == self.dev) {
            return Ok(());
        }
        Err(gone(&format!("{} is not on the file system it was on", self.path)))
    }
}
