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

/// Which symbolic links on the way are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// All. Those in a mount of Forebay are looked at through it, which waits for its server.
    All,
    /// Those that lie in no mount of Forebay: below its mount point a path is taken as it is written, and nothing is looked at.
    OutsideMounts,
}

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
    let written = resolve(path, &table, Follow::OutsideMounts)?;
    // What follows looks into the mount.
    if let Some(store_dir) = covering(&written, &table)
        .filter(|entry| entry.point != written)
        .and_then(MountEntry::store_dir)
    {
        must_run("ask the server of", &store_dir)?;
    }
    let resolved = resolve(path, &table, Follow::All)?;
    let not_in_a_buffer = || {
        ControlError::new("look for the buffer of", Some(path), "it is not in a mounted buffer")
            .errno(libc::ENOTTY)
            .hint("`forebay status` lists the buffers")
    };
    let entry = covering(&resolved, &table).ok_or_else(not_in_a_buffer)?;
    let found = place_in(entry, &resolved).ok_or_else(not_in_a_buffer)?;
    if let (Some(owner), Some(mounter)) = (whose_else(entry), entry.owner_uid()) {
        let why = format!(
            "user {mounter} mounted it, its store {} belongs to user {owner}",
            found.store_dir.display()
        );
        return Err(ControlError::new("look for the buffer of", Some(path), &why)
            .errno(libc::EPERM)
            .hint("do not use that mount: Forebay did not make it"));
    }
    Ok(found)
}

/// The place of a path below this mount; `None` if that is no mount of Forebay.
fn place_in(entry: &MountEntry, path: &Path) -> Option<MountRef> {
    let below = path.strip_prefix(&entry.point).ok()?;
    let mut path_in_buffer = entry.root.clone();
    if !below.as_os_str().is_empty() {
        path_in_buffer.push(below);
    }
    Some(MountRef {
        mount_point: entry.point.clone(),
        store_dir: entry.store_dir()?,
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

/// Where `path` is in a mounted buffer, by the table of mounts: the links on the way to the mount are followed, and nothing is looked
/// at in it, so that this does not wait for its server. A link in the mount stays, and `..` takes a name away.
pub fn mount_above(path: &Path) -> Option<MountRef> {
    above(path, &mountinfo::read().ok()?)
}

fn above(path: &Path, table: &[MountEntry]) -> Option<MountRef> {
    let written = resolve(path, table, Follow::OutsideMounts).ok()?;
    place_in(covering(&written, table)?, &written)
}

/// The path without links and `..`, also where it leads to a mount point whose server is dead.
pub fn canonical(path: &Path) -> crate::Result<PathBuf> {
    resolve(path, &mountinfo::read()?, Follow::All)
}

/// The mount that `path` (canonical) lies in: the deepest, of several on one point the last.
fn covering<'a>(path: &Path, table: &'a [MountEntry]) -> Option<&'a MountEntry> {
    table
        .iter()
        .filter(|entry| path.starts_with(&entry.point))
        .max_by_key(|entry| entry.point.components().count())
}

/// Whether `path` lies in a mount of Forebay, or in another one that lies in such a one: to look at it asks that.
fn is_below_ours(path: &Path, table: &[MountEntry]) -> bool {
    // Of several on one point the last is seen.
    let at = |point: &Path| table.iter().rev().find(|entry| entry.point == point);
    path.ancestors().any(|above| at(above).is_some_and(|entry| entry.store_dir().is_some()))
}

/// The names of a path; `.` is none.
fn names(path: &Path) -> Vec<OsString> {
    path.as_os_str()
        .as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(|name| OsStr::from_bytes(name).to_os_string())
        .collect()
}

/// Where a path begins: at the root, or in the current directory, which the kernel tells without links.
fn start_of(path: &Path) -> crate::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(PathBuf::from("/"));
    }
    std::env::current_dir()
        .map_err(|error| ControlError::io("find the current directory for", Some(path), &error))
}

