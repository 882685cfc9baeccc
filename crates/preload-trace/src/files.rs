//! Open files: which file a descriptor is, and where it stands.
//!
//! Invariants: memory is one fixed table, without locks. Descriptors that are copies of each other share
//! an entry, as they share a position in the kernel. The position is counted here, so that a read or write
//! costs no further system call, as long as only this process can move it; of a descriptor that came
//! from elsewhere, or that another process may share since ([`trace::Hot::epoch`]), the kernel is asked each time.

use crate::names::{self, Name};
use crate::sys;
use crate::trace::{self, HOT};
use forebay_trace_format::layout::{self, flag, kind};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Descriptors that are known; of higher ones the records name no file.
const DESCRIPTORS: usize = 65_536;
/// Places of the table. Those of descriptors' numbers are only for what is opened under that number; those after them are for what is opened
/// while copies of an earlier descriptor of its number still have its place. Each of these has a descriptor, so they are enough.
const PLACES: usize = 2 * DESCRIPTORS;

/// What the descriptors that are copies of each other have in common: one line of the processor's cache. Beside it lies where to find that of the
/// descriptor which has the place's number: mostly it is the same line, so that a call touches no other one for what its descriptor is.
#[repr(align(64))]
pub struct Open {
    /// Of the descriptor with this number: index into [`OPEN`] and 1; 0: not known.
    of_descriptor: AtomicU32,
    references: AtomicU32,
    file: AtomicU32,
    flags: AtomicU16,
    /// Calls that write to the stream just now.
    stream_calls: AtomicU16,
    /// File of which `file` is an id.
    generation: AtomicU32,
    /// [`trace::Hot::epoch`] when it was opened.
    epoch: AtomicU32,
    position: AtomicU64,
    /// Position of the stream over it.
    stream_position: AtomicU64,
    /// The stream over it, 0 if none was seen.
    stream: AtomicUsize,
    /// Bytes in the stream's buffer that wait to be written, after the last call that was seen.
    stream_kept: AtomicU64,
    /// Bytes of the calls that were seen, of what was standard output or error at the begin.
    written: AtomicU64,
}

const _: () = assert!(size_of::<Open>() == 64, "one line of the cache");

/// Has a position.
pub const SEEKABLE: u16 = 1 << 8;
/// Others had it before.
const SHARED: u16 = 1 << 9;
/// `stream_position` is right.
const STREAM: u16 = 1 << 10;
/// Closed by exec.
const CLOEXEC: u16 = 1 << 11;
/// Standard output or error from before the begin.
const STANDARD: u16 = 1 << 12;

/// Of standard output and error, if they were a regular file at the begin and are still: where they stood, and which.
struct Standard {
    position: AtomicU64,
    inode: AtomicU64,
    /// Bytes that calls which were seen wrote until the descriptor was closed.
    written: AtomicU64,
    /// Another file, or none, by now.
    is_other: AtomicBool,
}

/// By descriptor, less one.
static STANDARDS: [Standard; 2] = [const {
    Standard {
        position: AtomicU64::new(layout::NO_OFFSET),
        inode: AtomicU64::new(0),
        written: AtomicU64::new(0),
        is_other: AtomicBool::new(false),
    }
}; 2];

#[inline(always)]
fn standard(fd: c_int) -> Option<&'static Standard> {
    STANDARDS.get(usize::try_from(fd).ok()?.checked_sub(1)?)
}

static OPEN: [Open; PLACES] = [const {
    Open {
        of_descriptor: AtomicU32::new(0),
        references: AtomicU32::new(0),
        file: AtomicU32::new(0),
        flags: AtomicU16::new(0),
        stream_calls: AtomicU16::new(0),
        generation: AtomicU32::new(0),
        epoch: AtomicU32::new(0),
        position: AtomicU64::new(0),
        stream_position: AtomicU64::new(0),
        stream: AtomicUsize::new(0),
        stream_kept: AtomicU64::new(0),
        written: AtomicU64::new(0),
    }
}; PLACES];

/// A descriptor, for a record.
#[derive(Clone, Copy)]
pub struct Fd {
    fd: c_int,
    open: Option<&'static Open>,
    pub file: u32,
    /// Flags of the record.
    pub flags: u8,
}

