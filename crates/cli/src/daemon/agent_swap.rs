//! Swap space of jobs: a file for each job in a directory on the node's own flash, which the kernel swaps to while the
//! job runs. Called by the agent, which holds the job's turn meanwhile.
//!
//! Invariants: a file is there before the kernel swaps to it, and goes after; the kernel refuses to remove one that it
//! swaps to, so what is removed is in nobody's use. Whatever is killed, [`Swap::remove`] of the job or the agent's next
//! start ends what is left: the names of the files say whose they are. Only root reads them: they hold memory of programs.

use forebay_proto::control::ControlError;
use forebay_proto::net::node::SessionName;
use parking_lot::Mutex;
use rustix::fs::{IFlags, Mode, OFlags};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ending of a job's file.
const ENDING: &str = ".swap";
/// Smallest file: `swapon` wants ten pages.
const MIN_BYTES: u64 = 1 << 20;
/// The kernel takes space of a higher priority first: flash before what the node has by itself (-2 and lower, or what
/// /etc/fstab says). swap.h has the flag.
const PRIORITY: libc::c_int = 100;
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;

/// How long the end of swap space waits for memory: what is swapped out may belong to others, whose cgroups have no room
/// for it at the moment.
const MEMORY_WAIT: Duration = Duration::from_secs(8);
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// Where swap space of jobs may lie on this node.
#[derive(Clone, Debug)]
pub struct SwapPlace {
    /// Directory on the node's flash.
    pub dir: PathBuf,
    /// Most bytes of all jobs; none: what the file system has.
    pub capacity_bytes: Option<u64>,
}

/// Nobody but this user may put something in the place of what it holds.
pub(super) fn own_directory(path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    let me = rustix::process::geteuid().as_raw();
    match meta.is_dir() && meta.uid() == me && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "it is not a directory that only the agent's user may write to",
        )),
    }
}

/// The swap space of a node's jobs.
pub struct Swap {
    place: Option<SwapPlace>,
    /// Held while room is looked for and taken.
    room: Mutex<()>,
}

impl Swap {
    /// In this place, whose directory is made.
    ///
    /// # Errors
    /// If the directory cannot be used, or others may write to it.
    pub fn new(place: Option<SwapPlace>) -> Result<Swap, ControlError> {
        if let Some(SwapPlace { dir, .. }) = &place {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .and_then(|()| own_directory(dir))
                .map_err(|error| {
                    ControlError::io("use the directory of swap", Some(dir), &error)
                })?;
        }
        Ok(Swap { place, room: Mutex::new(()) })
    }

    /// Gives a job so much swap space; what it had before goes.
    ///
    /// # Errors
    /// If there is no room for it, or the file system cannot hold swap. Nothing is left then.
    pub fn make(&self, session: &SessionName, bytes: u64) -> Result<(), ControlError> {
        let Some(place) = &self.place else {
            let error =
                ControlError::new("make swap space", None, "this agent has no place for it");
            let hint =
                "agent.swap_dir in the site's configuration, or --swap-dir of `forebay agent`";
            return Err(error.errno(libc::EOPNOTSUPP).hint(hint));
        };
        self.remove(session)?;
        let page = rustix::param::page_size() as u64;
        let bytes = bytes.max(MIN_BYTES).next_multiple_of(page);
        let path = place.file(session);
        let made = self.allocate(place, &path, bytes).and_then(|()| {
            swap_on(&path).map_err(|error| {
                let failed = ControlError::io("swap to", Some(&path), &error);
                match error.raw_os_error() {
                    Some(libc::EINVAL) => failed.hint(
                        "the file system there holds no swap files: agent.swap_dir must lie on ext4, XFS or btrfs",
                    ),
                    _ => failed,
                }
            })
        });
        if made.is_err() {
            // The reason of the failure is what is told.
            let _ = self.remove(session);
        }
        made
    }

    fn allocate(&self, place: &SwapPlace, path: &Path, bytes: u64) -> Result<(), ControlError> {
        let _room = self.room.lock();
        if let Some(most) = place.capacity_bytes {
            let taken = place.taken_bytes()?;
            if taken.saturating_add(bytes) > most {
                let why = format!("{bytes} bytes more than {taken} would be more than {most}");
                return Err(
                    ControlError::new("make swap space", Some(path), &why).errno(libc::ENOSPC)
                );
            }
        }
        write_file(path, bytes)
            .map_err(|error| ControlError::io("make swap space", Some(path), &error))
    }

    /// Ends a job's swap space, and removes its file; of none: done. What is still swapped out comes back into memory,
    /// which may take a while.
    ///
    /// # Errors
    /// If the kernel has no memory for what is swapped out, or the file cannot be removed.
    pub fn remove(&self, session: &SessionName) -> Result<(), ControlError> {
        let Some(place) = &self.place else { return Ok(()) };
        end(&place.file(session))
    }

