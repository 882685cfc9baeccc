//! The clock that stamps what the namespace keeps itself: one order with the stamps of the kernel's
//! file systems, where the objects are.
//!
//! Since Linux 6.13 a kernel stamps files by its coarse clock, and by the fine one where somebody has
//! looked at the file since its last stamp (multigrain timestamps). All its later stamps, of all
//! files on all file systems, are then at least that fine stamp. No clock that a program can read
//! shows this floor: the coarse clock is behind it, and a stamp by the fine clock would be ahead of
//! what the kernel stamps next. So stamps are taken from the kernel itself: a file in memory is touched
//! and looked at. What comes is never before a stamp that anybody took earlier, and the floor is never
//! before it.
//!
//! Kernels before 6.13 stamp by the coarse clock alone, and so does this.
//!
//! Invariant: a change that follows a look gets a later time than the look showed. What the kernel
//! stamps has that by itself. For a time that we stamped, [`shown`] moves the floor past it.

use forebay_proto::Timestamp;
use rustix::fs::{MemfdFlags, Timespec, Timestamps, UTIME_NOW, fstat, futimens, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Most looks for one stamp. The first may give the coarse clock, the second is fine; more are needed
/// only where another thread moves the floor at the same moment.
const LOOKS_MAX: u32 = 8;
/// Most looks for whether the kernel gives fine stamps.
const PROBES_MAX: u32 = 8;

/// What is touched; `None` on a kernel that has no fine stamps.
static TOUCHED: LazyLock<Option<OwnedFd>> = LazyLock::new(probe);
/// The last stamp, in nanoseconds.
static LAST_NS: AtomicI64 = AtomicI64::new(0);

/// A stamp for a change that is made now.
pub fn stamp() -> Timestamp {
    let Some(touched) = &*TOUCHED else { return Timestamp::now() };
    let from = read(libc::CLOCK_REALTIME);
    let mut stamp = None;
    for _ in 0..LOOKS_MAX {
        stamp = touch(touched);
        // Less: it is of the coarse clock, or the clock was just set back.
        if stamp.is_none_or(|stamp| stamp >= from) {
            break;
        }
    }
    let stamp = stamp.unwrap_or_else(Timestamp::now);
    LAST_NS.store(nanoseconds(stamp), Ordering::Relaxed);
    stamp
}

/// A time that [`stamp`] gave is about to be shown, for a file that the kernel may stamp next.
pub fn shown(time: Timestamp) {
    // With an older one the floor is past it already.
    if nanoseconds(time) >= LAST_NS.load(Ordering::Relaxed) {
        stamp();
    }
}

fn nanoseconds(time: Timestamp) -> i64 {
    time.sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nsec))
}

fn touch(file: &OwnedFd) -> Option<Timestamp> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(file, &Timestamps { last_access: now, last_modification: now }).ok()?;
    let stat = fstat(file).ok()?;
    Some(Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 })
}

/// The file to be touched, if this kernel gives fine stamps: one that is past the coarse clock of a moment
/// later.
fn probe() -> Option<OwnedFd> {
    let file = memfd_create("forebay-clock", MemfdFlags::CLOEXEC).ok()?;
    for _ in 0..PROBES_MAX {
        let stamp = touch(&file)?;
        if stamp > read(libc::CLOCK_REALTIME_COARSE) {
            return Some(file);
        }
    }
    None
}

fn read(clock: libc::clockid_t) -> Timestamp {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid out-parameter; both clocks exist on every Linux we run on.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    Timestamp { sec: ts.tv_sec, nsec: ts.tv_nsec as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn mtime(path: &Path) -> Timestamp {
        let meta = fs::metadata(path).unwrap();
        Timestamp { sec: meta.mtime(), nsec: meta.mtime_nsec() as u32 }
    }

    #[test]
    fn our_stamps_and_those_of_files_are_in_one_order() {
        for dir in ["/dev/shm", "/var/tmp"] {
            let dir = tempfile::tempdir_in(dir).unwrap();
            let path = dir.path().join("f");
            let mut last = stamp();
            for round in 0..500 {
                let ours = stamp();
                assert!(ours >= last, "round {round}: {ours:?} after a file's {last:?}");
                fs::write(&path, b"x").unwrap();
                last = mtime(&path);
                assert!(last >= ours, "round {round}: a file's {last:?} after {ours:?}");
            }
        }
    }

    #[test]
    fn what_the_kernel_stamps_after_a_look_is_later_than_what_was_shown() {
        if TOUCHED.is_none() {
            // Before Linux 6.13 two changes within a tick have one time, on any file system.
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("f");
        for round in 0..500 {
            let ours = stamp();
            shown(ours);
            fs::write(&path, b"x").unwrap();
            let last = mtime(&path);
            assert!(last > ours, "round {round}: a file's {last:?} after {ours:?} was shown");
        }
    }
}
