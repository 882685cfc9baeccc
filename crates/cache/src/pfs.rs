//! The PFS directory that a cache shows: where it is, whether it is still the same, and calls below it.
//!
//! Invariants: every path is opened by openat2 below the directory, through no symbolic link; an
//! inode is what it was taken for only if its [`Key`] says so. The directory is held open; if its
//! file system vanished and came back it is opened anew, but only if [`Identity`] says that it is
//! the one the buffer was made over: an empty mount point is not the PFS.
//!
//! Called by all of the cache, by a thread that acts as the requester (`act`).

use forebay_proto::attr::{Attr, FileKind, Timestamp};
use forebay_proto::{Errno, Ino, Result};
use parking_lot::RwLock;
use rustix::fs::{self as rfs, AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How paths below the directory are resolved.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

/// Start of the names that NFS gives to what is removed and still held.
pub(crate) const HELD_PREFIX: &[u8] = b".nfs";

/// Longest path, with its end, that one call takes.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// What makes a PFS file this one, over renames and remounts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Device; 0 for that of the PFS directory itself, whose number may change at a remount.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Time of birth in nanoseconds, 0 if the PFS does not tell it: tells a new file from an old
    /// one whose number it got.
    pub born_ns: i128,
}

/// What the PFS says of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PfsStat {
    pub key: Key,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    pub rdev: u32,
}

impl PfsStat {
    /// The type.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::File)
    }

    /// As `stat` in the mount shows it, under the number that it has there.
    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            size_bytes: self.size,
            blocks_512: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize_bytes: BLKSIZE_BYTES,
        }
    }
}

/// Preferred I/O size told to programs.
const BLKSIZE_BYTES: u32 = 1 << 20;

/// What tells one file system from another one on the same mount point.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Type of the file system.
    pub fs_type: String,
    /// What is mounted.
    pub source: String,
    /// Which part of it.
    pub root: String,
    /// Inode number of the directory.
    pub ino: u64,
    /// Its time of birth, as in [`Key`].
    pub born_ns: i128,
}

struct Opened {
    dir: Arc<OwnedFd>,
    dev: u64,
    mount_id: u64,
}

/// The PFS directory that a cache shows.
pub(crate) struct PfsDir {
    path: PathBuf,
    identity: Identity,
    opened: RwLock<Opened>,
    /// Tests set the errno that calls with data get; 0: none.
    #[cfg(test)]
    pub foul: std::sync::atomic::AtomicI32,
    /// Tests set it: no name of ours can be removed.
    #[cfg(test)]
    pub keeps_names: std::sync::atomic::AtomicBool,
    /// Tests set it: [`PfsDir::renames_what_is_held`].
    #[cfg(test)]
    pub is_as_nfs: std::sync::atomic::AtomicBool,
}

/// The errno of a failed rustix call.
pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn stamp(t: rfs::StatxTimestamp) -> Timestamp {
    Timestamp { sec: t.tv_sec, nsec: t.tv_nsec }
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(t: Timestamp) -> i128 {
    i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec)
}

/// A device number in the kernel's 32-bit encoding of FUSE.
fn encode_rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// True for errors of a file system that was unmounted, or whose server has forgotten us.
pub(crate) fn went_away(e: Errno) -> bool {
    matches!(e, Errno::ENOTCONN | Errno::ESTALE | Errno::ENODEV)
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    rfs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(errno)
}

/// `statx` of a name below a directory, or of the descriptor itself for an empty name.
fn statx(dir: BorrowedFd<'_>, name: &[u8], more: StatxFlags) -> Result<rfs::Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME | more;
    rfs::statx(dir, name, flags, mask).map_err(errno)
}

fn birth(st: &rfs::Statx) -> i128 {
    match st.stx_mask & StatxFlags::BTIME.bits() != 0 {
        true => nanoseconds(stamp(st.stx_btime)),
        false => 0,
    }
}

/// What a directory's file system says of itself.
fn identify(dir: BorrowedFd<'_>) -> Result<(Identity, u64, u64)> {
    let st = statx(dir, b"", StatxFlags::MNT_ID)?;
    let dev = rfs::makedev(st.stx_dev_major, st.stx_dev_minor);
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut identity = Identity {
        fs_type: String::new(),
        source: String::new(),
        root: String::new(),
        ino: st.stx_ino,
        born_ns: birth(&st),
    };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if fields.first().and_then(|id| id.parse().ok()) != Some(st.stx_mnt_id) {
            continue;
        }
        let end = fields.iter().position(|&f| f == "-").unwrap_or(fields.len());
        let at = |i: usize| fields.get(i).copied().unwrap_or_default().to_string();
        identity.root = at(3);
        identity.fs_type = at(end + 1);
        identity.source = at(end + 2);
    }
    Ok((identity, dev, st.stx_mnt_id))
}

