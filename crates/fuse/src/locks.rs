//! Requests for locks that wait, and which owner locked through which open file.
//!
//! A waiting request holds no thread: the file system calls a waiter, which answers it. Whoever
//! takes its entry out of `waiting` answers; so it is answered once.
//!
//! *Through which file* is needed for OFD locks. The kernel names an owner in each request: the
//! open file itself for flock and OFD locks, the process's table of descriptors for POSIX locks.
//! It does not say whether an fcntl request is POSIX or OFD, nor does its RELEASE tell the owner
//! of OFD locks. But a POSIX owner's locks end with each FLUSH that names it, and a process that
//! has locked through a file sends one before that file's RELEASE. So: FLUSH forgets the owner
//! for the whole inode; an owner that is left when a file is released is the file itself, and
//! its OFD locks go. Called by [`crate::ops::locks`].

use crate::abi;
use crate::device::{Device, ECONNABORTED};
use forebay_proto::net::session::Ticket;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Most requests of one mount that wait for locks; ENOLCK beyond.
const MAX_WAITING: usize = 1 << 15;
/// Most pairs of owner and file; ENOLCK beyond.
const MAX_OWNERS: usize = 1 << 20;
/// Interrupts that are remembered because their request was not known (yet). One request is
/// read between another thread's reading of a SETLKW and its noting it, at most, for each reader.
const MAX_EARLY_INTERRUPTS: usize = 256;

/// An fcntl owner and the file that it locked through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Through {
    pub(crate) ino: Ino,
    pub(crate) handle: u64,
    pub(crate) owner: u64,
}

struct Waiting {
    device: Arc<Device>,
    /// `None` for a flock: its RELEASE tells the owner.
    through: Option<Through>,
    ticket: Option<Ticket>,
    interrupted: bool,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Waiting>,
    early_interrupts: VecDeque<u64>,
    through: HashMap<Ino, Vec<(u64, u64)>>,
    owners: usize,
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
        inner.waiting.insert(unique, Waiting { device, through, ticket: None, interrupted });
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
    pub(crate) fn finish(&self, unique: u64, result: Result<()>) {
        let device = {
            let mut inner = self.0.lock();
            let Some(waiting) = inner.waiting.remove(&unique) else { return };
            if let (Ok(()), Some(through)) = (result, waiting.through) {
                inner.note(through);
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

    /// Whether one more owner can be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.0.lock().owners < MAX_OWNERS
    }

    /// Notes that a lock was granted.
    pub(crate) fn note(&self, through: Through) {
        self.0.lock().note(through);
    }

    /// Forgets an owner on an inode. True if it was noted: it may hold locks.
    pub(crate) fn forget_owner(&self, ino: Ino, owner: u64) -> bool {
        !self.0.lock().forget(ino, |pair| pair.1 == owner).is_empty()
    }

    /// Forgets a file that is released. The owners that are left: their locks go.
    pub(crate) fn forget_file(&self, ino: Ino, handle: u64) -> Vec<u64> {
        self.0.lock().forget(ino, |pair| pair.0 == handle)
    }
}

impl Inner {
    fn note(&mut self, through: Through) {
        let pairs = self.through.entry(through.ino).or_default();
        let pair = (through.handle, through.owner);
        if !pairs.contains(&pair) {
            pairs.push(pair);
            self.owners += 1;
        }
    }

    /// Forgets pairs; their owners.
    fn forget(&mut self, ino: Ino, which: impl Fn(&(u64, u64)) -> bool) -> Vec<u64> {
        let Some(pairs) = self.through.get_mut(&ino) else { return Vec::new() };
        let gone: Vec<u64> = pairs.iter().filter(|p| which(p)).map(|p| p.1).collect();
        pairs.retain(|pair| !which(pair));
        if pairs.is_empty() {
            self.through.remove(&ino);
        }
        self.owners -= gone.len();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(handle: u64, owner: u64) -> Through {
        Through { ino: Ino(2), handle, owner }
    }

    #[test]
    fn what_is_left_at_a_release_is_the_file_itself() {
        let requests = LockRequests::new();
        // A process, 100, through files 1 and 2; file 1 itself, 501.
        [through(1, 100), through(1, 501), through(2, 100), through(1, 100)]
            .into_iter()
            .for_each(|t| requests.note(t));
        assert!(requests.forget_owner(Ino(2), 100) && !requests.forget_owner(Ino(2), 100));
        // The process has locked again, through 2, before the kernel tells of the end of 1.
        requests.note(through(2, 100));
        assert_eq!(requests.forget_file(Ino(2), 1), [501]);
        assert!(requests.forget_owner(Ino(2), 100));
        assert_eq!(requests.0.lock().owners, 0);
    }

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
