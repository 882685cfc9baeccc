//! Calls on names that are always the kernel's. They are here to be counted, where a report is wanted: who reads it sees what the
//! library did not take over.

use crate::places::locate;
use crate::report;
use forebay_interpose::sys;
use libc::{DIR, c_char, c_int, c_uint, mode_t};
use std::ffi::CStr;

const CWD: c_int = libc::AT_FDCWD;

/// Counts a call whose path is in a mount, if anybody wants to know.
///
/// # Safety
/// `path` is NULL or a C string.
pub unsafe fn counted(dir: c_int, path: *const c_char) {
    if path.is_null() || !report::is_wanted() {
        return;
    }
    let _errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if locate(dir, path).is_some() {
        report::asked(report::OTHER, false);
    }
}

interpose! {
    fn rename(from: *const c_char, to: *const c_char) -> c_int, real => {
        counted(CWD, from);
        real(from, to)
    }
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int, real => {
        counted(from_dir, from);
        real(from_dir, from, to_dir, to)
    }
    fn renameat2(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint,
    ) -> c_int, real => {
        counted(from_dir, from);
        real(from_dir, from, to_dir, to, flags)
    }
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int, real => {
        counted(CWD, path);
        real(path, mode)
    }
    fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int, real => {
        counted(dir, path);
        real(dir, path, mode)
    }
    fn rmdir(path: *const c_char) -> c_int, real => {
        counted(CWD, path);
        real(path)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int, real => {
        counted(CWD, from);
        real(from, to)
    }
    fn symlink(text: *const c_char, to: *const c_char) -> c_int, real => {
        counted(CWD, to);
        real(text, to)
    }
    fn symlinkat(text: *const c_char, dir: c_int, to: *const c_char) -> c_int, real => {
        counted(dir, to);
        real(text, dir, to)
    }
    fn opendir(path: *const c_char) -> *mut DIR, real => {
        counted(CWD, path);
        real(path)
    }
}
