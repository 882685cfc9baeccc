//! Checksums of what lies on flash without: written by a kernel, or by requests that did not fill a block.
//! What drains soon gets them then, from the same read. What its policy holds back longer is read once
//! for them in a quiet moment, so that damage of flash is found before it reaches the PFS.
//!
//! Invariants: an entry gets a checksum only of what the block has and nobody writes (a write that begins
//! takes its block out of the set); a file that a kernel has open keeps saying `unverified`; the application goes
//! first. Called by the drain's workers for files that may not drain yet.

use super::super::super::file::CacheFile;
use super::super::super::map::{BLOCK_BYTES, Entry, bits};
use super::super::super::record::SyncState;
use super::super::foreground::Turn;
use super::Settler;
use super::Sums;
use forebay_proto::{Errno, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Quiet time, of the file and of the application, before a file is read for its checksums.
const QUIET: Duration = Duration::from_secs(3);
/// What drains within this time is not read before.
const DRAINS_SOON: Duration = Duration::from_secs(5);

impl Settler {
    /// A file may not drain before `due`: it is read for the checksums that it lacks. When it is to be
    /// looked at next.
    pub(crate) fn sum_up_before(
        &self,
        file: &Arc<CacheFile>,
        due: Instant,
        now: Instant,
    ) -> Instant {
        if due <= now + DRAINS_SOON || !lacks_sums(file) {
            return due;
        }
        let own = self.foreground.written_ago(file).and_then(|ago| now.checked_sub(ago));
        let by_request = file.state.lock().last_write;
        let last = own.max(Some(by_request)).max(self.foreground.last_foreground_write());
        match last.map(|last| last + QUIET) {
            Some(quiet) if quiet > now => return due.min(quiet),
            _ => {}
        }
        match self.sum_up(file) {
            Ok(()) => due,
            // It is written again.
            Err(Errno::EAGAIN | Errno::ECANCELED) => due.min(now + QUIET),
            Err(error) => {
                tracing::warn!(ino = %file.ino, %error, "could not be read for its checksums: it stays unverified");
                due
            }
        }
    }

    fn sum_up(&self, file: &Arc<CacheFile>) -> Result<()> {
        let _one = file.drain.lock();
        if self.losses.data_is_lost(file)? {
            return Ok(());
        }
        let whole = {
            let mut state = file.state.lock();
            state.drain_run.begin_sums();
            state.record.whole
        };
        let done = match whole {
            true => self.settle(file, Sums::Made).map(drop),
            false => self.sum_open_blocks(file),
        };
        file.state.lock().drain_run.end_sums();
        done
    }

    /// Blocks that requests wrote in part.
    fn sum_open_blocks(&self, file: &Arc<CacheFile>) -> Result<()> {
        let blocks = {
            let mut state = file.state.lock();
            let blocks: Vec<u64> =
                state.map.blocks().filter(|(_, e)| is_open(e)).map(|(b, _)| b).collect();
            state.drain_run.watch(&blocks);
            blocks
        };
        let mut data = vec![0; BLOCK_BYTES as usize];
        let mut turn = Turn::begin();
        for block in blocks {
            if self.drain_list.is_stopping() {
                return Err(Errno::ECANCELED);
            }
            let _gate = file.gate.read();
            let got = self.flash.read(file.ino, block * BLOCK_BYTES, &mut data)?;
            let sum = Entry::with_crc(&data[..got]);
            let mut state = file.state.lock();
            if state.is_gone() || state.record.whole {
                return Err(Errno::EAGAIN);
            }
            // A write that came since has taken it out.
            let is_same = state.drain_run.is_untouched(block) && !state.block_use.is_writing(block);
            let entry = state.map.get(block);
            if is_same && is_open(&entry) {
                let entry = Entry { bits: entry.bits, ..sum }.without(bits::OPEN);
                state.put(&self.flash, file, block, &[entry])?;
            }
            drop((state, _gate));
            turn.give_way(&self.foreground, file.ino);
        }
        Ok(())
    }
}

fn is_open(entry: &Entry) -> bool {
    entry.has(bits::PRESENT | bits::DIRTY | bits::OPEN)
}

/// True if damage of flash in it could not be told from what was written.
fn lacks_sums(file: &CacheFile) -> bool {
    let state = file.state.lock();
    match (state.record.state, state.record.whole) {
        (SyncState::Clean | SyncState::Conflict, _) => false,
        _ if state.is_gone() => false,
        // As long as a kernel has it, what is read may be another thing a moment later.
        (_, true) => state.opens.by_kernel() == 0,
        (_, false) => state.map.blocks().any(|(_, entry)| is_open(&entry)),
    }
}
