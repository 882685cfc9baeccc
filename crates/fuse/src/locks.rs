//! Requests for locks that wait, and what the mount knows of locks held ([`crate::locked`]).
//!
//! A waiting request holds no thread: the file system calls a waiter, which answers it. Whoever
//! takes its entry out of `waiting` answers; so it is answered once. Called by
//! [`crate::ops::locks`].

use crate::abi;
use crate::device::{Device, ECONNABORTED};
use crate::locked::{Left, Locked, Through};
use forebay_proto::net::session::Ticket;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Most requests of one mount that wait for locks; ENOLCK beyond.
const MAX_WAITING: usize = 1 << 15;
/// Most ranges and files of owners noted; ENOLCK beyond.
const MAX_NOTED: usize = 1 << 20;
/// Interrupts that are remembered because their request was not known (yet). One request is
/// read between another thread's reading of a SETLKW and its noting it, at most, for each reader.
const MAX_EARLY_INTERRUPTS: usize = 256;

struct Waiting {
    device: Arc<Device>,
    /// `None` if the owner is the open file.
    through: Option<Through>,
    ticket: Option<Ticket>,
    interrupted: bool,
    /// It was only tried, and nobody will let go in time: EAGAIN.
    given_up: bool,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Waiting>,
    early_interrupts: VecDeque<u64>,
    locked: Locked,
}

/// All of a mount.
pub(crate) struct LockRequests(Mutex<Inner>);

impl LockRequests {
    pub(crate) fn new() -> LockRequests {
        LockRequests(Mutex::new(Inner::default()))
    }

    /// Notes a request that may have to wait, before it is made.
    pub(crate) fn begin(
        &self,
        unique: u64,
        device: &Arc<Device>,
        through: Option<Through>,
    ) -> Result<()> {
        let mut inner = self.0.lock();
        if inner.waiting.len() >= MAX_WAITING {
            return Err(Errno::ENOLCK);
        }
        let early = inner.early_interrupts.iter().position(|&u| u == unique);
        let interrupted = early.and_then(|i| inner.early_interrupts.remove(i)).is_some();
        let device = Arc::clone(device);
        inner.waiting.insert(
            unique,
            Waiting { device, through, ticket: None, interrupted, given_up: false },
        );
        Ok(())
    }

    /// The request did not wait: its caller answers it.
    pub(crate) fn did_not_wait(&self, unique: u64) {
        self.0.lock().waiting.remove(&unique);
    }

    /// The request waits under `ticket`, if it was not answered already. True if it was
    /// interrupted before and is to be cancelled.
    pub(crate) fn waits(&self, unique: u64, ticket: Ticket) -> bool {
        let mut inner = self.0.lock();
        let Some(waiting) = inner.waiting.get_mut(&unique) else { return false };
        waiting.ticket = Some(ticket);
        waiting.interrupted
    }

    /// What came of a request that waited: answers it.
    pub(crate) fn finish(&self, unique: u64, mut result: Result<()>) {
        let device = {
            let mut inner = self.0.lock();
            let Some(waiting) = inner.waiting.remove(&unique) else { return };
            if waiting.given_up && !waiting.interrupted && result == Err(Errno::EINTR) {
                result = Err(Errno::EAGAIN);
            }
            if let (Ok(()), Some(through)) = (result, waiting.through) {
                inner.locked.set(through);
            }
            waiting.device
        };
        let head = abi::OutHeader {
            len: size_of::<abi::OutHeader>() as u32,
            error: result.map_or_else(|e| -e.0.abs(), |()| 0),
            unique,
        };
        match device.send(head.as_bytes()) {
            Ok(()) => {}
            // The mount is going away, and all its locks with it.
            Err(Errno::ENOENT | Errno::ENODEV | Errno::EPERM | ECONNABORTED) => {}
            Err(error) => tracing::error!(%error, "the kernel refused the answer to a lock"),
        }
    }

    /// A signal reached who waits for the request. The ticket to cancel.
    pub(crate) fn interrupt(&self, unique: u64) -> Option<Ticket> {
        let mut inner = self.0.lock();
        if let Some(waiting) = inner.waiting.get_mut(&unique) {
            waiting.interrupted = true;
            return waiting.ticket;
        }
        // It is not a lock's, or another reader is about to note it.
        if inner.early_interrupts.len() >= MAX_EARLY_INTERRUPTS {
            inner.early_interrupts.pop_front();
        }
        inner.early_interrupts.push_back(unique);
        None
    }

    /// The request has waited long enough. The ticket to cancel, if it waits.
    pub(crate) fn give_up(&self, unique: u64) -> Option<Ticket> {
        let mut inner = self.0.lock();
        let waiting = inner.waiting.get_mut(&unique)?;
        waiting.given_up = true;
        waiting.ticket
    }

    /// The mount has ended: tickets of all that wait, to be cancelled.
    pub(crate) fn interrupt_all(&self) -> Vec<Ticket> {
        let mut inner = self.0.lock();
        let all = inner.waiting.values_mut();
        all.filter_map(|waiting| {
            waiting.interrupted = true;
            waiting.ticket
        })
        .collect()
    }

    /// Whether one more lock can be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.0.lock().locked.size() < MAX_NOTED
    }

    /// Changes what is noted of locks held.
    pub(crate) fn note<T>(&self, change: impl FnOnce(&mut Locked) -> T) -> T {
        change(&mut self.0.lock().locked)
    }

    /// A file is released: what it leaves locked is to be unlocked.
    pub(crate) fn forget_file(&self, ino: Ino, handle: u64) -> Vec<Left> {
        self.0.lock().locked.forget_file(ino, handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_may_come_before_its_request_is_noted() {
        let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let device = Arc::new(Device::new(file.into()));
        let requests = LockRequests::new();
        assert_eq!(requests.interrupt(7), None);
        requests.begin(7, &device, None).unwrap();
        assert!(requests.waits(7, Ticket(1)), "to be cancelled at once");
        assert_eq!(requests.interrupt(7), Some(Ticket(1)));
        requests.finish(7, Err(Errno::EINTR));
        assert!(!requests.waits(7, Ticket(1)), "answered");
        requests.begin(8, &device, None).unwrap();
        assert!(!requests.waits(8, Ticket(2)));
        assert_eq!(requests.interrupt_all(), [Ticket(2)]);
    }
}
