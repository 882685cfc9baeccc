//! What is on flash of a PFS file: found or made when somebody comes to it, compared with the PFS, dropped where
//! that has something else, forgotten when nothing is left of it.
//!
//! Invariants: there is one [`CacheFile`] of a PFS inode; nothing of a file is evicted or forgotten while it is being
//! opened ([`Opening`]), so what an open has looked at is so until it is counted. Called by opens, attributes, status
//! and evictions.

use super::clock::Clocks;
use super::file::CacheFile;
use super::fills::Fills;
use super::flash::Flash;
use super::lost::Losses;
use super::map::BLOCK_BYTES;
use super::nodes::Nodes;
use super::notifier::Notifier;
use super::parts::Parts;
use super::pfs::{PfsDir, PfsStat};
use super::pfs_leftovers::PfsLeftovers;
use super::record::{Base, Owner, Record, SyncState};
use super::record_store::RecordStore;
use super::space::Space;
use forebay_credentials::acting::Who;
use forebay_policy::room::Waiter;
use forebay_proto::attr::FileKind;
use forebay_proto::{Errno, Ino, Result};
use std::sync::Arc;

/// How often an open comes to a file that an eviction forgets at that moment.
const FORGOTTEN_TRIES: u32 = 20;

/// How often clean files go so that one more can be made.
const MAKE_TRIES: u32 = 20;

/// A file that is being opened, or decided about: nothing of it is evicted, for a kernel that gets it must meet no holes
/// where blocks were, and what was all here of a conflict must stay so.
pub(super) struct Opening(Arc<CacheFile>);

impl Opening {
    /// `None` if it was forgotten.
    pub(super) fn of(file: Arc<CacheFile>) -> Option<Opening> {
        let mut state = file.state.lock();
        if state.is_forgotten() {
            return None;
        }
        state.opens.begin();
        drop(state);
        Some(Opening(file))
    }

    pub(super) fn file(&self) -> &Arc<CacheFile> {
        &self.0
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.state.lock().opens.end();
    }
}

/// Brings nodes and what is on flash of their files together.
pub(crate) struct CachedFiles {
    flash: Arc<Flash>,
    pfs: Arc<PfsDir>,
    nodes: Arc<Nodes>,
    clocks: Arc<Clocks>,
    notifier: Arc<Notifier>,
    records: Arc<RecordStore>,
    space: Arc<Space>,
    fills: Arc<Fills>,
    losses: Arc<Losses>,
    leftovers: Arc<PfsLeftovers>,
}

impl CachedFiles {
    pub fn new(
        parts: &Parts,
        records: &Arc<RecordStore>,
        space: &Arc<Space>,
        (fills, losses): (&Arc<Fills>, &Arc<Losses>),
        leftovers: &Arc<PfsLeftovers>,
    ) -> CachedFiles {
        CachedFiles {
            flash: parts.flash.clone(),
            pfs: parts.pfs.clone(),
            nodes: parts.nodes.clone(),
            clocks: parts.clocks.clone(),
            notifier: parts.notifier.clone(),
            records: records.clone(),
            space: space.clone(),
            fills: fills.clone(),
            losses: losses.clone(),
            leftovers: leftovers.clone(),
        }
    }
}

impl CachedFiles {
    /// The same as [`CachedFiles::attach`] for who opens the file.
    pub(crate) fn attach_to_open(&self, ino: Ino, stat: &PfsStat, who: &Who) -> Result<Opening> {
        for _ in 0..FORGOTTEN_TRIES {
            let file = self.attach(ino, stat, who)?;
            match Opening::of(file.clone()) {
                Some(opening) => return Ok(opening),
                None => self.nodes.detach(ino, &file),
            }
        }
        Err(Errno::ESTALE)
    }

