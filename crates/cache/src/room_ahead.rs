//! Room on flash ahead of who appends.
//!
//! A file system in memory gives each write that makes a file longer pages for itself, and clears what the write does not
//! fill of them: appends of 47,008 bytes take 8.0 us so, and 2.6 us where the room was taken before, in larger
//! pages at once (4 KiB: 1.9 us and 0.6 us; tmpfs with `huge=within_size`, Linux 6.18). So a long file that is written at its
//! end gets its next [`STEP_BYTES`] behind that end, where nobody sees them.
//!
//! Invariants: room is taken and given back behind the end only, so that no byte of a file depends on it; a file has at
//! most two steps, and all of them a [`RESERVE_SHARE`]th of the capacity, but for one step; none is taken while flash is short.
//! It is given back at the last close, before a kernel gets the file for writing (which goes on behind the end without
//! asking), and, of all files, before anybody is told that flash is full. A kill leaves it to the next start.
//!
//! Called by writes ([`super::file_data`]), closes and opens ([`super::open`]), [`super::space`], and the start.

use super::file::{CacheFile, FileState};
use super::flash::Flash;
use super::space::WAIT;
use forebay_policy::room::{LOW_SHARE, RESERVE_SHARE};
use forebay_proto::Result;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// What is taken at a time, and the boundary that it ends on. Twice as much makes appends faster by a tenth.
pub(super) const STEP_BYTES: u64 = 256 << 10;
/// Files shorter than this get none: giving it back takes as long as what it makes faster in so much.
const FROM_BYTES: u64 = 1 << 20;
/// Most that one write may have; a larger one gets large pages by itself.
const WRITE_MAX_BYTES: u64 = 128 << 10;
/// Most files that have room at a time, on flash of any capacity.
const FILES_MAX: u64 = 64;
/// Unit in which files end on flash.
const PAGE_BYTES: u64 = 4096;

/// The files that have room ahead.
pub(crate) struct RoomAhead {
    flash: Arc<Flash>,
    files: Mutex<Vec<Weak<CacheFile>>>,
    /// Flash is memory in large pages: elsewhere the file system takes room ahead by itself, or it is no faster.
    is_worth_it: bool,
}

impl RoomAhead {
    /// Of a cache on this flash.
    pub fn new(flash: &Arc<Flash>) -> RoomAhead {
        let is_worth_it = flash.objects().has_large_pages().unwrap_or_else(|error| {
            tracing::warn!(%error, "whether flash has large pages is not known: no room ahead of appends");
            false
        });
        RoomAhead { flash: flash.clone(), files: Mutex::default(), is_worth_it }
    }

    /// One more file, where another may have some.
    fn add(&self, file: &Arc<CacheFile>, most: u64) -> bool {
        let mut files = self.files.lock();
        files.retain(|known| known.strong_count() > 0);
        if files.iter().any(|known| known.as_ptr() == Arc::as_ptr(file)) {
            return true;
        }
        if files.len() as u64 >= most {
            return false;
        }
        files.push(Arc::downgrade(file));
        true
    }

    fn remove(&self, file: &Arc<CacheFile>) {
        self.files.lock().retain(|known| known.as_ptr() != Arc::as_ptr(file));
    }
}

/// Up to where room is wanted for a write, if it is one of a row of appends that has used up what it had.
fn wanted(state: &FileState, offset: u64, length: u64) -> Option<u64> {
    let end = offset + length;
    let appends =
        offset == state.extent.seen_bytes() && offset >= FROM_BYTES && length <= WRITE_MAX_BYTES;
    let is_ours = !state.record.whole && !state.is_gone();
    (appends && is_ours && end > state.extent.room_until())
        .then(|| end.next_multiple_of(STEP_BYTES))
}

impl RoomAhead {
    /// Takes room for a write, and for those that may come after it, where that is worth it. Which does without if there
    /// is none. With the file's `gate` held, shared.
    pub(crate) fn take_room_ahead(
        &self,
        file: &Arc<CacheFile>,
        state: &mut FileState,
        offset: u64,
        length: u64,
    ) {
        if !self.is_worth_it {
            return;
        }
        let Some(until) = wanted(state, offset, length) else { return };
        let (Ok((used, capacity)), Ok(below)) = (self.flash.space(), self.flash.free_below())
        else {
            return;
        };
        let most = (capacity / RESERVE_SHARE / STEP_BYTES).clamp(1, FILES_MAX);
        let free = capacity.saturating_sub(used).min(below);
        if free < capacity / LOW_SHARE || !self.add(file, most) {
            return;
        }
        let from = offset.next_multiple_of(PAGE_BYTES);
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        match self.flash.fallocate(file.ino, keep, from, until - from) {
            Ok(()) => state.extent.set_room(until),
            Err(error) => tracing::debug!(%error, ino = %file.ino, "no room ahead of an append"),
        }
    }

    /// Gives back the room that a file has behind its end; the bytes that flash has more by it, and no others: who waits
    /// for room tries again for them, and does not wait for drains. What somebody is using keeps it.
    pub(crate) fn give_room_back(&self, file: &Arc<CacheFile>) -> Result<u64> {
        if file.state.lock().extent.room_until() == 0 {
            return Ok(0);
        }
        // Nobody writes now: where the end is stays so.
        let Some(_gate) = file.gate.try_write_for(WAIT) else { return Ok(0) };
        let mut state = file.state.lock();
        if state.record.whole || state.is_in_kernel(&self.flash, file)? {
            // It may be writing there.
            return Ok(0);
        }
        let until = state.extent.take_room();
        self.remove(file);
        if until == 0 || state.is_gone() {
            return Ok(0);
        }
        let object = self.flash.stat(file.ino)?;
        let from = object.size_bytes.next_multiple_of(PAGE_BYTES);
        if from >= until {
            return Ok(0);
        }
        let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        let give = || self.flash.fallocate(file.ino, punch, from, until - from);
        // No write, so no other time of the last one.
        let kept = self.flash.keep_mtime(file.ino, give)?;
        state.evidence.note_unwritten(&kept);
        kept.changed?;
        Ok(512 * object.blocks_512.saturating_sub(self.flash.stat(file.ino)?.blocks_512))
    }

    /// Gives back the room that all files have; the bytes.
    pub(crate) fn give_all_room_back(&self) -> u64 {
        let files: Vec<_> = self.files.lock().iter().filter_map(Weak::upgrade).collect();
        let mut bytes = 0;
        for file in files {
            match self.give_room_back(&file) {
                Ok(given) => bytes += given,
                Err(error) => {
                    tracing::warn!(%error, ino = %file.ino, "room ahead of an append stays taken");
                }
            }
        }
        bytes
    }

    /// After a start: what a kill has left behind the end.
    pub(crate) fn give_old_room_back(&self, file: &Arc<CacheFile>) -> Result<()> {
        if !self.is_worth_it {
            return Ok(());
        }
        let object = self.flash.stat(file.ino)?;
        if object.blocks_512 * 512 > object.size_bytes.next_multiple_of(PAGE_BYTES) {
            file.state.lock().extent.set_room(object.size_bytes + 2 * STEP_BYTES);
            self.give_room_back(file)?;
        }
        Ok(())
    }
}
