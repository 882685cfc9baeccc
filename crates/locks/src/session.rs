//! The locks of a buffer as one session sees them: [`Locks`] over a [`LockTable`].
//!
//! For a mount in the same process as the table, and for tests. A remote mount's calls go to the
//! table through its session at the server, which does the same.

use super::LockTable;
use forebay_proto::api::{LockWaiter, Locks};
use forebay_proto::net::session::{LockKind, LockSpec, LockState, SessionId, Ticket};
use forebay_proto::{Ino, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One session's view. Everything it holds goes when it is dropped.
pub struct SessionLocks {
    table: Arc<LockTable>,
    session: SessionId,
    next_ticket: AtomicU64,
}

impl SessionLocks {
    /// Tickets count from 1: nobody else may use the session.
    pub fn new(table: Arc<LockTable>, session: SessionId) -> SessionLocks {
        SessionLocks { table, session, next_ticket: AtomicU64::new(1) }
    }
}

impl Locks for SessionLocks {
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>> {
        let held = self.table.test(self.session, spec)?;
        Ok(held.map(|(session, held)| match session == self.session {
            true => held,
            // A process number says nothing on another node.
            false => LockSpec { pid: 0, ..held },
        }))
    }

    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>> {
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        let wait = waiter.map(|waiter| (ticket, waiter));
        let state = self.table.set(self.session, spec, wait)?;
        Ok((state == LockState::Waits).then_some(ticket))
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        self.table.unset(self.session, spec)
    }

    fn cancel(&self, ticket: Ticket) {
        self.table.cancel(self.session, ticket);
    }

    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()> {
        self.table.drop_owner(self.session, ino, kind, owner);
        Ok(())
    }
}

impl Drop for SessionLocks {
    fn drop(&mut self) {
        self.table.drop_session(self.session);
    }
}
