//! Writing back cache lines, which makes stores to persistent memory durable: on x86-64 by the best of `clwb`, `clflushopt`
//! and `clflush` that the processor has, on 64-bit ARM by `dc cvap`.
//!
//! Only for memory that is mapped with `MAP_SYNC`: of any other the kernel's pages are written out. Called by `Area`.

pub(crate) use processor::{are_supported, write_back};

#[cfg(target_arch = "x86_64")]
mod processor {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, _mm_sfence};
    use std::sync::OnceLock;

    const LINE_BYTES: usize = 64;

    #[derive(Clone, Copy)]
    enum By {
        Clwb,
        Clflushopt,
        Clflush,
    }

    /// Leaf 7 of CPUID: bit 24 of EBX is CLWB, bit 23 CLFLUSHOPT (Intel's manual, volume 2A).
    fn best() -> By {
        static BEST: OnceLock<By> = OnceLock::new();
        *BEST.get_or_init(|| {
            let features = __cpuid_count(7, 0).ebx;
            match (features >> 24 & 1, features >> 23 & 1) {
                (1, _) => By::Clwb,
                (_, 1) => By::Clflushopt,
                _ => By::Clflush,
            }
        })
    }

    pub(crate) fn are_supported() -> bool {
        true
    }

    /// Returns when the lines are out of the caches, in the domain that a power cut leaves.
    pub(crate) fn write_back(address: usize, length: usize) {
        let by = best();
        let mut line = address / LINE_BYTES * LINE_BYTES;
        while line < address + length {
            // SAFETY: the instruction is one that the processor has, it changes no data, and the line is mapped: it
            // has a byte of the range in it.
            unsafe {
                match by {
                    By::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    By::Clflushopt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    By::Clflush => {
                        asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                }
            }
            line += LINE_BYTES;
        }
        // SAFETY: a fence has no preconditions; every x86-64 has it.
        unsafe { _mm_sfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod processor {
    use std::arch::asm;

    /// The smallest line of the architecture's processors: writing a line back twice does no harm.
    const LINE_BYTES: usize = 16;
    /// `HWCAP_DCPOP`: programs may clean lines to the point of persistence.
    const HWCAP_DCPOP: u64 = 1 << 16;

    pub(crate) fn are_supported() -> bool {
        // SAFETY: reads a number that the kernel gave the process.
        unsafe { libc::getauxval(libc::AT_HWCAP) & HWCAP_DCPOP != 0 }
    }

    /// Returns when the lines are at the point of persistence.
    pub(crate) fn write_back(address: usize, length: usize) {
        let mut line = address / LINE_BYTES * LINE_BYTES;
        while line < address + length {
            // SAFETY: `dc cvap` by its encoding, which `are_supported` has seen; it changes no data.
            unsafe {
                asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
            }
            line += LINE_BYTES;
        }
        // SAFETY: a barrier has no preconditions.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod processor {
    pub(crate) fn are_supported() -> bool {
        false
    }

    /// Not reached: nothing is mapped with `MAP_SYNC` here.
    pub(crate) fn write_back(_address: usize, _length: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_back_changes_nothing() {
        if !are_supported() {
            return;
        }
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        for (from, length) in [(0, 1000), (1, 1), (63, 2), (999, 1), (64, 64)] {
            write_back(bytes.as_ptr() as usize + from, length);
        }
        assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == n as u8));
    }
}
