//! Locks of a mount on a server: requests that wait. What is held and what was lost is in `held_locks`.

use super::held_locks::{HeldLocks, Owner};
use super::peer::{Peer, Room};
use forebay_proto::api::{LockUser, LockWaiter, Locks};
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

    fn held(&self) -> &HeldLocks {
        &self.peer.held_locks
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
            self.held().set(&spec);
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
            if let Err(errno) = self.held().must_not_be_lost(Owner::of(&spec)) {
                self.ended(ticket, Err(errno));
                continue;
            }
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
        self.held().must_not_be_lost(Owner::of(spec))?;
        let Some(waiter) = waiter else {
            self.ask(LockCall::Set { spec: *spec, wait: None })?;
            self.held().set(spec);
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
                self.held().set(spec);
                Ok(None)
            }
            Err(errno) => {
                drop(self.waiting.lock().remove(&ticket));
                Err(errno)
            }
        }
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        self.held().unset(spec);
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
        if !self.held().drop_owner(Owner { ino, kind, owner }) {
            return Ok(());
        }
        self.ask(LockCall::Drop { ino, kind, owner }).map(drop)
    }
    fn may_use(&self, ino: Ino, user: LockUser) -> Result<()> {
        self.held().may_use(ino, user)
    }
}
