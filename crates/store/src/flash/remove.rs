//! Removing a store: unmount what it has mounted, then delete its directory. Never follows a
//! link and never crosses into another file system, so it cannot delete anything else.

use super::error::{Flash, Result, fail};
use super::record::{RECORD_NAME, RECORD_TMP_NAME, StoreRecord};
use super::{LOG_NAME, image, lock::LOCK_NAME, tmpfs};
use forebay_failpoint::step;
use forebay_proto::control::{SOCKET_NAME, StoreKind};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, ftruncate, openat, unlinkat};
use std::ffi::CStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Deepest directory that a store has; deeper ones are not ours.
const MAX_DEPTH: u32 = 64;
/// Most threads that delete.
const MAX_THREADS: usize = 4;
/// Longest time in which data is emptied that is not to be written any more, and from how many blocks of 512 bytes on a file is worth it.
const FORGET_LONGEST: Duration = Duration::from_millis(200);
const FORGET_LEAST_BLOCKS: u64 = 128;

/// Removes everything of a store, its lock last but one, its directory last.
pub fn remove_store(dir: &Path, record: &StoreRecord) -> Result<()> {
    match record.kind {
        StoreKind::Tmpfs => tmpfs::unmake(dir)?,
        StoreKind::LoopXfs => image::detach(dir)?,
        StoreKind::Directory => (),
    }
    step("a store is unmounted");
    let what = "remove the store";
    let handle = openat(CWD, dir, DIR_FLAGS, Mode::empty()).at(what, dir)?;
    let device = fstat(&handle).at(what, dir)?.st_dev;
    // The record goes after the contents, so that a kill in between leaves a store that says
    // `destroying`, and the lock after the record.
    let keep = |name: &CStr| {
        [RECORD_NAME, LOCK_NAME].iter().any(|kept| name.to_bytes() == kept.as_bytes())
    };
    if record.kind == StoreKind::Directory {
        remove_fans(&dir.join("data"), device).at(what, dir)?;
    }
    empty_directory(handle.as_fd(), device, 0, &keep).at(what, dir)?;
    for name in [RECORD_NAME, LOCK_NAME] {
        match unlinkat(&handle, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => (),
            Err(error) => return Err(error).at(what, &dir.join(name)),
        }
        step("a store has lost its contents and its record");
    }
    fs::remove_dir(dir).at(what, dir)
}

/// Removes a directory whose record was never written. Anything but the files that exist
/// before the record does means that it is not ours: refused.
pub fn remove_unborn(dir: &Path) -> Result<()> {
    let what = "use the store";
    for entry in fs::read_dir(dir).at(what, dir)? {
        let entry = entry.at(what, dir)?;
        let name = entry.file_name();
        if ![LOCK_NAME, RECORD_TMP_NAME, LOG_NAME, SOCKET_NAME].iter().any(|known| name == *known) {
            return Err(fail(what, dir, "it has no store.json but other files in it").hint(
                "if nothing in it is needed, unmount what is mounted below it and remove it",
            ));
        }
        fs::remove_file(entry.path()).at(what, &entry.path())?;
    }
    fs::remove_dir(dir).at(what, dir)
}

/// Removes what is left of a store whose record somebody removed: what is mounted for it, and empty directories. Anything
/// else is refused.
pub fn remove_remains(dir: &Path) -> Result<()> {
    tmpfs::unmake(dir)?;
    image::detach(dir)?;
    for name in ["data", "meta", "plans", image::MOUNT_NAME] {
        // What is not empty is told next.
        let _left = fs::remove_dir(dir.join(name));
    }
    remove_unborn(dir)
}

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Empties the larger files of data that is to be deleted, for what the kernel has not written yet: with an image it would write all
/// of that to flash before it lets go of it. Ends after [`FORGET_LONGEST`]; what is left then is written. Nobody may have a file of it
/// open or mapped.
pub fn forget_data(data: &Path) {
    let until = Instant::now() + FORGET_LONGEST;
    let forget = || {
        let handle = openat(CWD, data, DIR_FLAGS, Mode::empty())?;
        let device = fstat(&handle)?.st_dev;
        forget_below(handle.as_fd(), device, 0, until)
    };
    if let Err(error) = forget() {
        tracing::debug!(%error, "some data is written before it is deleted");
    }
}

