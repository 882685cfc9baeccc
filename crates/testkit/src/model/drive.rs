//! Does the model's operations on a real file system, by system calls. The calling thread must
//! have its root directory at the file system's root (see `run`).

use super::op::{Answer, Op, Outcome, RawPath, SLOTS, Step};
use crate::procs::{Cred, umask};
use crate::sys::{self, Errno, Sys};
use forebay_files::{Follow, open, stat, unlink};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The real side: the files that the run holds open.
pub struct Driver {
    /// Open files, in the model's slots.
    pub files: Vec<Option<OwnedFd>>,
    /// Slots that are open through another mount of the same buffer.
    pub elsewhere: [bool; SLOTS],
    /// What stands before each path: nothing where the thread's root is the file system's.
    pub prefix: Vec<u8>,
    /// The whole process acts as a step's user, not the calling thread alone.
    pub as_process: bool,
    /// Opens, looks and removals by `forebay-files`.
    pub native: bool,
}

impl Driver {
    /// With no open file.
    pub fn new() -> Driver {
        Driver {
            files: (0..SLOTS).map(|_| None).collect(),
            elsewhere: [false; SLOTS],
            prefix: Vec::new(),
            as_process: false,
            native: false,
        }
    }

    /// A path of the model, as it is named here.
    pub fn at(&self, path: &RawPath) -> Vec<u8> {
        [&self.prefix[..], &path.0].concat()
    }

    /// Does one operation as its user.
    pub fn run(&mut self, step: &Step) -> Outcome {
        umask(step.umask);
        let act = if self.as_process { Cred::act_as_process } else { Cred::act };
        act(&step.who);
        let outcome = self.call(&step.op);
        act(&Cred::root());
        umask(0);
        outcome
    }

    fn file(&self, slot: usize) -> Sys<&OwnedFd> {
        self.files[slot].as_ref().ok_or(Errno(libc::EBADF))
    }

    fn call(&mut self, op: &Op) -> Outcome {
        let done = |result: Sys<()>| result.map(|()| Answer::Done);
        match op {
            Op::Open { slot, path, flags, mode } if self.native => {
                // It applies no umask.
                let mode = *mode & !umask(0);
                self.files[*slot] = Some(native(self.at(path), |p| open(p, *flags, mode))?);
                Ok(Answer::Done)
            }
            Op::Unlink { path } if self.native => done(native(self.at(path), unlink)),
            Op::Lstat { path } if self.native => {
                native(self.at(path), |path| stat(path, Follow::No)).map(|_| Answer::Done)
            }
            Op::Open { slot, path, flags, mode } => {
                self.files[*slot] = Some(sys::open(self.at(path), *flags, *mode)?);
                Ok(Answer::Done)
            }
            Op::Close { slot } => match self.files[*slot].take() {
                Some(fd) => done(sys::close(fd)),
                None => Err(Errno(libc::EBADF)),
            },
            Op::Mkdir { path, mode } => done(sys::mkdir(self.at(path), *mode)),
            Op::Rmdir { path } => done(sys::rmdir(self.at(path))),
            Op::Unlink { path } => done(sys::unlink(self.at(path))),
            Op::Link { from, to } => done(sys::link(self.at(from), self.at(to))),
            Op::Symlink { target, path } => done(sys::symlink(target, self.at(path))),
            Op::Readlink { path } => sys::readlink(self.at(path)).map(Answer::Bytes),
            Op::Rename { from, to, flags: 0 } => done(sys::rename(self.at(from), self.at(to))),
            Op::Rename { from, to, flags } => {
                done(sys::rename2(self.at(from), self.at(to), *flags))
            }
            Op::Mknod { path, mode, device } => done(sys::mknod(self.at(path), *mode, *device)),
            Op::Truncate { path, size } => done(sys::truncate(self.at(path), *size as i64)),
            Op::Chmod { path, mode } => done(sys::chmod(self.at(path), *mode)),
            Op::Chown { path, uid, gid, follow: true } => {
                done(sys::chown(self.at(path), *uid, *gid))
            }
            Op::Chown { path, uid, gid, follow: false } => {
                done(sys::lchown(self.at(path), *uid, *gid))
            }
            Op::Utimens { path, atime, mtime, follow } => {
                let flags = if *follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
                done(sys::utimens(self.at(path), *atime, *mtime, flags))
            }
            Op::SetXattr { path, name, value, flags } => {
                done(sys::setxattr(self.at(path), name, &value.bytes(), *flags))
            }
            Op::GetXattr { path, name } => sys::getxattr(self.at(path), name).map(Answer::Bytes),
            Op::RemoveXattr { path, name } => done(sys::removexattr(self.at(path), name)),
            Op::ListXattr { path } => {
                sys::listxattr(self.at(path)).map(user_only).map(Answer::Xattrs)
            }
            Op::Lstat { path } => sys::lstat(self.at(path)).map(|_| Answer::Done),
            Op::List { path } => {
                sys::list(self.at(path)).map(|entries| Answer::Names(names(entries)))
            }
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
            Op::LinkFd { slot, path } => done(sys::link_fd(self.file(*slot)?, self.at(path))),
            Op::Fchmod { slot, mode } => done(sys::fchmod(self.file(*slot)?, *mode)),
            other => panic!("{other:?} is not about an open file"),
        }
    }
}

/// A call of the native interface, with its errno.
fn native<T>(path: Vec<u8>, call: impl FnOnce(&Path) -> io::Result<T>) -> Sys<T> {
    let path = PathBuf::from(OsString::from_vec(path));
    call(&path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EINVAL)))
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
