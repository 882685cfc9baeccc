//! The lock that keeps names and keys together: a lookup that compares a name or a number with a key shares it (a *look*), and a
//! drain that puts another inode under a name holds it alone. So nobody meets the new inode under the old number.
//!
//! A look asks the PFS. On a slow PFS looks of several programs overlap, so that there is always one; a drain that waited for
//! all of them would wait for as long as they go on, with the lock of its file, and so would who changes that file. So a
//! look that begins gives way to a drain that waits, for [`GIVE_WAY`] at most: its thread may hold what another look needs, and
//! a PFS that hangs may hold up another look for good. A look within a look gives way to nobody: the drain waits for its
//! thread.
//!
//! Where each call on the PFS takes longer than [`GIVE_WAY`] there would be a look at any time all the same. So a drain that has
//! waited for [`LONG_WAIT`] is given [`GIVE_WAY_LATE`], for as long as it is likely to help ([`LATE_FOR`]: then a look hangs). It
//! gives up after [`ALONE_MAX`], lets go of its file, and is tried again.

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Longest that a look gives way to a drain that waits for others. One that is at work is waited for as long as it takes.
const GIVE_WAY: Duration = Duration::from_millis(100);
/// The same, once a drain has waited for so long, and for so long after that.
const GIVE_WAY_LATE: Duration = Duration::from_secs(1);
const LONG_WAIT: Duration = Duration::from_millis(500);
const LATE_FOR: Duration = Duration::from_secs(2);
/// Longest that a drain waits: who changes names or attributes of its file waits for it.
const ALONE_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// Looks that this thread has begun and not ended.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// The lock.
#[derive(Default)]
pub(super) struct Publishing {
    names: RwLock<()>,
    /// When the drains that wait began to. No more than there are workers.
    waiting: Mutex<Vec<Instant>>,
}

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
            0 => self.names.try_read(),
            _ => self.names.try_read_recursive(),
        };
        shared.map(Look::begin)
    }

    /// A look.
    pub(super) fn look(&self) -> Look<'_> {
        let give_way = || self.look_giving_way(self.gives_way(Instant::now()));
        self.try_look().unwrap_or_else(give_way)
    }

    /// How long a look gives way that begins now.
    fn gives_way(&self, now: Instant) -> Duration {
        let first = self.waiting.lock().iter().min().copied();
        let waited = first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        match (LONG_WAIT..LONG_WAIT + LATE_FOR).contains(&waited) {
            true => GIVE_WAY_LATE,
            false => GIVE_WAY,
        }
    }

    fn look_giving_way(&self, longest: Duration) -> Look<'_> {
        let in_turn = match LOOKS.get() {
            0 => self.names.try_read_for(longest),
            _ => None,
        };
        Look::begin(in_turn.unwrap_or_else(|| self.names.read_recursive()))
    }

    /// For a drain: no look is under way. `None` after [`ALONE_MAX`].
    pub(super) fn alone(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.alone_within(ALONE_MAX)
    }

    fn alone_within(&self, longest: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        let since = Instant::now();
        self.waiting.lock().push(since);
        let alone = self.names.try_write_for(longest);
        let mut waiting = self.waiting.lock();
        if let Some(place) = waiting.iter().position(|other| *other == since) {
            waiting.swap_remove(place);
        }
        alone
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
            let _alone = lock.alone().expect("its turn comes");
            tell.send("drain").expect("the test hears");
        });
        // The kind of lock says so from the moment when the drain waits for those who are in.
        while !lock.names.is_locked_exclusive() {
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
    fn a_drain_that_has_waited_for_long_is_given_more_way_unless_a_look_hangs() {
        let (lock, now) = (Publishing::default(), Instant::now());
        assert_eq!(lock.gives_way(now), GIVE_WAY, "none waits");
        lock.waiting.lock().extend([now, now + LATE_FOR]);
        assert_eq!(lock.gives_way(now + LONG_WAIT / 2), GIVE_WAY);
        assert_eq!(lock.gives_way(now + LONG_WAIT), GIVE_WAY_LATE);
        assert_eq!(lock.gives_way(now + LONG_WAIT + LATE_FOR), GIVE_WAY, "that has not helped");
    }

    #[test]
    fn a_drain_gives_up_where_a_look_hangs_and_others_go_on() {
        let lock = Publishing::default();
        std::thread::scope(|scope| {
            let _hangs = lock.look();
            assert!(lock.alone_within(Duration::from_millis(10)).is_none());
            assert!(lock.waiting.lock().is_empty());
            let others = scope.spawn(|| lock.try_look().is_some());
            assert!(others.join().expect("it ends"), "nobody is in their way");
        });
        assert!(lock.alone_within(Duration::ZERO).is_some());
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
