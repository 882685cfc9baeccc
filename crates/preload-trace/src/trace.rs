//! The file of this process and the cursors of its threads.
//!
//! Invariants: a slot is given to one writer, by one compare-and-swap on its thread's cursor, which a
//! signal handler may interrupt at any point; a block is given out once, by the counter in the header; a
//! block that was given out and has a head was made present before. The state lies in a page that a child
//! of fork finds empty: generation 0 means that there is no file yet.

use crate::{clock, names, sys};
use blocks::{forget_block, forget_run, made_present, present};
use forebay_trace_format::Op;
use forebay_trace_format::layout::{self, flag, header, lost, told, two};
use std::cell::Cell;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};

mod blocks;

/// Largest file of a process if nobody says otherwise.
const LIMIT_DEFAULT: u64 = 4 << 30;
/// Smallest one that is tried.
const LIMIT_MIN: u64 = 1 << 20;
/// A file grows by a quarter, at least and at most by so much.
const GROW: (u64, u64) = (1 << 20, 64 << 20);
/// How often a thread gives way to the one that makes or extends the file before its record is lost.
const PATIENCE: u32 = 10_000;
/// Partly filled blocks of ended threads that are kept for new ones.
const FREE_BLOCKS: usize = 256;
/// After a refusal of the file system it is left alone for so many ticks (some ms).
const REFUSED_TICKS: u64 = 1 << 24;
/// How long a process waits to tell that it has no file.
const TELL_PATIENCE_MS: u64 = 200;
/// Most bytes of the name of the socket to which it is told.
const TELL_MAX: usize = 64;
/// Longest path of the file.
const PATH_MAX: usize = 4096;

/// State of this process; zeros in a child of fork.
#[repr(C)]
struct Page {
    /// Not 0: the file is there.
    generation: AtomicU32,
    /// Id of the working directory's name, 0 if unknown. Beside the generation: a call with a relative name reads both.
    cwd: AtomicU32,
    /// 1: somebody makes the file; 2: it could not be made.
    making: AtomicU32,
    /// Not 0: the file has its name, and is there under it.
    named: AtomicU32,
    /// Not 0: it was told that there is no file.
    told: AtomicU32,
    /// Calls without a record since there is no file.
    lost_before: AtomicU64,
    /// Where the file is mapped.
    base: AtomicPtr<u8>,
    /// Blocks that the mapping has.
    limit_blocks: AtomicU64,
    /// Blocks that the file has.
    file_blocks: AtomicU64,
    /// Somebody extends the file.
    extending: AtomicU32,
    /// Blocks that were made present together, see `blocks::packed`.
    present: AtomicU64,
    /// The last id given to a name.
    names: AtomicU32,
    /// Ticks before which the file system is not asked again.
    refused_until: AtomicU64,
    /// Process of the file.
    pid: AtomicU32,
    /// Cursors that threads left at their ends, 0: none.
    free: [AtomicU64; FREE_BLOCKS],
}

/// The cursor of a thread.
struct Thread {
    /// Of the file that the cursor is in.
    generation: Cell<u32>,
    /// Next slot, counted from the begin of the file; on a block's boundary there is none left.
    next: AtomicU64,
    tid: Cell<u32>,
    /// Full blocks of it that are still in memory, see `blocks::packed`.
    full: Cell<u64>,
}

/// Where this thread's cursor lies: one load and one addition. What the compiler makes of `thread_local!` in a library calls the
/// loader for it at each record. A preloaded library is there before the first thread, so its part of each thread's memory has a fixed place.
#[cfg(target_arch = "x86_64")]
mod local {
    use super::Thread;

    core::arch::global_asm!(
        ".pushsection .tbss.forebay_trace_thread,\"awT\",@nobits",
        ".hidden forebay_trace_thread",
        ".globl forebay_trace_thread",
        ".type forebay_trace_thread,@object",
        ".size forebay_trace_thread,{bytes}",
        // A line of the processor's cache has all of it, wherever the loader puts it.
        ".balign 32",
        "forebay_trace_thread:",
        ".zero {bytes}",
        ".popsection",
        bytes = const size_of::<Thread>(),
    );

