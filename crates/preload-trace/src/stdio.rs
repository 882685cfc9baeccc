//! Streams of stdio. Their own reads and writes go by libc's inner calls, which nobody can take the place
//! of, so the calls on the stream are recorded, with the stream's position. Compilers make other names of them: `__fgets_chk` of an
//! fgets in a program that is built with _FORTIFY_SOURCE, as distributions do, and `__getdelim` of a getline in an optimized one.
//!
//! What fprintf, putc and the like move is found from the position at the next fwrite, fflush, fseek, fclose or the
//! end, and recorded as bytes that were not seen one by one, if the stream is this process's own file. Of standard output and
//! error that is done at the end, if the process made no other one.

use crate::files::{self, Fd, get};
use crate::names;
use crate::trace::{self, Call};
use crate::{clock, sys};
use forebay_trace_format::Op;
use forebay_trace_format::layout::{NO_OFFSET, flag};
use libc::{FILE, c_char, c_int, c_long, c_void, fpos_t, off_t, size_t, ssize_t};

unsafe extern "C" {
    /// Not 0 if the last operation on the stream wrote.
    fn __fwriting(stream: *mut FILE) -> c_int;
    /// As `fileno`, which other preloaded recorders count as a call of the program.
    pub(crate) fn fileno_unlocked(stream: *mut FILE) -> c_int;
    /// Bytes in its buffer that wait to be written.
    fn __fpending(stream: *mut FILE) -> size_t;
    static stdout: *mut FILE;
    static stderr: *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
}

/// The descriptor of a stream; `None` for one in memory.
///
/// # Safety
/// `stream` is an open stream.
#[inline(always)]
unsafe fn fd_of(stream: *mut FILE) -> Option<c_int> {
    let errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let fd = unsafe { fileno_unlocked(stream) };
    drop(errno);
    (fd >= 0).then_some(fd)
}

/// Of the first word of glibc's FILE, which is part of its ABI: the stream has no buffer.
const IO_UNBUFFERED: c_int = 2;
/// It does not read.
const IO_NO_READS: c_int = 4;
/// It writes at each end of a line.
const IO_LINE_BUF: c_int = 0x200;
/// Places in FILE, in words: where the buffer has what was read, from and to.
const IO_READ_END: usize = 2;
const IO_READ_BASE: usize = 3;
/// Most bytes of a buffer that are believed.
const BUFFER_MAX: usize = 1 << 30;

/// The first word of a stream.
///
/// # Safety
/// `stream` is an open stream.
#[inline(always)]
unsafe fn word_of(stream: *mut FILE) -> c_int {
    // SAFETY: an open stream, whose first word only its own calls change.
    unsafe { stream.cast::<c_int>().read_volatile() }
}

/// Flag of a write that ended a line of a stream that writes at each: less waits to be written than the call brought.
///
/// # Safety
/// `stream` is an open stream, and `word` is its first word.
#[inline(always)]
unsafe fn line_flag(stream: *mut FILE, word: c_int, bytes: u64) -> u8 {
    // SAFETY: by the caller's promise. Streams that have a whole buffer are not asked.
    let ended = word & IO_LINE_BUF != 0 && unsafe { __fpending(stream) as u64 } < bytes;
    if ended { flag::LINE } else { 0 }
}

/// If a stream reads into a buffer: how many bytes that has.
///
/// # Safety
/// `stream` is an open stream.
unsafe fn read_ahead(stream: *mut FILE) -> Option<u64> {
    // SAFETY: by the caller's promise; the words are those of glibc's FILE.
    let (word, end, base) = unsafe {
        let words = stream.cast::<usize>();
        let at = |place: usize| words.add(place).read_volatile();
        (word_of(stream), at(IO_READ_END), at(IO_READ_BASE))
    };
    let reads = word & (IO_NO_READS | IO_UNBUFFERED) == 0;
    let has = end.checked_sub(base).filter(|bytes| *bytes <= BUFFER_MAX)?;
    reads.then_some(has as u64)
}

