//! How much fits: what a commit may add to the database, before it is there.
//!
//! The database must never run out of pages while a checkpoint writes into it: what is in the
//! log has been acknowledged. So a commit that adds keys is refused when pages with data, plus
//! the worst case of what the overlays and the commit will add, reach the map less a reserve.
//! The worst case of a key is twice its row, since splitting leaves pages half full. The
//! reserve is for the copies that LMDB's copy-on-write makes while it writes (8 pages a key of the smallest
//! transaction, see `apply`), and for the rows that deletions add (orphans, and the first answer in a client's slot: less than the entry that goes) and the lists of free pages.

use super::apply::KEYS_MIN;
use super::codec::{ANSWER_BYTES, ENTRY_BYTES, INODE_BYTES};
use super::db::{CHUNK_BYTES, MAP_MIN_BYTES, PAGE_BYTES};
use crate::record::Change;

/// Pages that the copies of one smallest transaction need.
const COPY_RESERVE_PAGES: u64 = 8 * KEYS_MIN as u64;
/// One page of so many is kept for orphans and lists of free pages.
const GROWTH_RESERVE_SHARE: u64 = 16;
/// What LMDB adds to a row: node header and slot.
const ROW_OVERHEAD_BYTES: u64 = 10;
/// What a file with a name of 32 bytes takes in the worst case, for `inodes_free`.
const FILE_BYTES: u64 = row(8, INODE_BYTES) + row(8 + 32, ENTRY_BYTES) + row(16, ENTRY_BYTES + 32);

/// Worst case of one row in bytes of pages.
const fn row(key_bytes: usize, value_bytes: usize) -> u64 {
    2 * (key_bytes as u64 + value_bytes as u64 + ROW_OVERHEAD_BYTES)
}

/// Worst case of a value that is cut into chunks.
fn chunked(key_bytes: usize, value_bytes: usize) -> u64 {
    let chunks = value_bytes.div_ceil(CHUNK_BYTES).max(1);
    chunks as u64 * row(key_bytes, 0) + 2 * value_bytes as u64
}

/// Bytes of pages that a change may add. `new`: that the inode or the answer does not exist yet.
pub fn growth_bytes(change: &Change, new: bool) -> u64 {
    match change {
        Change::PutInode(..) if new => row(8, INODE_BYTES),
        Change::PutEntry { name, .. } => {
            row(8 + name.len(), ENTRY_BYTES) + row(16, ENTRY_BYTES + name.len())
        }
        Change::PutAnswer { .. } if new => row(10, ANSWER_BYTES),
        Change::PutSymlink(_, target) => chunked(9, target.len()),
        Change::PutXattr { name, value, .. } => chunked(10 + name.len(), value.len()),
        Change::PutShard(_, value) => chunked(13, value.len()),
        _ => 0,
    }
}

/// What a file, directory or link takes of the database as a rule, and each byte of its name. Its three
/// rows, and a third more: pages were nine tenths full after creates in order, and are less so
/// where names come in any order.
pub fn entry_bytes() -> (u64, u64) {
    let rows = [8 + INODE_BYTES, 8 + ENTRY_BYTES, 16 + ENTRY_BYTES];
    let bytes: u64 = rows.iter().map(|row| *row as u64 + ROW_OVERHEAD_BYTES).sum();
    // The name stands in two of them.
    (bytes * 4 / 3, (2 * 4_u64).div_ceil(3))
}

/// What a database with a map of so many bytes has for them.
pub fn room_bytes(map_bytes: u64) -> u64 {
    Space::new(map_bytes.max(MAP_MIN_BYTES)).limit_pages * PAGE_BYTES
}

/// The limits of one database.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Pages of the map.
    pub map_pages: u64,
    /// Pages with data, at most, for commits that may not use the reserve.
    pub limit_pages: u64,
}

impl Space {
    /// For a map of so many bytes (at least [`MAP_MIN_BYTES`]).
    pub fn new(map_bytes: u64) -> Space {
        let map_pages = map_bytes / PAGE_BYTES;
        let reserve = COPY_RESERVE_PAGES + map_pages / GROWTH_RESERVE_SHARE;
        Space { map_pages, limit_pages: map_pages.saturating_sub(reserve) }
    }

    /// True if `growth_bytes` more fit.
    pub fn fits(&self, data_pages: u64, pending_bytes: u64, growth_bytes: u64) -> bool {
        data_pages + (pending_bytes + growth_bytes).div_ceil(PAGE_BYTES) <= self.limit_pages
    }

    /// Files that still fit, in the worst case.
    pub fn files_free(&self, data_pages: u64, pending_bytes: u64) -> u64 {
        let used = data_pages * PAGE_BYTES + pending_bytes;
        (self.limit_pages * PAGE_BYTES).saturating_sub(used) / FILE_BYTES
    }
}
