//! Files that are written as logs: the formats and the rules, without I/O of their own.
//!
//! Each mount appends what it writes into such a file to a log of its own, on its own node. The server
//! of the file's inode keeps the index: which byte of the file is where in which log. A write is in the
//! index when it is published; until then only its mount knows it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`record`] | a log: records, each before its data, and what is found in a log after a kill |
//! | [`extents`] | which range of a file is where |
//! | [`index`] | the index of a file: its logs, and the extents that were published, in their order |
//!
//! Invariants
//! * A log is only appended to, and its bytes never change: who knows where something is reads it without
//!   a lock. A log goes as a whole, when the index leads nowhere into it and its writer has ended it.
//! * Of two writes that overlap the one of the later time wins, in whatever order they are published; of one time that of the
//!   log with the larger number. A writer's times grow, and are later than all that it has seen in the index.
//!
//! Called by `client` (writes, reads) and `namespace` (the index, at the server of the inode).

pub mod extents;
pub mod index;
pub mod record;

pub use extents::{Extent, Extents, LogId};
pub use index::{Entry, Index, Log, Times};
pub use record::{Found, RECORD_BYTES, Record};

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Numbers out of bytes; `None` where they end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
