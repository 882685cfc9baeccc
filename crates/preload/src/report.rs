//! What was asked of mounts, and how much of it came back to the kernel: told at the end, if
//! `FOREBAY_PRELOAD_REPORT` names a file (a line is added to it) or is `-` (standard error).

use crate::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Operations, as the report names them, by their number.
const NAMES: [&str; 10] =
    ["other", "", "", "stat", "access", "open", "unlink", "fstat", "fsync", "exchange"];
/// Number of the calls on names that nobody is asked about.
pub const OTHER: u32 = 0;

/// Whether a report is wanted: what is only counted is looked at only then.
static WANTED: AtomicBool = AtomicBool::new(false);

static ANSWERED: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static LEFT: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static ALONE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static NOT_REACHED: AtomicU64 = AtomicU64::new(0);

/// A number as text.
pub fn decimal(number: u32, digits: &mut [u8; 12]) -> &[u8] {
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 || at == 0 {
            return &digits[at..];
        }
    }
}

/// A question came back with an answer, or was left to the kernel.
#[inline]
pub fn asked(operation: u32, answered: bool) {
    let counters = if answered { &ANSWERED } else { &LEFT };
    if let Some(counter) = counters.get(operation as usize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is done without a question.
#[derive(Clone, Copy)]
pub enum Alone {
    Open,
    Look,
}

/// It was done.
pub fn alone(what: Alone) {
    ALONE[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// There was nobody to ask.
pub fn not_reached() {
    NOT_REACHED.fetch_add(1, Ordering::Relaxed);
}

struct Text {
    bytes: [u8; 1024],
    length: usize,
}

impl Text {
    fn put(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.length..self.length + part.len()) {
            room.copy_from_slice(part);
            self.length += part.len();
        }
    }

    fn number(&mut self, number: u64) {
        let mut digits = [0; 12];
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let digits = decimal(number, &mut digits);
        self.put(digits);
    }
}

/// Where the report goes, as the environment says.
///
/// # Safety
/// Nobody changes the environment while the text is used.
unsafe fn wanted<'a>() -> Option<&'a CStr> {
    // SAFETY: a C string that lives.
    let wanted = unsafe { libc::getenv(c"FOREBAY_PRELOAD_REPORT".as_ptr()) };
    // SAFETY: a C string of the environment, which stays by the caller's promise.
    (!wanted.is_null()).then(|| unsafe { CStr::from_ptr(wanted) })
}

/// Before the program begins.
pub fn begin() {
    // SAFETY: there is no other thread yet.
    WANTED.store(unsafe { wanted() }.is_some(), Ordering::Relaxed);
}

/// Whether anybody reads what is counted.
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// At the end of the program.
pub fn end() {
    // SAFETY: what changes the environment has ended, or was wrong to.
    let Some(wanted) = (unsafe { wanted() }) else { return };
    let mut text = Text { bytes: [0; 1024], length: 0 };
    text.put(b"forebay preload: process ");
    text.number(raw::pid().into());
    text.put(b":");
    for (at, name) in NAMES.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        let (answered, left) =
            (ANSWERED[at].load(Ordering::Relaxed), LEFT[at].load(Ordering::Relaxed));
        text.put(b" ");
        text.put(name.as_bytes());
        text.put(b" ");
        text.number(answered);
        text.put(b"+");
        text.number(left);
        text.put(b",");
    }
    text.put(b" opened alone ");
    text.number(ALONE[Alone::Open as usize].load(Ordering::Relaxed));
    text.put(b", looked alone ");
    text.number(ALONE[Alone::Look as usize].load(Ordering::Relaxed));
    text.put(b", not reached ");
    text.number(NOT_REACHED.load(Ordering::Relaxed));
    text.put(b" (asked of mounts + left to the kernel)\n");
    let fd = match wanted.to_bytes() {
        b"-" => 2,
        _ => raw::append_to(wanted),
    };
    if fd >= 0 {
        raw::write(fd, &text.bytes[..text.length]);
    }
    if fd > 2 {
        raw::close(fd);
    }
}
