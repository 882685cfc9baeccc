//! What a kernel wrote without asking: the file is read once, and its blocks get checksums. A file of
//! which the PFS has nothing is not read for that if it drains now: all of it drains, and is read then.
//!
//! Invariant: a file stops being `whole` only if no kernel has it open any more, and it did not change
//! while it was read. Blocks that are as the PFS has them (their XXH3 is that of the clean entry; a CRC does not tell, see
//! [`super::super::map`]) stay clean, so that only what was written drains. A hole is not read: it stays clean where the entry
//! says that the PFS has zeros, which the drain has noted of what it did not write (`publish`).

mod sums;

use super::super::clock::Clocks;
use super::super::file::{CacheFile, ENTRIES_AT_ONCE};
use super::super::flash::Flash;
use super::super::lost::Losses;
use super::super::map::{BLOCK_BYTES, Entry, bits};
use super::super::parts::Parts;
use super::super::record::SyncState;
use super::DrainList;
use super::foreground::{Foreground, Turn};
use forebay_proto::{Errno, Result};
use std::sync::Arc;

/// How often a file that changes while it is read is read again.
const TRIES: u32 = 3;
/// What becomes of blocks that have nothing on the PFS to be compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// They are about to drain: their checksums are made from that read.
    LeftToDrain,
    /// They are read for their checksums.
    Made,
}

/// What is known of a file after its blocks were looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its map says what is dirty.
    Known,
    /// A kernel has it for writing and has written nothing: the PFS has all of it.
    OpenAndUntouched,
}

/// Tells of which blocks the PFS has zeros. It makes the checksum of zeros once for each length in a row.
#[derive(Default)]
struct Zeros {
    bytes: Vec<u8>,
    /// Length and XXH3 of an entry that is zeros.
    known: Option<(u32, u64)>,
}

impl Zeros {
    /// Whether it is known that the PFS has zeros in a block with this entry.
    fn are_on_pfs(&mut self, entry: &Entry) -> bool {
        let this = (entry.len, entry.xxh3);
        if !entry.is_clean() || entry.xxh3 == 0 {
            return false;
        }
        if self.known != Some(this) {
            self.bytes.resize(entry.len as usize, 0);
            if !entry.surely_is(&self.bytes) {
                return false;
            }
            self.known = Some(this);
        }
        true
    }
}

/// Gives blocks their checksums that were written without.
pub(super) struct Settler {
    flash: Arc<Flash>,
    clocks: Arc<Clocks>,
    drain_list: Arc<DrainList>,
    losses: Arc<Losses>,
    foreground: Arc<Foreground>,
}

impl Settler {
    pub fn new(parts: &Parts, losses: &Arc<Losses>, foreground: &Arc<Foreground>) -> Settler {
        Settler {
            flash: parts.flash.clone(),
            clocks: parts.clocks.clone(),
            drain_list: parts.drain_list.clone(),
            losses: losses.clone(),
            foreground: foreground.clone(),
        }
    }
}

impl Settler {
    /// Makes the map true again for a file that a kernel wrote. One that is still open stays
    /// `whole`: its map is then what it had at some moment.
    pub(crate) fn settle(&self, file: &Arc<CacheFile>, sums: Sums) -> Result<Settled> {
        for _ in 0..TRIES {
            if !file.state.lock().record.whole {
                return Ok(Settled::Known);
            }
            if let Some(untouched) = self.untouched(file)? {
                return Ok(untouched);
            }
            let was_open = file.state.lock().opens.by_kernel() > 0;
            let before = self.flash.stat(file.ino)?;
            file.state.lock().evidence.sums_begin(&before);
            // Else what is written now could get the times that it has already, where the kernel's grain is coarse.
            let would_show = !was_open || self.clocks.has_passed(before.mtime);
            let entries = self.checksums(file, before.size_bytes, sums)?;
            forebay_failpoint::step("a whole file is read for its checksums");
            let _meta = file.meta.lock();
            let _gate = file.gate.write();
            let after = self.flash.stat(file.ino)?;
            let mut state = file.state.lock();
            let same = state.evidence.sums_end(&after);
            let closed = state.opens.by_kernel() == 0;
            // One that was cut meanwhile: checksums of what is gone would vouch for it.
            let is_cut = after.size_bytes < before.size_bytes;
            if is_cut || (closed && !(same && would_show)) {
                continue;
            }
            for (first, run) in entries {
                state.put(&self.flash, file, first, &run)?;
            }
            let behind = state.map.blocks_from(before.size_bytes.div_ceil(BLOCK_BYTES));
            let none: Vec<_> = behind.into_iter().map(|block| (block, Entry::default())).collect();
            state.put_runs(&self.flash, file, &none)?;
            forebay_failpoint::step("a whole file has its checksums");
            if closed {
                state.note_clean();
                state.stay_whole_on_flash(!self.flash.is_volatile());
                state.save(&self.flash, file, |record| record.whole = false)?;
                state.evidence.forget_open();
            }
            return Ok(Settled::Known);
        }
        Err(Errno::EAGAIN)
    }

