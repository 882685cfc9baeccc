//! Opens for reading, and looks, that ask nobody: what the path leads to, and what it grants, is in memory that a mount's
//! process shares with programs of its own user (`forebay_preload_wire::names`); the object is then opened or looked at by its
//! name in the store, with the rights of this process.
//!
//! Invariant: what was read of the table was so still when the object was open; else the open is undone, and the
//! mount is asked. An open that is seen by nobody counts for the kernel, and that is what the mount's process asks.

use crate::places::{self, Found, MOUNTS_MAX};
use crate::{identity, raw, report};
use forebay_preload_wire::Attributes;
use forebay_preload_wire::names::{self, Led, Names};
use libc::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What a mount has told: its table, the root, and as whom it was told.
struct Told {
    table: AtomicPtr<u8>,
    /// The mapping, also while it is not used, and the inode of its memory.
    mapped: AtomicPtr<u8>,
    memory: AtomicU64,
    root: AtomicU64,
    who: AtomicU32,
    uid: AtomicU32,
}

static TOLD: [Told; MOUNTS_MAX] = [const {
    Told {
        table: AtomicPtr::new(null_mut()),
        mapped: AtomicPtr::new(null_mut()),
        memory: AtomicU64::new(0),
        root: AtomicU64::new(0),
        who: AtomicU32::new(0),
        uid: AtomicU32::new(0),
    }
}; MOUNTS_MAX];

/// A mount has told its root, and with a descriptor its table, to who this process is now.
pub fn learn(place: usize, root: u64, table: c_int, (who, uid): (u32, u32)) {
    let told = &TOLD[place];
    told.table.store(null_mut(), Ordering::Release);
    if table < 0 || root == 0 {
        return;
    }
    let Some(stat) = raw::fstat(table).filter(|stat| stat.st_size as usize == names::BYTES) else {
        return;
    };
    let mut address = told.mapped.load(Ordering::Acquire);
    // A table of a mount that has ended stays mapped: another thread may be reading it.
    if address.is_null() || told.memory.load(Ordering::Acquire) != stat.st_ino {
        address = map(table);
        if address.is_null() {
            return;
        }
        told.mapped.store(address, Ordering::Release);
        told.memory.store(stat.st_ino, Ordering::Release);
    }
    told.root.store(root, Ordering::Relaxed);
    told.who.store(who, Ordering::Relaxed);
    told.uid.store(uid, Ordering::Relaxed);
    told.table.store(address, Ordering::Release);
}

/// Maps a table; NULL if that cannot be, or it is of another layout.
fn map(table: c_int) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ as usize, libc::MAP_SHARED as usize);
    // SAFETY: a new mapping where the kernel wants it.
    let address = unsafe {
        raw::call(libc::SYS_mmap, [0, names::BYTES, protection, flags, table as usize, 0])
    };
    if address < 0 {
        return null_mut();
    }
    let address = address as *mut u8;
    // SAFETY: a shared mapping of that size, that stays if it is one.
    if unsafe { Names::of(address) }.is_none() {
        raw::numbers(libc::SYS_munmap, address as usize, names::BYTES, 0);
        return null_mut();
    }
    address
}

/// The table of a mount that is there, and what it was told as.
struct Asked {
    table: Names,
    uid: u32,
    root: u64,
}

fn told_by(place: usize) -> Option<Asked> {
    let told = &TOLD[place];
    let address = told.table.load(Ordering::Acquire);
    if address.is_null() || told.who.load(Ordering::Relaxed) != identity::who() {
        return None;
    }
    // SAFETY: a mapping that was looked at when it was made, and that stays.
    let table = unsafe { Names::of(address) }?;
    let (uid, root) = (told.uid.load(Ordering::Relaxed), told.root.load(Ordering::Relaxed));
    table.are_kept().then_some(Asked { table, uid, root })
}

impl Asked {
    fn file(&self, found: &Found<'_>) -> Option<Led> {
        let start = if found.inode == 0 { self.root } else { found.inode };
        self.table.file(start, found.path, self.uid)
    }
}

/// Opens a file for reading; `None`: the mount is to be asked.
pub fn opened(found: &Found<'_>, open_flags: c_int) -> Option<c_int> {
    let flags = names::object_flags(open_flags)?;
    let asked = told_by(found.place)?;
    let led = asked.file(found).filter(|led| led.may_be_opened(asked.uid))?;
    let mut room = [0; names::OBJECT_PATH_MAX];
    let path = names::object_path(places::get(found.place)?.store, led.ino, &mut room)?;
    let fd = raw::open(path.to_bytes_with_nul(), flags);
    if fd < 0 {
        return None;
    }
    if !asked.table.leads_still(&led) {
        raw::close(fd);
        return None;
    }
    report::alone(report::Alone::Open);
    Some(fd)
}

/// Attributes of a file; `None`: the mount is to be asked.
pub fn attributes(found: &Found<'_>) -> Option<Attributes> {
    let asked = told_by(found.place)?;
    let led = asked.file(found)?;
    let mut room = [0; names::OBJECT_PATH_MAX];
    let path = names::object_path(places::get(found.place)?.store, led.ino, &mut room)?;
    let object = raw::statx(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)?;
    let attributes = led.attributes(&object).filter(|_| asked.table.leads_still(&led))?;
    report::alone(report::Alone::Look);
    Some(attributes)
}

/// Whether a file certainly is there, and with 4 whether this process may read it; false: the mount is to be asked.
pub fn may(found: &Found<'_>, want: u32) -> bool {
    let granted = told_by(found.place).is_some_and(|asked| {
        // No call of the kernel's judges here: a user that was changed by a raw system call is seen so.
        raw::effective_ids().0 == asked.uid
            && asked.file(found).is_some_and(|led| {
                want & !4 == 0 && led.inode.grants(asked.uid, want) && asked.table.leads_still(&led)
            })
    });
    if granted {
        report::alone(report::Alone::Look);
    }
    granted
}
