//! System calls by raw path bytes, each with its errno: what the tests compare is exactly what
//! the kernel answers. Paths may hold any byte but NUL. Used by every suite and by the model's
//! driver.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// Result of a call.
pub type Sys<T> = Result<T, Errno>;

/// The errno of this thread's last call.
pub fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn check(result: i64) -> Sys<i64> {
    if result < 0 { Err(last()) } else { Ok(result) }
}

fn check0(result: i32) -> Sys<()> {
    check(result.into()).map(|_| ())
}

/// `MAX_HANDLE_SZ` of the kernel.
const HANDLE_BYTES_MAX: usize = 128;

/// What `name_to_handle_at(2)` gives: a file without its name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// The handle of a path; a last link is not followed.
pub fn handle_of(path: impl AsRef<[u8]>) -> Sys<Handle> {
    let path = c(path);
    let mut handle =
        Handle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0i32;
    // SAFETY: the path ends in NUL; the handle has the room that it says, as the kernel's structure has it; all outlive
    // the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    })?;
    Ok(handle)
}

/// `open_by_handle_at(2)` on the file system of an open file.
pub fn open_by_handle(of: &impl AsRawFd, handle: &Handle, flags: i32) -> Sys<OwnedFd> {
    let mut handle = *handle;
    // SAFETY: the handle is what the kernel gave, and outlives the call.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            of.as_raw_fd(),
            &raw mut handle,
            flags | libc::O_CLOEXEC,
        )
    })?;
    // SAFETY: the call gave this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A path for the kernel.
pub fn c(path: impl AsRef<[u8]>) -> CString {
    CString::new(path.as_ref()).unwrap()
}

/// Bytes of a `Path` or of text.
pub fn bytes(path: &std::path::Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}

/// A path of bytes.
pub fn path(raw: impl AsRef<[u8]>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(raw.as_ref()).into()
}

/// Declares wrappers of calls that take one path and give nothing back.
macro_rules! path_calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $call:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(path: impl AsRef<[u8]>, $($arg: $type),*) -> Sys<()> {
                let path = c(path);
                let call: unsafe fn(*const libc::c_char, $($type),*) -> i32 = $call;
                // SAFETY: `path` is a NUL-terminated string that outlives the call, and the
                // other arguments are plain numbers.
                check0(unsafe { call(path.as_ptr(), $($arg),*) })
            }
        )+
    };
}

unsafe fn lchown_raw(path: *const libc::c_char, uid: u32, gid: u32) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::lchown(path, uid, gid) }
}

unsafe fn chown_raw(path: *const libc::c_char, uid: u32, gid: u32) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::chown(path, uid, gid) }
}

unsafe fn mkdir_raw(path: *const libc::c_char, mode: u32) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::mkdir(path, mode) }
}

unsafe fn mknod_raw(path: *const libc::c_char, mode: u32, device: u64) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::mknod(path, mode, device) }
}

unsafe fn chmod_raw(path: *const libc::c_char, mode: u32) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::chmod(path, mode) }
}

unsafe fn access_raw(path: *const libc::c_char, mode: i32) -> i32 {
    // SAFETY: the caller hands in a valid string. AT_EACCESS asks for the effective ids.
    unsafe { libc::faccessat(libc::AT_FDCWD, path, mode, libc::AT_EACCESS) }
}

unsafe fn truncate_raw(path: *const libc::c_char, size: i64) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::truncate(path, size) }
}

unsafe fn unlink_raw(path: *const libc::c_char) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::unlink(path) }
}

unsafe fn rmdir_raw(path: *const libc::c_char) -> i32 {
    // SAFETY: the caller hands in a valid string.
    unsafe { libc::rmdir(path) }
}

