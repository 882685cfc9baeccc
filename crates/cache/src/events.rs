//! What a cache leaves in the buffer's event record: files drained, drains that failed, conflicts,
//! data evicted. A drained file is recorded there before the cache's own record has it: a kill in between makes
//! the event come twice, never not at all. Evictions change nothing that is only here, and there may be
//! many: what went within [`EVICTED_TELL_AFTER`] is one event, which a kill may take.

use super::file::{CacheFile, FileState};
use super::lost::LOST;
use super::map::{BLOCK_BYTES, bits};
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

/// CRC32C of a file of `size` bytes, of which the PFS's content counted up to `limit`, if each of its
/// blocks is here with a checksum or is a hole.
pub(super) fn whole_crc(state: &FileState, size: u64, limit: u64) -> Option<u32> {
    let mut whole = Sum::default();
    for (block, entry) in state.map.blocks() {
        let start = block * BLOCK_BYTES;
        if start >= size {
            break;
        }
        let known = entry.has(bits::PRESENT) && !entry.has(bits::OPEN);
        let inside = (size - start).min(BLOCK_BYTES);
        if !known || u64::from(entry.len) > inside || !whole.hole_to(start, limit) {
            return None;
        }
        whole.push(entry.crc, u64::from(entry.len));
        // Behind what the checksum covers there are zeros.
        whole.zeros(inside - u64::from(entry.len));
    }
    whole.hole_to(size, limit).then_some(whole.crc)
}

/// A checksum of bytes that come one after the other, by the checksums of parts.
#[derive(Default)]
struct Sum {
    crc: u32,
    length: u64,
}

fn combine(first: u32, second: u32, second_length: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, first.into(), second.into(), second_length) as u32
}

impl Sum {
    fn push(&mut self, crc: u32, length: u64) {
        if length > 0 {
            self.crc = combine(self.crc, crc, length);
            self.length += length;
        }
    }

    /// By doubling: a hole may be large.
    fn zeros(&mut self, length: u64) {
        let mut piece = super::map::crc(&[0]);
        let mut piece_length = 1;
        let mut left = length;
        while left > 0 {
            if left & 1 == 1 {
                self.push(piece, piece_length);
            }
            left >>= 1;
            if left > 0 {
                piece = combine(piece, piece, piece_length);
                piece_length *= 2;
            }
        }
    }

    /// Blocks without an entry are holes where nothing of the PFS counts. False if not.
    fn hole_to(&mut self, end: u64, limit: u64) -> bool {
        if self.length < end {
            if self.length < limit {
                return false;
            }
            self.zeros(end - self.length);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::crc;
    use super::*;

    #[test]
    fn a_checksum_of_parts_and_holes_is_that_of_the_whole() {
        let mut bytes = vec![7u8; 1000];
        let mut sum = Sum::default();
        sum.push(crc(&bytes), 1000);
        bytes.resize(1000 + 12_345, 0);
        assert!(!sum.hole_to(13_345, 1001), "the PFS has something there");
        assert!(sum.hole_to(13_345, 1000));
        bytes.extend_from_slice(b"end");
        sum.push(crc(b"end"), 3);
        assert_eq!((sum.crc, sum.length), (crc(&bytes), bytes.len() as u64));
        let mut none = Sum::default();
        assert!(none.hole_to(0, 0));
        assert_eq!(none.crc, crc(b""));
    }
}
