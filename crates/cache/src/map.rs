//! Which blocks of a file are here, which of them the PFS does not have, and their checksums.
//!
//! Invariants: what is on flash says never more than is true: an entry is written before the data it
//! warns of (OPEN) and after the data it vouches for (PRESENT, CRC). Memory grows with the blocks
//! that are here, not with the size of the file.
//!
//! On flash: 8 bytes for each block, at its number times 8, in a file beside the object. Low 32 bits
//! CRC32C, then 18 bits of length, the bits of [`Bits`] in the top byte.
//!
//! A CRC finds damage, but does not tell whether a block was changed: where data ends with its own CRC32C, as in ext4's superblock
//! and directories, other data of this kind in its place leaves the CRC of the block as it was. So blocks that the PFS has, too, have
//! an XXH3, in memory only ([`super::kept_sums`] while the file is in nobody's): after a restart, what a kernel has written since counts
//! as changed. It is made when a block comes from the PFS or drains, from the same read. A dirty block needs none, so that writers
//! pay for one pass over their data only.

use super::kept_sums::Sums;
use forebay_proto::Result;
use std::collections::BTreeMap;

/// Bytes of a block. Fills and checksums are of whole blocks.
pub(crate) const BLOCK_BYTES: u64 = 128 << 10;
/// Bytes of one entry on flash.
pub(crate) const ENTRY_BYTES: u64 = 8;
/// Entries that are kept together in memory.
const CHUNK: u64 = 512;

/// Bits of an entry.
pub(crate) mod bits {
    /// The block is here.
    pub const PRESENT: u8 = 1;
    /// The PFS does not have it.
    pub const DIRTY: u8 = 2;
    /// Being written, or written since its CRC was made.
    pub const OPEN: u8 = 4;
    /// Its content has been on flash in whole.
    pub const SYNCED: u8 = 8;
    /// It was not here before the write that is under way: till that ends, there may be no data. What a kill
    /// leaves so counts as not here, and the PFS has what was there.
    pub const FRESH: u8 = 16;
}

/// One block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// CRC32C of the first `len` bytes.
    pub crc: u32,
    /// Bytes that the CRC covers; behind them the block is zeros.
    pub len: u32,
    /// [`bits`].
    pub bits: u8,
    /// XXH3 of the same bytes; not on flash, 0 if it is not known.
    pub xxh3: u64,
}

impl Entry {
    /// A block that is here, with its checksums.
    pub fn of(data: &[u8]) -> Entry {
        Entry { xxh3: xxh3(data), ..Entry::with_crc(data) }
    }

    /// The same of one that is dirty: its XXH3 is made when it drains.
    pub fn with_crc(data: &[u8]) -> Entry {
        Entry { crc: crc(data), len: data.len() as u32, bits: bits::PRESENT, xxh3: 0 }
    }

    /// Whether it is known that these bytes are its content.
    pub fn surely_is(&self, content: &[u8]) -> bool {
        self.xxh3 != 0 && self.may_be(content)
    }

    /// Whether its checksums, as far as they are known, say that these bytes are its content. An XXH3 says all that a CRC
    /// does.
    pub fn may_be(&self, content: &[u8]) -> bool {
        let is_same = || match self.xxh3 {
            0 => self.crc == crc(content),
            known => known == xxh3(content),
        };
        self.len as usize == content.len() && is_same()
    }

    /// What tells of which content it is.
    fn content(&self) -> (u32, u32, u8) {
        (self.crc, self.len, self.bits & (bits::PRESENT | bits::OPEN))
    }

    /// True for a block that the PFS has as this says.
    pub fn is_clean(&self) -> bool {
        self.bits & (bits::PRESENT | bits::DIRTY | bits::OPEN) == bits::PRESENT
    }

    /// True if all of `wanted` are set.
    pub fn has(&self, wanted: u8) -> bool {
        self.bits & wanted == wanted
    }

    /// With other bits.
    pub fn with(self, set: u8) -> Entry {
        Entry { bits: self.bits | set, ..self }
    }

    /// Without some bits.
    pub fn without(self, clear: u8) -> Entry {
        Entry { bits: self.bits & !clear, ..self }
    }

