//! A FUSE file system that mirrors a directory on tmpfs and records what is written to the
//! one large file in it (the image of a store).
//!
//! Everything else (descriptions, locks, sockets, directories) is passed through and not
//! recorded. Nothing is cached: entries and attributes have no lifetime, and files are opened
//! with direct I/O, so each write of the loop device arrives here as one request, in the
//! device's order, and each of its flushes as one FSYNC. One thread serves, so requests have
//! one order. Used by [`super::rig`].

use super::disk::Disk;
use super::nodes::{Mirror, Node, Tables, open_path, os};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing is cached.
const TTL: Duration = Duration::ZERO;

/// Mounts a mirror of `backing` on `point`; unmounted when the session is dropped.
pub fn mount(backing: &Path, point: &Path, disk: Arc<Disk>) -> io::Result<BackgroundSession> {
    let mut tables = Tables { next: 2, ..Tables::default() };
    let root = open_path(backing)?;
    let meta = fs::metadata(backing)?;
    let key = (meta.dev(), meta.ino());
    tables.by_key.insert(key, 1);
    tables.nodes.insert(1, Node { path: root, lookups: 1, key });
    let mut config = Config::default();
    config.mount_options.push(fuser::MountOption::FSName("forebay-recorder".to_string()));
    config.mount_options.push(fuser::MountOption::Dev);
    fuser::spawn_mount(Mirror { tables: Mutex::new(tables), disk }, point, &config)
}

/// Answers an empty reply.
fn empty(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

/// Answers an entry.
fn entry(result: io::Result<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
        Err(error) => reply.error(Errno::from(error)),
    }
}

/// Time of a setattr for `utimensat`.
fn timespec(time: Option<TimeOrNow>) -> libc::timespec {
    match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(TimeOrNow::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            libc::timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: i64::from(since.subsec_nanos()),
            }
        }
    }
}

impl Filesystem for Mirror {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.entry(parent, name), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, count: u64) {
        self.forget_node(ino.0, count);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
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
            let path = self.path(ino)?;
            if let Some(bytes) = size {
                self.resize(ino, bytes)?;
            }
            if uid.is_some() || gid.is_some() {
                std::os::unix::fs::chown(&path, uid, gid)?;
            }
            if let Some(mode) = mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = [timespec(atime), timespec(mtime)];
                let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
                // SAFETY: `name` is NUL-terminated and `times` has the two elements asked for.
                let done =
                    unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), 0) };
                if done != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            self.attr(ino)
        };
        match change() {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let read = || -> io::Result<Vec<u8>> {
            let tables = self.lock();
            let node = tables.nodes.get(&ino.0).ok_or_else(|| os(libc::ESTALE))?;
            Ok(rustix::fs::readlinkat(node.path.as_fd(), "", Vec::new())?.into_bytes())
        };
        match read() {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn mknod(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            let bits = rustix::fs::Mode::from_raw_mode(mode & !umask & 0o7777);
            rustix::fs::mknodat(
                rustix::fs::CWD,
                self.child(parent, name)?,
                kind,
                bits,
                u64::from(rdev),
            )?;
            self.entry(parent, name)
        };
        entry(make(), reply);
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            let path = self.child(parent, name)?;
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & !umask & 0o7777))?;
            self.entry(parent, name)
        };
        entry(make(), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.child(parent, name).and_then(fs::remove_file), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.child(parent, name).and_then(fs::remove_dir), reply);
    }

    fn symlink(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            std::os::unix::fs::symlink(target, self.child(parent, name)?)?;
            self.entry(parent, name)
        };
        entry(make(), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || -> io::Result<()> {
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            let (from, to) = (self.child(parent, name)?, self.child(new_parent, new_name)?);
            rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)?;
            self.disk.note_rename(new_name);
            Ok(())
        };
        empty(rename(), reply);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let make = || -> io::Result<FileAttr> {
            let (from, to) = (self.path(ino)?, self.child(new_parent, new_name)?);
            let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, from, rustix::fs::CWD, to, follow)?;
            self.entry(new_parent, new_name)
        };
        entry(make(), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.path(ino).and_then(|path| self.open_file(&path, flags.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let make = || -> io::Result<(FileAttr, u64)> {
            let path = self.child(parent, name)?;
            let bits = mode & !umask & 0o7777;
            OpenOptions::new().write(true).create_new(true).mode(bits).open(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(bits))?;
            let handle = self.open_file(&path, flags)?;
            Ok((self.entry(parent, name)?, handle))
        };
        match make() {
            Ok((attr, handle)) => reply.created(
                &TTL,
                &attr,
                Generation(0),
                FileHandle(handle),
                FopenFlags::FOPEN_DIRECT_IO,
            ),
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
        match self.file(fh).and_then(|file| file.read_at(&mut buffer, offset)) {
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
        let write = || -> io::Result<()> {
            let file = self.file(fh)?;
            if self.is_disk(&file, offset + data.len() as u64)? {
                self.disk.write(offset, data)
            } else {
                file.write_all_at(data, offset)
            }
        };
        match write() {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
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
        self.lock().files.remove(&fh.0);
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
        let sync = || -> io::Result<()> {
            if self.is_disk(&*self.file(fh)?, 0)? {
                self.disk.flush();
            }
            Ok(())
        };
        empty(sync(), reply);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let list = || -> io::Result<Vec<(u64, FileType, std::ffi::OsString)>> {
            let mut entries = vec![
                (ino.0, FileType::Directory, ".".into()),
                (ino.0, FileType::Directory, "..".into()),
            ];
            for found in fs::read_dir(self.path(ino)?)? {
                let found = found?;
                let kind = FileType::from_std(found.file_type()?).unwrap_or(FileType::RegularFile);
                entries.push((found.ino(), kind, found.file_name()));
            }
            entries[2..].sort_by(|a, b| a.2.cmp(&b.2));
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

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // Room for any image: the mirror is sparse.
        let blocks = 64 << 18;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        empty(self.do_fallocate(fh, offset, length, mode), reply);
    }
}
