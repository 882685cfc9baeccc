//! Answers of the PFS to order ([`crate::pfs`]): attributes, entries and errors in the kernel's form.

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyEmpty, ReplyEntry, TimeOrNow};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

/// Nothing is cached but pages.
pub const TTL: Duration = Duration::ZERO;

/// What a file or directory is, as the kernel is told it.
pub fn attr_of(ino: u64, meta: &fs::Metadata) -> FileAttr {
    let time = |sec: i64, nsec: i64| UNIX_EPOCH + Duration::new(sec.max(0) as u64, nsec as u32);
    FileAttr {
        ino: INodeNo(ino),
        size: meta.len(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(meta.file_type()).unwrap_or(FileType::RegularFile),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: 4096,
        flags: 0,
    }
}

/// Answers an empty reply.
pub fn empty(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

/// Answers an entry.
pub fn entry(result: io::Result<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
        Err(error) => reply.error(Errno::from(error)),
    }
}

/// Time of a setattr for `utimensat`.
pub fn timespec(time: Option<TimeOrNow>) -> rustix::fs::Timespec {
    match time {
        None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            rustix::fs::Timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}
