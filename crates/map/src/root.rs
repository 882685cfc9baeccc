//! The root of a mapped file: a few bytes that are replaced as a whole.
//!
//! The first [`HEADER_BYTES`] of the file are three pages of [`PAGE_BYTES`]: a mark, and two slots. A slot has, in the byte
//! order of little-endian machines, a sequence number (8 bytes, from 1 on), the length of the root (4), a CRC32C (4, of these
//! 12 bytes and the root), and the root. A commit writes the slot whose number is lower; the other one stays as it is until
//! the next commit. So a kill or a power cut while a slot is written leaves that slot with a checksum that does not
//! match, and the other one with the root before it. No two slots share a page: a page that is torn takes one slot.
//!
//! Invariant: of a file that was made and not damaged at most one slot is torn. Two that are, with something in both,
//! mean damage, which is EIO and never "no root".

use std::io;

/// What a header page takes: the smallest page of the processors that Linux runs on.
pub const PAGE_BYTES: usize = 4096;
/// What a file with a root has before the program's bytes.
pub const HEADER_BYTES: usize = 3 * PAGE_BYTES;
/// Most bytes of a root.
pub const ROOT_MAX_BYTES: usize = 2048;

const MARK: [u8; 16] = *b"forebay map 1\0\0\0";
const FIELDS_BYTES: usize = 16;

/// A slot that is whole.
type Whole = (u64, Vec<u8>);

/// What a slot holds.
enum Slot {
    Blank,
    Whole(Whole),
    Torn,
}

/// The header of a mapped file.
pub(crate) struct Slots(*mut u8);

impl Slots {
    /// # Safety
    /// [`HEADER_BYTES`] are mapped there as long as this is used.
    pub unsafe fn at(header: *mut u8) -> Slots {
        Slots(header)
    }

    /// A copy: others may write meanwhile.
    fn page(&self, number: usize) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        // SAFETY: one of the three pages, mapped by the promise of `at`; the copy is ours.
        unsafe {
            let from = self.0.add(number * PAGE_BYTES);
            std::ptr::copy_nonoverlapping(from, page.as_mut_ptr(), PAGE_BYTES);
        }
        page
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= HEADER_BYTES);
        // SAFETY: within the header, mapped for writing by the caller of `format` and `replace`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(offset), bytes.len());
        }
    }

    pub fn are_ours(&self) -> bool {
        self.page(0)[..MARK.len()] == MARK
    }

    pub fn are_blank(&self) -> bool {
        (0..3).all(|number| self.page(number).iter().all(|byte| *byte == 0))
    }

    /// Makes the header of a new file.
    pub fn format(&self) {
        self.put(0, &MARK);
    }

    fn slot(&self, number: usize) -> Slot {
        parse(&self.page(1 + number))
    }

    /// The root with the highest number, `None` if none was committed.
    pub fn newest(&self) -> io::Result<Option<Whole>> {
        match (self.slot(0), self.slot(1)) {
            (Slot::Whole(a), Slot::Whole(b)) => Ok(Some(if a.0 > b.0 { a } else { b })),
            (Slot::Whole(one), _) | (_, Slot::Whole(one)) => Ok(Some(one)),
            (Slot::Torn, Slot::Torn) => Err(io::Error::from_raw_os_error(libc::EIO)),
            // The first commit was cut short.
            (Slot::Blank, _) | (_, Slot::Blank) => Ok(None),
        }
    }

    /// Writes the slot that is not the newest; returns address and length of what is to be persisted.
    pub fn replace(&self, root: &[u8]) -> io::Result<(usize, usize)> {
        let (number, sequence) = match (self.newest()?, self.slot(0)) {
            (None, _) => (0, 1),
            (Some((newest, _)), Slot::Whole((first, _))) if first == newest => (1, newest + 1),
            (Some((newest, _)), _) => (0, newest + 1),
        };
        let offset = (1 + number) * PAGE_BYTES;
        // The fields last: what a kill leaves in between has a checksum that does not match, or is the old slot
        // with other bytes behind it, which does not match either.
        self.put(offset + FIELDS_BYTES, root);
        self.put(offset, &fields(sequence, root));
        Ok((self.0 as usize + offset, FIELDS_BYTES + root.len()))
    }
}

