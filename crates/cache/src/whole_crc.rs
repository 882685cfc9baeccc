//! CRC32C of a whole cached file, from the checksums of its blocks: for who is told that it drained.
//!
//! A block with data costs one step, and so does a run of holes, however long. A step takes less than a microsecond for a whole
//! block, and a few for other lengths.
//!
//! Invariant: nothing of the file is locked while the checksum is made; its state is, for [`LOOK_BLOCKS`] blocks at a time, while they
//! are copied. So the checksum counts only while the content is what it was ([`WholeCrc::if_same`]). Called by the drain.

use super::file::{CacheFile, FileState};
use super::map::{BLOCK_BYTES, BlockMap, Entry, bits};

/// Blocks that are copied at a time with the state locked: some 50 us.
const LOOK_BLOCKS: usize = 4_096;
/// The polynomial of CRC32C without its highest term; the highest bit is the coefficient of 1.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// 1, and what a byte of zeros multiplies a checksum with: x^8.
const ONE: u32 = 1 << 31;
const BYTE: u32 = 1 << 23;
/// The same for a whole block.
const BLOCK: u32 = power(BLOCK_BYTES);

/// The checksum of a whole file, and of which content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeCrc {
    crc: u32,
    contents: u64,
}

impl WholeCrc {
    /// Of a file of `size` bytes, of which the PFS's content counted up to `limit`. `None` if not each of its blocks is here with a
    /// checksum or is a hole, or it is changed meanwhile.
    pub fn of(file: &CacheFile, size: u64, limit: u64) -> Option<WholeCrc> {
        let look = |first| {
            let look = Look::at(&file.state.lock().map, first);
            forebay_failpoint::step("a whole file is summed up");
            look
        };
        whole(size, limit, look, shift)
    }

    /// The checksum, if the file still has the content that it was made of.
    pub fn if_same(self, state: &FileState) -> Option<u32> {
        (self.contents == state.map.contents()).then_some(self.crc)
    }
}

/// Some blocks that follow each other in a map, and of which content.
struct Look {
    entries: Vec<(u64, Entry)>,
    contents: u64,
}

impl Look {
    fn at(map: &BlockMap, first: u64) -> Look {
        let entries = map.blocks_with_entries(first).take(LOOK_BLOCKS).collect();
        Look { entries, contents: map.contents() }
    }
}

/// See [`WholeCrc::of`]. `look` gives the blocks from one on, and `shift` is [`shift`].
fn whole(
    size: u64,
    limit: u64,
    look: impl Fn(u64) -> Look,
    shift: impl FnMut(u32, u64) -> u32,
) -> Option<WholeCrc> {
    let mut sum = Sum { shift, crc: 0, length: 0, zeros: 0 };
    let mut seen = look(0);
    let contents = seen.contents;
    loop {
        for (block, entry) in &seen.entries {
            let start = block * BLOCK_BYTES;
            if start >= size {
                break;
            }
            let known = entry.has(bits::PRESENT) && !entry.has(bits::OPEN);
            let inside = (size - start).min(BLOCK_BYTES);
            let length = u64::from(entry.len);
            if !known || length > inside || !sum.hole_to(start, limit) {
                return None;
            }
            sum.push(entry.crc, length);
            // Behind what the checksum covers there are zeros.
            sum.push_zeros(inside - length);
        }
        let next = match seen.entries.last() {
            Some((last, _)) if seen.entries.len() == LOOK_BLOCKS => last + 1,
            _ => break,
        };
        seen = look(next);
        if seen.contents != contents {
            return None;
        }
    }
    sum.hole_to(size, limit).then(|| WholeCrc { crc: sum.end(), contents })
}

/// A checksum of bytes that come one after the other, by the checksums of parts.
struct Sum<S> {
    shift: S,
    /// Of what came before the last zeros.
    crc: u32,
    /// Of all, with the last zeros.
    length: u64,
    /// The last zeros: more may follow.
    zeros: u64,
}

impl<S: FnMut(u32, u64) -> u32> Sum<S> {
    fn push(&mut self, crc: u32, length: u64) {
        if length > 0 {
            self.crc = self.end();
            self.zeros = 0;
            self.crc = (self.shift)(self.crc, length) ^ crc;
            self.length += length;
        }
    }

    fn push_zeros(&mut self, length: u64) {
        self.zeros += length;
        self.length += length;
    }

    /// Blocks without an entry are holes where nothing of the PFS counts. False if not.
    fn hole_to(&mut self, end: u64, limit: u64) -> bool {
        if self.length < end {
            if self.length < limit {
                return false;
            }
            self.push_zeros(end - self.length);
        }
        true
    }

    /// Of all. The checksum of zeros alone is not 0: CRC32C begins and ends with all bits turned over.
    fn end(&mut self) -> u32 {
        match self.zeros {
            0 => self.crc,
            zeros => !(self.shift)(!self.crc, zeros),
        }
    }
}

/// What so many bytes more make of a checksum, without what is in them.
fn shift(crc: u32, bytes: u64) -> u32 {
    match bytes {
        BLOCK_BYTES => product(BLOCK, crc),
        _ => product(power(bytes), crc),
    }
}

/// What so many bytes of zeros multiply a checksum with: x^8 to the power of them, by squares.
const fn power(bytes: u64) -> u32 {
    let (mut all, mut square, mut left) = (ONE, BYTE, bytes);
    while left > 0 {
        if left & 1 == 1 {
            all = product(all, square);
        }
        square = product(square, square);
        left >>= 1;
    }
    all
}

