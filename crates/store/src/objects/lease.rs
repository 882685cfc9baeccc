//! Whether anybody else has an object open: the kernel gives a write lease only to who is alone, and a read lease only
//! where nobody may write.
//!
//! Asked before data goes from an object that a kernel may have open whose mount is not heard: a mount that is
//! stopped, or dead while programs still have its files open, reads on by itself and would meet holes. The lease is given
//! back at once. Called by `cache::evict` through [`Objects::is_open_elsewhere`], and by `cache::mapped` through
//! [`Objects::may_be_written_elsewhere`].

use super::Objects;
use forebay_proto::{ObjectId, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `fcntl(2)`; not in the crate for all C libraries.
const F_SETLEASE: i32 = 1024;
const F_SETSIG: i32 = 10;

impl Objects {
    /// True if anybody but the caller has the object open now, in this process or elsewhere. False also where the file
    /// system has no leases.
    pub fn is_open_elsewhere(&self, id: ObjectId) -> Result<bool> {
        // One that was handed out is the same open file as the one that is kept here.
        self.fds.forget(id);
        Ok(!has_lease(&self.open_object(id)?, libc::F_WRLCK))
    }

    /// True if anybody but the caller may write the object by a descriptor or a mapping. False also where the file system
    /// has no leases.
    pub fn may_be_written_elsewhere(&self, id: ObjectId) -> Result<bool> {
        self.fds.forget(id);
        let reader = self.open_flags(id, OFlags::RDONLY | OFlags::NOFOLLOW)?;
        Ok(!has_lease(&reader, libc::F_RDLCK))
    }
}

/// Whether the kernel gives a lease of this kind, or none to anybody.
fn has_lease(file: &File, kind: i32) -> bool {
    let set = |command: i32, value: i32| {
        // SAFETY: an open descriptor, and commands that take a number.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // Who opens it in between waits until the lease is given back, and we are told by a signal: one that is ignored
    // unless somebody wants it. The usual one would end the process.
    if set(F_SETSIG, libc::SIGURG).is_err() {
        return true;
    }
    match set(F_SETLEASE, kind) {
        Ok(()) => {
            // A failure ends with the descriptor.
            let _given_back = set(F_SETLEASE, libc::F_UNLCK);
            true
        }
        Err(error) => error.raw_os_error() != Some(libc::EAGAIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Ino;
    use forebay_proto::api::WriteMode;

    #[test]
    fn whoever_has_an_object_open_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(dir.path(), false, true, None).unwrap();
        let id = ObjectId::whole(Ino(9));
        drop(objects.create(id).unwrap());
        objects.write(id, 0, b"data", WriteMode::default()).unwrap();
        assert!(!objects.is_open_elsewhere(id).unwrap(), "the descriptor that is kept here");
        let path = objects
            .path
            .join(std::str::from_utf8(super::super::ObjectName::new(id).path()).unwrap());
        for writes in [false, true] {
            let other = File::options().read(true).write(writes).open(&path).unwrap();
            let copy = other.try_clone().unwrap();
            drop(other);
            assert!(objects.is_open_elsewhere(id).unwrap(), "for writing: {writes}");
            drop(copy);
            assert!(!objects.is_open_elsewhere(id).unwrap(), "for writing: {writes}");
        }
        // A mapping for writing is seen after its descriptor was closed, and one for reading is not.
        for writes in [false, true] {
            let other = File::options().read(true).write(writes).open(&path).unwrap();
            let access = if writes { libc::PROT_WRITE } else { libc::PROT_READ };
            // SAFETY: a new mapping of an open file, which is used by nobody.
            let mapped = unsafe {
                let fd = other.as_raw_fd();
                libc::mmap(std::ptr::null_mut(), 4, access, libc::MAP_SHARED, fd, 0)
            };
            assert_ne!(mapped, libc::MAP_FAILED);
            assert_eq!(objects.may_be_written_elsewhere(id).unwrap(), writes);
            drop(other);
            assert_eq!(objects.may_be_written_elsewhere(id).unwrap(), writes);
            // SAFETY: the mapping above.
            assert_eq!(unsafe { libc::munmap(mapped, 4) }, 0);
            assert!(!objects.may_be_written_elsewhere(id).unwrap());
        }
        // Opens meanwhile are not disturbed, nor is this process.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2_000).for_each(|_| drop(File::open(&path).unwrap())));
            (0..2_000).for_each(|_| assert!(objects.is_open_elsewhere(id).is_ok()));
        });
    }
}
