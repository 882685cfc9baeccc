//! Calls on paths.

use crate::places::{Found, locate};
use crate::{descriptors, identity, own, passed, raw, sockets};
use forebay_interpose::sys;
use forebay_preload_wire::{Attributes, BELIEVED, MADE, Request, op};
use libc::{
    c_char, c_int, c_uint, c_void, mode_t, size_t, ssize_t, stat as Stat, statx as Statx, timespec,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

const CWD: c_int = libc::AT_FDCWD;

/// The text of a path; `None` for NULL and for the empty one.
///
/// # Safety
/// NULL or a C string.
unsafe fn text<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    (!path.is_empty()).then_some(path)
}

/// Where a path is in a mount. A path that names a descriptor finds it exchanged.
///
/// # Safety
/// NULL or a C string.
unsafe fn find<'a>(dir: c_int, path: *const c_char) -> Option<Found<'a>> {
    // SAFETY: by the caller's promise.
    let path = unsafe { text(path) }?;
    let errno = sys::Errno::keep();
    let found = locate(dir, path);
    if found.is_none() && (path.starts_with(b"/proc/") || path.starts_with(b"/dev/")) {
        descriptors::settle_named(path);
    }
    drop(errno);
    found
}

/// Asks, and leaves errno alone.
fn ask(found: Found<'_>, request: Request) -> Option<sockets::Reply> {
    let _errno = sys::Errno::keep();
    sockets::ask(found, request)
}

/// Does what needs no question, and leaves errno alone.
fn alone<T>(act: impl FnOnce() -> T) -> T {
    let _errno = sys::Errno::keep();
    act()
}

/// So many looks are left to the kernel after one that it could answer from what it believes.
const KERNEL_FIRST: u32 = 64;
static KERNEL_NEXT: AtomicU32 = AtomicU32::new(0);

/// Asks what a name leads to. Where nobody changes names beside the kernel, the kernel answers from its own memory, and
/// faster than any question.
fn look(found: Found<'_>, request: Request) -> Option<sockets::Reply> {
    let left = KERNEL_NEXT.load(Ordering::Relaxed);
    if left > 0 {
        KERNEL_NEXT.store(left - 1, Ordering::Relaxed);
        return None;
    }
    let reply = ask(found, request)?;
    if reply.answer.flags & BELIEVED != 0 {
        KERNEL_NEXT.store(KERNEL_FIRST, Ordering::Relaxed);
    }
    Some(reply)
}

/// -1 and errno.
fn failed(errno: c_int) -> c_int {
    sys::set_errno(errno);
    -1
}

/// Opens a file of a mount; `None`: the kernel is to open it.
///
/// # Safety
/// `path` is NULL or a C string.
pub unsafe fn opened(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Option<c_int> {
    const BY_KERNEL: c_int =
        libc::O_DIRECTORY | libc::O_PATH | libc::O_DIRECT | libc::O_SYNC | libc::O_NOATIME;
    if flags & BY_KERNEL != 0 && flags & libc::O_ACCMODE != libc::O_ACCMODE {
        // O_TMPFILE has O_DIRECTORY in it, and O_SYNC has O_DSYNC.
        // SAFETY: by the caller's promise.
        unsafe { passed::counted(dir, path) };
        return None;
    }
    // SAFETY: by the caller's promise.
    let found = unsafe { find(dir, path) }?;
    if let Some(fd) = alone(|| own::opened(&found, flags)) {
        return Some(fd);
    }
    let umask = identity::umask_now();
    let request = Request { op: op::OPEN, flags: flags as u32, mode, umask, ..Request::default() };
    let reply = ask(found, request)?;
    match reply.answer.status {
        0 if reply.fd >= 0 => Some(reply.fd),
        0 => {
            if reply.answer.flags & MADE != 0 {
                // There is no room for its descriptor, and without one nothing is to be made.
                let _errno = sys::Errno::keep();
                ask(found, Request { op: op::UNLINK, ..Request::default() });
            }
            Some(failed(if reply.no_room { libc::EMFILE } else { libc::EIO }))
        }
        errno => Some(failed(errno)),
    }
}

/// Attributes of a path of a mount; `None`: the kernel is to be asked.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn stat_path(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
) -> Option<Result<(Attributes, u64), c_int>> {
    // SAFETY: by the caller's promise.
    let found = unsafe { find(dir, path) }?;
    let flags = (flags & libc::AT_SYMLINK_NOFOLLOW) as u32;
    if let Some(attributes) = alone(|| own::attributes(&found)) {
        return Some(Ok((attributes, crate::places::device(found.place))));
    }
    let reply = look(found, Request { op: op::STAT, flags, ..Request::default() })?;
    match reply.answer.status {
        0 => Some(Ok((reply.answer.attributes, crate::places::device(found.place)))),
        errno => Some(Err(errno)),
    }
}