/// The product of two polynomials over the field of two elements, modulo that of CRC32C.
const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut b, mut term) = (0, b, ONE);
    while term > 0 {
        if a & term != 0 {
            sum ^= b;
        }
        b = if b & 1 == 1 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
        term >>= 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::map::crc;
    use super::*;
    use std::cell::Cell;

    /// Of a map, and in how many steps.
    fn sum_up(map: &BlockMap, size: u64, limit: u64) -> (Option<u32>, u64) {
        let steps = Cell::new(0);
        let count = |crc, bytes| {
            steps.set(steps.get() + 1);
            shift(crc, bytes)
        };
        let made = whole(size, limit, |first| Look::at(map, first), count);
        (made.map(|whole| whole.crc), steps.get())
    }

    #[test]
    fn a_checksum_moved_on_by_zeros_is_that_with_zeros_behind() {
        let mut bytes = b"some data".to_vec();
        for zeros in [1, 2, 7, 8, 4_095, 4_096, BLOCK_BYTES, BLOCK_BYTES + 1] {
            let before = crc(&bytes);
            bytes.resize(bytes.len() + zeros as usize, 0);
            assert_eq!(!shift(!before, zeros), crc(&bytes), "{zeros}");
        }
        assert_eq!(shift(5, 0), 5);
        // In one piece as in two, also where it is longer than memory.
        let (first, second): (u64, u64) = (1 << 40, (1 << 45) + 12_345);
        assert_eq!(shift(shift(77, first), second), shift(77, first + second));
    }

    /// Blocks that are data, data with zeros behind, noted holes and none at all, in each order.
    #[test]
    fn the_checksum_of_a_whole_file_is_that_of_its_bytes_whatever_holes_it_has() {
        const KINDS: usize = 4;
        let block_bytes = BLOCK_BYTES as usize;
        let data: Vec<u8> = (0..block_bytes).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
        for number in 0..KINDS.pow(3) {
            for size in [3 * BLOCK_BYTES, 2 * BLOCK_BYTES + 777] {
                let mut bytes = vec![0; size as usize];
                let mut map = BlockMap::default();
                for (block, into) in bytes.chunks_mut(block_bytes).enumerate() {
                    let length = match number / KINDS.pow(block as u32) % KINDS {
                        0 => continue,
                        1 => 0,
                        2 => into.len().min(500),
                        _ => into.len(),
                    };
                    into[..length].copy_from_slice(&data[..length]);
                    map.set(block as u64, Entry::with_crc(&into[..length]));
                }
                assert_eq!(sum_up(&map, size, 0).0, Some(crc(&bytes)), "{number}, {size} bytes");
            }
        }
        assert_eq!(sum_up(&BlockMap::default(), 0, 0).0, Some(crc(b"")));
    }

    /// It took a step per block of hole and more: seconds, in which nobody could look at the file.
    #[test]
    fn a_run_of_holes_costs_one_step_however_long_it_is() {
        const PLACES: u64 = 41;
        let size: u64 = 2 << 30;
        let blocks = size / BLOCK_BYTES;
        let (mut noted, mut unknown) = (BlockMap::default(), BlockMap::default());
        for block in 0..blocks {
            noted.set(block, Entry::with_crc(b""));
        }
        for place in 0..PLACES {
            let block = place * blocks / PLACES;
            for map in [&mut noted, &mut unknown] {
                map.set(block, Entry::with_crc(b"data"));
            }
        }
        let (crc, steps) = sum_up(&noted, size, 0);
        assert!(crc.is_some() && steps <= 2 * PLACES, "{steps} steps for {blocks} blocks");
        assert_eq!(sum_up(&unknown, size, 0), (crc, steps));
    }

    #[test]
    fn what_is_not_known_has_no_checksum() {
        let size = 3 * BLOCK_BYTES;
        let mut map = BlockMap::default();
        map.set(1, Entry::with_crc(b"data"));
        assert!(sum_up(&map, size, 0).0.is_some());
        assert_eq!(sum_up(&map, size, 1).0, None, "the PFS has something where nothing is here");
        assert_eq!(sum_up(&map, BLOCK_BYTES + 3, 0).0, None, "cut in the middle of data");
        map.set(2, Entry::with_crc(b"").with(bits::OPEN));
        assert_eq!(sum_up(&map, size, 0).0, None, "written since");
        assert!(sum_up(&map, 2 * BLOCK_BYTES, 0).0.is_some(), "behind the end");
    }

    #[test]
    fn a_file_that_changes_while_it_is_summed_up_has_no_checksum() {
        let blocks = LOOK_BLOCKS as u64 + 1;
        let size = blocks * BLOCK_BYTES;
        let mut map = BlockMap::default();
        (0..blocks).for_each(|block| map.set(block, Entry::with_crc(b"data")));
        let was = map.contents();
        let looks = Cell::new(0);
        let look = |first| {
            looks.set(looks.get() + 1);
            Look::at(&map, first)
        };
        assert!(whole(size, 0, look, shift).is_some_and(|whole| whole.contents == was));
        assert_eq!(looks.get(), 2);
        let look = |first| Look { contents: was + u64::from(first > 0), ..Look::at(&map, first) };
        assert_eq!(whole(size, 0, look, shift), None);
        // That it is on flash, or the PFS has it, is no other content.
        map.set(3, map.get(3).with(bits::SYNCED | bits::DIRTY));
        assert_eq!(map.contents(), was);
        map.set(3, map.get(3).with(bits::OPEN));
        let open = map.contents();
        assert_ne!(open, was);
        map.set(3, Entry::with_crc(b"data"));
        assert!(map.contents() != was && map.contents() != open, "written, with the same bytes");
        let before = map.contents();
        map.clear();
        assert_ne!(map.contents(), before);
    }
}
