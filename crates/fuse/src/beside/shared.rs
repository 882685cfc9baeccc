//! Directories in which programs change names beside the kernel, and whose names the kernel may believe.
//!
//! Invariant: an answer that lets the kernel believe names of a directory is noted before it is sent, under the lock of
//! [`crate::lifetime`]; a directory is marked as shared before what was noted is recalled. So of an answer and a change
//! that meet, either the answer has no lifetime, or the recall comes after it.

use forebay_proto::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a directory is shared after the last change of its names here.
pub(super) const SHARED_FOR: Duration = Duration::from_secs(1);
/// Locks that the table is spread over.
const SHARDS: usize = 16;
/// Most directories in one shard; when it is full, those that nothing speaks for go.
const MAX_PER_SHARD: usize = 1 << 12;

#[derive(Clone, Copy, Default)]
struct Dir {
    /// Of the recall that its names were told after; 0: they were not told.
    believed_since: u64,
    /// Shared until then.
    shared_until: Option<Instant>,
    /// What was told before it was shared is recalled.
    recalled: bool,
}

impl Dir {
    fn is_shared(&self, now: Instant) -> bool {
        self.shared_until.is_some_and(|until| now < until)
    }
}

/// The table.
pub(super) struct Shared {
    shards: [Mutex<HashMap<Ino, Dir>>; SHARDS],
    /// Counts recalls of all names.
    epoch: AtomicU64,
    /// One directory becomes shared at a time.
    recall: Mutex<()>,
    /// The kernel cannot drop all names at once.
    no_names: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            shards: std::array::from_fn(|_| Mutex::default()),
            epoch: AtomicU64::new(1),
            recall: Mutex::new(()),
            no_names: AtomicBool::new(false),
        }
    }

    fn shard(&self, dir: Ino) -> &Mutex<HashMap<Ino, Dir>> {
        &self.shards[(dir.0 ^ (dir.0 >> 48)) as usize % SHARDS]
    }

    pub(super) fn never_believe_names(&self) {
        self.no_names.store(true, Ordering::Release);
    }

    /// How long names of a directory may be believed; noted if they may.
    pub(super) fn entry_limit(&self, dir: Ino) -> Duration {
        if self.no_names.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        let now = Instant::now();
        let mut shard = self.shard(dir).lock();
        if shard.len() >= MAX_PER_SHARD {
            shard.retain(|_, dir| dir.is_shared(now) || dir.believed_since == epoch);
            if shard.len() >= MAX_PER_SHARD && !shard.contains_key(&dir) {
                return Duration::ZERO;
            }
        }
        let entry = shard.entry(dir).or_default();
        if entry.is_shared(now) {
            return Duration::ZERO;
        }
        *entry = Dir { believed_since: epoch, ..Dir::default() };
        Duration::MAX
    }

    /// Whether a directory is shared now.
    pub(super) fn is_shared(&self, dir: Ino) -> bool {
        let shard = self.shard(dir).lock();
        shard.get(&dir).is_some_and(|dir| dir.is_shared(Instant::now()))
    }

    /// Whether the kernel is told names of a directory with a lifetime now.
    pub(super) fn may_be_believed(&self, dir: Ino) -> bool {
        !self.no_names.load(Ordering::Acquire) && !self.is_shared(dir)
    }

    /// All names are about to be recalled: what is told from now on is told after it.
    pub(super) fn recalled(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks a directory as shared. If it was not, `recall` is called, and told whether the kernel may believe names
    /// of it; when this returns, that was done, by this thread or another.
    pub(super) fn begin(&self, dir: Ino, recall: impl FnOnce(bool)) {
        if self.mark(dir) {
            return;
        }
        let _one = self.recall.lock();
        if self.mark(dir) {
            return;
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        // What was told under way is noted before `recall` waits for it to arrive, so it is asked for there.
        let believed = {
            let shard = self.shard(dir).lock();
            shard.get(&dir).is_none_or(|dir| dir.believed_since == epoch)
        };
        recall(believed);
        if let Some(entry) = self.shard(dir).lock().get_mut(&dir) {
            entry.recalled = true;
        }
    }

    /// Marks; true if it was shared, and what was told before recalled.
    fn mark(&self, dir: Ino) -> bool {
        let now = Instant::now();
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut shard = self.shard(dir).lock();
        if shard.len() >= MAX_PER_SHARD {
            // What stays was changed in the last second, or may be believed: both are bounded by what is asked for.
            shard.retain(|_, dir| dir.is_shared(now) || dir.believed_since == epoch);
        }
        let entry = shard.entry(dir).or_default();
        let was = entry.is_shared(now);
        entry.recalled &= was;
        entry.shared_until = Some(now + SHARED_FOR);
        entry.recalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_recalled_once_while_it_is_shared_and_again_after_it_was_believed() {
        let shared = Shared::new();
        let dir = Ino(5);
        assert_eq!(shared.entry_limit(dir), Duration::MAX);
        let mut told = Vec::new();
        shared.begin(dir, |believed| {
            shared.recalled();
            told.push(believed);
        });
        shared.begin(dir, |believed| told.push(believed));
        assert_eq!(told, [true], "once");
        assert_eq!(shared.entry_limit(dir), Duration::ZERO);
        let later = Instant::now() - Duration::from_millis(1);
        shared.shard(dir).lock().get_mut(&dir).unwrap().shared_until = Some(later);
        assert!(!shared.is_shared(dir));
        shared.begin(dir, |believed| told.push(believed));
        assert_eq!(told, [true, false], "nothing was told since");
        shared.shard(dir).lock().get_mut(&dir).unwrap().shared_until = Some(later);
        assert_eq!(shared.entry_limit(dir), Duration::MAX);
        shared.begin(dir, |believed| told.push(believed));
        assert_eq!(told, [true, false, true]);
    }
}
