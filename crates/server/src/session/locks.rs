//! The locks of all mounts of a buffer, and which were reassigned while their mount was away.
//!
//! Invariant: that a lock of a mount that is away was reassigned is on record ([`super::taken`]) before its new holder is answered; the record
//! and the table forget a mount together. Calls on locks are [`super::lock_calls`].

use super::Session;
use super::grace::Grace;
use super::taken::Taken;
use forebay_locks::LockTable;
use forebay_proto::net::session::ClientId;
use std::sync::Arc;

/// One table, so that deadlocks are found over all mounts.
pub(super) struct Locks {
    table: Arc<LockTable>,
    taken: Arc<Taken>,
}

impl Locks {
    /// Mounts of an earlier start get back what nobody else has had.
    pub(super) fn new(taken: Taken, grace: &Grace) -> Locks {
        let (table, taken) = (LockTable::new(), Arc::new(taken));
        grace.awaited().into_iter().for_each(|client| table.expect(client));
        taken.all().into_iter().for_each(|(client, ino)| table.was_taken(client, ino));
        let record = Arc::clone(&taken);
        table.on_taken(Box::new(move |now| {
            record.add(now.iter().map(|(client, ino)| (*client, Some(*ino))));
        }));
        Locks { table, taken }
    }

    /// The locks.
    pub(super) fn table(&self) -> &LockTable {
        &self.table
    }

    /// A session is over. A client that may come back gets its locks again, unless others got them.
    pub(super) fn session_over(&self, session: &Session) {
        match session.is_detached() {
            true => self.table.drop_session(session.id()),
            false => self.table.session_lapsed(session.id(), session.client()),
        }
    }

    /// A client is back with its locks, or has gone for good: nothing waits for it.
    pub(super) fn awaits_no_more(&self, client: ClientId) {
        self.table.is_back(client);
        self.taken.forget(client);
    }

    /// These clients did not come back in time. This start knows what others get meanwhile; the next one will not wait for them.
    pub(super) fn given_up(&self, clients: &[ClientId]) {
        self.taken.add(clients.iter().map(|client| (*client, None)));
    }
}
