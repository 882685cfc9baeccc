//! Reading: hits from flash, misses fetched from the PFS ([`super::super::fills`]) in whole blocks, once for all readers.
//!
//! Invariant: what cannot be kept on flash is read past it, block by block. Called for FUSE reads, and by copies of a file.

use super::super::file::CacheFile;
use super::super::fills::{FETCH_BLOCKS_MAX, PIECE_BLOCKS};
use super::super::map::{BLOCK_BYTES, bits, blocks_of};
use super::super::read_ahead::Wish;
use super::FileData;
use forebay_proto::activity::ActivityKind;
use forebay_proto::{Errno, Result};
use std::sync::Arc;

/// How often a read looks for its blocks before it reads past the cache: they may be evicted
/// again as fast as they come.
const FETCH_TRIES: u32 = 4;

impl FileData {
    /// Reads a file's bytes.
    pub(crate) fn read_data(
        &self,
        file: &Arc<CacheFile>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let size = self.losses.object_unless_lost(file)?.ok_or(Errno::EIO)?.size_bytes;
        let length = size.saturating_sub(offset).min(buffer.len() as u64);
        let buffer = &mut buffer[..length as usize];
        if buffer.is_empty() {
            return Ok(0);
        }
        let window = self.note_read(file, offset, length);
        let missing = file.state.lock().missing(offset, length);
        self.counters.read(length, missing);
        let begun = self.activity.begin();
        let read = self.read_counted(file, offset, buffer, window);
        let (kind, result) = match (&read, missing) {
            (Err(errno), _) => (ActivityKind::Miss, -i64::from(errno.0)),
            (Ok(bytes), 0) => (ActivityKind::Hit, *bytes as i64),
            (Ok(_), missing) => (ActivityKind::Miss, missing.min(length) as i64),
        };
        self.activity.end(begun, kind, file.number(), (offset, length), result);
        read
    }

    fn read_counted(
        &self,
        file: &Arc<CacheFile>,
        offset: u64,
        buffer: &mut [u8],
        window: u64,
    ) -> Result<usize> {
        let length = buffer.len() as u64;
        for _ in 0..FETCH_TRIES {
            {
                let _gate = file.gate.read();
                if file.state.lock().all_here(offset, length) {
                    match self.flash.read(file.ino, offset, buffer) {
                        Err(Errno::EIO) if self.drop_unreadable(file, offset, length)? => {}
                        other => {
                            self.space.used(file.ino, offset);
                            return other;
                        }
                    }
                }
            }
            if !self.space.takes_fills() {
                break;
            }
            match self.fills.fetch(file, blocks_of(offset, length), window) {
                Err(Errno::ENOSPC) => break,
                fetched => fetched?,
            }
        }
        self.read_past(file, offset, buffer)
    }

    /// Sees whether a reader goes straight on, and asks ahead for what it will read.
    fn note_read(&self, file: &Arc<CacheFile>, offset: u64, length: u64) -> u64 {
        let mut state = file.state.lock();
        let end = offset + length;
        let straight = offset == state.ahead.next || (offset == 0 && length > 0);
        state.ahead.window = match straight {
            true => (state.ahead.window * 2).clamp(PIECE_BLOCKS, FETCH_BLOCKS_MAX),
            false => 0,
        };
        state.ahead.next = end;
        let window = state.ahead.window;
        if window == 0 || state.record.whole || !self.space.takes_fills() {
            return 0;
        }
        let limit = state.record.fetch_limit.div_ceil(BLOCK_BYTES);
        let from = end / BLOCK_BYTES;
        let until = (from + window).min(limit);
        let missing =
            (from..until).find(|block| !state.here(*block) && !state.block_use.is_filling(*block));
        drop(state);
        // Not each block by itself: only once half of the window has been read.
        if let Some(first) = missing
            && first < from + window / 2
        {
            let wish = Wish { file: file.clone(), blocks: first..until };
            self.wishes.add(wish);
        }
        window
    }

    /// There is no room to keep what is read: block by block from where it is.
    fn read_past(&self, file: &Arc<CacheFile>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let in_block = BLOCK_BYTES - at % BLOCK_BYTES;
            let length = in_block.min((buffer.len() - done) as u64) as usize;
            let part = &mut buffer[done..done + length];
            let source = self.inodes.source_of(file);
            let _gate = file.gate.read();
            let (here, clean, limit) = {
                let state = file.state.lock();
                let entry = state.map.get(at / BLOCK_BYTES);
                let clean = entry.has(bits::PRESENT) && !entry.has(bits::DIRTY);
                let here = state.here(at / BLOCK_BYTES);
                (here, clean && !state.record.whole, state.record.fetch_limit)
            };
            let read = here.then(|| self.flash.read(file.ino, at, part));
            // What flash cannot read and the PFS has is read from there.
            let lost = clean && matches!(read, Some(Err(Errno::EIO)));
            if let (Some(read), false) = (read, lost) {
                read?;
            } else {
                part.fill(0);
                let usable = limit.saturating_sub(at).min(length as u64) as usize;
                self.fills.read_pfs(&*source?, at, &mut part[..usable])?;
            }
            done += length;
        }
        Ok(done)
    }

    /// Flash could not read a range. If the PFS has all of it, it is fetched again.
    fn drop_unreadable(&self, file: &Arc<CacheFile>, offset: u64, length: u64) -> Result<bool> {
        let mut state = file.state.lock();
        let blocks = blocks_of(offset, length);
        if state.record.whole || blocks.clone().any(|b| state.map.get(b).has(bits::DIRTY)) {
            return Ok(false);
        }
        if state.opens.is_under_way() {
            // It stays for who opens it: this reader gets it from the PFS.
            return Ok(true);
        }
        tracing::warn!(path = %state.record.path, offset, "flash cannot read it: from the PFS again");
        state.drop_blocks(&self.flash, file, blocks)?;
        Ok(true)
    }
}
