//! What a cache leaves in the buffer's event record: files drained, drains that failed, conflicts. A
//! drained file is told before the cache's own record has it: a kill in between makes it be told
//! again, never left out.

use super::CacheFs;
use super::file::CacheFile;
use crate::events::EventLog;
use forebay_proto::control::{PathBytes, Verify};
use forebay_proto::events::{EventKind, Happened};
use std::sync::Arc;

/// Where it is told.
pub struct CacheEvents {
    /// The record.
    pub log: Arc<EventLog>,
    /// Stands before paths of the buffer.
    pub prefix: Vec<u8>,
    /// The buffer's owner, whose doings these are.
    pub owner_uid: u32,
}

impl CacheEvents {
    fn of(&self, event: EventKind, path: &[u8]) -> Happened {
        let rooted = [b"/", path].concat();
        let path = PathBytes::in_buffer(&self.prefix, &rooted);
        Happened { path: Some(path), ..Happened::of(event, self.owner_uid) }
    }
}

impl CacheFs {
    /// Dirty bytes of a file are on the PFS, fsynced and verified.
    pub(super) fn tell_drained(&self, path: &[u8], bytes: u64, verified: Option<Verify>) {
        let Some(events) = &self.events else { return };
        let drained = events.of(EventKind::Drained, path);
        events.log.record(&[Happened { bytes: Some(bytes), verified, ..drained }]);
    }

    /// A file could not be drained. Tries after the first that fail alike are not told again.
    pub(super) fn tell_not_drained(&self, file: &CacheFile, errno: i32, why: &str) {
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

    /// What is counted.
    pub fn metrics(&self) -> forebay_proto::metrics::CacheMetrics {
        let [hit_bytes, filled_bytes, _, evicted_bytes, drained_bytes] = self.counters.bytes();
        let root = forebay_proto::Caller::root();
        let tree = self.tree_state(&root, b"/").unwrap_or_default();
        forebay_proto::metrics::CacheMetrics {
            dirty_bytes: tree.dirty_bytes,
            hit_bytes,
            filled_bytes,
            drained_bytes,
            evicted_bytes,
            failed_files: tree.failed,
            conflicts: tree.conflicts,
            drain_bytes_per_s: tree.rate_bytes_per_s,
            drain_eta_s: tree.eta_s,
        }
    }
}