/// # Safety
/// `to` has room for a struct.
unsafe fn fill_stat(to: *mut Stat, attributes: &Attributes, device: u64) {
    // SAFETY: by the caller's promise; zeros are a valid value.
    unsafe {
        let mut stat: Stat = std::mem::zeroed();
        stat.st_dev = device;
        stat.st_ino = attributes.ino;
        stat.st_mode = attributes.mode;
        stat.st_nlink = attributes.nlink.into();
        stat.st_uid = attributes.uid;
        stat.st_gid = attributes.gid;
        stat.st_size = attributes.size_bytes as i64;
        stat.st_blocks = attributes.blocks_512 as i64;
        stat.st_blksize = attributes.blksize_bytes.into();
        (stat.st_atime, stat.st_atime_nsec) = (attributes.sec[0], attributes.nsec[0].into());
        (stat.st_mtime, stat.st_mtime_nsec) = (attributes.sec[1], attributes.nsec[1].into());
        (stat.st_ctime, stat.st_ctime_nsec) = (attributes.sec[2], attributes.nsec[2].into());
        to.write(stat);
    }
}

/// stat of a path, by the mount; `None`: by the kernel.
///
/// # Safety
/// `path` is NULL or a C string, and `to` NULL or room for a struct.
unsafe fn statted(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> Option<c_int> {
    if to.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    match unsafe { stat_path(dir, path, flags) }? {
        Ok((attributes, device)) => {
            // SAFETY: by the caller's promise.
            unsafe { fill_stat(to, &attributes, device) };
            Some(0)
        }
        Err(errno) => Some(failed(errno)),
    }
}

/// After the kernel's fstat: what the mount says of a file that it gave out.
///
/// # Safety
/// The kernel has filled `to`, if `done` is 0.
unsafe fn fstatted(fd: c_int, to: *mut Stat, done: c_int) -> c_int {
    if done != 0 || to.is_null() {
        return done;
    }
    // SAFETY: by the caller's promise.
    let Some(place) = descriptors::of(unsafe { &*to }) else { return done };
    let errno = sys::Errno::keep();
    let told = descriptors::attributes(place, fd);
    drop(errno);
    match told {
        Ok(attributes) => {
            // SAFETY: by the caller's promise.
            unsafe { fill_stat(to, &attributes, crate::places::device(place)) };
            0
        }
        Err(errno) => failed(errno),
    }
}

/// Flags of fstatat and statx that change nothing here.
const NO_MATTER: c_int =
    libc::AT_NO_AUTOMOUNT | libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;

/// Whether a call means its descriptor: the path is empty, and may be.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn means_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: by the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && unsafe { text(path) }.is_none()
}

/// # Safety
/// As for `fstatat`.
unsafe fn statted_at(
    dir: c_int,
    path: *const c_char,
    to: *mut Stat,
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        if means_descriptor(path, flags) {
            return fstatted(dir, to, real());
        }
        let known = flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | NO_MATTER) == 0;
        let answered = if known { statted(dir, path, to, flags) } else { None };
        answered.unwrap_or_else(real)
    }
}

