//! fopen: libc opens the file by an inner call that nobody can take the place of, so it is opened here and made a
//! stream.

use crate::calls::opened;
use crate::raw;
use forebay_interpose::sys;
use libc::{FILE, c_char, c_int};
use std::ffi::CStr;

/// Flags of open(2) for a mode of fopen; `None` for one that libc should see itself.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    let mut flags = match first {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    let mut both = false;
    for letter in rest {
        match letter {
            b'+' => both = true,
            b'b' | b'c' | b'm' => {}
            b'e' => flags |= libc::O_CLOEXEC,
            b'x' => flags |= libc::O_EXCL,
            // An encoding, or what this library does not know.
            _ => return None,
        }
    }
    flags |= match (both, first) {
        (true, _) => libc::O_RDWR,
        (false, b'r') => libc::O_RDONLY,
        (false, _) => libc::O_WRONLY,
    };
    Some(flags)
}

/// Opens a stream of a file of a mount; `None`: libc is to open it.
///
/// # Safety
/// Both are NULL or C strings.
unsafe fn stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let flags = flags_of(unsafe { CStr::from_ptr(mode) }.to_bytes())?;
    // SAFETY: by the caller's promise.
    let fd = unsafe { opened(libc::AT_FDCWD, path, flags, 0o666) }?;
    if fd < 0 {
        return Some(std::ptr::null_mut());
    }
    if flags & libc::O_APPEND != 0 {
        // As fopen leaves it.
        raw::numbers(libc::SYS_lseek, fd as usize, 0, libc::SEEK_END as usize);
    }
    // SAFETY: an open descriptor and a C string.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        let _errno = sys::Errno::keep();
        raw::close(fd);
    }
    Some(stream)
}

interpose! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, real => {
        stream(path, mode).unwrap_or_else(|| real(path, mode))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, real => {
        stream(path, mode).unwrap_or_else(|| real(path, mode))
    }
}
