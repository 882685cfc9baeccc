//! Descriptors that a mount gave out, and the calls on them that concern more than data.
//!
//! The kernel would answer these for the object, which is another file than the one that the program knows: other
//! device, number, owner and mode, no locks that others see, no names to sync. Attributes and fsync are asked of the mount's
//! process. Before all else the descriptor is exchanged, under its number and all numbers that share its position, for one of the same
//! file through the mount, and then the kernel's answer is the right one.

use crate::{places, raw, sockets};
use forebay_interpose::sys;
use forebay_preload_wire::{Attributes, BY_KERNEL, op};
use libc::{
    c_char, c_int, c_uint, c_ulong, c_void, gid_t, mode_t, off_t, size_t, ssize_t, stat as Stat,
    statfs as StatFs, statvfs as StatVfs, timespec, timeval, uid_t,
};

/// The mount that gave a descriptor out, if one did.
pub fn given(fd: c_int) -> Option<usize> {
    if places::knows_none() || fd < 0 {
        return None;
    }
    let _errno = sys::Errno::keep();
    of(&raw::fstat(fd)?)
}

/// The same of a descriptor whose attributes were asked of the kernel.
pub fn of(stat: &Stat) -> Option<usize> {
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    places::of_store(stat.st_dev)
}

/// Attributes of a file whose descriptor a mount gave out; `Err` is an errno.
pub fn attributes(place: usize, fd: c_int) -> Result<Attributes, c_int> {
    match sockets::ask_about(place, op::FSTAT, 0, fd) {
        Some(reply) if reply.answer.status == 0 => Ok(reply.answer.attributes),
        // The mount knows no such file any more: its last name went with a mount that was killed.
        Some(_) => Err(libc::ESTALE),
        None => Err(libc::ENOTCONN),
    }
}

/// Exchanges a descriptor if a mount gave it out; false, and errno, if that failed.
pub fn settle(fd: c_int) -> bool {
    let Some(place) = given(fd) else { return true };
    let errno = sys::Errno::keep();
    let done = exchange(place, fd);
    drop(errno);
    match done {
        Ok(()) => true,
        Err(errno) => {
            sys::set_errno(errno);
            false
        }
    }
}

fn exchange(place: usize, fd: c_int) -> Result<(), c_int> {
    let reply = sockets::ask_about(place, op::EXCHANGE, 0, fd).ok_or(libc::ENOTCONN)?;
    match reply.answer.status {
        0 if reply.fd >= 0 => {}
        0 => return Err(libc::EMFILE),
        BY_KERNEL => return Err(libc::ESTALE),
        errno => return Err(errno),
    }
    let position = raw::numbers(libc::SYS_lseek, fd as usize, 0, libc::SEEK_CUR as usize);
    if position > 0 {
        raw::numbers(
            libc::SYS_lseek,
            reply.fd as usize,
            position as usize,
            libc::SEEK_SET as usize,
        );
    }
    // Those that share the position first: this one is what they are compared with.
    for_each_open(|other| {
        if other != fd && other != reply.fd && is_same(fd, other) {
            put(reply.fd, other);
        }
    });
    put(reply.fd, fd);
    raw::close(reply.fd);
    Ok(())
}

/// Puts a descriptor in the place of another, which keeps whether it is closed on exec.
fn put(new: c_int, old: c_int) {
    let close = raw::numbers(libc::SYS_fcntl, old as usize, libc::F_GETFD as usize, 0) & 1;
    let flags = if close == 1 { libc::O_CLOEXEC } else { 0 };
    raw::numbers(libc::SYS_dup3, new as usize, old as usize, flags as usize);
}

/// Whether two descriptors are copies of each other.
fn is_same(one: c_int, other: c_int) -> bool {
    let pid = raw::pid() as usize;
    // KCMP_FILE of linux/kcmp.h.
    let arguments = [pid, pid, 0, one as usize, other as usize, 0];
    // SAFETY: numbers alone.
    match unsafe { raw::call(libc::SYS_kcmp, arguments) } {
        0 => true,
        // Containers forbid the call mostly, and a kernel may lack it.
        error if error < 0 => share_flags(one, other),
        _ => false,
    }
}

