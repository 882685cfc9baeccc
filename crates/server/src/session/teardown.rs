//! How a session ends: what it held is given back, or kept for a client that may come back.
//!
//! Invariants: a session ends once; of a client that has gone for good nothing is left, neither slots nor locks that wait for it
//! nor answers. Called by the sessions themselves (a new attach, the sweep, the end of the server) and by [`super::changes`] for
//! clients that do not do what they are told.

use super::Session;
use super::buffer_type::ClientFiles;
use super::grace::Grace;
use super::inodes::Inodes;
use super::locks::Locks;
use super::table::SessionTable;
use forebay_lease::leases::Leases;
use forebay_namespace::Namespace;
use forebay_proto::net::session::ClientId;
use std::sync::Arc;

/// Ends the sessions of one buffer.
pub(super) struct Teardown {
    table: Arc<SessionTable>,
    leases: Arc<Leases>,
    locks: Arc<Locks>,
    grace: Arc<Grace>,
    inodes: Arc<dyn Inodes>,
    files: Arc<dyn ClientFiles>,
    /// Has the answers that clients may ask for again.
    namespace: Arc<Namespace>,
}

impl Teardown {
    pub(super) fn new(
        table: Arc<SessionTable>,
        leases: Arc<Leases>,
        locks: Arc<Locks>,
        grace: Arc<Grace>,
        inodes: Arc<dyn Inodes>,
        files: Arc<dyn ClientFiles>,
        namespace: Arc<Namespace>,
    ) -> Teardown {
        Teardown { table, leases, locks, grace, inodes, files, namespace }
    }

    /// Ends a session and gives back all that it held. Does nothing if it has ended already.
    pub(super) fn end(&self, session: &Arc<Session>, why: &str) {
        if !session.ends() {
            return;
        }
        tracing::info!(session = session.id().0, host = session.host(), why, "session over");
        self.table.ended(session);
        session.channel().end();
        self.leases.session_over(session.id());
        if self.table.is_closed() {
            // The server ends. Clients find what they hold at its next start.
            return;
        }
        self.locks.session_over(session);
        self.files.end_opens(session);
        let held = session.gave_back_all();
        if !session.is_detached() {
            self.files.client_left(session.client(), held.keys().copied().collect());
        }
        for (ino, count) in held {
            self.inodes.forget(ino, count);
        }
    }

    /// Ends a session because its client says so, or has died: it will not come back.
    pub(super) fn detach(&self, session: &Arc<Session>, why: &str) {
        session.detach();
        self.end(session, why);
        if let Err(error) = self.grace.detached(session.client()) {
            tracing::warn!(%error, "cannot record that a client has gone");
        }
        let client = session.client();
        self.table.forget_slots(client);
        self.locks.awaits_no_more(client);
        self.forget_answers(client);
    }

    /// A client will not repeat its last calls any more.
    pub(super) fn forget_answers(&self, client: ClientId) {
        self.files.client_has_gone(client);
        if let Err(error) = self.namespace.answers().forget(client.0) {
            tracing::warn!(%error, "the last answers to a client that has gone are kept");
        }
    }
}