fn fields(sequence: u64, root: &[u8]) -> [u8; FIELDS_BYTES] {
    let mut fields = [0; FIELDS_BYTES];
    fields[..8].copy_from_slice(&sequence.to_le_bytes());
    fields[8..12].copy_from_slice(&(root.len() as u32).to_le_bytes());
    let crc = checksum(&fields[..12], root);
    fields[12..].copy_from_slice(&crc.to_le_bytes());
    fields
}

fn checksum(fields: &[u8], root: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(fields);
    digest.update(root);
    digest.finalize() as u32
}

fn parse(page: &[u8]) -> Slot {
    if page.iter().all(|byte| *byte == 0) {
        return Slot::Blank;
    }
    let number = |from: usize, to: usize| {
        page[from..to].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte))
    };
    let (sequence, length, crc) = (number(0, 8), number(8, 12) as usize, number(12, 16) as u32);
    if sequence == 0 || length > ROOT_MAX_BYTES {
        return Slot::Torn;
    }
    let root = &page[FIELDS_BYTES..FIELDS_BYTES + length];
    match checksum(&page[..12], root) == crc {
        true => Slot::Whole((sequence, root.to_vec())),
        false => Slot::Torn,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Header(Vec<u8>);

    impl Header {
        fn new() -> Header {
            let header = Header(vec![0; HEADER_BYTES]);
            header.slots().format();
            header
        }

        fn slots(&self) -> Slots {
            // SAFETY: as many bytes, which live as long as the header; these tests have one thread.
            unsafe { Slots::at(self.0.as_ptr().cast_mut()) }
        }

        fn root(&self) -> Option<Vec<u8>> {
            self.slots().newest().unwrap().map(|(_, bytes)| bytes)
        }
    }

    #[test]
    fn a_commit_that_is_cut_at_any_byte_leaves_the_root_before_it_or_its_own() {
        let mut header = Header::new();
        assert_eq!(header.root(), None);
        let roots: Vec<Vec<u8>> = (0..6u8).map(|n| vec![n + 1; 40 * usize::from(n)]).collect();
        let mut before = None;
        for root in &roots {
            let old = header.0.clone();
            let (address, length) = header.slots().replace(root).unwrap();
            assert_eq!(header.root().as_ref(), Some(root));
            let new = header.0.clone();
            let at = address - header.0.as_ptr() as usize;
            // Any prefix of the slot is written, or any of its parts.
            for cut in 0..=length {
                for (from, to) in [(0, cut), (cut, length)] {
                    header.0.copy_from_slice(&old);
                    header.0[at + from..at + to].copy_from_slice(&new[at + from..at + to]);
                    let found = header.root();
                    let whole = header.0 == new;
                    let wanted = if whole { Some(root) } else { before.as_ref() };
                    assert_eq!(found.as_ref(), wanted, "bytes {from} to {to} of {length}");
                }
            }
            header.0.copy_from_slice(&new);
            before = Some(root.clone());
        }
    }

    #[test]
    fn damage_is_told_from_no_root() {
        let mut header = Header::new();
        for n in 0..2u8 {
            header.slots().replace(&[n; 9]).unwrap();
        }
        header.0[PAGE_BYTES + 20] ^= 1;
        assert_eq!(header.root(), Some(vec![1; 9]), "one copy is enough");
        header.0[2 * PAGE_BYTES] ^= 1;
        assert_eq!(header.slots().newest().err().and_then(|e| e.raw_os_error()), Some(libc::EIO));
        assert!(header.slots().replace(b"new").is_err(), "nothing is written over it");
    }

    #[test]
    fn numbers_do_not_depend_on_the_machine() {
        let fields = fields(0x0102, b"root");
        assert_eq!(fields[..12], [2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
    }
}
