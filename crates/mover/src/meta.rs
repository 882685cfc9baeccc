//! What the mover knows of a file system object, the same for both sides.

use forebay_interfaces::data::Data;
use forebay_proto::attr::{Attr, FileKind, Timestamp};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Attributes of a source or target object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub kind: FileKind,
    /// Permission bits (07777).
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub dev: u64,
    pub ino: u64,
    pub nlink: u64,
    /// Device number in the encoding of FUSE (32 bits).
    pub rdev: u32,
}

impl Meta {
    /// From the buffer's attributes.
    pub fn of_attr(attr: &Attr) -> Meta {
        Meta {
            kind: attr.kind(),
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size_bytes,
            allocated_bytes: attr.blocks_512 * 512,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            dev: 0,
            ino: attr.ino.0,
            nlink: attr.nlink.into(),
            rdev: attr.rdev,
        }
    }

    /// From `stat`; `None` for a type that nobody knows.
    pub fn of_stat(stat: &rustix::fs::Stat) -> Option<Meta> {
        let stamp = |sec: i64, nsec: u64| Timestamp { sec, nsec: nsec as u32 };
        Some(Meta {
            kind: FileKind::from_mode(stat.st_mode)?,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size_bytes: stat.st_size as u64,
            allocated_bytes: stat.st_blocks as u64 * 512,
            atime: stamp(stat.st_atime, stat.st_atime_nsec),
            mtime: stamp(stat.st_mtime, stat.st_mtime_nsec),
            ctime: stamp(stat.st_ctime, stat.st_ctime_nsec),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: stat.st_nlink,
            rdev: encode_rdev(stat.st_rdev),
        })
    }

    /// How `self` (now) differs from `then`, if the content may be another.
    pub fn changed_since(&self, then: &Meta) -> Option<&'static str> {
        match () {
            () if (self.dev, self.ino) != (then.dev, then.ino) => Some("another file has its name"),
            () if self.size_bytes != then.size_bytes => Some("its size"),
            () if self.mtime != then.mtime => Some("its modification time"),
            () if self.ctime != then.ctime => Some("its change time"),
            () => None,
        }
    }
}

/// The kernel's 32-bit encoding (`new_encode_dev`): minor low byte, 12 bits major, rest of minor.
fn encode_rdev(dev: u64) -> u32 {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The inverse of the kernel's encoding.
pub(super) fn decode_rdev(rdev: u32) -> u64 {
    let major = (rdev >> 8) & 0xfff;
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xfff00);
    libc::makedev(major, minor)
}

/// An open directory of either side.
#[derive(Clone, Debug)]
pub(super) enum Dir {
    /// On the PFS: everything is reached by name from this descriptor.
    Pfs(Arc<OwnedFd>),
    /// In the buffer.
    Buffer(forebay_proto::Ino),
    /// None: a dry run would make it here. Whatever is looked for in it is not there.
    Missing,
}

/// A source file, open, and what it was at that moment.
#[derive(Clone, Debug)]
pub(super) struct OpenSource {
    pub file: Data,
    pub meta: Meta,
}

/// A target file that has not its name yet.
#[derive(Debug)]
pub(super) struct Temp {
    pub file: Data,
    pub at: TempAt,
}

/// Where the unnamed target is.
#[derive(Debug)]
pub(super) enum TempAt {
    /// Beside its name on the PFS.
    Pfs {
        /// Its temporary name.
        name: Vec<u8>,
        /// Its inode.
        ino: u64,
    },
    /// An inode of the buffer without a name.
    Buffer { ino: forebay_proto::Ino },
}

/// xattrs: name and value.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_encoding() {
        for (major, minor) in [(1, 3), (259, 70_000), (4095, 0xfffff)] {
            let dev = libc::makedev(major, minor);
            assert_eq!(decode_rdev(encode_rdev(dev)), dev);
        }
    }
}
