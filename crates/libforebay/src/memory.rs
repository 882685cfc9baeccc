//! Load and store: `fb_map` and the calls about mapped memory, over `forebay-map`.
//!
//! Calls name memory by an address in it, so what is mapped is kept in a table: [`MAPS_MAX`] places of plain atomics, so
//! that no call waits for a lock, also right after fork. Invariant: a place is written by the thread that took it
//! ([`TAKEN`]) until its address is stored, last of all; who reads a place looks at the address again afterwards.

use crate::error::answer;
use crate::{Answer, path};
use forebay_map::{Area, Grade, Map, Options};
use forebay_proto::control::ControlError;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Most mappings of a process at a time.
const MAPS_MAX: usize = 1024;
/// A place that a thread has taken, and not filled.
const TAKEN: usize = 1;

const WITH_ROOT: c_uint = 64;
const READ_ONLY: c_uint = 128;
const PERSISTED: c_uint = 256;

/// Flags of a place.
const HAS_ROOT: u32 = 1;
const SYNCED: u32 = 2;
const IS_READ_ONLY: u32 = 4;
const ON_FLASH: u32 = 8;

struct Place {
    /// Of the first byte; 0: the place is free.
    address: AtomicUsize,
    size_bytes: AtomicUsize,
    flags: AtomicU32,
    descriptor: AtomicI32,
}

static PLACES: [Place; MAPS_MAX] = [const {
    Place {
        address: AtomicUsize::new(0),
        size_bytes: AtomicUsize::new(0),
        flags: AtomicU32::new(0),
        descriptor: AtomicI32::new(-1),
    }
}; MAPS_MAX];
/// No place from here on was ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn area(&self) -> Option<Area> {
        let address = self.address.load(SeqCst);
        let (size_bytes, flags) = (self.size_bytes.load(SeqCst), self.flags.load(SeqCst));
        let descriptor = self.descriptor.load(SeqCst);
        if address <= TAKEN || self.address.load(SeqCst) != address {
            return None;
        }
        let has = |flag: u32| flags & flag != 0;
        let grade = if has(ON_FLASH) { Grade::OnFlash } else { Grade::Written };
        let (has_root, synced, read_only) = (has(HAS_ROOT), has(SYNCED), has(IS_READ_ONLY));
        Some(Area { address, size_bytes, grade, has_root, synced, read_only, descriptor })
    }

    fn fill(&self, area: &Area) {
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let flags = flag(area.has_root, HAS_ROOT)
            | flag(area.synced, SYNCED)
            | flag(area.read_only, IS_READ_ONLY)
            | flag(area.grade == Grade::OnFlash, ON_FLASH);
        self.size_bytes.store(area.size_bytes, SeqCst);
        self.flags.store(flags, SeqCst);
        self.descriptor.store(area.descriptor, SeqCst);
        self.address.store(area.address, SeqCst);
    }
}

fn take() -> Option<&'static Place> {
    let free = |place: &&Place| place.address.compare_exchange(0, TAKEN, SeqCst, SeqCst).is_ok();
    let (at, place) = PLACES.iter().enumerate().find(|(_, place)| free(place))?;
    USED.fetch_max(at + 1, SeqCst);
    Some(place)
}

/// The mapping that an address lies in, and its place.
fn find(what: &str, address: *const c_void) -> Answer<(&'static Place, Area)> {
    let address = address as usize;
    let places = PLACES[..USED.load(SeqCst)].iter();
    let mut areas = places.filter_map(|place| place.area().map(|area| (place, area)));
    let is_in = |area: &Area| (area.address..area.address + area.size_bytes).contains(&address);
    areas.find(|(_, area)| is_in(area)).ok_or_else(|| {
        let why = "the address is in no mapping that fb_map made";
        ControlError::new(what, None, why).errno(libc::EINVAL)
    })
}

fn told<T>(what: &str, result: io::Result<T>) -> Answer<T> {
    result.map_err(|error| ControlError::io(what, None, &error))
}

