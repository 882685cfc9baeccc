//! Calls on descriptors: open, close, copies, data, positions, sync, mappings.

use crate::files::{self, get};
use crate::names;
use crate::trace::{self, Call};
use crate::{clock, sys};
use forebay_trace_format::Op;
use forebay_trace_format::layout::{self, NO_OFFSET, flag};
use libc::{c_char, c_int, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A call by a file's position.
#[inline(always)]
fn by_position(op: Op, fd: c_int, length: u64, done: i64, write: bool, start: u64) {
    let end = clock::ticks();
    let at = get(fd);
    let offset = at.moved(done, write);
    let result = sys::result(done);
    trace::put(Call { op, flags: at.flags, file: at.file, offset, length, result, start, end });
}

/// A call on a descriptor, with an offset or without.
#[inline(always)]
fn on(op: Op, fd: c_int, offset: u64, length: u64, done: i64, start: u64) {
    let end = clock::ticks();
    let at = get(fd);
    let result = sys::result(done);
    trace::put(Call { op, flags: at.flags, file: at.file, offset, length, result, start, end });
}

/// Offset of a call, as a record has it.
#[inline(always)]
fn offset(offset: off_t) -> u64 {
    u64::try_from(offset).unwrap_or(NO_OFFSET)
}

/// Bytes that a vector asks for.
///
/// # Safety
/// The kernel took the vector, or the call failed.
unsafe fn total(vector: *const iovec, count: c_int, done: i64) -> u64 {
    if vector.is_null()
        || (done < 0 && sys::errno() == libc::EFAULT)
        || !(0..=1024).contains(&count)
    {
        return 0;
    }
    // SAFETY: by the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(vector, count as usize) };
    parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.iov_len as u64))
}

/// How mkstemp opens. It writes the name into its argument.
const NEW: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

/// An open that returned. An open of a mode flag that creates or empties is marked.
///
/// # Safety
/// As for [`names::of_path`].
unsafe fn opened(op: Op, dir: c_int, path: *const c_char, flags: c_int, fd: c_int, start: u64) {
    let end = clock::ticks();
    files::expect(fd);
    let result = sys::result(fd.into());
    // SAFETY: by the caller's promise.
    let name = unsafe { names::of_opened(dir, path, fd < 0) };
    if fd >= 0 {
        files::opened(fd, name, flags);
    }
    let writes = flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    let flags = if writes { flag::WRITES } else { 0 };
    trace::put(Call {
        op,
        flags,
        file: name.id(),
        offset: NO_OFFSET,
        length: 0,
        result,
        start,
        end,
    });
}

/// A copy of a descriptor.
fn copied(fd: c_int, copy: c_int, start: u64) {
    let end = clock::ticks();
    let result = sys::result(copy.into());
    let errno = sys::Errno::keep();
    if copy >= 0 {
        files::copied(fd, copy);
    }
    drop(errno);
    let file = files::known_file(fd);
    let call =
        Call { op: Op::Dup, flags: 0, file, offset: NO_OFFSET, length: 0, result, start, end };
    trace::put(call);
}

/// Both sides of a call that moves bytes between two descriptors.
///
/// # Safety
/// The positions are NULL or were taken by the kernel.
#[allow(clippy::too_many_arguments)]
unsafe fn between(
    ops: (Op, Op),
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    length: size_t,
    done: ssize_t,
    start: u64,
) {
    let end = clock::ticks();
    for (op, fd, position, write) in [(ops.1, from, from_at, false), (ops.0, to, to_at, true)] {
        let at = get(fd);
        let moved = done.max(0) as u64;
        let offset = if position.is_null() {
            at.moved(done as i64, write)
        } else if done < 0 {
            NO_OFFSET
        } else {
            // SAFETY: not NULL, and the kernel wrote it.
            offset(unsafe { *position }).saturating_sub(moved)
        };
        let (file, flags, length) = (at.file, at.flags, length as u64);
        let result = sys::result(done as i64);
        trace::put(Call { op, flags, file, offset, length, result, start, end });
    }
}