/// A call that moved bytes of a stream.
///
/// # Safety
/// `stream` is an open stream.
#[inline(always)]
unsafe fn moved(op: Op, stream: *mut FILE, length: u64, bytes: u64, start: u64) {
    let end = clock::ticks();
    // SAFETY: by the caller's promise.
    let Some(fd) = (unsafe { fd_of(stream) }) else { return };
    let at = get(fd);
    // SAFETY: by the caller's promise.
    let offset = at.stream_moved(bytes, || unsafe { libc::ftello(stream) });
    // SAFETY: by the caller's promise.
    let (word, line) = unsafe {
        let word = word_of(stream);
        (word, if op == Op::Fwrite { line_flag(stream, word, bytes) } else { 0 })
    };
    let unbuffered = if word & IO_UNBUFFERED != 0 { flag::UNBUFFERED } else { 0 };
    let flags = at.flags | flag::STDIO | unbuffered | line;
    let (file, result) = (at.file, bytes as i64);
    trace::put(Call { op, flags, file, offset, length, result, start, end });
}

/// Another call on a stream.
fn plain(op: Op, at: Fd, offset: u64, result: i64, start: u64, end: u64) {
    let flags = at.flags | flag::STDIO;
    trace::put(Call { op, flags, file: at.file, offset, length: 0, result, start, end });
}

/// Records what was moved by calls that are not seen.
///
/// # Safety
/// `stream` is an open stream.
unsafe fn settle(stream: *mut FILE, at: Fd) {
    let Some(seen) = at.stream_seen() else { return };
    let _errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let (position, writes) = unsafe { (libc::ftello(stream), __fwriting(stream) != 0) };
    let Some(bytes) = u64::try_from(position).ok().and_then(|now| now.checked_sub(seen)) else {
        return;
    };
    if bytes == 0 {
        return;
    }
    at.stream_at(seen + bytes);
    let op = if writes { Op::StdioWrite } else { Op::StdioRead };
    // SAFETY: by the caller's promise.
    let line = if writes { unsafe { line_flag(stream, word_of(stream), bytes) } } else { 0 };
    let (flags, file, result) = (at.flags | flag::STDIO | line, at.file, bytes as i64);
    let (start, end) = (clock::ticks(), clock::ticks());
    trace::put(Call { op, flags, file, offset: seen, length: bytes, result, start, end });
}

/// A call that writes to a stream: what calls that are not seen wrote before it is recorded first.
///
/// # Safety
/// `stream` is an open stream, and `write` does what the program asked for; it gives bytes asked for, and done.
#[inline(always)]
unsafe fn wrote<T>(stream: *mut FILE, write: impl FnOnce() -> (T, u64, u64)) -> T {
    // SAFETY: by the caller's promise.
    let (kept, fd) = unsafe { (|| __fpending(stream) as u64, fd_of(stream)) };
    let Some(fd) = fd else { return write().0 };
    let at = get(fd);
    if at.stream_writes(kept) {
        // SAFETY: by the caller's promise.
        unsafe { settle(stream, at) };
    }
    let start = clock::ticks();
    let (done, length, bytes) = write();
    // SAFETY: by the caller's promise.
    unsafe { moved(Op::Fwrite, stream, length, bytes, start) };
    at.stream_wrote(kept);
    done
}

/// What this process has written, all in all, by system calls; nothing if the kernel does not count it.
fn written_by_all_calls() -> Option<u64> {
    let mut text = [0; 512];
    let bytes = names::read_file(b"/proc/self/io\0", &mut text);
    let text = std::str::from_utf8(text.get(..bytes)?).ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok())
}