/// Whether a status flag that one of them gets is the other's, too: copies have these in common, as they have the position. The flag
/// means nothing for reads and writes of a file, and goes again.
fn share_flags(one: c_int, other: c_int) -> bool {
    let place = |fd: c_int| raw::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    let get = |fd: c_int| raw::numbers(libc::SYS_fcntl, fd as usize, libc::F_GETFL as usize, 0);
    let set = |flags: i64| {
        let command = libc::F_SETFL as usize;
        raw::numbers(libc::SYS_fcntl, one as usize, command, flags as usize) == 0
    };
    let before = get(one);
    if before < 0 || get(other) != before || place(one).is_none() || place(one) != place(other) {
        return false;
    }
    if !set(before ^ i64::from(libc::O_NONBLOCK)) {
        return false;
    }
    let are_copies = get(other) != before;
    set(before);
    are_copies
}

/// Calls `each` for all open descriptors, as /proc shows them.
fn for_each_open(mut each: impl FnMut(c_int)) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let dir = raw::open(b"/proc/self/fd\0", flags);
    if dir < 0 {
        return;
    }
    let mut room = [0_u64; 256];
    loop {
        let arguments = [dir as usize, room.as_mut_ptr() as usize, size_of_val(&room), 0, 0, 0];
        // SAFETY: room of that size, alive during the call.
        let count = unsafe { raw::call(libc::SYS_getdents64, arguments) };
        let Ok(count @ 1..) = usize::try_from(count) else { break };
        // SAFETY: the kernel filled so many bytes of it.
        let bytes = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), count) };
        let mut rest = bytes;
        // struct linux_dirent64: number, position, length (2 bytes at 16), type, name from 19 on.
        while let (Some(length), Some(name)) = (rest.get(16..18), rest.get(19..)) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some(fd) = number(name).filter(|fd| *fd != dir) {
                each(fd);
            }
            let Some(next) = rest.get(length.max(19)..) else { break };
            rest = next;
        }
    }
    raw::close(dir);
}

/// A descriptor's number, from text.
fn number(text: &[u8]) -> Option<c_int> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Exchanges the descriptor that a path of /proc or /dev names, if a mount gave it out. Errors are the kernel's to tell.
pub fn settle_named(path: &[u8]) {
    let fd = match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        _ if path.starts_with(b"/dev/fd/") => number(&path[8..]),
        _ if path.starts_with(b"/proc/self/fd/") => number(&path[14..]),
        _ if path.starts_with(b"/proc/thread-self/fd/") => number(&path[21..]),
        _ => None,
    };
    if let Some(fd) = fd {
        let _errno = sys::Errno::keep();
        settle(fd);
    }
}

/// Commands of fcntl that concern more than the descriptor.
fn concerns_file(command: c_int) -> bool {
    const SETLEASE: c_int = 1024;
    const NOTIFY: c_int = 1026;
    const GETLEASE: c_int = 1025;
    matches!(
        command,
        libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
            | SETLEASE
            | GETLEASE
            | NOTIFY
    )
}

/// Requests of ioctl that read or set what a file system keeps of a file: attributes as chattr(1) has them, extents, versions.
/// Clones of data are the object's.
fn is_about_attributes(request: c_ulong) -> bool {
    matches!((request >> 8) as u8, b'f' | b'X' | b'v')
}

