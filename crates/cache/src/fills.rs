//! Fetching blocks from the PFS: each by one fetch at a time, in pieces, for all who wait for it.
//!
//! Invariants: a block becomes PRESENT only after its data is on flash, with its checksum; what was fetched for another base, or
//! behind a truncation, is thrown away. Called by reads and the read-ahead, by writes that need the rest of a block, and by
//! whoever needs a file whole.

use super::counters::Counters;
use super::file::CacheFile;
use super::filling::Filling;
use super::flash::Flash;
use super::map::{BLOCK_BYTES, Entry};
use super::parts::Parts;
use super::pfs::PfsDir;
use super::pfs_inodes::PfsInodes;
use super::space::{Space, WAIT};
use forebay_activity::{Activity, Begun};
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::{Errno, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most blocks of one fetch: what a PFS of 1 GB/s moves while a busy node wakes a thread.
pub(super) const FETCH_BLOCKS_MAX: u64 = 128;
/// Blocks of one piece of a fetch: readers wait for no more than that.
pub(super) const PIECE_BLOCKS: u64 = 8;

/// Fetches blocks of files.
pub(crate) struct Fills {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    counters: Arc<Counters>,
    activity: Arc<Activity>,
    inodes: Arc<PfsInodes>,
    space: Arc<Space>,
}

impl Fills {
    pub fn new(parts: &Parts, inodes: &Arc<PfsInodes>, space: &Arc<Space>) -> Fills {
        Fills {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            counters: parts.counters.clone(),
            activity: parts.activity.clone(),
            inodes: inodes.clone(),
            space: space.clone(),
        }
    }
}

impl Fills {
    /// Fetches what is missing of a range of blocks, and up to `window` blocks more. Returns
    /// after the first piece that brought something, or when another thread's fetch has.
    pub(crate) fn fetch(
        &self,
        file: &Arc<CacheFile>,
        blocks: Range<u64>,
        window: u64,
    ) -> Result<()> {
        let (filling, generation) = {
            let mut state = file.state.lock();
            let missing = |b: &u64| !state.here(*b);
            let Some(first) =
                blocks.clone().find(|b| missing(b) && !state.block_use.is_filling(*b))
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
                .find(|b| state.here(*b) || state.block_use.is_filling(*b))
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
            let room = self.space.room_to_fill(bytes)?;
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
                self.space.fill_is_short(bytes);
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
    pub(crate) fn stalled(&self, begun: Begun, file: &CacheFile, blocks: &Range<u64>, why: Stall) {
        let place = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        self.activity.end(begun, ActivityKind::Stall, file.number(), place, why as i64);
    }

    /// False if what was fetched is of no use any more, or somebody uses the file for long.
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
        // Of a dirty file the object's mtime is the file's, and a fill is no write: it has to stay, so nobody writes meanwhile.
        // What is clean does not become dirty by a write before this fill is done.
        let shared = file.gate.read();
        let (_shared, alone) = match file.is_dirty() {
            false => (Some(shared), None),
            true => {
                drop(shared);
                // Who reads past the cache has it until the PFS answers, and others would wait behind this.
                let Some(alone) = file.gate.try_write_for(WAIT) else { return Ok(false) };
                (None, Some(alone))
            }
        };
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
        let write = || match self.flash.write(file.ino, offset, data) {
            Ok(written) if written == data.len() => Ok(()),
            Ok(_) => Err(Errno::ENOSPC),
            Err(e) => Err(e),
        };
        match alone.is_some() {
            true => {
                let kept = self.flash.keep_mtime(file.ino, write)?;
                file.state.lock().evidence.note_unwritten(&kept);
                kept.changed?;
            }
            false => write()?,
        }
        forebay_failpoint::step("data of a fill is on flash");
        let entries: Vec<Entry> = data.chunks(BLOCK_BYTES as usize).map(Entry::of).collect();
        file.state.lock().put(&self.flash, file, piece.start, &entries)?;
        self.space.came(file.ino, offset, usable as u64);
        Ok(usable == length)
    }

    /// Reads all of a range of the PFS file: ESTALE if it has become shorter.
    pub(crate) fn read_pfs(&self, source: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
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

    /// Fetches all of a file that is missing. ENOSPC if it cannot be kept.
    pub(crate) fn fetch_all(&self, file: &Arc<CacheFile>) -> Result<()> {
        let limit = file.state.lock().record.fetch_limit;
        let mut block = 0;
        while block * BLOCK_BYTES < limit {
            let (here, gone) = {
                let state = file.state.lock();
                (state.here(block), state.is_gone())
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
