//! The clock of records: the processor's counter where it runs at one rate and everywhere alike, else
//! CLOCK_BOOTTIME in nanoseconds.

use std::sync::atomic::{AtomicBool, Ordering};

static COUNTER: AtomicBool = AtomicBool::new(false);

/// Ticks of now.
#[inline(always)]
pub fn ticks() -> u64 {
    if COUNTER.load(Ordering::Relaxed) { counter() } else { nanoseconds(libc::CLOCK_BOOTTIME) }
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
    COUNTER.store(counter, Ordering::Relaxed);
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
