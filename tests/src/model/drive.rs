//! Does the model's operations on a real file system, by system calls. The calling thread must
//! have its root directory at the file system's root (see `run`).

use super::op::{Answer, Op, Outcome, SLOTS, Step};
use crate::procs::{Cred, umask};
use crate::sys::{self, Errno, Sys};
use std::os::fd::{AsRawFd, OwnedFd};

/// The real side: the files that the run holds open.
pub struct Driver {
    /// Open files, in the model's slots.
    pub files: Vec<Option<OwnedFd>>,
    /// Slots that are open through another mount of the same buffer.
    pub elsewhere: [bool; SLOTS],
}

impl Driver {
    /// With no open file.
    pub fn new() -> Driver {
        Driver { files: (0..SLOTS).map(|_| None).collect(), elsewhere: [false; SLOTS] }
    }

    /// Does one operation as its user.
    pub fn run(&mut self, step: &Step) -> Outcome {
        umask(step.umask);
        step.who.act();
        let outcome = self.call(&step.op);
        Cred::root().act();
        umask(0);
        outcome
    }

    fn file(&self, slot: usize) -> Sys<&OwnedFd> {
        self.files[slot].as_ref().ok_or(Errno(libc::EBADF))
    }

    fn call(&mut self, op: &Op) -> Outcome {
        let done = |result: Sys<()>| result.map(|()| Answer::Done);
        match op {
            Op::Open { slot, path, flags, mode } => {
                self.files[*slot] = Some(sys::open(path, *flags, *mode)?);
                Ok(Answer::Done)
            }
            Op::Close { slot } => match self.files[*slot].take() {
                Some(fd) => done(sys::close(fd)),
                None => Err(Errno(libc::EBADF)),
            },
            Op::Mkdir { path, mode } => done(sys::mkdir(path, *mode)),
            Op::Rmdir { path } => done(sys::rmdir(path)),
            Op::Unlink { path } => done(sys::unlink(path)),
            Op::Link { from, to } => done(sys::link(from, to)),
            Op::Symlink { target, path } => done(sys::symlink(target, path)),
            Op::Readlink { path } => sys::readlink(path).map(Answer::Bytes),
            Op::Rename { from, to, flags: 0 } => done(sys::rename(from, to)),
            Op::Rename { from, to, flags } => done(sys::rename2(from, to, *flags)),
            Op::Mknod { path, mode, device } => done(sys::mknod(path, *mode, *device)),
            Op::Truncate { path, size } => done(sys::truncate(path, *size as i64)),
            Op::Chmod { path, mode } => done(sys::chmod(path, *mode)),
            Op::Chown { path, uid, gid, follow: true } => done(sys::chown(path, *uid, *gid)),
            Op::Chown { path, uid, gid, follow: false } => done(sys::lchown(path, *uid, *gid)),
            Op::Utimens { path, atime, mtime, follow } => {
                let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                done(sys::utimens(path, *atime, *mtime, flags))
            }
            Op::SetXattr { path, name, value, flags } => {
                done(sys::setxattr(path, name, &value.bytes(), *flags))
            }
            Op::GetXattr { path, name } => sys::getxattr(path, name).map(Answer::Bytes),
            Op::RemoveXattr { path, name } => done(sys::removexattr(path, name)),
            Op::ListXattr { path } => sys::listxattr(path).map(user_only).map(Answer::Xattrs),
            Op::Lstat { path } => sys::lstat(path).map(|_| Answer::Done),
            Op::List { path } => sys::list(path).map(|entries| Answer::Names(names(entries))),
            _ => self.call_on_file(op),
        }
    }

    fn call_on_file(&mut self, op: &Op) -> Outcome {
        let done = |result: Sys<()>| result.map(|()| Answer::Done);
        match op {
            Op::Pread { slot, at, length } => {
                sys::pread(self.file(*slot)?, *at, *length).map(Answer::Bytes)
            }
            Op::Read { slot, length } => sys::read(self.file(*slot)?, *length).map(Answer::Bytes),
            Op::Pwrite { slot, at, fill } => {
                sys::pwrite(self.file(*slot)?, *at, &fill.bytes()).map(Answer::Count)
            }
            Op::Write { slot, fill } => {
                sys::write(self.file(*slot)?, &fill.bytes()).map(Answer::Count)
            }
            Op::Ftruncate { slot, size } => done(sys::ftruncate(self.file(*slot)?, *size)),
            Op::Fallocate { slot, mode, at, length } => {
                done(sys::fallocate(self.file(*slot)?, *mode, *at, *length))
            }
            Op::Extents { slot } => extents(self.file(*slot)?),
            Op::Fsync { slot } => done(sys::fsync(self.file(*slot)?)),
            Op::Copy { from, at, to, to_at, length } => {
                let (from, to) = (self.file(*from)?, self.file(*to)?);
                sys::copy_range(from, *at, to, *to_at, *length).map(Answer::Count)
            }
            Op::MapWrite { slot, at, fill } => {
                done(map_write(self.file(*slot)?, *at, &fill.bytes()))
            }
            Op::LinkFd { slot, path } => done(sys::link_fd(self.file(*slot)?, path)),
            Op::Fchmod { slot, mode } => done(sys::fchmod(self.file(*slot)?, *mode)),
            other => panic!("{other:?} is not about an open file"),
        }
    }
}

impl Default for Driver {
    fn default() -> Self {
        Driver::new()
    }
}

/// Names of `user.*` alone: the kernel and the store may add `security.*`, ACLs are tested apart.
pub fn user_only(names: Vec<String>) -> Vec<String> {
    names.into_iter().filter(|name| name.starts_with("user.")).collect()
}

/// Sorted names and types without `.` and `..`, which must be there once.
pub fn names(entries: Vec<sys::Dirent>) -> Vec<(Vec<u8>, u8)> {
    let dots = entries.iter().filter(|e| e.name == b"." || e.name == b"..").count();
    assert_eq!(dots, 2, "a listing must have . and .. once");
    let mut names: Vec<(Vec<u8>, u8)> = entries
        .into_iter()
        .filter(|entry| entry.name != b"." && entry.name != b"..")
        .map(|entry| (entry.name, entry.kind))
        .collect();
    names.sort();
    names
}

/// The data ranges of a file; leaves its position at 0.
pub fn extents(fd: &OwnedFd) -> Outcome {
    let mut ranges = Vec::new();
    let mut at = 0;
    let end = sys::lseek(fd, 0, libc::SEEK_END)?;
    loop {
        match sys::lseek(fd, at as i64, libc::SEEK_DATA) {
            Ok(from) => {
                let to = sys::lseek(fd, from as i64, libc::SEEK_HOLE)?;
                ranges.push((from, to));
                at = to;
            }
            Err(Errno(libc::ENXIO)) => break,
            Err(error) => return Err(error),
        }
    }
    sys::lseek(fd, 0, libc::SEEK_SET)?;
    Ok(Answer::Extents(ranges, end))
}

/// Stores bytes through a shared mapping and syncs it.
pub fn map_write(fd: &OwnedFd, at: u64, bytes: &[u8]) -> Sys<()> {
    let start = at & !4095;
    let length = (at - start) as usize + bytes.len();
    // SAFETY: a fresh mapping of `length` bytes, which the file covers; it is used only here.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            start as i64,
        );
        if map == libc::MAP_FAILED {
            return Err(sys::last());
        }
        let place = map.cast::<u8>().add((at - start) as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        let synced = libc::msync(map, length, libc::MS_SYNC);
        let error = sys::last();
        libc::munmap(map, length);
        if synced == 0 { Ok(()) } else { Err(error) }
    }
}