path_calls! {
    /// `mkdir(2)`.
    mkdir(mode: u32) = mkdir_raw;
    /// `rmdir(2)`.
    rmdir() = rmdir_raw;
    /// `unlink(2)`.
    unlink() = unlink_raw;
    /// `mknod(2)`.
    mknod(mode: u32, device: u64) = mknod_raw;
    /// `chmod(2)`.
    chmod(mode: u32) = chmod_raw;
    /// `chown(2)`.
    chown(uid: u32, gid: u32) = chown_raw;
    /// `lchown(2)`.
    lchown(uid: u32, gid: u32) = lchown_raw;
    /// `truncate(2)`.
    truncate(size: i64) = truncate_raw;
    /// `faccessat(2)` by the effective ids.
    access(mode: i32) = access_raw;
}

/// `open(2)` with O_CLOEXEC.
pub fn open(path: impl AsRef<[u8]>, flags: i32, mode: u32) -> Sys<OwnedFd> {
    let path = c(path);
    // SAFETY: a valid string and plain numbers; the new fd is ours alone.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.into())?;
    // SAFETY: the kernel just gave us this fd.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Declares wrappers of calls on two paths.
macro_rules! two_path_calls {
    ($($(#[$doc:meta])* $name:ident = $call:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Sys<()> {
                let (from, to) = (c(from), c(to));
                // SAFETY: two valid strings.
                check0(unsafe { $call(from.as_ptr(), to.as_ptr()) })
            }
        )+
    };
}

two_path_calls! {
    /// `link(2)`: a symbolic link is not followed.
    link = libc::link;
    /// `symlink(2)`: target, then name.
    symlink = libc::symlink;
    /// `rename(2)`.
    rename = libc::rename;
}

/// `renameat2(2)`.
pub fn rename2(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, flags: u32) -> Sys<()> {
    let (from, to) = (c(from), c(to));
    // SAFETY: two valid strings and plain numbers.
    check(unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            flags,
        )
    })
    .map(|_| ())
}

/// Gives the open file `fd` a name: `linkat(2)` with AT_EMPTY_PATH.
pub fn link_fd(fd: &OwnedFd, to: impl AsRef<[u8]>) -> Sys<()> {
    let to = c(to);
    // SAFETY: valid strings, an open fd.
    check0(unsafe {
        libc::linkat(fd.as_raw_fd(), c"".as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_EMPTY_PATH)
    })
}

/// `readlink(2)`.
pub fn readlink(path: impl AsRef<[u8]>) -> Sys<Vec<u8>> {
    let path = c(path);
    let mut target = vec![0u8; 8192];
    // SAFETY: the buffer is as long as said.
    let length =
        check(unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) }
            as i64)?;
    target.truncate(length as usize);
    Ok(target)
}

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Device of a device node.
    pub rdev: u64,
    /// Access: seconds, nanoseconds.
    pub atime: (i64, i64),
    /// Modification.
    pub mtime: (i64, i64),
    /// Change.
    pub ctime: (i64, i64),
}

