//! What a cache leaves in the buffer's event record: files drained, drains that failed, conflicts,
//! data evicted. A drained file is recorded there before the cache's own record has it: a kill in between makes
//! the event come twice, never not at all. Evictions change nothing that is only here, and there may be
//! many: what went within [`EVICTED_TELL_AFTER`] is one event, which a kill may take.

use super::file::{CacheFile, FileState};
use super::lost::LOST;
use super::read_ahead::Wishes;
use forebay_activity::Activity;
use forebay_proto::Ino;
use forebay_proto::activity::ActivityKind;
use forebay_proto::control::{PathBytes, Verify};
use forebay_proto::events::{EventKind, Happened};
use forebay_store::events::EventLog;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long evictions are gathered for one event.
const EVICTED_TELL_AFTER: Duration = Duration::from_secs(10);
/// Most files that are told apart in it; with more it is told earlier.
const EVICTED_FILES_MAX: usize = 4_096;

/// Where it is told.
pub struct CacheEvents {
    /// The record.
    pub log: Arc<EventLog>,
    /// Stands before paths of the buffer.
    pub prefix: Vec<u8>,
    /// The buffer's owner, whose doings these are.
    pub owner_uid: u32,
    /// What is done with files, for who watches.
    pub activity: Arc<Activity>,
}

impl CacheEvents {
    fn of(&self, event: EventKind, path: &[u8]) -> Happened {
        let rooted = [b"/", path].concat();
        let path = PathBytes::in_buffer(&self.prefix, &rooted);
        Happened { path: Some(path), ..Happened::of(event, self.owner_uid) }
    }
}

/// Tells what happens to the files of one cache.
pub(crate) struct Events {
    events: Option<CacheEvents>,
    activity: Arc<Activity>,
    evictions: Mutex<Evictions>,
    wishes: Arc<Wishes>,
}

impl Events {
    /// Told to nobody if `events` is none. `wishes` wakes who tells of evictions later.
    pub fn new(
        events: Option<CacheEvents>,
        activity: Arc<Activity>,
        wishes: Arc<Wishes>,
    ) -> Events {
        Events { events, activity, evictions: Mutex::default(), wishes }
    }
}

/// What was evicted and not told yet.
#[derive(Default)]
struct Evictions {
    since: Option<Instant>,
    bytes: u64,
    files: HashSet<Ino>,
    /// The path, as long as it is only one file.
    path: Vec<u8>,
}

impl Events {
    /// Dirty bytes of a file are on the PFS, fsynced and verified; with the CRC of all of it where
    /// that is known.
    pub(crate) fn tell_drained(
        &self,
        path: &[u8],
        bytes: u64,
        verified: Option<Verify>,
        crc32c: Option<u32>,
    ) {
        let Some(events) = &self.events else { return };
        let drained = events.of(EventKind::Drained, path);
        events.log.record(&[Happened { bytes: Some(bytes), verified, crc32c, ..drained }]);
    }

    /// Clean data of a file went.
    pub(crate) fn note_evicted(&self, file: &CacheFile, state: &FileState, bytes: u64) {
        let kind = ActivityKind::Evict;
        self.activity.happened(kind, file.number(), (0, bytes), bytes as i64);
        if self.events.is_none() || bytes == 0 {
            return;
        }
        let full = {
            let mut evicted = self.evictions.lock();
            if evicted.since.is_none() {
                evicted.since = Some(Instant::now());
                self.wishes.look_later();
            }
            evicted.bytes += bytes;
            if evicted.files.is_empty() {
                evicted.path = state.record.path.as_bytes().to_vec();
            }
            evicted.files.insert(file.ino);
            evicted.files.len() >= EVICTED_FILES_MAX
        };
        if full {
            self.tell_evicted(true);
        }
    }

    /// Tells what was evicted, if it was a while ago or must be `now`; in how long it is to be told else.
    pub(crate) fn tell_evicted(&self, now: bool) -> Option<Duration> {
        let events = self.events.as_ref()?;
        let told = {
            let mut evicted = self.evictions.lock();
            let left = EVICTED_TELL_AFTER.saturating_sub(evicted.since?.elapsed());
            if !now && !left.is_zero() {
                return Some(left);
            }
            std::mem::take(&mut *evicted)
        };
        let files = told.files.len() as u64;
        let event = match files {
            1 => events.of(EventKind::Evicted, &told.path),
            _ => Happened::of(EventKind::Evicted, events.owner_uid),
        };
        events.log.record(&[Happened { bytes: Some(told.bytes), files: Some(files), ..event }]);
        None
    }

    /// A file could not be drained. Tries after the first that fail alike are not told again.
    pub(crate) fn tell_not_drained(&self, file: &CacheFile, errno: i32, why: &str) {
        let Some(events) = &self.events else { return };
        let (path, told) = {
            let state = file.state.lock();
            let told =
                state.record.failure.as_ref().is_some_and(|f| f.errno == errno && f.what == why);
            (state.record.path.clone(), told)
        };
        if !told {
            let failed = events.of(EventKind::Failed, path.as_bytes());
            let note = Some(format!("drain: {why}"));
            events.log.record(&[Happened { errno: Some(errno), note, ..failed }]);
        }
    }

    /// Data of a file is gone from flash that the PFS does not have.
    pub(crate) fn tell_lost(&self, path: &[u8]) {
        let Some(events) = &self.events else { return };
        let failed = events.of(EventKind::Failed, path);
        let note = Some(LOST.into());
        events.log.record(&[Happened { errno: Some(libc::EIO), note, ..failed }]);
    }
}
