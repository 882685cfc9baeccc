//! Locks of a mount on a server: requests that wait, and what is held, so that a restarted server
//! can be told.

use super::peer::{Peer, Room};
use forebay_proto::api::{LockWaiter, Locks};
use forebay_proto::net::session::{LockCall, LockKind, LockSpec, LockState, Recall, Ticket};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The locks of one mount.
pub(super) struct RemoteLocks {
    peer: Arc<Peer>,
    next_ticket: AtomicU64,
    waiting: Mutex<HashMap<Ticket, (LockSpec, LockWaiter)>>,
}

impl RemoteLocks {
    /// `peer` is the server of shard 0, which keeps the locks of the whole buffer.
    pub(super) fn new(peer: Arc<Peer>) -> RemoteLocks {
        RemoteLocks { peer, next_ticket: AtomicU64::new(1), waiting: Mutex::default() }
    }

    fn ask(&self, call: LockCall) -> Result<LockState> {
        match self.peer.call(&Caller::root(), Call::Lock(call), &[], Room::None)?.answer {
            Answer::Lock(state) => Ok(state),
            _ => Err(Errno::EPROTO),
        }
    }

    /// A request has ended, one way or another; only the first end counts.
    fn ended(&self, ticket: Ticket, result: Result<()>) {
        let Some((spec, waiter)) = self.waiting.lock().remove(&ticket) else {
            return;
        };
        if result.is_ok() {
            self.peer.held_locks.lock().set(&spec);
        }
        waiter(result);
    }

    /// What a recall tells of requests that waited.
    pub(super) fn heard(&self, recall: &Recall) {
        for &ticket in &recall.granted {
            self.ended(ticket, Ok(()));
        }
        for &(ticket, errno) in &recall.refused {
            self.ended(ticket, Err(Errno(errno)));
        }
    }

    /// In a new session nobody knows of the requests that wait: they are made again.
    pub(super) fn ask_again(&self) {
        let all: Vec<_> = self.waiting.lock().iter().map(|(t, (spec, _))| (*t, *spec)).collect();
        for (ticket, spec) in all {
            match self.ask(LockCall::Set { spec, wait: Some(ticket) }) {
                Ok(LockState::Free) => self.ended(ticket, Ok(())),
                Ok(_) => {}
                Err(errno) => self.ended(ticket, Err(errno)),
            }
        }
    }
}

impl Locks for RemoteLocks {
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>> {
        match self.ask(LockCall::Test(*spec))? {
            LockState::Held(held) => Ok(Some(held)),
            LockState::Free | LockState::Waits => Ok(None),
        }
    }

    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>> {
        let Some(waiter) = waiter else {
            self.ask(LockCall::Set { spec: *spec, wait: None })?;
            self.peer.held_locks.lock().set(spec);
            return Ok(None);
        };
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        // The grant may be heard before the answer to the request.
        self.waiting.lock().insert(ticket, (*spec, waiter));
        match self.ask(LockCall::Set { spec: *spec, wait: Some(ticket) }) {
            Ok(LockState::Waits) => Ok(Some(ticket)),
            Ok(LockState::Free | LockState::Held(_)) => {
                // Nobody calls the waiter of a request that did not wait.
                drop(self.waiting.lock().remove(&ticket));
                self.peer.held_locks.lock().set(spec);
                Ok(None)
            }
            Err(errno) => {
                drop(self.waiting.lock().remove(&ticket));
                Err(errno)
            }
        }
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        self.peer.held_locks.lock().unset(spec);
        self.ask(LockCall::Unset(*spec)).map(drop)
    }

    fn cancel(&self, ticket: Ticket) {
        if let Err(error) = self.ask(LockCall::Cancel(ticket)) {
            tracing::debug!(%error, "a lock request could not be given up at the server");
        }
        self.ended(ticket, Err(Errno::EINTR));
    }

    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()> {
        // Every close asks: only owners that hold something are worth a question.
        if !self.peer.held_locks.lock().drop_owner(ino, kind, owner) {
            return Ok(());
        }
        self.ask(LockCall::Drop { ino, kind, owner }).map(drop)
    }
}

/// What is held, by inode, kind and owner: ranges that do not overlap.
#[derive(Default)]
pub(super) struct HeldLocks {
    owners: HashMap<(Ino, LockKind, u64), Vec<LockSpec>>,
}

impl HeldLocks {
    fn cut(ranges: &mut Vec<LockSpec>, spec: &LockSpec) {
        let mut left = Vec::with_capacity(ranges.len() + 1);
        for held in ranges.drain(..) {
            if held.end < spec.start || spec.end < held.start {
                left.push(held);
                continue;
            }
            if held.start < spec.start {
                left.push(LockSpec { end: spec.start - 1, ..held });
            }
            if held.end > spec.end {
                left.push(LockSpec { start: spec.end + 1, ..held });
            }
        }
        *ranges = left;
    }

    pub(super) fn set(&mut self, spec: &LockSpec) {
        let ranges = self.owners.entry((spec.ino, spec.kind, spec.owner)).or_default();
        HeldLocks::cut(ranges, spec);
        ranges.push(*spec);
    }

    pub(super) fn unset(&mut self, spec: &LockSpec) {
        let key = (spec.ino, spec.kind, spec.owner);
        if let Some(ranges) = self.owners.get_mut(&key) {
            HeldLocks::cut(ranges, spec);
            if ranges.is_empty() {
                self.owners.remove(&key);
            }
        }
    }

    /// True if the owner held something.
    pub(super) fn drop_owner(&mut self, ino: Ino, kind: LockKind, owner: u64) -> bool {
        self.owners.remove(&(ino, kind, owner)).is_some()
    }

    pub(super) fn all(&self) -> Vec<LockSpec> {
        self.owners.values().flatten().copied().collect()
    }

    /// Somebody else has got these.
    pub(super) fn lost(&mut self, lost: &[LockSpec]) {
        for spec in lost {
            self.unset(spec);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(start: u64, end: u64, exclusive: bool) -> LockSpec {
        LockSpec { ino: Ino(5), kind: LockKind::Posix, owner: 1, pid: 1, start, end, exclusive }
    }

    #[test]
    fn ranges_are_replaced_and_split() {
        let mut held = HeldLocks::default();
        held.set(&spec(0, 99, false));
        held.set(&spec(20, 29, true));
        held.unset(&spec(90, u64::MAX, false));
        let mut all: Vec<_> = held.all().iter().map(|s| (s.start, s.end, s.exclusive)).collect();
        all.sort_unstable();
        assert_eq!(all, [(0, 19, false), (20, 29, true), (30, 89, false)]);
        assert!(!held.drop_owner(Ino(5), LockKind::Flock, 1));
        assert!(held.drop_owner(Ino(5), LockKind::Posix, 1));
        assert!(held.all().is_empty());
    }
}
