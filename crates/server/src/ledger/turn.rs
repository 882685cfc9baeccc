//! One change of one buffer at a time: a lock for each buffer and each shard (a *turn*), which a change holds until it has ended.
//!
//! Invariants: of one buffer, and of one shard, at most one turn is taken; none is taken after [`Turns::close`]. The lock here
//! is held for no call. Taken by `parts` and by the changes of buffers; closed by [`super::Ledger::close`].

use super::TURN_WAIT;
use super::errors::of;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::time::Instant;

/// What is being changed. A change of a buffer may wait for one of a part, never the other way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Busy {
    /// A buffer of the pool, by its leader.
    Buffer(BufferName),
    /// The part of it that this server has.
    Part(BufferName),
}

impl Busy {
    fn name(&self) -> &BufferName {
        match self {
            Busy::Buffer(name) | Busy::Part(name) => name,
        }
    }
}

/// Who changes what.
#[derive(Default)]
pub(super) struct Turns {
    state: Mutex<TurnsState>,
    /// A turn has ended, or all are to.
    changed: Condvar,
}

#[derive(Default)]
struct TurnsState {
    /// Buffers and parts that are being changed.
    busy: BTreeSet<Busy>,
    closed: bool,
}

/// The right to change one buffer or part, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    busy: Busy,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.state.lock().busy.remove(&self.busy);
        self.turns.changed.notify_all();
    }
}

impl Turns {
    /// Waits until nobody else changes it, for [`TURN_WAIT`] at most (EAGAIN). ESHUTDOWN if the server is ending.
    pub(super) fn take(&self, what: &str, busy: Busy) -> Result<Turn<'_>, ControlError> {
        let name = busy.name().clone();
        let name = &name;
        let deadline = Instant::now() + TURN_WAIT;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(is_ending(what, name));
            }
            if state.busy.insert(busy.clone()) {
                return Ok(Turn { turns: self, busy });
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(of(what, name, "another command changes it", libc::EAGAIN)
                    .hint("`forebay buffer status` tells its state; try again later"));
            }
        }
    }

    /// The right to change it, if nobody else does that now.
    pub(super) fn try_take(&self, busy: Busy) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        let free = !state.closed && state.busy.insert(busy.clone());
        // Not made at all if it is not free: dropping it would end the turn of who has it.
        free.then(|| Turn { turns: self, busy })
    }

    /// ESHUTDOWN if the server is ending: a change of this buffer that is under way goes no further.
    pub(super) fn must_be_open(&self, what: &str, name: &BufferName) -> Result<(), ControlError> {
        match self.state.lock().closed {
            true => Err(is_ending(what, name)),
            false => Ok(()),
        }
    }

    /// No more turns are taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until no turn is taken.
    pub(super) fn wait_until_idle(&self) {
        let mut state = self.state.lock();
        while !state.busy.is_empty() {
            self.changed.wait(&mut state);
        }
    }

    /// True if nothing is being changed.
    #[cfg(test)]
    pub(super) fn are_idle(&self) -> bool {
        self.state.lock().busy.is_empty()
    }
}

fn is_ending(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "the server is ending", libc::ESHUTDOWN).hint("ask again when it runs again")
}
