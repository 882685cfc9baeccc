//! A PFS to order: a FUSE file system over a directory whose weather a test makes.
//!
//! It can stop answering (a server that hangs), answer all with an error (one that is broken), be
//! gone for good ([`Pfs::lose`]), write less than it is given ([`Weather::write_short`]), refuse root
//! ([`Weather::squash_root`]), charge for each write and each unaligned one ([`Weather::charge`]), call data holes ([`Weather::lie_about_holes`]), and say that every
//! file is empty ([`Weather::hide_sizes`]). The change can be set to
//! come after a number of bytes, so that it falls into the middle of a copy. One thread serves;
//! while it hangs, all of the file system does. Used by `tests/tests/system/staging_faults.rs`.

use crate::pfs_answers::{TTL, attr_of, empty, entry, timespec};
use crate::procs::try_run;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// What becomes of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Air {
    /// They are answered.
    #[default]
    Fair,
    /// They wait until it is fair again.
    Still,
    /// They get this errno.
    Foul(i32),
}

/// How the file system behaves now, and what is to come.
#[derive(Debug, Default)]
struct Forecast {
    air: Air,
    /// After so many more bytes of data it becomes this.
    next: Option<(u64, Air)>,
    /// After so many more requests it becomes this.
    next_call: Option<(u64, Air)>,
    lies: bool,
    hides: bool,
    short: bool,
    squashes: bool,
    /// How often root was refused.
    refused: u64,
    /// Questions about holes that got a wrong answer.
    lies_told: u64,
    /// What a write costs, and one that is not aligned beyond that.
    charges: (Duration, Duration),
    writes: Writes,
}

/// Writes that the file system was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// Requests.
    pub calls: u64,
    /// All bytes.
    pub bytes: u64,
    /// Those in requests that begin and end at multiples of [`ALIGNED_BYTES`].
    pub aligned_bytes: u64,
    /// What was charged for them.
    pub charged: Duration,
}

/// The unit in which this file system likes to be written, as the stripes and locks of a real one.
pub const ALIGNED_BYTES: u64 = 1 << 20;

/// Shared between the test and the thread that serves.
#[derive(Debug, Default)]
pub struct Weather {
    state: Mutex<Forecast>,
    changed: Condvar,
}

