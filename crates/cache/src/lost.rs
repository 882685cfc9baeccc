//! Data that is gone from flash though nobody here removed it: somebody cleaned the flash directory, or cut an
//! object there.
//!
//! Invariants
//! * What is clean is fetched again: it gets a new place, and its map is empty ([`Losses::data_is_lost`]).
//! * What is dirty is lost. That is on record, reported and `failed` before anything else is done with the file. From then
//!   on nothing of it is read or written (EIO) or drained, until the PFS's version is said to count (`resolve --keep
//!   theirs`), the file is removed, or it is written anew from nothing (truncated to 0).
//! * Nothing else is taken for lost: an object is gone only if its name is, while its file is on record; and cut
//!   only if it is shorter than a checksum vouches for or than it was seen here since (`seen_bytes`), looked at
//!   under the file's lock. A cut that no checksum can show, made while no server ran, is not found.
//!
//! Called before data is read, opened, drained or told of, and at the start.

use super::events::Events;
use super::file::{CacheFile, FileState};
use super::fills::Fills;
use super::flash::Flash;
use super::parts::Parts;
use super::record::{Failure, SyncState};
use super::space::Space;
use forebay_proto::{Errno, Result, Timestamp};
use forebay_store::objects::ObjectStat;
use std::sync::Arc;

/// Why such a file is `failed`.
pub(super) const LOST: &str =
    "lost: its data, which the PFS does not have, is gone from the flash directory";

/// What of a file is not on flash any more.
enum Gone {
    Nothing,
    Clean,
    Dirty,
    /// Dirty, and on record as lost.
    Known,
}

impl FileState {
    /// True if what the PFS does not have of it is gone from flash.
    pub fn is_lost(&self) -> bool {
        self.record.lost_bytes.is_some()
    }
}

/// Finds out what is lost of files.
pub(crate) struct Losses {
    flash: Arc<Flash>,
    events: Arc<Events>,
    space: Arc<Space>,
    fills: Arc<Fills>,
}

impl Losses {
    pub fn new(parts: &Parts, space: &Arc<Space>, fills: &Arc<Fills>) -> Losses {
        Losses {
            flash: parts.flash.clone(),
            events: parts.events.clone(),
            space: space.clone(),
            fills: fills.clone(),
        }
    }
}

impl Losses {
    /// True if data of it is lost: then that is on record, and told. What is clean and gone gets a new place, to be
    /// fetched again. With neither `gate` nor `state` locked.
    pub(crate) fn data_is_lost(&self, file: &Arc<CacheFile>) -> Result<bool> {
        let gone = self.what_is_gone(file, &file.state.lock());
        match gone {
            Gone::Nothing => Ok(false),
            Gone::Known => Ok(true),
            Gone::Clean => self.remake(file).map(|()| false),
            Gone::Dirty => {
                self.note_lost(file);
                Ok(true)
            }
        }
    }

    /// The object of a file; `None` if its data is lost. What is clean and gone has a new place then.
    pub(crate) fn object_unless_lost(&self, file: &Arc<CacheFile>) -> Result<Option<ObjectStat>> {
        let (seen_bytes, is_suspect) = {
            let state = file.state.lock();
            (state.extent.seen_bytes(), state.is_lost() || state.loss.is_map_gone())
        };
        // Not in the midst of a fill or an eviction, which has moved its mtime and sets it again.
        let looked = {
            let _gate = file.gate.read();
            self.flash.stat(file.ino)
        };
        match looked {
            Ok(object) if object.size_bytes >= seen_bytes && !is_suspect => Ok(Some(object)),
            _ if self.data_is_lost(file)? => Ok(None),
            _ => self.flash.stat(file.ino).map(Some),
        }
    }

