//! What the bytes of a transfer are, so that a reader can check them and no store can compress or
//! deduplicate them away unless that is wanted.
//!
//! [`Content::Stamped`] is ours: a window of a pool of random bytes, chosen by the transfer's place,
//! in which the first 8 bytes of each 4 KiB say seed, rank and place. Producing it costs next to nothing
//! in the timed loop. The other kinds are IOR's (`-l t`, `o`, `i`, `r`), byte for byte, so that one
//! tool checks the other's files.
//!
//! Invariant: the bytes depend on (kind, seed, pretended rank, offset, length) only.
//! Callers: the ranks of `forebay-loadgen`.

use crate::random::{mix, rand_r};

/// The kinds of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Random and unique for each 4 KiB, stamped with its place. Not compressible.
    Stamped,
    /// IOR's `t`: the same words for each transfer of a rank.
    Timestamp,
    /// IOR's `o`: as `t`, and each 4 KiB begins with the offset.
    Offset,
    /// IOR's `i`. Called incompressible there, but one repeated word fills the block: it compresses.
    IorIncompressible,
    /// IOR's `r`: random words, made anew for each transfer inside the timed loop.
    Random,
}

/// Bytes between stamps; the block of most file systems and deduplicating stores.
const STAMP_EVERY_BYTES: usize = 4096;
/// How many windows the pool has, 4 KiB apart: a compressor with gzip's 32 KiB of memory meets the same
/// bytes in fewer than 1 % of the blocks.
const WINDOWS: usize = 1024;
/// Multiplier of IOR's random words (its RANDALGO_GOLDEN_RATIO_PRIME).
const GOLDEN_RATIO_PRIME: u64 = 0x9e37_ffff_fffc_0001;

/// Where a transfer belongs.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Rank in whose part of the file it lies.
    pub rank: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
}

/// Fills and checks the buffers of one rank.
pub struct Filler {
    content: Content,
    seed: u32,
    transfer_bytes: usize,
    pool: Aligned,
    /// For the kinds whose base depends on the rank: which rank `pool` is made for.
    base_of: Option<u32>,
}

impl Filler {
    /// For transfers of `transfer_bytes`.
    pub fn new(content: Content, seed: u32, transfer_bytes: usize) -> Filler {
        let pool_bytes = match content {
            Content::Stamped => transfer_bytes + (WINDOWS - 1) * STAMP_EVERY_BYTES,
            _ => transfer_bytes,
        };
        let mut pool = Aligned::new(pool_bytes);
        if content == Content::Stamped {
            let mut state = mix(u64::from(seed));
            fill_with_words(pool.bytes_mut(), &mut state);
        }
        Filler { content, seed, transfer_bytes, pool, base_of: None }
    }

    /// The bytes to write at `place`.
    pub fn bytes(&mut self, place: Place) -> &[u8] {
        let start = self.window(place);
        self.make_base(place.rank);
        let (content, seed, end) = (self.content, self.seed, start + self.transfer_bytes);
        let buffer = &mut self.pool.bytes_mut()[start..end];
        match content {
            Content::Timestamp => {}
            Content::Random => random_words(buffer, seed, place),
            Content::Stamped | Content::Offset | Content::IorIncompressible => {
                for (index, block) in buffer.chunks_mut(STAMP_EVERY_BYTES).enumerate() {
                    let stamp = stamp(content, seed, place, index).to_le_bytes();
                    stamp_into(content, block, &stamp);
                }
            }
        }
        buffer
    }

    /// Where `read`, what was read at `place`, differs first from what was written there.
    pub fn first_difference(&mut self, place: Place, read: &[u8]) -> Option<usize> {
        let expected = &self.bytes(place)[..read.len()];
        if expected == read {
            return None;
        }
        expected.iter().zip(read).position(|(a, b)| a != b)
    }

    /// Where in the pool the transfer's bytes begin.
    fn window(&self, place: Place) -> usize {
        match self.content {
            Content::Stamped => {
                let hash = mix(place.offset ^ (u64::from(place.rank) << 48));
                (hash % WINDOWS as u64) as usize * STAMP_EVERY_BYTES
            }
            _ => 0,
        }
    }

