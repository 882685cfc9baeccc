//! Locks that were only tried (LOCK_NB, F_OFD_SETLK) and that another open file had: they wait for a moment.
//!
//! The last close of a file ends its flock and its OFD locks, but the kernel tells of it (RELEASE) after close() has
//! returned. A program that closes a file and locks it again at once, as HDF5 does, would meet its own lock, and so
//! would the next program on another node. So a try that meets such a lock waits as other requests do
//! ([`crate::locks`]), and is given up after [`PATIENCE`] with EAGAIN.
//!
//! On a busy machine the thread here is late itself, and so is who reads the RELEASE: a try that would be given up late waits once more,
//! [`AGAIN_MAX`] times at most.
//!
//! Invariant: all wait equally long, so the first in the queue is the first to be given up. Entries of requests that
//! were granted stay until their time has come, and then do nothing. Called by [`crate::ops::locks`]; [`Tries::run`]
//! is a thread of the mount.

use crate::connection::Connection;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a try waits. A RELEASE mostly comes within some 50 us; on a machine under load after tens of milliseconds.
const PATIENCE: Duration = Duration::from_millis(200);
/// Given up so much too late, it says nothing: who would have let go was held up as well.
const LATE: Duration = Duration::from_millis(20);
/// Most times that one waits once more: 1.2 s in all, and the time by which this thread was late.
const AGAIN_MAX: u32 = 5;
/// Most tries of one mount within [`PATIENCE`]; beyond, a try is answered at once.
const MAX_TRIES: usize = 4096;

/// The request of this number is given up at that time.
struct Try {
    due: Instant,
    unique: u64,
    again: u32,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Try>,
    has_ended: bool,
}

/// What is to be done next.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    GiveUp(u64),
    WaitUntil(Instant),
    Nothing,
}

fn next(queue: &mut VecDeque<Try>, now: Instant) -> Next {
    while let Some(first) = queue.front() {
        if first.due > now {
            return Next::WaitUntil(first.due);
        }
        let Some(first) = queue.pop_front() else { break };
        if first.again >= AGAIN_MAX || now.duration_since(first.due) < LATE {
            return Next::GiveUp(first.unique);
        }
        queue.push_back(Try { due: now + PATIENCE, again: first.again + 1, ..first });
    }
    Next::Nothing
}

/// Those of one mount.
#[derive(Default)]
pub(crate) struct Tries {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Tries {
    /// Whether one more may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.inner.lock().queue.len() < MAX_TRIES
    }

    /// A request waits from now on.
    pub(crate) fn add(&self, unique: u64) {
        let mut inner = self.inner.lock();
        inner.queue.push_back(Try { due: Instant::now() + PATIENCE, unique, again: 0 });
        if inner.queue.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Gives up what has waited long enough, until the mount ends.
    pub(crate) fn run(&self, cx: &Connection) {
        while let Some(unique) = self.next_due() {
            let ticket = cx.locks.give_up(unique);
            if let (Some(ticket), Some(locks)) = (ticket, cx.served_locks()) {
                locks.cancel(ticket);
            }
        }
    }

    fn next_due(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        loop {
            if inner.has_ended {
                return None;
            }
            match next(&mut inner.queue, Instant::now()) {
                Next::GiveUp(unique) => return Some(unique),
                Next::WaitUntil(due) => {
                    self.changed.wait_until(&mut inner, due);
                }
                Next::Nothing => self.changed.wait(&mut inner),
            }
        }
    }

    /// The mount has ended.
    pub(crate) fn stop(&self) {
        self.inner.lock().has_ended = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_is_given_up_in_time_or_waits_once_more_where_all_are_late() {
        let now = Instant::now();
        let queued = |unique| Try { due: now + PATIENCE, unique, again: 0 };
        let mut queue: VecDeque<Try> = [7, 8].map(queued).into();
        assert_eq!(next(&mut queue, now), Next::WaitUntil(now + PATIENCE));
        assert_eq!(next(&mut queue, now + PATIENCE), Next::GiveUp(7));
        // The thread was not run for half a second.
        let mut late = now + PATIENCE + Duration::from_millis(500);
        for _ in 0..AGAIN_MAX {
            assert_eq!(next(&mut queue, late), Next::WaitUntil(late + PATIENCE));
            late += PATIENCE + LATE;
        }
        assert_eq!(next(&mut queue, late), Next::GiveUp(8), "not for ever");
        assert_eq!(next(&mut queue, late), Next::Nothing);
    }
}
