//! What a store takes and has room for, told before there is one: `forebay validate` compares the inputs of a
//! job with it. Nothing is made here.
//!
//! Invariant: the kind is the one that would be tried first, and the numbers are those of the kind:
//! tmpfs and a plain directory give whole blocks to data and nothing to inodes; an XFS image has the inodes and
//! directories of its objects inside the capacity.

use crate::flash::{self, BLOCK_BYTES};
use crate::metadata;
use forebay_proto::control::{ControlError, StoreKind};
use std::path::Path;

/// What each object of an XFS image takes of the capacity beside its blocks: 512 bytes of inode, the rest in
/// directories. Measured with files of 50 bytes until an image was full: 573 with 300 MiB, 976 with 452 to 480 MiB,
/// whose directories have a block more each.
const XFS_OBJECT_BYTES: u64 = 1_000;
/// What the fan-out directories of an XFS image take of its capacity while they are empty, and what XFS holds back while several files
/// are written at once: a stage-in of 65,065 entries met ENOSPC with 1 MiB over, and fitted with 2.
const XFS_DIRECTORIES_BYTES: u64 = 4 << 20;

/// What a store takes and has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How it would hold its capacity.
    pub kind: StoreKind,
    /// Bytes that FLASH must have free to make it.
    pub flash_bytes: u64,
    /// Bytes of its capacity that it needs itself.
    pub own_bytes: u64,
    /// Data of a file takes whole blocks of so many bytes.
    pub block_bytes: u64,
    /// Each file takes so many bytes beside its blocks.
    pub file_bytes: u64,
    /// Bytes for names and inodes, outside the capacity.
    pub metadata_bytes: u64,
    /// Of these, what a file, directory or link takes.
    pub entry_bytes: u64,
    /// And each byte of its name.
    pub name_byte_bytes: u64,
}

/// The room of a store of this capacity on this flash; `kind`: the one that is insisted on.
///
/// # Errors
/// If FLASH cannot be looked at, or no store can be made there.
pub fn room(
    flash: &Path,
    capacity_bytes: u64,
    kind: Option<StoreKind>,
) -> Result<Room, ControlError> {
    let kind = flash::expected_kind(flash, capacity_bytes, kind)?;
    Ok(of_kind(kind, capacity_bytes.next_multiple_of(BLOCK_BYTES)))
}

fn of_kind(kind: StoreKind, capacity_bytes: u64) -> Room {
    let is_image = kind == StoreKind::LoopXfs;
    let needs = flash::needs(kind, capacity_bytes);
    let (entry_bytes, name_byte_bytes) = metadata::entry_bytes();
    Room {
        kind,
        flash_bytes: needs.flash_bytes,
        own_bytes: if is_image { XFS_DIRECTORIES_BYTES } else { 0 },
        block_bytes: BLOCK_BYTES,
        file_bytes: if is_image { XFS_OBJECT_BYTES } else { 0 },
        metadata_bytes: metadata::room_bytes(needs.meta.map_bytes),
        entry_bytes,
        name_byte_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_takes_more_than_its_capacity_and_memory_as_much() {
        let capacity = 1 << 30;
        assert_eq!(of_kind(StoreKind::Tmpfs, capacity).flash_bytes, capacity);
        let image = of_kind(StoreKind::LoopXfs, capacity);
        assert!(image.flash_bytes > capacity + (64 << 20), "{image:?}");
        assert!(image.file_bytes > of_kind(StoreKind::Directory, capacity).file_bytes);
    }

    #[test]
    fn names_of_a_small_buffer_have_room_for_more_files_than_its_blocks() {
        // 64 MiB took 191,337 files with names of 8 bytes.
        let room = of_kind(StoreKind::Tmpfs, 64 << 20);
        let files = room.metadata_bytes / (room.entry_bytes + 8 * room.name_byte_bytes);
        assert!((150_000..200_000).contains(&files), "{files}");
        assert!(files > (64 << 20) / room.block_bytes);
    }
}
