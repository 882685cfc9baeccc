//! Where mounts of Forebay are, as /proc/self/mountinfo has them: read once, when the first path is asked for.
//!
//! A path is taken for one of a mount only by its text: it begins with the mount point of a mount below which no other file
//! system is mounted. What is written in another way (`..`, through a link) is the kernel's. A program that changes what
//! paths mean (chroot, mounts, namespaces) has no places from then on. Descriptors that it has are those of the mounts that were
//! known before: the kernel would tell of another file than the program opened.

use crate::raw;
use libc::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Most mounts of Forebay that are known, copies included; paths of others are the kernel's.
pub const MOUNTS_MAX: usize = 128;
/// The socket in a store, where the kernel's mount table has it.
const SOCKET_FILE: &str = "/preload.sock";
/// Longest table that is read.
const TABLE_MAX: usize = 4 << 20;

/// A mount.
#[derive(Clone, Copy)]
pub struct Place {
    pub point: &'static [u8],
    pub store: &'static [u8],
    has_holes: bool,
}

const NO_PLACE: Place = Place { point: &[], store: &[], has_holes: false };

struct Table {
    places: [Place; MOUNTS_MAX],
    count: usize,
}

/// Begin, being read, found, none, and found before paths came to mean something else.
const NEW: u32 = 0;
const BUSY: u32 = 1;
const SOME: u32 = 2;
const OFF: u32 = 3;
const LEFT: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(NEW);
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// `st_dev` of the files that the mount of the same number gives out; 0: not known.
static STORES: [AtomicU64; MOUNTS_MAX] = [const { AtomicU64::new(0) }; MOUNTS_MAX];
/// `st_dev` of the mount of the same number: another one when it was made again.
static DEVICES: [AtomicU64; MOUNTS_MAX] = [const { AtomicU64::new(0) }; MOUNTS_MAX];

/// Counts changes of the current directory.
static WHERE: AtomicU32 = AtomicU32::new(1);

/// How often the current directory has changed: what was found out about it before is not used.
pub fn whereabouts() -> u32 {
    WHERE.load(Ordering::Acquire)
}

/// The current directory is another one.
pub fn moved() {
    WHERE.fetch_add(1, Ordering::AcqRel);
}

/// Called when the library is loaded.
pub fn begin() {
    // SAFETY: a C string that lives; the environment is not changed while libraries are loaded.
    let value = unsafe { libc::getenv(c"FOREBAY_PRELOAD".as_ptr()) };
    // SAFETY: a C string of the environment.
    if !value.is_null() && unsafe { std::ffi::CStr::from_ptr(value) } == c"off" {
        STATE.store(OFF, Ordering::Release);
    }
}

/// Paths mean something else from now on.
pub fn leave() {
    // What gave out the descriptors that a program began with is found by what paths mean still.
    knows_none();
    let left = |state| Some(if matches!(state, SOME | LEFT) { LEFT } else { OFF });
    let _before = STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
}

/// True if there is no mount that could have given out a descriptor of this process.
#[inline(always)]
pub fn knows_none() -> bool {
    match STATE.load(Ordering::Acquire) {
        SOME | LEFT => false,
        NEW => find(),
        _ => true,
    }
}

/// True if there is no mount to be asked about a path.
#[inline(always)]
pub fn is_off() -> bool {
    match STATE.load(Ordering::Acquire) {
        SOME => false,
        NEW => find(),
        _ => true,
    }
}

/// Reads the table; true if there is no mount.
#[cold]
fn find() -> bool {
    if STATE.compare_exchange(NEW, BUSY, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return true;
    }
    let errno = forebay_interpose::sys::Errno::keep();
    let found = read();
    let now = if found.is_null() { OFF } else { SOME };
    TABLE.store(found, Ordering::Release);
    // Unless it was left meanwhile.
    let _left = STATE.compare_exchange(BUSY, now, Ordering::AcqRel, Ordering::Acquire);
    drop(errno);
    now == OFF
}

fn read() -> *mut Table {
    let none = std::ptr::null_mut();
    let fd = raw::open(b"/proc/self/mountinfo\0", libc::O_RDONLY | libc::O_CLOEXEC);
    if fd < 0 {
        return none;
    }
    let text = read_text(fd);
    raw::close(fd);
    let Some(text) = text else { return none };
    let is_ours = |line: &&[u8]| contains(line, b" - fuse.forebay ");
    if !text.split(|byte| *byte == b'\n').any(|line| is_ours(&line)) {
        return none;
    }
    let table = raw::memory(size_of::<Table>()).cast::<Table>();
    if table.is_null() {
        return none;
    }
    let empty = Table { places: [NO_PLACE; MOUNTS_MAX], count: 0 };
    // SAFETY: fresh memory of this size, aligned to a page, that lives for good.
    let filled = unsafe {
        table.write(empty);
        &mut *table
    };
    fill(filled, text);
    if filled.count > 0 { table } else { none }
}

