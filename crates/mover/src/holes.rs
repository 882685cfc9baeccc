//! Where a source has data: which bytes a copy may leave out.
//!
//! Invariant: bytes are left out only if they are zeros. The map of a file (SEEK_DATA, SEEK_HOLE)
//! is believed where the kernel answers it from its own page cache and extents ([`BELIEVED`]);
//! a map that a network, FUSE or stacked file system (or ZFS, which had such a bug for years)
//! answers is a hint only: what it calls a hole is read, and copied where it is not zeros. The
//! checksum of a copy is made over the same ranges, so it could not find what a wrong map hid.
//! Called by `copy` for the source, and for the target when it is read back.

use super::fault::{Fault, Outcome};
use super::memory::Memory;
use super::meta::Meta;
use super::pieces::{BLOCK_BYTES, PIECE_BYTES, read_upto};
use super::stop::Pace;
use forebay_interfaces::data::Data;
use forebay_proto::Errno;
use rustix::fs::{Advice, SeekFrom};

/// `XFS_SUPER_MAGIC` of linux/magic.h.
const XFS_MAGIC: i64 = 0x5846_5342;
/// `EXT4_SUPER_MAGIC`, also that of ext2 and ext3.
const EXT_MAGIC: i64 = 0xEF53;
/// `TMPFS_MAGIC`.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// File systems (`statfs.f_type`) whose map of a file counts dirty pages as data.
const BELIEVED: [i64; 3] = [TMPFS_MAGIC, EXT_MAGIC, XFS_MAGIC];

/// How the holes of a source are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holes {
    /// All of it is copied.
    None,
    /// The map tells them.
    Mapped,
    /// The map tells where they may be.
    Hinted,
}

impl Holes {
    /// For an open source.
    pub fn of(source: &Data, meta: &Meta) -> Holes {
        // The map of a striped file is made of those of the stores.
        let Some(file) = source.under() else { return Holes::Mapped };
        match rustix::fs::fstatfs(file).map(|fs| fs.f_type) {
            // Blocks are no sign here: those of xattrs and of preallocation count too.
            Ok(kind) if BELIEVED.contains(&kind) => Holes::Mapped,
            // Each question may be a message to a server.
            _ if meta.allocated_bytes < meta.size_bytes => Holes::Hinted,
            _ => Holes::None,
        }
    }

    /// The next range to copy at or after `offset`; `(size, size)` if only a hole follows.
    pub fn next(
        self,
        source: &Data,
        offset: u64,
        size: u64,
        pace: &Pace,
        memory: &mut Memory,
    ) -> Outcome<(u64, u64)> {
        match self {
            Holes::None => Ok((offset, size)),
            Holes::Mapped => next_data(source, offset, size),
            Holes::Hinted => {
                let (start, end) = next_data(source, offset, size)?;
                let mut at = offset;
                while at < start {
                    let len = BLOCK_BYTES.min(start - at);
                    if !is_zeros(source, at, len, pace, memory)? {
                        return Ok((at, at + len));
                    }
                    at += len;
                }
                Ok((start, end))
            }
        }
    }
}

/// Whether a file lies in memory.
pub(super) fn is_in_memory(data: &Data) -> bool {
    let fs = data.file().and_then(|file| rustix::fs::fstatfs(file).ok());
    fs.is_some_and(|fs| fs.f_type == TMPFS_MAGIC)
}

/// Whether a range that is said to be a hole reads as one.
fn is_zeros(
    source: &Data,
    start: u64,
    len: u64,
    pace: &Pace,
    memory: &mut Memory,
) -> Outcome<bool> {
    let mut done = 0;
    while done < len {
        let piece = pace.piece_bytes(PIECE_BYTES).min(len - done);
        pace.take(piece)?;
        let bytes = memory.get(piece as usize);
        if read_upto(source, bytes, start + done)? < bytes.len() {
            // It ends here: who copies finds that.
            return Ok(false);
        }
        if !forebay_sums::is_zeros(bytes) {
            return Ok(false);
        }
        done += piece;
    }
    // Pages full of zeros would push out what a job uses. Only a hint.
    if let Some(file) = source.file() {
        let _ = rustix::fs::fadvise(file, start, std::num::NonZero::new(len), Advice::DontNeed);
    }
    Ok(true)
}

/// The next range of data, as the file's map has it, at or after `offset`; `(size, size)` if
/// only a hole follows.
pub(super) fn next_data(file: &Data, offset: u64, size: u64) -> Outcome<(u64, u64)> {
    let fault = Fault::source("find holes of source");
    let start = match file.seek(SeekFrom::Data(offset)) {
        Ok(start) => start.clamp(offset, size),
        Err(Errno::ENXIO) => return Ok((size, size)),
        // A file system that does not know holes: all is data.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok((offset, size)),
        Err(e) => return Err(fault(e)),
    };
    if start == size {
        return Ok((size, size));
    }
    match file.seek(SeekFrom::Hole(start)) {
        // A range without length would be asked for again and again.
        Ok(end) if end > start => Ok((start, end.min(size))),
        Ok(_) | Err(Errno::ENXIO) => Ok((start, size)),
        Err(e) => Err(fault(e)),
    }
}
