//! Load and store: a file as memory, whose bytes are made durable by [`Area::persist`], and a root that is replaced as a
//! whole by [`Area::commit`].
//!
//! Invariants:
//! * All space of a writable mapping is reserved before it is given out: a store never meets a full file system.
//! * What [`Area::persist`] returned survives what the [`Grade`] that it returned says; nothing better is claimed.
//! * A commit replaces the root or leaves the one before it, wherever a kill or a power cut comes; a root that was
//!   returned by [`Area::root`] was committed whole (see [`root`]).
//! * The library holds no lock and no state of its own ([`Map`] is its owner's): calls are right after fork.
//!
//! The file is opened and mapped through its file system, so what a mount or a cache must know of a writer it knows. Where
//! the file lies on memory that the processor addresses (DAX) it is mapped with `MAP_SYNC`, and cache lines are written back
//! instead of pages ([`lines`]). docs/MEMORY.md tells users of it. Called by `libforebay` and by Rust programs.

mod lines;
pub mod root;

use forebay_proto::control::ControlError;
use root::{HEADER_BYTES, ROOT_MAX_BYTES, Slots};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What persisted bytes survive. The numbers are those of `enum fb_grade` in include/forebay.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Grade {
    /// The death of the program, of the mount and of the server.
    Written = 1,
    /// A power cut.
    OnFlash = 2,
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only to be read; the file is not made, and keeps its size.
    pub read_only: bool,
    /// The file has a root: its first [`HEADER_BYTES`] are the library's, and the memory begins behind them.
    pub root: bool,
}

/// Type of a tmpfs and of a ramfs for `statfs(2)`.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
/// The attribute of files of a buffer that tells whether a power cut takes the store.
const VOLATILE: &str = "user.forebay.volatile";
/// Mode of a file that is made, less the umask.
const MODE: u32 = 0o666;

/// Mapped memory: what the calls need to know of it. A copy knows the same memory; it is the caller's to use none
/// after the [`Map`] that it came from has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Address of the first byte that is the program's.
    pub address: usize,
    /// Bytes from there on.
    pub size_bytes: usize,
    /// What is persisted survives this.
    pub grade: Grade,
    /// There is a root before the first byte.
    pub has_root: bool,
    /// Mapped with `MAP_SYNC`.
    pub synced: bool,
    /// Nothing may be stored.
    pub read_only: bool,
    /// The file, open as long as it is mapped: a cache drains what changes in files that are open, and of a mapping alone its
    /// server hears nothing.
    pub descriptor: RawFd,
}

/// A mapped file; unmapped on drop. What was stored is in the file, persisted or not, as long as the node lives.
#[derive(Debug)]
pub struct Map(Area);

/// Undoes a mapping that came to nothing.
struct Mapped {
    base: *mut libc::c_void,
    bytes: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody was given its address.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

impl Map {
    /// Maps a file of `size_bytes` for the program; 0: as it is. A file that is absent is made, and one that is smaller
    /// grows; none shrinks.
    ///
    /// # Errors
    /// Those of `open(2)`, `fallocate(2)`, `fsync(2)` and `mmap(2)`. EINVAL: no regular file, an empty one without a size,
    /// a file with other content that is to have a root. ENOSPC, EDQUOT: there is no room. EIO: both copies of the root
    /// are damaged.
    pub fn open(path: &Path, size_bytes: u64, options: Options) -> Result<Map, ControlError> {
        let said = |error: io::Error| ControlError::io("map", Some(path), &error);
        let wrong = |why: &str| ControlError::new("map", Some(path), why).errno(libc::EINVAL);
        let mut open = OpenOptions::new();
        open.read(true).write(!options.read_only).mode(MODE).custom_flags(libc::O_CLOEXEC);
        let file = open.create(size_bytes > 0 && !options.read_only).open(path).map_err(said)?;
        let found = file.metadata().map_err(said)?;
        if !found.is_file() {
            return Err(wrong("it is no regular file"));
        }
        let header = if options.root { HEADER_BYTES as u64 } else { 0 };
        let wanted = match size_bytes {
            0 => found.len(),
            _ if options.read_only => found.len().min(size_bytes.saturating_add(header)),
            _ => size_bytes.saturating_add(header),
        };
        if wanted <= header {
            return Err(wrong("there is nothing to map: it is empty, and no size is given"));
        }
        let bytes = usize::try_from(wanted).ok().filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| wrong("the size is no size of memory"))?;
        if !options.read_only {
            reserve(&file, wanted, found.len()).map_err(|error| {
                said(error)
                    .hint("a mapping needs room for all of it; give a smaller size, or free some")
            })?;
            // The name and the size survive what the bytes will survive.
            file.sync_all().map_err(said)?;
        }
        let (mapped, synced) = map(&file, bytes, options.read_only).map_err(said)?;
        let area = Area {
            address: mapped.base as usize + header as usize,
            size_bytes: bytes - header as usize,
            grade: if synced { Grade::OnFlash } else { grade_of(&file).map_err(said)? },
            has_root: options.root,
            synced,
            read_only: options.read_only,
            descriptor: file.as_raw_fd(),
        };
        if options.root {
            area.prepare_root(path)?;
        }
        // Both are the map's from here on: `unmap` ends them.
        std::mem::forget(mapped);
        let _kept = file.into_raw_fd();
        Ok(Map(area))
    }

