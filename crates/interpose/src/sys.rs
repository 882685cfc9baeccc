//! System calls that are not recorded, and errno.

use libc::{c_int, c_long, off_t};

/// errno of this thread as it is now.
#[inline(always)]
pub fn errno() -> c_int {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets errno of this thread.
#[inline(always)]
pub fn set_errno(value: c_int) {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Brings errno back to what it was when this was made.
pub struct Errno(c_int);

impl Errno {
    /// Keeps errno.
    #[inline(always)]
    pub fn keep() -> Errno {
        Errno(errno())
    }
}

impl Drop for Errno {
    #[inline(always)]
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// Has the processor bring a line of memory near that is used soon. A hint: an address where nothing is does no harm.
#[inline(always)]
pub fn bring_near(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes nothing and never faults.
    unsafe {
        core::arch::asm!(
            "prefetcht0 [{address}]",
            address = in(reg) address,
            options(readonly, nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A result as a record has it: the value, or -errno if it is -1.
#[inline(always)]
pub fn result(value: i64) -> i64 {
    if value == -1 { -i64::from(errno()) } else { value }
}

/// Makes a system call: -1 and errno if it fails.
///
/// # Safety
/// As the call of that number wants it.
unsafe fn call(number: c_long, a: usize, b: usize, c: usize, d: usize) -> i64 {
    // SAFETY: by the caller's promise.
    unsafe { libc::syscall(number, a, b, c, d) }
}

/// open(2). `path` ends with a 0.
pub fn open(path: &[u8], flags: c_int, mode: u32) -> c_int {
    if path.last() != Some(&0) {
        return -1;
    }
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a C string that lives during the call.
    let fd = unsafe {
        call(libc::SYS_openat, at, path.as_ptr() as usize, flags as usize, mode as usize)
    };
    fd as c_int
}

/// close(2)
pub fn close(fd: c_int) {
    // SAFETY: only numbers; the descriptor is ours.
    unsafe { call(libc::SYS_close, fd as usize, 0, 0, 0) };
}

/// ftruncate(2)
pub fn ftruncate(fd: c_int, bytes: u64) -> bool {
    // SAFETY: only numbers.
    unsafe { call(libc::SYS_ftruncate, fd as usize, bytes as usize, 0, 0) == 0 }
}

/// truncate(2). `path` ends with a 0.
pub fn truncate(path: &[u8], bytes: u64) -> bool {
    // SAFETY: a C string that lives during the call.
    path.last() == Some(&0)
        && unsafe { call(libc::SYS_truncate, path.as_ptr() as usize, bytes as usize, 0, 0) == 0 }
}

/// pwrite(2) of all of `data`
pub fn pwrite_all(fd: c_int, mut data: &[u8], mut offset: u64) -> bool {
    while !data.is_empty() {
        let (address, count) = (data.as_ptr() as usize, data.len());
        // SAFETY: `data` lives during the call.
        let done =
            unsafe { call(libc::SYS_pwrite64, fd as usize, address, count, offset as usize) };
        match usize::try_from(done).ok().and_then(|done| data.get(done..)) {
            Some(rest) if done > 0 => data = rest,
            _ => return false,
        }
        offset += done as u64;
    }
    true
}

/// A shared mapping of a file from its begin; NULL if there is none.
pub fn map(fd: c_int, bytes: usize) -> *mut u8 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping where the kernel wants it.
    let address = unsafe {
        libc::syscall(libc::SYS_mmap, 0_usize, bytes, protection, flags, fd as usize, 0_usize)
    };
    if address == -1 { std::ptr::null_mut() } else { address as *mut u8 }
}

/// Private memory that a child of fork finds empty; NULL if there is none.
pub fn wiped_on_fork(bytes: usize) -> *mut u8 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping where the kernel wants it.
    let address = unsafe {
        libc::syscall(libc::SYS_mmap, 0_usize, bytes, protection, flags, usize::MAX, 0_usize)
    };
    if address == -1 || !advise(address as *mut u8, bytes, libc::MADV_WIPEONFORK) {
        return std::ptr::null_mut();
    }
    address as *mut u8
}

/// madvise(2)
pub fn advise(address: *mut u8, bytes: usize, advice: c_int) -> bool {
    // SAFETY: the range is of a mapping of this library; no advice given here takes data away.
    unsafe { call(libc::SYS_madvise, address as usize, bytes, advice as usize, 0) == 0 }
}

/// munmap(2)
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { call(libc::SYS_munmap, address as usize, bytes, 0, 0) };
}

/// fstat(2)
pub fn fstat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeros are a valid value of the struct, which lives during the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let address = (&raw mut stat) as usize;
        (call(libc::SYS_fstat, fd as usize, address, 0, 0) == 0).then_some(stat)
    }
}

/// Position of a descriptor, -1 if it has none.
pub fn position(fd: c_int) -> off_t {
    // SAFETY: only numbers.
    unsafe { call(libc::SYS_lseek, fd as usize, 0, libc::SEEK_CUR as usize, 0) }
}

/// F_GETFL
pub fn status_flags(fd: c_int) -> c_int {
    // SAFETY: only numbers.
    unsafe { call(libc::SYS_fcntl, fd as usize, libc::F_GETFL as usize, 0, 0) as c_int }
}

/// readlink(2): bytes of the target. `path` ends with a 0.
pub fn readlink<'a>(path: &[u8], buffer: &'a mut [u8]) -> &'a [u8] {
    if path.last() != Some(&0) {
        return &[];
    }
    let at = libc::AT_FDCWD as usize;
    let (to, count) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: a C string and a buffer that live during the call.
    let done = unsafe { call(libc::SYS_readlinkat, at, path.as_ptr() as usize, to, count) };
    usize::try_from(done).ok().and_then(|done| buffer.get(..done)).unwrap_or(&[])
}

