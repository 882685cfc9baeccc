//! A bounded cache of open objects for served I/O.
//!
//! Invariant: all caches of the process together never hold more than [`descriptors::max_cached`] descriptors and
//! one for each shard, however many files are open in the mounts (sites limit a process, some to a
//! thousand). A shard that may not grow is emptied: what is in use stays alive through its `Arc`, and
//! reopening costs two microseconds.

use crate::descriptors;
use forebay_proto::{Errno, ObjectId, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// What all caches of this process hold.
static HELD: AtomicUsize = AtomicUsize::new(0);

type Shard = HashMap<ObjectId, Arc<File>>;

/// The cache.
pub(super) struct FdCache {
    shards: [Mutex<Shard>; SHARDS],
    max: usize,
    held: &'static AtomicUsize,
}

impl FdCache {
    pub(super) fn new() -> FdCache {
        FdCache::bounded(descriptors::max_cached(), &HELD)
    }

    fn bounded(max: usize, held: &'static AtomicUsize) -> FdCache {
        FdCache { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())), max, held }
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[id.ino.0 as usize % SHARDS]
    }

    /// The cached descriptor, or the one that `open` makes. Where the process has no descriptor left,
    /// all that are cached here go first.
    pub(super) fn get_or_open(
        &self,
        id: ObjectId,
        open: impl Fn() -> Result<File>,
    ) -> Result<Arc<File>> {
        let mut shard = self.shard(id).lock();
        if let Some(file) = shard.get(&id) {
            return Ok(file.clone());
        }
        let file = match open() {
            Err(Errno::EMFILE | Errno::ENFILE) => {
                self.empty(&mut shard);
                for other in &self.shards {
                    // One that is held is in use, and its holder may be waiting for this one.
                    if let Some(mut other) = other.try_lock() {
                        self.empty(&mut other);
                    }
                }
                open()?
            }
            opened => opened?,
        };
        let file = Arc::new(file);
        if shard.len() >= self.max.div_ceil(SHARDS) || self.held.load(Ordering::Relaxed) >= self.max
        {
            self.empty(&mut shard);
        }
        shard.insert(id, file.clone());
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(file)
    }

    fn empty(&self, shard: &mut Shard) {
        self.held.fetch_sub(shard.len(), Ordering::Relaxed);
        shard.clear();
    }

    /// Drops the descriptor, so that a removed object's space is not held by the cache.
    pub(super) fn forget(&self, id: ObjectId) {
        if self.shard(id).lock().remove(&id).is_some() {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for FdCache {
    fn drop(&mut self) {
        for shard in &self.shards {
            self.empty(&mut shard.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Ino;
    use std::cell::Cell;

    fn null() -> Result<File> {
        File::open("/dev/null").map_err(Errno::from)
    }

    fn get(cache: &FdCache, ino: u64) {
        cache.get_or_open(ObjectId { ino: Ino(ino), stripe: 0 }, null).unwrap();
    }

    #[test]
    fn all_caches_of_a_process_share_one_bound() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let max = 64;
        let (one, two) = (FdCache::bounded(max, &COUNT), FdCache::bounded(max, &COUNT));
        let really =
            |cache: &FdCache| -> usize { cache.shards.iter().map(|s| s.lock().len()).sum() };
        for ino in 0..1000 {
            get(&one, ino);
            assert!(really(&one) <= max, "{} after {ino}", really(&one));
        }
        for ino in 0..1000 {
            get(&two, ino);
            let all = really(&one) + really(&two);
            assert!(all <= max + SHARDS, "{all} after {ino}");
            assert_eq!(all, COUNT.load(Ordering::Relaxed));
        }
        one.forget(ObjectId { ino: Ino(999), stripe: 0 });
        drop(one);
        assert_eq!(really(&two), COUNT.load(Ordering::Relaxed));
        drop(two);
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_a_descriptor_left_those_that_are_kept_go_first() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let cache = FdCache::bounded(64, &COUNT);
        for ino in 0..40 {
            get(&cache, ino);
        }
        let tries = Cell::new(0);
        let opened = cache.get_or_open(ObjectId { ino: Ino(99), stripe: 0 }, || {
            tries.set(tries.get() + 1);
            match COUNT.load(Ordering::Relaxed) {
                0 => null(),
                _ => Err(Errno::EMFILE),
            }
        });
        assert!(opened.is_ok() && tries.get() == 2, "{:?} after {}", opened.err(), tries.get());
    }
}
