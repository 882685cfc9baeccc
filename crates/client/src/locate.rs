//! From a path to the buffer it lies in. Works for names that do not exist yet and for mounts
//! whose server is dead: below a mount point of Forebay a failing look is not an error.

use crate::mountinfo::{self, MountEntry};
use crate::server_process::must_run;
use forebay_proto::control::ControlError;
use forebay_proto::layout::publish_xattr;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most symbolic links followed on one path, as in the kernel.
const MAX_LINKS: u32 = 40;

/// A place in a mounted buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRef {
    /// Where the buffer is mounted.
    pub mount_point: PathBuf,
    /// The store's directory on flash.
    pub store_dir: PathBuf,
    /// Path in the buffer, absolute from its root.
    pub path_in_buffer: PathBuf,
    /// Who mounted it.
    pub owner_uid: Option<u32>,
    /// The mount's device, as `stat` shows it for its files.
    pub device: u64,
}

/// The owner of the store's directory, if that is not who mounted: any user may mount FUSE with any
/// source, so such a mount is none of that store's.
fn whose_else(entry: &MountEntry) -> Option<u32> {
    // A directory that is gone, or that cannot be looked at, is none that could be taken for another's.
    let owner = std::fs::symlink_metadata(entry.store_dir()?).ok()?.uid();
    (entry.owner_uid()? != owner).then_some(owner)
}

/// All mounts of Forebay that this process sees, but for those that name a store of somebody else than
/// who mounted.
pub fn mounts() -> crate::Result<Vec<MountRef>> {
    mounts_at(|_| true)
}

/// The same of those on mount points that are wanted. Of the others nothing is looked at: the flash of one of them may not
/// answer, and a look at it hangs.
pub fn mounts_at(wanted: impl Fn(&Path) -> bool) -> crate::Result<Vec<MountRef>> {
    Ok(ours(&mountinfo::read()?, wanted, |entry| whose_else(entry).is_some()))
}

fn ours(
    table: &[MountEntry],
    wanted: impl Fn(&Path) -> bool,
    is_others: impl Fn(&MountEntry) -> bool,
) -> Vec<MountRef> {
    table
        .iter()
        .filter(|entry| wanted(&entry.point) && !is_others(entry))
        .filter_map(|entry| {
            Some(MountRef {
                mount_point: entry.point.clone(),
                store_dir: entry.store_dir()?,
                path_in_buffer: entry.root.clone(),
                owner_uid: entry.owner_uid(),
                device: entry.device,
            })
        })
        .collect()
}

/// Publishes a file of a buffer: all mounts see what was written to it; and nobody writes it any more, if it `is_final`.
///
/// # Errors
/// Those of `setxattr(2)`: the kernel decides who may, as for any change of the file.
pub fn publish(path: &Path, is_final: bool) -> std::io::Result<()> {
    let value = if is_final { publish_xattr::FINAL } else { publish_xattr::NOW };
    let none = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::setxattr(path, publish_xattr::NAME, value, none)?)
}

/// Where `path` is. Symbolic links on the way are followed, with the rights of the caller; one
/// at its end only outside of buffers (as the way into one), else it is the link itself.
pub fn locate(path: &Path) -> crate::Result<MountRef> {
    let table = mountinfo::read()?;
    let absolute = std::path::absolute(path)
        .map_err(|error| ControlError::io("look for the buffer of", Some(path), &error))?;
    // What follows looks into the mount.
    if let Some(store_dir) = covering(&absolute, &table)
        .filter(|entry| entry.point != absolute)
        .and_then(MountEntry::store_dir)
    {
        must_run("ask the server of", &store_dir)?;
    }
    let resolved = resolve(&absolute, &table)?;
    let not_in_a_buffer = || {
        ControlError::new("look for the buffer of", Some(path), "it is not in a mounted buffer")
            .errno(libc::ENOTTY)
            .hint("`forebay status` lists the buffers")
    };
    let entry = covering(&resolved, &table).ok_or_else(not_in_a_buffer)?;
    let store_dir = entry.store_dir().ok_or_else(not_in_a_buffer)?;
    if let (Some(owner), Some(mounter)) = (whose_else(entry), entry.owner_uid()) {
        let why = format!(
            "user {mounter} mounted it, its store {} belongs to user {owner}",
            store_dir.display()
        );
        return Err(ControlError::new("look for the buffer of", Some(path), &why)
            .errno(libc::EPERM)
            .hint("do not use that mount: Forebay did not make it"));
    }
    let below = resolved.strip_prefix(&entry.point).map_err(|_| not_in_a_buffer())?;
    let mut path_in_buffer = entry.root.clone();
    if !below.as_os_str().is_empty() {
        path_in_buffer.push(below);
    }
    Ok(MountRef {
        mount_point: entry.point.clone(),
        store_dir,
        path_in_buffer,
        owner_uid: entry.owner_uid(),
        device: entry.device,
    })
}

/// Where a source of a stage-out is that the user names: like [`locate`], but a symbolic link at
/// the end of the path is followed, as cp(1) does. The link alone would be no result: what it
/// leads to goes with the buffer.
///
/// # Errors
/// Those of [`locate`]; of a link also if it leads nowhere, or out of its buffer.
pub fn locate_source(path: &Path) -> crate::Result<MountRef> {
    let place = locate(path)?;
    if !std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) {
        return Ok(place);
    }
    let what = "follow the symbolic link";
    let target =
        std::fs::canonicalize(path).map_err(|error| ControlError::io(what, Some(path), &error))?;
    match locate(&target) {
        Ok(found) if found.store_dir == place.store_dir => Ok(found),
        _ => {
            let why = format!("it leads out of the buffer, to {}", target.display());
            Err(ControlError::new(what, Some(path), &why)
                .errno(libc::EXDEV)
                .hint("stage out a path in the buffer"))
        }
    }
}

