//! Names of files and their ids. An id is of one trace file; a name that is forgotten here and comes again gets
//! a second id, which says the same.
//!
//! Invariant: memory is one fixed table, without locks. An entry is changed by making its hash 0 first
//! and setting it last, so a reader that sees the same hash before and after has the value of that hash.

use crate::{files, sys, trace};
use forebay_trace_format::layout::{self, kind};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names that are remembered.
const ENTRIES: usize = 8192;

struct Entry {
    /// Of generation, directory and name; 0: empty.
    hash: AtomicU64,
    /// Id, and above it [`KNOWN`] with the kind of the file.
    value: AtomicU64,
}

/// The kind of the file was recorded.
const KNOWN: u64 = 1 << 32;
const KIND_SHIFT: u32 = 40;

static TABLE: [Entry; ENTRIES] =
    [const { Entry { hash: AtomicU64::new(0), value: AtomicU64::new(0) } }; ENTRIES];

/// Multiplies and folds: every bit of both goes into the result.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Two numbers of the first and the last bytes of a name of less than 16 bytes: each byte is in one of them.
#[inline(always)]
fn ends(name: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
    }
    let byte = |at: usize| u64::from(name.get(at).copied().unwrap_or(0));
    (byte(0) | byte(1) << 8 | byte(2) << 16, 0)
}

/// The same of 16 bytes.
#[inline(always)]
fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// 16 bytes at a time, the last ones as they lie: a name has no loop over its odd bytes, whose end the processor would guess wrong. Each
/// part has a key of its own and waits for no part before it: the processor multiplies several at once.
#[inline(always)]
fn hash(generation: u32, parent: u32, name: &[u8]) -> u64 {
    const ODD: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03, 0x8cb9_2ba7_2f3d_8dd7];
    let mut sum = mix(layout::two(generation, parent) ^ ODD[0], ODD[1]);
    let mut key = ODD[0];
    let mut rest = name;
    while rest.len() > 16 {
        let Some((part, more)) = rest.split_first_chunk::<16>() else { break };
        let (first, second) = halves(part);
        let product = mix(first ^ key, second ^ ODD[1]) ^ second.wrapping_mul(ODD[2]);
        sum = sum.wrapping_add(product);
        key = key.wrapping_add(ODD[1]);
        rest = more;
    }
    let (first, second) = match name.last_chunk::<16>() {
        Some(last) => halves(last),
        None => ends(name),
    };
    let last = mix(first ^ key, second ^ ODD[2]);
    mix(sum.wrapping_add(last), name.len() as u64 ^ ODD[1]) | 1
}

/// A name with its id: two words, which stay in registers.
#[derive(Clone, Copy)]
pub struct Name {
    /// As in the table: the id, and above it [`KNOWN`] with the kind of the file, if it is known.
    value: u64,
    hash: u64,
}

impl Name {
    const NONE: Name = Name { value: 0, hash: 0 };

    /// Its id, 0: none.
    #[inline(always)]
    pub fn id(self) -> u32 {
        self.value as u32
    }

    /// What is known of the file.
    #[inline(always)]
    pub fn kind(self) -> u8 {
        (self.value >> KIND_SHIFT) as u8
    }

    fn entry(hash: u64) -> Option<&'static Entry> {
        TABLE.get((hash >> 16) as usize % ENTRIES)
    }

    /// Records what the file behind an open descriptor is, if that was not done.
    #[inline(always)]
    pub fn learn(self, fd: c_int) -> Name {
        if self.value & KNOWN != 0 || self.id() == 0 { self } else { self.find_out(fd) }
    }

    #[cold]
    #[inline(never)]
    fn find_out(mut self, fd: c_int) -> Name {
        let _errno = sys::Errno::keep();
        let Some(stat) = sys::fstat(fd) else { return self };
        // The id of the hash stays the same, so a reader may see either value.
        let was = u64::from(self.id());
        self.value = was | KNOWN | u64::from(kind_of(stat.st_mode)) << KIND_SHIFT;
        trace::put_info(self.id(), self.kind(), stat.st_dev, stat.st_ino);
        if let Some(entry) = Name::entry(self.hash) {
            if entry.hash.load(Ordering::Acquire) == self.hash {
                let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = entry.value.compare_exchange(was, self.value, done, not);
            }
        }
        trace::later_anchor();
        self
    }
}

fn kind_of(mode: u32) -> u8 {
    match mode & libc::S_IFMT {
        libc::S_IFREG => kind::REGULAR,
        libc::S_IFDIR => kind::DIRECTORY,
        libc::S_IFIFO => kind::PIPE,
        libc::S_IFSOCK => kind::SOCKET,
        libc::S_IFCHR | libc::S_IFBLK => kind::DEVICE,
        _ => kind::OTHER,
    }
}

/// The id of a name relative to another one (0: none).
#[inline(always)]
pub fn intern(parent: u32, name: &[u8]) -> Name {
    let generation = trace::generation();
    let hash = hash(generation, parent, name);
    let Some(entry) = Name::entry(hash).filter(|_| generation != 0) else {
        return new(parent, name, hash);
    };
    if entry.hash.load(Ordering::Acquire) == hash {
        let value = entry.value.load(Ordering::Acquire);
        if entry.hash.load(Ordering::Acquire) == hash {
            return Name { value, hash };
        }
    }
    new(parent, name, hash)
}