    fn what_is_gone(&self, file: &CacheFile, state: &FileState) -> Gone {
        if state.is_gone() {
            // It goes with its last name: so does its object.
            return Gone::Nothing;
        }
        if state.is_lost() {
            return Gone::Known;
        }
        let is_gone = state.loss.is_map_gone()
            || self.flash.is_gone_or_cut(file.ino, state.extent.seen_bytes());
        match state.record.is_dirty() {
            _ if !is_gone => Gone::Nothing,
            true => Gone::Dirty,
            false => Gone::Clean,
        }
    }

    /// Says of a dirty file that its data is lost: first to who follows events, for a kill in between makes it be
    /// told again, never left out.
    pub(crate) fn note_lost(&self, file: &CacheFile) {
        let path = {
            let mut state = file.state.lock();
            if state.is_lost() || !state.loss.begin_note() {
                return;
            }
            state.record.path.clone()
        };
        tracing::error!(%path, ino = %file.ino, "{LOST}");
        self.events.tell_lost(path.as_bytes());
        let mut state = file.state.lock();
        let at_s = Timestamp::now().sec;
        let mut record = state.record.clone();
        record.lost_bytes = Some(state.extent.seen_bytes().max(state.map.vouched_bytes()));
        record.state = SyncState::Failed;
        record.failure = Some(Failure { errno: libc::EIO, what: LOST.into(), tries: 0, at_s });
        if let Err(error) = state.save(&self.flash, file, |now| now.clone_from(&record)) {
            // The log may be gone with the data.
            tracing::error!(%path, %error, "that it is lost could not be written down");
            state.record = record;
        }
        state.loss.end_note();
        drop(state);
        self.space.dropped(file.ino);
    }

    /// A clean file gets a new place on flash. Who has it open in a kernel meets what is fetched.
    fn remake(&self, file: &Arc<CacheFile>) -> Result<()> {
        let in_kernel = {
            let _gate = file.gate.write();
            let mut state = file.state.lock();
            if !matches!(self.what_is_gone(file, &state), Gone::Clean) {
                return Ok(());
            }
            tracing::warn!(path = %state.record.path, "its data is gone from flash: from the PFS again");
            let size = state.record.base.size;
            self.begin_empty(file, &mut state, size)?;
            state.opens.by_kernel() > 0
        };
        self.space.dropped(file.ino);
        match in_kernel {
            true => self.fills.fetch_all(file),
            false => Ok(()),
        }
    }

    /// A lost file is about to be written anew: closes by kernels that returned are heard of first. EIO while one has it.
    pub(crate) fn wait_to_begin_anew(&self, file: &Arc<CacheFile>) -> Result<()> {
        match self.data_is_lost(file)? {
            true => file.wait_closed(true).map_err(|_| Errno::EIO),
            false => Ok(()),
        }
    }

    /// A lost file is written anew from nothing. EIO while a kernel has what is gone. With `gate` locked alone.
    pub(crate) fn begin_anew(&self, file: &CacheFile, state: &mut FileState) -> Result<()> {
        if state.opens.by_kernel() > 0 {
            return Err(Errno::EIO);
        }
        self.begin_empty(file, state, 0)?;
        // A drain that was under way when it was lost has nothing to say of what comes now.
        state.drain_run.begin_anew();
        state.stay_whole_on_flash(false);
        state.evidence.forget_open();
        state.save(&self.flash, file, |record| {
            record.lost_bytes = None;
            record.state = SyncState::Dirty;
            record.failure = None;
            record.whole = false;
            record.resized = true;
            record.fetch_limit = 0;
            record.truncating_to = None;
        })
    }

    /// An object of this size without data, and an empty map.
    fn begin_empty(&self, file: &CacheFile, state: &mut FileState, size: u64) -> Result<()> {
        state.generation += 1;
        self.flash.make_anew(file.ino)?;
        state.map.clear();
        state.loss.map_is_anew();
        state.extent.set_seen(0);
        self.flash.truncate(file.ino, size)?;
        state.extent.set_seen(size);
        Ok(())
    }
}
