//! The same calls by the kernel, at the same path. They are system calls, not functions of libc, which
//! `libforebay_preload.so` would ask the mount's process once more by.

use crate::{Attributes, Follow};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Statx, StatxFlags, StatxTimestamp};
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// open(2), but what is made gets the mode as it is.
pub(crate) fn open(path: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    // Not retained: O_LARGEFILE and what else C programs have.
    let flags = OFlags::from_bits_retain(flags as u32);
    let mode = Mode::from_raw_mode(mode);
    if !flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE) {
        return Ok(rustix::fs::openat(CWD, path, flags, mode)?);
    }
    match rustix::fs::openat(CWD, path, flags | OFlags::EXCL, mode) {
        Ok(file) => {
            let made = Mode::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            if (made ^ mode).intersects(all()) && !is_given_by_parent(path) {
                rustix::fs::fchmod(&file, made | (mode & all()))?;
            }
            Ok(file)
        }
        // It is there, or a link that leads to no file. What goes between both calls, and what such a link leads
        // to, is made with the umask: nobody can tell afterwards who made it.
        Err(rustix::io::Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
            Ok(rustix::fs::openat(CWD, path, flags, mode)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn all() -> Mode {
    Mode::RWXU | Mode::RWXG | Mode::RWXO
}

/// Whether the directory has an ACL that new files get: then no umask was applied.
fn is_given_by_parent(path: &CStr) -> bool {
    let bytes = path.to_bytes();
    let parent = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(0) => &b"/"[..],
        Some(at) => &bytes[..at],
        None => b".",
    };
    rustix::fs::getxattr(parent, DEFAULT_ACL, &mut [0_u8; 0]).is_ok()
}

pub(crate) fn mkdir(path: &CStr, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mkdirat(CWD, path, mode)?;
    let made = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let made = Mode::from_raw_mode(made.st_mode);
    if (made ^ mode).intersects(all()) && !is_given_by_parent(path) {
        rustix::fs::chmodat(CWD, path, made | (mode & all()), AtFlags::empty())?;
    }
    Ok(())
}

pub(crate) fn unlink(path: &CStr) -> io::Result<()> {
    Ok(rustix::fs::unlinkat(CWD, path, AtFlags::empty())?)
}

pub(crate) fn stat(path: &CStr, follow: Follow) -> io::Result<Attributes> {
    let flags = AtFlags::from_bits_retain(follow.flags());
    Ok(attributes(&rustix::fs::statx(CWD, path, flags, StatxFlags::ALL)?))
}

pub(crate) fn fstat(file: BorrowedFd<'_>) -> io::Result<Attributes> {
    Ok(attributes(&rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::ALL)?))
}

fn attributes(stat: &Statx) -> Attributes {
    let times: [&StatxTimestamp; 4] =
        [&stat.stx_atime, &stat.stx_mtime, &stat.stx_ctime, &stat.stx_btime];
    Attributes {
        ino: stat.stx_ino,
        size_bytes: stat.stx_size,
        blocks_512: stat.stx_blocks,
        sec: times.map(|time| time.tv_sec),
        nsec: times.map(|time| time.tv_nsec),
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        blksize_bytes: stat.stx_blksize,
        padding: 0,
    }
}

/// Names of a directory.
pub(crate) struct Names(Dir);

impl Names {
    pub(crate) fn of(path: &CStr) -> io::Result<Names> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Names(Dir::new(dir)?))
    }

    /// The next one that is neither `.` nor `..`.
    pub(crate) fn next_name(&mut self) -> io::Result<Option<Vec<u8>>> {
        for entry in self.0.by_ref() {
            let entry = entry?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => return Ok(Some(name.to_vec())),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn at(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    #[test]
    fn the_mode_is_what_was_asked_for_and_a_link_to_nothing_makes_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let file = at(&dir.path().join("f"));
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
        open(&file, flags, 0o666).unwrap();
        assert_eq!(stat(&file, Follow::Yes).unwrap().mode & 0o7777, 0o666);
        // What is there keeps its mode.
        open(&file, flags, 0o600).unwrap();
        assert_eq!(stat(&file, Follow::Yes).unwrap().mode & 0o7777, 0o666);
        let error = open(&file, flags | libc::O_EXCL, 0o600).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        std::os::unix::fs::symlink("target", dir.path().join("l")).unwrap();
        open(&at(&dir.path().join("l")), flags, 0o600).unwrap();
        assert!(dir.path().join("target").exists());
        let error = open(&at(dir.path()), libc::O_CREAT | libc::O_RDONLY, 0o600).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        mkdir(&at(&dir.path().join("d")), 0o777).unwrap();
        assert_eq!(stat(&at(&dir.path().join("d")), Follow::Yes).unwrap().mode & 0o7777, 0o777);
    }
}