/// Where it stands what a descriptor is.
#[inline(always)]
fn place(fd: c_int) -> Option<&'static AtomicU32> {
    let at = usize::try_from(fd).ok().filter(|at| *at < DESCRIPTORS)?;
    Some(&OPEN.get(at)?.of_descriptor)
}

/// Has the line of a new descriptor brought near, for an open that finds its name first. Of -1 it does no harm.
#[inline(always)]
pub fn expect(fd: c_int) {
    sys::bring_near(OPEN.as_ptr().wrapping_add(fd as usize).cast::<u8>());
}

#[inline(always)]
fn known(fd: c_int) -> Option<&'static Open> {
    let index = place(fd)?.load(Ordering::Acquire);
    OPEN.get(index.checked_sub(1)? as usize)
}

/// A descriptor that a call used.
#[inline(always)]
pub fn get(fd: c_int) -> Fd {
    if let Some(open) = known(fd) {
        if open.generation.load(Ordering::Relaxed) == trace::generation() {
            return of(fd, open);
        }
    }
    learn(fd)
}

#[inline(always)]
fn of(fd: c_int, open: &'static Open) -> Fd {
    let flags = open.flags.load(Ordering::Relaxed) as u8;
    Fd { fd, open: Some(open), file: open.file.load(Ordering::Relaxed), flags }
}

/// Id of the file of a descriptor, 0 if it is not open.
pub fn file_of(fd: c_int) -> u32 {
    get(fd).file
}

/// The file of a descriptor that is about to be closed, as far as it is known.
#[inline]
pub fn known_file(fd: c_int) -> u32 {
    match known(fd) {
        Some(open) if open.generation.load(Ordering::Relaxed) == trace::generation() => {
            open.file.load(Ordering::Relaxed)
        }
        _ => 0,
    }
}

/// Finds out about a descriptor that was open before, or that this library did not see being made.
#[cold]
fn learn(fd: c_int) -> Fd {
    let nothing = Fd { fd, open: None, file: 0, flags: 0 };
    let _errno = sys::Errno::keep();
    if !usize::try_from(fd).is_ok_and(|fd| fd < DESCRIPTORS) || sys::status_flags(fd) == -1 {
        return nothing;
    }
    let name = names::of_descriptor(fd);
    match known(fd) {
        // From before a fork: its copies are the same still.
        Some(open) => {
            open.file.store(name.id(), Ordering::Relaxed);
            open.flags.fetch_and(!STREAM, Ordering::Relaxed);
            open.flags.fetch_or(SHARED, Ordering::Relaxed);
            open.generation.store(trace::generation(), Ordering::Relaxed);
            of(fd, open)
        }
        None => match attach(fd, name, sys::status_flags(fd), SHARED | standard_flag(fd)) {
            Some(open) => of(fd, open),
            None => nothing,
        },
    }
}

/// Whether a descriptor is the standard output or error of before the begin.
pub fn is_standard(fd: c_int) -> bool {
    standard(fd).is_some_and(|standard| !standard.is_other.load(Ordering::Relaxed))
}

fn standard_flag(fd: c_int) -> u16 {
    match is_standard(fd) {
        true => STANDARD,
        false => 0,
    }
}

/// Flags of records from those of open(2).
#[inline]
fn record_flags(flags: c_int) -> u16 {
    let has = |bits: c_int, flag: u8| if flags & bits != 0 { u16::from(flag) } else { 0 };
    has(libc::O_DIRECT, flag::DIRECT)
        | has(libc::O_DSYNC | (libc::O_SYNC & !libc::O_DSYNC), flag::SYNC)
        | has(libc::O_APPEND, flag::APPEND)
}

