//! One cached file in memory: its record, its map, who is using it.
//!
//! What `state` guards is in parts, each with its own rules: who has the file open ([`OpenCounts`]), who is at work on which
//! blocks ([`BlockUse`]), the drain under way ([`DrainRun`]), how far the object reaches ([`Extent`]), and what tells whether it
//! was written ([`WriteEvidence`]).
//!
//! Locks, in the order in which they are taken: `drain` (one drain at a time), `meta` (opens, and
//! changes of the name or attributes on the PFS that a drain must not cross), `append`, `gate`
//! (shared: data is read or written; alone: blocks go away), `state`. No call on the PFS is made
//! with `gate` or `state` held.
//!
//! Invariant: an entry in memory is never better than on flash: changes are written first.

mod block_use;
mod drain_run;
mod extent;
mod loss;
mod open_counts;
mod write_evidence;

use super::flash::Flash;
use super::kept_sums::{self, KeptSums, SUMS_LEAST, Visit};
use super::map::{BLOCK_BYTES, BlockMap, Entry, bits, blocks_of};
use super::record::{Record, SyncState};
use super::space::WAIT;
use block_use::BlockUse;
use drain_run::DrainRun;
use extent::Extent;
use forebay_credentials::acting::Who;
use forebay_proto::{Errno, Ino, Result, Timestamp};
use loss::Loss;
use open_counts::OpenCounts;
use parking_lot::{Condvar, Mutex, RwLock};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
pub(crate) use write_evidence::{DrainedOpen, Seen};
use write_evidence::{WriteEvidence, seen};

/// How often, and after which pauses, it is looked whether a close is heard of.
const CLOSE_TRIES: u32 = 100;
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
/// Entries of the map that are written down at a time.
pub(crate) const ENTRIES_AT_ONCE: usize = 512;

/// Sequential reading, as far as seen.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Where the next read of a sequential reader begins.
    pub next: u64,
    /// Blocks that are fetched beyond what is asked for.
    pub window: u64,
}

/// What is left of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// It has lost its last name: nothing of it will be drained.
    Gone,
    /// It is not on flash any more, though the PFS may have it: who opens it makes it anew.
    Forgotten,
}

/// What `state` guards.
pub(crate) struct FileState {
    pub record: Record,
    pub map: BlockMap,
    /// Who is at work on which blocks.
    pub block_use: BlockUse,
    /// The drain under way.
    pub drain_run: DrainRun,
    /// Who has it open.
    pub opens: OpenCounts,
    /// What tells whether its object was written.
    pub evidence: WriteEvidence,
    life: Life,
    /// Something here is not dirty any more, and a power cut could make it so again: before its data goes, or
    /// the file is dirty again, map and record are synced.
    clean_unsynced: bool,
    /// What a kernel wrote has its checksums, and on flash the record still calls all of it dirty, until it has
    /// drained: the map was not synced, and what was fsynced is to survive a power cut.
    whole_on_flash: bool,
    /// Who opened it for writing last.
    pub writer: Who,
    pub last_write: Instant,
    pub ahead: Ahead,
    /// Counts what makes fetched data worthless: a new base.
    pub generation: u64,
    /// It is in the list of what has to drain, and its node is pinned.
    pub listed: bool,
    /// How far its object reaches.
    pub extent: Extent,
    /// What is known of its loss.
    pub loss: Loss,
}

/// One cached file. It holds a reference to its inode on flash.
pub(crate) struct CacheFile {
    flash: Arc<Flash>,
    sums: Arc<KeptSums>,
    visit: Visit,
    /// Its inode on flash.
    pub ino: Ino,
    number: AtomicU64,
    pub gate: RwLock<()>,
    pub meta: Mutex<()>,
    pub drain: Mutex<()>,
    pub append: Mutex<()>,
    pub state: Mutex<FileState>,
    /// A fetch has ended, or a piece of it.
    pub filled: Condvar,
    source: Mutex<Option<Arc<File>>>,
    /// Its PFS inode, where its last name that is known was removed and it has others.
    pub inode: Mutex<Option<Arc<OwnedFd>>>,
    /// The superuser has opened it for writing, and it has `security.capability` until it is written.
    pub has_capability: AtomicBool,
}

