//! All stores below a FLASH directory that this user may look at.

use super::error::{Flash, Result};
use super::lock::StoreLock;
use super::place::STORE_PREFIX;
use super::record::{self, StoreRecord};
use forebay_proto::control::ControlError;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A store as found on flash.
#[derive(Debug)]
pub struct FoundStore {
    /// Its directory.
    pub dir: PathBuf,
    /// Its record, or why it cannot be read.
    pub record: std::result::Result<StoreRecord, ControlError>,
    /// True if it is this user's; root sees those of all, and takes none of others.
    pub own: bool,
    /// True if a process uses it.
    pub in_use: bool,
}

/// Lists them, in order of name. What others do not let this user read is passed over, and so is what
/// somebody planted.
pub fn list(flash: &Path) -> Result<Vec<FoundStore>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(flash).at("list flash", flash)? {
        let entry = entry.at("list flash", flash)?;
        let dir = entry.path();
        if !entry.file_name().as_bytes().starts_with(STORE_PREFIX.as_bytes())
            || !entry.file_type().at("list flash", &dir)?.is_dir()
        {
            continue;
        }
        let record = match record::load(&dir) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => continue,
            Err(error) if error.errno == Some(libc::EACCES) => continue,
            Err(error) => Err(error),
        };
        let owner = fs::symlink_metadata(&dir).at("list flash", &dir)?.uid();
        let own = owner == rustix::process::geteuid().as_raw();
        let in_use = match StoreLock::is_held(&dir) {
            Ok(held) => held,
            Err(error) if own => return Err(error),
            // Planted, or just going.
            Err(_) => continue,
        };
        if record.as_ref().is_ok_and(|record| record.uid != owner) && !own {
            continue;
        }
        found.push(FoundStore { dir, record, own, in_use });
    }
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(found)
}