/// Records what went to standard output or error by calls that were not seen.
///
/// # Safety
/// `stream` is that stream, of this descriptor.
unsafe fn settle_standard(fd: c_int, stream: *mut FILE) {
    // SAFETY: by the caller's promise.
    let (is_it, kept) = unsafe { (fd_of(stream) == Some(fd), __fpending(stream) as u64) };
    // What is appended goes to the end, wherever the descriptor stands before.
    let position = match sys::status_flags(fd) & libc::O_APPEND {
        // SAFETY: by the caller's promise.
        0 => unsafe { libc::ftello(stream) },
        _ => sys::fstat(fd).map_or(-1, |stat| stat.st_size + kept as i64),
    };
    let Ok(now) = u64::try_from(position) else { return };
    let Some((unseen, seen)) = files::moved_of_standard(fd, now).filter(|_| is_it) else { return };
    if unseen == 0 {
        return;
    }
    // Others may write to the same file: of this process is at most what it has written.
    let own = written_by_all_calls().map_or(unseen, |all| (all + kept).saturating_sub(seen));
    let (bytes, offset) = (unseen.min(own), now - unseen);
    if bytes > 0 {
        let (op, at, result) = (Op::StdioWrite, get(fd), bytes as i64);
        let (flags, file) = (at.flags | flag::STDIO, at.file);
        let (start, end) = (clock::ticks(), clock::ticks());
        trace::put(Call { op, flags, file, offset, length: bytes, result, start, end });
    }
}

/// Records what was moved by calls that are not seen, of a stream that is about to be closed.
///
/// # Safety
/// `stream` is an open stream, of this descriptor.
unsafe fn settle_before_close(fd: c_int, stream: *mut FILE) {
    // SAFETY: by the caller's promise.
    unsafe {
        settle(stream, get(fd));
        // Programs such as mawk close standard output before their end, to learn of errors.
        if files::is_standard(fd) {
            settle_standard(fd, stream);
        }
    }
}

/// Settles the streams that are open at the end of the program.
pub fn end() {
    if trace::is_off() {
        return;
    }
    files::streams(|stream| {
        let stream = stream as *mut FILE;
        // SAFETY: fopen gave it, and fclose did not take it; one that another thread uses is left alone.
        unsafe {
            if ftrylockfile(stream) == 0 {
                if let Some(fd) = fd_of(stream) {
                    settle(stream, get(fd));
                }
                funlockfile(stream);
            }
        }
    });
    // SAFETY: libc's own streams; one that another thread uses is left alone.
    unsafe {
        for (fd, stream) in [(1, stdout), (2, stderr)] {
            if !stream.is_null() && ftrylockfile(stream) == 0 {
                settle_standard(fd, stream);
                funlockfile(stream);
            }
        }
    }
}

/// A stream that was opened by name, or not.
///
/// # Safety
/// The texts are C strings, or NULL.
unsafe fn opened(path: *const c_char, mode: *const c_char, stream: *mut FILE, start: u64) {
    let end = clock::ticks();
    let failed = stream.is_null();
    let result = if failed { sys::result(-1) } else { 0 };
    let _errno = sys::Errno::keep();
    // SAFETY: by the caller's promise; fopen read them.
    let (name, mode) = unsafe {
        let first = if mode.is_null() { 0 } else { *mode as u8 };
        (names::of_path(libc::AT_FDCWD, path, failed), first)
    };
    let mut record = flag::STDIO;
    if mode == b'w' || mode == b'a' {
        record |= flag::WRITES;
    }
    if !failed {
        // SAFETY: an open stream.
        if let Some(fd) = unsafe { fd_of(stream) } {
            files::stream_opened(fd, name, mode == b'a', stream as usize);
        }
    }
    let (op, file, offset) = (Op::Fopen, name.id(), NO_OFFSET);
    trace::put(Call { op, flags: record, file, offset, length: 0, result, start, end });
}

/// A stream was put over a descriptor. The call itself is no I/O; from here on the stream's position tells what it moves.
///
/// # Safety
/// `mode` is a C string; `stream` is an open stream, or NULL.
unsafe fn adopted(fd: c_int, mode: *const c_char, stream: *mut FILE) {
    if stream.is_null() || trace::is_off() {
        return;
    }
    let _errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let (append, position) = unsafe { (*mode as u8 == b'a', libc::ftello(stream)) };
    let at = get(fd);
    files::stream_adopted(fd, stream as usize);
    // The first write of one that appends goes to the end.
    let end = if append { sys::fstat(fd).map(|stat| stat.st_size) } else { None };
    if let Ok(position) = u64::try_from(end.unwrap_or(position)) {
        at.stream_at(position);
    }
}