fn stat_at(fd: RawFd, path: &CString, flags: i32) -> Sys<Stat> {
    let mut raw = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: a valid string, and a structure for the answer.
    check0(unsafe { libc::fstatat64(fd, path.as_ptr(), raw.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so the kernel filled it in.
    let raw = unsafe { raw.assume_init() };
    Ok(Stat {
        ino: raw.st_ino,
        mode: raw.st_mode,
        nlink: raw.st_nlink,
        uid: raw.st_uid,
        gid: raw.st_gid,
        size: raw.st_size as u64,
        blocks: raw.st_blocks as u64,
        rdev: raw.st_rdev,
        atime: (raw.st_atime, raw.st_atime_nsec),
        mtime: (raw.st_mtime, raw.st_mtime_nsec),
        ctime: (raw.st_ctime, raw.st_ctime_nsec),
    })
}

/// `stat(2)`.
pub fn stat(path: impl AsRef<[u8]>) -> Sys<Stat> {
    stat_at(libc::AT_FDCWD, &c(path), 0)
}

/// `lstat(2)`.
pub fn lstat(path: impl AsRef<[u8]>) -> Sys<Stat> {
    stat_at(libc::AT_FDCWD, &c(path), libc::AT_SYMLINK_NOFOLLOW)
}

/// `fstat(2)`.
pub fn fstat(fd: &OwnedFd) -> Sys<Stat> {
    stat_at(fd.as_raw_fd(), &c(""), libc::AT_EMPTY_PATH)
}

/// `pread(2)`, in one call.
pub fn pread(fd: &OwnedFd, offset: u64, length: usize) -> Sys<Vec<u8>> {
    let mut data = vec![0u8; length];
    // SAFETY: the buffer is as long as said.
    let count = check(unsafe {
        libc::pread64(fd.as_raw_fd(), data.as_mut_ptr().cast(), length, offset as i64)
    } as i64)?;
    data.truncate(count as usize);
    Ok(data)
}

/// `pwrite(2)`, in one call.
pub fn pwrite(fd: &OwnedFd, offset: u64, data: &[u8]) -> Sys<usize> {
    // SAFETY: the buffer is as long as said.
    let count = check(unsafe {
        libc::pwrite64(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), offset as i64)
    } as i64)?;
    Ok(count as usize)
}

/// `write(2)`, in one call.
pub fn write(fd: &OwnedFd, data: &[u8]) -> Sys<usize> {
    // SAFETY: the buffer is as long as said.
    let count =
        check(unsafe { libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len()) } as i64)?;
    Ok(count as usize)
}

/// `read(2)`, in one call.
pub fn read(fd: &OwnedFd, length: usize) -> Sys<Vec<u8>> {
    let mut data = vec![0u8; length];
    // SAFETY: the buffer is as long as said.
    let count =
        check(unsafe { libc::read(fd.as_raw_fd(), data.as_mut_ptr().cast(), length) } as i64)?;
    data.truncate(count as usize);
    Ok(data)
}

/// `lseek(2)`.
pub fn lseek(fd: &OwnedFd, offset: i64, whence: i32) -> Sys<u64> {
    // SAFETY: plain numbers.
    check(unsafe { libc::lseek64(fd.as_raw_fd(), offset, whence) }).map(|at| at as u64)
}

/// `ftruncate(2)`.
pub fn ftruncate(fd: &OwnedFd, size: u64) -> Sys<()> {
    // SAFETY: plain numbers.
    check0(unsafe { libc::ftruncate64(fd.as_raw_fd(), size as i64) })
}

/// `fallocate(2)`.
pub fn fallocate(fd: &OwnedFd, mode: i32, offset: u64, length: u64) -> Sys<()> {
    // SAFETY: plain numbers.
    check0(unsafe { libc::fallocate64(fd.as_raw_fd(), mode, offset as i64, length as i64) })
}

/// `fsync(2)`.
pub fn fsync(fd: &OwnedFd) -> Sys<()> {
    // SAFETY: an open fd.
    check0(unsafe { libc::fsync(fd.as_raw_fd()) })
}

/// `fchmod(2)`.
pub fn fchmod(fd: &OwnedFd, mode: u32) -> Sys<()> {
    // SAFETY: plain numbers.
    check0(unsafe { libc::fchmod(fd.as_raw_fd(), mode) })
}

/// `close(2)`, with its errno.
pub fn close(fd: OwnedFd) -> Sys<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: we own the fd and give it up here.
    check0(unsafe { libc::close(fd.into_raw_fd()) })
}

/// `copy_file_range(2)` at offsets.
pub fn copy_range(from: &OwnedFd, at: u64, to: &OwnedFd, to_at: u64, length: usize) -> Sys<usize> {
    let (mut at, mut to_at) = (at as i64, to_at as i64);
    // SAFETY: the offsets live through the call.
    let count = check(unsafe {
        libc::copy_file_range(from.as_raw_fd(), &mut at, to.as_raw_fd(), &mut to_at, length, 0)
    } as i64)?;
    Ok(count as usize)
}

/// A time for [`utimens`]: `UTIME_NOW` and `UTIME_OMIT` go into the nanoseconds.
pub fn utimens(
    path: impl AsRef<[u8]>,
    atime: (i64, i64),
    mtime: (i64, i64),
    flags: i32,
) -> Sys<()> {
    let path = c(path);
    let times = [
        libc::timespec { tv_sec: atime.0, tv_nsec: atime.1 },
        libc::timespec { tv_sec: mtime.0, tv_nsec: mtime.1 },
    ];
    // SAFETY: a valid string and two timespecs.
    check0(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags) })
}

