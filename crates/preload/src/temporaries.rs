//! mkstemp and its like: libc opens the file by an inner call that nobody can take the place of, so the names are made up
//! and tried here.

use crate::calls::opened;
use crate::{places, raw};
use forebay_interpose::sys;
use libc::{c_char, c_int};
use std::ffi::CStr;

/// What a template has where the name is made up.
const MARKS: [u8; 6] = *b"XXXXXX";
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Names that are tried; then libc tries its own.
const TRIES: u32 = 100;

/// Where the marks of a template of a mount begin; `None`: it has none, or is of no mount.
///
/// # Safety
/// NULL or a C string.
unsafe fn marks_of(template: *const c_char, suffix_bytes: c_int) -> Option<usize> {
    if template.is_null() {
        return None;
    }
    let _errno = sys::Errno::keep();
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(template) }.to_bytes();
    let suffix_bytes = usize::try_from(suffix_bytes).ok()?;
    let at = text.len().checked_sub(suffix_bytes)?.checked_sub(MARKS.len())?;
    let is_template = text.get(at..)?.starts_with(&MARKS);
    (is_template && places::locate(libc::AT_FDCWD, text).is_some()).then_some(at)
}

/// Letters at random; `None` where the kernel gives none yet.
fn made_up() -> Option<[u8; 6]> {
    let mut bytes = [0_u8; 6];
    let (to, flags) = (bytes.as_mut_ptr() as usize, libc::GRND_NONBLOCK as usize);
    // SAFETY: room of that size, alive during the call.
    let count = unsafe { raw::call(libc::SYS_getrandom, [to, bytes.len(), flags, 0, 0, 0]) };
    let letter = |byte: u8| LETTERS[usize::from(byte) % LETTERS.len()];
    (count == bytes.len() as i64).then(|| bytes.map(letter))
}

/// Puts letters into a template.
///
/// # Safety
/// The template is a C string of the program's that has room for them there.
unsafe fn put(template: *mut c_char, at: usize, letters: [u8; 6]) {
    // SAFETY: by the caller's promise.
    unsafe {
        template.add(at).cast::<[u8; 6]>().write_unaligned(letters);
    }
}

/// Makes a file by a template; `None`: libc is to, and the template is as it was.
///
/// # Safety
/// NULL or a C string that may be written.
unsafe fn made(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: by the caller's promise.
    let at = unsafe { marks_of(template, suffix_bytes) }?;
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let errno = sys::errno();
    for _ in 0..TRIES {
        let Some(letters) = made_up() else { break };
        // SAFETY: the marks were there.
        unsafe { put(template, at, letters) };
        // SAFETY: a C string still.
        match unsafe { opened(libc::AT_FDCWD, template, flags, 0o600) } {
            Some(-1) if sys::errno() == libc::EEXIST => {}
            Some(fd) => {
                if fd >= 0 {
                    sys::set_errno(errno);
                }
                return Some(fd);
            }
            None => break,
        }
    }
    // SAFETY: as above.
    unsafe { put(template, at, MARKS) };
    sys::set_errno(errno);
    None
}

interpose! {
    fn mkstemp(template: *mut c_char) -> c_int, real => {
        made(template, 0, 0).unwrap_or_else(|| real(template))
    }
    fn mkstemp64(template: *mut c_char) -> c_int, real => {
        made(template, 0, 0).unwrap_or_else(|| real(template))
    }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int, real => {
        made(template, 0, flags).unwrap_or_else(|| real(template, flags))
    }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int, real => {
        made(template, 0, flags).unwrap_or_else(|| real(template, flags))
    }
    fn mkstemps(template: *mut c_char, suffix_bytes: c_int) -> c_int, real => {
        made(template, suffix_bytes, 0).unwrap_or_else(|| real(template, suffix_bytes))
    }
    fn mkstemps64(template: *mut c_char, suffix_bytes: c_int) -> c_int, real => {
        made(template, suffix_bytes, 0).unwrap_or_else(|| real(template, suffix_bytes))
    }
    fn mkostemps(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> c_int, real => {
        made(template, suffix_bytes, flags).unwrap_or_else(|| real(template, suffix_bytes, flags))
    }
    fn mkostemps64(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> c_int, real => {
        made(template, suffix_bytes, flags).unwrap_or_else(|| real(template, suffix_bytes, flags))
    }
}