/// getcwd(2): bytes of the path, without its 0.
pub fn cwd(buffer: &mut [u8]) -> &[u8] {
    let (to, count) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: a buffer that lives during the call.
    let done = unsafe { call(libc::SYS_getcwd, to, count, 0, 0) };
    usize::try_from(done - 1).ok().and_then(|done| buffer.get(..done)).unwrap_or(&[])
}

/// Most bytes of the name of a socket, without the 0 before it.
const SOCKET_NAME_MAX: usize = 107;

/// Sends a datagram to the socket of an abstract name (unix(7)); gives up when its queue stays full for `patience_ms`.
pub fn send_to(name: &[u8], message: &[u8], patience_ms: u64) -> bool {
    if name.is_empty() || name.len() > SOCKET_NAME_MAX {
        return false;
    }
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: only numbers.
    let fd = unsafe { call(libc::SYS_socket, libc::AF_UNIX as usize, kind, 0, 0) };
    if fd < 0 {
        return false;
    }
    let wait = libc::timeval {
        tv_sec: (patience_ms / 1000) as libc::time_t,
        tv_usec: (patience_ms % 1000 * 1000) as libc::suseconds_t,
    };
    // SAFETY: zeros are a valid value of the struct.
    let mut to: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in to.sun_path.iter_mut().skip(1).zip(name) {
        *to = *from as libc::c_char;
    }
    let to_bytes = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: the structs and the message live during the calls; the descriptor is ours.
    unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd,
            libc::SOL_SOCKET as c_long,
            libc::SO_SNDTIMEO as c_long,
            &raw const wait,
            size_of::<libc::timeval>(),
        );
        let sent = libc::syscall(
            libc::SYS_sendto,
            fd,
            message.as_ptr(),
            message.len(),
            libc::MSG_NOSIGNAL as c_long,
            &raw const to,
            to_bytes,
        );
        call(libc::SYS_close, fd as usize, 0, 0, 0);
        sent == message.len() as c_long
    }
}

/// Thread.
pub fn tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, 0, 0, 0, 0) as u32 }
}

/// Process.
pub fn pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_getpid, 0, 0, 0, 0) as u32 }
}

/// Parent and user.
pub fn parent_and_user() -> (u32, u32) {
    // SAFETY: no arguments.
    unsafe {
        (call(libc::SYS_getppid, 0, 0, 0, 0) as u32, call(libc::SYS_getuid, 0, 0, 0, 0) as u32)
    }
}

/// Gives way to other threads.
pub fn give_way() {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_sched_yield, 0, 0, 0, 0) };
}

/// Largest file that this process may make.
pub fn file_limit() -> u64 {
    let mut limit = [u64::MAX; 2];
    let address = limit.as_mut_ptr() as usize;
    // SAFETY: the struct that the call fills is these two numbers.
    unsafe { call(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE as usize, 0, address) };
    limit[0]
}
