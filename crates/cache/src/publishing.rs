//! The lock that keeps names and keys together: who compares a name or a number with a key shares it (a *look*), and a
//! drain that puts another inode under a name has it alone. So nobody meets the new inode under the old number.
//!
//! A look asks the PFS. On a slow PFS looks of several programs overlap, so that there is always one; a drain that waited for
//! all of them would wait for as long as they go on, with the lock of its file, and so would who changes that file. So a
//! look that begins gives way to a drain that waits, for [`GIVE_WAY`] at most: its thread may hold what another look needs, and
//! a PFS that hangs may hold up another look for good. A look within a look gives way to nobody: the drain waits for its
//! thread.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::time::Duration;

/// Longest that a look gives way to a drain that waits for others. One that is at work is waited for as long as it takes.
const GIVE_WAY: Duration = Duration::from_millis(100);

thread_local! {
    /// Looks that this thread has begun and not ended.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// The lock.
#[derive(Default)]
pub(super) struct Publishing(RwLock<()>);

/// A look, until it is dropped.
pub(super) struct Look<'a> {
    _shared: RwLockReadGuard<'a, ()>,
}

impl<'a> Look<'a> {
    fn begin(shared: RwLockReadGuard<'a, ()>) -> Look<'a> {
        LOOKS.set(LOOKS.get() + 1);
        Look { _shared: shared }
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        LOOKS.set(LOOKS.get() - 1);
    }
}

impl Publishing {
    /// A look, if no drain is in its way.
    pub(super) fn try_look(&self) -> Option<Look<'_>> {
        let shared = match LOOKS.get() {
            0 => self.0.try_read(),
            _ => self.0.try_read_recursive(),
        };
        shared.map(Look::begin)
    }

    /// A look.
    pub(super) fn look(&self) -> Look<'_> {
        self.look_giving_way(GIVE_WAY)
    }

    fn look_giving_way(&self, longest: Duration) -> Look<'_> {
        let in_turn = match LOOKS.get() {
            0 => self.0.try_read_for(longest),
            _ => None,
        };
        Look::begin(in_turn.unwrap_or_else(|| self.0.read_recursive()))
    }

    /// For a drain: no look is under way.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::Scope;

    /// A time that no test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Somebody looks, and a drain waits; what has its turn from now on is told by name.
    fn drain_waits<'scope>(
        lock: &'scope Publishing,
        scope: &'scope Scope<'scope, '_>,
        tell: &Sender<&'static str>,
    ) -> Look<'scope> {
        let look = lock.look();
        let tell = tell.clone();
        scope.spawn(move || {
            let _alone = lock.alone();
            tell.send("drain").expect("the test hears");
        });
        // The kind of lock says so from the moment when the drain waits for those who are in.
        while !lock.0.is_locked_exclusive() {
            std::thread::yield_now();
        }
        look
    }

    fn next(told: &Receiver<&'static str>) -> &'static str {
        told.recv_timeout(LONG).expect("somebody has the turn")
    }

    #[test]
    fn a_look_that_begins_gives_way_to_a_drain_that_waits() {
        let (lock, (tell, told)) = (Publishing::default(), channel());
        std::thread::scope(|scope| {
            let look = drain_waits(&lock, scope, &tell);
            let (lock, tell) = (&lock, &tell);
            scope.spawn(move || {
                let _look = lock.look_giving_way(LONG);
                tell.send("look").expect("the test hears");
            });
            // One that does not give way has its turn now.
            let early = told.recv_timeout(Duration::from_millis(20));
            drop(look);
            assert!(early.is_err(), "{early:?} came before the drain");
            assert_eq!((next(&told), next(&told)), ("drain", "look"));
        });
    }

    #[test]
    fn a_look_within_a_look_and_one_that_gave_way_long_enough_do_not_wait() {
        let (lock, (tell, told)) = (Publishing::default(), channel());
        std::thread::scope(|scope| {
            let look = drain_waits(&lock, scope, &tell);
            // In this thread, for which the drain waits: it would be for ever.
            drop(lock.look_giving_way(LONG));
            drop(lock.try_look().expect("it is within a look"));
            let (lock, tell) = (&lock, &tell);
            scope.spawn(move || {
                assert!(lock.try_look().is_none(), "a drain is in its way");
                let _look = lock.look_giving_way(Duration::ZERO);
                tell.send("look").expect("the test hears");
            });
            assert_eq!(next(&told), "look");
            drop(look);
            assert_eq!(next(&told), "drain");
            assert_eq!(LOOKS.get(), 0);
        });
    }
}