/// The whole file; it stays, as what is kept of it points there.
fn read_text(fd: c_int) -> Option<&'static mut [u8]> {
    let mut size = 64 << 10;
    loop {
        let memory = raw::memory(size);
        if memory.is_null() {
            return None;
        }
        // SAFETY: fresh memory of this size, that nobody else has.
        let room = unsafe { std::slice::from_raw_parts_mut(memory, size) };
        raw::numbers(libc::SYS_lseek, fd as usize, 0, libc::SEEK_SET as usize);
        let count = raw::read_all(fd, room)?;
        if count < size {
            return Some(&mut room[..count]);
        }
        raw::numbers(libc::SYS_munmap, memory as usize, size, 0);
        size *= 4;
        if size > TABLE_MAX {
            return None;
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Octal escapes of the table, undone in place.
fn unescape(text: &'static mut [u8]) -> &'static [u8] {
    let (mut from, mut to) = (0, 0);
    while from < text.len() {
        let digits = text.get(from + 1..from + 4).filter(|_| text[from] == b'\\');
        let byte = digits.and_then(|digits| {
            digits.iter().try_fold(0_u32, |sum, digit| match digit {
                b'0'..=b'7' => Some(sum * 8 + u32::from(digit - b'0')),
                _ => None,
            })
        });
        match byte {
            Some(byte) => {
                text[to] = byte as u8;
                from += 4;
            }
            None => {
                text[to] = text[from];
                from += 1;
            }
        }
        to += 1;
    }
    &text[..to]
}

struct Line {
    point: &'static [u8],
    store: Option<&'static [u8]>,
    device: u64,
}

fn parse(line: &'static mut [u8]) -> Option<Line> {
    let mut fields = line.split_mut(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let root: &[u8] = fields.next()?;
    let point = unescape(fields.next()?);
    let mut rest = fields.skip_while(|field| **field != *b"-").skip(1);
    let kind: &[u8] = rest.next()?;
    let ours = kind == b"fuse.forebay";
    let source = rest.next().filter(|_| ours).map(unescape);
    // A part of a buffer that is mounted elsewhere has a root of its own, which is sent along: any will do.
    let store =
        source.and_then(|source| source.strip_prefix(b"forebay:")).filter(|_| !root.is_empty());
    Some(Line { point, store, device })
}

/// Whether `path` is below `point`, and what is left of it then: empty for the point itself.
fn below<'a>(path: &'a [u8], point: &[u8]) -> Option<&'a [u8]> {
    if point == b"/" {
        return path.strip_prefix(b"/");
    }
    match path.strip_prefix(point)? {
        [] => Some(&[]),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// What does not fit is left to the kernel, and so is what it is mounted below.
fn fill(table: &mut Table, text: &'static mut [u8]) {
    for line in text.split_mut(|byte| *byte == b'\n') {
        let Some(line) = parse(line) else { continue };
        for at in 0..table.count {
            // What is mounted on a place later hides it.
            if table.places[at].point == line.point {
                table.places[at].point = b"\0";
            } else if below(line.point, table.places[at].point).is_some() {
                table.places[at].has_holes = true;
            }
        }
        if let Some(store) = line.store {
            let Some(place) = table.places.get_mut(table.count) else { continue };
            *place = Place { point: line.point, store, has_holes: false };
            DEVICES[table.count].store(line.device, Ordering::Relaxed);
            STORES[table.count].store(store_device(store), Ordering::Relaxed);
            table.count += 1;
        }
    }
}

/// Device of the files that a mount gives out, if this process may look there: of the file system that the store's data
/// has to itself. Anybody may mount FUSE with any source, so the socket there must be root's or this user's; and a store that is a
/// plain directory has its files on a device that others use.
fn store_device(store: &[u8]) -> u64 {
    let look = |name: &[u8]| {
        let mut path = [0_u8; 4096];
        let length = store.len() + name.len();
        path.get_mut(..store.len())?.copy_from_slice(store);
        path.get_mut(store.len()..length)?.copy_from_slice(name);
        let path = std::ffi::CStr::from_bytes_until_nul(path.get(..=length)?).ok()?;
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_SYMLINK_NOFOLLOW;
        raw::statx(libc::AT_FDCWD, path, flags)
    };
    let (Some(dir), Some(data), Some(socket)) =
        (look(b""), look(b"/data"), look(SOCKET_FILE.as_bytes()))
    else {
        return 0;
    };
    let (user, _) = raw::effective_ids();
    let trusted = u32::from(socket.stx_mode) & libc::S_IFMT == libc::S_IFSOCK
        && (socket.stx_uid == 0 || socket.stx_uid == user);
    let device = |stat: &libc::statx| libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    if trusted && device(&dir) != device(&data) { device(&data) } else { 0 }
}

fn table() -> Option<&'static Table> {
    if is_off() { None } else { known() }
}

/// The mounts, also after paths came to mean something else.
fn known() -> Option<&'static Table> {
    // SAFETY: NULL, or a table that was filled before it was stored and is not changed any more.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// A mount by its number.
pub fn get(place: usize) -> Option<&'static Place> {
    let table = known()?;
    table.places[..table.count].get(place)
}

/// The mount has said what device its files have on flash; it has this one itself.
pub fn learn(place: usize, store_device: u64, device: u64) {
    STORES[place].store(store_device, Ordering::Relaxed);
    DEVICES[place].store(device, Ordering::Relaxed);
}

/// `st_dev` of a mount.
pub fn device(place: usize) -> u64 {
    DEVICES[place].load(Ordering::Relaxed)
}

/// The mount that gives out files of this device.
pub fn of_store(device: u64) -> Option<usize> {
    let table = if knows_none() { None } else { known() }?;
    (0..table.count).find(|&at| device != 0 && STORES[at].load(Ordering::Relaxed) == device)
}

/// The mount with this `st_dev`, if all below it is its own.
fn of_device(device: u64) -> Option<usize> {
    let table = table()?;
    let is_it = |at: &usize| self::device(*at) == device && table.places[*at].point != b"\0";
    let at = (0..table.count).find(is_it)?;
    is_whole(table, device).then_some(at)
}

/// Where a path begins, in a mount.
#[derive(Clone, Copy)]
pub enum Start {
    Root,
    Cwd,
    Given(c_int),
}

/// A path in a mount.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    pub place: usize,
    pub start: Start,
    /// The inode of the directory where it begins; 0: that of the root.
    pub inode: u64,
    pub path: &'a [u8],
}

/// Where a path is that a call names with a directory; `None`: not in a mount, as far as its text tells.
#[inline]
pub fn locate(dir: c_int, path: &[u8]) -> Option<Found<'_>> {
    let table = table()?;
    match path.first()? {
        b'/' => absolute(table, path),
        _ if dir == libc::AT_FDCWD => {
            let (place, inode) = cwd()?;
            Some(Found { place, start: Start::Cwd, inode, path })
        }
        _ => {
            let (device, inode) = raw::place_of(dir)?;
            Some(Found { place: of_device(device)?, start: Start::Given(dir), inode, path })
        }
    }
}

