//! Memory that a worker reads into and writes from, kept for all its files.
//!
//! Invariant: what [`Memory::get`] returns is aligned for O_DIRECT. Large pieces lie in huge
//! pages: a direct read of 4 MiB into pages of 4 KiB is cut into requests of at most
//! `max_segments` pages, which read a virtio disk at a third of its speed.

/// Alignment of memory, offsets and lengths for O_DIRECT, in bytes.
pub(super) const DIRECT_ALIGN: u64 = 4096;
/// Size and alignment of a huge page, in bytes. Where it is another, the alignment does no harm.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Aligned bytes.
pub(super) struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    /// Without memory yet.
    pub fn new() -> Memory {
        Memory { bytes: Vec::new() }
    }

    /// `len` bytes, aligned; what is in them is left from before.
    pub fn get(&mut self, len: usize) -> &mut [u8] {
        let align = match len < HUGE_PAGE_BYTES {
            true => DIRECT_ALIGN as usize,
            false => HUGE_PAGE_BYTES,
        };
        if self.bytes.len() < len + align {
            let mut fresh = Vec::with_capacity(len + align);
            if align == HUGE_PAGE_BYTES {
                ask_for_huge_pages(&mut fresh);
            }
            fresh.resize(len + align, 0);
            self.bytes = fresh;
        }
        let skip = self.bytes.as_ptr().align_offset(align);
        &mut self.bytes[skip..skip + len]
    }
}

/// Must come before the first touch. Only a hint: without it the memory serves as well.
fn ask_for_huge_pages(fresh: &mut Vec<u8>) {
    let room = fresh.spare_capacity_mut();
    let skip = room.as_ptr().align_offset(HUGE_PAGE_BYTES).min(room.len());
    let room = &mut room[skip..];
    // SAFETY: the range lies in this vector's own allocation, and the advice changes how it is
    // backed, not what is in it.
    unsafe { libc::madvise(room.as_mut_ptr().cast(), room.len(), libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_whatever_was_asked_before() {
        let mut memory = Memory::new();
        for len in [1, 5_000, 4 << 20, 100, 3 << 20, (4 << 20) + 4096] {
            let bytes = memory.get(len);
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes.as_ptr().align_offset(DIRECT_ALIGN as usize), 0);
            bytes.fill(1);
        }
    }
}
