//! Data of files: one sparse file per (file, stripe) on the store's file system.
//!
//! An object's size, times and allocated blocks *are* those of a whole local file: nothing
//! about them is stored twice, so passthrough writes need no bookkeeping.
//!
//! Invariants: an object is reached only through the data directory's descriptor and a name
//! made from numbers, so no path leads out of it; no descriptor is held per inode (the cache
//! of [`fds`] is bounded); an object is removed only after the record that took the inode's
//! last name is durable (`namespace::reclaim`). One that is missing all the same is a loss, and told
//! ([`losses`]): ENOENT from here says only that there is no such object, not that there must be one.
//!
//! Called by `namespace` (operations) and, for offline checks, by `check`.

mod account;
mod fds;
mod io;
mod large_pages;
mod lease;
mod losses;
mod pages;

pub use account::Accounting;

use fds::FdCache;
use forebay_proto::attr::Timestamp;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use losses::Losses;
use rustix::fs::{self as rfs, AtFlags, Mode, OFlags, Timespec, Timestamps};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fan-out directories below `data/`.
pub const FAN_OUT: usize = 256;
/// Not a stripe: a second object that a file of one object may have, for what its user keeps
/// about the data (a cache: which blocks are there). It goes by the file's record too. The root may have one.
pub const COMPANION: u32 = u32::MAX;
/// Flags of `open(2)` that an object is opened with for others.
const OPEN_FOR: u32 = (libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK) as u32;
/// Flags that a directory of objects is opened with: a link is none (`flash::place` refuses a store that has one).
const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Consecutive inodes that share a fan-out directory, so that files made together lie together.
const INODES_PER_DIR_RUN: u64 = 64;

/// What the object's own file system says of it.
#[derive(Clone, Copy, Debug)]
pub struct ObjectStat {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated units of 512 bytes.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last write or change of times.
    pub ctime: Timestamp,
}

/// The objects of one buffer on one server.
pub struct Objects {
    dir: OwnedFd,
    path: PathBuf,
    losses: Losses,
    fds: FdCache,
    accounting: Option<Accounting>,
    /// Fan-out directories that got or lost an object since their last fsync; `None` where the
    /// file system orders directory changes before a file's fsync (our own XFS images, tmpfs).
    dirty_dirs: Option<Box<[AtomicBool; FAN_OUT]>>,
    volatile: bool,
    /// Reads leave access times as they are.
    quiet_reads: AtomicBool,
    pages: Arc<pages::Pages>,
    /// In tests of power cuts: hears what is on flash from now on.
    on_sync: std::sync::OnceLock<SyncHook>,
}

/// Hears of an object, by its path below the objects' directory, that it is on flash; `None`: all are.
pub type SyncHook = Box<dyn Fn(Option<&[u8]>) + Send + Sync>;

/// The name of an object below `data/`: `a7/00000000000012ab.0`, on the stack.
pub(crate) struct ObjectName {
    bytes: [u8; 32],
    len: usize,
}

