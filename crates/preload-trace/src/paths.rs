//! Calls on names and attributes, and on directories.

use crate::names;
use crate::trace::{self, Call};
use crate::{clock, files, sys};
use forebay_trace_format::Op;
use forebay_trace_format::layout::NO_OFFSET;
use libc::{
    DIR, c_char, c_int, c_uint, c_void, dev_t, dirent, gid_t, mode_t, off_t, size_t, ssize_t,
    stat as Stat, statfs as StatFs, statvfs as StatVfs, statx as Statx, timespec, timeval, uid_t,
};

/// A call on a name that took from `start` to now.
///
/// # Safety
/// As for [`names::of_path`].
#[inline(always)]
unsafe fn on_path(op: Op, dir: c_int, path: *const c_char, done: i64, start: u64) {
    let end = clock::ticks();
    let result = sys::result(done);
    // SAFETY: by the caller's promise.
    let file = unsafe { names::of_path(dir, path, done == -1) }.id();
    trace::put(Call { op, flags: 0, file, offset: NO_OFFSET, length: 0, result, start, end });
}

#[inline(always)]
fn on_fd(op: Op, fd: c_int, done: i64, start: u64) {
    let end = clock::ticks();
    let result = sys::result(done);
    let file = files::file_of(fd);
    trace::put(Call { op, flags: 0, file, offset: NO_OFFSET, length: 0, result, start, end });
}

/// Here.
const CWD: c_int = libc::AT_FDCWD;