/// `lsetxattr(2)`.
pub fn setxattr(path: impl AsRef<[u8]>, name: &str, value: &[u8], flags: i32) -> Sys<()> {
    let (path, name) = (c(path), c(name));
    // SAFETY: valid strings and a value as long as said.
    check0(unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
    })
}

/// `lgetxattr(2)`.
pub fn getxattr(path: impl AsRef<[u8]>, name: &str) -> Sys<Vec<u8>> {
    let (path, name) = (c(path), c(name));
    let mut value = vec![0u8; 65_536];
    // SAFETY: valid strings and a buffer as long as said.
    let count = check(unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    } as i64)?;
    value.truncate(count as usize);
    Ok(value)
}

/// `lremovexattr(2)`.
pub fn removexattr(path: impl AsRef<[u8]>, name: &str) -> Sys<()> {
    let (path, name) = (c(path), c(name));
    // SAFETY: valid strings.
    check0(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
}

/// `llistxattr(2)`: the names, sorted.
pub fn listxattr(path: impl AsRef<[u8]>) -> Sys<Vec<String>> {
    let path = c(path);
    let mut list = vec![0u8; 65_536];
    // SAFETY: a valid string and a buffer as long as said.
    let count =
        check(
            unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) } as i64
        )?;
    let mut names: Vec<String> = list[..count as usize]
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dirent {
    /// Name.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: u64,
    /// `DT_*`.
    pub kind: u8,
    /// Position after it.
    pub next: i64,
}

/// One `getdents64(2)` with a buffer of `room_bytes`; empty at the end.
pub fn getdents(fd: &OwnedFd, room_bytes: usize) -> Sys<Vec<Dirent>> {
    let mut raw = vec![0u8; room_bytes];
    // SAFETY: the buffer is as long as said.
    let count = check(unsafe {
        libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), raw.as_mut_ptr(), raw.len())
    })? as usize;
    let mut entries = Vec::new();
    let mut at = 0;
    while at < count {
        let field =
            |from: usize| u64::from_ne_bytes(raw[at + from..at + from + 8].try_into().unwrap());
        let length = u16::from_ne_bytes([raw[at + 16], raw[at + 17]]) as usize;
        let name = &raw[at + 19..at + length];
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        entries.push(Dirent {
            name: name[..end].to_vec(),
            ino: field(0),
            kind: raw[at + 18],
            next: field(8) as i64,
        });
        at += length;
    }
    Ok(entries)
}

/// All entries of a directory, `.` and `..` too, in the order they come.
pub fn list(path: impl AsRef<[u8]>) -> Sys<Vec<Dirent>> {
    let fd = open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut all = Vec::new();
    loop {
        let some = getdents(&fd, 32 * 1024)?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

/// What `statfs` says, in bytes and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Capacity.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Free for a plain user.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
}

/// `statvfs(2)`.
pub fn statfs(path: impl AsRef<[u8]>) -> Sys<StatFs> {
    let path = c(path);
    let mut raw = std::mem::MaybeUninit::<libc::statvfs64>::uninit();
    // SAFETY: a valid string and a structure for the answer.
    check0(unsafe { libc::statvfs64(path.as_ptr(), raw.as_mut_ptr()) })?;
    // SAFETY: the call succeeded.
    let raw = unsafe { raw.assume_init() };
    Ok(StatFs {
        total: raw.f_blocks * raw.f_frsize,
        free: raw.f_bfree * raw.f_frsize,
        available: raw.f_bavail * raw.f_frsize,
        files: raw.f_files,
        files_free: raw.f_ffree,
    })
}

/// Now by the coarse clock, which file systems stamp with, and by the fine one.
pub fn now() -> ((i64, i64), (i64, i64)) {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place for the answer.
        unsafe { libc::clock_gettime(clock, &mut time) };
        (time.tv_sec, time.tv_nsec)
    };
    (read(libc::CLOCK_REALTIME_COARSE), read(libc::CLOCK_REALTIME))
}