    /// Gives `body` the cursor of this thread. It begins as zeros, which are a valid one.
    #[inline(always)]
    pub fn with<T>(body: impl FnOnce(&Thread) -> T) -> T {
        let thread: *const Thread;
        // SAFETY: reads the place of the variable above, which each thread has from its begin to its end; no other has its address.
        unsafe {
            core::arch::asm!(
                "mov {thread}, qword ptr [rip + forebay_trace_thread@GOTTPOFF]",
                "add {thread}, qword ptr fs:[0]",
                thread = out(reg) thread,
                options(nostack, pure, readonly),
            );
            body(&*thread)
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod local {
    use super::{AtomicU64, Cell, Thread};

    thread_local! {
        static THREAD: Thread = const {
            Thread {
                generation: Cell::new(0),
                next: AtomicU64::new(0),
                tid: Cell::new(0),
                full: Cell::new(0),
            }
        };
    }

    /// Gives `body` the cursor of this thread.
    #[inline(always)]
    pub fn with<T>(body: impl FnOnce(&Thread) -> T) -> T {
        THREAD.with(body)
    }
}

/// What each call reads and hardly any changes: one line of the processor's cache, which the kernel's own work has mostly thrown out.
#[repr(C, align(64))]
pub struct Hot {
    off: AtomicBool,
    /// Which clock it is: see `clock`.
    pub clock: AtomicU8,
    /// Goes up when descriptors became shared with another process: see `files`.
    pub epoch: AtomicU32,
    /// The highest descriptor that was seen: see `files`.
    pub highest: AtomicI32,
    page: AtomicPtr<Page>,
}

/// The only one.
pub static HOT: Hot = Hot {
    off: AtomicBool::new(false),
    clock: AtomicU8::new(0),
    epoch: AtomicU32::new(0),
    highest: AtomicI32::new(0),
    page: AtomicPtr::new(std::ptr::null_mut()),
};

/// Counts files of this process and those that it was forked from. Survives fork.
static GENERATIONS: AtomicU32 = AtomicU32::new(0);
/// The mapping of the process that this one was forked from.
static OLD_BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static OLD_BYTES: AtomicU64 = AtomicU64::new(0);
/// Its destructor gives a thread's block back; -1: none.
static THREAD_END: AtomicU32 = AtomicU32::new(u32::MAX);
static BEGINNING: AtomicU32 = AtomicU32::new(0);

/// What never changes after the begin.
struct Config {
    dir: [u8; PATH_MAX],
    dir_bytes: usize,
    host: [u8; header::HOST_MAX],
    host_bytes: usize,
    /// The socket to which it is told that there is no file.
    tell: [u8; TELL_MAX],
    tell_bytes: usize,
    limit: u64,
    hint_hz: u64,
    rank: i32,
    ranks: i32,
    counter: bool,
}

/// A cell that is written once, before [`Hot::page`] is set, and then only read.
struct Once<T>(std::cell::UnsafeCell<T>);
// SAFETY: written by the one thread that sets `BEGINNING` from 0 to 1; read after the page is set.
unsafe impl<T> Sync for Once<T> {}

static CONFIG: Once<Config> = Once(std::cell::UnsafeCell::new(Config {
    dir: [0; PATH_MAX],
    dir_bytes: 0,
    host: [0; header::HOST_MAX],
    host_bytes: 0,
    tell: [0; TELL_MAX],
    tell_bytes: 0,
    limit: LIMIT_DEFAULT,
    hint_hz: 0,
    rank: -1,
    ranks: -1,
    counter: false,
}));

/// The path of this process's file, with a 0 at its end.
static PATH: Once<[u8; PATH_MAX]> = Once(std::cell::UnsafeCell::new([0; PATH_MAX]));

/// True if nothing is recorded.
#[inline(always)]
pub fn is_off() -> bool {
    HOT.off.load(Ordering::Relaxed)
}

fn page() -> Option<&'static Page> {
    // SAFETY: NULL or a page that stays mapped; its fields are atomic.
    unsafe { HOT.page.load(Ordering::Acquire).as_ref() }
}

/// Number of the file that records go to now, 0 if there is none yet.
#[inline(always)]
pub fn generation() -> u32 {
    page().map_or(0, |page| page.generation.load(Ordering::Acquire))
}

/// Id of the working directory's name, 0 if unknown.
pub fn cwd() -> &'static AtomicU32 {
    static NONE: AtomicU32 = AtomicU32::new(0);
    page().map_or(&NONE, |page| &page.cwd)
}

/// A new id for a name.
pub fn new_name() -> u32 {
    page().map_or(0, |page| page.names.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
}

/// Begins: called by the loader, or by the first call of another library's constructor.
#[cold]
pub fn begin() {
    if BEGINNING.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    // SAFETY: only this thread comes here, once, and nobody reads before the page is set.
    let config = unsafe { &mut *CONFIG.0.get() };
    if !configure(config) {
        HOT.off.store(true, Ordering::Relaxed);
        return;
    }
    let page = sys::wiped_on_fork(size_of::<Page>());
    if page.is_null() {
        HOT.off.store(true, Ordering::Relaxed);
        return;
    }
    let mut key = 0;
    // SAFETY: the key lives during the call; the destructor has the type that is asked for.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
        THREAD_END.store(key, Ordering::Relaxed);
    }
    HOT.page.store(page.cast(), Ordering::Release);
    ready();
}

/// A variable of the environment.
fn variable(name: &std::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string; what is found stays until the program changes its environment.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value).to_bytes())
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for digit in text {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (!text.is_empty()).then_some(value)
}