    /// What the calls need; valid as long as this lives.
    pub fn area(&self) -> Area {
        self.0
    }

    /// Gives the memory to the caller, who unmaps it by [`Area::unmap`].
    pub fn into_area(self) -> Area {
        let area = self.0;
        std::mem::forget(self);
        area
    }

    /// The first byte of the program's memory. Others may store to it at any time, as to all shared memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.address as *mut u8
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// EINVAL: not within the mapping. EACCES: it may only be read.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let at = self.0.within(offset, bytes.len())?;
        if self.0.read_only {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        // SAFETY: mapped for writing as long as `self` lives, `within` looked at the bounds, and `bytes` is no part
        // of it that is not shared memory already.
        unsafe { std::ptr::copy(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// EINVAL: not within the mapping.
    pub fn load(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        let at = self.0.within(offset, bytes.len())?;
        // SAFETY: as in `store`; mapped for reading.
        unsafe { std::ptr::copy(at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

impl std::ops::Deref for Map {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.0
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's, which nobody can use any more; its areas are not to be used.
        let _gone = unsafe { self.0.unmap() };
    }
}

impl Area {
    fn header_bytes(&self) -> usize {
        if self.has_root { HEADER_BYTES } else { 0 }
    }

    /// The address of a part; it lies within the memory of the program.
    fn within(&self, offset: usize, length: usize) -> io::Result<usize> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes => Ok(self.address + offset),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Makes bytes survive what is returned.
    ///
    /// # Errors
    /// EINVAL: not within the mapping. EACCES: it may only be read. Those of `msync(2)`: EIO, ENOTCONN, and others of the
    /// file system; nothing is certain of these bytes then.
    pub fn persist(&self, offset: usize, length: usize) -> io::Result<Grade> {
        let address = self.within(offset, length)?;
        if self.read_only {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        self.write_out(address, length)?;
        Ok(self.grade)
    }

    fn write_out(&self, address: usize, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        if self.synced {
            lines::write_back(address, length);
            return Ok(());
        }
        let page = rustix::param::page_size();
        let first = address / page * page;
        // SAFETY: the pages are of a mapping that is there by the invariant of an area; the kernel reads them only.
        let done = unsafe {
            libc::msync(first as *mut libc::c_void, address + length - first, libc::MS_SYNC)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The slots of the root.
    fn slots(&self) -> io::Result<Slots> {
        if !self.has_root {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: an area with a root has its header before the program's memory, mapped as long as that is.
        Ok(unsafe { Slots::at((self.address - HEADER_BYTES) as *mut u8) })
    }

    /// Looks at the header, or makes it in a file that has none yet.
    fn prepare_root(&self, path: &Path) -> Result<(), ControlError> {
        let said = |error: io::Error| ControlError::io("map", Some(path), &error);
        let slots = self.slots().map_err(said)?;
        if slots.are_ours() {
            return slots.newest().map(drop).map_err(|_damaged| {
                let why = "both copies of its root are damaged";
                ControlError::new("map", Some(path), why)
                    .errno(libc::EIO)
                    .hint("map it without a root to see what is left of it, or remove it")
            });
        }
        // What a kill left before the header was there has no root, and nothing behind it that anybody relies on.
        if self.read_only || !slots.are_blank() {
            let why = "it has no root: it was not made by a mapping with one";
            return Err(ControlError::new("map", Some(path), why)
                .errno(libc::EINVAL)
                .hint("map it without a root, or give the name of a new file"));
        }
        slots.format();
        self.write_out(self.address - HEADER_BYTES, HEADER_BYTES).map_err(said)
    }

    /// Replaces the root. Unless `persisted` (the caller did it for all that the root leads to) all of the memory is
    /// persisted before; then the root is written, and persisted, beside the one before it.
    ///
    /// One process at a time may commit.
    ///
    /// # Errors
    /// EINVAL: there is no root. EMSGSIZE: more than [`ROOT_MAX_BYTES`]. EACCES: it may only be read. EIO, and others
    /// of `msync(2)`: which root a power cut leaves is not certain, the old or the new one.
    pub fn commit(&self, root: &[u8], persisted: bool) -> io::Result<Grade> {
        let slots = self.slots()?;
        if self.read_only {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        if root.len() > ROOT_MAX_BYTES {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if !persisted {
            self.write_out(self.address, self.size_bytes)?;
        }
        let (written, length) = slots.replace(root)?;
        self.write_out(written, length)?;
        Ok(self.grade)
    }

    /// The root that was committed last; `None`: none was.
    ///
    /// # Errors
    /// EINVAL: the mapping has no root. EIO: both copies are damaged.
    pub fn root(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.slots()?.newest()?.map(|(_, bytes)| bytes))
    }

    /// Unmaps the memory, and closes the file.
    ///
    /// # Errors
    /// Those of `munmap(2)`; nothing is closed then.
    ///
    /// # Safety
    /// It is mapped, and nobody uses it any more.
    pub unsafe fn unmap(&self) -> io::Result<()> {
        let base = self.address - self.header_bytes();
        // SAFETY: the caller's promise.
        let done = unsafe {
            libc::munmap(base as *mut libc::c_void, self.size_bytes + self.header_bytes())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is this mapping's, and by the caller's promise nobody uses either any more.
        drop(unsafe { OwnedFd::from_raw_fd(self.descriptor) });
        Ok(())
    }
}

/// Takes room for all of it.
fn reserve(file: &File, wanted: u64, now: u64) -> io::Result<()> {
    let none = rustix::fs::FallocateFlags::empty();
    match rustix::fs::fallocate(file, none, 0, wanted) {
        Ok(()) => Ok(()),
        // A file system that cannot: then a full one ends the program by SIGBUS, as for every mapping there.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) if wanted > now => {
            file.set_len(wanted)
        }
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Maps the first bytes of a file; with `MAP_SYNC` (and true) where file system and processor can.
fn map(file: &File, bytes: usize, read_only: bool) -> io::Result<(Mapped, bool)> {
    let access = if read_only { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
    let attempt = |flags: i32| {
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapped { base, bytes })
        }
    };
    if !read_only && lines::are_supported() {
        if let Ok(mapped) = attempt(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            return Ok((mapped, true));
        }
    }
    Ok((attempt(libc::MAP_SHARED)?, false))
}

/// What bytes of a file survive once `msync(2)` returned.
fn grade_of(file: &File) -> io::Result<Grade> {
    let mut value = [0u8; 8];
    match rustix::fs::fgetxattr(file, VOLATILE, &mut value[..]) {
        Ok(length) if &value[..length] == b"no" => return Ok(Grade::OnFlash),
        Ok(_) => return Ok(Grade::Written),
        // No file of a buffer.
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let kind = rustix::fs::fstatfs(file)?.f_type as i64;
    Ok(if IN_MEMORY.contains(&kind) { Grade::Written } else { Grade::OnFlash })
}
