//! Records that are one JSON file each, replaced whole: after a kill or a power cut a reader finds the old record or
//! the new one. Called by [`crate::run`] (records of jobs) and [`crate::hooks`] (sessions).
//!
//! Invariant: nobody else can write what this crate makes for itself, whatever the umask of who runs a job.

use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Mode of records. Who may read them, the directory says.
pub(crate) const RECORD_MODE: u32 = 0o644;
/// Mode of what commands have said: for their caller.
pub(crate) const SAID_MODE: u32 = 0o600;
/// Mode of directories on the way to a mount point.
const DIR_MODE: u32 = 0o755;

/// Makes a file, or empties it.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create(path: &Path, mode: u32) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(mode).open(path)
}

/// Makes a directory and those above it, where they are missing.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_dirs(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Writes `record` to `path`, by way of the file `beside` in the same directory; durable when it returns.
///
/// # Errors
/// Those of the file system; the old record stays.
pub(crate) fn replace(path: &Path, beside: &Path, record: &impl Serialize) -> io::Result<()> {
    let mut file = create(beside, RECORD_MODE)?;
    file.write_all(&serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
    file.sync_all()?;
    fs::rename(beside, path)?;
    sync_dir_of(path)
}

/// Makes durable which name leads where in the directory of `path`.
pub(crate) fn sync_dir_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}