/// Copies what fits; the number of bytes.
fn copy(to: &mut [u8], from: &[u8]) -> usize {
    let mut count = 0;
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
        count += 1;
    }
    count
}

/// Variables in which launchers give the rank, each with the one of the number of ranks.
const RANKS: [(&std::ffi::CStr, &std::ffi::CStr); 6] = [
    (c"OMPI_COMM_WORLD_RANK", c"OMPI_COMM_WORLD_SIZE"),
    (c"PMIX_RANK", c"PMIX_SIZE"),
    (c"PMI_RANK", c"PMI_SIZE"),
    (c"MV2_COMM_WORLD_RANK", c"MV2_COMM_WORLD_SIZE"),
    (c"PALS_RANKID", c"PALS_SIZE"),
    (c"SLURM_PROCID", c"SLURM_NTASKS"),
];

/// Reads the environment; false if nothing is to be recorded.
fn configure(config: &mut Config) -> bool {
    let Some(dir) = variable(c"FOREBAY_TRACE_DIR") else { return false };
    // Room for the name of the file.
    if dir.first() != Some(&b'/') || dir.len() + header::HOST_MAX + 64 > PATH_MAX {
        return false;
    }
    config.dir_bytes = copy(&mut config.dir, dir);
    // SAFETY: zeros are a valid value of the struct, which lives during the call.
    let name = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut name);
        name
    };
    let host =
        name.nodename.map(|byte| if byte == b'/' as libc::c_char { b'_' } else { byte as u8 });
    let end = host.iter().position(|byte| *byte == 0).unwrap_or(host.len());
    config.host_bytes = copy(&mut config.host, host.get(..end).unwrap_or(&[]));
    if let Some(name) = variable(c"FOREBAY_TRACE_TELL").filter(|name| name.len() <= TELL_MAX) {
        config.tell_bytes = copy(&mut config.tell, name);
    }
    if let Some(limit) = variable(c"FOREBAY_TRACE_LIMIT").and_then(number) {
        config.limit = limit.max(LIMIT_MIN);
    }
    // HOST:HZ, for the processor of another host runs at another rate.
    if let Some(hint) = variable(c"FOREBAY_TRACE_CLOCK") {
        let colon = hint.iter().rposition(|byte| *byte == b':');
        if let Some((host, hz)) = colon.and_then(|at| hint.split_at_checked(at)) {
            if config.host.get(..config.host_bytes) == Some(host) {
                config.hint_hz = hz.get(1..).and_then(number).unwrap_or(0);
            }
        }
    }
    for (rank, ranks) in RANKS {
        if let Some(rank) = variable(rank).and_then(number) {
            config.rank = rank as i32;
            config.ranks = variable(ranks).and_then(number).map_or(-1, |ranks| ranks as i32);
            break;
        }
    }
    config.counter = clock::choose();
    true
}

/// Makes the file if it is not there. True if it is.
#[cold]
fn ready() -> bool {
    let Some(page) = page() else {
        begin();
        return generation() != 0;
    };
    for _ in 0..PATIENCE {
        if page.generation.load(Ordering::Acquire) != 0 {
            return true;
        }
        match page.making.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let made = make(page);
                match made {
                    Ok(()) if page.told.swap(0, Ordering::Relaxed) != 0 => tell(told::MADE, 0, 0),
                    Err(errno) if page.told.swap(1, Ordering::Relaxed) == 0 => {
                        tell(told::NOT_MADE, errno, 0);
                    }
                    _ => {}
                }
                page.making.store(if made.is_ok() { 0 } else { 2 }, Ordering::Release);
                return made.is_ok();
            }
            Err(2) => return again(page),
            Err(_) => sys::give_way(),
        }
    }
    false
}