/// A new descriptor. Leaves errno as it is.
#[inline]
fn attach(fd: c_int, name: Name, flags: c_int, more: u16) -> Option<&'static Open> {
    let place = place(fd)?;
    let is_new = more & SHARED == 0;
    let own = if is_new { own(fd as usize) } else { None };
    let (number, open) = match own {
        Some(own) => own,
        None => replaced(fd)?,
    };
    let seekable = matches!(name.kind(), kind::REGULAR | kind::UNKNOWN);
    let device = name.kind() == kind::DEVICE && block_device(fd);
    let cloexec = if flags & libc::O_CLOEXEC != 0 { CLOEXEC } else { 0 };
    let seekable = if seekable || device { SEEKABLE } else { 0 };
    open.file.store(name.id(), Ordering::Relaxed);
    open.flags.store(record_flags(flags) | seekable | cloexec | more, Ordering::Relaxed);
    open.generation.store(trace::generation(), Ordering::Relaxed);
    open.epoch.store(HOT.epoch.load(Ordering::Relaxed), Ordering::Relaxed);
    open.position.store(0, Ordering::Relaxed);
    open.stream_position.store(0, Ordering::Relaxed);
    open.stream.store(0, Ordering::Relaxed);
    open.stream_kept.store(0, Ordering::Relaxed);
    open.stream_calls.store(0, Ordering::Relaxed);
    open.written.store(0, Ordering::Relaxed);
    // Mostly it was there before, and looking is cheaper.
    if HOT.highest.load(Ordering::Relaxed) < fd {
        HOT.highest.fetch_max(fd, Ordering::Relaxed);
    }
    place.store(number, Ordering::Release);
    Some(open)
}

#[cold]
fn block_device(fd: c_int) -> bool {
    let _errno = sys::Errno::keep();
    sys::position(fd) >= 0
        && sys::fstat(fd).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFBLK)
}

/// Takes the entry of the number of a descriptor that this thread just opened, if neither an earlier descriptor of it nor copies have it. No
/// other thread can want it, for the kernel gives a number once, and who has no copy cannot make one: it need not keep other processors
/// away.
#[inline(always)]
fn own(fd: usize) -> Option<(u32, &'static Open)> {
    let open = OPEN.get(fd)?;
    let (number, count) = (&open.of_descriptor, &open.references);
    if number.load(Ordering::Relaxed) | count.load(Ordering::Acquire) != 0 {
        return None;
    }
    count.store(1, Ordering::Relaxed);
    Some((fd as u32 + 1, open))
}

/// An entry for a descriptor whose number has one, of an earlier descriptor or of its copies, or which this process did not open: first
/// tried where its number says, then beyond the places of numbers.
#[cold]
fn replaced(fd: c_int) -> Option<(u32, &'static Open)> {
    let_go(fd);
    let after = || {
        (0..DESCRIPTORS).find_map(|step| taken(DESCRIPTORS + (fd as usize + step) % DESCRIPTORS))
    };
    taken(fd as usize).or_else(after)
}

/// Takes an entry, if nobody has it.
#[inline(always)]
fn taken(at: usize) -> Option<(u32, &'static Open)> {
    let open = OPEN.get(at)?;
    let taken = open.references.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
    taken.is_ok().then_some((at as u32 + 1, open))
}

/// A file that this process opened. Leaves errno as it is.
#[inline]
pub fn opened(fd: c_int, name: Name, flags: c_int) {
    is_other_now(fd);
    attach(fd, name.learn(fd), flags, 0);
}

/// A stream over a descriptor that this process opened with it.
pub fn stream_opened(fd: c_int, name: Name, append: bool, stream: usize) {
    let flags = if append { libc::O_APPEND } else { 0 };
    is_other_now(fd);
    let Some(open) = attach(fd, name.learn(fd), flags, STREAM) else { return };
    open.stream.store(stream, Ordering::Relaxed);
    if append {
        let end = sys::fstat(fd).map_or(0, |stat| stat.st_size as u64);
        open.stream_position.store(end, Ordering::Relaxed);
    }
}

/// A stream over a descriptor that was there before.
pub fn stream_adopted(fd: c_int, stream: usize) {
    if let Some(open) = known(fd) {
        open.stream.store(stream, Ordering::Relaxed);
    }
}

/// A descriptor of standard output or error is of another file from now on.
#[inline(always)]
fn is_other_now(fd: c_int) {
    if let Some(standard) = standard(fd) {
        note_other(fd, standard);
    }
}

#[cold]
fn note_other(fd: c_int, standard: &Standard) {
    if !standard.is_other.swap(true, Ordering::Relaxed) {
        standard.written.store(written_to_standard(fd), Ordering::Relaxed);
    }
}

