//! Giving a store a larger capacity, while it is in use.
//!
//! Order, so that a kill anywhere leaves a store that is sound: the record says first that it
//! grows to the new capacity (durable), then the room is made, then the record says that it has
//! it. The record cannot come only last: an image whose file system has grown can never be made
//! smaller, so a store found between the two must know where it was going. And it cannot say
//! the new capacity at once: it would promise what is not there. [`settle`], at the next open,
//! goes on to the new capacity; if flash has no room for that, it returns to the old one.
//!
//! Every step can be repeated: remounting and allocating to a size are no change the second time.
//! Metadata keeps the room that it was made with.

use super::create::check_room;
use super::error::{Result, fail};
use super::record::{self, StoreRecord};
use super::{image, tmpfs};
use forebay_failpoint::step;
use forebay_proto::control::StoreKind;
use std::path::Path;

/// Grows the store to `capacity_bytes`; `record` is what its record says then.
pub fn grow(dir: &Path, record: &mut StoreRecord, capacity_bytes: u64) -> Result<()> {
    let capacity_bytes = capacity_bytes.next_multiple_of(super::create::BLOCK_BYTES);
    if capacity_bytes == record.capacity_bytes {
        return Ok(());
    }
    if capacity_bytes < record.capacity_bytes {
        let why = format!("it has {} bytes, a store only grows", record.capacity_bytes);
        return Err(fail("give a capacity to", dir, &why).errno(libc::EINVAL));
    }
    let flash = dir.parent().unwrap_or(dir);
    check_room(flash, dir, record, capacity_bytes - record.capacity_bytes)?;
    let mut growing = record.clone();
    growing.growing_to_bytes = Some(capacity_bytes);
    record::save(dir, &growing)?;
    step("a store says that it grows");
    match make_room(dir, &growing, capacity_bytes) {
        Ok(()) => finish(dir, record, capacity_bytes),
        Err(error) => {
            undo(dir, record)?;
            Err(error)
        }
    }
}

/// Ends what a killed server began, on an attached store; the text tells if the new capacity
/// could not be had.
pub fn settle(dir: &Path, mut record: StoreRecord) -> Result<(StoreRecord, Option<String>)> {
    let Some(capacity_bytes) = record.growing_to_bytes else { return Ok((record, None)) };
    match make_room(dir, &record, capacity_bytes) {
        Ok(()) => {
            finish(dir, &mut record, capacity_bytes)?;
            Ok((record, None))
        }
        Err(error) => {
            record.growing_to_bytes = None;
            undo(dir, &record)?;
            Ok((record, Some(format!("the store keeps its capacity: {error}"))))
        }
    }
}

fn make_room(dir: &Path, record: &StoreRecord, capacity_bytes: u64) -> Result<()> {
    let larger = StoreRecord { capacity_bytes, ..record.clone() };
    match record.kind {
        StoreKind::Tmpfs => tmpfs::resize(dir, capacity_bytes),
        StoreKind::LoopXfs => image::grow(dir, record, &larger),
        StoreKind::Directory => Ok(()),
    }
}

fn finish(dir: &Path, record: &mut StoreRecord, capacity_bytes: u64) -> Result<()> {
    step("a store has grown");
    let mut grown = record.clone();
    grown.capacity_bytes = capacity_bytes;
    grown.growing_to_bytes = None;
    record::save(dir, &grown)?;
    *record = grown;
    Ok(())
}

/// Back to what `record` says. What fails here is settled by the next open of the store.
fn undo(dir: &Path, record: &StoreRecord) -> Result<()> {
    match record.kind {
        StoreKind::Tmpfs => tmpfs::resize(dir, record.capacity_bytes)?,
        StoreKind::LoopXfs => image::shrink_back(dir, record)?,
        StoreKind::Directory => (),
    }
    record::save(dir, record)
}