#[cold]
#[inline(never)]
fn new(parent: u32, name: &[u8], mut hash_of_it: u64) -> Name {
    let _errno = sys::Errno::keep();
    if trace::generation() == 0 {
        // The file is made by its first record.
        trace::put_info(0, kind::UNKNOWN, 0, 0);
        hash_of_it = hash(trace::generation(), parent, name);
    }
    let id = trace::new_name();
    if id == 0 || !trace::put_name(id, parent, name) {
        return Name::NONE;
    }
    if let Some(entry) = Name::entry(hash_of_it) {
        entry.hash.store(0, Ordering::Release);
        entry.value.store(id.into(), Ordering::Release);
        entry.hash.store(hash_of_it, Ordering::Release);
    }
    Name { value: id.into(), hash: hash_of_it }
}

/// Bytes of a C string before its 0. Here and not of libc: its function for long strings lies in code that the kernel's own work has
/// mostly thrown out of the processor's cache.
///
/// # Safety
/// `text` is a C string.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn length(text: *const c_char) -> usize {
    use core::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_load_si128, _mm_movemask_epi8, _mm_setzero_si128,
    };
    const LINE: usize = 64;
    let before = text as usize % LINE;
    let mut at = text.wrapping_sub(before);
    // SAFETY: a line of the cache at a multiple of its size is of one page, and each line that is read has a byte of the string.
    let zeros = |at: *const c_char| unsafe {
        let part = |number: usize| {
            let part = _mm_load_si128(at.cast::<__m128i>().add(number));
            u64::from(_mm_movemask_epi8(_mm_cmpeq_epi8(part, _mm_setzero_si128())) as u32)
        };
        part(0) | part(1) << 16 | part(2) << 32 | part(3) << 48
    };
    // Most names lie in one line: no loop whose end the processor would guess wrong.
    let mut found = zeros(at) >> before << before;
    while found == 0 {
        at = at.wrapping_add(LINE);
        found = zeros(at);
    }
    at as usize + found.trailing_zeros() as usize - text as usize
}

/// The same of libc.
///
/// # Safety
/// `text` is a C string.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn length(text: *const c_char) -> usize {
    // SAFETY: by the caller's promise.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes().len()
}

/// The name that a call was given, relative to `dir` as in openat(2).
///
/// # Safety
/// `path` is NULL or a C string, unless the call just failed with EFAULT.
pub unsafe fn of_path(dir: c_int, path: *const c_char, failed: bool) -> Name {
    // SAFETY: by the caller's promise.
    unsafe { of_opened(dir, path, failed) }
}

/// The same, in the code of the caller: an open, which has more to do than other calls with names, goes to one place less for it.
///
/// # Safety
/// As for [`of_path`].
#[inline(always)]
pub unsafe fn of_opened(dir: c_int, path: *const c_char, failed: bool) -> Name {
    if path.is_null() || (failed && sys::errno() == libc::EFAULT) {
        return Name::NONE;
    }
    // SAFETY: by the caller's promise; the kernel could read it.
    let path = unsafe { std::slice::from_raw_parts(path.cast::<u8>(), length(path)) };
    let parent = match path.first() {
        Some(b'/') => 0,
        None if dir != libc::AT_FDCWD => {
            return Name { value: files::file_of(dir).into(), hash: 0 };
        }
        _ if dir == libc::AT_FDCWD => cwd(),
        _ => files::file_of(dir),
    };
    intern(parent, path)
}

/// Id of the working directory's name.
#[inline(always)]
fn cwd() -> u32 {
    let known = trace::cwd().load(Ordering::Relaxed);
    if known != 0 && trace::generation() != 0 { known } else { find_cwd() }
}

/// The same of the kernel. On its own: the room for a path is a page of stack, which a known name does not touch.
#[cold]
#[inline(never)]
fn find_cwd() -> u32 {
    let _errno = sys::Errno::keep();
    let mut buffer = [0; layout::NAME_MAX];
    let name = intern(0, sys::cwd(&mut buffer));
    trace::cwd().store(name.id(), Ordering::Relaxed);
    name.id()
}

/// The working directory changed.
pub fn cwd_changed() {
    trace::cwd().store(0, Ordering::Relaxed);
}

/// What a descriptor that was open before is.
pub fn of_descriptor(fd: c_int) -> Name {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut at = 14;
    let mut divisor = 1_000_000_000;
    while divisor > 0 {
        let digit = fd / divisor % 10;
        if digit > 0 || at > 14 || divisor == 1 {
            if let Some(place) = path.get_mut(at) {
                *place = b'0' + digit as u8;
            }
            at += 1;
        }
        divisor /= 10;
    }
    let mut buffer = [0; layout::NAME_MAX];
    intern(0, sys::readlink(&path, &mut buffer)).learn(fd)
}

/// Reads the begin of a file; the number of bytes. `path` ends with a 0.
pub fn read_file(path: &[u8], buffer: &mut [u8]) -> usize {
    let fd = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    if fd < 0 {
        return 0;
    }
    // SAFETY: a buffer that lives during the call.
    let done = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
    sys::close(fd);
    usize::try_from(done).unwrap_or(0)
}
