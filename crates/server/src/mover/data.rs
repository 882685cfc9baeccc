//! The bytes of a file that is copied: an open file of the kernel, or a striped file of the buffer,
//! whose bytes are on several servers.
//!
//! All that a copy does with bytes is here; what only helps speed, or reads past the page cache,
//! is done with the kernel's file where there is one. Used by `copy` and `holes`.

use forebay_proto::{Errno, Result};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A striped file, at the server of its inode.
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
}

/// The bytes of a file.
#[derive(Clone)]
pub enum Data {
    /// An open file.
    File(Arc<File>),
    /// A striped file of the buffer.
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
    /// The kernel's file, if it is one.
    pub fn file(&self) -> Option<&File> {
        match self {
            Data::File(file) => Some(file),
            Data::Striped(_) => None,
        }
    }

    /// The kernel's file; EBADF if it is none.
    pub(super) fn kernel(&self) -> Result<&File> {
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