/// What a mount tells of a file, as statx has it.
const STATX_TOLD: c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// # Safety
/// `to` has room for a struct.
unsafe fn fill_statx(to: *mut Statx, attributes: &Attributes, device: u64) {
    let time = |at: usize| {
        // SAFETY: zeros are a valid value.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (attributes.sec[at], attributes.nsec[at]);
        time
    };
    // SAFETY: by the caller's promise; zeros are a valid value.
    unsafe {
        let mut stat: Statx = std::mem::zeroed();
        stat.stx_mask = STATX_TOLD;
        stat.stx_blksize = attributes.blksize_bytes;
        stat.stx_nlink = attributes.nlink;
        stat.stx_uid = attributes.uid;
        stat.stx_gid = attributes.gid;
        stat.stx_mode = attributes.mode as u16;
        stat.stx_ino = attributes.ino;
        stat.stx_size = attributes.size_bytes;
        stat.stx_blocks = attributes.blocks_512;
        stat.stx_atime = time(0);
        stat.stx_mtime = time(1);
        stat.stx_ctime = time(2);
        stat.stx_btime = time(3);
        stat.stx_dev_major = libc::major(device);
        stat.stx_dev_minor = libc::minor(device);
        to.write(stat);
    }
}

/// statx by the mount; `None`: by the kernel.
///
/// # Safety
/// As for `statx`.
unsafe fn statxed(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut Statx,
) -> Option<c_int> {
    if to.is_null() || mask & !STATX_TOLD != 0 {
        return None;
    }
    // SAFETY: by the caller's promise.
    let told = unsafe {
        if means_descriptor(path, flags) {
            let place = descriptors::given(dir)?;
            let errno = sys::Errno::keep();
            let told = descriptors::attributes(place, dir);
            drop(errno);
            told.map(|attributes| (attributes, crate::places::device(place)))
        } else {
            let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | NO_MATTER;
            if flags & !known != 0 {
                return None;
            }
            stat_path(dir, path, flags)?
        }
    };
    match told {
        Ok((attributes, device)) => {
            // SAFETY: by the caller's promise.
            unsafe { fill_statx(to, &attributes, device) };
            Some(0)
        }
        Err(errno) => Some(failed(errno)),
    }
}

/// Whether the caller may; `None`: the kernel knows. `real` asks for the ids that the process began with.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn may(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EACCESS;
    let by_real = flags & libc::AT_EACCESS == 0;
    if flags & !known != 0 || mode & !7 != 0 {
        return None;
    }
    // SAFETY: by the caller's promise.
    let found = unsafe { find(dir, path) }?;
    if by_real && raw::real_ids() != raw::effective_ids() {
        return None;
    }
    if alone(|| own::may(&found, mode as u32)) {
        return Some(0);
    }
    let flags = (flags & libc::AT_SYMLINK_NOFOLLOW) as u32;
    let request = Request { op: op::ACCESS, flags, mode: mode as u32, ..Request::default() };
    match look(found, request)?.answer.status {
        0 => Some(0),
        errno => Some(failed(errno)),
    }
}

/// Removes a name; `None`: the kernel is to.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn removed(dir: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: by the caller's promise.
    let found = unsafe { find(dir, path) }?;
    match ask(found, Request { op: op::UNLINK, ..Request::default() })?.answer.status {
        0 => Some(0),
        errno => Some(failed(errno)),
    }
}

/// For a call that is the kernel's, and may name a descriptor by a path of /proc, or by an empty one.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn settled(dir: c_int, path: *const c_char, flags: c_int) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { passed::counted(dir, path) };
    // SAFETY: by the caller's promise.
    match unsafe { text(path) } {
        Some(path) => {
            if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
                descriptors::settle_named(path);
            }
            true
        }
        None if flags & libc::AT_EMPTY_PATH != 0 || path.is_null() => descriptors::settle(dir),
        None => true,
    }
}

