//! Where stores lie that processes use, on whatever flash. A mount that was unmounted and has not ended is in no table of
//! mounts, but its process has the lock of its store, which /proc shows. Called by commands that were not told the flash.
//!
//! Invariant: what is found here is a hint only. Whoever uses a store looks whose it is first.

use super::lock::LOCK_NAME;
use super::place::STORE_PREFIX;
use forebay_net::look::Looks;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// All locks of files on this machine, with the processes that have them (proc(5)).
const LOCKS: &str = "/proc/locks";
/// Descriptors of one process that are looked at: the lock of a store is among the first, its objects may be many.
const DESCRIPTORS_MAX: usize = 10_000;

/// The stores whose lock a process has that this user may look at.
pub fn in_use() -> BTreeSet<PathBuf> {
    // Without the table nothing is known, and nothing is found.
    let locks = fs::read_to_string(LOCKS).unwrap_or_default();
    let mut looks = Looks::default();
    // One that cannot be looked at begins a program: it uses no store.
    let stores = |process| looks.at(process, move || stores_of(process)).unwrap_or_default();
    holders(&locks).into_iter().flat_map(stores).collect()
}

/// Processes that hold an exclusive flock: `1: FLOCK  ADVISORY  WRITE 4711 00:2b:12 0 EOF`. One that waits has `->` after the
/// number.
fn holders(locks: &str) -> BTreeSet<u32> {
    let held = locks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, "WRITE", process, ..] => process.parse().ok(),
            _ => None,
        }
    });
    held.collect()
}

/// The stores whose lock a process has open.
fn stores_of(process: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let open = descriptors.take(DESCRIPTORS_MAX).filter_map(|fd| fs::read_link(fd.path()).ok());
    open.filter_map(|path| store_of(&path).map(Path::to_path_buf)).collect()
}

/// The store of which this is the lock, if it is one.
fn store_of(lock: &Path) -> Option<&Path> {
    let dir = lock.parent()?;
    let is_store = dir.file_name()?.as_bytes().starts_with(STORE_PREFIX.as_bytes());
    (is_store && lock.file_name() == Some(OsStr::new(LOCK_NAME))).then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::super::lock::StoreLock;
    use super::*;

    #[test]
    fn holders_are_those_who_have_a_lock_of_their_own() {
        let table = "1: FLOCK  ADVISORY  WRITE 11 00:2b:12 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 12 00:2b:12 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 13 00:2b:13 0 EOF\n3: FLOCK  ADVISORY  READ 14 00:2b:14 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 00:2b:15 0 EOF\n5: FLOCK  ADVISORY  WRITE 16 00:2b:16 0 EOF\n";
        assert_eq!(holders(table), BTreeSet::from([11, 16]));
    }

    #[test]
    fn a_store_that_is_in_use_is_found_wherever_it_lies() {
        let flash = tempfile::tempdir().unwrap();
        let flash = fs::canonicalize(flash.path()).unwrap();
        let (store, other) = (flash.join("forebay-1"), flash.join("other"));
        for dir in [&store, &other] {
            fs::create_dir(dir).unwrap();
        }
        let held = [&store, &other].map(|dir| StoreLock::acquire(dir).unwrap().unwrap());
        let found = in_use();
        assert!(found.contains(&store) && !found.contains(&other), "{found:?}");
        drop(held);
        assert!(!in_use().contains(&store));
    }
}
