//! What needs no question: files that are opened for reading or looked at by what the mount's process tells in shared memory
//! (`forebay_preload_wire::names`, docs/internals/BESIDE.md).
//!
//! A mapping is a thread's own, as its connection is, and is used as who the thread was when it was made.

use forebay_preload_wire::Attributes;
use forebay_preload_wire::names::{self, BYTES, Led, Names};
use rustix::fs::{AtFlags, StatxFlags, fstat, statx};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// A table that is mapped here.
pub(crate) struct Mapping(*mut libc::c_void);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of [`map`]; whoever reads there holds this.
        unsafe { libc::munmap(self.0, BYTES) };
    }
}

/// Maps a table; `None` if that is none.
pub(crate) fn map(table: &OwnedFd) -> Option<Rc<Mapping>> {
    if usize::try_from(fstat(table).ok()?.st_size) != Ok(BYTES) {
        return None;
    }
    // SAFETY: a new mapping where the kernel wants it, of a file of that size.
    let address = unsafe {
        let (protection, flags, fd) = (libc::PROT_READ, libc::MAP_SHARED, table.as_raw_fd());
        libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, fd, 0)
    };
    let mapping = (address != libc::MAP_FAILED).then(|| Rc::new(Mapping(address)))?;
    mapping.names().is_some().then_some(mapping)
}

impl Mapping {
    fn names(&self) -> Option<Names> {
        // SAFETY: a shared mapping of that size, that stays as long as this.
        unsafe { Names::of(self.0.cast()) }
    }
}

/// What a mount tells to who this thread is.
pub(crate) struct Told {
    pub(crate) mapping: Rc<Mapping>,
    pub(crate) store: PathBuf,
    /// The inode where paths begin.
    pub(crate) start: u64,
    pub(crate) uid: u32,
}

/// The inode of a directory, by what the kernel knows.
pub(crate) fn inode_of(dir: impl AsFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    Some(statx(dir, CString::default(), flags, StatxFlags::INO).ok()?.stx_ino)
}

impl Told {
    fn file(&self, path: &[u8]) -> Option<(Names, Led)> {
        let names = self.mapping.names().filter(Names::are_kept)?;
        Some((names, names.file(self.start, path, self.uid)?))
    }

    /// Opens a file; `None`: the mount is to be asked.
    pub(crate) fn open(&self, path: &[u8], open_flags: i32) -> Option<OwnedFd> {
        let flags = names::object_flags(open_flags)?;
        let (names, led) = self.file(path)?;
        if !led.may_be_opened(self.uid) {
            return None;
        }
        let mut room = [0; names::OBJECT_PATH_MAX];
        let path = names::object_path(self.store.as_os_str().as_bytes(), led.ino, &mut room)?;
        // SAFETY: a C string that lives during the call; a descriptor is this call's own.
        let file = unsafe {
            let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
        };
        file.filter(|_| names.leads_still(&led))
    }

    /// Attributes of a file; `None`: the mount is to be asked.
    pub(crate) fn attributes(&self, path: &[u8]) -> Option<Attributes> {
        let (names, led) = self.file(path)?;
        let mut room = [0; names::OBJECT_PATH_MAX];
        let path = names::object_path(self.store.as_os_str().as_bytes(), led.ino, &mut room)?;
        let mut object = std::mem::MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: a C string and room for the answer, alive during the call; zeros are a valid value.
        let object = unsafe {
            let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
            let to = object.as_mut_ptr();
            let mask = libc::STATX_BASIC_STATS;
            let done = libc::syscall(libc::SYS_statx, at, path.as_ptr(), flags, mask, to);
            (done == 0).then(|| object.assume_init())?
        };
        led.attributes(&object).filter(|_| names.leads_still(&led))
    }
}