    /// It was opened for writing, but not written: it is clean again, or when it is closed. Of a close the server is told a
    /// moment after it has returned, so who drains may meet such a file as open still. `None`: it was written, perhaps.
    fn untouched(&self, file: &Arc<CacheFile>) -> Result<Option<Settled>> {
        let _meta = file.meta.lock();
        let object = self.flash.stat(file.ino)?;
        let mut state = file.state.lock();
        if state.map.dirty() > 0 || state.record.resized || !state.evidence.is_untouched(&object) {
            return Ok(None);
        }
        if state.opens.by_kernel() > 0 {
            // After a failure or a conflict a drain is to find out what is so now.
            let is_plain =
                state.record.state == SyncState::Dirty && state.record.draining.is_none();
            return Ok(is_plain.then_some(Settled::OpenAndUntouched));
        }
        state.note_clean();
        state.save(&self.flash, file, |record| {
            record.whole = false;
            record.state = SyncState::Clean;
        })?;
        state.evidence.forget_open();
        Ok(Some(Settled::Known))
    }

    /// The entries that differ from the map's, in runs.
    fn checksums(
        &self,
        file: &Arc<CacheFile>,
        size: u64,
        sums: Sums,
    ) -> Result<Vec<(u64, Vec<Entry>)>> {
        let mut runs: Vec<(u64, Vec<Entry>)> = Vec::new();
        let mut push = |block: u64, entry: Entry| match runs.last_mut() {
            Some((first, run))
                if *first + run.len() as u64 == block && run.len() < ENTRIES_AT_ONCE =>
            {
                run.push(entry);
            }
            _ => runs.push((block, vec![entry])),
        };
        let (limit, base_size) = {
            let state = file.state.lock();
            (state.record.fetch_limit, state.record.base.size)
        };
        let on_pfs = limit.min(base_size);
        let is_read = on_pfs > 0 || sums == Sums::Made;
        let mut buffer = vec![0; if is_read { BLOCK_BYTES as usize } else { 0 }];
        let mut zeros = Zeros::default();
        let mut block = 0;
        let mut turn = Turn::begin();
        while block * BLOCK_BYTES < size {
            let start = block * BLOCK_BYTES;
            let data = self.flash.next_data(file.ino, start, size)?;
            if data >= start + BLOCK_BYTES {
                // A hole: zeros, which the PFS has to get where it has something else.
                let until = (data / BLOCK_BYTES).min(size.div_ceil(BLOCK_BYTES));
                while block < until && block * BLOCK_BYTES < on_pfs {
                    if !zeros.are_on_pfs(&file.state.lock().map.get(block)) {
                        push(block, Entry::with_crc(b"").with(bits::DIRTY));
                    }
                    block += 1;
                }
                block = block.max(until);
                continue;
            }
            if !is_read {
                push(block, Entry::default().with(bits::PRESENT | bits::DIRTY | bits::OPEN));
                block += 1;
                continue;
            }
            let length = BLOCK_BYTES.min(size - start) as usize;
            let got = self.flash.read(file.ino, start, &mut buffer[..length])?;
            let now = &buffer[..got];
            let old = file.state.lock().map.get(block);
            if !(old.is_clean() && old.surely_is(now)) {
                push(block, Entry::with_crc(now).with(bits::DIRTY));
            }
            block += 1;
            if block % ENTRIES_AT_ONCE as u64 == 0 {
                turn.give_way(&self.foreground, file.ino);
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_any_length_are_known_by_their_xxh3() {
        let mut zeros = Zeros::default();
        let block = vec![0; BLOCK_BYTES as usize];
        let mut other = block.clone();
        other[BLOCK_BYTES as usize - 1] = 1;
        for known in [0, 4_096, BLOCK_BYTES as usize, 100, 100, 0] {
            assert!(zeros.are_on_pfs(&Entry::of(&block[..known])), "{known} zeros");
            assert!(!zeros.are_on_pfs(&Entry::of(&other)));
        }
        let hole = Entry::of(b"");
        assert!(!zeros.are_on_pfs(&hole.with(bits::DIRTY)) && !zeros.are_on_pfs(&Entry::default()));
        assert!(!zeros.are_on_pfs(&hole.with(bits::OPEN)));
        // What a restart leaves of it: a kernel may have written it since.
        assert!(!zeros.are_on_pfs(&Entry { xxh3: 0, ..hole }));
    }
}
