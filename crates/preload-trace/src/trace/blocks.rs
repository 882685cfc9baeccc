//! Blocks of the file in memory: made present before they are written to, so that a full disk loses records and raises no
//! SIGBUS, and taken out of memory when they are full.
//!
//! Invariant: nothing here changes what is in a block, but for zeros in one that was just given out to the caller.

use super::{PATH, Page, Thread, address};
use crate::sys;
use forebay_trace_format::layout;
use std::sync::atomic::Ordering;

/// MADV_POPULATE_WRITE, since Linux 5.14.
const POPULATE_WRITE: libc::c_int = 23;
/// Blocks that are made present by one call of the kernel, and taken out of memory by one, at most: for each that takes a third less time
/// than one by one. And that share of the blocks so far, so that a short program has no more than it needs.
const TOGETHER: u64 = 8;
const TOGETHER_SHARE: u64 = 4;

/// Makes a range of the file present in memory, so that writing there needs no more room. What is there stays. False if the
/// file system refuses, or the kernel does not know how.
fn populated(base: *mut u8, offset: usize, bytes: usize) -> bool {
    // SAFETY: the range is within the mapping.
    let address = unsafe { base.add(offset) };
    let unit = 4096_usize.max(unit_bytes());
    let misaligned = address as usize % unit;
    // SAFETY: rounded down to a page, which is of the same mapping.
    let address = unsafe { address.sub(misaligned) };
    let whole = (bytes + misaligned).next_multiple_of(unit);
    sys::advise(address, whole, POPULATE_WRITE)
}

/// The same, also with older kernels, of a range that nobody else may have, of one block at most.
pub(super) fn present(base: *mut u8, offset: usize, bytes: usize) -> bool {
    populated(base, offset, bytes) || (sys::errno() == libc::EINVAL && written(offset, bytes))
}

/// For kernels that do not know MADV_POPULATE_WRITE: zeros where nothing was written before.
fn written(offset: usize, bytes: usize) -> bool {
    static ZEROS: [u8; layout::BLOCK_BYTES] = [0; layout::BLOCK_BYTES];
    // SAFETY: set by `make`, which is over or calls this.
    let path = unsafe { &*PATH.0.get() };
    let fd = sys::open(path, libc::O_RDWR | libc::O_CLOEXEC, 0);
    if fd < 0 {
        return false;
    }
    let zeros = ZEROS.get(..bytes).unwrap_or(&ZEROS);
    let done = sys::pwrite_all(fd, zeros, offset as u64);
    sys::close(fd);
    done
}

fn unit_bytes() -> usize {
    // SAFETY: only a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// How many blocks go together, if one of this number is among them.
fn together(number: u64) -> u64 {
    (number / TOGETHER_SHARE).clamp(1, TOGETHER)
}

/// A run of at most 255 blocks in one word, which is written at once: its first one and their number.
fn packed(first: u64, count: u64) -> u64 {
    first << 8 | count
}

fn unpacked(run: u64) -> (u64, u64) {
    (run >> 8, run & 0xff)
}

/// Makes a block present that was given out, and some that will be. False if the file system refuses that one.
pub(super) fn made_present(page: &Page, number: u64) -> bool {
    let (first, count) = unpacked(page.present.load(Ordering::Acquire));
    if (first..first + count).contains(&number) {
        return true;
    }
    let base = page.base.load(Ordering::Relaxed);
    let offset = number as usize * layout::BLOCK_BYTES;
    // Beyond the file's end there is nothing to be made present.
    let there = page.file_blocks.load(Ordering::Acquire).saturating_sub(number);
    let count = together(number).min(there);
    if count > 1 && populated(base, offset, count as usize * layout::BLOCK_BYTES) {
        // Of two threads at once the last one's: what it does not tell of is made present again.
        page.present.store(packed(number, count), Ordering::Release);
        return true;
    }
    present(base, offset, layout::BLOCK_BYTES)
}

/// Takes a full block out of this process's memory, together with full ones before it; its pages stay the file's.
pub(super) fn forget_block(page: &Page, thread: &Thread, next: u64) {
    if next == 0 || unit_bytes() > layout::BLOCK_BYTES {
        return;
    }
    let number = (next - 1) / layout::BLOCK_SLOTS;
    let before = thread.full.get();
    let (mut first, mut count) = unpacked(before);
    if count > 0 && first + count == number {
        count += 1;
    } else {
        forget_run(page, before);
        (first, count) = (number, 1);
    }
    let run = packed(first, count);
    if count < together(number) {
        thread.full.set(run);
    } else {
        thread.full.set(0);
        forget_run(page, run);
    }
}

pub(super) fn forget_run(page: &Page, run: u64) {
    let (first, count) = unpacked(run);
    if count > 0 {
        let begin = address(page, first * layout::BLOCK_SLOTS).cast();
        sys::advise(begin, count as usize * layout::BLOCK_BYTES, libc::MADV_DONTNEED);
    }
}
