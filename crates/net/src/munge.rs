//! MUNGE: a service of many sites that lets one node tell another which user asks. Its library
//! (`libmunge.so.2`, part of Debian's `libmunge2`) is loaded at run time, so that Forebay runs
//! without it; every call needs a running `munged`.
//!
//! A credential carries a text, here the one that ties it to its connection
//! ([`crate::handshake`]); decoding one twice is an error of MUNGE itself (a replay).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Name of the library.
const LIBRARY: &CStr = c"libmunge.so.2";
/// Longest text taken from a credential.
const MAX_TEXT_BYTES: usize = 4096;

/// Who made a credential, and what it carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Text.
    pub text: String,
}

// The functions of munge.h (munge(3)): 0 is success, anything else an error for munge_strerror.
type Encode = unsafe extern "C" fn(*mut *mut c_char, *mut c_void, *const c_void, c_int) -> c_int;
type Decode = unsafe extern "C" fn(
    *const c_char,
    *mut c_void,
    *mut *mut c_void,
    *mut c_int,
    *mut libc::uid_t,
    *mut libc::gid_t,
) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

struct Library {
    encode: Encode,
    decode: Decode,
    strerror: StrError,
}

fn library() -> Result<&'static Library, String> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    LOADED
        .get_or_init(load)
        .as_ref()
        .ok_or_else(|| "MUNGE's library (libmunge.so.2) is not installed".to_string())
}

fn load() -> Option<Library> {
    // SAFETY: loading runs the library's initializers; libmunge has none that matter. It is
    // never unloaded, so what is taken from it lives as long as the process.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: a valid handle and a string.
        let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    let (encode, decode) = (symbol(c"munge_encode")?, symbol(c"munge_decode")?);
    let strerror = symbol(c"munge_strerror")?;
    // SAFETY: these symbols of libmunge.so.2 are functions with these signatures (munge.h).
    unsafe {
        Some(Library {
            encode: std::mem::transmute::<*mut c_void, Encode>(encode),
            decode: std::mem::transmute::<*mut c_void, Decode>(decode),
            strerror: std::mem::transmute::<*mut c_void, StrError>(strerror),
        })
    }
}

impl Library {
    fn error(&self, what: &str, code: c_int) -> String {
        // SAFETY: takes any number, gives a static string.
        let text = unsafe { CStr::from_ptr((self.strerror)(code)) };
        format!("MUNGE cannot {what} a credential: {}", text.to_string_lossy())
    }
}

/// True if there is a MUNGE to ask.
pub fn is_there() -> bool {
    encode("").is_ok()
}

/// Makes a credential of this process's user that carries `text`.
pub fn encode(text: &str) -> Result<String, String> {
    let library = library()?;
    let length = c_int::try_from(text.len()).map_err(|_| "the text is too long".to_string())?;
    let mut made: *mut c_char = std::ptr::null_mut();
    // SAFETY: the text has the length that is told; `made` is a place for a pointer.
    let code = unsafe {
        (library.encode)(&raw mut made, std::ptr::null_mut(), text.as_ptr().cast(), length)
    };
    if code != 0 || made.is_null() {
        return Err(library.error("make", code));
    }
    // SAFETY: on success it is a string, made by malloc for us to free.
    let credential = unsafe {
        let credential = CStr::from_ptr(made).to_string_lossy().into_owned();
        libc::free(made.cast());
        credential
    };
    Ok(credential)
}

/// Whose a credential is. Once: a second time it is refused as a replay.
pub fn decode(credential: &str) -> Result<Decoded, String> {
    let library = library()?;
    let credential = CString::new(credential).map_err(|_| "no credential at all".to_string())?;
    let (mut text, mut length): (*mut c_void, c_int) = (std::ptr::null_mut(), 0);
    let (mut uid, mut gid) = (libc::uid_t::MAX, libc::gid_t::MAX);
    // SAFETY: a string, and places for all results.
    let code = unsafe {
        (library.decode)(
            credential.as_ptr(),
            std::ptr::null_mut(),
            &raw mut text,
            &raw mut length,
            &raw mut uid,
            &raw mut gid,
        )
    };
    let carried = match usize::try_from(length) {
        Ok(bytes) if !text.is_null() && bytes <= MAX_TEXT_BYTES => {
            // SAFETY: MUNGE says that so many bytes are there.
            unsafe { std::slice::from_raw_parts(text.cast::<u8>(), bytes) }.to_vec()
        }
        _ => Vec::new(),
    };
    // SAFETY: made by malloc for us to free, or null. (It may be there after an error, too.)
    unsafe { libc::free(text) };
    if code != 0 {
        return Err(library.error("accept", code));
    }
    let text = String::from_utf8(carried).map_err(|_| "it carries no text".to_string())?;
    Ok(Decoded { uid, gid, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_munge_there_is_an_error_and_no_crash() {
        // Where a munged runs both succeed, where none does both say so.
        match encode("text") {
            Ok(credential) => {
                let decoded = decode(&credential).unwrap();
                assert_eq!(decoded.text, "text");
                assert_eq!(decoded.uid, rustix::process::geteuid().as_raw());
                assert!(decode(&credential).unwrap_err().contains("accept"), "a replay");
            }
            Err(why) => assert!(why.contains("MUNGE"), "{why}"),
        }
        assert!(decode("MUNGE:nonsense:").is_err());
        assert!(decode("with a\0nul").is_err());
    }
}