impl CacheFile {
    /// With what is on flash.
    /// The reference to `ino` is its own from now on, also if this fails.
    pub fn new(
        (flash, sums): (&Arc<Flash>, &Arc<KeptSums>),
        ino: Ino,
        number: Ino,
        record: Record,
    ) -> Result<CacheFile> {
        let matters = record.is_dirty() && !record.whole && record.lost_bytes.is_none();
        let map_gone = matters && flash.map_is_gone(ino);
        let mut map = match map_gone {
            true => BlockMap::default(),
            false => BlockMap::load(|offset, buffer| flash.read_map(ino, offset, buffer, matters))
                .inspect_err(|_| flash.release(ino))?,
        };
        let visit = know_again(sums, flash, ino, &record, &mut map);
        let seen_bytes = match record.is_dirty() {
            true => map.vouched_bytes(),
            false => record.base.size,
        };
        // Perhaps done already.
        let seen_bytes = record.truncating_to.map_or(seen_bytes, |size| seen_bytes.min(size));
        let state = FileState {
            writer: record.writer.clone(),
            record,
            map,
            block_use: BlockUse::default(),
            drain_run: DrainRun::default(),
            evidence: WriteEvidence::default(),
            opens: OpenCounts::of_loaded(),
            life: Life::Alive,
            clean_unsynced: true,
            whole_on_flash: false,
            last_write: Instant::now(),
            ahead: Ahead::default(),
            generation: 0,
            listed: false,
            extent: Extent::of(seen_bytes),
            loss: Loss::of_loaded(map_gone),
        };
        Ok(CacheFile {
            flash: Arc::clone(flash),
            sums: Arc::clone(sums),
            visit,
            ino,
            number: AtomicU64::new(number.0),
            gate: RwLock::new(()),
            meta: Mutex::new(()),
            drain: Mutex::new(()),
            append: Mutex::new(()),
            state: Mutex::new(state),
            filled: Condvar::new(),
            source: Mutex::new(None),
            inode: Mutex::new(None),
            has_capability: AtomicBool::new(false),
        })
    }

    /// Its number in the mount.
    pub fn number(&self) -> Ino {
        Ino(self.number.load(Ordering::Acquire))
    }

    /// The node that it belongs to now.
    pub fn set_number(&self, number: Ino) {
        self.number.store(number.0, Ordering::Release);
    }

    /// The PFS file, open for reading.
    pub fn source(&self) -> Option<Arc<File>> {
        self.source.lock().clone()
    }

    /// Keeps the PFS file open for fills, or lets go of it.
    pub fn set_source(&self, file: Option<Arc<File>>) {
        *self.source.lock() = file;
    }

    /// Waits until nobody has a file open, or (`kernels`) no kernel has it itself. EBUSY if it stays open. Of a
    /// close a server is told a moment after it has returned: who closed a file, and asks for something about
    /// it, need not know that.
    pub fn wait_closed(&self, kernels: bool) -> Result<()> {
        for _ in 0..CLOSE_TRIES {
            let state = self.state.lock();
            if (if kernels { state.opens.by_kernel() } else { state.opens.all() }) == 0 {
                return Ok(());
            }
            drop(state);
            std::thread::sleep(CLOSE_PAUSE);
        }
        Err(Errno::EBUSY)
    }

    /// True if somebody has it open, or is just opening it.
    pub fn is_in_use(&self) -> bool {
        self.state.lock().opens.is_in_use()
    }

    /// True if nothing of it is on flash any more, and nobody has it open.
    pub fn is_forgotten(&self) -> bool {
        self.state.lock().is_forgotten()
    }

    /// True if the object shows size and times of the file, not the PFS.
    pub fn is_dirty(&self) -> bool {
        self.state.lock().record.is_dirty()
    }
}

/// A file comes into memory: what was known of its blocks when it left is known again.
fn know_again(
    sums: &KeptSums,
    flash: &Flash,
    ino: Ino,
    record: &Record,
    map: &mut BlockMap,
) -> Visit {
    let (visit, kept) = sums.come(ino);
    let is_same = |kept: &kept_sums::Kept| {
        let is_its = !record.is_dirty() && kept.key == record.key;
        is_its
            && kept.map_digest == map.digest()
            && flash.stat(ino).is_ok_and(|object| kept.object == seen(&object))
    };
    if let Some(kept) = kept.filter(is_same) {
        map.know_sums(kept.sums);
    }
    visit
}

/// Blocks that are not evicted as long as it lives: else fetching the last block of a write could
/// evict its first one, for ever.
pub(crate) struct Held<'a> {
    file: &'a CacheFile,
    blocks: Vec<u64>,
}