interpose! {
    timed {
        fn [open open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, path, flags, fd, start);
        fn [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, path, flags, fd, start);
        fn [openat openat64](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int => |fd, start| opened(Op::Open, dir, path, flags, fd, start);
        fn [__openat_2 __openat64_2](dir: c_int, path: *const c_char, flags: c_int) -> c_int => |fd, start| opened(Op::Open, dir, path, flags, fd, start);
        fn [creat creat64](path: *const c_char, mode: mode_t) -> c_int => |fd, start| opened(Op::Creat, libc::AT_FDCWD, path, libc::O_CREAT | libc::O_TRUNC, fd, start);
        fn [mkstemp mkstemp64](template: *mut c_char) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, template, NEW, fd, start);
        fn [mkostemp mkostemp64](template: *mut c_char, flags: c_int) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, template, NEW | flags, fd, start);
        fn [mkstemps mkstemps64](template: *mut c_char, suffix: c_int) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, template, NEW, fd, start);
        fn [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int => |fd, start| opened(Op::Open, libc::AT_FDCWD, template, NEW | flags, fd, start);
        fn [dup](fd: c_int) -> c_int => |copy, start| copied(fd, copy, start);
        fn [dup2](fd: c_int, to: c_int) -> c_int => |copy, start| copied(fd, copy, start);
        fn [dup3](fd: c_int, to: c_int, flags: c_int) -> c_int => |copy, start| copied(fd, copy, start);
        fn [fcntl fcntl64](fd: c_int, command: c_int, argument: *mut c_void) -> c_int => |done, start| controlled(fd, command, argument as usize, done, start);
        fn [flock](fd: c_int, operation: c_int) -> c_int => |done, start| on(Op::Lock, fd, NO_OFFSET, 0, done.into(), start);
        fn [lockf lockf64](fd: c_int, command: c_int, length: off_t) -> c_int => |done, start| on(Op::Lock, fd, NO_OFFSET, 0, done.into(), start);
        fn [read](fd: c_int, to: *mut c_void, length: size_t) -> ssize_t => |done, start| by_position(Op::Read, fd, length as u64, done as i64, false, start);
        fn [__read_chk](fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t => |done, start| by_position(Op::Read, fd, length as u64, done as i64, false, start);
        fn [write](fd: c_int, from: *const c_void, length: size_t) -> ssize_t => |done, start| by_position(Op::Write, fd, length as u64, done as i64, true, start);
        fn [readv](fd: c_int, to: *const iovec, count: c_int) -> ssize_t => |done, start| by_position(Op::Readv, fd, total(to, count, done as i64), done as i64, false, start);
        fn [writev](fd: c_int, from: *const iovec, count: c_int) -> ssize_t => |done, start| by_position(Op::Writev, fd, total(from, count, done as i64), done as i64, true, start);
        fn [pread pread64](fd: c_int, to: *mut c_void, length: size_t, at: off_t) -> ssize_t => |done, start| on(Op::Pread, fd, offset(at), length as u64, done as i64, start);
        fn [__pread_chk __pread64_chk](fd: c_int, to: *mut c_void, length: size_t, at: off_t, room: size_t) -> ssize_t => |done, start| on(Op::Pread, fd, offset(at), length as u64, done as i64, start);
        fn [pwrite pwrite64](fd: c_int, from: *const c_void, length: size_t, at: off_t) -> ssize_t => |done, start| on(Op::Pwrite, fd, offset(at), length as u64, done as i64, start);
        fn [preadv preadv64](fd: c_int, to: *const iovec, count: c_int, at: off_t) -> ssize_t => |done, start| on(Op::Preadv, fd, offset(at), total(to, count, done as i64), done as i64, start);
        fn [pwritev pwritev64](fd: c_int, from: *const iovec, count: c_int, at: off_t) -> ssize_t => |done, start| on(Op::Pwritev, fd, offset(at), total(from, count, done as i64), done as i64, start);
        fn [preadv2 preadv64v2](fd: c_int, to: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t => |done, start| vector2(false, fd, total(to, count, done as i64), at, done as i64, start);
        fn [pwritev2 pwritev64v2](fd: c_int, from: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t => |done, start| vector2(true, fd, total(from, count, done as i64), at, done as i64, start);
        fn [lseek lseek64](fd: c_int, to: off_t, whence: c_int) -> off_t => |done, start| sought(fd, done, start);
        fn [fsync](fd: c_int) -> c_int => |done, start| on(Op::Fsync, fd, NO_OFFSET, 0, done.into(), start);
        fn [fdatasync](fd: c_int) -> c_int => |done, start| on(Op::Fdatasync, fd, NO_OFFSET, 0, done.into(), start);
        fn [syncfs](fd: c_int) -> c_int => |done, start| on(Op::Sync, fd, NO_OFFSET, 0, done.into(), start);
        fn [sync_file_range](fd: c_int, at: off_t, length: off_t, flags: c_uint) -> c_int => |done, start| on(Op::SyncFileRange, fd, offset(at), length.max(0) as u64, done.into(), start);
        fn [ftruncate ftruncate64](fd: c_int, length: off_t) -> c_int => |done, start| on(Op::Ftruncate, fd, offset(length), 0, done.into(), start);
        fn [fallocate fallocate64](fd: c_int, mode: c_int, at: off_t, length: off_t) -> c_int => |done, start| on(Op::Fallocate, fd, offset(at), length.max(0) as u64, done.into(), start);
        fn [posix_fallocate posix_fallocate64](fd: c_int, at: off_t, length: off_t) -> c_int => |done, start| on(Op::Fallocate, fd, offset(at), length.max(0) as u64, -i64::from(done), start);
        fn [posix_fadvise posix_fadvise64](fd: c_int, at: off_t, length: off_t, advice: c_int) -> c_int => |done, start| on(Op::Fadvise, fd, offset(at), length.max(0) as u64, -i64::from(done), start);
    }
    fn close(fd: c_int) -> c_int, real => {
        let file = files::known_file(fd);
        // Before: another thread may get the number as soon as it is free.
        files::detach(fd);
        let start = clock::ticks();
        let done = real(fd);
        let end = clock::ticks();
        let result = sys::result(done.into());
        trace::put(Call { op: Op::Close, flags: 0, file, offset: NO_OFFSET, length: 0, result, start, end });
        done
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, real => {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            files::detach_range(first, last);
        }
        real(first, last, flags)
    }
    fn closefrom(first: c_int) -> (), real => {
        files::detach_range(first.max(0) as c_uint, c_uint::MAX);
        real(first);
    }
    fn sync() -> (), real => {
        let start = clock::ticks();
        real();
        let end = clock::ticks();
        let (file, offset) = (0, NO_OFFSET);
        trace::put(Call { op: Op::Sync, flags: 0, file, offset, length: 0, result: 0, start, end });
    }
    fn copy_file_range(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, length: size_t, flags: c_uint,
    ) -> ssize_t, real => {
        let start = clock::ticks();
        let done = real(from, from_at, to, to_at, length, flags);
        let ops = (Op::CopyFileRange, Op::CopySource);
        between(ops, from, from_at, to, to_at, length, done, start);
        done
    }
    fn sendfile(to: c_int, from: c_int, from_at: *mut off_t, length: size_t) -> ssize_t, real => {
        let start = clock::ticks();
        let done = real(to, from, from_at, length);
        let ops = (Op::Sendfile, Op::SendSource);
        between(ops, from, from_at, to, std::ptr::null_mut(), length, done, start);
        done
    }
    fn sendfile64(to: c_int, from: c_int, from_at: *mut off_t, length: size_t) -> ssize_t, real => {
        let start = clock::ticks();
        let done = real(to, from, from_at, length);
        let ops = (Op::Sendfile, Op::SendSource);
        between(ops, from, from_at, to, std::ptr::null_mut(), length, done, start);
        done
    }
    fn splice(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, length: size_t, flags: c_uint,
    ) -> ssize_t, real => {
        let start = clock::ticks();
        let done = real(from, from_at, to, to_at, length, flags);
        let ops = (Op::Splice, Op::SpliceSource);
        between(ops, from, from_at, to, to_at, length, done, start);
        done
    }
    fn mmap(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t,
    ) -> *mut c_void, real => {
        if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
            return real(address, length, protection, flags, fd, at);
        }
        let start = clock::ticks();
        let got = real(address, length, protection, flags, fd, at);
        mapped(got, length, protection, flags, fd, at, start);
        got
    }
    fn mmap64(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, at: off_t,
    ) -> *mut c_void, real => {
        if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
            return real(address, length, protection, flags, fd, at);
        }
        let start = clock::ticks();
        let got = real(address, length, protection, flags, fd, at);
        mapped(got, length, protection, flags, fd, at, start);
        got
    }
    fn munmap(address: *mut c_void, length: size_t) -> c_int, real => {
        let Some(file) = mapping(address, true) else { return real(address, length) };
        let start = clock::ticks();
        let done = real(address, length);
        let end = clock::ticks();
        let (flags, offset, length) = (0, NO_OFFSET, length as u64);
        let result = sys::result(done.into());
        trace::put(Call { op: Op::Munmap, flags, file, offset, length, result, start, end });
        done
    }
    fn msync(address: *mut c_void, length: size_t, how: c_int) -> c_int, real => {
        let start = clock::ticks();
        let done = real(address, length, how);
        let end = clock::ticks();
        let file = mapping(address, false).unwrap_or(0);
        let (flags, offset, length) = (0, NO_OFFSET, length as u64);
        let result = sys::result(done.into());
        trace::put(Call { op: Op::Msync, flags, file, offset, length, result, start, end });
        done
    }
}