    /// What is on flash of a node's file; made if there is nothing.
    pub(crate) fn attach(&self, ino: Ino, stat: &PfsStat, who: &Who) -> Result<Arc<CacheFile>> {
        if stat.kind() != FileKind::File {
            return Err(if stat.kind() == FileKind::Dir { Errno::EISDIR } else { Errno::EINVAL });
        }
        if let Some(file) = self.nodes.get(ino)?.file {
            if file.is_forgotten() {
                // Nothing of it is on flash any more, though its name is there.
                self.nodes.detach(ino, &file);
                return Err(Errno::ESTALE);
            }
            return Ok(file);
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        let file = match self.records.find(stat.key)? {
            Some(file) => file,
            None => match self.make(ino, self.records.new_record(stat, &path, who), stat.size) {
                // Another thread made it, or has already forgotten what was made here.
                Err(Errno::EEXIST | Errno::ESTALE) => {
                    self.records.find(stat.key)?.ok_or(Errno::EAGAIN)?
                }
                made => made?,
            },
        };
        file.set_number(ino);
        self.nodes.attach(ino, file)
    }

    /// Makes the flash side of a file of this size.
    pub(crate) fn make(&self, number: Ino, record: Record, size: u64) -> Result<Arc<CacheFile>> {
        let (mut tries, mut met) = (0, Waiter::default());
        let made = loop {
            match self.flash.has_room_for_a_file().and_then(|()| self.flash.make(&record, size)) {
                // Room for data, or for one more file: whole clean files go until there is. If all are dirty
                // the caller waits for drains, as a write does.
                Err(Errno::ENOSPC) if tries < MAKE_TRIES => {
                    self.space.wait_for_room(number, BLOCK_BYTES)?;
                    match self.space.evict_any() {
                        Ok(()) => tries += 1,
                        // Nothing goes and nothing drains: the count may be the worst case of what is gone.
                        Err(_) => match self.space.wait_for_drains(&mut met) {
                            Err(_) if self.flash.recount_files()? => {
                                (tries, met) = (tries + 1, Waiter::default());
                            }
                            waited => waited?,
                        },
                    }
                }
                made => break made?,
            }
        };
        forebay_failpoint::step("a clean file is on record");
        let file = self.records.load(made, number, &record)?;
        let mut state = file.state.lock();
        state.note_synced();
        // Its object was made just now.
        state.opens.made_just_now();
        drop(state);
        Ok(file)
    }

    /// Compares the PFS file with what is here of it.
    pub(crate) fn revalidate(&self, file: &Arc<CacheFile>, stat: &PfsStat) -> Result<()> {
        if self.losses.data_is_lost(file)? {
            // Whatever the PFS has now: it waits for a decision already.
            return Ok(());
        }
        let (base, dirty, state, draining) = {
            let state = file.state.lock();
            let r = &state.record;
            (r.base, r.is_dirty(), r.state, r.draining.is_some())
        };
        if base.holds(stat) && (dirty || !base.young) {
            return Ok(());
        }
        if !dirty {
            return self.take_base(file, stat);
        }
        // Somebody else changed it, its attributes at least.
        file.state.lock().opens.forget_capability();
        if base.holds_data(stat) {
            let mut state = file.state.lock();
            return state.save(&self.flash, file, |record| {
                record.base.ctime = stat.ctime;
                record.base.owner = Owner::of(stat);
            });
        }
        // While we write it ourselves it changes.
        if state != SyncState::Conflict && !draining {
            self.records
                .note_conflict(file, "changed on the PFS while there is data for it here")?;
        }
        Ok(())
    }

    /// Nothing of what is here counts any more; the file is what the PFS has now.
    pub(crate) fn take_base(&self, file: &Arc<CacheFile>, stat: &PfsStat) -> Result<()> {
        let in_kernel = {
            let _gate = file.gate.write();
            let mut state = file.state.lock();
            state.generation += 1;
            let had = state.map.present() > 0;
            let in_kernel = state.is_in_kernel(&self.flash, file)?;
            if state.record.is_dirty() {
                // Before the first of it goes: what a kill leaves is not taken for ours.
                state.save(&self.flash, file, |record| {
                    record.base = Base { young: true, ..Base::of(stat) };
                    record.state = SyncState::Clean;
                    record.whole = false;
                    record.resized = false;
                })?;
                forebay_failpoint::step("what is dropped is not dirty any more");
                state.note_clean();
            }
            state.sync_clean(&self.flash, file)?;
            self.flash.clear_map(file.ino)?;
            state.map.clear();
            // A kernel that has the object reads on, and meets the new content in its place.
            if !in_kernel && had {
                self.flash.truncate(file.ino, 0)?;
            }
            forebay_failpoint::step("nothing is here of a file any more");
            state.extent.set_seen(0);
            self.flash.truncate(file.ino, stat.size)?;
            state.extent.set_seen(stat.size);
            state.save(&self.flash, file, |record| {
                record.base = Base::of_foreign(stat, &self.clocks);
                record.fetch_limit = stat.size;
                record.state = SyncState::Clean;
                record.whole = false;
                record.resized = false;
                record.draining = None;
                record.failure = None;
                record.lost_bytes = None;
            })?;
            in_kernel
        };
        self.space.dropped(file.ino);
        file.set_source(None);
        self.notifier.tell_inode(file.number());
        match in_kernel {
            true => self.fills.fetch_all(file),
            false => Ok(()),
        }
    }
}

impl CachedFiles {
    /// True if the file has lost its last name, by us: who knows its number goes on with it, as with any removed
    /// file, and nothing of it drains. Else it is compared with what the PFS has. With `meta` locked.
    pub(crate) fn is_lost_or_valid(
        &self,
        ino: Ino,
        file: &Arc<CacheFile>,
        stat: &PfsStat,
    ) -> Result<bool> {
        let as_nfs = self.pfs.renames_what_is_held();
        let is_held = self.nodes.get(ino)?.held.is_some();
        if as_nfs && !is_held && self.nodes.names(ino).is_empty() {
            // Removed since it was looked up: nothing is held there for who had not opened it.
            return Err(Errno::ESTALE);
        }
        // What is removed and held has a name there that is nobody's.
        if stat.nlink > u32::from(as_nfs) || !is_held {
            self.revalidate(file, stat)?;
            return Ok(false);
        }
        let goes_on = {
            let state = file.state.lock();
            state.is_gone() || state.record.nameless
        };
        if !goes_on {
            // Nothing was here of it when it was removed.
            self.leftovers.lose(file)?;
        }
        Ok(true)
    }
}
