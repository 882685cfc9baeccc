//! Files that are written as logs, at the server of their inode: the index, and what is done by it.
//!
//! Each mount appends to logs of its own on its own node's server (`client::remote::logged`) and says here what it
//! wrote when it publishes. The index (`forebay_log`) is an object beside the file's own objects, and these have what
//! was brought together since ([`whole`]): a range that is in the index hides what the objects have there.
//!
//! | module | what it does |
//! | --- | --- |
//! | `ask` | mounts are asked to publish |
//! | `publish` | logs begin, publish, end and go |
//! | `whole` | the file as a whole: where a range is, reading, size and times, bringing together |
//!
//! Invariants
//! * What was published is in the index's object before it is answered, so a killed server finds it. What its writer
//!   did not publish is in the log; when the writer has gone the log is read to its end.
//! * The lock of a file's index is held while other servers are asked for data of its logs and objects. Answering such a
//!   question takes no lock of an index, so servers do not wait for each other in a circle.
//! * An index in memory is what is on flash, and may be dropped at any time ([`MAX_INDEXES`]).

mod ask;
mod publish;
#[cfg(test)]
mod tests;
mod whole;

pub use publish::{Now, Published};
pub use whole::Mapped;
pub(super) use whole::{LogStat, ctime_of_index};

use super::super::Namespace;
use forebay_failpoint::step;
use forebay_log::index::{self, Loaded};
use forebay_log::{Entry, Index, LogId, Times};
use forebay_proto::api::WriteMode;
use forebay_proto::attr::Timestamp;
use forebay_proto::metrics::LogMetrics;
use forebay_proto::{Errno, Ino, ObjectId, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Indexes in memory. Others are read again when they are needed.
const MAX_INDEXES: usize = 1024;
/// An index is written anew when its object has more than twice what that took, and so much beyond.
const INDEX_SLACK_BYTES: u64 = 256 << 10;
/// Largest object of an index; more is damage.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// The mounts that write logs, as the server of the inode knows them.
pub trait LogWriters: Send + Sync {
    /// True while a client may still write its logs.
    fn is_there(&self, client: u64) -> bool;
    /// Clients are to publish all that these logs of theirs have, and say so. Not waited for.
    fn ask(&self, ino: Ino, logs: &[Asked]);
}

/// A log of which all is to be published.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Whose.
    pub client: u64,
    /// Which.
    pub log: LogId,
    /// Its turn that was heard of last: a client that has published all since need not again.
    pub turn: u64,
}

/// What a namespace needs for such files.
#[derive(Default)]
pub(super) struct Logged {
    files: Mutex<HashMap<Ino, Arc<LoggedFile>>>,
    writers: OnceLock<Arc<dyn LogWriters>>,
    counts: Counts,
}

/// What was done since this process began; each only grows.
#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    publications: AtomicU64,
    records: AtomicU64,
    published_bytes: AtomicU64,
    read_logs: AtomicU64,
    together_bytes: AtomicU64,
}

/// What the index of one file has. Each figure is a sum over its logs, so it is made when somebody asks for it, not at each change.
#[derive(Clone, Copy, Default)]
struct Figures {
    log_count: u64,
    log_bytes: u64,
    live_bytes: u64,
    extents: u64,
}

impl Figures {
    fn of(index: &Index) -> Figures {
        Figures {
            log_count: index.log_count() as u64,
            log_bytes: index.log_bytes(),
            live_bytes: index.extents().bytes(),
            extents: index.extents().len() as u64,
        }
    }
}

#[derive(Default)]
struct LoggedFile {
    state: Mutex<Option<State>>,
    /// As they were told last.
    figures: Mutex<Figures>,
    /// Some mount said how its log is.
    said: Condvar,
}

