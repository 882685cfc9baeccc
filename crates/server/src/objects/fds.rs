//! A bounded cache of open objects for served I/O.
//!
//! Invariant: never more than [`MAX_CACHED_FDS`] descriptors, however many files are open in
//! the mount (sites limit a process to some ten thousand). A full shard of the cache is
//! emptied: what is in use stays alive through its `Arc`, and reopening costs two microseconds.

use forebay_proto::{ObjectId, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

/// Most descriptors that the cache holds.
pub const MAX_CACHED_FDS: usize = 1024;
const SHARDS: usize = 16;

/// The cache.
pub(super) struct FdCache {
    shards: [Mutex<HashMap<ObjectId, Arc<File>>>; SHARDS],
}

impl FdCache {
    pub(super) fn new() -> FdCache {
        FdCache { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())) }
    }

    fn shard(&self, id: ObjectId) -> &Mutex<HashMap<ObjectId, Arc<File>>> {
        &self.shards[id.ino.0 as usize % SHARDS]
    }

    /// The cached descriptor, or the one that `open` makes.
    pub(super) fn get_or_open(
        &self,
        id: ObjectId,
        open: impl FnOnce() -> Result<File>,
    ) -> Result<Arc<File>> {
        let mut shard = self.shard(id).lock();
        if let Some(file) = shard.get(&id) {
            return Ok(file.clone());
        }
        let file = Arc::new(open()?);
        if shard.len() >= MAX_CACHED_FDS / SHARDS {
            shard.clear();
        }
        shard.insert(id, file.clone());
        Ok(file)
    }

    /// Drops the descriptor, so that a removed object's space is not held by the cache.
    pub(super) fn forget(&self, id: ObjectId) {
        self.shard(id).lock().remove(&id);
    }
}
