//! What looks at each byte that is moved: CRC32C of bytes, of pieces that come one after the other, and of ranges that lie together;
//! whether all are zeros; and short names of paths.
//!
//! A crate of its own for the builds of tests: libraries of checksums are compiled where they are called from, and whoever calls them
//! from here need not be optimized for them (Cargo.toml, `profile.dev`). So nothing here is inlined.
//!
//! Called by the mover.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// CRC32C of bytes.
#[inline(never)]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// CRC32C of two ranges that lie together, of which the second has so many bytes.
#[inline(never)]
#[must_use]
pub fn joined(first: u32, second: u32, second_bytes: u64) -> u32 {
    crc_fast::checksum_combine(Crc32Iscsi, first.into(), second.into(), second_bytes) as u32
}

/// Whether there are only zeros.
#[inline(never)]
#[must_use]
pub fn is_zeros(bytes: &[u8]) -> bool {
    // Folded by page: a loop that may end at each byte is ten times slower.
    !bytes.chunks(4096).any(|page| page.iter().fold(0, |all, byte| all | byte) != 0)
}

/// A name of a path of any length. Two paths have the same one as good as never.
#[inline(never)]
#[must_use]
pub fn short_name(path: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(path)
}

/// CRC32C of pieces.
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// Of nothing yet.
    #[inline(never)]
    #[must_use]
    pub fn new() -> Crc32c {
        Crc32c(crc_fast::Digest::new(Crc32Iscsi))
    }

    /// The next piece.
    #[inline(never)]
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Of all until now; more may come.
    #[inline(never)]
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Crc32c {
        Crc32c::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_ranges_have_the_checksum_of_the_whole() {
        // The check value of CRC-32/ISCSI.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut pieces = Crc32c::default();
        pieces.update(b"1234");
        assert_eq!(pieces.value(), crc32c(b"1234"));
        pieces.update(b"56789");
        assert_eq!(pieces.value(), 0xe306_9283);
        assert_eq!(joined(crc32c(b"1234"), crc32c(b"56789"), 5), 0xe306_9283);
        assert_ne!(short_name(b"a"), short_name(b"b"));
    }

    #[test]
    fn one_byte_among_zeros_is_seen() {
        let mut bytes = [0; 10_000];
        assert!(is_zeros(&bytes) && is_zeros(&[]));
        for at in [0, 4_095, 4_096, 9_999] {
            bytes[at] = 1;
            assert!(!is_zeros(&bytes), "{at}");
            bytes[at] = 0;
        }
    }
}
