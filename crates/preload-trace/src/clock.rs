//! The clock of records: the processor's counter where it runs at one rate and everywhere alike, else
//! CLOCK_BOOTTIME in nanoseconds.

use crate::sys;
use crate::trace::{self, HOT};
use std::sync::atomic::Ordering;

// Which clock it is; 0: it is not chosen yet.
const COUNTER: u8 = 1;
const BOOTTIME: u8 = 2;

/// Ticks of now.
#[inline(always)]
pub fn ticks() -> u64 {
    if HOT.clock.load(Ordering::Relaxed) == COUNTER { counter() } else { otherwise() }
}

/// The same where the clock is not the counter, or is not chosen yet.
#[cold]
#[inline(never)]
fn otherwise() -> u64 {
    if HOT.clock.load(Ordering::Relaxed) == 0 {
        first();
    }
    match HOT.clock.load(Ordering::Relaxed) {
        COUNTER => counter(),
        _ => nanoseconds(libc::CLOCK_BOOTTIME),
    }
}

/// The first call that is recorded comes before the loader has begun this library: it is of another library's constructor. The trace
/// begins here, so that the call has the clock of all others and comes after the first look at that.
#[cold]
fn first() {
    let errno = sys::Errno::keep();
    trace::begin();
    // Another thread may be beginning just now. Both find the same.
    if HOT.clock.load(Ordering::Relaxed) == 0 {
        choose();
    }
    drop(errno);
}

/// A clock of the kernel.
pub fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct lives during the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Chooses the clock. True if it is the counter.
pub fn choose() -> bool {
    let counter = is_invariant();
    HOT.clock.store(if counter { COUNTER } else { BOOTTIME }, Ordering::Relaxed);
    counter
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Invariant TSC: leaf 0x8000_0007, EDX bit 8.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register that programs may read.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// The counter of the architecture has one rate by definition.
#[cfg(target_arch = "aarch64")]
fn is_invariant() -> bool {
    true
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    nanoseconds(libc::CLOCK_BOOTTIME)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_invariant() -> bool {
    false
}