type Strings = *const *const c_char;

interpose! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, real => {
        opened(CWD, path, flags, mode).unwrap_or_else(|| real(path, flags, mode))
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, real => {
        opened(CWD, path, flags, mode).unwrap_or_else(|| real(path, flags, mode))
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int, real => {
        opened(CWD, path, flags & !libc::O_CREAT, 0).unwrap_or_else(|| real(path, flags))
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int, real => {
        opened(CWD, path, flags & !libc::O_CREAT, 0).unwrap_or_else(|| real(path, flags))
    }
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, real => {
        opened(dir, path, flags, mode).unwrap_or_else(|| real(dir, path, flags, mode))
    }
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, real => {
        opened(dir, path, flags, mode).unwrap_or_else(|| real(dir, path, flags, mode))
    }
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, real => {
        opened(dir, path, flags & !libc::O_CREAT, 0).unwrap_or_else(|| real(dir, path, flags))
    }
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, real => {
        opened(dir, path, flags & !libc::O_CREAT, 0).unwrap_or_else(|| real(dir, path, flags))
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int, real => {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        opened(CWD, path, flags, mode).unwrap_or_else(|| real(path, mode))
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int, real => {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        opened(CWD, path, flags, mode).unwrap_or_else(|| real(path, mode))
    }

    fn stat(path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, 0).unwrap_or_else(|| real(path, to))
    }
    fn stat64(path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, 0).unwrap_or_else(|| real(path, to))
    }
    fn lstat(path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, libc::AT_SYMLINK_NOFOLLOW).unwrap_or_else(|| real(path, to))
    }
    fn lstat64(path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, libc::AT_SYMLINK_NOFOLLOW).unwrap_or_else(|| real(path, to))
    }
    fn fstatat(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int, real => {
        statted_at(dir, path, to, flags, || real(dir, path, to, flags))
    }
    fn fstatat64(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int, real => {
        statted_at(dir, path, to, flags, || real(dir, path, to, flags))
    }
    fn fstat(fd: c_int, to: *mut Stat) -> c_int, real => {
        fstatted(fd, to, real(fd, to))
    }
    fn fstat64(fd: c_int, to: *mut Stat) -> c_int, real => {
        fstatted(fd, to, real(fd, to))
    }
    fn __xstat(version: c_int, path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, 0).unwrap_or_else(|| real(version, path, to))
    }
    fn __xstat64(version: c_int, path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, 0).unwrap_or_else(|| real(version, path, to))
    }
    fn __lxstat(version: c_int, path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, libc::AT_SYMLINK_NOFOLLOW).unwrap_or_else(|| real(version, path, to))
    }
    fn __lxstat64(version: c_int, path: *const c_char, to: *mut Stat) -> c_int, real => {
        statted(CWD, path, to, libc::AT_SYMLINK_NOFOLLOW).unwrap_or_else(|| real(version, path, to))
    }
    fn __fxstat(version: c_int, fd: c_int, to: *mut Stat) -> c_int, real => {
        fstatted(fd, to, real(version, fd, to))
    }
    fn __fxstat64(version: c_int, fd: c_int, to: *mut Stat) -> c_int, real => {
        fstatted(fd, to, real(version, fd, to))
    }
    fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int, real => {
        statted_at(dir, path, to, flags, || real(version, dir, path, to, flags))
    }
    fn __fxstatat64(version: c_int, dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int, real => {
        statted_at(dir, path, to, flags, || real(version, dir, path, to, flags))
    }
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) -> c_int, real => {
        if let Some(done) = statxed(dir, path, flags, mask, to) {
            return done;
        }
        if mask & !STATX_TOLD != 0 && means_descriptor(path, flags) && !descriptors::settle(dir) {
            return -1;
        }
        real(dir, path, flags, mask, to)
    }

    fn access(path: *const c_char, mode: c_int) -> c_int, real => {
        may(CWD, path, mode, 0).unwrap_or_else(|| real(path, mode))
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int, real => {
        may(CWD, path, mode, libc::AT_EACCESS).unwrap_or_else(|| real(path, mode))
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int, real => {
        may(CWD, path, mode, libc::AT_EACCESS).unwrap_or_else(|| real(path, mode))
    }
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, real => {
        may(dir, path, mode, flags).unwrap_or_else(|| real(dir, path, mode, flags))
    }

    fn unlink(path: *const c_char) -> c_int, real => {
        removed(CWD, path).unwrap_or_else(|| real(path))
    }
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int, real => {
        let removed = if flags == 0 { removed(dir, path) } else { None };
        removed.unwrap_or_else(|| real(dir, path, flags))
    }
    fn remove(path: *const c_char) -> c_int, real => {
        removed(CWD, path).unwrap_or_else(|| real(path))
    }

    fn readlink(path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t, real => {
        settled(CWD, path, 0);
        real(path, to, room)
    }
    fn readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t, real => {
        settled(dir, path, 0);
        real(dir, path, to, room)
    }
    fn __readlink_chk(path: *const c_char, to: *mut c_char, length: size_t, room: size_t) -> ssize_t, real => {
        settled(CWD, path, 0);
        real(path, to, length, room)
    }
    fn __readlinkat_chk(dir: c_int, path: *const c_char, to: *mut c_char, length: size_t, room: size_t) -> ssize_t, real => {
        settled(dir, path, 0);
        real(dir, path, to, length, room)
    }
    fn linkat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int,
    ) -> c_int, real => {
        if !settled(from_dir, from, flags) {
            return -1;
        }
        real(from_dir, from, to_dir, to, flags)
    }
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int, real => {
        if !settled(dir, path, flags) {
            return -1;
        }
        real(dir, path, times, flags)
    }
    fn fchownat(dir: c_int, path: *const c_char, user: libc::uid_t, group: libc::gid_t, flags: c_int) -> c_int, real => {
        if !settled(dir, path, flags) {
            return -1;
        }
        real(dir, path, user, group, flags)
    }
    fn execveat(dir: c_int, path: *const c_char, argv: Strings, environment: Strings, flags: c_int) -> c_int, real => {
        if !settled(dir, path, flags) {
            return -1;
        }
        real(dir, path, argv, environment, flags)
    }
    fn execve(path: *const c_char, argv: Strings, environment: Strings) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, argv, environment)
    }
    fn truncate(path: *const c_char, length: libc::off_t) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, length)
    }
    fn truncate64(path: *const c_char, length: libc::off_t) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, length)
    }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, mode)
    }
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, real => {
        if !settled(dir, path, flags) {
            return -1;
        }
        real(dir, path, mode, flags)
    }
    fn chown(path: *const c_char, user: libc::uid_t, group: libc::gid_t) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, user, group)
    }
    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, times)
    }
    fn getxattr(path: *const c_char, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t, real => {
        settled(CWD, path, 0);
        real(path, name, to, room)
    }
    fn listxattr(path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t, real => {
        settled(CWD, path, 0);
        real(path, to, room)
    }
    fn setxattr(path: *const c_char, name: *const c_char, from: *const c_void, bytes: size_t, flags: c_int) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, name, from, bytes, flags)
    }
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int, real => {
        settled(CWD, path, 0);
        real(path, name)
    }
    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, real => {
        settled(CWD, path, 0);
        real(path, resolved)
    }
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, room: size_t) -> *mut c_char, real => {
        settled(CWD, path, 0);
        real(path, resolved, room)
    }
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char, real => {
        settled(CWD, path, 0);
        real(path)
    }
    fn mmap(address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: libc::off_t) -> *mut c_void, real => {
        // A program's text is the mount's to forbid.
        if protection & libc::PROT_EXEC != 0 && fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && !descriptors::settle(fd) {
            return libc::MAP_FAILED;
        }
        real(address, length, protection, flags, fd, offset)
    }
}
