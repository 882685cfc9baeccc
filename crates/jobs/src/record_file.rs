//! Records that are one JSON file each, replaced whole: after a kill or a power cut a reader finds the old record or
//! the new one. Called by [`crate::run`] (records of jobs) and [`crate::hooks`] (sessions).

use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes `record` to `path`, by way of the file `beside` in the same directory; durable when it returns.
///
/// # Errors
/// Those of the file system; the old record stays.
pub(crate) fn replace(path: &Path, beside: &Path, record: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(beside)?;
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
