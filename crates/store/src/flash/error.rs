//! Errors of the flash module: [`ControlError`]s with the path and what to do.

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
    let error = ControlError::io(what, Some(path), error);
    match error.errno {
        Some(libc::ENOSPC) => {
            error.hint("flash is full: free space there, ask for less, or give another --flash")
        }
        Some(libc::EROFS) => error.hint("flash is read-only: give another --flash"),
        Some(libc::EACCES) => error.hint("you need the right to write there"),
        _ => error,
    }
}

/// From a reason in words.
pub fn fail(what: &str, path: &Path, why: &str) -> ControlError {
    ControlError::new(what, Some(path), why)
}