    /// What does not change from transfer to transfer of a rank.
    fn make_base(&mut self, rank: u32) {
        if self.content == Content::Stamped || self.base_of == Some(rank) {
            return;
        }
        self.base_of = Some(rank);
        let high = u64::from(rank) << 32;
        // IOR adds the seed as a signed number.
        let seed = i64::from(self.seed as i32) as u64;
        let mut state = self.seed.wrapping_add(rank);
        let word = (u64::from(rand_r(&mut state)) << 32) | u64::from(rand_r(&mut state));
        let content = self.content;
        let buffer = self.pool.bytes_mut();
        let whole = buffer.len() / 8 * 8;
        for (index, chunk) in buffer[..whole].chunks_exact_mut(8).enumerate() {
            let value = match content {
                Content::IorIncompressible => word,
                _ => high | seed.wrapping_add(index as u64),
            };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        for (index, byte) in buffer.iter_mut().enumerate().skip(whole) {
            *byte = index as u8;
        }
    }
}

/// The 8 bytes at the head of block `index` of a transfer.
fn stamp(content: Content, seed: u32, place: Place, index: usize) -> u64 {
    match content {
        Content::Stamped => {
            let at = place.offset + (index * STAMP_EVERY_BYTES) as u64;
            mix(mix(u64::from(seed) << 32 | u64::from(place.rank)) ^ at)
        }
        // IOR: the low half of the offset times the block's number from 1, in 32 bits.
        _ => {
            let low = (place.offset as u32).wrapping_mul(index as u32 + 1);
            u64::from(low) | (u64::from(place.rank) << 32)
        }
    }
}

/// IOR stamps whole words only; ours begins a last, shorter block, too.
fn stamp_into(content: Content, block: &mut [u8], stamp: &[u8; 8]) {
    if block.len() >= 8 {
        block[..8].copy_from_slice(stamp);
    } else if content == Content::Stamped {
        let len = block.len();
        block.copy_from_slice(&stamp[..len]);
    }
}

/// Fills memory with random words. Each rank does so for megabytes when it starts: in whole words, since builds that
/// optimize nothing take several times as long over slices.
fn fill_with_words(memory: &mut [u8], state: &mut u64) {
    let mut next = || {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(*state).to_le_bytes()
    };
    let (words, rest) = memory.as_chunks_mut::<8>();
    for word in words {
        *word = next();
    }
    if !rest.is_empty() {
        rest.copy_from_slice(&next()[..rest.len()]);
    }
}

fn random_words(buffer: &mut [u8], seed: u32, place: Place) {
    let mut start = seed.wrapping_add(place.rank).wrapping_add(place.offset as u32);
    let mut state = u64::from(rand_r(&mut start));
    for word in buffer.chunks_exact_mut(8) {
        state = state.wrapping_mul(GOLDEN_RATIO_PRIME) >> 3;
        word.copy_from_slice(&state.to_le_bytes());
    }
}

/// Content that depends on the file and the place in it only, not on the transfers that wrote it: what one transfer size
/// wrote, another one checks. Random, unique for each 4 KiB, not compressible; each whole 4 KiB of the file begins with
/// a stamp.
///
/// The bytes of a place are those of a ring of random bytes, at the place plus a shift that belongs to the file; so no transfer
/// copies anything, and stamps always lie at the same places of the ring.
pub struct Placed {
    seed: u64,
    memory: Aligned,
    longest: usize,
}

/// Bytes of the ring.
const RING_BYTES: usize = 4 << 20;

impl Placed {
    /// For transfers of at most `longest` bytes.
    pub fn new(seed: u32, longest: usize) -> Placed {
        let longest = longest + STAMP_EVERY_BYTES;
        let mut memory = Aligned::new(RING_BYTES + longest);
        let mut state = mix(u64::from(seed) ^ (1 << 40));
        fill_with_words(&mut memory.bytes_mut()[..RING_BYTES], &mut state);
        for from in (0..longest).step_by(RING_BYTES) {
            let len = RING_BYTES.min(longest - from);
            memory.bytes_mut().copy_within(0..len, RING_BYTES + from);
        }
        Placed { seed: mix(u64::from(seed)), memory, longest }
    }

    /// The `len` bytes at `offset` of the file that `file` names.
    ///
    /// # Panics
    /// If they are more than was said.
    pub fn bytes(&mut self, file: u64, offset: u64, len: usize) -> &[u8] {
        let every = STAMP_EVERY_BYTES as u64;
        let key = mix(self.seed ^ file);
        let before = (offset % every) as usize;
        let shift = key % (RING_BYTES as u64 / every) * every;
        let start = (offset.wrapping_add(shift) % RING_BYTES as u64) as usize;
        assert!(len + before <= self.longest, "a transfer of {len} bytes is longer than was said");
        let memory = self.memory.bytes_mut();
        let mut at = start - before;
        let mut place = offset - before as u64;
        while at < start + len {
            memory[at..at + 8].copy_from_slice(&mix(key ^ place).to_le_bytes());
            at += STAMP_EVERY_BYTES;
            place = place.wrapping_add(every);
        }
        &memory[start..start + len]
    }

