//! System calls that go by no name of libc but `syscall`, which is no point of cancellation.

use libc::{c_int, c_long, c_uint};
use std::mem::MaybeUninit;

/// Makes a system call: its value, or -errno.
///
/// # Safety
/// As the call of that number wants it.
pub unsafe fn call(number: c_long, a: [usize; 6]) -> i64 {
    // SAFETY: by the caller's promise.
    let done = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if done == -1 { -i64::from(forebay_interpose::sys::errno()) } else { done }
}

/// A call with numbers alone.
pub fn numbers(number: c_long, a: usize, b: usize, c: usize) -> i64 {
    // SAFETY: the calls that this is used for take numbers, and change no memory.
    unsafe { call(number, [a, b, c, 0, 0, 0]) }
}

pub fn close(fd: c_int) {
    numbers(libc::SYS_close, fd as usize, 0, 0);
}

pub fn pid() -> u32 {
    numbers(libc::SYS_getpid, 0, 0, 0) as u32
}

/// The user and the group that the kernel judges this thread's calls by.
pub fn fs_ids() -> (u32, u32) {
    // Numbers that are none change nothing, and tell what is.
    let none = u32::MAX as usize;
    let uid = numbers(libc::SYS_setfsuid, none, 0, 0) as u32;
    (uid, numbers(libc::SYS_setfsgid, none, 0, 0) as u32)
}

pub fn effective_ids() -> (u32, u32) {
    let uid = numbers(libc::SYS_geteuid, 0, 0, 0) as u32;
    (uid, numbers(libc::SYS_getegid, 0, 0, 0) as u32)
}

pub fn real_ids() -> (u32, u32) {
    let uid = numbers(libc::SYS_getuid, 0, 0, 0) as u32;
    (uid, numbers(libc::SYS_getgid, 0, 0, 0) as u32)
}

/// Opens what `path`, which ends with a 0, leads to from the current directory.
pub fn open(path: &[u8], flags: c_int) -> c_int {
    if path.last() != Some(&0) {
        return -1;
    }
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a C string that lives during the call.
    let fd =
        unsafe { call(libc::SYS_openat, [at, path.as_ptr() as usize, flags as usize, 0, 0, 0]) };
    if fd < 0 { -1 } else { fd as c_int }
}

/// Device and inode of a descriptor, by what the kernel knows without asking a file system.
pub fn place_of(fd: c_int) -> Option<(u64, u64)> {
    let stat = statx(fd, c"", libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC)?;
    Some((libc::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

/// The same of a path.
pub fn statx(fd: c_int, path: &std::ffi::CStr, flags: c_int) -> Option<libc::statx> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let arguments = [
        fd as usize,
        path.as_ptr() as usize,
        flags as usize,
        libc::STATX_BASIC_STATS as usize,
        stat.as_mut_ptr() as usize,
        0,
    ];
    // SAFETY: a C string and room for the answer, both alive during the call; zeros are a valid value.
    unsafe { (call(libc::SYS_statx, arguments) == 0).then(|| stat.assume_init()) }
}

/// fstat(2)
pub fn fstat(fd: c_int) -> Option<libc::stat> {
    forebay_interpose::sys::fstat(fd)
}

/// Reads until the buffer is full or the file ends.
pub fn read_all(fd: c_int, buffer: &mut [u8]) -> Option<usize> {
    let mut count = 0;
    while count < buffer.len() {
        let rest = &mut buffer[count..];
        let arguments = [fd as usize, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0];
        // SAFETY: room of that size, alive during the call.
        match unsafe { call(libc::SYS_read, arguments) } {
            0 => break,
            done if done > 0 => count += done as usize,
            error if error == -i64::from(libc::EINTR) => {}
            _ => return None,
        }
    }
    Some(count)
}

/// Memory of this process's own; NULL if there is none.
pub fn memory(bytes: usize) -> *mut u8 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping where the kernel wants it.
    let address = unsafe { call(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) };
    if address < 0 { std::ptr::null_mut() } else { address as *mut u8 }
}

/// A copy of a descriptor, not inherited by other programs, at this number or above.
pub fn copy_above(fd: c_int, least: c_uint) -> c_int {
    let number = libc::F_DUPFD_CLOEXEC as usize;
    numbers(libc::SYS_fcntl, fd as usize, number, least as usize) as c_int
}

/// Opens a file to add to it, and makes it if it is missing.
pub fn append_to(path: &std::ffi::CStr) -> c_int {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a C string that lives during the call.
    unsafe {
        call(libc::SYS_openat, [at, path.as_ptr() as usize, flags as usize, 0o644, 0, 0]) as c_int
    }
}

/// Waits a millisecond.
pub fn sleep_1_ms() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: a time that lives during the call; what is left of it is not asked for.
    unsafe { call(libc::SYS_nanosleep, [(&raw const time) as usize, 0, 0, 0, 0, 0]) };
}

/// write(2), once.
pub fn write(fd: c_int, bytes: &[u8]) {
    // SAFETY: bytes that live during the call.
    unsafe { call(libc::SYS_write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
}