/// The mount point of the buffer that `path` lies below, and its store, by the path's text alone: no link is followed, and
/// nothing in the mount is looked at.
pub fn mount_above(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let (table, absolute) = (mountinfo::read().ok()?, std::path::absolute(path).ok()?);
    let entry = covering(&absolute, &table)?;
    Some((entry.point.clone(), entry.store_dir()?))
}

/// The path without links and `..`, also where it leads to a mount point whose server is dead.
pub fn canonical(path: &Path) -> crate::Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|error| ControlError::io("look at", Some(path), &error))?;
    resolve(&absolute, &mountinfo::read()?)
}

/// The mount that `path` (canonical) lies in: the deepest, of several on one point the last.
fn covering<'a>(path: &Path, table: &'a [MountEntry]) -> Option<&'a MountEntry> {
    table
        .iter()
        .filter(|entry| path.starts_with(&entry.point))
        .max_by_key(|entry| entry.point.components().count())
}

/// Follows links and `..` without asking a mount of Forebay about its own mount point (a dead
/// one would fail).
fn resolve(absolute: &Path, table: &[MountEntry]) -> crate::Result<PathBuf> {
    let names = |path: &Path| -> Vec<OsString> {
        path.as_os_str()
            .as_bytes()
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
            .map(|name| OsStr::from_bytes(name).to_os_string())
            .collect()
    };
    let is_ours =
        |path: &Path| covering(path, table).is_some_and(|entry| entry.store_dir().is_some());
    let mut todo: VecDeque<OsString> = names(absolute).into();
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        let is_mount_point = table.iter().any(|entry| entry.point == next);
        let last_in_buffer = todo.is_empty() && is_ours(&here);
        if is_mount_point || last_in_buffer {
            here = next;
            continue;
        }
        match std::fs::read_link(&next) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    let error = std::io::Error::from_raw_os_error(libc::ELOOP);
                    return Err(ControlError::io("follow the links of", Some(absolute), &error));
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                for name in names(&target).into_iter().rev() {
                    todo.push_front(name);
                }
            }
            // Not a link, not there yet, or a dead mount.
            Err(_) => here = next,
        }
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(point: &str, kind: &str, source: &str, root: &str) -> MountEntry {
        MountEntry {
            id: 0,
            parent_id: 0,
            propagation: String::new(),
            device: 0,
            root: root.into(),
            point: point.into(),
            options: "rw".into(),
            kind: kind.into(),
            source: source.into(),
            super_options: "user_id=0".into(),
        }
    }

    #[test]
    fn links_lead_into_a_buffer_and_names_need_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir(base.join("mnt")).unwrap();
        std::os::unix::fs::symlink("mnt", base.join("to")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        let point = base.join("mnt");
        let table = [
            entry("/", "ext4", "/dev/vda", "/"),
            entry(point.to_str().unwrap(), "fuse.forebay", "forebay:/flash/s", "/"),
        ];
        let at = |path: &str| resolve(&base.join(path), &table).unwrap();
        assert_eq!(at("to"), point);
        assert_eq!(at("to/absent/../new"), point.join("new"));
        assert_eq!(at("mnt/../mnt/./x"), point.join("x"));
        assert!(resolve(&base.join("loop/x"), &table).is_err());
        let found = covering(&point.join("x"), &table).unwrap();
        assert_eq!(found.store_dir().unwrap(), PathBuf::from("/flash/s"));
        assert!(covering(&base, &table).unwrap().store_dir().is_none());
    }

    #[test]
    fn the_last_mount_on_a_point_covers_it() {
        let table = [
            entry("/m", "fuse.forebay", "forebay:/old", "/"),
            entry("/m", "fuse.forebay", "forebay:/new", "/"),
        ];
        let found = covering(Path::new("/m/x"), &table).unwrap();
        assert_eq!(found.store_dir().unwrap(), PathBuf::from("/new"));
    }

    #[test]
    fn a_mount_is_found_without_a_look_at_the_stores_of_others() {
        let table = [
            entry("/hangs", "fuse.forebay", "forebay:/nfs/hangs", "/"),
            entry("/m", "fuse.forebay", "forebay:/old", "/"),
            entry("/m", "fuse.forebay", "forebay:/new", "/"),
            entry("/m", "ext4", "/dev/vda", "/"),
            entry("/m/planted", "fuse.forebay", "forebay:/nfs/hangs", "/"),
        ];
        let looked = std::cell::RefCell::new(Vec::new());
        let look = |entry: &MountEntry| {
            looked.borrow_mut().extend(entry.store_dir());
            false
        };
        let found = ours(&table, |point| point == Path::new("/m"), look);
        let stores: Vec<_> = found.into_iter().map(|mount| mount.store_dir).collect();
        assert_eq!(stores, [PathBuf::from("/old"), PathBuf::from("/new")]);
        assert_eq!(looked.take(), stores);
    }

    #[test]
    fn a_path_outside_is_refused_with_what_to_do() {
        let message = locate(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(message.contains("not in a mounted buffer"), "{message}");
    }
}
