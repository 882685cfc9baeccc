//! Paths that commands are given: made absolute, and refused where a mount would hide or show what it needs itself.
//!
//! Callers: `mount`, `cache`, `serve`, `agent`.

use forebay_proto::control::ControlError;
use std::path::{Path, PathBuf};

/// A path from the root, as it is written: links in it stay.
pub fn absolute(path: &Path) -> Result<PathBuf, ControlError> {
    std::path::absolute(path).map_err(|error| ControlError::io("find", Some(path), &error))
}

/// What the server needs must not lie below its own mount: it would wait for itself.
pub fn must_not_hide(what: &str, path: &Path, mount_point: &Path) -> Result<(), ControlError> {
    if !path.starts_with(mount_point) {
        return Ok(());
    }
    let why = format!("{what} ({}) would be below the mount", path.display());
    Err(ControlError::new("mount on", Some(mount_point), &why)
        .errno(libc::ELOOP)
        .hint("mount elsewhere, or give another place"))
}

/// What a cache shows must not have its store in it. Both are resolved.
pub fn must_not_show(pfs: &Path, flash: &Path) -> Result<(), ControlError> {
    if !flash.starts_with(pfs) {
        return Ok(());
    }
    let flash = flash.display();
    let why =
        format!("FLASH ({flash}) lies below it: the cache would show, and cache, its own store");
    Err(ControlError::new("cache", Some(pfs), &why)
        .errno(libc::ELOOP)
        .hint("name a --flash outside of the PFS directory"))
}
