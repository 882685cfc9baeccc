//! Directories that somebody else has moved to another directory, and whose old names the kernel may still have.
//!
//! A kernel that knows a directory at one place, and is told by the answer to a lookup that it is at another, takes it from
//! there. In the lookup of a rename it does not: that is ESTALE for a name that is there, and so is its second try, which
//! follows at once. So an answer that has found a directory waits until the kernel has heard of the old names: while the
//! thread that tells it runs or waits for a processor, [`PLACE_MAX`] at most; if that sleeps in the kernel, [`BUSY_MAX`].
//!
//! Invariants: an answer in the directory of such a name waits for nothing, since its request may hold the lock that the
//! notification waits for. A name is waited for no longer than [`RECENT`] after its move. Called by [`crate::notify`], which
//! tells the kernel, and by [`crate::ops::names`].

use crate::notify::sleeps;
use forebay_proto::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Longest that an answer waits; a rename asks twice.
const PLACE_MAX: Duration = Duration::from_secs(1);
/// Longest that it waits for a thread that waits for a lock itself: in vain, if the rename has that locked, too.
const BUSY_MAX: Duration = Duration::from_millis(200);
/// So often it is looked whether that thread sleeps.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// So long after a move answers wait for it.
const RECENT: Duration = Duration::from_secs(3);
/// Most names; what comes beyond is not waited for.
const MAX_NAMES: usize = 1 << 12;

/// A directory, and a name in it.
type Name = (Ino, Box<[u8]>);

/// Those of one mount.
#[derive(Default)]
pub(crate) struct Moves {
    /// There is one at all: most answers look no further.
    is_any: AtomicBool,
    /// When each was moved away.
    names: Mutex<HashMap<Name, Instant>>,
    changed: Condvar,
    /// The thread that tells the kernel; 0 before it runs.
    teller: AtomicI32,
}

impl Moves {
    /// This thread tells the kernel.
    pub(crate) fn told_by(&self, thread: i32) {
        self.teller.store(thread, Ordering::Release);
    }

    /// A directory had this name; the kernel is to be told.
    pub(crate) fn told(&self, dir: Ino, name: &[u8]) {
        let mut names = self.names.lock();
        if names.len() < MAX_NAMES {
            names.insert((dir, name.into()), Instant::now());
            self.is_any.store(true, Ordering::Release);
        }
    }

    /// The kernel has heard of these names.
    pub(crate) fn heard<'n>(&self, gone: impl Iterator<Item = &'n Name>) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let mut names = self.names.lock();
        for name in gone {
            names.remove(name);
        }
        self.is_any.store(!names.is_empty(), Ordering::Release);
        drop(names);
        self.changed.notify_all();
    }

    /// The kernel hears of no single names any more.
    pub(crate) fn forget(&self) {
        self.names.lock().clear();
        self.is_any.store(false, Ordering::Release);
        self.changed.notify_all();
    }

    /// A directory was found in `dir`: returns when the kernel has it nowhere else, as far as that can be waited for.
    pub(crate) fn wait(&self, dir: Ino) {
        if self.is_any.load(Ordering::Acquire) {
            self.wait_for(dir, BUSY_MAX, PLACE_MAX);
        }
    }

    fn wait_for(&self, dir: Ino, busy_max: Duration, longest: Duration) {
        let begun = Instant::now();
        let (busy_until, until) = (begun + busy_max, begun + longest);
        let mut names = self.names.lock();
        loop {
            names.retain(|_, moved| moved.elapsed() < RECENT);
            self.is_any.store(!names.is_empty(), Ordering::Release);
            let may_hold_it_up = names.keys().any(|(old, _)| *old == dir);
            let now = Instant::now();
            let is_late = now >= until || (now >= busy_until && self.is_busy());
            if names.is_empty() || may_hold_it_up || is_late {
                return;
            }
            let look = busy_until.max(now + LOOK_PAUSE).min(until);
            self.changed.wait_until(&mut names, look);
        }
    }

    /// The thread that tells the kernel waits there for somebody else.
    fn is_busy(&self) -> bool {
        let teller = self.teller.load(Ordering::Acquire);
        teller == 0 || sleeps(teller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn name(dir: u64, name: &str) -> Name {
        (Ino(dir), Box::from(name.as_bytes()))
    }

    #[test]
    fn an_answer_waits_until_the_old_names_are_heard_of() {
        let moves = Moves::default();
        moves.wait(Ino(9));
        moves.told(Ino(5), b"d");
        moves.told(Ino(6), b"e");
        let last = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                moves.heard([name(5, "d")].iter());
                last.store(true, Ordering::Release);
                moves.heard([name(6, "e"), name(6, "other")].iter());
            });
            moves.wait_for(Ino(9), LONG, LONG);
            assert!(last.load(Ordering::Acquire), "one of them was not heard of");
        });
        assert!(!moves.is_any.load(Ordering::Acquire));
    }

    #[test]
    fn who_may_hold_the_kernel_up_does_not_wait_for_it() {
        const SHORT: Duration = Duration::from_millis(20);
        let moves = Moves::default();
        moves.told(Ino(5), b"d");
        let begun = Instant::now();
        moves.wait_for(Ino(5), LONG, LONG);
        assert!(begun.elapsed() < LONG, "it has the lock that is waited for");
        let begun = Instant::now();
        moves.wait_for(Ino(9), SHORT, LONG);
        let waited = begun.elapsed();
        assert!(waited >= SHORT && waited < LONG, "others wait, and not for who sleeps");
        // This thread runs, so it is waited for.
        moves.told_by(rustix::thread::gettid().as_raw_nonzero().get());
        let begun = Instant::now();
        moves.wait_for(Ino(9), Duration::ZERO, SHORT);
        assert!(begun.elapsed() >= SHORT);
        moves.forget();
        assert!(!moves.is_any.load(Ordering::Acquire));
    }

    #[test]
    fn what_was_moved_long_ago_is_not_waited_for() {
        let moves = Moves::default();
        let long_ago = Instant::now().checked_sub(RECENT).unwrap();
        moves.names.lock().insert(name(5, "d"), long_ago);
        moves.wait_for(Ino(9), LONG, LONG);
        assert!(moves.names.lock().is_empty());
    }
}
