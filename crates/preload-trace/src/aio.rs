//! POSIX asynchronous I/O. The submission is recorded when it is made, and the operation when its result is
//! taken by aio_return: from the submission to then, with the bytes that it moved.
//!
//! Invariant: memory is one fixed table of operations under way. One that finds no place there is
//! recorded all the same, with the time of aio_return as its begin.

use crate::files::get;
use crate::trace::{self, Call};
use crate::{clock, sys};
use forebay_trace_format::Op;
use forebay_trace_format::layout::NO_OFFSET;
use libc::{aiocb, c_int, c_void, sigevent, ssize_t};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Operations under way that are remembered.
const PLACES: usize = 4096;
/// How far from its place one is looked for.
const PROBES: usize = 16;
/// Control block, 0: free.
static BLOCKS: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];
/// Ticks of its submission, and what it does (an [`Op`]) in the lowest byte.
static BEGUN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn places(block: *const aiocb) -> impl Iterator<Item = (&'static AtomicUsize, &'static AtomicU64)> {
    let first = (block as usize >> 4).wrapping_mul(0x9e37_79b9) >> 7;
    (0..PROBES).filter_map(move |step| {
        let at = first.wrapping_add(step) % PLACES;
        Some((BLOCKS.get(at)?, BEGUN.get(at)?))
    })
}

/// Before the submission: the operation may end, and its result be taken, before this thread goes on.
fn begins(block: *const aiocb, op: Op, start: u64) {
    let value = start & !0xff | u64::from(op as u8);
    // A control block that was used before without aio_return has its place.
    let old = places(block).find(|(at, _)| at.load(Ordering::Relaxed) == block as usize);
    if let Some((_, begun)) = old {
        begun.store(value, Ordering::Release);
        return;
    }
    for (at, begun) in places(block) {
        if at.compare_exchange(0, block as usize, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            begun.store(value, Ordering::Release);
            return;
        }
    }
}

fn forget(block: *const aiocb) -> Option<(Op, u64)> {
    let (at, begun) = places(block).find(|(at, _)| at.load(Ordering::Acquire) == block as usize)?;
    let value = begun.load(Ordering::Acquire);
    at.store(0, Ordering::Release);
    Some((Op::from_number(value as u8)?, value & !0xff))
}

/// # Safety
/// `block` is NULL or a control block.
unsafe fn submit(block: *mut aiocb, op: Op, submit: impl FnOnce() -> c_int) -> c_int {
    let start = clock::ticks();
    begins(block, op, start);
    let done = submit();
    let end = clock::ticks();
    if done != 0 {
        forget(block);
    }
    let result = sys::result(done.into());
    if !block.is_null() {
        // SAFETY: by the caller's promise.
        let (fd, length) = unsafe { ((*block).aio_fildes, (*block).aio_nbytes as u64) };
        let at = get(fd);
        let (op, flags, file, offset) = (Op::AioSubmit, at.flags, at.file, NO_OFFSET);
        trace::put(Call { op, flags, file, offset, length, result, start, end });
    }
    done
}

/// # Safety
/// `block` is NULL or a control block.
unsafe fn returned(block: *mut aiocb, done: ssize_t) {
    let end = clock::ticks();
    if block.is_null() {
        return;
    }
    // SAFETY: by the caller's promise.
    let (fd, length, offset, opcode) = unsafe {
        let block = &*block;
        (block.aio_fildes, block.aio_nbytes, block.aio_offset, block.aio_lio_opcode)
    };
    let unknown = if opcode == libc::LIO_READ { Op::AioRead } else { Op::AioWrite };
    let (op, start) = forget(block).unwrap_or((unknown, end));
    let at = get(fd);
    let (mut offset, mut length) = (u64::try_from(offset).unwrap_or(NO_OFFSET), length as u64);
    if op == Op::AioFsync {
        (offset, length) = (NO_OFFSET, 0);
    }
    let (flags, file, result) = (at.flags, at.file, sys::result(done as i64));
    trace::put(Call { op, flags, file, offset, length, result, start, end });
}

interpose! {
    fn aio_read(block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioRead, || real(block))
    }
    fn aio_read64(block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioRead, || real(block))
    }
    fn aio_write(block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioWrite, || real(block))
    }
    fn aio_write64(block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioWrite, || real(block))
    }
    fn aio_fsync(how: c_int, block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioFsync, || real(how, block))
    }
    fn aio_fsync64(how: c_int, block: *mut aiocb) -> c_int, real => {
        submit(block, Op::AioFsync, || real(how, block))
    }
    fn aio_return(block: *mut aiocb) -> ssize_t, real => {
        let done = real(block);
        returned(block, done);
        done
    }
    fn aio_return64(block: *mut aiocb) -> ssize_t, real => {
        let done = real(block);
        returned(block, done);
        done
    }
    fn lio_listio(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int, real => {
        listed(blocks, count);
        real(mode, blocks, count, event)
    }
    fn lio_listio64(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int, real => {
        listed(blocks, count);
        real(mode, blocks, count, event)
    }
}

/// # Safety
/// `blocks` is an array of so many control blocks or NULLs, as lio_listio wants it.
unsafe fn listed(blocks: *const *mut aiocb, count: c_int) {
    let start = clock::ticks();
    if blocks.is_null() {
        return;
    }
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by the caller's promise.
        let block: *mut c_void = unsafe { (*blocks.add(at)).cast() };
        let block: *mut aiocb = block.cast();
        if block.is_null() {
            continue;
        }
        // SAFETY: by the caller's promise.
        let (opcode, fd, length) =
            unsafe { ((*block).aio_lio_opcode, (*block).aio_fildes, (*block).aio_nbytes) };
        let op = match opcode {
            libc::LIO_READ => Op::AioRead,
            libc::LIO_WRITE => Op::AioWrite,
            _ => continue,
        };
        begins(block, op, start);
        let at = get(fd);
        let (op, flags, file, length) = (Op::AioSubmit, at.flags, at.file, length as u64);
        let (offset, end) = (NO_OFFSET, start);
        trace::put(Call { op, flags, file, offset, length, result: 0, start, end });
    }
}
