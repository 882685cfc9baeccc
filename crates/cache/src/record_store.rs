//! The cached files that are in memory, one [`CacheFile`] for each record on flash.
//!
//! Invariants: there is one [`CacheFile`] of an inode on flash; a record is read with the table locked, so that what comes into
//! memory is what is on flash. Called by whoever comes to a file by its key or by its inode on flash.

use super::clock::Clocks;
use super::events::Events;
use super::file::{CacheFile, FileState};
use super::flash::Flash;
use super::kept_sums::KeptSums;
use super::nodes::Nodes;
use super::parts::Parts;
use super::pfs::{Key, PfsStat};
use super::record::{self, Failure, Record, SyncState};
use forebay_credentials::acting::Who;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often, and after which pauses, a file is looked for that is just being taken off flash.
const FIND_TRIES: u32 = 200;
const FIND_PAUSE: Duration = Duration::from_millis(1);

/// The files of one cache.
pub(crate) struct RecordStore {
    flash: Arc<Flash>,
    nodes: Arc<Nodes>,
    clocks: Arc<Clocks>,
    events: Arc<Events>,
    /// What is known of those that are not.
    pub(crate) sums: Arc<KeptSums>,
    /// Cached files that are in memory, by their inode on flash.
    loaded: Mutex<HashMap<Ino, Weak<CacheFile>>>,
    /// There has been a conflict since the start, or from before it: until then nobody looks for one by its path.
    had_conflict: AtomicBool,
}

impl RecordStore {
    /// Nothing is in memory yet.
    pub fn new(parts: &Parts) -> RecordStore {
        RecordStore {
            flash: parts.flash.clone(),
            nodes: parts.nodes.clone(),
            clocks: parts.clocks.clone(),
            events: parts.events.clone(),
            sums: Arc::default(),
            loaded: Mutex::default(),
            had_conflict: AtomicBool::new(false),
        }
    }

    /// True if there may be a file in conflict.
    pub fn had_conflict(&self) -> bool {
        self.had_conflict.load(Ordering::Acquire)
    }
}

impl RecordStore {
    pub(crate) fn new_record(&self, stat: &PfsStat, path: &[u8], who: &Who) -> Record {
        Record::new(stat, path, who.clone(), &self.clocks)
    }

    /// Nothing is left to remember of a clean file that nobody has open and of which nothing is here.
    /// Who comes next makes it anew.
    pub(crate) fn forget_empty(
        &self,
        file: &Arc<CacheFile>,
        mut state: MutexGuard<'_, FileState>,
    ) -> Result<()> {
        let r = &state.record;
        let empty = state.map.present() == 0
            && !state.opens.is_in_use()
            && !state.block_use.has_fills()
            && !state.block_use.has_held()
            && r.state == SyncState::Clean
            && r.kept_as.is_none()
            && !(r.pinned || r.nameless || state.listed || state.is_gone());
        if empty {
            let key = r.key;
            state.forget();
            drop(state);
            self.nodes.detach(file.number(), file);
            forebay_failpoint::step("a forgotten file is still on flash");
            self.flash.remove(file.ino, key)?;
        }
        Ok(())
    }

    /// Both sides have changed: nothing is drained until somebody decides.
    pub(crate) fn note_conflict(
        &self,
        file: &Arc<CacheFile>,
        what: &'static str,
    ) -> forebay_proto::Result<()> {
        self.events.tell_not_drained(file, libc::ESTALE, what);
        self.had_conflict.store(true, std::sync::atomic::Ordering::Release);
        let mut state = file.state.lock();
        tracing::warn!(path = %state.record.path, what, "conflict");
        let at_s = forebay_proto::Timestamp::now().sec;
        state.save(&self.flash, file, |record| {
            record.state = SyncState::Conflict;
            record.failure =
                Some(Failure { errno: libc::ESTALE, what: what.into(), tries: 0, at_s });
        })
    }

    /// The cached file of a PFS file, if there is one.
    pub(crate) fn find(&self, key: Key) -> Result<Option<Arc<CacheFile>>> {
        let mut tries = 0;
        loop {
            let Some((ino, record)) = self.flash.find(key)? else { return Ok(None) };
            forebay_failpoint::step("a file is found on flash");
            match self.load(ino, Ino(0), &record) {
                // Another thread is just taking it off flash: a moment later there is none.
                Err(Errno::ESTALE) if tries < FIND_TRIES => {
                    tries += 1;
                    std::thread::sleep(FIND_PAUSE);
                }
                found => return found.map(Some),
            }
        }
    }

    /// In memory, whoever asks first. The reference to `ino` is taken over. ESTALE if it is taken off flash, or was since
    /// this record was read.
    pub(crate) fn load(&self, ino: Ino, number: Ino, read: &Record) -> Result<Arc<CacheFile>> {
        let mut loaded = self.loaded.lock();
        if let Some(file) = loaded.get(&ino).and_then(Weak::upgrade) {
            self.flash.release(ino);
            return match file.state.lock().is_gone() {
                // It is just being taken off flash: who asks again finds nothing, or makes it anew.
                true => Err(Errno::ESTALE),
                false => Ok(file.clone()),
            };
        }
        let record = self.still_on_flash(ino, read.key)?;
        if record.state == record::SyncState::Conflict {
            self.had_conflict.store(true, Ordering::Release);
        }
        let file = Arc::new(CacheFile::new((&self.flash, &self.sums), ino, number, record)?);
        if loaded.len() == loaded.capacity() {
            loaded.retain(|_, weak| weak.strong_count() > 0);
        }
        loaded.insert(ino, Arc::downgrade(&file));
        Ok(file)
    }

    /// The record of what is in nobody's memory, as it is now; its reference ends with an error. With `loaded` locked nobody
    /// changes it: who takes a file off flash, or gives it another key, has it in memory. Who had may have done so, and have
    /// let go of it, since it was found: data that is written into an inode without a name would drain never, and go
    /// with the server.
    fn still_on_flash(&self, ino: Ino, key: Key) -> Result<Record> {
        let now = self.flash.find(key).inspect_err(|_| self.flash.release(ino))?;
        let Some((found, record)) = now else {
            self.flash.release(ino);
            return Err(Errno::ESTALE);
        };
        self.flash.release(found);
        if found != ino {
            self.flash.release(ino);
            return Err(Errno::ESTALE);
        }
        Ok(record)
    }

    /// By its inode on flash; `None` if there is none any more.
    pub(crate) fn loaded_or_load(&self, ino: Ino) -> Result<Option<Arc<CacheFile>>> {
        let there = self.loaded.lock().get(&ino).and_then(Weak::upgrade);
        if there.is_some() {
            return Ok(there);
        }
        match self.flash.by_ino(ino)? {
            Some(record) => match self.load(ino, Ino(0), &record) {
                Err(Errno::ESTALE) => Ok(None),
                loaded => loaded.map(Some),
            },
            None => Ok(None),
        }
    }

    /// The dirty data of a PFS file that no node has yet, as after a restart.
    pub(crate) fn dirty_by_key(&self, ino: Ino, key: Key) -> Result<Option<Arc<CacheFile>>> {
        let Some(file) = self.find(key)? else { return Ok(None) };
        if !file.is_dirty() {
            return Ok(None);
        }
        let listed = {
            let state = file.state.lock();
            state.listed
        };
        if file.number() != ino {
            // Found by its name only now.
            let old = file.number();
            if listed {
                self.nodes.pin(ino);
                drop(self.nodes.unpin(old));
            }
            file.set_number(ino);
        }
        self.nodes.attach(ino, file).map(Some)
    }
}
