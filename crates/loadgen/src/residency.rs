//! How much of a file is in the page cache, and putting it out of there.
//!
//! Source: cachestat(2) (Linux 6.5); mincore(2) where the kernel has no cachestat. Both see the page cache of
//! the file system that is asked. Behind FUSE or a network there may be another cache: it is [`Cache::Unseen`], and
//! nothing about it is claimed. tmpfs has no other place than memory: [`Cache::Memory`].
//! Callers: `ior` before and after its phases.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// What can be said about the pages of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The page cache is all there is, and it was asked.
    Seen(Pages),
    /// The file system lives in memory.
    Memory,
    /// The file system may have a cache of its own elsewhere.
    Unseen,
}

/// Pages of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that the files have.
    pub total: u64,
    /// Those in the page cache.
    pub resident: u64,
    /// Those that are not written back; None where the kernel does not say (mincore).
    pub dirty: Option<u64>,
}

impl Pages {
    /// Of both.
    pub fn plus(self, other: Pages) -> Pages {
        Pages {
            total: self.total + other.total,
            resident: self.resident + other.resident,
            dirty: self.dirty.zip(other.dirty).map(|(a, b)| a + b),
        }
    }
}

impl Cache {
    /// Of no file.
    pub const NOTHING: Cache = Cache::Seen(Pages { total: 0, resident: 0, dirty: Some(0) });

    /// Of both: the least that is known of either is what is known of both.
    pub fn plus(self, other: Cache) -> Cache {
        match (self, other) {
            (Cache::Seen(a), Cache::Seen(b)) => Cache::Seen(a.plus(b)),
            (Cache::Unseen, _) | (_, Cache::Unseen) => Cache::Unseen,
            (Cache::Memory, _) | (_, Cache::Memory) => Cache::Memory,
        }
    }

    /// Of all files with these paths.
    ///
    /// # Errors
    /// The path at which a call failed, and why.
    pub fn of_all(paths: impl Iterator<Item = PathBuf>) -> Result<Cache, (PathBuf, io::Error)> {
        let mut sum = Cache::NOTHING;
        for path in paths {
            match File::open(&path).and_then(|file| of(&file)) {
                Ok(one) => sum = sum.plus(one),
                Err(error) => return Err((path, error)),
            }
        }
        Ok(sum)
    }
}

/// [`drop_pages`] of all files with these paths.
///
/// # Errors
/// The path at which a call failed, and why.
pub fn drop_all(paths: impl Iterator<Item = PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    for path in paths {
        if let Err(error) = File::open(&path).and_then(|file| drop_pages(&file)) {
            return Err((path, error));
        }
    }
    Ok(())
}

// Magic numbers of statfs(2), from linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const LOCAL: [i64; 6] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0x4d44,      // FAT
    0xca45_1a4e, // bcachefs
];
/// Number of cachestat(2) on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// What the page cache has of `file`.
pub fn of(file: &File) -> io::Result<Cache> {
    let kind = rustix::fs::fstatfs(file)?.f_type as i64;
    if kind == TMPFS || kind == RAMFS {
        return Ok(Cache::Memory);
    }
    if !LOCAL.contains(&kind) {
        return Ok(Cache::Unseen);
    }
    let total = file.metadata()?.len().div_ceil(rustix::param::page_size() as u64);
    let range = CachestatRange { offset: 0, len: 0 };
    let mut stat = Cachestat::default();
    // SAFETY: both pointers are to live structures of the layout that linux/mman.h gives; length 0 is "to the end".
    let answer =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut stat, 0_u32) };
    if answer == 0 {
        let dirty = Some(stat.dirty + stat.writeback);
        return Ok(Cache::Seen(Pages { total, resident: stat.cached.min(total), dirty }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS) => by_mincore(file, total),
        Some(libc::EOPNOTSUPP | libc::EPERM) => Ok(Cache::Unseen),
        _ => Err(error),
    }
}

/// The same by mapping the file.
fn by_mincore(file: &File, total: u64) -> io::Result<Cache> {
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(Cache::Seen(Pages::default()));
    }
    let (kind, read) = (libc::MAP_SHARED, libc::PROT_READ);
    // SAFETY: a fresh mapping of a file that is open for reading; it is never read through.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len, read, kind, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0_u8; total as usize];
    // SAFETY: the mapping has `len` bytes, `pages` a byte for each page of it.
    let answer = unsafe { libc::mincore(mapped, len, pages.as_mut_ptr()) };
    let outcome = match answer {
        0 => {
            let resident = pages.iter().filter(|page| *page & 1 == 1).count() as u64;
            Ok(Cache::Seen(Pages { total, resident, dirty: None }))
        }
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: unmaps what was mapped above, which nothing refers to.
    unsafe { libc::munmap(mapped, len) };
    outcome
}

/// Writes back what is dirty of `file` and asks the kernel to drop its pages. Whether it did, [`of`] tells.
pub fn drop_pages(file: &File) -> io::Result<()> {
    file.sync_all()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn memory_is_told_from_a_cache() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
        assert_eq!(of(&file).expect("asked"), Cache::Memory);
    }

    /// Needs the source tree on a disk's file system.
    #[test]
    fn pages_come_with_writes_and_go_when_dropped() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
        file.write_all(&vec![7; 1 << 20]).expect("written");
        match of(&file).expect("asked") {
            Cache::Seen(pages) => {
                assert_eq!((pages.total, pages.resident), (256, 256));
                drop_pages(&file).expect("dropped");
                let Cache::Seen(after) = of(&file).expect("asked") else { panic!("seen before") };
                assert_eq!(after.resident, 0);
                let mapped = by_mincore(&file, 256).expect("mapped");
                assert_eq!(mapped, Cache::Seen(Pages { total: 256, resident: 0, dirty: None }));
                let mut bytes = Vec::new();
                file.rewind().expect("rewound");
                file.read_to_end(&mut bytes).expect("read");
                assert_eq!(bytes.len(), 1 << 20);
            }
            other => panic!("the source tree is not on a local disk's file system: {other:?}"),
        }
    }
}
