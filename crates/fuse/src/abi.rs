//! The kernel's side of `/dev/fuse`: structures, opcodes and flags of linux/fuse.h, protocol
//! 7.45 (Linux 6.18), in native byte order. Nothing here has behaviour.
//!
//! Names are those of linux/fuse.h without the `fuse_` and `FUSE_` prefixes, so that a reader
//! can hold the two side by side. Every structure has no padding, so all of its bytes can be
//! read from and written to the device.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version that we speak.
pub(crate) const KERNEL_VERSION: u32 = 7;
/// Newest minor version that we know.
pub(crate) const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that we accept: 7.31 (Linux 5.4).
pub(crate) const OLDEST_MINOR_VERSION: u32 = 31;

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
    )* };
}

wire! {
    /// Starts every request. `len` counts header, arguments and extensions.
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen_8: u16, padding: u16,
    }
    /// Starts every reply and notification. `error` is 0 or a negative errno.
    struct OutHeader { len: u32, error: i32, unique: u64, }
    /// Attributes; `blocks` in 512 bytes.
    struct RawAttr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: RawAttr,
    }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: RawAttr, }
    struct SxTime { sec: i64, nsec: u32, reserved: i32, }
    /// As `struct statx`, but for its tail.
    struct RawStatx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    struct StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: RawStatx,
    }
    struct ForgetIn { nlookup: u64, }
    struct ForgetOne { nodeid: u64, nlookup: u64, }
    struct BatchForgetIn { count: u32, dummy: u32, }
    struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    struct MkdirIn { mode: u32, umask: u32, }
    struct RenameIn { newdir: u64, }
    struct Rename2In { newdir: u64, flags: u32, padding: u32, }
    struct LinkIn { oldnodeid: u64, }
    struct OpenIn { flags: u32, open_flags: u32, }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// `kind` is F_RDLCK, F_WRLCK or F_UNLCK; both ends belong to the range.
    struct FileLock { start: u64, end: u64, kind: u32, pid: u32, }
    struct LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    struct LkOut { lk: FileLock, }
    /// READ, READDIR, READDIRPLUS.
    struct ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    struct WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    struct WriteOut { size: u32, padding: u32, }
    struct KStatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// Without SETXATTR_EXT only the first two fields are sent.
    struct SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    struct SetxattrCompatIn { size: u32, flags: u32, }
    struct GetxattrIn { size: u32, padding: u32, }
    struct GetxattrOut { size: u32, padding: u32, }
    struct InterruptIn { unique: u64, }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    struct LseekOut { offset: u64, }
    struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    struct CopyFileRangeOut { bytes_copied: u64, }
    /// The part of INIT that every kernel sends.
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// What follows it with `INIT_EXT`.
    struct InitInExt { flags2: u32, unused: [u32; 11], }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// Followed by the name, padded to 8 bytes.
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// `size` counts this header; padded to 8 bytes.
    struct ExtHeader { size: u32, kind: u32, }
    struct NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    /// Followed by the name and a NUL, which `namelen` does not count.
    struct NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    /// Followed by `count` inodes.
    struct NotifyPruneOut { count: u32, padding: u32, spare: u64, }
    /// Argument of `FUSE_DEV_IOC_BACKING_OPEN`.
    struct BackingMap { fd: i32, flags: u32, padding: u64, }
}

macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        /// Request numbers.
        #[allow(dead_code, reason = "the table is whole; some are only counted and refused")]
        pub(crate) mod op { $(pub(crate) const $name: u32 = $value;)* }
        /// Name of a request number, `None` for one that we do not know.
        pub(crate) const fn opcode_name(opcode: u32) -> Option<&'static str> {
            match opcode { $($value => Some(stringify!($name)),)* _ => None }
        }
    };
}

/// One more than the highest opcode that we know.
pub(crate) const OPCODE_END: u32 = 54;

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
    MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15,
    WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22,
    LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28,
    RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34,
    CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40,
    NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45,
    LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49, SYNCFS = 50,
    TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
}

/// Capabilities of INIT. Bits 32 and up travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
    pub(crate) const NO_EXPORT_SUPPORT: u64 = 1 << 38;
}

/// `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub(crate) const PASSTHROUGH: u32 = 1 << 7;
}

/// `OpenIn::open_flags`: take suid and sgid off (with O_TRUNC).
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `WriteIn::write_flags`: from the page cache, so not an append whatever the file's flags.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `ReadIn::read_flags`, `WriteIn::write_flags`: `lock_owner` is the process's.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: take suid and sgid off.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `ReleaseIn::release_flags`: flock was called on the file; `lock_owner` is the file's.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `LkIn::lk_flags`: flock, not fcntl.
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// `FsyncIn::fsync_flags`: fdatasync.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `SetxattrIn::setxattr_flags`: take sgid off with a new access ACL.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `ExtHeader::kind` of the supplementary groups: a count, then gids, all u32.
pub(crate) const EXT_GROUPS: u32 = 32;

/// Notification: drop attributes and pages of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: drop a name.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Notification: drop all names (protocol 7.44).
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;
/// Minor version that brought `NOTIFY_INC_EPOCH`.
pub(crate) const MINOR_INC_EPOCH: u32 = 44;
/// Lets go of inodes that nothing uses.
pub(crate) const NOTIFY_PRUNE: i32 = 9;
/// Minor version that brought `NOTIFY_PRUNE`.
pub(crate) const MINOR_PRUNE: u32 = 45;

/// `_IOR(229, 0, u32)`: makes an open /dev/fuse another channel of a mount.
pub(crate) const DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// `_IOW(229, 1, struct fuse_backing_map)`: registers a file for passthrough.
pub(crate) const DEV_IOC_BACKING_OPEN: libc::Ioctl = 0x4010_e501_u32 as libc::Ioctl;
/// `_IOW(229, 2, u32)`: gives a registration back.
pub(crate) const DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502_u32 as libc::Ioctl;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_header_file() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<RawAttr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<RawStatx>(), 256);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<InitIn>() + size_of::<InitInExt>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<KStatfs>(), 80);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<FlushIn>(), 24);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<LkOut>(), 24);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
    }

    #[test]
    fn known_opcodes_are_below_the_end() {
        assert!(opcode_name(OPCODE_END - 1).is_some());
        assert!((OPCODE_END..OPCODE_END + 16).all(|o| opcode_name(o).is_none()));
    }
}
