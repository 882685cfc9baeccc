//! Locks that were only tried (LOCK_NB, F_OFD_SETLK) and that another open file had: they wait for a moment.
//!
//! The last close of a file ends its flock and its OFD locks, but the kernel tells of it (RELEASE) after close() has
//! returned. A program that closes a file and locks it again at once, as HDF5 does, would meet its own lock, and so
//! would the next program on another node. So a try that meets such a lock waits as other requests do
//! ([`crate::locks`]), and is given up after [`PATIENCE`] with EAGAIN.
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
/// Most tries of one mount within [`PATIENCE`]; beyond, a try is answered at once.
const MAX_TRIES: usize = 4096;

#[derive(Default)]
struct Inner {
    /// When each is given up, and the number of its request.
    queue: VecDeque<(Instant, u64)>,
    has_ended: bool,
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
        inner.queue.push_back((Instant::now() + PATIENCE, unique));
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
            match inner.queue.front().copied() {
                None => self.changed.wait(&mut inner),
                Some((due, unique)) if due <= Instant::now() => {
                    inner.queue.pop_front();
                    return Some(unique);
                }
                Some((due, _)) => {
                    self.changed.wait_until(&mut inner, due);
                }
            }
        }
    }

    /// The mount has ended.
    pub(crate) fn stop(&self) {
        self.inner.lock().has_ended = true;
        self.changed.notify_one();
    }
}