    /// As on flash.
    pub fn pack(self) -> u64 {
        u64::from(self.crc) | (u64::from(self.len) << 32) | (u64::from(self.bits) << 56)
    }

    fn unpack(raw: u64) -> Entry {
        let (crc, len) = (raw as u32, ((raw >> 32) & 0x3_ffff) as u32);
        Entry { crc, len, bits: (raw >> 56) as u8, xxh3: 0 }
    }
}

/// CRC32C.
pub(crate) fn crc(data: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32
}

fn xxh3(data: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(data)
}

/// The map of one file, in memory.
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    chunks: BTreeMap<u64, Box<[u64; CHUNK as usize]>>,
    /// What is known of their XXH3.
    xxh3: BTreeMap<u64, Box<[u64; CHUNK as usize]>>,
    present: u64,
    dirty: u64,
    contents: u64,
    /// Blocks that a write left FRESH which a kill cut: what flash has of them is nobody's.
    fresh: Vec<u64>,
}

impl BlockMap {
    /// Reads what is on flash; `read(offset, buffer)` reads the map's file, short at its end.
    pub fn load(read: impl Fn(u64, &mut [u8]) -> Result<usize>) -> Result<BlockMap> {
        let mut map = BlockMap::default();
        let mut buffer = vec![0; (CHUNK * ENTRY_BYTES) as usize];
        for chunk in 0.. {
            let got = read(chunk * CHUNK * ENTRY_BYTES, &mut buffer)?;
            for (i, raw) in buffer[..got].chunks_exact(ENTRY_BYTES as usize).enumerate() {
                let raw: [u8; 8] = raw.try_into().unwrap_or_default();
                let entry = Entry::unpack(u64::from_le_bytes(raw));
                let block = chunk * CHUNK + i as u64;
                match entry.has(bits::FRESH) {
                    true => map.fresh.push(block),
                    false if entry.bits != 0 => map.set(block, entry),
                    false => {}
                }
            }
            if got < buffer.len() {
                break;
            }
        }
        Ok(map)
    }

