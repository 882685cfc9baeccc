//! How often clients reference each inode (the kernel's lookups), and which inodes without
//! names wait for their last reference to go.
//!
//! Invariant: an orphan is claimed for reclaiming exactly once: by who gave back the last
//! reference, or by who made it an orphan if there was none.

use forebay_proto::Ino;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 32;

#[derive(Default)]
struct Shard {
    counts: HashMap<Ino, u64, foldhash::fast::RandomState>,
    orphans: HashSet<Ino, foldhash::fast::RandomState>,
}

/// Reference counts. Bounded by what the kernel keeps in its caches.
pub(crate) struct Refs {
    shards: [Mutex<Shard>; SHARDS],
    orphan_count: AtomicUsize,
}

impl Refs {
    pub(crate) fn new() -> Refs {
        Refs {
            shards: std::array::from_fn(|_| Mutex::default()),
            orphan_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// One more reference.
    pub(crate) fn add(&self, ino: Ino) {
        *self.shard(ino).lock().counts.entry(ino).or_insert(0) += 1;
    }

    /// `count` fewer. True if the inode is now to be reclaimed.
    pub(crate) fn remove(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(held) = shard.counts.get_mut(&ino) else { return false };
        *held = held.saturating_sub(count);
        if *held > 0 {
            return false;
        }
        shard.counts.remove(&ino);
        self.claim(&mut shard, ino)
    }

    fn claim(&self, shard: &mut Shard, ino: Ino) -> bool {
        let claimed = shard.orphans.remove(&ino);
        if claimed {
            self.orphan_count.fetch_sub(1, Ordering::Relaxed);
        }
        claimed
    }

    /// The inode lost its last name. True if nothing references it: reclaim it now.
    pub(crate) fn orphaned(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        if shard.orphans.insert(ino) {
            self.orphan_count.fetch_add(1, Ordering::Relaxed);
        }
        !shard.counts.contains_key(&ino) && self.claim(&mut shard, ino)
    }

    /// The inode got a name again (O_TMPFILE and linkat).
    pub(crate) fn adopted(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        self.claim(&mut shard, ino);
    }

    /// True if a client references the inode. The root, which clients never look up, is not
    /// counted here.
    pub(crate) fn is_referenced(&self, ino: Ino) -> bool {
        self.shard(ino).lock().counts.contains_key(&ino)
    }

    /// Inodes without names that are still referenced.
    pub(crate) fn orphan_count(&self) -> usize {
        self.orphan_count.load(Ordering::Relaxed)
    }

    /// True if the inode has no name but is still referenced.
    pub(crate) fn is_orphan(&self, ino: Ino) -> bool {
        self.shard(ino).lock().orphans.contains(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_is_claimed_once() {
        let refs = Refs::new();
        let ino = Ino(77);
        assert!(!refs.is_referenced(ino));
        refs.add(ino);
        refs.add(ino);
        assert!(refs.is_referenced(ino));
        assert!(!refs.orphaned(ino));
        assert!(!refs.remove(ino, 1));
        assert!(refs.remove(ino, 1));
        assert!(!refs.remove(ino, 1));
        assert!(refs.orphaned(Ino(78)), "nobody holds it");
        refs.add(ino);
        assert!(!refs.orphaned(ino));
        refs.adopted(ino);
        assert!(!refs.remove(ino, 1), "it has a name again");
    }
}