fn forget_below(
    handle: BorrowedFd<'_>,
    device: u64,
    depth: u32,
    until: Instant,
) -> std::result::Result<(), rustix::io::Errno> {
    if depth > MAX_DEPTH {
        return Err(rustix::io::Errno::LOOP);
    }
    for entry in Dir::read_from(handle)? {
        let entry = entry?;
        let name = entry.file_name();
        if Instant::now() >= until {
            return Ok(());
        }
        let stat = rustix::fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if stat.st_dev != device || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let child = openat(handle, name, DIR_FLAGS, Mode::empty())?;
                forget_below(child.as_fd(), device, depth + 1, until)?;
            }
            FileType::RegularFile if stat.st_blocks as u64 >= FORGET_LEAST_BLOCKS => {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(handle, name, flags, Mode::empty())?;
                ftruncate(&file, 0)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Deletes everything in an open directory but what `keep` names.
fn empty_directory(
    handle: BorrowedFd<'_>,
    device: u64,
    depth: u32,
    keep: &dyn Fn(&CStr) -> bool,
) -> std::result::Result<(), rustix::io::Errno> {
    if depth > MAX_DEPTH {
        return Err(rustix::io::Errno::LOOP);
    }
    for entry in Dir::read_from(handle)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || keep(name) {
            continue;
        }
        let directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => {
                let stat = rustix::fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            }
            _ => false,
        };
        if !directory {
            unlinkat(handle, name, AtFlags::empty())?;
            continue;
        }
        remove_directory(handle, name, device, depth)?;
    }
    Ok(())
}

fn remove_directory(
    parent: BorrowedFd<'_>,
    name: &CStr,
    device: u64,
    depth: u32,
) -> std::result::Result<(), rustix::io::Errno> {
    let child = openat(parent, name, DIR_FLAGS, Mode::empty())?;
    if fstat(&child)?.st_dev != device {
        return Err(rustix::io::Errno::XDEV);
    }
    empty_directory(child.as_fd(), device, depth + 1, &|_| false)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Deletes the fan-out directories of the objects, several at a time.
fn remove_fans(data: &Path, device: u64) -> std::result::Result<(), rustix::io::Errno> {
    let handle = match openat(CWD, data, DIR_FLAGS, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        other => other?,
    };
    if fstat(&handle)?.st_dev != device {
        return Err(rustix::io::Errno::XDEV);
    }
    let mut fans = Vec::new();
    for entry in Dir::read_from(&handle)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory
            && !matches!(entry.file_name().to_bytes(), b"." | b"..")
        {
            fans.push(entry.file_name().to_owned());
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = fans.get(next.fetch_add(1, Ordering::Relaxed)) {
            remove_directory(handle.as_fd(), name, device, 1)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // A thread that panicked has left its part: what remains shows when the rest is deleted.
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_deleted_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), b"x").unwrap();
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("store");
        fs::create_dir_all(dir.join("data/00/01")).unwrap();
        fs::write(dir.join("data/00/01/object"), b"y").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.join("data/link")).unwrap();
        let handle = openat(CWD, &dir, DIR_FLAGS, Mode::empty()).unwrap();
        let device = fstat(&handle).unwrap().st_dev;
        empty_directory(handle.as_fd(), device, 0, &|_| false).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn data_that_is_forgotten_is_that_of_larger_files_and_of_no_other_place() {
        let base = tempfile::tempdir().unwrap();
        let (data, precious) = (base.path().join("data"), base.path().join("precious"));
        fs::create_dir_all(data.join("00/01")).unwrap();
        let large = vec![7u8; 1 << 20];
        for path in [&precious, &data.join("00/01/object"), &data.join("whole")] {
            fs::write(path, &large).unwrap();
        }
        fs::write(data.join("00/small"), b"y").unwrap();
        std::os::unix::fs::symlink(&precious, data.join("00/link")).unwrap();
        std::os::unix::fs::symlink(base.path(), data.join("up")).unwrap();
        forget_data(&data);
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        assert_eq!((length(&data.join("00/01/object")), length(&data.join("whole"))), (0, 0));
        assert_eq!((length(&precious), length(&data.join("00/small"))), (1 << 20, 1));
        // One that is not there is nothing to forget.
        forget_data(&base.path().join("none"));
    }

    #[test]
    fn of_a_store_without_its_record_only_what_is_empty_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("forebay-1");
        fs::create_dir_all(dir.join("data")).unwrap();
        fs::create_dir_all(dir.join("meta/precious")).unwrap();
        assert!(remove_remains(&dir).is_err());
        assert!(dir.join("meta/precious").exists());
        fs::remove_dir(dir.join("meta/precious")).unwrap();
        remove_remains(&dir).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn an_unborn_store_is_removed_and_a_foreign_directory_is_not() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("forebay-1");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(LOCK_NAME), b"").unwrap();
        remove_unborn(&dir).unwrap();
        assert!(!dir.exists());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("thesis.tex"), b"x").unwrap();
        assert!(remove_unborn(&dir).is_err());
        assert!(dir.join("thesis.tex").exists());
    }
}
