//! What stands on a mount, by the kernel's tables of mounts: other mounts on directories of it, and overlays with a layer in it.
//! The session asks before it drops the kernel's names ([`forebay_fuse::AsksIfStoodOn`]).
//!
//! The tables are those of all mount namespaces whose processes this one sees in /proc. Of this process's namespace the kernel
//! tells each change. Others are looked through at most once in [`LOOK_AGAIN`]: what was mounted there since is not seen in this
//! time.
//!
//! Invariant: an overlay of which the table does not show where a layer is counts, if it may be in the mount.

use forebay_client::mountinfo::{self, MountEntry};
use forebay_fuse::{AsksIfStoodOn, FILE_SYSTEM_TYPE};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The table of this process's namespace.
const OWN_TABLE: &str = "/proc/self/mountinfo";
/// How long what other namespaces had is believed: to look takes a millisecond or two.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Options of an overlay that name layers, one or several between colons.
const LAYERS: [&str; 5] = ["lowerdir=", "lowerdir+=", "datadir+=", "upperdir=", "workdir="];

/// Of the mount on one point.
pub struct Dependents {
    point: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Device of the mount's files; `None` until the table has it.
    device: Option<u64>,
    /// Where this process's namespace has it.
    points: Vec<PathBuf>,
    /// Its changes are polled for.
    table: Option<File>,
    in_own: bool,
    in_others: bool,
    looked: Option<Instant>,
}

impl Dependents {
    /// Of the mount that is going to be on `point`.
    pub fn of(point: &Path) -> Dependents {
        Dependents { point: point.to_path_buf(), seen: Mutex::default() }
    }

    /// The question, for the session.
    pub fn asks(self) -> AsksIfStoodOn {
        AsksIfStoodOn(Arc::new(move || self.are_there()))
    }

    fn are_there(&self) -> bool {
        let mut seen = self.seen.lock();
        if seen.has_changed() {
            match mountinfo::read() {
                Ok(table) => {
                    let device = seen.device.or_else(|| device_on(&self.point, &table));
                    seen.device = device;
                    let ours = table.iter().filter(|entry| Some(entry.device) == device);
                    seen.points = ours.map(|entry| entry.point.clone()).collect();
                    seen.in_own =
                        device.is_some_and(|device| stand_on(device, &seen.points, &table));
                }
                Err(error) => tracing::warn!(%error, "it is not seen what stands on this mount"),
            }
        }
        let Some(device) = seen.device else { return false };
        if seen.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN) {
            let mut tables =
                mountinfo::other_namespaces().into_iter().filter_map(mountinfo::read_of);
            seen.in_others = tables.any(|table| stand_on(device, &seen.points, &table));
            seen.looked = Some(Instant::now());
        }
        seen.in_own || seen.in_others
    }
}

impl Seen {
    /// Whether the table of this namespace may be another one than when this was asked last.
    fn has_changed(&mut self) -> bool {
        let Some(table) = &self.table else {
            self.table = File::open(OWN_TABLE).ok();
            return true;
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut [PollFd::new(table, PollFlags::PRI)], Some(&at_once));
        // Until it is there, it is looked for.
        self.device.is_none() || polled != Ok(0)
    }
}

/// The device of the mount that is seen on `point`, if that is one of ours.
fn device_on(point: &Path, table: &[MountEntry]) -> Option<u64> {
    let last = table.iter().rev().find(|entry| entry.point == point)?;
    (last.kind == FILE_SYSTEM_TYPE.as_bytes()).then_some(last.device)
}

/// Whether something in a table stands on a file system, which this process sees on these points too.
fn stand_on(device: u64, points: &[PathBuf], table: &[MountEntry]) -> bool {
    let ours: Vec<&MountEntry> = table.iter().filter(|entry| entry.device == device).collect();
    let lies_on = |entry: &MountEntry| ours.iter().any(|our| our.id == entry.parent_id);
    let is_in = |layer: &str| match Path::new(layer) {
        // It was named by where its maker was.
        path if !path.is_absolute() => !ours.is_empty(),
        // Who has changed its root sees the path as it was before.
        path => {
            let there = ours.iter().map(|our| &our.point);
            there.chain(points).any(|point| path.starts_with(point))
        }
    };
    table.iter().any(|entry| lies_on(entry) || has_layer(entry, is_in))
}

/// Whether an overlay has a layer of which this is true.
fn has_layer(entry: &MountEntry, is_in: impl Fn(&str) -> bool) -> bool {
    entry.kind == b"overlay" && {
        let options = entry.super_options.split(',');
        let layers =
            options.filter_map(|option| LAYERS.iter().find_map(|name| option.strip_prefix(name)));
        layers.flat_map(|paths| paths.split(':')).any(|layer| !layer.is_empty() && is_in(layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(
        id: u64,
        parent_id: u64,
        device: u64,
        point: &str,
        kind: &str,
        options: &str,
    ) -> MountEntry {
        MountEntry {
            id,
            parent_id,
            device,
            root: "/".into(),
            point: point.into(),
            options: "rw".into(),
            propagation: String::new(),
            kind: kind.into(),
            source: Vec::new(),
            super_options: options.into(),
        }
    }

    #[test]
    fn what_lies_on_a_mount_and_overlays_with_layers_in_it_stand_on_it() {
        let ours = || entry(30, 20, 7, "/buf", FILE_SYSTEM_TYPE, "rw");
        let root = || entry(20, 1, 1, "/", "ext4", "rw");
        let overlay = |options: &str| entry(31, 20, 9, "/merged", "overlay", options);
        assert!(!stand_on(7, &[], &[root(), ours()]));
        assert!(stand_on(7, &[], &[root(), ours(), entry(31, 30, 8, "/buf/d", "tmpfs", "rw")]));
        assert!(!stand_on(7, &[], &[root(), ours(), entry(31, 20, 8, "/d", "tmpfs", "rw")]));
        for (options, stands) in [
            ("rw,lowerdir=/usr:/buf/lower,upperdir=/u,workdir=/w", true),
            ("rw,lowerdir=/usr,upperdir=/buf/up,workdir=/buf/w", true),
            ("rw,lowerdir+=/buf/a,lowerdir+=/b", true),
            ("rw,lowerdir=/usr:/buffer,upperdir=/u,workdir=/w", false),
            ("rw,lowerdir=l/ABC:l/DEF,upperdir=diff,workdir=work", true),
        ] {
            assert_eq!(stand_on(7, &[], &[root(), ours(), overlay(options)]), stands, "{options}");
        }
        // Where the mount is not seen, only paths tell.
        let elsewhere = |options| stand_on(7, &["/buf".into()], &[root(), overlay(options)]);
        assert!(!elsewhere("lowerdir=l/ABC") && elsewhere("lowerdir=/usr:/buf/lower"));
        assert_eq!(device_on(Path::new("/buf"), &[root(), ours()]), Some(7));
        assert_eq!(device_on(Path::new("/"), &[root(), ours()]), None);
    }
}