/// Bytes that calls which were seen wrote to standard output or error, while it is what it was at the begin.
fn written_to_standard(fd: c_int) -> u64 {
    match known(fd) {
        Some(open) if open.flags.load(Ordering::Relaxed) & STANDARD != 0 => {
            open.written.load(Ordering::Relaxed)
        }
        _ => 0,
    }
}

/// A descriptor is no more.
#[inline]
pub fn detach(fd: c_int) {
    is_other_now(fd);
    let_go(fd);
}

#[inline]
fn let_go(fd: c_int) {
    let Some(place) = place(fd) else { return };
    if place.load(Ordering::Relaxed) == 0 {
        return;
    }
    let index = place.swap(0, Ordering::AcqRel);
    if let Some(open) = index.checked_sub(1).and_then(|index| OPEN.get(index as usize)) {
        open.references.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Descriptors in a range are no more; with `cloexec`, they will not be after an exec.
pub fn detach_range(first: u32, last: u32) {
    let highest = HOT.highest.load(Ordering::Relaxed).max(STANDARDS.len() as c_int) as u32;
    for fd in first..=last.min(highest) {
        detach(fd as c_int);
    }
}

/// `copy` is another descriptor of what `fd` is.
pub fn copied(fd: c_int, copy: c_int) {
    if fd == copy || get(fd).open.is_none() {
        return;
    }
    detach(copy);
    let (Some(from), Some(to)) = (place(fd), place(copy)) else { return };
    let index = from.load(Ordering::Acquire);
    if let Some(open) = index.checked_sub(1).and_then(|index| OPEN.get(index as usize)) {
        open.references.fetch_add(1, Ordering::AcqRel);
        HOT.highest.fetch_max(copy, Ordering::Relaxed);
        to.store(index, Ordering::Release);
    }
}

/// F_SETFL: append and direct can change.
pub fn flags_changed(fd: c_int, flags: c_int) {
    if let Some(open) = get(fd).open {
        let mask = u16::from(flag::APPEND | flag::DIRECT);
        open.flags.fetch_and(!mask, Ordering::Relaxed);
        open.flags.fetch_or(record_flags(flags) & mask, Ordering::Relaxed);
    }
}

/// At the begin: where standard output and error stand, if they are regular files.
pub fn note_standards() {
    for (fd, standard) in (1..).zip(&STANDARDS) {
        let Some(stat) = sys::fstat(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
        else {
            standard.is_other.store(true, Ordering::Relaxed);
            continue;
        };
        let append = sys::status_flags(fd) & libc::O_APPEND != 0;
        let position = if append { stat.st_size } else { sys::position(fd) };
        let position = u64::try_from(position).unwrap_or(layout::NO_OFFSET);
        standard.position.store(position, Ordering::Relaxed);
        standard.inode.store(stat.st_ino ^ stat.st_dev.rotate_left(32), Ordering::Relaxed);
    }
}

/// At the end, or when its stream is closed: how many bytes were written to standard output or error, which stands at `now`,
/// since the begin, by calls that were not seen, and by those that were. `None` if it is another file, or the process shares it with others that it made.
pub fn moved_of_standard(fd: c_int, now: u64) -> Option<(u64, u64)> {
    let this = standard(fd)?;
    let begun = this.position.load(Ordering::Relaxed);
    let is_other = this.is_other.load(Ordering::Relaxed) || begun == layout::NO_OFFSET;
    if is_other || HOT.epoch.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let mut seen = written_to_standard(fd);
    let other = standard(3 - fd)?;
    if other.inode.load(Ordering::Relaxed) == this.inode.load(Ordering::Relaxed) {
        // Both are one file: its bytes are told of once.
        if fd == 2 {
            return None;
        }
        seen += other.written.load(Ordering::Relaxed).max(written_to_standard(3 - fd));
    }
    Some((now.checked_sub(begun)?.checked_sub(seen)?, seen))
}

/// Streams that this process opened and did not close, for the end of the process.
pub fn streams(mut each: impl FnMut(usize)) {
    for fd in 0..=HOT.highest.load(Ordering::Relaxed) {
        let stream = known(fd).map_or(0, |open| open.stream.load(Ordering::Relaxed));
        if stream != 0 {
            each(stream);
        }
    }
}

impl Fd {
    /// Where a call by position began that moved so many bytes (0: none, or it failed), and moves the
    /// position on.
    #[inline(always)]
    pub fn moved(&self, bytes: i64, write: bool) -> u64 {
        let Some(open) = self.open else { return layout::NO_OFFSET };
        let flags = open.flags.load(Ordering::Relaxed);
        if flags & SEEKABLE == 0 {
            return layout::NO_OFFSET;
        }
        let bytes = bytes.max(0) as u64;
        let append = write && flags & u16::from(flag::APPEND) != 0;
        let own = open.epoch.load(Ordering::Relaxed) == HOT.epoch.load(Ordering::Relaxed);
        if flags & SHARED == 0 && !append && own {
            return open.position.fetch_add(bytes, Ordering::Relaxed);
        }
        if write && flags & STANDARD != 0 {
            open.written.fetch_add(bytes, Ordering::Relaxed);
        }
        self.asked(open, bytes)
    }

    /// The same, of the kernel.
    #[cold]
    fn asked(&self, open: &Open, bytes: u64) -> u64 {
        let _errno = sys::Errno::keep();
        match u64::try_from(sys::position(self.fd)) {
            Ok(position) => {
                open.position.store(position, Ordering::Relaxed);
                position.saturating_sub(bytes)
            }
            Err(_) => {
                // A pipe or terminal: it has none.
                open.flags.fetch_and(!SEEKABLE, Ordering::Relaxed);
                layout::NO_OFFSET
            }
        }
    }

    /// The position was set.
    pub fn moved_to(&self, position: u64) {
        if let Some(open) = self.open {
            open.position.store(position, Ordering::Relaxed);
        }
    }

    /// Where a stream moved so many bytes. `ask` gives its position after that.
    #[inline(always)]
    pub fn stream_moved(&self, bytes: u64, ask: impl FnOnce() -> i64) -> u64 {
        let Some(open) = self.open else { return layout::NO_OFFSET };
        let flags = open.flags.load(Ordering::Relaxed);
        if flags & SEEKABLE == 0 {
            return layout::NO_OFFSET;
        }
        if flags & STANDARD != 0 {
            open.written.fetch_add(bytes, Ordering::Relaxed);
        }
        if flags & STREAM != 0 {
            return open.stream_position.fetch_add(bytes, Ordering::Relaxed);
        }
        let _errno = sys::Errno::keep();
        match u64::try_from(ask()) {
            Ok(position) => {
                self.stream_at(position);
                position.saturating_sub(bytes)
            }
            Err(_) => layout::NO_OFFSET,
        }
    }

    /// A call that writes to the stream begins. True if calls that are not seen have written to it since the last one: its buffer,
    /// which `kept` tells, is not as that one left it. Not told while others write to it.
    #[inline(always)]
    pub fn stream_writes(&self, kept: impl FnOnce() -> u64) -> bool {
        let Some(open) = self.open else { return false };
        let alone = open.stream_calls.fetch_add(1, Ordering::Relaxed) == 0;
        alone && open.stream_kept.load(Ordering::Relaxed) != kept()
    }

    /// That call has ended.
    #[inline(always)]
    pub fn stream_wrote(&self, kept: impl FnOnce() -> u64) {
        if let Some(open) = self.open {
            open.stream_kept.store(kept(), Ordering::Relaxed);
            open.stream_calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The position of a stream is this.
    pub fn stream_at(&self, position: u64) {
        if let Some(open) = self.open {
            open.stream_position.store(position, Ordering::Relaxed);
            open.flags.fetch_or(STREAM, Ordering::Relaxed);
        }
    }

    /// Where the calls that were seen left a stream that only this process has; `None` if that is not known.
    pub fn stream_seen(&self) -> Option<u64> {
        let open = self.open?;
        let flags = open.flags.load(Ordering::Relaxed);
        let own = open.epoch.load(Ordering::Relaxed) == HOT.epoch.load(Ordering::Relaxed);
        let known = flags & STREAM != 0 && flags & SEEKABLE != 0 && flags & SHARED == 0 && own;
        known.then(|| open.stream_position.load(Ordering::Relaxed))
    }
}
