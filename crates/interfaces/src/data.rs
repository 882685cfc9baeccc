//! The bytes of a file that is copied: an open file of the kernel, or what belongs to a striped file of
//! the buffer: the whole of it, one of its objects, or what an object has of a file on the PFS.
//!
//! All that a copy does with bytes is here; what only helps speed, or reads past the page cache,
//! is done with the kernel's file where there is one. Used by `copy`, `holes` and `stripe`.

use forebay_proto::layout::Layout;
use forebay_proto::{Errno, Ino, ObjectId, Result, ShardId};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// How a striped file lies on the servers of its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The file.
    pub ino: Ino,
    /// Its layout.
    pub layout: Layout,
    /// Servers of the buffer.
    pub servers: u16,
}

impl Spread {
    /// The objects that have bytes of a file of this size, with the servers that have them.
    pub fn objects(&self, size_bytes: u64) -> impl Iterator<Item = (ShardId, ObjectId)> + '_ {
        let stripes = 0..u32::from(self.layout.stripe_count);
        let filled = stripes.filter(move |at| self.layout.object_bytes(*at, size_bytes) > 0);
        filled.map(|stripe| {
            let object = ObjectId { ino: self.ino, stripe };
            (self.layout.shard_of(stripe, self.servers), object)
        })
    }
}

/// Bytes that are not simply those of an open file: a striped file at the server of its inode, an
/// object of one at its server, what an object has of a file on the PFS.
pub trait Striped: Send + Sync {
    /// Reads; 0 at its end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes; a short count only when space ran out in between.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize>;
    /// Gives it a size.
    fn set_len(&self, size_bytes: u64) -> Result<()>;
    /// Its size.
    fn size_bytes(&self) -> Result<u64>;
    /// As lseek(2) with SEEK_DATA or SEEK_HOLE.
    fn seek(&self, offset: u64, whence: u32) -> Result<u64>;
    /// How it lies, if it is a striped file as a whole.
    fn spread(&self) -> Option<Spread> {
        None
    }
    /// The kernel's file that has the bytes, if one has them all, whatever their offsets there.
    fn under(&self) -> Option<&File> {
        None
    }
    /// Starts (or waits for) write-back of a range, as sync_file_range(2): an error is told here, and no later sync has it.
    fn write_back(&self, _offset: u64, _bytes: u64, _flags: u32) -> Result<()> {
        Ok(())
    }
    /// Puts it on stable storage.
    fn sync(&self) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Starts (or waits for) write-back of a range. An error of the device is told once: a later fsync by the same open file would
/// not have it any more. A file system that cannot do this leaves all to fsync.
pub fn sync_range(file: &File, offset: u64, bytes: u64, flags: u32) -> Result<()> {
    // SAFETY: the descriptor is open for the whole call; no memory is passed.
    let done =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, bytes as i64, flags) };
    match if done == 0 { Errno(0) } else { Errno::last() } {
        Errno(0 | libc::EINVAL | libc::ESPIPE | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(()),
        error => Err(error),
    }
}

/// The bytes of a file.
#[derive(Clone)]
pub enum Data {
    /// An open file.
    File(Arc<File>),
    /// A striped file of the buffer, or a part of one.
    Striped(Arc<dyn Striped>),
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Data::File(file) => file.fmt(f),
            Data::Striped(_) => f.write_str("Striped"),
        }
    }
}

impl From<File> for Data {
    fn from(file: File) -> Data {
        Data::File(Arc::new(file))
    }
}

impl Data {
    /// The kernel's file, if it is one: with the same bytes at the same offsets.
    pub fn file(&self) -> Option<&File> {
        match self {
            Data::File(file) => Some(file),
            Data::Striped(_) => None,
        }
    }

    /// The kernel's file that has the bytes, at whatever offsets.
    pub fn under(&self) -> Option<&File> {
        match self {
            Data::File(file) => Some(file),
            Data::Striped(striped) => striped.under(),
        }
    }

    /// How it lies, if it is a striped file as a whole.
    pub fn spread(&self) -> Option<Spread> {
        match self {
            Data::File(_) => None,
            Data::Striped(striped) => striped.spread(),
        }
    }

    /// Starts (or waits for) write-back of a range; see [`sync_range`].
    pub fn write_back(&self, offset: u64, bytes: u64, flags: u32) -> Result<()> {
        match self {
            Data::File(file) => sync_range(file, offset, bytes, flags),
            Data::Striped(striped) => striped.write_back(offset, bytes, flags),
        }
    }

    /// Puts it on stable storage.
    pub fn sync(&self) -> Result<()> {
        match self {
            Data::File(file) => rustix::fs::fsync(file).map_err(|e| Errno(e.raw_os_error())),
            Data::Striped(striped) => striped.sync(),
        }
    }

    /// The kernel's file; EBADF if it is none.
    pub fn kernel(&self) -> Result<&File> {
        self.file().ok_or(Errno::EBADF)
    }

    /// Reads; 0 at its end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Data::File(file) => file.read_at(buf, offset),
            Data::Striped(striped) => Ok(striped.read_at(buf, offset)?),
        }
    }

    /// Writes all.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let striped = match self {
            Data::File(file) => return file.write_all_at(data, offset),
            Data::Striped(striped) => striped,
        };
        let mut done = 0;
        while done < data.len() {
            match striped.write_at(&data[done..], offset + done as u64)? {
                0 => return Err(Errno::ENOSPC.into()),
                len => done += len,
            }
        }
        Ok(())
    }

    /// Gives it a size.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        match self {
            Data::File(file) => {
                Ok(rustix::fs::ftruncate(file, size_bytes).map_err(|e| Errno(e.raw_os_error()))?)
            }
            Data::Striped(striped) => striped.set_len(size_bytes),
        }
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> Result<u64> {
        match self {
            Data::File(file) => {
                let stat = rustix::fs::fstat(file).map_err(|e| Errno(e.raw_os_error()))?;
                Ok(stat.st_size as u64)
            }
            Data::Striped(striped) => striped.size_bytes(),
        }
    }

    /// Where data begins or ends.
    pub fn seek(&self, to: SeekFrom) -> Result<u64> {
        match (self, to) {
            (Data::File(file), to) => {
                rustix::fs::seek(file, to).map_err(|e| Errno(e.raw_os_error()))
            }
            (Data::Striped(striped), SeekFrom::Data(offset)) => {
                striped.seek(offset, libc::SEEK_DATA as u32)
            }
            (Data::Striped(striped), SeekFrom::Hole(offset)) => {
                striped.seek(offset, libc::SEEK_HOLE as u32)
            }
            (Data::Striped(_), _) => Err(Errno::EINVAL),
        }
    }
}
