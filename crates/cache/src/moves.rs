//! Changes of names that were begun, and that have ended: a path that was made before a rename, and is used
//! after it, leads nowhere.
//!
//! Invariant: a caller that finds nothing where the table of nodes said it is looks again as long as a change was under way
//! meanwhile, so that a file or directory that has a name is never reported as stale (ESTALE), and a drain never calls it a
//! conflict, because it got another one. Bounded by [`MOVE_TRIES`]: a PFS that hangs in a rename holds the
//! others up no longer than that. Used by whoever opens a node by its path, and by the drain.

use forebay_proto::{Errno, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often it is looked again, and after which pause if a rename is still under way.
const MOVE_TRIES: u32 = 200;
const MOVE_PAUSE: Duration = Duration::from_millis(5);

/// Counts of changes.
#[derive(Default)]
pub(super) struct Moves {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change under way: from before the PFS is asked until the table of nodes says so too.
pub(super) struct Moving<'a>(&'a Moves);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Moves {
    /// A change of names begins.
    pub(super) fn begin(&self) -> Moving<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Moving(self)
    }

    /// To be asked before names are looked at.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// True if no name was being changed by us since `ended` was asked.
    pub(super) fn are_none_since(&self, ended: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == ended
    }

    /// Runs `find` again as long as it finds something stale and names were moved meanwhile.
    pub(super) fn follow<T>(&self, find: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..MOVE_TRIES {
            let ended = self.ended();
            match find() {
                Err(Errno::ESTALE) if !self.are_none_since(ended) => {
                    if self.ended() == ended {
                        std::thread::sleep(MOVE_PAUSE);
                    }
                }
                other => return other,
            }
        }
        Err(Errno::ESTALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_moves_meanwhile_is_looked_for_again() {
        let moves = Moves::default();
        let tries = Cell::new(0);
        let find = || {
            tries.set(tries.get() + 1);
            // Renamed while the first look had the old path.
            if tries.get() == 1 {
                drop(moves.begin());
                return Err(Errno::ESTALE);
            }
            Ok(tries.get())
        };
        assert_eq!(moves.follow(find), Ok(2));
        let stale: Result<()> = moves.follow(|| {
            tries.set(tries.get() + 1);
            Err(Errno::ESTALE)
        });
        assert_eq!((stale, tries.get()), (Err(Errno::ESTALE), 3), "nothing moved");
        let _hangs = moves.begin();
        let stale: Result<()> = moves.follow(|| Err(Errno::ESTALE));
        assert_eq!(stale, Err(Errno::ESTALE), "but not for ever");
    }
}
