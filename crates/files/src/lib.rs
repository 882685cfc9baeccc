//! Files of mounted buffers, asked of the mount's process beside the kernel, by programs that are written for it: the
//! native interface. `libforebay_preload.so` does the same for programs that are not, and docs/PRELOAD.md tells of both.
//!
//! A call about one path is one question; a call about many paths (`*_many`) is one question for each
//! [`forebay_preload_wire::MANY_MAX`] of them, which is where it is much faster than the mount. Files come as descriptors of
//! the kernel.
//!
//! Invariants:
//! * All paths may be asked for, of a buffer or not: what the mount's process does not grant, or nobody can be asked
//!   about, is done by the kernel at the same path, by the same call. So an error is always one that a file system gave.
//! * What is kept is a thread's own (the table of mounts, connections): no lock, right after fork, and
//!   asked as who the thread is at each call.
//! * The umask is not applied: a library cannot know it without changing it for other threads. A mode is what the file gets.
//!
//! Called by `libforebay` (C, and Python over that), by the benchmark, and by Rust programs.

mod alone;
mod connection;
mod kernel;
mod many;
mod places;

pub use forebay_preload_wire::Attributes;
pub use many::{create_many, open_many, stat_many, unlink_many};

use alone::Told;
use connection::{Reply, ask, ask_about, told};
use forebay_preload_wire::{BY_KERNEL, MADE, Request, op};
use places::locate;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Flags of `open(2)` that the mount's process never takes.
const OPENED_BY_KERNEL: i32 =
    libc::O_DIRECTORY | libc::O_PATH | libc::O_DIRECT | libc::O_SYNC | libc::O_NOATIME;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Yes.
    Yes,
    /// No: the link itself is meant.
    No,
}

impl Follow {
    fn flags(self) -> u32 {
        match self {
            Follow::Yes => 0,
            Follow::No => libc::AT_SYMLINK_NOFOLLOW as u32,
        }
    }
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn failed(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status)
}

/// Asks about one path; `None`: the kernel is to be asked.
fn asked(path: &CStr, request: Request) -> Option<Reply> {
    let found = locate(path.to_bytes())?;
    ask(&found, request).filter(|reply| reply.answer.status != BY_KERNEL)
}

/// What needs no question; `None`: one is to be asked.
fn told_of<T>(path: &CStr, of: impl Fn(&Told, &[u8]) -> Option<T>) -> Option<T> {
    let found = locate(path.to_bytes())?;
    of(&told(&found.mount, &found.start)?, found.path)
}

/// Opens a file by the flags of `open(2)`. One that is made gets the mode as it is.
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: &Path, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let path = text(path)?;
    if flags & OPENED_BY_KERNEL != 0 {
        return kernel::open(&path, flags, mode);
    }
    let alone = |told: &Told, path: &[u8]| told.open(path, flags);
    if let Some(file) = told_of(&path, alone) {
        return Ok(file);
    }
    let request = Request { op: op::OPEN, flags: flags as u32, mode, ..Request::default() };
    match asked(&path, request) {
        None => kernel::open(&path, flags, mode),
        Some(Reply { answer, fd: Some(fd) }) if answer.status == 0 => Ok(fd),
        Some(Reply { answer, .. }) if answer.status == 0 => {
            // There is no room for its descriptor, and without one nothing is to be made.
            if answer.flags & MADE != 0 {
                unlink_text(&path)?;
            }
            Err(failed(libc::EMFILE))
        }
        Some(reply) => Err(failed(reply.answer.status)),
    }
}

/// Attributes of a path.
///
/// # Errors
/// Those of `stat(2)`.
pub fn stat(path: &Path, follow: Follow) -> io::Result<Attributes> {
    let path = text(path)?;
    if let Some(attributes) = told_of(&path, Told::attributes) {
        return Ok(attributes);
    }
    let request = Request { op: op::STAT, flags: follow.flags(), ..Request::default() };
    match asked(&path, request) {
        None => kernel::stat(&path, follow),
        Some(reply) if reply.answer.status == 0 => Ok(reply.answer.attributes),
        Some(reply) => Err(failed(reply.answer.status)),
    }
}

/// Attributes of the file of an open descriptor, also of one that [`open`] gave: the kernel's `fstat` shows the object
/// of such a file, with another number, owner and mode.
///
/// # Errors
/// Those of `fstat(2)`. ENOTCONN, ESTALE: the mount's process ended, or knows the file no more.
pub fn fstat(file: impl AsFd) -> io::Result<Attributes> {
    match about(file.as_fd(), op::FSTAT)? {
        None => kernel::fstat(file.as_fd()),
        Some(reply) => Ok(reply.answer.attributes),
    }
}

/// Makes data and name of an open file survive a power cut, where the store does, also of one that [`open`] gave: the
/// kernel's `fsync` of such a one syncs the data alone.
///
/// # Errors
/// Those of `fsync(2)`, and of [`fstat`].
pub fn fsync(file: impl AsFd) -> io::Result<()> {
    match about(file.as_fd(), op::FSYNC)? {
        None => Ok(rustix::fs::fsync(file)?),
        Some(_) => Ok(()),
    }
}

/// Asks about a descriptor; `None`: it is the kernel's to answer.
fn about(file: BorrowedFd<'_>, operation: u32) -> io::Result<Option<Reply>> {
    match ask_about(file, Request { op: operation, ..Request::default() })? {
        None => Ok(None),
        Some(reply) => match reply.answer.status {
            0 => Ok(Some(reply)),
            // The mount knows no such file any more: its last name went with a mount that was killed.
            BY_KERNEL => Err(failed(libc::ESTALE)),
            errno => Err(failed(errno)),
        },
    }
}

/// Makes a directory, with the mode as it is.
///
/// # Errors
/// Those of `mkdir(2)`.
pub fn mkdir(path: &Path, mode: u32) -> io::Result<()> {
    kernel::mkdir(&text(path)?, mode)
}

/// Removes a name that is no directory.
///
/// # Errors
/// Those of `unlink(2)`.
pub fn unlink(path: &Path) -> io::Result<()> {
    unlink_text(&text(path)?)
}

fn unlink_text(path: &CStr) -> io::Result<()> {
    match asked(path, Request { op: op::UNLINK, ..Request::default() }) {
        None => kernel::unlink(path),
        Some(reply) if reply.answer.status == 0 => Ok(()),
        Some(reply) => Err(failed(reply.answer.status)),
    }
}

/// Renames; what has the new name goes.
///
/// # Errors
/// Those of `rename(2)`.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::fs::rename(from, to)?)
}

/// Names of a directory with their attributes (of links themselves), in no order, without `.` and `..`, until `each`
/// says false. A name that goes meanwhile is left out.
///
/// # Errors
/// Those of `open(2)` and `readdir(3)` of the directory, and of `stat(2)`.
pub fn list(path: &Path, mut each: impl FnMut(&OsStr, &Attributes) -> bool) -> io::Result<()> {
    let mut names = kernel::Names::of(&text(path)?)?;
    let mut left = true;
    while left {
        let mut paths = Vec::new();
        while paths.len() < forebay_preload_wire::MANY_MAX && left {
            match names.next_name()? {
                Some(name) => paths.push(path.join(OsStr::from_bytes(&name))),
                None => left = false,
            }
        }
        for (path, told) in paths.iter().zip(stat_many(&paths, Follow::No)) {
            match told {
                Ok(attributes) => {
                    if !each(path.file_name().unwrap_or_default(), &attributes) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
