//! Errors of the flash module: [`ControlError`]s with the path and what to do.

use super::path_bytes;
use forebay_proto::control::ControlError;
use std::io;
use std::path::Path;

/// Result of this module.
pub type Result<T> = std::result::Result<T, ControlError>;

/// Adds what was being done, and where, to an error of the system.
pub trait Flash<T> {
    /// `what` on `path`.
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Flash<T> for std::result::Result<T, E> {
    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|error| from_io(what, path, &error.into()))
    }
}

/// From an error of the system.
pub fn from_io(what: &str, path: &Path, error: &io::Error) -> ControlError {
    let errno = error.raw_os_error();
    let hint = match errno {
        Some(libc::ENOSPC) => {
            Some("flash is full: free space there, ask for less, or give another --flash")
        }
        Some(libc::EROFS) => Some("flash is read-only: give another --flash"),
        Some(libc::EACCES) => Some("you need the right to write there"),
        _ => None,
    };
    let text = error.to_string();
    let why = text.split(" (os error").next().unwrap_or(&text).to_string();
    ControlError {
        what: what.into(),
        path: Some(path_bytes(path)),
        errno,
        why,
        hint: hint.map(Into::into),
    }
}

/// From a reason in words.
pub fn fail(what: &str, path: &Path, why: &str) -> ControlError {
    ControlError {
        what: what.into(),
        path: Some(path_bytes(path)),
        errno: None,
        why: why.into(),
        hint: None,
    }
}

/// Adds to an error.
pub trait Hint {
    /// What to do about it.
    fn hint(self, hint: &str) -> ControlError;
    /// The errno that fits.
    fn errno(self, errno: i32) -> ControlError;
}

impl Hint for ControlError {
    fn hint(mut self, hint: &str) -> ControlError {
        self.hint = Some(hint.into());
        self
    }
    fn errno(mut self, errno: i32) -> ControlError {
        self.errno = Some(errno);
        self
    }
}