fn sought(fd: c_int, done: off_t, start: u64) {
    let end = clock::ticks();
    let at = get(fd);
    if let Ok(position) = u64::try_from(done) {
        at.moved_to(position);
    }
    let (file, result) = (at.file, sys::result(done));
    let (offset, op) = (offset(done), Op::Lseek);
    // The offset says where to; a result of more than 2^31 needs no wide record for that.
    let result = result.clamp(-4096, 0);
    trace::put(Call { op, flags: at.flags, file, offset, length: 0, result, start, end });
}

fn vector2(write: bool, fd: c_int, length: u64, at: off_t, done: i64, start: u64) {
    match (at, write) {
        // By the position of the file.
        (-1, false) => by_position(Op::Readv, fd, length, done, false, start),
        (-1, true) => by_position(Op::Writev, fd, length, done, true, start),
        (_, false) => on(Op::Preadv, fd, offset(at), length, done, start),
        (_, true) => on(Op::Pwritev, fd, offset(at), length, done, start),
    }
}

#[inline(always)]
fn controlled(fd: c_int, command: c_int, argument: usize, done: c_int, start: u64) {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done, start),
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            on(Op::Lock, fd, NO_OFFSET, 0, done.into(), start);
        }
        libc::F_SETFL if done == 0 => files::flags_changed(fd, argument as c_int),
        _ => {}
    }
}