/// A stream's position was set.
///
/// # Safety
/// `stream` is an open stream.
unsafe fn sought(stream: *mut FILE, done: i64, start: u64) {
    let end = clock::ticks();
    let errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    unsafe {
        let Some(fd) = fd_of(stream) else { return };
        let at = get(fd);
        let position = u64::try_from(libc::ftello(stream));
        if let Ok(position) = position {
            at.stream_at(position);
        }
        let (reads, length) = match read_ahead(stream) {
            Some(bytes) => (flag::READS, bytes),
            None => (0, 0),
        };
        drop(errno);
        let (flags, offset) = (at.flags | flag::STDIO | reads, position.unwrap_or(NO_OFFSET));
        let (op, file, result) = (Op::Fseek, at.file, sys::result(done));
        trace::put(Call { op, flags, file, offset, length, result, start, end });
    }
}

/// Before a stream's position is set.
///
/// # Safety
/// `stream` is an open stream.
unsafe fn before(stream: *mut FILE) {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(fd) = fd_of(stream) {
            settle(stream, get(fd));
        }
    }
}

/// Length of a text that was written or read.
///
/// # Safety
/// NULL or a C string.
unsafe fn text_bytes(text: *const c_char) -> u64 {
    // SAFETY: by the caller's promise.
    if text.is_null() { 0 } else { unsafe { libc::strlen(text) as u64 } }
}