/// Tells the program that traces this one what became of its file.
fn tell(what: u32, errno: i32, calls: u64) {
    // SAFETY: the page is set, so it was written.
    let config = unsafe { &*CONFIG.0.get() };
    let mut message = [0; told::BYTES];
    let texts = what.to_le_bytes().into_iter().chain(errno.to_le_bytes());
    for (to, from) in message.iter_mut().zip(texts.chain(calls.to_le_bytes())) {
        *to = from;
    }
    let name = config.tell.get(..config.tell_bytes).unwrap_or(&[]);
    // On another node, or where that program is gone, nobody counts.
    sys::send_to(name, &message, TELL_PATIENCE_MS);
}

/// A file that could not be made is tried again, at most every some milliseconds.
fn again(page: &Page) -> bool {
    let now = clock::ticks();
    if now < page.refused_until.load(Ordering::Relaxed) {
        return false;
    }
    page.refused_until.store(now.wrapping_add(REFUSED_TICKS), Ordering::Relaxed);
    page.making.compare_exchange(2, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() && ready()
}

/// Appends text; what does not fit is left out, and then the path does not end with a 0.
fn append(to: &mut [u8], at: &mut usize, text: &[u8]) {
    if let Some(to) = to.get_mut(*at..) {
        *at += copy(to, text);
    }
}

/// Digits of a number in a base up to 16.
fn digits(mut value: u64, base: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at = at.saturating_sub(1);
        let digit = b"0123456789abcdef".get((value % base) as usize).copied().unwrap_or(b'0');
        if let Some(place) = buffer.get_mut(at) {
            *place = digit;
        }
        value /= base;
        if value == 0 || at == 0 {
            return buffer.get(at..).unwrap_or(&[]);
        }
    }
}

/// Opens the file of this process; under one name, however often it is tried. -1 and errno if it cannot be.
fn open_file(page: &Page, config: &Config) -> i32 {
    // SAFETY: only who holds `making` comes here; readers come after `generation` is set.
    let path = unsafe { &mut *PATH.0.get() };
    if page.named.load(Ordering::Relaxed) != 0 {
        let fd = sys::open(path, libc::O_RDWR | libc::O_CLOEXEC, 0);
        if fd >= 0 || sys::errno() != libc::ENOENT {
            return fd;
        }
    }
    let (pid, ticks) = (sys::pid(), clock::ticks());
    path.fill(0);
    let (mut at, mut buffer) = (0, [0; 20]);
    append(path, &mut at, config.dir.get(..config.dir_bytes).unwrap_or(&[]));
    append(path, &mut at, b"/");
    append(path, &mut at, config.host.get(..config.host_bytes).unwrap_or(&[]));
    append(path, &mut at, b".");
    append(path, &mut at, digits(pid.into(), 10, &mut buffer));
    append(path, &mut at, b".");
    append(path, &mut at, digits(ticks, 16, &mut buffer));
    append(path, &mut at, b".fbt");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    let fd = sys::open(path, flags, 0o644);
    page.named.store((fd >= 0).into(), Ordering::Relaxed);
    fd
}

