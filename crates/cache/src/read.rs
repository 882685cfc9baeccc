//! Reading: hits from flash, misses fetched from the PFS in whole blocks, once for all readers.
//!
//! Invariants: a block becomes PRESENT only after its data is on flash, with its checksum; nobody
//! writes a block while it is fetched; what was fetched for another base, or behind a truncation,
//! is thrown away. Called for FUSE reads, by the read-ahead threads, and by writes that need the rest of
//! a block.

use super::CacheFs;
use super::file::CacheFile;
use super::filling::Filling;
use super::map::{BLOCK_BYTES, Entry, bits, blocks_of};
use super::read_ahead::Wish;
use crossbeam_channel::Receiver;
use forebay_activity::Begun;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::{Errno, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most blocks of one fetch: what a PFS of 1 GB/s moves while a busy node wakes a thread.
const FETCH_BLOCKS_MAX: u64 = 128;
/// Blocks of one piece of a fetch: readers wait for no more than that.
const PIECE_BLOCKS: u64 = 8;
/// How often a read looks for its blocks before it reads past the cache: they may be evicted
/// again as fast as they come.
const FETCH_TRIES: u32 = 4;

impl CacheFs {
    /// Reads a file's bytes.
    pub(super) fn read_data(
        &self,
        file: &Arc<CacheFile>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let size = self.object_unless_lost(file)?.ok_or(Errno::EIO)?.size_bytes;
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
            match self.fetch(file, blocks_of(offset, length), window) {
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
            (from..until).find(|block| !state.here(*block) && !state.filling.contains(block));
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

    /// Fetches what is missing of a range of blocks, and up to `window` blocks more. Returns
    /// after the first piece that brought something, or when another thread's fetch has.
    pub(super) fn fetch(
        &self,
        file: &Arc<CacheFile>,
        blocks: Range<u64>,
        window: u64,
    ) -> Result<()> {
        let (filling, generation) = {
            let mut state = file.state.lock();
            let missing = |b: &u64| !state.here(*b);
            let Some(first) = blocks.clone().find(|b| missing(b) && !state.filling.contains(b))
            else {
                if blocks.clone().any(|b| missing(&b)) {
                    let begun = self.activity.begin();
                    file.filled.wait(&mut state);
                    drop(state);
                    self.stalled(begun, file, &blocks, Stall::Fill);
                }
                return Ok(());
            };
            let limit = state.record.fetch_limit.div_ceil(BLOCK_BYTES);
            let until = (blocks.end + window).min(first + FETCH_BLOCKS_MAX).min(limit);
            let end = (first..until)
                .find(|b| state.here(*b) || state.filling.contains(b))
                .unwrap_or(until);
            (Filling::begin(file, &mut state, first..end), state.generation)
        };
        self.fetch_run(file, filling, generation)
    }

    fn fetch_run(
        &self,
        file: &Arc<CacheFile>,
        mut filling: Filling<'_>,
        generation: u64,
    ) -> Result<()> {
        let run = filling.left();
        let source = self.inodes.source_of(file)?;
        // All of the run is asked for at once, so that the PFS works while a piece is put on flash.
        // What is on flash then need not be in the page cache too. Only speed depends on either.
        let ahead = run.end - run.start > PIECE_BLOCKS;
        let advise = |blocks: &Range<u64>, advice| {
            let length = NonZeroU64::new((blocks.end - blocks.start) * BLOCK_BYTES);
            if ahead {
                let _ = fadvise(&source, blocks.start * BLOCK_BYTES, length, advice);
            }
        };
        advise(&run, Advice::WillNeed);
        let mut buffer = Vec::new();
        let mut at = run.start;
        while at < run.end {
            let piece = at..(at + PIECE_BLOCKS).min(run.end);
            let bytes = (piece.end - piece.start) * BLOCK_BYTES;
            let room = self.space.room_to_fill(self, bytes)?;
            let begun = self.activity.begin();
            let filled = self.fetch_piece(file, &source, piece.clone(), generation, &mut buffer);
            let result = match filled {
                Ok(_) => buffer.len() as i64,
                Err(errno) => -i64::from(errno.0),
            };
            let place = (piece.start * BLOCK_BYTES, buffer.len() as u64);
            self.activity.end(begun, ActivityKind::Fill, file.number(), place, result);
            drop(room);
            if filled == Err(Errno::ENOSPC) {
                self.space.fill_is_short(self, bytes);
            }
            if !filled? {
                return Ok(());
            }
            advise(&piece, Advice::DontNeed);
            filling.came(piece.end);
            at = piece.end;
        }
        Ok(())
    }

    /// A call has waited for blocks of a file.
    pub(super) fn stalled(&self, begun: Begun, file: &CacheFile, blocks: &Range<u64>, why: Stall) {
        let place = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        self.activity.end(begun, ActivityKind::Stall, file.number(), place, why as i64);
    }

    /// False if what was fetched is of no use any more.
    fn fetch_piece(
        &self,
        file: &Arc<CacheFile>,
        source: &File,
        piece: Range<u64>,
        generation: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<bool> {
        let offset = piece.start * BLOCK_BYTES;
        let limit = file.state.lock().record.fetch_limit;
        let length = (piece.end * BLOCK_BYTES).min(limit).saturating_sub(offset) as usize;
        buffer.resize(length, 0);
        match self.read_pfs(source, offset, buffer) {
            // Cut or replaced by ourselves meanwhile: looked at again with what is so now.
            Err(Errno::ESTALE) if file.state.lock().generation != generation => return Ok(false),
            read => read?,
        }
        self.counters.filled(length as u64);
        forebay_failpoint::step("a fill has read the PFS");
        let _gate = file.gate.read();
        // A truncation cannot come in between now; one that came before counts.
        let limit = {
            let state = file.state.lock();
            if state.generation != generation || state.record.whole {
                return Ok(false);
            }
            state.record.fetch_limit
        };
        let usable = limit.saturating_sub(offset).min(length as u64) as usize;
        let data = &buffer[..usable];
        match self.flash.write(file.ino, offset, data) {
            Ok(written) if written == data.len() => {}
            Ok(_) => return Err(Errno::ENOSPC),
            Err(e) => return Err(e),
        }
        forebay_failpoint::step("data of a fill is on flash");
        let entries: Vec<Entry> = data.chunks(BLOCK_BYTES as usize).map(Entry::of).collect();
        file.state.lock().put(&self.flash, file, piece.start, &entries)?;
        self.space.came(file.ino, offset, usable as u64);
        Ok(usable == length)
    }

    /// Reads all of a range of the PFS file: ESTALE if it has become shorter.
    fn read_pfs(&self, source: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
        // ENOSPC is said of flash only: who gets it waits for room.
        self.read_source(source, offset, buffer).map_err(|e| match e {
            Errno::ENOSPC => Errno::EIO,
            e => e,
        })
    }

    fn read_source(&self, source: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.pfs.weather()?;
        let mut done = 0;
        while done < buffer.len() {
            match source.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::ESTALE),
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
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
                self.read_pfs(&*source?, at, &mut part[..usable])?;
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
        if state.opening > 0 {
            // It stays for who opens it: this reader gets it from the PFS.
            return Ok(true);
        }
        tracing::warn!(path = %state.record.path, offset, "flash cannot read it: from the PFS again");
        state.drop_blocks(&self.flash, file, blocks)?;
        Ok(true)
    }

    /// Serves read-ahead until the buffer is closed, and does now and then what has no hurry. Sleeps while
    /// there is neither.
    pub(super) fn read_ahead(&self, wishes: &Receiver<Option<Wish>>) {
        while !self.drain_list.is_stopping() {
            let told_in = self.events.tell_evicted(false);
            let swept_in = self.sweep_now_and_then();
            let wish = match told_in.into_iter().chain(swept_in).min() {
                Some(pause) => wishes.recv_timeout(pause).ok().flatten(),
                None => wishes.recv().ok().flatten(),
            };
            let Some(Wish { file, blocks }) = wish else { continue };
            if file.state.lock().gone {
                continue;
            }
            if let Err(error) = self.fetch(&file, blocks, 0) {
                // Who reads it will be told.
                tracing::debug!(%error, "read-ahead failed");
            }
        }
    }

    /// Fetches all of a file that is missing. ENOSPC if it cannot be kept.
    pub(super) fn fetch_all(&self, file: &Arc<CacheFile>) -> Result<()> {
        let limit = file.state.lock().record.fetch_limit;
        let mut block = 0;
        while block * BLOCK_BYTES < limit {
            let (here, gone) = {
                let state = file.state.lock();
                (state.here(block), state.gone)
            };
            if gone {
                return Err(Errno::ESTALE);
            }
            match here {
                true => block += 1,
                false => self.fetch(file, block..block + 1, FETCH_BLOCKS_MAX)?,
            }
        }
        Ok(())
    }
}