interpose! {
    timed {
        fn [fopen fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE => |stream, start| opened(path, mode, stream, start);
        fn [fgets fgets_unlocked](to: *mut c_char, room: c_int, stream: *mut FILE) -> *mut c_char => |got, start| moved(Op::Fread, stream, room.max(1) as u64 - 1, text_bytes(got), start);
        fn [__fgets_chk __fgets_unlocked_chk](to: *mut c_char, bytes: size_t, room: c_int, stream: *mut FILE) -> *mut c_char => |got, start| moved(Op::Fread, stream, room.max(1) as u64 - 1, text_bytes(got), start);
        fn [getline](line: *mut *mut c_char, room: *mut size_t, stream: *mut FILE) -> ssize_t => |done, start| moved(Op::Fread, stream, done.max(0) as u64, done.max(0) as u64, start);
        fn [getdelim __getdelim](line: *mut *mut c_char, room: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t => |done, start| moved(Op::Fread, stream, done.max(0) as u64, done.max(0) as u64, start);
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, real => {
        let stream = real(fd, mode);
        adopted(fd, mode, stream);
        stream
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, real => {
        reopened(path, mode, stream, |start| (start, real(path, mode, stream)))
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, real => {
        reopened(path, mode, stream, |start| (start, real(path, mode, stream)))
    }
    fn fclose(stream: *mut FILE) -> c_int, real => {
        let fd = fd_of(stream);
        let mut file = 0;
        if let Some(fd) = fd {
            file = get(fd).file;
            settle_before_close(fd, stream);
            files::detach(fd);
        }
        let start = clock::ticks();
        let done = real(stream);
        let end = clock::ticks();
        if fd.is_some() {
            let (op, flags, result) = (Op::Fclose, flag::STDIO, sys::result(done.into()));
            trace::put(Call { op, flags, file, offset: NO_OFFSET, length: 0, result, start, end });
        }
        done
    }
    fn fread(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, real => {
        let start = clock::ticks();
        let done = real(to, size, count, stream);
        let length = (size as u64).saturating_mul(count as u64);
        moved(Op::Fread, stream, length, size as u64 * done as u64, start);
        done
    }
    fn fread_unlocked(
        to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t, real => {
        let start = clock::ticks();
        let done = real(to, size, count, stream);
        let length = (size as u64).saturating_mul(count as u64);
        moved(Op::Fread, stream, length, size as u64 * done as u64, start);
        done
    }
    fn __fread_chk(
        to: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t, real => {
        let start = clock::ticks();
        let done = real(to, room, size, count, stream);
        let length = (size as u64).saturating_mul(count as u64);
        moved(Op::Fread, stream, length, size as u64 * done as u64, start);
        done
    }
    fn __fread_unlocked_chk(
        to: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t, real => {
        let start = clock::ticks();
        let done = real(to, room, size, count, stream);
        let length = (size as u64).saturating_mul(count as u64);
        moved(Op::Fread, stream, length, size as u64 * done as u64, start);
        done
    }
    fn fwrite(from: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, real => {
        let length = (size as u64).saturating_mul(count as u64);
        wrote(stream, || {
            let done = real(from, size, count, stream);
            (done, length, size as u64 * done as u64)
        })
    }
    fn fwrite_unlocked(
        from: *const c_void, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t, real => {
        let length = (size as u64).saturating_mul(count as u64);
        wrote(stream, || {
            let done = real(from, size, count, stream);
            (done, length, size as u64 * done as u64)
        })
    }
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int, real => {
        let length = text_bytes(text);
        wrote(stream, || {
            let done = real(text, stream);
            (done, length, if done < 0 { 0 } else { length })
        })
    }
    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int, real => {
        let length = text_bytes(text);
        wrote(stream, || {
            let done = real(text, stream);
            (done, length, if done < 0 { 0 } else { length })
        })
    }
    fn fseek(stream: *mut FILE, to: c_long, whence: c_int) -> c_int, real => {
        before(stream);
        let start = clock::ticks();
        let done = real(stream, to, whence);
        sought(stream, done.into(), start);
        done
    }
    fn fseeko(stream: *mut FILE, to: off_t, whence: c_int) -> c_int, real => {
        before(stream);
        let start = clock::ticks();
        let done = real(stream, to, whence);
        sought(stream, done.into(), start);
        done
    }
    fn fseeko64(stream: *mut FILE, to: off_t, whence: c_int) -> c_int, real => {
        before(stream);
        let start = clock::ticks();
        let done = real(stream, to, whence);
        sought(stream, done.into(), start);
        done
    }
    fn rewind(stream: *mut FILE) -> (), real => {
        before(stream);
        let start = clock::ticks();
        real(stream);
        sought(stream, 0, start);
    }
    fn fsetpos(stream: *mut FILE, to: *const fpos_t) -> c_int, real => {
        before(stream);
        let start = clock::ticks();
        let done = real(stream, to);
        sought(stream, done.into(), start);
        done
    }
    fn fsetpos64(stream: *mut FILE, to: *const fpos_t) -> c_int, real => {
        before(stream);
        let start = clock::ticks();
        let done = real(stream, to);
        sought(stream, done.into(), start);
        done
    }
    fn fflush(stream: *mut FILE) -> c_int, real => {
        flushed(stream, || real(stream))
    }
    fn fflush_unlocked(stream: *mut FILE) -> c_int, real => {
        flushed(stream, || real(stream))
    }
}

/// fflush, which writes what waits.
///
/// # Safety
/// `stream` is an open stream, or NULL for all of them, and `flush` calls the function behind.
unsafe fn flushed(stream: *mut FILE, flush: impl FnOnce() -> c_int) -> c_int {
    if stream.is_null() {
        return flush();
    }
    // SAFETY: by the caller's promise.
    unsafe { before(stream) };
    let start = clock::ticks();
    let done = flush();
    let end = clock::ticks();
    // SAFETY: by the caller's promise.
    if let Some(fd) = unsafe { fd_of(stream) } {
        plain(Op::Fflush, get(fd), NO_OFFSET, sys::result(done.into()), start, end);
    }
    done
}

/// freopen: the stream's file is another one afterwards.
///
/// # Safety
/// `stream` is an open stream, and `reopen` calls the function behind.
unsafe fn reopened(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    reopen: impl FnOnce(u64) -> (u64, *mut FILE),
) -> *mut FILE {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(fd) = fd_of(stream) {
            settle_before_close(fd, stream);
            files::detach(fd);
        }
        let (start, got) = reopen(clock::ticks());
        // Without a name it is the same file in another mode, which is learned again.
        if !path.is_null() {
            opened(path, mode, got, start);
        }
        got
    }
}
