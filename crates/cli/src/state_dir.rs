//! Where a mount of a served buffer keeps its control socket and its log: one directory for each
//! mount point, below the user's runtime directory (root: `/run/forebay`; else
//! `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`). The record in it says what is mounted.
//! Nothing in it outlives the mount but what a killed one left, which the next mount or umount of
//! the mount point clears away.

use forebay_proto::control::{ControlError, MOUNT_RECORD_NAME, PathBytes, SOCKET_NAME};
use forebay_store::flash::{self, StoreKey};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The same while it is written.
const NEW_RECORD_NAME: &str = "mount.json.new";
/// The log in it.
const LOG_NAME: &str = "forebay.log";

/// What is mounted there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// Mount point.
    pub mount_point: PathBytes,
    /// Buffer.
    pub buffer: String,
    /// A server of it.
    pub server: String,
}

/// The directory of a mount.
#[derive(Clone, Debug)]
pub struct StateDir {
    dir: PathBuf,
    /// Device and number of the record that this mount wrote.
    record_id: (u64, u64),
}

fn base() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/forebay");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("forebay"),
        None => PathBuf::from(format!("/tmp/forebay-{}", uid.as_raw())),
    }
}

/// The directory for a mount point (canonical), whether it is there or not.
pub fn of(mount_point: &Path) -> PathBuf {
    flash::store_dir(&base(), &StoreKey::mount(mount_point))
}

/// What is mounted by the directory; `None` if it is none of ours.
pub fn record(dir: &Path) -> Option<MountRecord> {
    let text = fs::read(dir.join(MOUNT_RECORD_NAME)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The directories of all mounts of this user, and what is mounted by them or was: one that is ending still has its own, and
/// so has one that was killed. What others may have planted is passed over.
pub fn all() -> Vec<(PathBuf, MountRecord)> {
    let base = base();
    if must_be_own(&base).is_err() {
        return Vec::new();
    }
    let entries = fs::read_dir(&base).into_iter().flatten().flatten();
    let own = entries.map(|entry| entry.path()).filter(|dir| must_be_own(dir).is_ok());
    let mut dirs: Vec<PathBuf> = own.collect();
    dirs.sort();
    dirs.into_iter().filter_map(|dir| record(&dir).map(|record| (dir, record))).collect()
}

/// Removes the directory of a mount that is over.
pub fn remove(dir: &Path) -> Result<(), ControlError> {
    let failed =
        |error: std::io::Error| ControlError::io("remove the mount's directory", Some(dir), &error);
    for name in [MOUNT_RECORD_NAME, NEW_RECORD_NAME, SOCKET_NAME, LOG_NAME] {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => (),
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

impl StateDir {
    /// Makes it, or takes over what a killed mount left. `shared`: other users may reach the
    /// socket.
    pub fn make(
        record: &MountRecord,
        point: &Path,
        shared: bool,
    ) -> Result<StateDir, ControlError> {
        let what = "make the mount's directory";
        let base = base();
        let failed =
            |path: &Path, error: std::io::Error| Err(ControlError::io(what, Some(path), &error));
        let base_mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        let dir = of(point);
        let mode = if shared { 0o711 } else { 0o700 };
        for (path, mode) in [(&base, base_mode), (&dir, mode)] {
            match fs::DirBuilder::new().mode(mode).create(path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return failed(path, error);
                }
                _ => (),
            }
            must_be_own(path)?;
        }
        let text = serde_json::to_vec(record)
            .map_err(|error| ControlError::new(what, Some(&dir), &error.to_string()))?;
        let path = dir.join(MOUNT_RECORD_NAME);
        // A file of its own: by it a mount that comes to its end late knows what is not its own any more.
        // Others may read it, and nobody else may write it, whatever the umask is.
        let mut fresh = fs::OpenOptions::new();
        fresh.write(true).create(true).truncate(true).mode(0o644);
        let written = fresh
            .open(dir.join(NEW_RECORD_NAME))
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(dir.join(NEW_RECORD_NAME), &path))
            .and_then(|()| record_id(&dir));
        let record_id = match written {
            Ok(id) => id,
            Err(error) => return failed(&path, error),
        };
        if let Err(error) = fs::set_permissions(&dir, fs::Permissions::from_mode(mode)) {
            return failed(&dir, error);
        }
        Ok(StateDir { dir, record_id })
    }

    /// The mount has ended: removes it, unless another mount on the same point has taken it over.
    pub fn remove(&self) -> Result<(), ControlError> {
        match record_id(&self.dir) {
            Ok(id) if id == self.record_id => remove(&self.dir),
            _ => Ok(()),
        }
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The default log file.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG_NAME)
    }
}

/// Which file the record is.
fn record_id(dir: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(dir.join(MOUNT_RECORD_NAME)).map(|meta| (meta.dev(), meta.ino()))
}

/// In a place where others may write, the name could have been taken by somebody else.
fn must_be_own(dir: &Path) -> Result<(), ControlError> {
    let what = "use the mount's directory";
    let meta =
        fs::symlink_metadata(dir).map_err(|error| ControlError::io(what, Some(dir), &error))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != me || meta.mode() & 0o022 != 0 {
        let why = "it is not a directory that only you may write to";
        return Err(ControlError::new(what, Some(dir), why)
            .errno(libc::EPERM)
            .hint("remove it, or set $XDG_RUNTIME_DIR to a directory of your own"));
    }
    Ok(())
}

/// Bytes of a path, for records.
pub fn bytes_of(path: &Path) -> PathBytes {
    PathBytes::new(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount point that no other test has.
    fn make(point: &Path) -> StateDir {
        let record = MountRecord {
            mount_point: bytes_of(point),
            buffer: "b".into(),
            server: "node:1".into(),
        };
        StateDir::make(&record, point, false).unwrap()
    }

    #[test]
    fn a_mount_that_ends_late_leaves_the_next_ones_directory_alone() {
        let point = tempfile::tempdir().unwrap();
        let late = make(point.path());
        let next = make(point.path());
        late.remove().unwrap();
        assert!(record(next.path()).is_some(), "the directory of the next mount is there");
        next.remove().unwrap();
        assert!(!next.path().exists());
        next.remove().unwrap();
    }

    #[test]
    fn the_directory_of_a_mount_is_listed_until_it_is_removed() {
        let point = tempfile::tempdir().unwrap();
        let made = make(point.path());
        let listed = || {
            let found = all().into_iter().find(|(dir, _)| dir == made.path());
            found.map(|(_, record)| record.mount_point)
        };
        assert_eq!(listed(), Some(bytes_of(point.path())));
        made.remove().unwrap();
        assert_eq!(listed(), None);
    }
}