/// Mappings of files that are remembered, so that munmap and msync have a name.
const MAPPINGS: usize = 4096;
/// How far from its place a mapping is looked for.
const PROBES: usize = 16;
static ADDRESSES: [AtomicUsize; MAPPINGS] = [const { AtomicUsize::new(0) }; MAPPINGS];
/// Generation above, file below.
static MAPPED: [AtomicU64; MAPPINGS] = [const { AtomicU64::new(0) }; MAPPINGS];
static MAPPING_COUNT: AtomicU32 = AtomicU32::new(0);

fn places(
    address: *mut c_void,
) -> impl Iterator<Item = (&'static AtomicUsize, &'static AtomicU64)> {
    let first = (address as usize >> 12).wrapping_mul(0x9e37_79b9) >> 7;
    (0..PROBES).filter_map(move |step| {
        let at = first.wrapping_add(step) % MAPPINGS;
        Some((ADDRESSES.get(at)?, MAPPED.get(at)?))
    })
}

fn mapped(
    got: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    at: off_t,
    start: u64,
) {
    let end = clock::ticks();
    let file = get(fd);
    let failed = got == libc::MAP_FAILED;
    let result = if failed { sys::result(-1) } else { 0 };
    let shared = flags & 3 != libc::MAP_PRIVATE && protection & libc::PROT_WRITE != 0;
    let flags = file.flags | if shared { flag::WRITES } else { 0 };
    let (offset, length, file) = (offset(at), length as u64, file.file);
    trace::put(Call { op: Op::Mmap, flags, file, offset, length, result, start, end });
    if failed {
        return;
    }
    for (address, value) in places(got) {
        if address.load(Ordering::Relaxed) == 0 {
            value.store(layout::two(file, trace::generation()), Ordering::Relaxed);
            address.store(got as usize, Ordering::Release);
            MAPPING_COUNT.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// The file that is mapped there; `None` if it is no file's mapping that is known. `ends`: it is no more.
fn mapping(got: *mut c_void, ends: bool) -> Option<u32> {
    if MAPPING_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let (address, value) =
        places(got).find(|(address, _)| address.load(Ordering::Acquire) == got as usize)?;
    let value = value.load(Ordering::Relaxed);
    if ends {
        address.store(0, Ordering::Relaxed);
        MAPPING_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    Some(if (value >> 32) as u32 == trace::generation() { value as u32 } else { 0 })
}