/// Calls before which a descriptor is exchanged. They return -1 if it could not be.
macro_rules! after_exchange {
    ($( $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*) -> $ret:ty; )*) => {
        interpose! {
            $( fn $name($fd: c_int $(, $arg: $type)*) -> $ret, real => {
                if !settle($fd) {
                    return -1;
                }
                real($fd $(, $arg)*)
            } )*
            fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, real => {
                if concerns_file(command) && !settle(fd) {
                    return -1;
                }
                real(fd, command, argument)
            }
            fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, real => {
                if concerns_file(command) && !settle(fd) {
                    return -1;
                }
                real(fd, command, argument)
            }
            fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, real => {
                if is_about_attributes(request) && !settle(fd) {
                    return -1;
                }
                real(fd, request, argument)
            }
            fn posix_fallocate(fd: c_int, offset: off_t, length: off_t) -> c_int, real => {
                if !settle(fd) {
                    return sys::errno();
                }
                real(fd, offset, length)
            }
            fn posix_fallocate64(fd: c_int, offset: off_t, length: off_t) -> c_int, real => {
                if !settle(fd) {
                    return sys::errno();
                }
                real(fd, offset, length)
            }
            fn fsync(fd: c_int) -> c_int, real => {
                match synced(fd, 0) {
                    Some(done) => done,
                    None => real(fd),
                }
            }
            fn fdatasync(fd: c_int) -> c_int, real => {
                match synced(fd, 1) {
                    Some(done) => done,
                    None => real(fd),
                }
            }
            fn close(fd: c_int) -> c_int, real => {
                if sockets::is_socket(fd) {
                    // The program knows of no such descriptor.
                    sys::set_errno(libc::EBADF);
                    return -1;
                }
                real(fd)
            }
            fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, real => {
                if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
                    sockets::give_up(first, last);
                }
                real(first, last, flags)
            }
            fn closefrom(first: c_int) -> (), real => {
                sockets::give_up(first.max(0) as c_uint, c_uint::MAX);
                real(first);
            }
            fn dup2(fd: c_int, to: c_int) -> c_int, real => {
                if sockets::is_socket(to) {
                    sockets::give_up(to as c_uint, to as c_uint);
                }
                real(fd, to)
            }
            fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, real => {
                if sockets::is_socket(to) {
                    sockets::give_up(to as c_uint, to as c_uint);
                }
                real(fd, to, flags)
            }
            fn copy_file_range(
                from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: size_t, flags: c_uint,
            ) -> ssize_t, real => {
                // The kernel copies between files of one file system alone.
                if given(from).is_some() != given(to).is_some() && !(settle(from) && settle(to)) {
                    return -1;
                }
                real(from, from_at, to, to_at, length, flags)
            }
        }
    };
}

/// Syncs a file that a mount gave out; `None`: the kernel's fsync is the right one.
fn synced(fd: c_int, flags: u32) -> Option<c_int> {
    let place = given(fd)?;
    let errno = sys::Errno::keep();
    let reply = sockets::ask_about(place, op::FSYNC, flags, fd);
    drop(errno);
    let status = reply.map_or(libc::ENOTCONN, |reply| reply.answer.status);
    match status {
        0 => Some(0),
        // The mount knows no such file: its data is all that there is to sync.
        BY_KERNEL => None,
        errno => {
            sys::set_errno(errno);
            Some(-1)
        }
    }
}

type Strings = *const *const c_char;

after_exchange! {
    flock(fd: c_int, operation: c_int) -> c_int;
    lockf(fd: c_int, command: c_int, length: off_t) -> c_int;
    lockf64(fd: c_int, command: c_int, length: off_t) -> c_int;
    fchmod(fd: c_int, mode: mode_t) -> c_int;
    fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int;
    futimens(fd: c_int, times: *const timespec) -> c_int;
    futimes(fd: c_int, times: *const timeval) -> c_int;
    fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int;
    fstatfs(fd: c_int, to: *mut StatFs) -> c_int;
    fstatfs64(fd: c_int, to: *mut StatFs) -> c_int;
    fstatvfs(fd: c_int, to: *mut StatVfs) -> c_int;
    fstatvfs64(fd: c_int, to: *mut StatVfs) -> c_int;
    fgetxattr(fd: c_int, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t;
    flistxattr(fd: c_int, to: *mut c_char, room: size_t) -> ssize_t;
    fsetxattr(fd: c_int, name: *const c_char, from: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    fremovexattr(fd: c_int, name: *const c_char) -> c_int;
    syncfs(fd: c_int) -> c_int;
    fexecve(fd: c_int, argv: Strings, environment: Strings) -> c_int;
    name_to_handle_at(fd: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int;
}