/// See include/forebay.h.
///
/// # Safety
/// As there: a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_map(text: *const c_char, size: usize, flags: c_uint) -> *mut c_void {
    let done = answer(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { path("map", text) }?;
        let wrong = |why: &str| ControlError::new("map", Some(&path), why);
        if flags & !(WITH_ROOT | READ_ONLY) != 0 {
            return Err(wrong("flags that it does not have").errno(libc::EINVAL));
        }
        let options = Options { read_only: flags & READ_ONLY != 0, root: flags & WITH_ROOT != 0 };
        let map = Map::open(&path, size as u64, options)?;
        let place = take().ok_or_else(|| {
            wrong("the process has as many mappings as it may, 1024")
                .errno(libc::EMFILE)
                .hint("unmap some by fb_unmap, or map larger files")
        })?;
        let area = map.into_area();
        place.fill(&area);
        Ok(area.address as *mut c_void)
    });
    done.unwrap_or(std::ptr::null_mut())
}

/// See include/forebay.h.
#[unsafe(no_mangle)]
pub extern "C" fn fb_map_size(address: *const c_void) -> usize {
    answer(|| Ok(find("tell the size of a mapping", address)?.1.size_bytes)).unwrap_or(0)
}

/// See include/forebay.h.
#[unsafe(no_mangle)]
pub extern "C" fn fb_persist(address: *const c_void, length: usize) -> c_int {
    let done = answer(|| {
        let (_, area) = find("persist", address)?;
        told("persist", area.persist(address as usize - area.address, length))
    });
    done.map_or(-1, |grade| grade as c_int)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: `length` bytes at `root`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_map_commit(
    address: *const c_void,
    root: *const c_void,
    length: usize,
    flags: c_uint,
) -> c_int {
    let done = answer(|| {
        let (_, area) = find("commit", address)?;
        let wrong = |why: &str| ControlError::new("commit", None, why).errno(libc::EINVAL);
        if flags & !PERSISTED != 0 {
            return Err(wrong("flags that it does not have"));
        }
        let bytes = match (root.is_null(), length) {
            (_, 0) => &[][..],
            (true, _) => return Err(wrong("the root is NULL")),
            // SAFETY: the caller's promise; only read during the call.
            (false, _) => unsafe { std::slice::from_raw_parts(root.cast::<u8>(), length) },
        };
        told("commit", area.commit(bytes, flags & PERSISTED != 0))
    });
    done.map_or(-1, |grade| grade as c_int)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: room of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_map_root(
    address: *const c_void,
    to: *mut c_void,
    size: usize,
) -> isize {
    let done = answer(|| {
        let (_, area) = find("read the root", address)?;
        let failed = |why: &str, errno| ControlError::new("read the root", None, why).errno(errno);
        let root = told("read the root", area.root())?
            .ok_or_else(|| failed("none was committed yet", libc::ENODATA))?;
        if root.len() > size {
            return Err(failed("it is larger than the room for it", libc::ERANGE));
        }
        if !root.is_empty() {
            if to.is_null() {
                return Err(failed("the room for it is NULL", libc::EINVAL));
            }
            // SAFETY: the caller's promise, and the root is a copy of its own.
            unsafe { std::ptr::copy_nonoverlapping(root.as_ptr(), to.cast::<u8>(), root.len()) };
        }
        Ok(root.len() as isize)
    });
    done.unwrap_or(-1)
}

/// See include/forebay.h.
///
/// # Safety
/// As there: nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_unmap(address: *mut c_void) -> c_int {
    let done = answer(|| {
        let (place, area) = find("unmap", address)?;
        if area.address != address as usize {
            let why = "it is not the address that fb_map returned";
            return Err(ControlError::new("unmap", None, why).errno(libc::EINVAL));
        }
        // The place first: the address may be another mapping's as soon as the memory is gone.
        let taken = place.address.compare_exchange(area.address, TAKEN, SeqCst, SeqCst);
        if taken.is_err() {
            let why = "another thread unmaps it at this moment";
            return Err(ControlError::new("unmap", None, why).errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise; it was mapped until now, as its place said.
        let unmapped = unsafe { area.unmap() };
        if unmapped.is_err() {
            place.address.store(area.address, SeqCst);
        } else {
            place.address.store(0, SeqCst);
        }
        told("unmap", unmapped)
    });
    if done.is_some() { 0 } else { -1 }
}
