//! Records that are one JSON file each, replaced whole: after a kill or a power cut a reader finds the old record or
//! the new one. Called by [`crate::run`] (records of jobs) and [`crate::hooks`] (sessions).
//!
//! Invariants: nobody else can write what this crate makes for itself, whatever the umask of who runs a job; what root makes in the
//! scheduler's directory is written by hooks afterwards, whose user that directory is.

use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

/// Mode of records. Who may read them, the directory says.
pub(crate) const RECORD_MODE: u32 = 0o644;
/// Mode of what commands have said: for their caller.
pub(crate) const SAID_MODE: u32 = 0o600;
/// Mode of directories on the way to a mount point.
const DIR_MODE: u32 = 0o755;
/// Mode of a scheduler's directory, and of those in it.
const OWN_DIR_MODE: u32 = 0o700;

/// Makes a file, or empties it.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create(path: &Path, mode: u32) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(mode).open(path)
}

/// The same of a file in a scheduler's directory, never by way of a link, for whom that directory belongs to.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_in(dir: &Path, name: &str) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(RECORD_MODE);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(dir.join(name))?;
    give_to_owner_of(dir, &file)?;
    Ok(file)
}

/// Makes a directory and those above it, where they are missing.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_dirs(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Makes a directory in `dir`, which is made too, where they are missing. Root makes it for whom `dir` belongs to.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_dir_in(dir: &Path, name: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(OWN_DIR_MODE).create(dir)?;
    let path = dir.join(name);
    match fs::DirBuilder::new().mode(OWN_DIR_MODE).create(&path) {
        Ok(()) => {
            // Nothing that the owner of `dir` may have put in its place is given away.
            let mut options = File::options();
            options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
            give_to_owner_of(dir, &options.open(&path)?)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a file in `dir` for appending, and makes it where it is missing. Root makes it for whom `dir` belongs to, who could not
/// write it otherwise: hooks of a scheduler that has a user of its own, after a command of an administrator.
///
/// # Errors
/// Those of the file system.
pub(crate) fn open_in(dir: &Path, name: &str) -> io::Result<File> {
    let path = dir.join(name);
    let mut options = File::options();
    options.append(true).mode(RECORD_MODE).custom_flags(libc::O_NOFOLLOW);
    match options.clone().create_new(true).open(&path) {
        Ok(made) => {
            give_to_owner_of(dir, &made)?;
            Ok(made)
        }
        // Another one may move it away in this moment.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create(true).open(&path)
        }
        Err(error) => Err(error),
    }
}

/// What root has made in a directory of another user becomes that user's.
fn give_to_owner_of(dir: &Path, made: &File) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fs::metadata(dir)?;
    match owner.uid() {
        0 => Ok(()),
        uid => fchown(made, Some(uid), Some(owner.gid())),
    }
}

/// Writes `record` to `path`, by way of the file `beside` in the same directory; durable when it returns.
///
/// # Errors
/// Those of the file system; the old record stays.
pub(crate) fn replace(path: &Path, beside: &Path, record: &impl Serialize) -> io::Result<()> {
    write(create_anew(beside)?, path, beside, record)
}

/// The same in a scheduler's directory: root writes it for whom that one belongs to.
///
/// # Errors
/// Those of the file system; the old record stays.
pub(crate) fn replace_of_owner(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let beside = path.with_extension("new");
    let file = create_anew(&beside)?;
    give_to_owner_of(path.parent().unwrap_or(Path::new("/")), &file)?;
    write(file, path, &beside, record)
}

/// What a kill left, or somebody put there, is never written to.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(RECORD_MODE).open(path)
}

fn write(mut file: File, path: &Path, beside: &Path, record: &impl Serialize) -> io::Result<()> {
    file.write_all(&serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
    file.sync_all()?;
    fs::rename(beside, path)?;
    sync_dir_of(path)
}

/// Least room that is kept beside a record, in bytes.
const ROOM_BYTES: u64 = 64 << 10;

/// True if there was no room for what was written.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Makes sure that the file `room` takes as much room as the next record at `path` will need. Where there is no room, or the file
/// system gives none beforehand, there is none.
pub(crate) fn keep_room(room: &Path, path: &Path) {
    let record_bytes = fs::metadata(path).map_or(0, |meta| meta.len());
    // Records grow with what steps have done.
    let wanted = ROOM_BYTES.max(record_bytes.saturating_mul(2));
    if fs::symlink_metadata(room).is_ok_and(|meta| meta.len() >= wanted) {
        return;
    }
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(RECORD_MODE);
    options.custom_flags(libc::O_NOFOLLOW);
    let kept = options
        .open(room)
        .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, wanted)?));
    if kept.is_err() {
        // What there is of it is of no use.
        give_room(room);
    }
}

/// Gives such room back.
pub(crate) fn give_room(room: &Path) {
    // It may not be there, and takes nothing then.
    let _ = fs::remove_file(room);
}

/// Makes durable which name leads where in the directory of `path`.
pub(crate) fn sync_dir_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_written_by_way_of_a_link_that_somebody_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("other"), "theirs").unwrap();
        for name in ["7.new", "8.new", "log", "pools.new"] {
            symlink(at("other"), at(name)).unwrap();
        }
        replace(&at("7.json"), &at("7.new"), &7).unwrap();
        replace_of_owner(&at("8.json"), &8).unwrap();
        for number in ["7", "8"] {
            assert_eq!(fs::read_to_string(at(&format!("{number}.json"))).unwrap(), number);
            assert!(fs::symlink_metadata(at(&format!("{number}.new"))).is_err());
        }
        let linked = |result: io::Result<File>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        };
        linked(open_in(dir.path(), "log"));
        linked(create_in(dir.path(), "pools.new"));
        assert_eq!(fs::read_to_string(at("other")).unwrap(), "theirs");
    }
}