impl CacheFile {
    /// Sets times of the data, as a call asks, which changes nothing of the data: checksums that are being made of it are good
    /// all the same where nobody can have written in that moment.
    pub fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let is_summed = self.state.lock().evidence.is_summed();
        // Alone no request writes. Where somebody uses the file for long its checksums are made again.
        let alone = if is_summed { self.gate.try_write_for(WAIT) } else { None };
        // Not in the midst of a fill or an eviction, which would set the old one again.
        let _shared = alone.is_none().then(|| self.gate.read());
        let mut state = self.state.lock();
        let look = || self.flash.stat(self.ino).ok().map(|now| seen(&now));
        let before = state.evidence.take_summed();
        let follows =
            alone.is_some() && state.opens.by_kernel() == 0 && before.is_some() && look() == before;
        self.flash.set_times(self.ino, atime, mtime)?;
        let now = if follows { look() } else { None };
        state.evidence.times_set(now);
        state.drain_run.note_mtime(mtime);
        Ok(())
    }

    /// Holds blocks, here or to be fetched.
    pub fn hold(&self, blocks: impl Iterator<Item = u64>) -> Held<'_> {
        let blocks: Vec<u64> = blocks.collect();
        let mut state = self.state.lock();
        for block in &blocks {
            state.block_use.hold(*block);
        }
        Held { file: self, blocks }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        for block in &self.blocks {
            state.block_use.let_go(*block);
        }
    }
}

impl CacheFile {
    /// What is known of its blocks as it leaves memory. `None` of a file that is dirty or gone, and where it is nothing.
    fn known(&mut self) -> Option<kept_sums::Kept> {
        let state = self.state.get_mut();
        let is_out = state.record.is_dirty() || state.is_gone() || state.is_forgotten();
        if is_out || state.map.present() < SUMS_LEAST {
            return None;
        }
        let sums = state.map.known_sums();
        if sums.is_empty() {
            return None;
        }
        let object = seen(&self.flash.stat(self.ino).ok()?);
        let (key, map_digest) = (state.record.key, state.map.digest());
        Some(kept_sums::Kept { key, object, map_digest, sums })
    }
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        let known = self.known();
        self.sums.leave(self.ino, self.visit, known);
        self.flash.release(self.ino);
    }
}

impl FileState {
    /// True if a kernel has the object itself, also one of which nothing is known here: it reads on by itself, and
    /// must meet no holes.
    pub fn is_in_kernel(&mut self, flash: &Flash, file: &CacheFile) -> Result<bool> {
        self.opens.is_in_kernel(|| flash.is_open_elsewhere(file.ino))
    }

    /// True if it has lost its last name, or is forgotten: nothing of it will be drained.
    pub fn is_gone(&self) -> bool {
        self.life != Life::Alive
    }

    /// True if it is not on flash any more, though the PFS may have it: who opens it makes it anew.
    pub fn is_forgotten(&self) -> bool {
        self.life == Life::Forgotten
    }

    /// It has lost its last name. What is forgotten stays so.
    pub fn note_gone(&mut self) {
        if self.life == Life::Alive {
            self.life = Life::Gone;
        }
    }

    /// Nothing of it is on flash from now on.
    pub fn forget(&mut self) {
        self.life = Life::Forgotten;
    }

    /// True while a kernel may be writing it: others that have it only read.
    pub fn may_kernel_write(&self) -> bool {
        self.record.whole && self.opens.by_kernel() > 0
    }

    /// True while blocks of a file are fetched of which nothing is dirty.
    pub fn is_clean_and_filled(&self) -> bool {
        !self.record.is_dirty() && self.block_use.has_fills()
    }

    /// True if a block need not be fetched.
    pub fn here(&self, block: u64) -> bool {
        self.record.whole
            || block * BLOCK_BYTES >= self.record.fetch_limit
            || self.map.get(block).has(bits::PRESENT)
    }

    /// True if a range of bytes need not be fetched.
    pub fn all_here(&self, offset: u64, length: u64) -> bool {
        blocks_of(offset, length).all(|block| self.here(block))
    }

    /// How many of a range of bytes have to be fetched.
    pub fn missing(&self, offset: u64, length: u64) -> u64 {
        let end = offset + length;
        let inside =
            |block: u64| ((block + 1) * BLOCK_BYTES).min(end) - (block * BLOCK_BYTES).max(offset);
        blocks_of(offset, length).filter(|b| !self.here(*b)).map(inside).sum()
    }

    /// True if nothing of the file has to be fetched any more.
    pub fn is_whole(&self) -> bool {
        let needed = self.record.fetch_limit.div_ceil(BLOCK_BYTES);
        self.record.whole
            || (self.map.present() >= needed && (0..needed).all(|block| self.here(block)))
    }

