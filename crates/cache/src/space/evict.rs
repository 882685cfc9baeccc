//! What goes when room is needed on flash: the clean blocks of a segment, as [`super`] has chosen it.
//!
//! Invariants: only blocks that are PRESENT and not DIRTY go, looked at under the file's locks in the moment when they
//! go, and nothing of a file that a kernel has open itself, that is pinned or whole dirty. A block leaves the map
//! before its data leaves flash. What lies beside it and is on no map goes along: the rest of a large page of a store in
//! memory, or what a kill left.

use super::super::file::{CacheFile, FileState};
use super::super::map::{Entry, bits};
use super::SEGMENT_BLOCKS;
use super::Space;
use forebay_proto::{Ino, Result};
use std::ops::Range;
use std::time::Duration;

/// What came of a segment that was to go.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Went {
    /// So many bytes are gone.
    Bytes(u64),
    /// It has to stay.
    Stays,
    /// Somebody uses the file, perhaps for long: who reads past the cache waits for the PFS meanwhile.
    InUse,
}

impl Space {
    /// Evicts the blocks of `clean`, and gives back what lies in all of `around`, of which nothing else is here. With the
    /// file's `gate` held alone.
    fn evict_run(
        &self,
        file: &CacheFile,
        state: &mut FileState,
        clean: &Range<u64>,
        around: &Range<u64>,
    ) -> Result<()> {
        state.sync_clean(&self.flash, file)?;
        let count = (clean.end - clean.start) as usize;
        // The entries first: a kill in between leaves data that nobody believes.
        state.put(&self.flash, file, clean.start, &vec![Entry::default(); count])?;
        forebay_failpoint::step("a block is off the map");
        let punch = || self.flash.punch(file.ino, around);
        match state.record.is_dirty() {
            // The object's times are the file's, and this is no write.
            true => {
                let kept = self.flash.keep_mtime(file.ino, punch)?;
                state.evidence.note_unwritten(&kept);
                kept.changed
            }
            false => punch(),
        }
    }

    /// Evicts what is clean of a segment. Who uses its file is waited for so long.
    pub(crate) fn evict_segment(&self, ino: Ino, segment: u64, patience: Duration) -> Result<Went> {
        let Some(file) = self.records.loaded_or_load(ino)? else { return Ok(Went::Bytes(0)) };
        let gate = match patience.is_zero() {
            true => file.gate.try_write(),
            false => file.gate.try_write_for(patience),
        };
        let Some(_gate) = gate else { return Ok(Went::InUse) };
        let mut state = file.state.lock();
        let r = &state.record;
        let in_use = state.opens.by_kernel() > 0 || state.opens.is_under_way();
        if state.is_gone() {
            return Ok(Went::Bytes(0));
        }
        if r.whole || state.is_whole_on_flash() || r.pinned || in_use {
            return Ok(Went::Stays);
        }
        if state.is_in_kernel(&self.flash, &file)? {
            return Ok(Went::Stays);
        }
        let (mut bytes, mut kept) = (0, false);
        let blocks = segment * SEGMENT_BLOCKS..(segment + 1) * SEGMENT_BLOCKS;
        // Blocks of which nothing has to stay, from `from` on, and where those that are clean begin and end.
        let (mut from, mut run) = (blocks.start, None::<Range<u64>>);
        for block in blocks.start..=blocks.end {
            let entry = state.map.get(block);
            let clean = entry.has(bits::PRESENT) && !entry.has(bits::DIRTY);
            let used = state.block_use.is_in_use(block);
            if block < blocks.end && !used && (clean || !state.here(block)) {
                if clean {
                    run = Some(run.map_or(block, |run| run.start)..block + 1);
                    bytes += u64::from(entry.len);
                }
                continue;
            }
            kept |= block < blocks.end && clean;
            if let Some(run) = run.take() {
                self.evict_run(&file, &mut state, &run, &(from..block))?;
            }
            from = block + 1;
        }
        self.counters.evicted(bytes);
        self.events.note_evicted(&file, &state, bytes);
        self.records.forget_empty(&file, state)?;
        // What was in use may go another time.
        Ok(if bytes == 0 && kept { Went::Stays } else { Went::Bytes(bytes) })
    }
}
