//! Reading ahead of programs: a bounded queue of requests, and the threads that serve it. They also do now and then what has no
//! hurry: events of evictions, and names of ours that are left on the PFS.
//!
//! Invariant: a request that finds the queue full is dropped: its reader fetches by itself. Requests are made by reads.

use super::drain::DrainList;
use super::events::Events;
use super::file::CacheFile;
use super::fills::Fills;
use super::parts::Parts;
use super::pfs_leftovers::PfsLeftovers;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::ops::Range;
use std::sync::Arc;

/// Threads that fetch ahead of readers.
pub(super) const READ_AHEAD_THREADS: usize = 2;
/// Most wishes that wait for them; more are dropped, and fetched when they are read.
const WISHES_MAX: usize = 64;

/// Something to be fetched before it is asked for.
pub(crate) struct Wish {
    pub file: Arc<CacheFile>,
    pub blocks: Range<u64>,
}

/// The end of the queue that wishes are put into.
pub(crate) struct Wishes(Sender<Option<Wish>>);

impl Wishes {
    /// The queue; the other end is for the threads.
    pub fn new() -> (Wishes, Receiver<Option<Wish>>) {
        let (wishes, wished) = bounded(WISHES_MAX);
        (Wishes(wishes), wished)
    }

    /// Blocks of a file are to be fetched.
    pub fn add(&self, wish: Wish) {
        if let Err(TrySendError::Disconnected(_)) = self.0.try_send(Some(wish)) {
            tracing::debug!("no read-ahead: the buffer is being closed");
        }
    }

    /// Wakes a thread that waits for wishes: there is something to do later. If none waits, one comes by.
    pub fn look_later(&self) {
        let _all_are_busy = self.0.try_send(None);
    }

    /// Wakes all of them: the buffer is being closed. Each takes one of what is in the queue, and ends.
    pub fn read_ahead_ends(&self) {
        (0..READ_AHEAD_THREADS).for_each(|_| self.look_later());
    }
}

/// What the threads do.
pub(crate) struct ReadAhead {
    drain_list: Arc<DrainList>,
    events: Arc<Events>,
    fills: Arc<Fills>,
    leftovers: Arc<PfsLeftovers>,
}

impl ReadAhead {
    pub fn new(parts: &Parts, fills: &Arc<Fills>, leftovers: &Arc<PfsLeftovers>) -> ReadAhead {
        ReadAhead {
            drain_list: parts.drain_list.clone(),
            events: parts.events.clone(),
            fills: fills.clone(),
            leftovers: leftovers.clone(),
        }
    }
}

impl ReadAhead {
    /// Serves read-ahead until the buffer is closed, and does now and then what has no hurry. Sleeps while
    /// there is neither.
    pub(crate) fn read_ahead(&self, wishes: &Receiver<Option<Wish>>) {
        while !self.drain_list.is_stopping() {
            let told_in = self.events.tell_evicted(false);
            let swept_in = self.leftovers.sweep_now_and_then();
            let wish = match told_in.into_iter().chain(swept_in).min() {
                Some(pause) => wishes.recv_timeout(pause).ok().flatten(),
                None => wishes.recv().ok().flatten(),
            };
            let Some(Wish { file, blocks }) = wish else { continue };
            if file.state.lock().is_gone() {
                continue;
            }
            if let Err(error) = self.fills.fetch(&file, blocks, 0) {
                // Who reads it will be told.
                tracing::debug!(%error, "read-ahead failed");
            }
        }
    }
}