    /// Writes the record down, and only then has it.
    pub fn save(
        &mut self,
        flash: &Flash,
        file: &CacheFile,
        change: impl FnOnce(&mut Record),
    ) -> Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        if record == self.record {
            return Ok(());
        }
        self.write_down(flash, file, &record)?;
        self.record = record;
        Ok(())
    }

    fn write_down(&mut self, flash: &Flash, file: &CacheFile, record: &Record) -> Result<()> {
        self.whole_on_flash &= record.is_dirty();
        if !record.is_dirty() {
            // What somebody sets on the PFS until it is written again is to be met then.
            self.opens.forget_capability();
        }
        if self.is_gone() {
            return Ok(());
        }
        match self.whole_on_flash && !record.whole {
            true => flash.save(file.ino, &Record { whole: true, ..record.clone() }),
            false => flash.save(file.ino, record),
        }
    }

    /// The same where who is told of it relies on it over a power cut: nobody sees it before it is synced.
    pub fn save_synced(
        &mut self,
        flash: &Flash,
        file: &CacheFile,
        change: impl FnOnce(&mut Record),
    ) -> Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        self.write_down(flash, file, &record)?;
        if !flash.is_volatile() {
            flash.sync()?;
        }
        self.record = record;
        Ok(())
    }

    /// Writes entries of consecutive blocks down, and only then has them.
    pub fn put(
        &mut self,
        flash: &Flash,
        file: &CacheFile,
        first: u64,
        entries: &[Entry],
    ) -> Result<()> {
        let known: Vec<Entry> = (first..).take(entries.len()).map(|b| self.map.get(b)).collect();
        if known == entries {
            return Ok(());
        }
        let packed: Vec<u64> = entries.iter().map(|e| e.pack()).collect();
        // An XXH3 is in memory only.
        let is_on_flash = known.iter().map(|e| e.pack()).eq(packed.iter().copied());
        // The map on flash goes with the last name; who has the file open goes on in memory.
        if !self.is_gone() && !is_on_flash {
            flash.write_map(file.ino, first, &packed)?;
        }
        for (i, entry) in entries.iter().enumerate() {
            self.map.set(first + i as u64, *entry);
        }
        Ok(())
    }

    /// The same of blocks that may have others between them, in ascending order: one write for each run of them. After an
    /// error some are as they were.
    pub fn put_runs(
        &mut self,
        flash: &Flash,
        file: &CacheFile,
        blocks: &[(u64, Entry)],
    ) -> Result<()> {
        let mut rest = blocks;
        while let Some((first, _)) = rest.first().copied() {
            let follows = rest.iter().zip(first..).take(ENTRIES_AT_ONCE);
            let run = follows.take_while(|((block, _), wanted)| block == wanted).count();
            let (now, later) = rest.split_at(run);
            let entries: Vec<Entry> = now.iter().map(|(_, entry)| *entry).collect();
            self.put(flash, file, first, &entries)?;
            rest = later;
        }
        Ok(())
    }

    /// Something here is not dirty any more, and map and record are not synced since.
    pub fn note_clean(&mut self) {
        self.clean_unsynced = true;
    }

    /// Nothing was here that a power cut could make dirty again.
    pub fn note_synced(&mut self) {
        self.clean_unsynced = false;
    }

    /// True if a power cut could make something dirty again that is not.
    pub fn is_clean_unsynced(&self) -> bool {
        self.clean_unsynced
    }

    /// What a kernel wrote has its checksums; whether the record on flash still calls all of it dirty.
    pub fn stay_whole_on_flash(&mut self, stays: bool) {
        self.whole_on_flash = stays;
    }

    /// True if the record on flash calls all of it dirty, and a kernel's writes have their checksums.
    pub fn is_whole_on_flash(&self) -> bool {
        self.whole_on_flash
    }

    /// Before data goes that the PFS has, and before a clean file is dirty again: on flash that survives a power
    /// cut nothing may call drained blocks dirty afterwards, or what is in their place, or was there before,
    /// would be drained over them.
    pub fn sync_clean(&mut self, flash: &Flash, file: &CacheFile) -> Result<()> {
        if self.clean_unsynced && !self.is_gone() && !flash.is_volatile() {
            flash.sync_map(file.ino)?;
            flash.sync()?;
        }
        self.clean_unsynced = false;
        Ok(())
    }

    /// Forgets what is here of a range of blocks.
    pub fn drop_blocks(
        &mut self,
        flash: &Flash,
        file: &CacheFile,
        blocks: Range<u64>,
    ) -> Result<()> {
        let known = blocks.filter(|block| self.map.get(*block).bits != 0);
        let none: Vec<_> = known.map(|block| (block, Entry::default())).collect();
        self.put_runs(flash, file, &none)
    }

    /// Bytes that the PFS does not have, at most those of the file.
    pub fn dirty_bytes(&self, size: u64) -> u64 {
        match (self.record.whole, self.record.state) {
            (true, _) => size,
            (false, SyncState::Clean) => 0,
            // How long it was nobody knows.
            (false, _) if self.is_lost() && size == 0 => self.map.dirty() * BLOCK_BYTES,
            (false, _) => (self.map.dirty() * BLOCK_BYTES).min(size),
        }
    }
}
