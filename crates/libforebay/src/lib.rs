//! `libforebay.so`: the C interface of include/forebay.h over `forebay-client`, `forebay-files` and `forebay-map`, and that of
//! include/datawarp.h, for which it is installed as `libdatawarp.so` too.
//!
//! Invariants: no state but the thread's own (its last message, and what `forebay-files` keeps), which stages this process
//! has begun for DataWarp's calls, and a table without locks of what it has mapped; so calls are right after fork and from any thread; no panic crosses to C; what C passes is
//! checked for NULL before it is read.
//! Called by C programs and by the Python package.

mod datawarp;
mod datawarp_state;
mod error;
mod files;
mod memory;
mod plans;
mod state;

use forebay_proto::control::ControlError;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Result of a call before it becomes a number and errno.
type Answer<T> = Result<T, ControlError>;

/// A path of the caller.
///
/// # Safety
/// `text` is NULL or a C string.
unsafe fn path(what: &str, text: *const c_char) -> Answer<PathBuf> {
    if text.is_null() {
        let error = ControlError::new(what, None, "the path is NULL");
        return Err(error.errno(libc::EINVAL));
    }
    // SAFETY: not NULL, a C string by the caller's promise; copied before the call returns.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// Copies what both sides know of a struct.
///
/// # Safety
/// `to` is NULL or has `size` bytes that may be written; `T` has no padding.
unsafe fn give<T: Copy>(value: &T, to: *mut c_void, size: usize) -> Answer<()> {
    if to.is_null() {
        let error = ControlError::new("give the state", None, "the struct is NULL");
        return Err(error.errno(libc::EINVAL));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are there on both sides, which do not overlap: `value` is ours.
    unsafe {
        std::ptr::write_bytes(to.cast::<u8>(), 0, size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast(), known);
    }
    Ok(())
}

/// CRC32C that continues another.
///
/// # Safety
/// `bytes` has `size` bytes, or is NULL with a size of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_crc32c(crc: u32, bytes: *const c_void, size: usize) -> u32 {
    if bytes.is_null() || size == 0 {
        return crc;
    }
    // SAFETY: by the caller's promise; only read during the call.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    let next = u64::from(crc_fast::crc32_iscsi(bytes));
    crc_fast::checksum_combine(algorithm, crc.into(), next, size as u64) as u32
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn fb_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
