//! The recording layer's inodes and open files: what the kernel's numbers stand for.
//!
//! An inode is held by an O_PATH descriptor, so it is found whatever its name is now, and its
//! number on tmpfs is not reused while the kernel knows it. Called by [`super::mirror`].

use super::disk::Disk;
use fuser::{FileAttr, FileHandle, FileType, INodeNo};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// Unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

/// An inode that the kernel knows.
pub(super) struct Node {
    /// O_PATH descriptor: survives renames, and keeps the inode number from being reused.
    pub(super) path: OwnedFd,
    /// References of the kernel.
    pub(super) lookups: u64,
    /// `(device, inode)` on tmpfs.
    pub(super) key: (u64, u64),
}

/// All inodes and open files.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) nodes: HashMap<u64, Node>,
    pub(super) by_key: HashMap<(u64, u64), u64>,
    pub(super) files: HashMap<u64, Arc<File>>,
    pub(super) next: u64,
}

/// The file system. Made by [`super::mirror::mount`].
pub(super) struct Mirror {
    pub(super) tables: Mutex<Tables>,
    pub(super) disk: Arc<Disk>,
}

/// Opens a place without following a link at its end.
pub(super) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    Ok(OpenOptions::new().read(true).custom_flags(flags).open(path)?.into())
}

fn attr_of(ino: u64, meta: &fs::Metadata, is_disk: bool) -> FileAttr {
    let kind = meta.file_type();
    let kind = if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_fifo() {
        FileType::NamedPipe
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else if kind.is_char_device() {
        FileType::CharDevice
    } else {
        FileType::RegularFile
    };
    let time = |sec: i64, nsec: i64| UNIX_EPOCH + Duration::new(sec.max(0) as u64, nsec as u32);
    // The disk is sparse on tmpfs but stands for a fallocated file.
    let blocks = if is_disk { meta.len().div_ceil(SECTOR_BYTES) } else { meta.blocks() };
    FileAttr {
        ino: INodeNo(ino),
        size: meta.len(),
        blocks,
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind,
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: 4096,
        flags: 0,
    }
}

impl Mirror {
    pub(super) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path that names the inode whatever it is called now.
    pub(super) fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        let tables = self.lock();
        let node = tables.nodes.get(&ino.0).ok_or_else(|| os(libc::ESTALE))?;
        Ok(PathBuf::from(format!("/proc/self/fd/{}", node.path.as_raw_fd())))
    }

    pub(super) fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    pub(super) fn entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let path = self.child(parent, name)?;
        let fd = open_path(&path)?;
        let meta = fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .or_else(|_| fs::symlink_metadata(&path))?;
        let key = (meta.dev(), meta.ino());
        let is_disk = self.disk.id() == Some(key);
        let mut tables = self.lock();
        let ino = match tables.by_key.get(&key) {
            Some(ino) => *ino,
            None => {
                let ino = tables.next;
                tables.next += 1;
                tables.by_key.insert(key, ino);
                tables.nodes.insert(ino, Node { path: fd, lookups: 0, key });
                ino
            }
        };
        if let Some(node) = tables.nodes.get_mut(&ino) {
            node.lookups += 1;
        }
        Ok(attr_of(ino, &meta, is_disk))
    }

    pub(super) fn attr(&self, ino: INodeNo) -> io::Result<FileAttr> {
        let (meta, is_disk) = self.meta(ino)?;
        Ok(attr_of(ino.0, &meta, is_disk))
    }

    pub(super) fn meta(&self, ino: INodeNo) -> io::Result<(fs::Metadata, bool)> {
        let tables = self.lock();
        let node = tables.nodes.get(&ino.0).ok_or_else(|| os(libc::ESTALE))?;
        let file = File::from(node.path.try_clone()?);
        Ok((file.metadata()?, self.disk.id() == Some(node.key)))
    }

    pub(super) fn open_file(&self, path: &Path, flags: i32) -> io::Result<u64> {
        let drop =
            libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECT | libc::O_APPEND;
        let access = flags & libc::O_ACCMODE;
        let file = OpenOptions::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .custom_flags(flags & !drop & !libc::O_ACCMODE)
            .open(path)?;
        let mut tables = self.lock();
        let handle = tables.next;
        tables.next += 1;
        tables.files.insert(handle, Arc::new(file));
        Ok(handle)
    }

    pub(super) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        self.lock().files.get(&handle.0).cloned().ok_or_else(|| os(libc::EBADF))
    }

    /// True if the file is, or with this size becomes, the disk.
    pub(super) fn is_disk(&self, file: &File, size_bytes: u64) -> io::Result<bool> {
        let meta = file.metadata()?;
        self.disk.adopt(file, (meta.dev(), meta.ino()), size_bytes.max(meta.len()))
    }

    pub(super) fn forget_node(&self, ino: u64, count: u64) {
        let mut tables = self.lock();
        let Some(node) = tables.nodes.get_mut(&ino) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 && ino != 1 {
            let key = node.key;
            tables.nodes.remove(&ino);
            tables.by_key.remove(&key);
        }
    }

    pub(super) fn resize(&self, ino: INodeNo, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(ino)?)?;
        if self.is_disk(&file, bytes)? { self.disk.set_size(bytes) } else { file.set_len(bytes) }
    }

    pub(super) fn do_fallocate(
        &self,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> io::Result<()> {
        let file = self.file(fh)?;
        let end = offset + length;
        let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if !self.is_disk(&file, end)? {
            // SAFETY: plain system call on an open descriptor.
            let done =
                unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) };
            return if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        }
        if mode & !(zeroes | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return Err(os(libc::EOPNOTSUPP));
        }
        let size_bytes = file.metadata()?.len();
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > size_bytes {
            self.disk.set_size(end)?;
        }
        if mode & zeroes != 0 {
            self.disk.zero(offset, length.min(size_bytes.max(end).saturating_sub(offset)))?;
        }
        Ok(())
    }
}

/// An error by number.
pub(super) fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