    /// Hands out the blocks that were FRESH when it was read.
    pub fn take_fresh(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.fresh)
    }

    /// The entry of a block.
    pub fn get(&self, block: u64) -> Entry {
        let (chunk, at) = (block / CHUNK, (block % CHUNK) as usize);
        match self.chunks.get(&chunk) {
            Some(entries) => Entry {
                xxh3: self.xxh3.get(&chunk).map_or(0, |known| known[at]),
                ..Entry::unpack(entries[at])
            },
            None => Entry::default(),
        }
    }

    /// Changes the entry of a block, in memory.
    pub fn set(&mut self, block: u64, entry: Entry) {
        let old = self.get(block);
        self.contents += u64::from(entry.content() != old.content());
        self.present += u64::from(entry.has(bits::PRESENT));
        self.present -= u64::from(old.has(bits::PRESENT));
        self.dirty += u64::from(entry.has(bits::DIRTY));
        self.dirty -= u64::from(old.has(bits::DIRTY));
        if entry.bits == 0 && !self.chunks.contains_key(&(block / CHUNK)) {
            return;
        }
        let chunk =
            self.chunks.entry(block / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        chunk[(block % CHUNK) as usize] = entry.pack();
        let known = match entry.xxh3 {
            0 => self.xxh3.get_mut(&(block / CHUNK)),
            _ => Some(
                self.xxh3.entry(block / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize])),
            ),
        };
        if let Some(known) = known {
            known[(block % CHUNK) as usize] = entry.xxh3;
        }
    }

    /// Blocks that are here.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Of them dirty.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Another number each time that the content of a block is another, or may be.
    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// What is known of the XXH3 of clean blocks.
    pub fn known_sums(&self) -> Sums {
        let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
        for (block, entry) in self.blocks().filter(|(_, e)| e.is_clean() && e.xxh3 != 0) {
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() as u64 == block => run.push(entry.xxh3),
                _ => runs.push((block, vec![entry.xxh3])),
            }
        }
        runs.into_iter().map(|(first, run)| (first, run.into_boxed_slice())).collect()
    }

    /// Makes it known again, in a map with the same [`BlockMap::digest`].
    pub fn know_sums(&mut self, sums: Sums) {
        for (first, run) in sums {
            for (block, xxh3) in (first..).zip(run.iter().copied()) {
                let entry = self.get(block);
                if entry.is_clean() {
                    self.set(block, Entry { xxh3, ..entry });
                }
            }
        }
    }

    /// Tells it from maps that say something else on flash.
    pub fn digest(&self) -> u64 {
        let mut digest = xxhash_rust::xxh3::Xxh3::new();
        for (block, entry) in self.blocks() {
            digest.update(&block.to_le_bytes());
            digest.update(&entry.pack().to_le_bytes());
        }
        digest.digest()
    }

    /// The blocks with an entry, in order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.blocks_with_entries(0)
    }

    /// The same from a block on.
    pub fn blocks_with_entries(&self, from: u64) -> impl Iterator<Item = (u64, Entry)> + '_ {
        let all = self.chunks.range(from / CHUNK..).flat_map(|(chunk, entries)| {
            let first = chunk * CHUNK;
            let known = self.xxh3.get(chunk);
            entries.iter().enumerate().filter(|(_, raw)| **raw != 0).map(move |(i, raw)| {
                let xxh3 = known.map_or(0, |known| known[i]);
                (first + i as u64, Entry { xxh3, ..Entry::unpack(*raw) })
            })
        });
        all.skip_while(move |(block, _)| *block < from)
    }

    /// How long the object is at least, by the checksums.
    pub fn vouched_bytes(&self) -> u64 {
        let chunks = self.chunks.iter().rev();
        let mut entries = chunks.flat_map(|(chunk, entries)| {
            let first = chunk * CHUNK;
            let entries = entries.iter().enumerate().rev();
            entries.map(move |(i, raw)| (first + i as u64, Entry::unpack(*raw)))
        });
        // An earlier block ends where the last one begins, at the latest.
        let last = entries.find(|(_, e)| e.has(bits::PRESENT) && !e.has(bits::OPEN));
        last.map_or(0, |(block, entry)| block * BLOCK_BYTES + u64::from(entry.len))
    }

    /// The blocks with an entry from `first` on, for dropping.
    pub fn blocks_from(&self, first: u64) -> Vec<u64> {
        let from = first / CHUNK;
        let chunks = self.chunks.range(from..);
        let mut found = Vec::new();
        for (chunk, entries) in chunks {
            for (i, raw) in entries.iter().enumerate() {
                let block = chunk * CHUNK + i as u64;
                if *raw != 0 && block >= first {
                    found.push(block);
                }
            }
        }
        found
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = BlockMap { contents: self.contents + 1, ..BlockMap::default() };
    }
}

