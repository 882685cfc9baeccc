//! Which mount a path is in, by its text: it begins with a mount point, of a mount below which no other file system is mounted. What is
//! written in another way (through a link, say) is the kernel's.
//!
//! A thread keeps the table of mounts. Each call looks whether the mount point still leads to that mount, so what was
//! unmounted, covered, or is reached by another root is noticed; a mount that is new is found within [`TABLE_AGE`].

use forebay_client::mountinfo::{self, MountEntry};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, makedev, statx};
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Oldest table by which a path is taken for one that is in no mount.
const TABLE_AGE: Duration = Duration::from_secs(1);

/// A mount.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) store: PathBuf,
    /// `st_dev` of its files.
    pub(crate) device: u64,
    /// Something is mounted below it, or below another mount of the same buffer: all is left to the kernel, which takes what is
    /// mounted on a name away with that name when names are recalled.
    has_holes: bool,
}

/// Where a path begins.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    Root,
    Given(Rc<OwnedFd>),
}

/// A path in a mount.
pub(crate) struct Found<'a> {
    pub(crate) mount: Rc<Mount>,
    pub(crate) start: Start,
    pub(crate) path: &'a [u8],
}

struct Table {
    mounts: Vec<Rc<Mount>>,
    read: Option<Instant>,
}

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new(Table { mounts: Vec::new(), read: None }) };
}

/// `st_dev` of a place, by what the kernel knows without asking: it would ask the mount's process.
pub(crate) fn device_of(dir: impl AsFd, path: &[u8], flags: AtFlags) -> Option<u64> {
    let flags = flags | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    let stat = statx(dir, path, flags, StatxFlags::empty()).ok()?;
    Some(makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

impl Mount {
    fn is_there(&self) -> bool {
        let point = self.point.as_os_str().as_bytes();
        device_of(CWD, point, AtFlags::empty()) == Some(self.device)
    }
}

/// Whether `path` is below `point`, and what is left of it then: empty for the point itself.
fn below<'a>(path: &'a [u8], point: &[u8]) -> Option<&'a [u8]> {
    if point == b"/" {
        return path.strip_prefix(b"/");
    }
    match path.strip_prefix(point)? {
        [] => Some(&[]),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

impl Table {
    fn refresh(&mut self) {
        let entries = mountinfo::read().unwrap_or_default();
        self.mounts = mounts(&entries);
        self.read = Some(Instant::now());
    }

    fn is_old(&self) -> bool {
        self.read.is_none_or(|read| read.elapsed() > TABLE_AGE)
    }

    /// The deepest mount that a path is below, and the rest of it.
    fn deepest<'a>(&self, path: &'a [u8]) -> Option<(Rc<Mount>, &'a [u8])> {
        let mut found: Option<(&Rc<Mount>, &[u8])> = None;
        for mount in &self.mounts {
            if let Some(rest) = below(path, mount.point.as_os_str().as_bytes())
                && found.is_none_or(|(_, before)| rest.len() <= before.len())
            {
                found = Some((mount, rest));
            }
        }
        let (mount, rest) = found?;
        Some((Rc::clone(mount), rest))
    }
}

/// The mounts of Forebay in the kernel's table.
fn mounts(entries: &[MountEntry]) -> Vec<Rc<Mount>> {
    let mut found = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let Some(store) = entry.store_dir() else { continue };
        // What is mounted there later covers it.
        if entries[at + 1..].iter().any(|later| later.point == entry.point) {
            continue;
        }
        let point = entry.point.as_os_str().as_bytes();
        let Some(device) = device_of(CWD, point, AtFlags::empty()) else { continue };
        let is_below = |other: &MountEntry| {
            other.point != entry.point && other.point.starts_with(&entry.point)
        };
        let has_holes = entries.iter().any(is_below);
        found.push(Mount { point: entry.point.clone(), store, device, has_holes });
    }
    let holes: Vec<u64> = found.iter().filter(|m| m.has_holes).map(|m| m.device).collect();
    let whole = |mut mount: Mount| {
        mount.has_holes = holes.contains(&mount.device);
        Rc::new(mount)
    };
    found.into_iter().map(whole).collect()
}

fn absolute<'a>(table: &Table, path: &'a [u8]) -> Option<Found<'a>> {
    let (mount, rest) = table.deepest(path)?;
    (!rest.is_empty() && !mount.has_holes).then_some(Found {
        mount,
        start: Start::Root,
        path: rest,
    })
}

fn relative<'a>(table: &Table, path: &'a [u8]) -> Option<Found<'a>> {
    if table.mounts.is_empty() {
        return None;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let here = rustix::fs::openat(CWD, c".", flags, Mode::empty()).ok()?;
    let device = device_of(&here, b"", AtFlags::EMPTY_PATH)?;
    let mount = table.mounts.iter().find(|mount| mount.device == device)?;
    (!mount.has_holes).then(|| Found {
        mount: Rc::clone(mount),
        start: Start::Given(Rc::new(here)),
        path,
    })
}

/// Where a path is; `None`: not in a mount, as far as its text tells.
pub(crate) fn locate(path: &[u8]) -> Option<Found<'_>> {
    locate_with(path, None)
}

/// The same, where the path before it in the same call is known: what that has found out is not looked for again.
pub(crate) fn locate_with<'a>(path: &'a [u8], before: Option<&Found<'_>>) -> Option<Found<'a>> {
    TABLE.with(|table| {
        // A signal handler that comes in between has the kernel.
        let mut table = table.try_borrow_mut().ok()?;
        let look = |table: &Table| match path.first()? {
            b'/' => absolute(table, path),
            _ => match before {
                Some(Found { mount, start: Start::Given(here), .. }) => {
                    let start = Start::Given(Rc::clone(here));
                    Some(Found { mount: Rc::clone(mount), start, path })
                }
                _ => relative(table, path),
            },
        };
        for _ in 0..2 {
            let found = look(&table);
            let is_certain = match (&found, before) {
                (Some(found), Some(before)) if Rc::ptr_eq(&before.mount, &found.mount) => true,
                (Some(found), _) => found.mount.is_there(),
                (None, _) => !table.is_old(),
            };
            if is_certain {
                return found;
            }
            table.refresh();
        }
        None
    })
}

/// All mounts of Forebay.
pub(crate) fn all() -> Vec<Rc<Mount>> {
    TABLE.with(|table| {
        let Ok(mut table) = table.try_borrow_mut() else { return Vec::new() };
        if table.is_old() {
            table.refresh();
        }
        table.mounts.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(points: &[(&str, bool)]) -> Table {
        let mount = |(point, has_holes): &(&str, bool)| {
            let (store, device, has_holes) = ("/flash/s".into(), 9, *has_holes);
            Rc::new(Mount { point: point.into(), store, device, has_holes })
        };
        Table { mounts: points.iter().map(mount).collect(), read: Some(Instant::now()) }
    }

    #[test]
    fn a_path_is_in_the_deepest_mount_if_nothing_is_mounted_below_that() {
        let table = table(&[("/a", true), ("/a/b", false)]);
        let at = |path: &'static str| {
            let found = absolute(&table, path.as_bytes())?;
            Some((found.mount.point.clone(), found.path))
        };
        assert_eq!(at("/a/b/x/y"), Some(("/a/b".into(), &b"x/y"[..])));
        assert_eq!(at("/a/x/y"), None);
        assert_eq!(at("/a/b"), None);
        assert_eq!(at("/a/bc"), None);
        assert_eq!(at("/b"), None);
    }
}