/// Defines calls whose first argument is a name.
macro_rules! on_paths {
    ($( $op:ident: $name:ident($($arg:ident: $type:ty),*) [$dir:expr, $path:expr]; )*) => {
        interpose! {
            timed {
                fn [fstat fstat64](fd: c_int, to: *mut Stat) -> c_int => |done, start| on_fd(Op::Fstat, fd, done.into(), start);
                fn [__fxstat __fxstat64](version: c_int, fd: c_int, to: *mut Stat) -> c_int => |done, start| on_fd(Op::Fstat, fd, done.into(), start);
                fn [fstatfs fstatfs64](fd: c_int, to: *mut StatFs) -> c_int => |done, start| on_fd(Op::Statfs, fd, done.into(), start);
                fn [fstatvfs fstatvfs64](fd: c_int, to: *mut StatVfs) -> c_int => |done, start| on_fd(Op::Statfs, fd, done.into(), start);
                fn [fchmod](fd: c_int, mode: mode_t) -> c_int => |done, start| on_fd(Op::Chmod, fd, done.into(), start);
                fn [fchown](fd: c_int, user: uid_t, group: gid_t) -> c_int => |done, start| on_fd(Op::Chown, fd, done.into(), start);
                fn [futimens](fd: c_int, times: *const timespec) -> c_int => |done, start| on_fd(Op::Utimens, fd, done.into(), start);
                fn [readlink](path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t => |done, start| on_path(Op::Readlink, CWD, path, done as i64, start);
                fn [readlinkat](dir: c_int, path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t => |done, start| on_path(Op::Readlink, dir, path, done as i64, start);
                fn [getxattr lgetxattr](path: *const c_char, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t => |done, start| on_path(Op::Xattr, CWD, path, done as i64, start);
                fn [listxattr llistxattr](path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t => |done, start| on_path(Op::Xattr, CWD, path, done as i64, start);
                fn [flistxattr](fd: c_int, to: *mut c_char, room: size_t) -> ssize_t => |done, start| on_fd(Op::Xattr, fd, done as i64, start);
                fn [fremovexattr](fd: c_int, name: *const c_char) -> c_int => |done, start| on_fd(Op::Xattr, fd, done.into(), start);
                fn [fgetxattr](fd: c_int, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t => |done, start| on_fd(Op::Xattr, fd, done as i64, start);
                fn [fsetxattr](fd: c_int, name: *const c_char, from: *const c_void, bytes: size_t, flags: c_int) -> c_int => |done, start| on_fd(Op::Xattr, fd, done.into(), start);
                fn [truncate truncate64](path: *const c_char, length: off_t) -> c_int => |done, start| truncated(path, length, done, start);
                fn [readdir readdir64](dir: *mut DIR) -> *mut dirent => |entry, start| listed(dir, entry.is_null(), start);
                fn [rename](from: *const c_char, to: *const c_char) -> c_int => |done, start| renamed((CWD, from), (CWD, to), done, start);
                fn [renameat](from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int => |done, start| renamed((from_dir, from), (to_dir, to), done, start);
                fn [renameat2](from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int => |done, start| renamed((from_dir, from), (to_dir, to), done, start);
                $( fn [$name]($($arg: $type),*) -> c_int => |done, start| on_path(Op::$op, $dir, $path, done.into(), start); )*
            }
            fn fchdir(fd: c_int) -> c_int, real => {
                let start = clock::ticks();
                let done = real(fd);
                names::cwd_changed();
                on_fd(Op::Chdir, fd, done.into(), start);
                done
            }
            fn chdir(path: *const c_char) -> c_int, real => {
                let start = clock::ticks();
                let done = real(path);
                names::cwd_changed();
                on_path(Op::Chdir, CWD, path, done.into(), start);
                done
            }
            fn opendir(path: *const c_char) -> *mut DIR, real => {
                let start = clock::ticks();
                let dir = real(path);
                let done = if dir.is_null() { -1 } else { 0 };
                on_path(Op::Opendir, CWD, path, done, start);
                if !dir.is_null() {
                    let errno = sys::Errno::keep();
                    let name = names::of_path(CWD, path, false);
                    files::opened(libc::dirfd(dir), name, libc::O_CLOEXEC);
                    drop(errno);
                }
                dir
            }
            fn closedir(dir: *mut DIR) -> c_int, real => {
                let mut file = 0;
                if !dir.is_null() {
                    let fd = libc::dirfd(dir);
                    file = files::known_file(fd);
                    files::detach(fd);
                }
                let start = clock::ticks();
                let done = real(dir);
                let end = clock::ticks();
                let (op, flags, result) = (Op::Closedir, 0, sys::result(done.into()));
                trace::put(Call { op, flags, file, offset: NO_OFFSET, length: 0, result, start, end });
                done
            }
        }
    };
}

/// A directory was read: 1 entry or none.
///
/// # Safety
/// `dir` is an open directory.
unsafe fn listed(dir: *mut DIR, ended: bool, start: u64) {
    let end = clock::ticks();
    let errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let file = files::file_of(unsafe { libc::dirfd(dir) });
    drop(errno);
    let (op, result) = (Op::Readdir, i64::from(!ended));
    trace::put(Call { op, flags: 0, file, offset: NO_OFFSET, length: 0, result, start, end });
}

/// A name became another one: a record of the call, and if it was done one of the new name.
///
/// # Safety
/// As for [`names::of_path`], of both names.
unsafe fn renamed(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    done: c_int,
    start: u64,
) {
    // SAFETY: by the caller's promise.
    unsafe { on_path(Op::Rename, from.0, from.1, done.into(), start) };
    if done != 0 {
        return;
    }
    // SAFETY: by the caller's promise; the call could read it.
    let file = unsafe { names::of_path(to.0, to.1, false) }.id();
    let (op, end) = (Op::RenameTarget, start);
    trace::put(Call { op, flags: 0, file, offset: NO_OFFSET, length: 0, result: 0, start, end });
}

/// # Safety
/// As for [`names::of_path`].
unsafe fn truncated(path: *const c_char, length: off_t, done: c_int, start: u64) {
    let end = clock::ticks();
    let result = sys::result(done.into());
    // SAFETY: by the caller's promise.
    let file = unsafe { names::of_path(CWD, path, done == -1) }.id();
    let offset = u64::try_from(length).unwrap_or(NO_OFFSET);
    trace::put(Call { op: Op::Truncate, flags: 0, file, offset, length: 0, result, start, end });
}

on_paths! {
    Stat: stat(path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: stat64(path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: lstat(path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: lstat64(path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: fstatat(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) [dir, path];
    Stat: fstatat64(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) [dir, path];
    Stat: __xstat(version: c_int, path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: __xstat64(version: c_int, path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: __lxstat(version: c_int, path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: __lxstat64(version: c_int, path: *const c_char, to: *mut Stat) [CWD, path];
    Stat: __fxstatat(version: c_int, dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) [dir, path];
    Stat: __fxstatat64(version: c_int, dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) [dir, path];
    Stat: statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) [dir, path];
    Access: access(path: *const c_char, mode: c_int) [CWD, path];
    Access: eaccess(path: *const c_char, mode: c_int) [CWD, path];
    Access: euidaccess(path: *const c_char, mode: c_int) [CWD, path];
    Access: faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) [dir, path];
    Unlink: unlink(path: *const c_char) [CWD, path];
    Unlink: unlinkat(dir: c_int, path: *const c_char, flags: c_int) [dir, path];
    Unlink: remove(path: *const c_char) [CWD, path];
    Mkdir: mkdir(path: *const c_char, mode: mode_t) [CWD, path];
    Mkdir: mkdirat(dir: c_int, path: *const c_char, mode: mode_t) [dir, path];
    Mkdir: mknod(path: *const c_char, mode: mode_t, device: dev_t) [CWD, path];
    Rmdir: rmdir(path: *const c_char) [CWD, path];
    Link: link(from: *const c_char, to: *const c_char) [CWD, to];
    Link: linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) [to_dir, to];
    Symlink: symlink(target: *const c_char, path: *const c_char) [CWD, path];
    Symlink: symlinkat(target: *const c_char, dir: c_int, path: *const c_char) [dir, path];
    Chmod: chmod(path: *const c_char, mode: mode_t) [CWD, path];
    Chmod: fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) [dir, path];
    Chown: chown(path: *const c_char, user: uid_t, group: gid_t) [CWD, path];
    Chown: lchown(path: *const c_char, user: uid_t, group: gid_t) [CWD, path];
    Chown: fchownat(dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) [dir, path];
    Utimens: utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) [dir, path];
    Utimens: utimes(path: *const c_char, times: *const timeval) [CWD, path];
    Utimens: utime(path: *const c_char, times: *const libc::utimbuf) [CWD, path];
    Statfs: statfs(path: *const c_char, to: *mut StatFs) [CWD, path];
    Statfs: statfs64(path: *const c_char, to: *mut StatFs) [CWD, path];
    Statfs: statvfs(path: *const c_char, to: *mut StatVfs) [CWD, path];
    Statfs: statvfs64(path: *const c_char, to: *mut StatVfs) [CWD, path];
    Xattr: setxattr(path: *const c_char, name: *const c_char, from: *const c_void, bytes: size_t, flags: c_int) [CWD, path];
    Xattr: lsetxattr(path: *const c_char, name: *const c_char, from: *const c_void, bytes: size_t, flags: c_int) [CWD, path];
    Xattr: removexattr(path: *const c_char, name: *const c_char) [CWD, path];
    Xattr: lremovexattr(path: *const c_char, name: *const c_char) [CWD, path];
}