    /// Where `read`, what was read at `offset`, differs first.
    pub fn first_difference(&mut self, file: u64, offset: u64, read: &[u8]) -> Option<usize> {
        let expected = self.bytes(file, offset, read.len());
        if expected == read {
            return None;
        }
        expected.iter().zip(read).position(|(a, b)| a != b)
    }
}

/// Memory that begins at a page, as O_DIRECT wants it.
pub struct Aligned {
    memory: Vec<u8>,
    first: usize,
    len: usize,
}

const PAGE_BYTES: usize = 4096;

impl Aligned {
    /// `len` zero bytes, all of whose pages are there: whoever moved them first would be timed making pages.
    pub fn new(len: usize) -> Aligned {
        // Memory that is asked for as zeroes consists of pages that the kernel makes later.
        let mut memory = std::hint::black_box(vec![1_u8; len + PAGE_BYTES]);
        memory.fill(0);
        let first = memory.as_ptr().align_offset(PAGE_BYTES);
        Aligned { memory, first, len }
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..self.first + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Content; 5] = [
        Content::Stamped,
        Content::Timestamp,
        Content::Offset,
        Content::IorIncompressible,
        Content::Random,
    ];

    #[test]
    fn what_one_filler_wrote_another_one_finds_right() {
        for content in KINDS {
            for transfer in [1_usize, 7, 8, 4096, 4100, 47_008] {
                let mut writer = Filler::new(content, 7, transfer);
                let mut reader = Filler::new(content, 7, transfer);
                for rank in [0, 1, 5] {
                    for offset in [0, 47_008, 1 << 33] {
                        let place = Place { rank, offset };
                        let bytes = writer.bytes(place).to_vec();
                        assert_eq!(reader.first_difference(place, &bytes), None, "{content:?}");
                        let mut damaged = bytes;
                        let last = damaged.len() - 1;
                        damaged[last] ^= 0x10;
                        assert_eq!(reader.first_difference(place, &damaged), Some(last));
                    }
                }
            }
        }
    }

    #[test]
    fn a_stale_or_misplaced_block_is_found() {
        let mut filler = Filler::new(Content::Stamped, 7, 8192);
        let place = Place { rank: 1, offset: 8192 };
        for (seed, rank, offset) in [(8, 1, 8192), (7, 0, 8192), (7, 1, 0)] {
            let other =
                Filler::new(Content::Stamped, seed, 8192).bytes(Place { rank, offset }).to_vec();
            assert!(filler.first_difference(place, &other).is_some());
        }
    }

    #[test]
    fn placed_bytes_are_the_same_by_any_transfers() {
        let mut by_large = Placed::new(7, 1 << 20);
        let whole = by_large.bytes(3, 8192, 100_000).to_vec();
        let mut by_small = Placed::new(7, 1000);
        let mut at = 0;
        for len in [1, 7, 8, 999, 1000].into_iter().cycle().take(200) {
            let end = (at + len).min(whole.len());
            let offset = 8192 + at as u64;
            assert_eq!(by_small.first_difference(3, offset, &whole[at..end]), None, "{at}");
            at = end;
        }
        assert!(at > 70_000);
        // Across the end of the ring, and of another file, place or seed.
        let far = (RING_BYTES as u64 * 5) - 3000;
        let bytes = by_large.bytes(3, far, 8000).to_vec();
        assert_eq!(by_small.bytes(3, far + 2500, 1000), &bytes[2500..3500]);
        assert!(by_small.first_difference(4, far, &bytes[..1000]).is_some());
        assert!(by_small.first_difference(3, far + 4096, &bytes[..1000]).is_some());
        assert!(Placed::new(8, 1000).first_difference(3, far, &bytes[..1000]).is_some());
    }

    #[test]
    fn the_words_of_ior() {
        let mut filler = Filler::new(Content::Offset, 5, 8192 + 3);
        let bytes = filler.bytes(Place { rank: 2, offset: 1 << 20 }).to_vec();
        let word = |index: usize| {
            u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
        };
        assert_eq!(word(0), (2 << 32) | (1 << 20));
        assert_eq!(word(1), (2 << 32) | 6);
        assert_eq!(word(512), (2 << 32) | (2 << 20));
        assert_eq!(word(513), (2 << 32) | (5 + 513));
        assert_eq!(bytes[8192..], [0, 1, 2]);
    }

    /// The share of blocks whose bytes are also in one of the 8 blocks before: what a compressor with
    /// 32 KiB of memory could gain.
    #[test]
    fn stamped_content_does_not_repeat_within_32_kib() {
        let mut filler = Filler::new(Content::Stamped, 3, 4096);
        let blocks: Vec<Vec<u8>> = (0..4096_u64)
            .map(|i| filler.bytes(Place { rank: 0, offset: i * 4096 })[8..].to_vec())
            .collect();
        let repeated = (8..blocks.len())
            .filter(|&i| blocks[i - 8..i].iter().any(|earlier| *earlier == blocks[i]))
            .count();
        assert!(repeated * 100 < blocks.len(), "{repeated} of {}", blocks.len());
    }
}