/// Makes and maps the file of this process.
///
/// # Errors
/// The errno for which it could not be; ENOSPC also where there was no memory.
fn make(page: &Page) -> Result<(), i32> {
    // SAFETY: the page is set, so it was written.
    let config = unsafe { &*CONFIG.0.get() };
    let pid = sys::pid();
    page.pid.store(pid, Ordering::Relaxed);
    let fd = open_file(page, config);
    if fd < 0 {
        return Err(sys::errno());
    }
    // A larger file would raise SIGXFSZ.
    let mut limit = config.limit.min(sys::file_limit()) / layout::BLOCK_BYTES as u64;
    let first = (GROW.0 / layout::BLOCK_BYTES as u64).min(limit);
    let mut base: *mut u8 = std::ptr::null_mut();
    if first >= 2 && sys::ftruncate(fd, first * layout::BLOCK_BYTES as u64) {
        // RLIMIT_AS may allow less.
        while base.is_null() && limit >= first {
            base = sys::map(fd, limit as usize * layout::BLOCK_BYTES);
            if base.is_null() {
                limit /= 2;
            }
        }
    }
    sys::close(fd);
    if base.is_null() {
        return Err(libc::ENOSPC);
    }
    let bytes = limit as usize * layout::BLOCK_BYTES;
    sys::advise(base, bytes, libc::MADV_DONTDUMP);
    if !present(base, 0, layout::HEADER_USED_BYTES) {
        // SAFETY: nobody has the address yet.
        unsafe { sys::unmap(base, bytes) };
        return Err(libc::ENOSPC);
    }
    let old = OLD_BASE.swap(base, Ordering::Relaxed);
    let old_bytes = OLD_BYTES.swap(bytes as u64, Ordering::Relaxed);
    if !old.is_null() {
        // SAFETY: the mapping of the process that this one was forked from: the cursors into it are of an
        // older generation, so no thread of this process uses it.
        unsafe { sys::unmap(old, old_bytes as usize) };
    }
    let forked = GENERATIONS.load(Ordering::Relaxed) > 0;
    page.base.store(base, Ordering::Relaxed);
    page.limit_blocks.store(limit, Ordering::Relaxed);
    page.file_blocks.store(first, Ordering::Relaxed);
    if forked {
        // What was open before is shared with the process that this one was forked from.
        HOT.epoch.fetch_add(1, Ordering::Relaxed);
    }
    let lost_before = page.lost_before.swap(0, Ordering::Relaxed);
    write_header(base, config, (pid, forked), limit, lost_before);
    let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    page.generation.store(generation, Ordering::Release);
    Ok(())
}

/// A field of the header.
fn field64(base: *mut u8, at: usize) -> &'static AtomicU64 {
    // SAFETY: within the header, which is mapped and aligned to 8 for the offsets of `header`.
    unsafe { &*base.add(at).cast::<AtomicU64>() }
}

/// A field of the header.
fn field32(base: *mut u8, at: usize) -> &'static AtomicU32 {
    // SAFETY: within the header, which is mapped and aligned to 4 for the offsets of `header`.
    unsafe { &*base.add(at).cast::<AtomicU32>() }
}

fn write_header(
    base: *mut u8,
    config: &Config,
    (pid, forked): (u32, bool),
    limit: u64,
    lost_before: u64,
) {
    let set32 = |at, value| field32(base, at).store(value, Ordering::Relaxed);
    let set64 = |at, value| field64(base, at).store(value, Ordering::Relaxed);
    let (ppid, uid) = sys::parent_and_user();
    set32(header::VERSION, layout::VERSION);
    set32(header::BLOCK_BYTES, layout::BLOCK_BYTES as u32);
    set32(header::SLOT_BYTES, layout::SLOT_BYTES as u32);
    set32(header::COUNTER, config.counter.into());
    set32(header::PID, pid);
    set32(header::PPID, ppid);
    set32(header::UID, uid);
    set32(header::RANK, config.rank as u32);
    set32(header::RANKS, config.ranks as u32);
    set32(header::FORKED, forked.into());
    set64(header::HINT_HZ, config.hint_hz);
    set_anchor(base, header::ANCHOR);
    set64(header::BLOCKS, 1);
    set64(header::LIMIT_BYTES, limit * layout::BLOCK_BYTES as u64);
    set64(header::LOST, lost_before);
    if lost_before > 0 {
        set32(header::LOST_WHY, lost::NO_FILE);
    }
    // SAFETY: `at + max` bytes of the header are mapped, and nobody else has it yet.
    let text = |at, max| unsafe { std::slice::from_raw_parts_mut(base.add(at), max) };
    let host = config.host.get(..config.host_bytes).unwrap_or(&[]);
    let host_bytes = copy(text(header::HOST, header::HOST_MAX), host);
    let exe = text(header::EXE, header::EXE_MAX);
    let exe_bytes = sys::readlink(b"/proc/self/exe\0", exe).len();
    let argv = text(header::ARGV, header::ARGV_MAX);
    let argv_bytes = names::read_file(b"/proc/self/cmdline\0", argv);
    for (at, bytes) in [host_bytes, exe_bytes, argv_bytes].into_iter().enumerate() {
        set32(header::TEXT_BYTES + 4 * at, bytes as u32);
    }
    set64(header::MAGIC, u64::from_le_bytes(layout::MAGIC));
}

