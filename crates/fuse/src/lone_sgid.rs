//! Files that have sgid without execution by their group. A write by somebody who is not in the group takes it
//! off, and a WRITE tells only that its writer has not the right to keep it (CAP_FSETID), not who that
//! is to the file system. So for these few files the file system is asked first, with who asks.
//!
//! What is known comes from the attributes that the kernel was given. Called by `connection` (attributes)
//! and `ops::data` (writes, and those of `ops::copies`).

use forebay_proto::attr::FileKind;
use forebay_proto::{Attr, Ino};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most such files that are known; where there are more every file is taken for one.
const FILES_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct LoneSgid {
    /// There is none: nobody looks further.
    any: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    files: HashSet<Ino>,
    too_many: bool,
}

impl LoneSgid {
    /// The kernel is given these attributes.
    pub(crate) fn seen(&self, attr: &Attr) {
        let lone = attr.mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
        if lone && attr.kind() == FileKind::File {
            let mut known = self.known.lock();
            match known.files.len() < FILES_MAX {
                true => drop(known.files.insert(attr.ino)),
                false => known.too_many |= !known.files.contains(&attr.ino),
            }
            self.any.store(true, Relaxed);
        } else if self.any.load(Relaxed) {
            let mut known = self.known.lock();
            known.files.remove(&attr.ino);
            self.any.store(known.too_many || !known.files.is_empty(), Relaxed);
        }
    }

    /// True if a write may have to take sgid off this file.
    pub(crate) fn is_one(&self, ino: Ino) -> bool {
        self.any.load(Relaxed) && {
            let known = self.known.lock();
            known.too_many || known.files.contains(&ino)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Timestamp;

    #[test]
    fn only_files_with_sgid_alone_are_known_and_none_is_missed() {
        let known = LoneSgid::default();
        let attr = |ino, mode| Attr {
            ino: Ino(ino),
            size_bytes: 0,
            blocks_512: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            mode: libc::S_IFREG | mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize_bytes: 4096,
        };
        known.seen(&attr(1, 0o2755));
        assert!(!known.is_one(Ino(1)));
        known.seen(&attr(1, 0o2644));
        assert!(known.is_one(Ino(1)) && !known.is_one(Ino(2)));
        known.seen(&attr(1, 0o644));
        assert!(!known.is_one(Ino(1)));
        for ino in 0..=FILES_MAX as u64 {
            known.seen(&attr(ino, 0o2644));
        }
        assert!(known.is_one(Ino(FILES_MAX as u64)));
    }
}
