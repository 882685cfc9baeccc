//! From errors of the client to errno and a message, per thread.

use crate::Answer;
use forebay_proto::control::ControlError;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{UnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call; its failure becomes `None`, errno and the thread's message. A panic is EIO.
pub(crate) fn answer<T>(call: impl FnOnce() -> Answer<T> + UnwindSafe) -> Option<T> {
    let error = match catch_unwind(call) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error,
        Err(_) => ControlError::new("answer", None, "internal error, please report it"),
    };
    note(&error.to_string());
    // SAFETY: errno is this thread's own; the location is valid while it lives.
    unsafe { *libc::__errno_location() = error.errno.unwrap_or(libc::EIO) };
    None
}

/// Sets the thread's message.
pub(crate) fn note(text: &str) {
    let text = text.replace('\0', " ");
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
}

/// Message of this thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn fb_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