fn set_anchor(base: *mut u8, at: usize) {
    let before = clock::ticks();
    let boottime = clock::nanoseconds(libc::CLOCK_BOOTTIME);
    let after = clock::ticks();
    let realtime = clock::nanoseconds(libc::CLOCK_REALTIME);
    // The middle, for a thread may be stopped in between.
    field64(base, at).store(before.wrapping_add(after.wrapping_sub(before) / 2), Ordering::Relaxed);
    field64(base, at + 8).store(boottime, Ordering::Relaxed);
    field64(base, at + 16).store(realtime, Ordering::Relaxed);
}

/// Writes the later anchor. Two threads at once: the second leaves it to the first.
pub fn later_anchor() {
    let Some(page) = page().filter(|page| page.generation.load(Ordering::Acquire) != 0) else {
        return;
    };
    let base = page.base.load(Ordering::Relaxed);
    let sequence = field64(base, header::ANCHOR_SEQUENCE);
    let was = sequence.load(Ordering::Acquire);
    let odd = was.wrapping_add(1);
    if was % 2 == 0
        && sequence.compare_exchange(was, odd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        set_anchor(base, header::ANCHOR_LATER);
        sequence.store(was.wrapping_add(2), Ordering::Release);
    }
}

/// Notes how the process ends; not for a vfork child, which runs in its parent's memory.
pub fn ended(how: u32) {
    let Some(page) = page().filter(|page| page.pid.load(Ordering::Relaxed) == sys::pid()) else {
        return;
    };
    if page.generation.load(Ordering::Acquire) == 0 {
        let calls = page.lost_before.swap(0, Ordering::Relaxed);
        if calls > 0 && page.told.load(Ordering::Relaxed) != 0 {
            tell(told::ENDED, 0, calls);
        }
    } else {
        later_anchor();
        let base = page.base.load(Ordering::Relaxed);
        field32(base, header::ENDED).store(how, Ordering::Relaxed);
    }
}

/// A new block, made present; `None` if there is no room for one.
fn new_block(page: &Page) -> Option<u64> {
    let base = page.base.load(Ordering::Relaxed);
    let limit = page.limit_blocks.load(Ordering::Relaxed);
    let blocks = field64(base, header::BLOCKS);
    let lost_why = field32(base, header::LOST_WHY);
    if clock::ticks() < page.refused_until.load(Ordering::Relaxed) {
        return None;
    }
    let mut number = blocks.load(Ordering::Relaxed);
    loop {
        if number >= limit {
            lost_why.fetch_or(lost::LIMIT, Ordering::Relaxed);
            return None;
        }
        match blocks.compare_exchange(number, number + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => number = now,
        }
    }
    if !extended(page, number + 1) || !made_present(page, number) {
        lost_why.fetch_or(lost::SPACE, Ordering::Relaxed);
        let _ = blocks.compare_exchange(number + 1, number, Ordering::AcqRel, Ordering::Relaxed);
        let until = clock::ticks().wrapping_add(REFUSED_TICKS);
        page.refused_until.store(until, Ordering::Relaxed);
        return None;
    }
    Some(number)
}

/// Makes the file at least so many blocks long.
fn extended(page: &Page, blocks: u64) -> bool {
    for _ in 0..PATIENCE {
        if page.file_blocks.load(Ordering::Acquire) >= blocks {
            return true;
        }
        if page.extending.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::give_way();
            continue;
        }
        let now = page.file_blocks.load(Ordering::Relaxed);
        let block = layout::BLOCK_BYTES as u64;
        let wanted = (now + (now / 4).clamp(GROW.0 / block, GROW.1 / block)).max(blocks);
        let wanted = wanted.min(page.limit_blocks.load(Ordering::Relaxed));
        // SAFETY: set by `make`, which is over.
        let done = now >= blocks || sys::truncate(unsafe { &*PATH.0.get() }, wanted * block);
        if done && now < blocks {
            page.file_blocks.store(wanted, Ordering::Release);
        }
        page.extending.store(0, Ordering::Release);
        if !done {
            return false;
        }
    }
    false
}

