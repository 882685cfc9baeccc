//! fsync of directories on the PFS, one for all drains that wait for the same one.
//!
//! Many small files of one directory drain at the same time, and each is clean only after an fsync of that
//! directory that began after its name was there. So a drain that comes while one is under way waits for
//! the next, which one of those who wait does for all.
//!
//! Invariant: a drain gets the result of an fsync that began after the drain asked for it. At most one for each
//! worker at a time. Called by `publish`.

use super::super::pfs::errno;
use forebay_proto::{Errno, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fs as rfs;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A directory: device and inode number, as long as somebody has it open.
type Dir = (u64, u64);

#[derive(Default)]
struct Turns {
    /// Those that were begun.
    begun: u64,
    /// The last one that ended, and how.
    ended: u64,
    failed: Option<Errno>,
    under_way: bool,
}

#[derive(Default)]
struct Group {
    turns: Mutex<Turns>,
    ended: Condvar,
}

/// Directories that are being synced.
#[derive(Default)]
pub(crate) struct DirSyncs(Mutex<HashMap<Dir, Arc<Group>>>);

impl DirSyncs {
    /// Syncs a directory: what was done in it before this call is on the medium when it returns.
    pub fn sync(&self, dir: &OwnedFd) -> Result<()> {
        let stat = rfs::fstat(dir).map_err(errno)?;
        self.sync_by((stat.st_dev, stat.st_ino), || match rfs::fsync(dir) {
            Err(e) => Err(errno(e)),
            Ok(()) => Ok(()),
        })
    }

    fn sync_by(&self, dir: Dir, fsync: impl Fn() -> Result<()>) -> Result<()> {
        let group = self.0.lock().entry(dir).or_default().clone();
        let done = group.sync(fsync);
        let mut all = self.0.lock();
        drop(group);
        // Nobody else has it: only the table.
        if all.get(&dir).is_some_and(|group| Arc::strong_count(group) == 1) {
            all.remove(&dir);
        }
        done
    }
}

impl Group {
    fn sync(&self, fsync: impl Fn() -> Result<()>) -> Result<()> {
        let mut turns = self.turns.lock();
        // One that is under way may have begun too early.
        let wanted = turns.begun + 1;
        loop {
            if turns.ended >= wanted {
                return turns.failed.map_or(Ok(()), Err);
            }
            if turns.under_way {
                self.ended.wait(&mut turns);
                continue;
            }
            turns.under_way = true;
            turns.begun += 1;
            let turn = turns.begun;
            drop(turns);
            let done = fsync();
            turns = self.turns.lock();
            turns.under_way = false;
            turns.ended = turn;
            turns.failed = done.err();
            self.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[test]
    fn who_asks_gets_an_fsync_that_began_later_and_shares_it() {
        let syncs = DirSyncs::default();
        let (begun, names) = (AtomicU64::new(0), AtomicU64::new(0));
        let covered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mine = names.fetch_add(1, Ordering::SeqCst) + 1;
                        let fsync = || {
                            begun.fetch_add(1, Ordering::SeqCst);
                            let seen = names.load(Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(1));
                            covered.fetch_max(seen, Ordering::SeqCst);
                            Ok(())
                        };
                        syncs.sync_by((1, 1), fsync).unwrap();
                        assert!(covered.load(Ordering::SeqCst) >= mine, "it was not covered");
                    }
                });
            }
        });
        assert!(begun.load(Ordering::SeqCst) < 80, "{begun:?} for 160 that asked");
        assert!(syncs.0.lock().is_empty());
    }

    #[test]
    fn all_who_waited_for_an_fsync_that_failed_are_told() {
        let syncs = DirSyncs::default();
        let told = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let fsync = || {
                        std::thread::sleep(Duration::from_millis(20));
                        Err(Errno::EIO)
                    };
                    let failed = syncs.sync_by((1, 2), fsync) == Err(Errno::EIO);
                    told.fetch_add(u64::from(failed), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(told.into_inner(), 6);
        assert_eq!(syncs.sync_by((1, 2), || Ok(())), Ok(()), "the next one is asked anew");
    }
}