impl Weather {
    fn lock(&self) -> MutexGuard<'_, Forecast> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub fn set(&self, air: Air) {
        let mut state = self.lock();
        (state.air, state.next, state.next_call) = (air, None, None);
        self.changed.notify_all();
    }

    /// As soon as `calls` more requests were answered.
    pub fn after_calls(&self, calls: u64, air: Air) {
        self.lock().next_call = Some((calls, air));
    }

    /// As soon as `bytes` more of data were read or written.
    pub fn after(&self, bytes: u64, air: Air) {
        self.lock().next = Some((bytes, air));
    }

    /// What it is now.
    pub fn air(&self) -> Air {
        self.lock().air
    }

    /// From now on every file is said to be one hole, whatever it holds.
    pub fn lie_about_holes(&self) {
        self.lock().lies = true;
    }

    /// From now on every file is said to be empty, and read as far as it goes.
    pub fn hide_sizes(&self) {
        self.lock().hides = true;
    }

    /// From now on a write takes half of what it is given (a page at least).
    pub fn write_short(&self) {
        self.lock().short = true;
    }

    /// From now on each write takes so long, and one that is not aligned so much longer. Counts writes anew.
    pub fn charge(&self, call: Duration, unaligned: Duration) {
        let mut state = self.lock();
        state.charges = (call, unaligned);
        state.writes = Writes::default();
    }

    /// The writes since then.
    pub fn writes(&self) -> Writes {
        self.lock().writes
    }

    fn count_write(&self, offset: u64, bytes: u64) {
        let charged = {
            let mut state = self.lock();
            let (call, unaligned) = state.charges;
            let is_aligned = offset % ALIGNED_BYTES == 0 && bytes % ALIGNED_BYTES == 0;
            let charged = if is_aligned { call } else { call + unaligned };
            state.writes.calls += 1;
            state.writes.bytes += bytes;
            state.writes.aligned_bytes += if is_aligned { bytes } else { 0 };
            state.writes.charged += charged;
            charged
        };
        if !charged.is_zero() {
            std::thread::sleep(charged);
        }
    }

    /// From now on root may look, and do nothing else.
    pub fn squash_root(&self) {
        self.lock().squashes = true;
    }

    /// How often root was refused.
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// EACCES for root where it is squashed.
    fn admit(&self, request: &Request) -> io::Result<()> {
        let mut state = self.lock();
        if state.squashes && request.uid() == 0 {
            state.refused += 1;
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        Ok(())
    }

    /// How often it lied.
    pub fn lies_told(&self) -> u64 {
        self.lock().lies_told
    }

    /// Waits or fails as the weather has it; `bytes` of data come with the request.
    fn pass(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.lock();
        if let Some((left, air)) = state.next {
            match left.checked_sub(bytes) {
                Some(left) => state.next = Some((left, air)),
                None => (state.air, state.next) = (air, None),
            }
        }
        if let Some((left, air)) = state.next_call {
            match left.checked_sub(1) {
                Some(left) => state.next_call = Some((left, air)),
                None => (state.air, state.next_call) = (air, None),
            }
        }
        while state.air == Air::Still {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.air {
            Air::Foul(errno) => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }
}

/// A mounted file system, unmounted when dropped.
pub struct Pfs {
    /// Its weather.
    pub weather: Arc<Weather>,
    point: PathBuf,
    /// The kernel's number of it: the minor number of its device.
    connection: u32,
    session: Option<BackgroundSession>,
}

impl Pfs {
    /// Mounts `backing` on `point`; both are made if missing.
    pub fn mount(backing: &Path, point: &Path) -> Pfs {
        fs::create_dir_all(backing).unwrap();
        fs::create_dir_all(point).unwrap();
        let weather = Arc::new(Weather::default());
        let tables = Tables { paths: HashMap::from([(1, backing.to_path_buf())]), ..Tables::new() };
        let served = Served { weather: weather.clone(), tables: Mutex::new(tables) };
        let mut config = Config::default();
        // Drains act as the users who wrote.
        config.acl = fuser::SessionACL::All;
        config.mount_options.push(fuser::MountOption::FSName("forebay-test-pfs".to_string()));
        let session = Some(fuser::spawn_mount(served, point, &config).unwrap());
        let connection = libc::minor(fs::metadata(point).unwrap().dev());
        Pfs { weather, point: point.to_path_buf(), connection, session }
    }

    /// Kills it: who uses it gets ENOTCONN from now on, until it is unmounted.
    pub fn lose(&self) {
        let control = "/sys/fs/fuse/connections";
        let abort = PathBuf::from(format!("{control}/{}/abort", self.connection));
        if !abort.exists() {
            try_run(Command::new("mount").args(["-t", "fusectl", "none", control]));
        }
        fs::write(&abort, b"1").unwrap_or_else(|e| panic!("{}: {e}", abort.display()));
    }
}

impl Drop for Pfs {
    fn drop(&mut self) {
        self.weather.set(Air::Fair);
        try_run(Command::new("umount").args(["-q", "-l"]).arg(&self.point));
        drop(self.session.take());
    }
}

struct Tables {
    /// Where inodes are, by number on the backing file system (the root is 1).
    paths: HashMap<u64, PathBuf>,
    files: HashMap<u64, Arc<File>>,
    next: u64,
}

impl Tables {
    fn new() -> Tables {
        Tables { paths: HashMap::new(), files: HashMap::new(), next: 1 }
    }
}

struct Served {
    weather: Arc<Weather>,
    tables: Mutex<Tables>,
}

impl Served {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        self.weather.pass(0)?;
        let path = self.tables().paths.get(&ino.0).cloned();
        path.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn see(&self, path: PathBuf) -> io::Result<FileAttr> {
        let meta = fs::symlink_metadata(&path)?;
        self.tables().paths.insert(meta.ino(), path);
        Ok(self.shown(attr_of(meta.ino(), &meta)))
    }

    fn attr(&self, ino: INodeNo) -> io::Result<FileAttr> {
        Ok(self.shown(attr_of(ino.0, &fs::symlink_metadata(self.path(ino)?)?)))
    }

    fn shown(&self, attr: FileAttr) -> FileAttr {
        match attr.kind == FileType::RegularFile && self.weather.lock().hides {
            true => FileAttr { size: 0, blocks: 0, ..attr },
            false => attr,
        }
    }

    fn keep(&self, file: File) -> FileHandle {
        let mut tables = self.tables();
        let handle = tables.next;
        tables.next += 1;
        tables.files.insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle, bytes: u64) -> io::Result<Arc<File>> {
        self.weather.pass(bytes)?;
        let file = self.tables().files.get(&handle.0).cloned();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl Filesystem for Served {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.child(parent, name).and_then(|path| self.see(path)), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = || -> io::Result<FileAttr> {
            self.weather.admit(req)?;
            let path = self.path(ino)?;
            if let Some(bytes) = size {
                File::options().write(true).open(&path)?.set_len(bytes)?;
            }
            std::os::unix::fs::lchown(&path, uid, gid)?;
            if let Some(mode) = mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            let times = rustix::fs::Timestamps {
                last_access: timespec(atime),
                last_modification: timespec(mtime),
            };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, flags)?;
            self.attr(ino)
        };
        match change() {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            self.weather.admit(req)?;
            let path = self.child(parent, name)?;
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & !umask & 0o7777))?;
            self.see(path)
        };
        entry(make(), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let admitted = self.weather.admit(req).and_then(|()| self.child(parent, name));
        empty(admitted.and_then(fs::remove_file), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let admitted = self.weather.admit(req).and_then(|()| self.child(parent, name));
        empty(admitted.and_then(fs::remove_dir), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            self.weather.admit(req)?;
            let path = self.child(parent, name)?;
            std::os::unix::fs::symlink(target, &path)?;
            self.see(path)
        };
        entry(make(), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        use std::os::unix::ffi::OsStrExt;
        match self.path(ino).and_then(fs::read_link) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || -> io::Result<()> {
            self.weather.admit(req)?;
            let (from, to) = (self.child(parent, name)?, self.child(new_parent, new_name)?);
            let how = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            let cwd = rustix::fs::CWD;
            rustix::fs::renameat_with(cwd, &from, cwd, &to, how)?;
            if how.contains(rustix::fs::RenameFlags::EXCHANGE) {
                self.see(from)?;
            }
            self.see(to).map(drop)
        };
        empty(rename(), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        let path = self.weather.admit(req).and_then(|()| self.path(ino));
        let opened = path.and_then(|path| File::options().read(true).write(write).open(path));
        // Else the kernel ends a read at the size.
        let flags = match self.weather.lock().hides {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        };
        match opened {
            Ok(file) => reply.opened(self.keep(file), flags),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let make = || -> io::Result<(FileAttr, File)> {
            self.weather.admit(req)?;
            let path = self.child(parent, name)?;
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            std::os::unix::fs::fchown(&file, Some(req.uid()), Some(req.gid()))?;
            file.set_permissions(fs::Permissions::from_mode(mode & !umask & 0o7777))?;
            Ok((self.see(path)?, file))
        };
        match make() {
            Ok((attr, file)) => {
                let (fh, flags) = (self.keep(file), FopenFlags::empty());
                reply.created(&TTL, &attr, Generation(0), fh, flags);
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        let read = self.file(fh, size.into()).and_then(|file| file.read_at(&mut buffer, offset));
        match read {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let half = (data.len() / 2).max(4096).min(data.len());
        let data = if self.weather.lock().short { &data[..half] } else { data };
        let bytes = data.len() as u64;
        self.weather.count_write(offset, bytes);
        match self.file(fh, bytes).and_then(|file| file.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.tables().files.remove(&fh.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.file(fh, 0).and_then(|file| file.sync_all()), reply);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.path(ino).map(drop), reply);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let list = || -> io::Result<Vec<_>> {
            let mut entries = Vec::new();
            for found in fs::read_dir(self.path(ino)?)? {
                let found = found?;
                let kind = FileType::from_std(found.file_type()?).unwrap_or(FileType::RegularFile);
                entries.push((found.metadata()?.ino(), kind, found.file_name()));
            }
            entries.sort_by(|a, b| a.2.cmp(&b.2));
            Ok(entries)
        };
        match list() {
            Ok(entries) => {
                for (index, (ino, kind, name)) in entries.iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(*ino), index as u64 + 1, *kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.path(ino) {
            Ok(_) => {
                let blocks = 1 << 20;
                reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let seek = || -> io::Result<i64> {
            let file = self.file(fh, 0)?;
            let mut state = self.weather.lock();
            if state.lies {
                state.lies_told += 1;
                return match whence {
                    libc::SEEK_DATA => Err(io::Error::from_raw_os_error(libc::ENXIO)),
                    _ => Ok(offset),
                };
            }
            drop(state);
            // SAFETY: a plain call on an open descriptor.
            let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
            if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at) }
        };
        match seek() {
            Ok(at) => reply.offset(at),
            Err(error) => reply.error(Errno::from(error)),
        }
    }
}
