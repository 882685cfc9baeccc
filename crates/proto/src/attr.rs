//! Attributes of inodes, as `stat` shows them, and changes to them.

use crate::ids::Ino;
use serde::{Deserialize, Serialize};

/// A point in time: seconds since 1970 (negative before) and nanoseconds (0..1e9).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Timestamp {
    /// Now, by the coarse clock that the kernel's file systems stamp files with,
    /// so that stamps of the namespace and of objects can be compared.
    pub fn now() -> Timestamp {
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `ts` is a valid out-parameter; the clock id exists on every Linux we run on.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut ts) };
        Timestamp { sec: ts.tv_sec, nsec: ts.tv_nsec as u32 }
    }
}

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDev,
    /// Block device.
    BlockDev,
}

impl FileKind {
    /// The `S_IFMT` bits.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => libc::S_IFREG,
            FileKind::Dir => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDev => libc::S_IFCHR,
            FileKind::BlockDev => libc::S_IFBLK,
        }
    }

    /// The kind named by the `S_IFMT` bits of `mode`; no bits mean a regular file,
    /// as `mknod(2)` has it. `None` for bits that name nothing.
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Dir,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDev,
            libc::S_IFBLK => FileKind::BlockDev,
            _ => return None,
        })
    }

    /// The `d_type` of a directory entry.
    pub const fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// The I/O size of attributes without a size, which no others have: as on the wire, where they need no field more.
const BLKSIZE_OF_UNKNOWN: u32 = 0;

/// What `stat` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Type and permission bits (`S_IFMT | 07777`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding of FUSE.
    pub rdev: u32,
    /// Preferred I/O size in bytes; see [`Attr::is_size_known`].
    pub blksize_bytes: u32,
}

impl Attr {
    /// The type named by the mode.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::File)
    }

    /// The same without a size, because data of the file cannot be reached: its server is away, or it is lost. Such
    /// attributes may lead to the inode, but are not to be believed.
    #[must_use]
    pub fn with_unknown_size(self) -> Attr {
        Attr { blksize_bytes: BLKSIZE_OF_UNKNOWN, ..self }
    }

    /// False for attributes without a size ([`Attr::with_unknown_size`]).
    pub fn is_size_known(&self) -> bool {
        self.blksize_bytes != BLKSIZE_OF_UNKNOWN
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's now.
    Now,
    /// This time.
    At(Timestamp),
}

/// Changes asked for by chmod, chown, truncate and utimensat; `None` = leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// New permission bits (07777).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size_bytes: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time (only the kernel's write-back sets it).
    pub ctime: Option<Timestamp>,
    /// Take suid, sgid and `security.capability` off (a write by somebody without the
    /// right to keep them). A SETATTR without any field means the same.
    pub kill_suid: bool,
}
