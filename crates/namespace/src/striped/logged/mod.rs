//! Files that are written as logs, at the server of their inode: the index, and what is done by it.
//!
//! Each mount appends to logs of its own on its own node's server (`client::remote::logged`) and says here what it
//! wrote when it publishes. The index (`forebay_log`) is an object beside the file's own objects, and these have what
//! was brought together since ([`whole`]): a range that is in the index hides what the objects have there.
//!
//! | module | what it does |
//! | --- | --- |
//! | `indexes` | the indexes, in memory and in their objects |
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
mod indexes;
mod publish;
#[cfg(test)]
mod tests;
mod whole;

pub(crate) use indexes::Indexes;
pub use publish::{Now, Published};
pub use whole::Mapped;
pub(super) use whole::{LogStat, ctime_of_index};

use super::keep::Keep;
use super::stripes::StripeObjects;
use crate::base::Base;
use crate::records::Records;
use crate::space::Space;
use forebay_log::{Index, LogId};
use forebay_proto::attr::Timestamp;
use forebay_proto::metrics::LogMetrics;
use forebay_proto::{Ino, ObjectId, Result};
use forebay_store::objects::Objects;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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
    state: Mutex<Option<LoadedIndex>>,
    /// As they were told last.
    figures: Mutex<Figures>,
    /// Some mount said how its log is.
    said: Condvar,
}

/// The index of a file that is used.
struct LoadedIndex {
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

impl LoadedIndex {
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

impl LoggedFile {
    /// Looks at the index, and then waits, unless that was enough, until some mount says how its log is, or for so long.
    /// `None`: it was enough; else whether nobody said anything.
    fn look_or_wait(
        &self,
        longest: Duration,
        look: impl FnOnce(Option<&LoadedIndex>) -> bool,
    ) -> Option<bool> {
        let mut state = self.state.lock();
        if look(state.as_ref()) {
            return None;
        }
        Some(self.said.wait_for(&mut state, longest).timed_out())
    }
}

/// Files in logs at the server of their inodes.
pub struct LoggedFiles {
    records: Arc<Records>,
    objects: Arc<Objects>,
    space: Arc<Space>,
    stripes: Arc<StripeObjects>,
    keep: Arc<Keep>,
    indexes: Arc<Indexes>,
    volatile: bool,
    writers: OnceLock<Arc<dyn LogWriters>>,
    counts: Counts,
}

impl LoggedFiles {
    /// Files with these indexes.
    pub(crate) fn new(
        base: &Base,
        stripes: &Arc<StripeObjects>,
        keep: &Arc<Keep>,
        indexes: &Arc<Indexes>,
    ) -> LoggedFiles {
        LoggedFiles {
            records: Arc::clone(&base.records),
            objects: Arc::clone(&base.objects),
            space: Arc::clone(&base.space),
            stripes: Arc::clone(stripes),
            keep: Arc::clone(keep),
            indexes: Arc::clone(indexes),
            volatile: base.volatile,
            writers: OnceLock::new(),
            counts: Counts::default(),
        }
    }

    /// From now on a client is asked for before its logs are waited for. Until then all are there.
    pub fn set_writers(&self, writers: Arc<dyn LogWriters>) {
        // Set once, by who has the sessions.
        let _first = self.writers.set(writers);
    }

    /// What files in logs did here, and have now; `None` without any.
    pub fn metrics(&self) -> Option<LogMetrics> {
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
        for figures in self.indexes.figures() {
            told.files += u64::from(figures.log_count > 0);
            told.log_count += figures.log_count;
            told.log_bytes += figures.log_bytes;
            told.live_bytes += figures.live_bytes;
            told.extents += figures.extents;
        }
        (told.log_count > 0 || told.begun > 0).then_some(told)
    }

    /// The same, after the logs of clients that have gone were read to their ends.
    fn with_whole_index<T>(
        &self,
        ino: Ino,
        work: impl FnOnce(&mut LoadedIndex) -> Result<T>,
    ) -> Result<T> {
        self.indexes.with(ino, |state| {
            self.end_left_logs(ino, state)?;
            work(state)
        })
    }
}