/// Follows links and `..` without asking a mount of Forebay about its own mount point (a dead
/// one would fail).
fn resolve(path: &Path, table: &[MountEntry], follow: Follow) -> crate::Result<PathBuf> {
    let is_ours =
        |path: &Path| covering(path, table).is_some_and(|entry| entry.store_dir().is_some());
    // What is mounted, and what lies above it, is no link.
    let leads_to_mount = |path: &Path| table.iter().any(|entry| entry.point.starts_with(path));
    let mut todo: VecDeque<OsString> = names(path).into();
    let mut here = start_of(path)?;
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        let is_mount_point = table.iter().any(|entry| entry.point == next);
        let stays = match follow {
            Follow::OutsideMounts => is_below_ours(&here, table),
            Follow::All => is_ours(&here) && (todo.is_empty() || leads_to_mount(&next)),
        };
        if is_mount_point || stays {
            here = next;
            continue;
        }
        match std::fs::read_link(&next) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    let error = std::io::Error::from_raw_os_error(libc::ELOOP);
                    return Err(ControlError::io("follow the links of", Some(path), &error));
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
        let at = |path: &str| resolve(&base.join(path), &table, Follow::All).unwrap();
        assert_eq!(at("to"), point);
        assert_eq!(at("to/absent/../new"), point.join("new"));
        assert_eq!(at("mnt/../mnt/./x"), point.join("x"));
        for follow in [Follow::All, Follow::OutsideMounts] {
            assert!(resolve(&base.join("loop/x"), &table, follow).is_err());
        }
        let found = covering(&point.join("x"), &table).unwrap();
        assert_eq!(found.store_dir().unwrap(), PathBuf::from("/flash/s"));
        assert!(covering(&base, &table).unwrap().store_dir().is_none());
    }

    /// A directory that is no mount stands for one: what was looked at in it would be followed.
    #[test]
    fn a_mount_is_found_by_links_that_lead_to_it_and_nothing_in_it_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(dir.path()).unwrap();
        let point = base.join("mnt");
        std::fs::create_dir_all(base.join("other")).unwrap();
        std::fs::create_dir_all(point.join("inner")).unwrap();
        for (target, link) in
            [("mnt", "to"), ("to/in", "deep"), ("../other", "mnt/in"), ("../other", "mnt/inner/in")]
        {
            std::os::unix::fs::symlink(target, base.join(link)).unwrap();
        }
        let inner = point.join("inner");
        let table = [
            entry("/", "ext4", "/dev/vda", "/"),
            entry(point.to_str().unwrap(), "fuse.forebay", "forebay:/flash/s", "/part"),
            entry(inner.to_str().unwrap(), "tmpfs", "tmpfs", "/"),
        ];
        let at = |path: &str| above(&base.join(path), &table);
        let inside = |path: &str| at(path).unwrap().path_in_buffer;
        for path in ["mnt", "to", "mnt/./in/..", "other/../to"] {
            assert_eq!(inside(path), PathBuf::from("/part"), "{path}");
        }
        for path in ["mnt/in/x", "deep/x", "to/absent/../in/x"] {
            assert_eq!(inside(path), PathBuf::from("/part/in/x"), "{path}");
        }
        assert_eq!(at("to").unwrap().mount_point, point);
        for path in ["other/x", "mnt/../other", "to/../../none", "mnt/inner/x"] {
            assert_eq!(at(path), None, "{path}");
        }
        let written = |path: &str, how| resolve(&base.join(path), &table, how).unwrap();
        assert_eq!(written("mnt/inner/in/x", Follow::OutsideMounts), inner.join("in/x"));
        assert_eq!(written("mnt/in/x", Follow::All), base.join("other/x"));
    }

    #[test]
    fn what_lies_above_a_mount_point_in_a_mount_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(dir.path()).unwrap();
        let point = base.join("mnt");
        std::fs::create_dir(&point).unwrap();
        // No directory is there: a look would follow the link.
        std::os::unix::fs::symlink("../other", point.join("dir")).unwrap();
        let inner = point.join("dir/inner");
        let table = [
            entry("/", "ext4", "/dev/vda", "/"),
            entry(point.to_str().unwrap(), "fuse.forebay", "forebay:/flash/s", "/"),
            entry(inner.to_str().unwrap(), "fuse.forebay", "forebay:/flash/t", "/"),
        ];
        assert_eq!(resolve(&inner, &table, Follow::All).unwrap(), inner);
    }

    #[test]
    fn the_current_directory_has_no_links() {
        let here = std::env::current_dir().unwrap();
        let table = [entry("/", "ext4", "/dev/vda", "/")];
        for follow in [Follow::All, Follow::OutsideMounts] {
            assert_eq!(resolve(Path::new("."), &table, follow).unwrap(), here);
            assert_eq!(resolve(Path::new("no/such/.."), &table, follow).unwrap(), here.join("no"));
        }
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