fn absolute<'a>(table: &Table, path: &'a [u8]) -> Option<Found<'a>> {
    let mut found: Option<(usize, &[u8])> = None;
    for (at, place) in table.places[..table.count].iter().enumerate() {
        if let Some(rest) = below(path, place.point) {
            // The deepest one is meant.
            if found.is_none_or(|(_, before)| rest.len() < before.len()) {
                found = Some((at, rest));
            }
        }
    }
    let (place, rest) = found?;
    let whole = is_whole(table, device(place));
    (whole && !rest.is_empty() && !contains(rest, b"//")).then_some(Found {
        place,
        start: Start::Root,
        inode: 0,
        path: rest,
    })
}

/// Whether nothing is mounted below any mount of this device. Where something is, all is left to the kernel: it takes what is
/// mounted on a name away with that name when names are recalled.
fn is_whole(table: &Table, device: u64) -> bool {
    !(0..table.count).any(|at| self::device(at) == device && table.places[at].has_holes)
}

/// Of the current directory: when it was asked for, by which process, and the mount, or none.
static CWD: AtomicU64 = AtomicU64::new(0);
const CWD_NONE: u64 = 0xff;
/// Its inode, while [`CWD`] is the same before and after.
static CWD_INODE: AtomicU64 = AtomicU64::new(0);

/// The mount that the current directory is in, and its inode.
fn cwd() -> Option<(usize, u64)> {
    // A child of vfork has this memory, and a directory of its own. Pids have at most 22 bits.
    let now = u64::from(whereabouts()) << 32 | u64::from(raw::pid() & 0x3f_ffff) << 8;
    let known = CWD.load(Ordering::Acquire);
    if known & !0xff == now {
        let inode = CWD_INODE.load(Ordering::Acquire);
        if CWD.load(Ordering::Acquire) == known {
            let at = usize::try_from(known & 0xff).ok().filter(|at| *at < MOUNTS_MAX)?;
            return Some((at, inode));
        }
    }
    let stat = raw::statx(libc::AT_FDCWD, c".", libc::AT_STATX_DONT_SYNC)?;
    let found = of_device(libc::makedev(stat.stx_dev_major, stat.stx_dev_minor));
    CWD.store(0, Ordering::Release);
    CWD_INODE.store(stat.stx_ino, Ordering::Release);
    CWD.store(now | found.map_or(CWD_NONE, |at| at as u64), Ordering::Release);
    Some((found?, stat.stx_ino))
}
