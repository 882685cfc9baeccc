//! Limits that a job set for its files (`striped(MFS=SIZE)`, `private(MFC=COUNT)`), kept by the mount: it is the job's only
//! way to its buffer.
//!
//! Invariants: no write, truncation or allocation through this mount makes a file larger than the limit (EFBIG; a write that
//! begins below it is done up to it, as with `RLIMIT_FSIZE`); no more files are made through it than the limit says (EDQUOT),
//! and a file that is removed does not count less. With a limit of sizes no file goes to the kernel or to programs as a whole:
//! they would write without asking. Called by the operations that make files or make them larger.

use crate::abi;
use forebay_proto::{Errno, FileSystem, Ino, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// The limits of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Largest size of a file.
    pub file_bytes: Option<u64>,
    /// Most files made.
    pub files: Option<u64>,
}

/// The limits, and what counts towards them.
#[derive(Debug, Default)]
pub(crate) struct Within {
    limits: Limits,
    made: AtomicU64,
}

impl Within {
    pub(crate) fn new(limits: Limits) -> Within {
        Within { limits, made: AtomicU64::new(0) }
    }

    /// Whether whole objects may be given away.
    pub(crate) fn let_objects_go(&self) -> bool {
        self.limits.file_bytes.is_none()
    }

    /// How much of a change from `offset` on stays within the limit.
    pub(crate) fn part_of(&self, offset: u64, length: u64) -> Result<u64> {
        match self.limits.file_bytes {
            Some(most) if length > 0 && offset >= most => Err(Errno(libc::EFBIG)),
            Some(most) => Ok(length.min(most.saturating_sub(offset))),
            None => Ok(length),
        }
    }

    /// How much of a served write is done.
    pub(crate) fn part_of_write(
        &self,
        fs: &dyn FileSystem,
        ino: Ino,
        arg: &abi::WriteIn,
        append: bool,
    ) -> Result<usize> {
        if self.limits.file_bytes.is_none() {
            return Ok(arg.size as usize);
        }
        // Another node may append meanwhile: the limit is then passed by that one write at most.
        let from = if append { fs.getattr(ino)?.size_bytes } else { arg.offset };
        Ok(self.part_of(from, arg.size.into())? as usize)
    }

    /// EFBIG for a file that would end behind the limit.
    pub(crate) fn must_fit(&self, end: u64) -> Result<()> {
        match self.limits.file_bytes {
            Some(most) if end > most => Err(Errno(libc::EFBIG)),
            _ => Ok(()),
        }
    }

    /// The same of what `fallocate(2)` with this mode makes of it.
    pub(crate) fn must_fit_allocated(
        &self,
        fs: &dyn FileSystem,
        ino: Ino,
        arg: &abi::FallocateIn,
    ) -> Result<()> {
        const MAKES_ROOM_FOR_LESS: i32 =
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE;
        if self.limits.file_bytes.is_none() {
            return Ok(());
        }
        if arg.mode & MAKES_ROOM_FOR_LESS as u32 == 0 {
            self.must_fit(arg.offset.saturating_add(arg.length))?;
        }
        if arg.mode & libc::FALLOC_FL_INSERT_RANGE as u32 != 0 {
            self.must_fit(fs.getattr(ino)?.size_bytes.saturating_add(arg.length))?;
        }
        Ok(())
    }

    /// Makes a file, if one more may be made.
    pub(crate) fn make<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(most) = self.limits.files else { return make() };
        if self.made.fetch_add(1, Ordering::Relaxed) >= most {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno(libc::EDQUOT));
        }
        make().inspect_err(|_| {
            self.made.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_a_limit_is_cut_off_or_refused() {
        let within = Within::new(Limits { file_bytes: Some(100), files: Some(1) });
        assert_eq!((within.part_of(90, 20), within.part_of(0, 20)), (Ok(10), Ok(20)));
        assert_eq!(
            (within.part_of(100, 0), within.part_of(100, 1)),
            (Ok(0), Err(Errno(libc::EFBIG)))
        );
        assert_eq!((within.must_fit(100), within.must_fit(101)), (Ok(()), Err(Errno(libc::EFBIG))));
        assert!(!within.let_objects_go());
        // One that could not be made does not count.
        assert_eq!(within.make(|| Err::<(), _>(Errno::EEXIST)), Err(Errno::EEXIST));
        assert_eq!(within.make(|| Ok(())), Ok(()));
        assert_eq!(within.make(|| Ok(())), Err(Errno(libc::EDQUOT)));
    }
}