/// The blocks that a range of bytes touches, as `first..end`.
pub(crate) fn blocks_of(offset: u64, length: u64) -> std::ops::Range<u64> {
    let first = offset / BLOCK_BYTES;
    match length {
        0 => first..first,
        _ => first..(offset + length).div_ceil(BLOCK_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(crc: u32, len: u32) -> Entry {
        Entry { crc, len, bits: bits::PRESENT, xxh3: 0 }
    }

    #[test]
    fn entries_survive_being_packed() {
        let entry = Entry { crc: 0xdead_beef, len: BLOCK_BYTES as u32, bits: 0x0f, xxh3: 0 };
        assert_eq!(Entry::unpack(entry.pack()), entry);
    }

    /// Records that end with their own CRC: the CRC of a block does not tell one from the other.
    #[test]
    fn what_a_crc_does_not_tell_apart_is_another_content() {
        let block = |record: &[u8]| {
            let mut block = vec![7; 4096];
            block[100..100 + record.len()].copy_from_slice(record);
            let at = 100 + record.len();
            block[at..at + 4].copy_from_slice(&crc(record).to_le_bytes());
            block
        };
        let (its, others) = (block(b"first record"), block(b"other record"));
        let (one, other) = (Entry::of(&its), Entry::of(&others));
        assert_eq!((one.crc, one.len), (other.crc, other.len));
        assert!(one.surely_is(&its) && !one.surely_is(&others) && !one.may_be(&others));
        let of_flash = Entry::unpack(one.pack());
        assert!(of_flash.may_be(&its) && of_flash.may_be(&others) && !of_flash.surely_is(&its));
        // Without an XXH3 a CRC still finds damage, and both know how long the block is.
        let written = Entry::with_crc(&its);
        assert_eq!((written.pack(), written.xxh3), (one.pack(), 0));
        assert!(written.may_be(&its) && !written.may_be(&its[1..]) && !one.may_be(&its[1..]));
    }

    #[test]
    fn what_is_known_of_a_block_goes_with_its_content() {
        let mut map = BlockMap::default();
        let known = Entry::of(b"known");
        map.set(5, known);
        map.set(5, map.get(5).with(bits::DIRTY));
        assert!(map.get(5).surely_is(b"known"));
        assert_eq!(map.blocks().next(), Some((5, known.with(bits::DIRTY))));
        map.set(5, Entry { xxh3: 0, ..known });
        assert!(!map.get(5).surely_is(b"known") && map.get(5).may_be(b"known"));
    }

    #[test]
    fn what_is_known_of_clean_blocks_is_known_again_in_the_same_map() {
        let mut map = BlockMap::default();
        let data = |block: u64| block.to_le_bytes();
        let (clean, dirty) = ([1, 2, 3, 7, CHUNK - 1, CHUNK, 3 * CHUNK], 4);
        for block in clean {
            map.set(block, Entry::of(&data(block)));
        }
        map.set(dirty, Entry::of(&data(dirty)).with(bits::DIRTY));
        map.set(9, Entry::with_crc(b"of nobody knows what"));
        // As it is read from flash.
        let mut again = BlockMap::default();
        map.blocks().for_each(|(block, entry)| again.set(block, Entry::unpack(entry.pack())));
        assert_eq!(again.digest(), map.digest());
        assert!(!again.get(1).surely_is(&data(1)) && again.known_sums().is_empty());
        let contents = again.contents();
        again.know_sums(map.known_sums());
        assert!(clean.iter().all(|block| again.get(*block).surely_is(&data(*block))));
        assert!([dirty, 9].iter().all(|block| again.get(*block).xxh3 == 0));
        assert_eq!((again.known_sums(), again.contents()), (map.known_sums(), contents));
        for entry in [Entry::default(), Entry::of(&data(8)), map.get(7).with(bits::DIRTY)] {
            again.set(7, entry);
            assert_ne!(again.digest(), map.digest(), "{entry:?}");
        }
        again.set(7, map.get(7));
        assert_eq!(again.digest(), map.digest());
    }

    #[test]
    fn a_map_is_read_back_and_counts() {
        let mut map = BlockMap::default();
        let dirty = present(7, 9).with(bits::DIRTY);
        map.set(3, present(1, 2));
        map.set(CHUNK + 1, dirty);
        map.set(CHUNK + 1, dirty.without(bits::DIRTY));
        map.set(CHUNK * 2, dirty);
        assert_eq!((map.present(), map.dirty()), (3, 1));
        let mut file = vec![0u8; ((CHUNK * 2 + 1) * ENTRY_BYTES) as usize];
        for (block, entry) in map.blocks() {
            let at = (block * ENTRY_BYTES) as usize;
            file[at..at + 8].copy_from_slice(&entry.pack().to_le_bytes());
        }
        let read = |offset: u64, buffer: &mut [u8]| {
            let rest = &file[(offset as usize).min(file.len())..];
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        };
        let back = BlockMap::load(read).unwrap();
        assert_eq!(back.blocks().collect::<Vec<_>>(), map.blocks().collect::<Vec<_>>());
        assert_eq!((back.present(), back.dirty()), (3, 1));
        assert_eq!(map.blocks_from(4), [CHUNK + 1, CHUNK * 2]);
        assert_eq!(map.vouched_bytes(), CHUNK * 2 * BLOCK_BYTES + 9);
        map.set(CHUNK * 2, dirty.with(bits::OPEN));
        assert_eq!(map.vouched_bytes(), (CHUNK + 1) * BLOCK_BYTES + 9);
    }

    #[test]
    fn ranges_touch_their_blocks() {
        assert_eq!(blocks_of(0, 0), 0..0);
        assert_eq!(blocks_of(BLOCK_BYTES - 1, 2), 0..2);
        assert_eq!(blocks_of(BLOCK_BYTES, BLOCK_BYTES), 1..2);
    }
}
