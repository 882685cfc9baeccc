//! What the bytes of a workload's files are: made to be written, and compared with what was read.
//!
//! Invariant: the content of a file depends on what the workload says of it, and not on which process moves it.
//! Callers: `player`, `helper`, `files`.

use forebay_workload::content::{Content, Filler, Place, Placed};
use forebay_workload::language::{FileId, Slab, Transfer, Workload};
use forebay_workload::random::mix;

/// Longest piece of a slab whose content is made at once.
pub(super) const SLAB_PIECE_BYTES: u64 = 1 << 20;

/// What makes and checks bytes.
pub(super) enum Bytes {
    /// By place.
    Placed(Placed),
    /// IOR's, by transfer.
    Ior(Filler),
}

impl Bytes {
    pub(super) fn new(workload: &Workload, longest: usize) -> Bytes {
        match workload.content {
            Content::Stamped => Bytes::Placed(Placed::new(workload.seed, longest)),
            content => Bytes::Ior(Filler::new(content, workload.seed, longest)),
        }
    }

    pub(super) fn of(&mut self, transfer: &Transfer) -> &[u8] {
        let len = transfer.bytes as usize;
        match self {
            Bytes::Placed(placed) => placed.bytes(key_of(&transfer.file), transfer.offset, len),
            Bytes::Ior(filler) => {
                &filler.bytes(Place { rank: transfer.part, offset: transfer.offset })[..len]
            }
        }
    }

    /// The bytes of a slab, whose pieces have the content of their places in the array.
    pub(super) fn of_slab(&mut self, transfer: &Transfer, slab: &Slab, to: &mut [u8]) {
        let mut filled = 0;
        for (offset, bytes) in slab.pieces() {
            // No longer than what content is made for at once.
            let end = offset + bytes;
            let mut offset = offset;
            while offset < end {
                let bytes = (end - offset).min(SLAB_PIECE_BYTES);
                let piece = Transfer { offset, bytes, ..*transfer };
                let len = bytes as usize;
                to[filled..filled + len].copy_from_slice(self.of(&piece));
                filled += len;
                offset += bytes;
            }
        }
    }

    /// Where what was read is not what was written, if anywhere.
    pub(super) fn first_difference(&mut self, transfer: &Transfer, read: &[u8]) -> Option<usize> {
        match self {
            Bytes::Placed(placed) => {
                placed.first_difference(key_of(&transfer.file), transfer.offset, read)
            }
            Bytes::Ior(filler) => {
                let place = Place { rank: transfer.part, offset: transfer.offset };
                filler.first_difference(place, read)
            }
        }
    }
}

/// A number for a file, as its content depends on it.
fn key_of(file: &FileId) -> u64 {
    let two = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
    mix(two(file.spec, file.job) ^ mix(two(file.process, file.item) ^ mix(file.repeat.into())))
}