/// Called at the end of a thread that recorded something.
unsafe extern "C" fn thread_ends(_: *mut libc::c_void) {
    let Some(page) = page() else { return };
    local::with(|thread| {
        let next = thread.next.swap(0, Ordering::Relaxed);
        if thread.generation.get() == generation() {
            forget_run(page, thread.full.replace(0));
        }
        if thread.generation.get() != generation() || next % layout::BLOCK_SLOTS == 0 {
            return;
        }
        for place in &page.free {
            if place.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    });
}

/// Room for a record in this thread's block.
#[inline(always)]
fn claim(slots: u64) -> Option<*mut AtomicU64> {
    // SAFETY: NULL or a page that stays mapped; its fields are atomic.
    let page = unsafe { HOT.page.load(Ordering::Relaxed).as_ref() };
    let Some(page) = page else { return claim_slowly(slots) };
    local::with(|thread| {
        let generation = page.generation.load(Ordering::Acquire);
        if generation != 0 && thread.generation.get() == generation {
            loop {
                let next = thread.next.load(Ordering::Relaxed);
                let at = next % layout::BLOCK_SLOTS;
                if at == 0 || at + slots > layout::BLOCK_SLOTS {
                    break;
                }
                if advanced(&thread.next, next, next + slots) {
                    return Some(address(page, next));
                }
            }
        }
        claim_slowly(slots)
    })
}

/// Sets a thread's cursor, if a signal handler has not moved it. Nobody but the thread itself does: one instruction is enough, and
/// it need not keep other processors away, which takes three times as long.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn advanced(cursor: &AtomicU64, from: u64, to: u64) -> bool {
    let was: u64;
    // SAFETY: the word lives, is aligned, and only this thread uses it.
    unsafe {
        core::arch::asm!(
            "cmpxchg qword ptr [{cursor}], {to}",
            cursor = in(reg) cursor.as_ptr(),
            to = in(reg) to,
            inout("rax") from => was,
            options(nostack),
        );
    }
    was == from
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn advanced(cursor: &AtomicU64, from: u64, to: u64) -> bool {
    cursor.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

#[inline(always)]
fn address(page: &Page, slot: u64) -> *mut AtomicU64 {
    let base = page.base.load(Ordering::Relaxed);
    // SAFETY: the slot is of a block that was made present, within the mapping.
    unsafe { base.add(slot as usize * layout::SLOT_BYTES).cast() }
}

/// The same where the thread has no block, or a full one. Counts what finds no room.
#[cold]
fn claim_slowly(slots: u64) -> Option<*mut AtomicU64> {
    let _errno = sys::Errno::keep();
    if !ready() {
        page()?.lost_before.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let page = page()?;
    let generation = page.generation.load(Ordering::Acquire);
    local::with(|thread| {
        if thread.generation.get() != generation || thread.tid.get() == 0 {
            thread.next.store(0, Ordering::Relaxed);
            thread.tid.set(sys::tid());
            thread.full.set(0);
            thread.generation.set(generation);
        }
        let left = thread.next.load(Ordering::Relaxed);
        if left == 0 {
            let key = THREAD_END.load(Ordering::Relaxed);
            // SAFETY: the key was made; any value but NULL makes the destructor run.
            unsafe { libc::pthread_setspecific(key, std::ptr::dangling::<u8>().cast()) };
            if let Some(slot) = take_over(page, thread.tid.get(), slots) {
                thread.next.store(slot + slots, Ordering::Relaxed);
                return Some(address(page, slot));
            }
        }
        let Some(number) = new_block(page) else {
            let base = page.base.load(Ordering::Relaxed);
            field64(base, header::LOST).fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let first = number * layout::BLOCK_SLOTS;
        let tid = thread.tid.get();
        write(address(page, first), [two(layout::BLOCK_HEAD.into(), tid), number, 0, 0]);
        thread.next.store(first + 1 + slots, Ordering::Relaxed);
        forget_block(page, thread, left);
        later_anchor();
        Some(address(page, first + 1))
    })
}

/// A block that an ended thread left, if one has room.
fn take_over(page: &Page, tid: u32, slots: u64) -> Option<u64> {
    for place in &page.free {
        let slot = place.load(Ordering::Relaxed);
        if slot == 0 || slot % layout::BLOCK_SLOTS + 1 + slots > layout::BLOCK_SLOTS {
            continue;
        }
        if place.compare_exchange(slot, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            write(address(page, slot), [two(layout::THREAD.into(), tid), 0, 0, 0]);
            return Some(slot + 1);
        }
    }
    None
}

/// Writes a slot, its first word last.
#[inline(always)]
fn write(slot: *mut AtomicU64, words: [u64; 4]) {
    // SAFETY: the slot is ours: four words in a present block.
    unsafe {
        (*slot.add(1)).store(words[1], Ordering::Relaxed);
        (*slot.add(2)).store(words[2], Ordering::Relaxed);
        (*slot.add(3)).store(words[3], Ordering::Relaxed);
        (*slot).store(words[0], Ordering::Release);
    }
}

/// A call, for its record.
#[derive(Clone, Copy)]
pub struct Call {
    pub op: Op,
    pub flags: u8,
    pub file: u32,
    /// [`layout::NO_OFFSET`] is none.
    pub offset: u64,
    pub length: u64,
    /// -errno if it failed.
    pub result: i64,
    /// Ticks of the begin.
    pub start: u64,
    /// Ticks of the end, taken before anything else is done for the record.
    pub end: u64,
}

/// Records a call.
#[inline(always)]
pub fn put(call: Call) {
    let duration = call.end.wrapping_sub(call.start);
    let narrow = (call.length | duration) >> 32 == 0
        && i64::from(call.result as i32) == call.result
        && call.offset <= layout::NO_OFFSET;
    if !narrow {
        put_wide(call, duration);
    } else if let Some(slot) = claim(1) {
        write(
            slot,
            [
                layout::first_word(call.op as u8, call.flags, call.offset),
                call.start,
                two(duration as u32, call.file),
                two(call.length as u32, call.result as u32),
            ],
        );
        // The next record but one lies in the next line of the cache. The kernel made this memory present a while ago: it
        // comes near while the program, or the kernel, does something else. At a block's end another one is fetched in vain.
        sys::bring_near(slot.cast::<u8>().wrapping_add(2 * layout::SLOT_BYTES));
    }
}

#[cold]
fn put_wide(call: Call, duration: u64) {
    let Some(slot) = claim(3) else { return };
    let continued = layout::CONTINUED.into();
    // SAFETY: three slots of four words were claimed.
    let (second, third) = unsafe { (slot.add(4), slot.add(8)) };
    write(second, [continued, call.length, call.result as u64, duration]);
    write(third, [continued, call.offset, 0, 0]);
    let flags = call.flags | flag::WIDE;
    let offset = call.offset.min(layout::NO_OFFSET);
    write(
        slot,
        [
            layout::first_word(call.op as u8, flags, offset),
            call.start,
            two(u32::MAX, call.file),
            two(u32::MAX, call.result as u32),
        ],
    );
}

/// Records a call that may not return, such as exec. Gives what [`correct`] needs.
pub fn put_early(call: Call) -> Option<*mut AtomicU64> {
    let slot = claim(1)?;
    let first = layout::first_word(call.op as u8, call.flags, call.offset);
    write(slot, [first, call.start, two(0, call.file), two(0, call.result as u32)]);
    Some(slot)
}

/// Writes the result of such a call that did return.
pub fn correct(slot: Option<*mut AtomicU64>, result: i64) {
    if let Some(slot) = slot {
        // SAFETY: the slot was claimed by this thread.
        unsafe { (*slot.add(3)).store(two(0, result as u32), Ordering::Relaxed) };
    }
}

/// Records a name.
pub fn put_name(id: u32, parent: u32, name: &[u8]) -> bool {
    let name = name.get(..layout::NAME_MAX).unwrap_or(name);
    let parts = name.chunks(layout::NAME_BYTES);
    let Some(slot) = claim(1 + parts.len() as u64) else { return false };
    for (at, part) in parts.enumerate() {
        let mut bytes = [0; layout::SLOT_BYTES];
        for (to, from) in bytes.iter_mut().zip([layout::CONTINUED].iter().chain(part)) {
            *to = *from;
        }
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        // SAFETY: so many slots of four words were claimed.
        write(unsafe { slot.add(4 * (at + 1)) }, words);
    }
    let first = u64::from(layout::NAME) | (name.len() as u64) << 16 | u64::from(id) << 32;
    write(slot, [first, parent.into(), 0, 0]);
    true
}

/// Records what a file is.
pub fn put_info(id: u32, kind: u8, device: u64, inode: u64) {
    if let Some(slot) = claim(1) {
        let first = u64::from(layout::FILE_INFO) | u64::from(kind) << 8 | u64::from(id) << 32;
        write(slot, [first, device, inode, 0]);
    }
}