/// The index of a file that is used.
struct State {
    index: Index,
    /// Number of the object that it is in; 0 before there is one.
    number: u64,
    /// Bytes of it.
    bytes: u64,
    /// Bytes that it had when it was written anew.
    anew_bytes: u64,
    /// The time of change that index and objects show; `None`: the objects are to be asked.
    ctime: Option<Timestamp>,
    /// What mounts said of their logs, since this server reads the index.
    said: HashMap<LogId, Said>,
}

/// What a mount said of its log last.
#[derive(Clone, Copy, Default)]
struct Said {
    turn: u64,
    /// All of it is published, and the mount asks before it writes again.
    clean: bool,
    /// How often that became so.
    cleaned: u64,
    /// The latest time in the index when all of the log was published last: what comes next from there is later.
    floor_ns: u64,
}

/// When a step changed the file, as it is shown.
#[derive(Clone, Copy)]
struct Written {
    mtime: Timestamp,
    ctime: Timestamp,
}

impl Written {
    fn now() -> Written {
        let now = forebay_store::clock::stamp();
        Written { mtime: now, ctime: now }
    }
}

impl State {
    fn object(&self, ino: Ino) -> ObjectId {
        ObjectId::log_index(ino, self.number)
    }
}

impl LoggedFile {
    /// What its index has now, or had when this was told last: the lock may be held while other servers are asked.
    fn figures(&self) -> Figures {
        let mut told = self.figures.lock();
        if let Some(state) = self.state.try_lock().as_deref().and_then(Option::as_ref) {
            *told = Figures::of(&state.index);
        }
        *told
    }
}

impl Logged {
    fn of(&self, ino: Ino) -> Arc<LoggedFile> {
        let mut files = self.files.lock();
        if files.len() >= MAX_INDEXES && !files.contains_key(&ino) {
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        Arc::clone(files.entry(ino).or_default())
    }

    fn forget(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }

    fn metrics(&self) -> Option<LogMetrics> {
        let counts = &self.counts;
        let mut told = LogMetrics {
            begun: counts.begun.load(Relaxed),
            publications: counts.publications.load(Relaxed),
            records: counts.records.load(Relaxed),
            published_bytes: counts.published_bytes.load(Relaxed),
            read_logs: counts.read_logs.load(Relaxed),
            together_bytes: counts.together_bytes.load(Relaxed),
            ..LogMetrics::default()
        };
        let files: Vec<_> = self.files.lock().values().map(Arc::clone).collect();
        for figures in files.iter().map(|file| file.figures()) {
            told.files += u64::from(figures.log_count > 0);
            told.log_count += figures.log_count;
            told.log_bytes += figures.log_bytes;
            told.live_bytes += figures.live_bytes;
            told.extents += figures.extents;
        }
        (told.log_count > 0 || told.begun > 0).then_some(told)
    }
}

impl Namespace {
    /// From now on a client is asked for before its logs are waited for. Until then all are there.
    pub fn set_log_writers(&self, writers: Arc<dyn LogWriters>) {
        // Set once, by who has the sessions.
        let _first = self.striped.logged.writers.set(writers);
    }

    /// What files in logs did here, and have now; `None` without any.
    pub fn log_metrics(&self) -> Option<LogMetrics> {
        self.striped.logged.metrics()
    }

    /// Works with the index of a file, which nobody else changes meanwhile.
    fn with_index<T>(&self, ino: Ino, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let file = self.striped.logged.of(ino);
        let mut state = file.state.lock();
        let state = match &mut *state {
            Some(state) => state,
            none => none.insert(self.load_index(ino)?),
        };
        work(state)
    }

    /// The same, after the logs of clients that have gone were read to their ends.
    fn with_whole_index<T>(
        &self,
        ino: Ino,
        work: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        self.with_index(ino, |state| {
            self.end_left_logs(ino, state)?;
            work(state)
        })
    }

    fn load_index(&self, ino: Ino) -> Result<State> {
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
        let new = |index, number, bytes| State {
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
    fn enter(
        &self,
        ino: Ino,
        state: &mut State,
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
    fn write_anew(&self, ino: Ino, state: &mut State) -> Result<()> {
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
