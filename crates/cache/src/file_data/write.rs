//! Writing: to flash, by the protocol of docs/internals/CACHE.md: the file is dirty on record, the
//! blocks are OPEN in the map, then the data, then checksums.
//!
//! Invariants: no dirty byte is on flash in a block that the map does not call dirty; a block that is
//! written in part was here before; two writers of one block never make its checksum. Called for
//! FUSE requests that are not passthrough.

use super::super::file::{CacheFile, FileState};
use super::super::flash::Flash;
use super::super::map::{BLOCK_BYTES, Entry, bits, blocks_of, crc};
use super::super::record::SyncState;
use super::super::space::WAIT;
use super::FileData;
use forebay_policy::room::Waiter;
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::api::WriteMode;
use forebay_proto::asked;
use forebay_proto::{Errno, Result};
use parking_lot::RwLockWriteGuard;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Longest single write that is done in one go, in bytes; longer ones are cut.
const WRITE_MAX: usize = 4 << 20;

impl FileData {
    /// Writes bytes; all of them, or an error if there were none.
    pub(crate) fn write_data(
        &self,
        file: &Arc<CacheFile>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let data = &data[..data.len().min(WRITE_MAX)];
        if data.is_empty() {
            return Ok(0);
        }
        // Appends one after the other: where each begins is where the one before ended.
        let _append = mode.append.then(|| file.append.lock());
        if mode.append
            && let Some(done) = self.append_beside_kernels(file, data)?
        {
            if mode.sync {
                self.sync_file(file)?;
            }
            return Ok(done);
        }
        let offset = match mode.append {
            true => self.flash.stat(file.ino)?.size_bytes,
            false => offset,
        };
        offset
            .checked_add(data.len() as u64)
            .filter(|&e| e <= i64::MAX as u64)
            .ok_or(Errno::EFBIG)?;
        let (mut done, mut met) = (0, Waiter::default());
        let begun = self.activity.begin();
        while done < data.len() {
            let left = &data[done..];
            // With what has to be fetched for blocks that are written in part.
            let around = edges(offset + done as u64, left.len() as u64).count() as u64;
            let room = left.len() as u64 + around * BLOCK_BYTES;
            match self.space.wait_for_room(file.number(), room) {
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
                Ok(()) => {}
            }
            match self.write_once(file, offset + done as u64, &data[done..]) {
                Ok(n) => (done, met) = (done + n, Waiter::default()),
                Err(Errno::ENOSPC) => {
                    let begun = self.activity.begin();
                    let short = self.space.is_short(&mut met);
                    let place = (offset + done as u64, left.len() as u64);
                    let (kind, why) = (ActivityKind::Stall, Stall::Room as i64);
                    self.activity.end(begun, kind, file.number(), place, why);
                    match short {
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                        Ok(()) => {}
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        let place = (offset, data.len() as u64);
        self.activity.end(begun, ActivityKind::Absorb, file.number(), place, done as i64);
        if mode.sync {
            self.sync_file(file)?;
        }
        Ok(done)
    }

    /// An append to a file that a kernel has for writing, which appends without asking: only the
    /// object's own file system knows where its end is. `None`: no kernel has it.
    fn append_beside_kernels(&self, file: &Arc<CacheFile>, data: &[u8]) -> Result<Option<usize>> {
        if !file.state.lock().record.whole {
            return Ok(None);
        }
        self.space.wait_for_room(file.number(), data.len() as u64)?;
        // With it no block loses or gets a checksum, and the file stays whole.
        let _gate = file.gate.read();
        let mut state = file.state.lock();
        if !state.record.whole {
            return Ok(None);
        }
        self.mark_dirty(file, &mut state)?;
        // It is not as it was given to the kernel, whatever its times say.
        state.save(&self.flash, file, |record| record.resized = true)?;
        drop(state);
        let done = self.flash.append(file.ino, data)?;
        self.counters.written(done as u64);
        Ok(Some(done))
    }

    fn write_once(&self, file: &Arc<CacheFile>, offset: u64, data: &[u8]) -> Result<usize> {
        let length = data.len() as u64;
        let _held = file.hold(edges(offset, length));
        loop {
            self.complete_edges(file, offset, length)?;
            // A fill that has met the file clean, and is putting data on flash, would give it a later mtime than this write does.
            let is_filled = file.state.lock().is_clean_and_filled();
            let (shared, alone) = match is_filled {
                false => (Some(file.gate.read()), None),
                true => match file.gate.try_write_for(WAIT) {
                    None => {
                        asked::still_wanted()?;
                        continue;
                    }
                    alone => (None, alone),
                },
            };
            let mut state = file.state.lock();
            if alone.is_none() && state.is_clean_and_filled() {
                // It has begun in between.
                continue;
            }
            if !edges(offset, length).all(|b| state.here(b)) {
                // Evicted in between.
                continue;
            }
            let blocks = blocks_of(offset, length);
            if blocks.clone().any(|b| state.block_use.is_filling(b)) {
                let begun = self.activity.begin();
                // The fill needs it.
                drop((shared, alone));
                file.filled.wait(&mut state);
                drop(state);
                self.fills.stalled(begun, file, &blocks, Stall::Fill);
                continue;
            }
            if !self.is_sound(file, &mut state, edges(offset, length))? {
                // Clean and damaged: it is fetched again.
                continue;
            }
            // The PFS may have taken long for the rest of a block.
            asked::still_wanted()?;
            self.mark_dirty(file, &mut state)?;
            forebay_failpoint::step("a file is dirty on record");
            begin(&mut state, &self.flash, file, blocks.clone())?;
            self.room_ahead.take_room_ahead(file, &mut state, offset, length);
            drop(state);
            let _gate = alone.map(RwLockWriteGuard::downgrade).or(shared);
            let written = self.flash.write(file.ino, offset, data);
            forebay_failpoint::step("dirty data is on flash");
            let done = written.as_ref().map_or(&data[..0], |n| &data[..*n]);
            // Not with the lock: other writers of the file go on meanwhile.
            let sums = WholeBlocks::of(offset, done);
            let until = offset + done.len() as u64;
            let mut state = file.state.lock();
            if !done.is_empty() {
                state.extent.has_seen(until);
            }
            end(&mut state, &self.flash, file, blocks, until, &sums)?;
            drop(state);
            self.counters.written(done.len() as u64);
            return written;
        }
    }

    /// Looks at blocks that are about to lose their checksum, because a part of them is written: what
    /// flash has damaged must not become part of what drains. False if one was clean and is not here
    /// any more; EIO if it is dirty, for nobody has it as it was.
    fn is_sound(
        &self,
        file: &CacheFile,
        state: &mut FileState,
        blocks: impl Iterator<Item = u64>,
    ) -> Result<bool> {
        let mut sound = true;
        for block in blocks {
            let entry = state.map.get(block);
            let closed = entry.has(bits::PRESENT) && !entry.has(bits::OPEN);
            if !closed || state.record.whole || state.block_use.is_writing(block) {
                continue;
            }
            let mut data = vec![0; entry.len as usize];
            let got = self.flash.read(file.ino, block * BLOCK_BYTES, &mut data);
            if got == Ok(data.len()) && crc(&data) == entry.crc {
                continue;
            }
            tracing::error!(path = %state.record.path, block, "damaged on flash: its checksum is another");
            if entry.has(bits::DIRTY) {
                return Err(Errno::EIO);
            }
            state.drop_blocks(&self.flash, file, block..block + 1)?;
            sound = false;
        }
        Ok(sound)
    }

    /// Blocks that are written in part only must be here.
    fn complete_edges(&self, file: &Arc<CacheFile>, offset: u64, length: u64) -> Result<()> {
        for block in edges(offset, length) {
            while !file.state.lock().here(block) {
                self.fills.fetch(file, block..block + 1, 0)?;
            }
        }
        Ok(())
    }

    /// The file is dirty on record, and in the list of what has to drain.
    pub(crate) fn mark_dirty(&self, file: &Arc<CacheFile>, state: &mut FileState) -> Result<()> {
        if state.is_lost() {
            return Err(Errno::EIO);
        }
        if state.is_gone() && state.opens.all() == 0 {
            // Evicted in between: who comes by its name finds it anew.
            return Err(Errno::ESTALE);
        }
        state.last_write = Instant::now();
        state.evidence.may_be_written();
        if state.record.state == SyncState::Clean {
            state.sync_clean(&self.flash, file)?;
            let writer = state.writer.clone();
            let path = self.nodes.path(file.number()).ok();
            let since_s = forebay_proto::Timestamp::now().sec;
            state.save(&self.flash, file, |record| {
                record.state = SyncState::Dirty;
                record.dirty_since_s = Some(since_s);
                record.writer = writer;
                if let Some(path) = path {
                    record.path = forebay_proto::control::PathBytes::new(&path);
                }
            })?;
        }
        self.dirty.list_dirty(file, state);
        Ok(())
    }

    /// All of the file is dirty from now on: a kernel is about to get it for writing. On flash
    /// that survives a power cut this, and what it has, is synced.
    pub(crate) fn mark_whole(&self, file: &Arc<CacheFile>) -> Result<()> {
        self.room_ahead.give_room_back(file)?;
        let mut state = file.state.lock();
        if state.record.whole {
            self.mark_dirty(file, &mut state)?;
            return Ok(());
        }
        if !state.record.is_dirty() {
            // So that its times are the file's, and that a file opened and not written is seen.
            let mtime = state.record.base.mtime;
            self.flash.set_times(file.ino, None, Some(mtime))?;
            let object = self.flash.stat(file.ino)?;
            // A time that a write could get at this moment tells nothing.
            state.evidence.given_to_kernel(&object, self.clocks.has_passed(object.mtime));
        }
        if !self.flash.is_volatile() {
            self.flash.sync_data(file.ino)?;
        }
        self.mark_dirty(file, &mut state)?;
        state.save(&self.flash, file, |record| record.whole = true)?;
        drop(state);
        if !self.flash.is_volatile() {
            self.flash.sync()?;
        }
        forebay_failpoint::step("a whole file is dirty on record");
        Ok(())
    }

    /// Sets the size.
    pub(crate) fn truncate_data(&self, file: &Arc<CacheFile>, size: u64) -> Result<()> {
        let _append = file.append.lock();
        let _gate = file.gate.write();
        let mut state = file.state.lock();
        // The PFS may have taken long: what a program did since then on the fast path would be cut.
        asked::still_wanted()?;
        if size == 0 && state.is_lost() {
            self.losses.begin_anew(file, &mut state)?;
        }
        self.mark_dirty(file, &mut state)?;
        let old = self.flash.stat(file.ino)?.size_bytes;
        if size >= old {
            state.save(&self.flash, file, |record| record.resized = true)?;
            self.flash.truncate(file.ino, size)?;
            state.extent.has_seen(size);
            // What was promised behind the end goes, as with any truncation.
            state.extent.promise_ends(size);
            return Ok(());
        }
        let synced = state.map.blocks().any(|(_, e)| e.has(bits::DIRTY | bits::SYNCED))
            || state.record.whole
            || state.is_clean_unsynced();
        state.save(&self.flash, file, |record| {
            record.resized = true;
            record.truncating_to = Some(size);
            record.fetch_limit = record.fetch_limit.min(size);
        })?;
        // What is being fetched behind it is not the file's any more.
        state.generation += 1;
        state.drain_run.cut(size);
        if synced && !self.flash.is_volatile() {
            self.flash.sync()?;
        }
        forebay_failpoint::step("a truncation is on record");
        self.cut(file, &mut state, size)
    }

    /// Does a truncation that is on record, and takes it off.
    pub(crate) fn cut(&self, file: &CacheFile, state: &mut FileState, size: u64) -> Result<()> {
        state.extent.cut(size);
        self.flash.truncate(file.ino, size)?;
        // That went along.
        state.extent.take_room();
        forebay_failpoint::step("a file is cut");
        let behind = state.map.blocks_from(size.div_ceil(BLOCK_BYTES));
        for block in &behind {
            state.drain_run.touch(*block);
        }
        let none: Vec<_> = behind.into_iter().map(|block| (block, Entry::default())).collect();
        state.put_runs(&self.flash, file, &none)?;
        let edge = size / BLOCK_BYTES;
        let entry = state.map.get(edge);
        if size % BLOCK_BYTES != 0 && entry.has(bits::PRESENT) {
            state.put(&self.flash, file, edge, &[entry.with(bits::DIRTY | bits::OPEN)])?;
            state.drain_run.touch(edge);
        }
        state.save(&self.flash, file, |record| record.truncating_to = None)
    }

    /// `fallocate`. Space is promised on flash only.
    pub(crate) fn allocate_data(
        &self,
        file: &Arc<CacheFile>,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let (keep, punch, zero) = (
            libc::FALLOC_FL_KEEP_SIZE as u32,
            libc::FALLOC_FL_PUNCH_HOLE as u32,
            libc::FALLOC_FL_ZERO_RANGE as u32,
        );
        if mode & !(keep | punch | zero) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        if mode & (punch | zero) == 0 {
            let size = self.flash.stat(file.ino)?.size_bytes;
            if mode & keep == 0 && end > size {
                self.space.wait_for_room(file.number(), end - size)?;
                self.truncate_data(file, end)?;
            }
            let mut state = file.state.lock();
            state.extent.promise(end);
            return Ok(());
        }
        let _held = file.hold(edges(offset, length));
        self.complete_edges(file, offset, length)?;
        let _gate = file.gate.write();
        let mut state = file.state.lock();
        if !edges(offset, length).all(|b| state.here(b)) {
            return Err(Errno::EAGAIN);
        }
        asked::still_wanted()?;
        self.mark_dirty(file, &mut state)?;
        // What is being fetched of it would come over it.
        state.generation += 1;
        let size = self.flash.stat(file.ino)?.size_bytes;
        let reach = if mode & keep == 0 { end } else { end.min(size) };
        let blocks = blocks_of(offset, reach.saturating_sub(offset));
        begin(&mut state, &self.flash, file, blocks.clone())?;
        let done = self.flash.fallocate(file.ino, mode, offset, length);
        let until = if done.is_ok() { u64::MAX } else { 0 };
        end_unknown(&mut state, &self.flash, file, blocks, until)?;
        if done.is_ok() && mode & keep == 0 && end > size {
            state.save(&self.flash, file, |record| record.resized = true)?;
        }
        done
    }

    /// SEEK_DATA and SEEK_HOLE. What is not here counts as data: that is always true enough.
    pub(crate) fn seek_data(&self, file: &Arc<CacheFile>, offset: u64, whence: u32) -> Result<u64> {
        let size = self.flash.stat(file.ino)?.size_bytes;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let knows_all = {
            let state = file.state.lock();
            state.record.whole || (state.record.fetch_limit == 0)
        };
        match whence as i32 {
            libc::SEEK_DATA | libc::SEEK_HOLE if knows_all => {
                self.flash.seek(file.ino, offset, whence)
            }
            libc::SEEK_DATA => Ok(offset),
            libc::SEEK_HOLE => Ok(size),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Data, map and record on flash.
    pub(crate) fn sync_file(&self, file: &Arc<CacheFile>) -> Result<()> {
        if file.is_dirty() && self.losses.data_is_lost(file)? {
            return Err(Errno::EIO);
        }
        if self.flash.is_volatile() {
            return Ok(());
        }
        // What is written from here on is not part of it.
        let dirty: Vec<u64> = {
            let state = file.state.lock();
            let unsynced = |e: &Entry| e.has(bits::DIRTY) && !e.has(bits::SYNCED);
            state.map.blocks().filter(|(_, e)| unsynced(e)).map(|(b, _)| b).collect()
        };
        self.flash.sync_data(file.ino)?;
        let mut state = file.state.lock();
        let still = dirty.into_iter().map(|block| (block, state.map.get(block)));
        let synced: Vec<(u64, Entry)> = still
            .filter(|(_, entry)| entry.has(bits::DIRTY))
            .map(|(block, entry)| (block, entry.with(bits::SYNCED)))
            .collect();
        state.put_runs(&self.flash, file, &synced)?;
        drop(state);
        self.flash.sync_map(file.ino)?;
        self.flash.sync()
    }
}

/// The blocks of a range that it covers in part only.
fn edges(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let blocks = blocks_of(offset, length);
    let end = offset + length;
    let first = (offset % BLOCK_BYTES != 0).then_some(blocks.start);
    let last = (end % BLOCK_BYTES != 0 && length > 0).then_some(blocks.end.saturating_sub(1));
    first.into_iter().chain(last.filter(move |l| first != Some(*l)))
}

/// Blocks are about to be written: OPEN in the map.
fn begin(state: &mut FileState, flash: &Flash, file: &CacheFile, blocks: Range<u64>) -> Result<()> {
    let wanted = bits::PRESENT | bits::DIRTY | bits::OPEN;
    let open = |b| match state.here(b) {
        true => state.map.get(b).with(wanted),
        false => state.map.get(b).with(wanted | bits::FRESH),
    };
    let entries: Vec<Entry> = blocks.clone().map(open).collect();
    state.put(flash, file, blocks.start, &entries)?;
    forebay_failpoint::step("blocks are open in the map");
    for block in blocks {
        state.block_use.begin_write(block);
        state.drain_run.touch(block);
    }
    Ok(())
}

/// The blocks that a write covers in whole, with their checksums.
struct WholeBlocks {
    first: u64,
    entries: Vec<Entry>,
}

impl WholeBlocks {
    fn of(offset: u64, done: &[u8]) -> WholeBlocks {
        let first = offset.div_ceil(BLOCK_BYTES);
        let whole = done.get((first * BLOCK_BYTES - offset) as usize..).unwrap_or_default();
        let blocks = whole.chunks_exact(BLOCK_BYTES as usize);
        WholeBlocks { first, entries: blocks.map(Entry::with_crc).collect() }
    }

    fn get(&self, block: u64) -> Option<Entry> {
        let at = block.checked_sub(self.first)?;
        self.entries.get(at as usize).copied()
    }
}

/// Blocks were written, up to an offset. One that a single request wrote from its start, with all that it has, gets
/// its checksum. All entries are written down at once, after the data that they vouch for.
fn end(
    state: &mut FileState,
    flash: &Flash,
    file: &CacheFile,
    blocks: Range<u64>,
    until: u64,
    sums: &WholeBlocks,
) -> Result<()> {
    let mut entries = Vec::with_capacity((blocks.end - blocks.start) as usize);
    for block in blocks.clone() {
        let alone = state.block_use.is_written_alone(block);
        leave(state, block);
        entries.push(match sums.get(block).filter(|_| alone) {
            Some(sum) => {
                Entry { bits: state.map.get(block).bits, ..sum }.without(bits::OPEN | bits::FRESH)
            }
            None => no_longer_fresh(state, block, until),
        });
    }
    state.put(flash, file, blocks.start, &entries)?;
    state.last_write = Instant::now();
    Ok(())
}

/// Blocks were changed up to an offset, by other means than bytes.
fn end_unknown(
    state: &mut FileState,
    flash: &Flash,
    file: &CacheFile,
    blocks: Range<u64>,
    until: u64,
) -> Result<()> {
    for block in blocks.clone() {
        leave(state, block);
    }
    state.last_write = Instant::now();
    let entries: Vec<Entry> =
        blocks.clone().map(|block| no_longer_fresh(state, block, until)).collect();
    state.put(flash, file, blocks.start, &entries)
}

/// The entry of a block after a change that has come up to this offset. One that was not here and that the change did not
/// reach, by an error, has nothing of it: the PFS has what was there.
fn no_longer_fresh(state: &FileState, block: u64, until: u64) -> Entry {
    let entry = state.map.get(block);
    let untouched = block * BLOCK_BYTES >= until && !state.block_use.is_writing(block);
    match entry.has(bits::FRESH) && untouched {
        true => Entry::default(),
        false => entry.without(bits::FRESH),
    }
}

/// A drain that began after the write did may have read the block before its bytes came: it is not clean at the end of that.
fn leave(state: &mut FileState, block: u64) {
    state.drain_run.touch(block);
    state.block_use.end_write(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_what_is_written_in_part() {
        let b = BLOCK_BYTES;
        let of = |offset, length| edges(offset, length).collect::<Vec<_>>();
        assert_eq!(of(0, b), [0u64; 0]);
        assert_eq!(of(1, b), [0, 1]);
        assert_eq!(of(5, 5), [0]);
        assert_eq!(of(b, 3 * b + 1), [4]);
        assert_eq!(of(0, 0), [0u64; 0]);
    }

    #[test]
    fn what_is_written_in_whole_has_its_checksums() {
        let b = BLOCK_BYTES;
        let data: Vec<u8> = (0..3 * b).map(|at| (at % 251) as u8).collect();
        let of = |offset: u64, length: u64| {
            let sums = WholeBlocks::of(offset, &data[..length as usize]);
            (0..6).filter(|block| sums.get(*block).is_some()).collect::<Vec<u64>>()
        };
        assert_eq!(of(0, 3 * b), [0, 1, 2]);
        assert_eq!(of(2 * b, 2 * b + 1), [2, 3]);
        assert_eq!(of(b + 1, 3 * b - 2), [2]);
        assert_eq!(of(b + 1, 2 * b - 2), [0u64; 0]);
        assert_eq!((of(1, 5), of(b, 0)), (Vec::new(), Vec::new()));
        let second = &data[b as usize - 7..][..b as usize];
        assert_eq!(WholeBlocks::of(4 * b + 7, &data).get(5), Some(Entry::with_crc(second)));
    }
}