impl ObjectName {
    pub(crate) fn new(id: ObjectId) -> ObjectName {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0u8; 32];
        let fan = fan_of(id.ino);
        bytes[0] = HEX[fan >> 4];
        bytes[1] = HEX[fan & 15];
        bytes[2] = b'/';
        for i in 0..16 {
            bytes[3 + i] = HEX[(id.ino.0 >> (60 - 4 * i)) as usize & 15];
        }
        bytes[19] = b'.';
        let mut len = 20;
        let digits = id.stripe.to_string();
        bytes[len..len + digits.len()].copy_from_slice(digits.as_bytes());
        len += digits.len();
        ObjectName { bytes, len }
    }

    fn path(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn fan_of(ino: Ino) -> usize {
    ((ino.0 / INODES_PER_DIR_RUN) as usize) % FAN_OUT
}

/// Reads the name of an object file back: `None` for anything that is not one.
fn parse_name(name: &[u8]) -> Option<ObjectId> {
    let text = std::str::from_utf8(name).ok()?;
    let (ino, stripe) = text.split_once('.')?;
    if ino.len() != 16 {
        return None;
    }
    Some(ObjectId { ino: Ino(u64::from_str_radix(ino, 16).ok()?), stripe: stripe.parse().ok()? })
}

/// Makes a fan-out directory, if it is not there.
fn make_fan(data: &OwnedFd, fan: usize) -> Result<()> {
    match rfs::mkdirat(data, format!("{fan:02x}"), Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(err(e)),
    }
}

fn err(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn stamp(sec: i64, nsec: u64) -> Timestamp {
    Timestamp { sec, nsec: nsec as u32 }
}

fn object_stat(st: &rfs::Stat) -> ObjectStat {
    ObjectStat {
        size_bytes: st.st_size as u64,
        blocks_512: st.st_blocks as u64,
        atime: stamp(st.st_atime, st.st_atime_nsec),
        mtime: stamp(st.st_mtime, st.st_mtime_nsec),
        ctime: stamp(st.st_ctime, st.st_ctime_nsec),
    }
}

impl Objects {
    /// Opens the objects below `data`, making the fan-out directories if they are missing.
    ///
    /// `accounting` is given for stores whose file system does not hold the capacity itself.
    /// `sync_dirs` says that an object's fsync does not make its directory entry durable.
    pub fn open(
        data: &Path,
        volatile: bool,
        sync_dirs: bool,
        accounting: Option<Accounting>,
    ) -> Result<Objects> {
        let dir = rfs::open(data, DIR_FLAGS, Mode::empty()).map_err(err)?;
        for fan in 0..FAN_OUT {
            match make_fan(&dir, fan) {
                // A journaling file system gives what was just removed only after its next
                // commit: once more then.
                Err(Errno::ENOSPC) => {
                    rfs::syncfs(&dir).map_err(err)?;
                    make_fan(&dir, fan)?;
                }
                made => made?,
            }
        }
        if !volatile {
            rfs::fsync(&dir).map_err(err)?;
        }
        let dirty_dirs =
            (sync_dirs && !volatile).then(|| Box::new([const { AtomicBool::new(false) }; FAN_OUT]));
        Ok(Objects {
            dir,
            path: data.to_path_buf(),
            losses: Losses::default(),
            fds: FdCache::new(),
            accounting,
            dirty_dirs,
            volatile,
            quiet_reads: AtomicBool::new(false),
            pages: Arc::default(),
            on_sync: Default::default(),
        })
    }

    /// For tests of power cuts: the hook hears of all that is on flash from now on. Only where there are failpoints.
    pub fn set_on_sync(&self, hook: SyncHook) {
        assert!(self.on_sync.set(hook).is_ok(), "set once");
    }

    /// An object, or all (`None`), is on flash.
    fn synced(&self, id: Option<ObjectId>) {
        if forebay_failpoint::ENABLED
            && let Some(hook) = self.on_sync.get()
        {
            hook(id.map(ObjectName::new).as_ref().map(ObjectName::path));
        }
    }

    /// The accounting of a store that counts space itself.
    pub fn accounting(&self) -> Option<&Accounting> {
        self.accounting.as_ref()
    }

    fn note_dir_change(&self, ino: Ino) {
        if let Some(dirty) = &self.dirty_dirs {
            dirty[fan_of(ino)].store(true, Ordering::Release);
        }
    }

    fn open_flags(&self, id: ObjectId, mut flags: OFlags) -> Result<File> {
        flags.set(OFlags::NOATIME, self.quiet_reads.load(Ordering::Relaxed));
        let name = ObjectName::new(id);
        let mode = Mode::from_raw_mode(0o600);
        match rfs::openat(&self.dir, name.path(), flags | OFlags::CLOEXEC, mode) {
            Ok(fd) => Ok(File::from(fd)),
            Err(e) => Err(self.not_there(id, e)),
        }
    }

    /// ENOENT for an object that is not there; EIO where not even its directory is.
    fn not_there(&self, id: ObjectId, e: rustix::io::Errno) -> Errno {
        if e != rustix::io::Errno::NOENT {
            return err(e);
        }
        let fan = format!("{:02x}", fan_of(id.ino));
        match rfs::statat(&self.dir, fan, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => self.missing(id),
            _ => Errno::ENOENT,
        }
    }

    /// An object that must be there is not: noted and told, and EIO.
    pub fn missing(&self, id: ObjectId) -> Errno {
        let name = ObjectName::new(id);
        self.losses.note(id, &self.path.join(OsStr::from_bytes(name.path())));
        Errno::EIO
    }

    /// True if an object has no name, whoever has it open.
    pub fn is_gone(&self, id: ObjectId) -> Result<bool> {
        let name = ObjectName::new(id);
        match rfs::statat(&self.dir, name.path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::NOENT) => Ok(true),
            Err(e) => Err(err(e)),
        }
    }

    /// An empty object in the place of one that is gone, perhaps with its directory, or of what is there: who has that
    /// open keeps it. EIO where there is no place for it.
    pub fn make_anew(&self, id: ObjectId) -> Result<()> {
        // Of what is gone, perhaps.
        self.fds.forget(id);
        match make_fan(&self.dir, fan_of(id.ino)) {
            Err(Errno::ENOENT) => return Err(self.missing(id)),
            made => made?,
        }
        match self.create(id) {
            Err(Errno::EEXIST) => self.truncate(id, 0),
            made => made.map(drop),
        }
    }

    /// True if some data is lost.
    pub fn has_losses(&self) -> bool {
        self.losses.some()
    }

    /// What is wrong with the data, if anything is.
    pub fn fault(&self) -> Option<String> {
        self.losses.told()
    }

    /// Makes an empty object, open for reading and writing.
    pub fn create(&self, id: ObjectId) -> Result<File> {
        let file = self.open_flags(id, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        self.note_dir_change(id.ino);
        self.may_be_written(id, Some(0));
        Ok(file)
    }

    /// The same, open as [`Objects::open_for`] does it.
    pub fn create_for(&self, id: ObjectId, open_flags: u32) -> Result<File> {
        let flags = OFlags::from_bits_retain(open_flags & OPEN_FOR);
        let file = self.open_flags(id, flags | OFlags::CREATE | OFlags::EXCL)?;
        self.note_dir_change(id.ino);
        self.may_be_written(id, Some(0));
        Ok(file)
    }

    /// Opens an object for reading and writing, a descriptor of the caller's own.
    pub fn open_object(&self, id: ObjectId) -> Result<File> {
        self.open_flags(id, OFlags::RDWR | OFlags::NOFOLLOW)
    }

    /// Opens an object with the access mode, O_APPEND and O_NONBLOCK of these flags of `open(2)`: for who gets the
    /// descriptor itself.
    pub fn open_for(&self, id: ObjectId, open_flags: u32) -> Result<File> {
        self.open_flags(id, OFlags::from_bits_retain(open_flags & OPEN_FOR) | OFlags::NOFOLLOW)
    }

    /// Which object an open file is: by its file system and its name there; `None` if it is none of these.
    pub fn id_of(&self, file: &File) -> Option<ObjectId> {
        if rfs::fstat(file).ok()?.st_dev != self.device() {
            return None;
        }
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = rfs::readlink(link, Vec::new()).ok()?;
        let name = link.to_bytes().rsplit(|byte| *byte == b'/').next()?;
        parse_name(name.strip_suffix(b" (deleted)").unwrap_or(name))
    }

    /// `st_dev` of the objects; 0 if it cannot be told.
    pub fn device(&self) -> u64 {
        rfs::fstat(&self.dir).map_or(0, |stat| stat.st_dev)
    }

    /// Whether reads by objects that are opened from now on leave access times as they are. Said before the first
    /// object is opened.
    pub fn set_quiet_reads(&self, quiet: bool) {
        self.quiet_reads.store(quiet, Ordering::Relaxed);
    }

    /// A file like an object, without a name.
    pub fn probe(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let opened = rfs::openat(&self.dir, ".", flags, Mode::from_raw_mode(0o600));
        opened.map(File::from).map_err(err)
    }

    /// A shared descriptor of an object from the bounded cache.
    fn shared(&self, id: ObjectId) -> Result<Arc<File>> {
        self.fds.get_or_open(id, || self.open_object(id))
    }

    /// Size, times and blocks.
    pub fn stat(&self, id: ObjectId) -> Result<ObjectStat> {
        let name = ObjectName::new(id);
        match rfs::statat(&self.dir, name.path(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) => Ok(object_stat(&st)),
            Err(e) => Err(self.not_there(id, e)),
        }
    }

    /// The same of an open object, which is cheaper.
    pub fn stat_open(file: &File) -> Result<ObjectStat> {
        Ok(object_stat(&rfs::fstat(file).map_err(err)?))
    }

    /// Sets times; `None` leaves one as it is.
    pub fn set_times(
        &self,
        id: ObjectId,
        atime: Option<Timestamp>,
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        let spec = |t: Option<Timestamp>| match t {
            Some(t) => Timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) },
            None => Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_OMIT },
        };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        let name = ObjectName::new(id);
        rfs::utimensat(&self.dir, name.path(), &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| self.not_there(id, e))
    }

    /// Removes an object; one that is already gone is no error.
    pub fn remove(&self, id: ObjectId) -> Result<()> {
        let freed = match &self.accounting {
            Some(_) => self.stat(id).map(|s| s.blocks_512 * 512).unwrap_or(0),
            None => 0,
        };
        self.fds.forget(id);
        let name = ObjectName::new(id);
        match rfs::unlinkat(&self.dir, name.path(), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(err(e)),
        }
        // Opened again in between: a descriptor of what is gone, if the name is ever made anew.
        self.fds.forget(id);
        if let Some(acc) = &self.accounting {
            acc.release(freed);
        }
        self.note_dir_change(id.ino);
        Ok(())
    }

    /// Waits until data (and with `!data_only` the times) of an object, and its existence,
    /// survive a power cut. On a volatile store there is only to see that it is there. ENOENT for one
    /// that is open here and was removed: what has no name is not safe.
    pub fn fsync(&self, id: ObjectId, data_only: bool) -> Result<()> {
        if self.volatile {
            return self.stat(id).map(drop);
        }
        let file = self.shared(id)?;
        if rfs::fstat(&*file).map_err(err)?.st_nlink == 0 {
            self.fds.forget(id);
            return Err(self.not_there(id, rustix::io::Errno::NOENT));
        }
        match data_only {
            true => rfs::fdatasync(file.as_fd()),
            false => rfs::fsync(file.as_fd()),
        }
        .map_err(err)?;
        self.sync_dir_of(id.ino)?;
        self.synced(Some(id));
        Ok(())
    }

    fn sync_dir_of(&self, ino: Ino) -> Result<()> {
        let Some(dirty) = &self.dirty_dirs else { return Ok(()) };
        let fan = fan_of(ino);
        if !dirty[fan].swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = rfs::openat(&self.dir, format!("{fan:02x}"), DIR_FLAGS, Mode::empty())
            .and_then(|fd| rfs::fsync(&fd));
        if let Err(e) = synced {
            dirty[fan].store(true, Ordering::Release);
            return Err(err(e));
        }
        Ok(())
    }

    /// Waits until everything on the store's file system survives a power cut.
    pub fn sync_all(&self) -> Result<()> {
        if self.volatile {
            return Ok(());
        }
        rfs::syncfs(&self.dir).map_err(err)?;
        self.synced(None);
        Ok(())
    }

    /// Calls `f` with every object on the store and its allocated bytes; one that goes meanwhile may be left out. For recovery
    /// and checks.
    pub fn for_each(&self, f: &mut dyn FnMut(ObjectId, u64)) -> Result<()> {
        for fan in 0..FAN_OUT {
            let fan = format!("{fan:02x}");
            let fd = rfs::openat(&self.dir, fan, DIR_FLAGS, Mode::empty()).map_err(err)?;
            for entry in rfs::Dir::read_from(&fd).map_err(err)? {
                let entry = entry.map_err(err)?;
                let Some(id) = parse_name(entry.file_name().to_bytes()) else { continue };
                let bytes = match &self.accounting {
                    Some(_) => match self.stat(id) {
                        Err(Errno::ENOENT) => continue,
                        stat => stat?.blocks_512 * 512,
                    },
                    None => 0,
                };
                f(id, bytes);
            }
        }
        Ok(())
    }

    /// `(total, free)` bytes of the store's own file system.
    pub fn file_system_space(&self) -> Result<(u64, u64)> {
        let st = rfs::fstatvfs(&self.dir).map_err(err)?;
        Ok((st.f_blocks * st.f_frsize, st.f_bavail * st.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let id = ObjectId { ino: Ino(0x12ab), stripe: 7 };
        let name = ObjectName::new(id);
        let (_, file) = std::str::from_utf8(name.path()).unwrap().split_once('/').unwrap();
        assert_eq!(file, "00000000000012ab.7");
        assert_eq!(parse_name(file.as_bytes()), Some(id));
        assert_eq!(parse_name(b"lost+found"), None);
    }
}
