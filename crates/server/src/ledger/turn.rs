//! One change of one buffer at a time, and changes of the record: on flash first, then in memory.

use super::record::{BufferRecord, LedgerFile, PartRecord};
use super::registry::Room;
use super::{Identity, Ledger, State, TURN_WAIT};
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
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

/// The right to change one buffer or part, until it is dropped.
pub(super) struct Turn<'a> {
    ledger: &'a Ledger,
    busy: Busy,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ledger.state.lock().busy.remove(&self.busy);
        self.ledger.changed.notify_all();
    }
}

impl Ledger {
    /// Waits until nobody else changes it.
    pub(super) fn turn(&self, what: &str, busy: Busy) -> Result<Turn<'_>, ControlError> {
        let name = busy.name().clone();
        let name = &name;
        let deadline = Instant::now() + TURN_WAIT;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(of(what, name, "the server is ending", libc::ESHUTDOWN)
                    .hint("ask again when it runs again"));
            }
            if state.busy.insert(busy.clone()) {
                return Ok(Turn { ledger: self, busy });
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(of(what, name, "another command changes it", libc::EAGAIN)
                    .hint("`forebay buffer status` tells its state; try again later"));
            }
        }
    }

    /// The right to change it, if nobody else does that now.
    pub(super) fn try_turn(&self, busy: Busy) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        let free = !state.closed && state.busy.insert(busy.clone());
        // Not made at all if it is not free: dropping it would end the turn of who has it.
        free.then(|| Turn { ledger: self, busy })
    }

    /// Changes the record. An error leaves it as it was.
    pub(super) fn commit(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.replace(state, Room::Takes, None, change)
    }

    /// Like [`Ledger::commit`], for changes that give room back: they work on full flash too.
    pub(super) fn commit_freeing(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.commit_noted(state, None, change)
    }

    /// The same, with what is said of it in the record of events.
    pub(super) fn commit_noted(
        &self,
        state: &mut State,
        note: Option<&str>,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        self.replace(state, Room::Frees, note, change)
    }

    fn replace(
        &self,
        state: &mut State,
        room: Room,
        note: Option<&str>,
        change: impl FnOnce(&mut LedgerFile),
    ) -> Result<(), ControlError> {
        let mut file = state.file.clone();
        change(&mut file);
        state.version = self.registry.compare_and_set(state.version, &file, room)?;
        self.told.tell(&file, note);
        state.file = file;
        Ok(())
    }

    /// The buffer on record, for who may do everything with it. `None` if there is none. What
    /// others have is told apart from nothing: its name cannot be had either.
    pub(super) fn owned(
        &self,
        what: &str,
        who: &Identity,
        name: &BufferName,
    ) -> Result<Option<BufferRecord>, ControlError> {
        let found = self.state.lock().file.buffer(name).cloned();
        match found {
            Some(record) if !who.owns(name, record.owner_uid) => Err(not_theirs(what, name)),
            found => Ok(found),
        }
    }

    /// The same for the part that this server has of it.
    pub(super) fn owned_part(
        &self,
        what: &str,
        who: &Identity,
        name: &BufferName,
    ) -> Result<Option<PartRecord>, ControlError> {
        let found = self.state.lock().file.part(name).cloned();
        match found {
            Some(part) if !who.owns(name, part.spec.owner_uid) => Err(not_theirs(what, name)),
            found => Ok(found),
        }
    }
}

fn not_theirs(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "it belongs to another user", libc::EPERM)
        .hint("only its owner and the holder of the server's key may")
}

/// An error about a buffer.
pub(super) fn of(what: &str, name: &BufferName, why: &str, errno: i32) -> ControlError {
    ControlError::new(&format!("{what} buffer {name}"), None, why).errno(errno)
}

/// There is no such buffer.
pub(super) fn absent(what: &str, name: &BufferName) -> ControlError {
    of(what, name, "there is none of this name", libc::ENOENT)
        .hint("`forebay buffer list` shows those that you may use")
}