impl PfsDir {
    /// Opens the directory. `expected` is what it was when the buffer was made: ENODEV if it is
    /// another one now.
    pub fn open(path: &Path, expected: Option<&Identity>) -> Result<PfsDir> {
        let dir = open_dir(path)?;
        let (identity, dev, mount_id) = identify(dir.as_fd())?;
        if expected.is_some_and(|expected| *expected != identity) {
            return Err(Errno::ENODEV);
        }
        let opened = RwLock::new(Opened { dir: Arc::new(dir), dev, mount_id });
        Ok(PfsDir {
            path: path.to_path_buf(),
            identity,
            opened,
            #[cfg(test)]
            foul: Default::default(),
            #[cfg(test)]
            keeps_names: Default::default(),
            #[cfg(test)]
            is_as_nfs: Default::default(),
        })
    }

    /// Before each call that moves data or publishes it. Only in tests it can fail.
    pub fn weather(&self) -> Result<()> {
        #[cfg(test)]
        match self.foul.load(std::sync::atomic::Ordering::Relaxed) {
            0 => {}
            errno => return Err(Errno(errno)),
        }
        Ok(())
    }

    /// Before a name of ours is removed. Only in tests it can fail.
    pub fn weather_for_names(&self) -> Result<()> {
        #[cfg(test)]
        if self.keeps_names.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        self.weather()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for NFS: the kernel renames a file that is removed while a descriptor leads to it, one to look by too, to
    /// a name that starts with [`HELD_PREFIX`], and removes it when the last one is closed. Until then its directory is not
    /// empty.
    pub fn renames_what_is_held(&self) -> bool {
        #[cfg(test)]
        if self.is_as_nfs.load(std::sync::atomic::Ordering::Relaxed) {
            return true;
        }
        matches!(&*self.identity.fs_type, "nfs" | "nfs4")
    }

    /// What it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Looks whether the PFS is there and is the same; opens it anew if it went and came back.
    /// ENODEV: something else is at its path.
    pub fn check(&self) -> Result<()> {
        let dir = open_dir(&self.path)?;
        let st = statx(dir.as_fd(), b"", StatxFlags::MNT_ID)?;
        {
            let opened = self.opened.read();
            let same = st.stx_mnt_id == opened.mount_id
                && st.stx_ino == self.identity.ino
                && rfs::makedev(st.stx_dev_major, st.stx_dev_minor) == opened.dev
                && birth(&st) == self.identity.born_ns;
            if same {
                return Ok(());
            }
        }
        let (identity, dev, mount_id) = identify(dir.as_fd())?;
        if identity != self.identity {
            return Err(Errno::ENODEV);
        }
        tracing::warn!(path = %self.path.display(), "the PFS was mounted anew: opened again");
        *self.opened.write() = Opened { dir: Arc::new(dir), dev, mount_id };
        Ok(())
    }

    fn base(&self) -> (Arc<OwnedFd>, u64) {
        let opened = self.opened.read();
        (opened.dir.clone(), opened.dev)
    }

    /// Runs a call below the directory; once more if the directory had to be opened anew.
    fn below<T>(&self, call: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<T>) -> Result<T> {
        use rustix::io::Errno as E;
        let (dir, _) = self.base();
        match call(dir.as_fd()) {
            Err(e @ (E::NOTCONN | E::STALE | E::NODEV | E::HOSTDOWN)) => {
                self.check().map_err(|_| errno(e))?;
                let (again, _) = self.base();
                if Arc::ptr_eq(&again, &dir) {
                    return Err(errno(e));
                }
                call(again.as_fd()).map_err(errno)
            }
            other => other.map_err(errno),
        }
    }

    /// Opens what a path names. One that is longer than the kernel takes is walked in parts: a program may have
    /// come there by shorter ones.
    pub fn open_at(&self, rel: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let rel = if rel.is_empty() { &b"."[..] } else { rel };
        // With O_PATH openat2 takes no flag that means nothing there.
        let more = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        let flags = flags | more | OFlags::CLOEXEC;
        // RESOLVE_NO_SYMLINKS refuses a symbolic link at the end too, but with O_PATH|O_NOFOLLOW.
        self.below(|dir| {
            let (mut above, mut rest) = (None::<OwnedFd>, rel);
            while rest.len() >= PATH_MAX {
                let slash = rest[..PATH_MAX].iter().rposition(|b| *b == b'/');
                let slash = slash.ok_or(rustix::io::Errno::NAMETOOLONG)?;
                let (part, further) = (&rest[..slash], &rest[slash + 1..]);
                let at = above.as_ref().map_or(dir, |fd| fd.as_fd());
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                above = Some(rfs::openat2(at, part, flags, Mode::empty(), BELOW)?);
                rest = further;
            }
            let at = above.as_ref().map_or(dir, |fd| fd.as_fd());
            rfs::openat2(at, rest, flags, Mode::empty(), BELOW)
        })
    }

    /// What a path names, a symbolic link itself.
    pub fn stat(&self, rel: &[u8]) -> Result<PfsStat> {
        match self.stat_once(rel) {
            // Opening by O_PATH does not ask the PFS: that it is gone shows only now.
            Err(e) if went_away(e) && self.check().is_ok() => self.stat_once(rel),
            other => other,
        }
    }

    fn stat_once(&self, rel: &[u8]) -> Result<PfsStat> {
        let fd = self.open_at(rel, OFlags::PATH | OFlags::NOFOLLOW)?;
        self.stat_fd(fd.as_fd())
    }

    /// What an open file is.
    pub fn stat_fd(&self, fd: BorrowedFd<'_>) -> Result<PfsStat> {
        self.stat_at(fd, b"")
    }

    /// What a name in an open directory is, a symbolic link itself.
    pub fn stat_at(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<PfsStat> {
        let st = statx(dir, name, StatxFlags::empty())?;
        let dev = rfs::makedev(st.stx_dev_major, st.stx_dev_minor);
        let own = self.opened.read().dev;
        Ok(PfsStat {
            key: Key {
                dev: if dev == own { 0 } else { dev },
                ino: st.stx_ino,
                born_ns: birth(&st),
            },
            mode: u32::from(st.stx_mode),
            uid: st.stx_uid,
            gid: st.stx_gid,
            nlink: st.stx_nlink,
            size: st.stx_size,
            blocks: st.stx_blocks,
            atime: stamp(st.stx_atime),
            mtime: stamp(st.stx_mtime),
            ctime: stamp(st.stx_ctime),
            btime: stamp(st.stx_btime),
            rdev: encode_rdev(st.stx_rdev_major, st.stx_rdev_minor),
        })
    }

    /// Opens a regular file and looks that it is the one that is meant: ESTALE if not.
    pub fn open_file(&self, rel: &[u8], key: Key, flags: OFlags) -> Result<(File, PfsStat)> {
        // O_NONBLOCK: a fifo that was put in its place must not hang us.
        let fd = self.open_at(rel, flags | OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
        let stat = self.stat_fd(fd.as_fd())?;
        match stat.key == key && stat.kind() == FileKind::File {
            true => Ok((File::from(fd), stat)),
            false => Err(Errno::ESTALE),
        }
    }

    /// Space and inodes of the PFS.
    pub fn space(&self) -> Result<rfs::StatVfs> {
        self.below(|dir| rfs::fstatvfs(dir))
    }
}

/// A path of a name in an open directory, or of the open object itself for an empty name, for
/// calls that have no form with a descriptor. The name itself is not followed by calls that do
/// not follow links.
pub(crate) fn proc_path(fd: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes();
    if !name.is_empty() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_longer_than_a_call_takes_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsDir::open(dir.path(), None).unwrap();
        let name = [b'd'; 200];
        let mut at = open_dir(dir.path()).unwrap();
        let mut path = Vec::new();
        for _ in 0..50 {
            rfs::mkdirat(&at, &name[..], Mode::from_raw_mode(0o755)).unwrap();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = rfs::openat(&at, &name[..], flags, Mode::empty()).unwrap();
            path.extend_from_slice(&name);
            path.push(b'/');
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rfs::openat(&at, "f", flags, Mode::from_raw_mode(0o644)).unwrap();
        path.push(b'f');
        assert!(path.len() > 2 * PATH_MAX);
        assert_eq!(pfs.stat(&path).map(|stat| stat.kind()), Ok(FileKind::File));
        path.pop();
        path.push(b'g');
        assert_eq!(pfs.stat(&path).map(drop), Err(Errno::ENOENT));
        // No name is that long.
        assert_eq!(pfs.stat(&[b'x'; 5000]).map(drop), Err(Errno::ENAMETOOLONG));
        // Links are not followed in any part.
        let link = rfs::symlinkat(".", &at, "link");
        assert!(link.is_ok());
        path.pop();
        path.extend_from_slice(b"link/f");
        assert_eq!(pfs.stat(&path).map(drop), Err(Errno::ELOOP));
    }
}
