//! The indexes of files in logs: in memory as far as they are used, and in their objects.
//!
//! Invariant: a step is in the index's object before it is in memory. An index lies in one of two places, and is written
//! anew into the other one.
//! Used by [`super::LoggedFiles`]. While one is worked with, nobody else changes it.

use super::{Figures, LoadedIndex, LoggedFile, Written};
use crate::base::Base;
use crate::reclaim::Reclaimer;
use crate::records::Records;
use forebay_failpoint::step;
use forebay_log::index::{self, Loaded};
use forebay_log::{Entry, Index, LogId, Times};
use forebay_proto::api::WriteMode;
use forebay_proto::attr::Timestamp;
use forebay_proto::net::servers::ObjectsReply;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Indexes in memory. Others are read again when they are needed.
const MAX_INDEXES: usize = 1024;
/// An index is written anew when its object has more than twice what that took, and so much beyond.
const INDEX_SLACK_BYTES: u64 = 256 << 10;
/// Largest object of an index; more is damage.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// The indexes.
pub(crate) struct Indexes {
    records: Arc<Records>,
    objects: Arc<Objects>,
    reclaim: Arc<Reclaimer>,
    volatile: bool,
    files: Mutex<HashMap<Ino, Arc<LoggedFile>>>,
}

impl Indexes {
    /// Those in these objects.
    pub(crate) fn new(base: &Base) -> Indexes {
        Indexes {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            reclaim: Arc::clone(&base.reclaim),
            volatile: base.volatile,
            files: Mutex::default(),
        }
    }

    /// What is known of a file; it stays in memory while it is held.
    pub(super) fn of(&self, ino: Ino) -> Arc<LoggedFile> {
        let mut files = self.files.lock();
        if files.len() >= MAX_INDEXES && !files.contains_key(&ino) {
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        Arc::clone(files.entry(ino).or_default())
    }

    /// The file has gone.
    pub(super) fn forget(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }

    /// What each index in memory has.
    pub(super) fn figures(&self) -> Vec<Figures> {
        let files: Vec<_> = self.files.lock().values().map(Arc::clone).collect();
        files.iter().map(|file| file.figures()).collect()
    }

    /// Objects of the file were changed: their times count.
    pub(super) fn objects_changed(&self, ino: Ino) {
        if let Some(state) = &mut *self.of(ino).state.lock() {
            state.ctime = None;
        }
    }

    /// Works with the index of a file, which nobody else changes meanwhile.
    pub(super) fn with<T>(
        &self,
        ino: Ino,
        work: impl FnOnce(&mut LoadedIndex) -> Result<T>,
    ) -> Result<T> {
        let file = self.of(ino);
        let mut state = file.state.lock();
        let state = match &mut *state {
            Some(state) => state,
            none => none.insert(self.load_index(ino)?),
        };
        work(state)
    }

    /// Of the inode's server: which of these logs are needed no more.
    pub(crate) fn logs_gone(&self, logs: &[ObjectId]) -> Result<ObjectsReply> {
        let gone = |object: &ObjectId| {
            let Some(log) = object.as_log() else { return Ok(false) };
            match self.records.store().inode(object.ino)? {
                Some(record) if record.layout.log => {
                    self.with(object.ino, |state| Ok(state.index.log(LogId(log)).is_none()))
                }
                _ => Ok(true),
            }
        };
        logs.iter().map(gone).collect::<Result<_>>().map(ObjectsReply::Known)
    }

    fn load_index(&self, ino: Ino) -> Result<LoadedIndex> {
        let mut newest: Option<Loaded> = None;
        for place in 0..2 {
            let object = ObjectId::log_index(ino, place);
            let bytes = match self.objects.stat(object) {
                Ok(stat) if stat.size_bytes > INDEX_BYTES_MAX => return Err(Errno::EIO),
                Ok(stat) => stat.size_bytes as usize,
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Err(errno),
            };
            let mut all = vec![0; bytes];
            let have = self.objects.read(object, 0, &mut all)?;
            all.truncate(have);
            let loaded = index::load(&all);
            newest = match (newest, loaded) {
                (Some(a), Some(b)) if b.number > a.number => Some(b),
                (None, other) | (other, None) => other,
                (a, _) => a,
            };
        }
        let new = |index, number, bytes| LoadedIndex {
            index,
            number,
            bytes,
            anew_bytes: bytes,
            ctime: None,
            said: HashMap::new(),
        };
        Ok(match newest {
            None => new(Index::default(), 0, 0),
            Some(Loaded { index, number, bytes }) => {
                // Behind that is what a kill cut in two.
                self.objects.truncate(ObjectId::log_index(ino, number), bytes)?;
                new(index, number, bytes)
            }
        })
    }

    /// Does a step of the index, and writes it down first. `written`: the file was written then; its times stay as they are
    /// without it.
    pub(super) fn enter(
        &self,
        ino: Ino,
        state: &mut LoadedIndex,
        entry: &Entry,
        written: Option<Written>,
    ) -> Result<()> {
        if state.number == 0 {
            self.write_anew(ino, state)?;
        }
        let object = state.object(ino);
        let stamp = |time: Timestamp| (time.sec, time.nsec);
        let times = written.map(|Written { mtime, ctime }| {
            let when = stamp(forebay_store::clock::stamp());
            Entry::Times(Times { mtime: stamp(mtime), ctime: stamp(ctime), when })
        });
        let mut frames = Vec::new();
        times.iter().chain([entry]).for_each(|entry| entry.put(&mut frames));
        let mode = WriteMode::default();
        let write = || self.objects.write(object, state.bytes, &frames, mode);
        let done = self.reclaim.with_reclaimed(write);
        if !matches!(done, Ok(count) if count == frames.len()) {
            self.objects.truncate(object, state.bytes)?;
            return Err(done.err().unwrap_or(Errno::ENOSPC));
        }
        step("log: step written down");
        if let Some(Written { ctime, .. }) = written {
            state.ctime = Some(ctime);
        }
        state.bytes += frames.len() as u64;
        times.iter().chain([entry]).for_each(|entry| state.index.apply(entry));
        if state.bytes > 2 * state.anew_bytes + INDEX_SLACK_BYTES
            && let Err(error) = self.write_anew(ino, state)
        {
            tracing::debug!(%ino, %error, "the index of a file in logs stays long");
        }
        Ok(())
    }

    /// Writes the index into the other one of its two places. The old one goes when the new one is whole.
    fn write_anew(&self, ino: Ino, state: &mut LoadedIndex) -> Result<()> {
        let number = state.number + 1;
        let all = state.index.to_file(number);
        let (old, new) = (state.object(ino), ObjectId::log_index(ino, number));
        self.objects.make_anew(new)?;
        step("log: place of an index made");
        let mode = WriteMode { sync: !self.volatile, ..WriteMode::default() };
        let written = self.reclaim.with_reclaimed(|| self.objects.write(new, 0, &all, mode));
        if !matches!(written, Ok(count) if count == all.len()) {
            self.objects.remove(new)?;
            return Err(written.err().unwrap_or(Errno::ENOSPC));
        }
        step("log: index written anew");
        if state.number > 0 {
            self.objects.remove(old)?;
        }
        (state.number, state.bytes) = (number, all.len() as u64);
        state.anew_bytes = state.bytes;
        Ok(())
    }
}