    /// True if a job has a file.
    pub fn is_there(&self, session: &SessionName) -> bool {
        self.place.as_ref().is_some_and(|place| place.file(session).exists())
    }

    /// The jobs that have a file.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn sessions(&self) -> Result<Vec<SessionName>, ControlError> {
        let Some(place) = &self.place else { return Ok(Vec::new()) };
        let failed = |error: io::Error| ControlError::io("list", Some(&place.dir), &error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&place.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(ENDING));
            found.extend(job.and_then(|job| job.parse().ok()));
        }
        Ok(found)
    }
}

impl SwapPlace {
    fn file(&self, session: &SessionName) -> PathBuf {
        self.dir.join(format!("{session}{ENDING}"))
    }

    fn taken_bytes(&self) -> Result<u64, ControlError> {
        let failed = |error: io::Error| ControlError::io("list", Some(&self.dir), &error);
        let mut taken = 0;
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            // One that goes meanwhile takes nothing.
            taken += entry.map_err(failed)?.metadata().map_or(0, |meta| meta.size());
        }
        Ok(taken)
    }
}

/// Makes a file of so many bytes, without holes, with the header that mkswap(8) writes.
fn write_file(path: &Path, bytes: u64) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file: File = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into();
    // btrfs holds swap only in files that it does not copy on write; other file systems do not know the flag.
    let _ = rustix::fs::ioctl_setflags(&file, IFlags::NOCOW);
    forebay_store::flash::allocate(&file, bytes)?;
    file.write_all_at(&header(bytes, rustix::param::page_size()), 0)?;
    file.sync_all()
}

/// The first page of swap space: union swap_header of linux/swap.h, version 1.
fn header(bytes: u64, page: usize) -> Vec<u8> {
    const INFO: usize = 1_024;
    const MAGIC: &[u8] = b"SWAPSPACE2";
    const VERSION: u32 = 1;
    let last_page = u32::try_from(bytes / page as u64 - 1).unwrap_or(u32::MAX);
    let mut header = vec![0; page];
    header[INFO..INFO + 4].copy_from_slice(&VERSION.to_ne_bytes());
    header[INFO + 4..INFO + 8].copy_from_slice(&last_page.to_ne_bytes());
    header[page - MAGIC.len()..].copy_from_slice(MAGIC);
    header
}

/// The kernel does not swap to it any more, and it is gone.
fn end(path: &Path) -> Result<(), ControlError> {
    let until = Instant::now() + MEMORY_WAIT;
    let ended = loop {
        match swap_off(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && Instant::now() < until => {
                std::thread::sleep(MEMORY_PAUSE);
            }
            ended => break ended,
        }
    };
    match ended {
        // Not there, or not in use.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {}
        Err(error) => return Err(ControlError::io("end swapping to", Some(path), &error)),
        Ok(()) => {}
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(ControlError::io("remove", Some(path), &error))
        }
        _ => Ok(()),
    }
}

fn swap_on(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string that lives until the call returns; the call changes no memory of this process.
    match unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn swap_off(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: as for `swap_on`.
    match unsafe { libc::swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swap(dir: &Path, capacity_bytes: Option<u64>) -> Swap {
        Swap::new(Some(SwapPlace { dir: dir.to_path_buf(), capacity_bytes })).unwrap()
    }

    #[test]
    fn the_header_says_how_many_pages_there_are() {
        let header = header(10 << 20, 4_096);
        assert_eq!(header.len(), 4_096);
        assert_eq!(header[1_024..1_032], [1, 0, 0, 0, 0xff, 9, 0, 0]);
        assert_eq!(header[4_086..], *b"SWAPSPACE2");
    }

    #[test]
    fn what_is_too_much_for_a_node_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let job: SessionName = "17".parse().unwrap();
        let error = swap(dir.path(), Some(1 << 20)).make(&job, 2 << 20).unwrap_err();
        assert_eq!(error.errno, Some(libc::ENOSPC));
        let error = swap(dir.path(), None).make(&job, 1 << 60).unwrap_err();
        assert!(matches!(error.errno, Some(libc::ENOSPC | libc::EFBIG)), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = Swap::new(None).unwrap().make(&job, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("agent.swap_dir"), "{error}");
    }

    /// What a killed agent leaves: a file that the kernel never swapped to.
    #[test]
    fn what_a_kill_left_is_known_by_its_name_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let swap = swap(dir.path(), None);
        let job: SessionName = "17".parse().unwrap();
        fs::write(dir.path().join("17.swap"), "").unwrap();
        assert_eq!(swap.sessions().unwrap(), std::slice::from_ref(&job));
        swap.remove(&job).unwrap();
        swap.remove(&job).unwrap();
        assert!(swap.sessions().unwrap().is_empty());
    }
}
