//! Which mounts are attached, and the slots of those that were.
//!
//! Invariants: one lock, under which nobody is waited for; after [`SessionTable::close`] no session begins, and the slots of
//! clients are kept for the next start. Called by all of `session`.

use super::{MAX_SESSIONS, Session};
use forebay_lease::slots::{OldClients, Slots};
use forebay_proto::net::session::{ClientId, SessionId};
use forebay_proto::{Errno, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The table.
pub(super) struct SessionTable(Mutex<Table>);

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Last answers of clients whose session has ended: they may come back and repeat a call.
    old: OldClients,
    closed: bool,
}

impl Table {
    fn of_client(&self, client: ClientId) -> Option<&Arc<Session>> {
        self.sessions.values().find(|session| session.client() == client)
    }
}

impl SessionTable {
    /// Nobody is attached; `old` are the slots that the log of the last server had.
    pub(super) fn new(old: OldClients) -> SessionTable {
        SessionTable(Mutex::new(Table { old, ..Table::default() }))
    }

    /// Enters the session that `make` makes with the slots of its client.
    ///
    /// # Errors
    /// ESHUTDOWN if there will be no more sessions, EAGAIN if there are too many.
    pub(super) fn begin(
        &self,
        client: ClientId,
        make: impl FnOnce(Arc<Slots>) -> Session,
    ) -> Result<Arc<Session>> {
        let mut table = self.0.lock();
        if table.closed {
            return Err(Errno::ESHUTDOWN);
        }
        if table.sessions.len() >= MAX_SESSIONS {
            return Err(Errno::EAGAIN);
        }
        let slots = table.old.remove(client).unwrap_or_else(|| Arc::new(Slots::new()));
        let session = Arc::new(make(slots));
        table.sessions.insert(session.id(), Arc::clone(&session));
        Ok(session)
    }

    /// A session is over; its client may come back.
    pub(super) fn ended(&self, session: &Session) {
        let mut table = self.0.lock();
        table.sessions.remove(&session.id());
        table.old.insert(session.client(), Arc::clone(session.slots()));
    }

    /// A client will not come back to its slots.
    pub(super) fn forget_slots(&self, client: ClientId) {
        self.0.lock().old.remove(client);
    }

    /// Forgets the slots of the client that has been away longest, if those are too many.
    pub(super) fn one_too_many(&self) -> Option<ClientId> {
        let mut table = self.0.lock();
        (!table.closed).then(|| table.old.one_too_many()).flatten()
    }

    /// Clients that are away are not waited for any more: lets go of the inodes that their slots keep.
    pub(super) fn unpin_old(&self) {
        self.0.lock().old.unpin();
    }

    /// No session begins from now on; those that there are.
    pub(super) fn close(&self) -> Vec<Arc<Session>> {
        let mut table = self.0.lock();
        table.closed = true;
        table.sessions.values().cloned().collect()
    }

    /// True if no session begins any more.
    pub(super) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// A session by its number.
    pub(super) fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.0.lock().sessions.get(&id).cloned()
    }

    /// The session of a client.
    pub(super) fn of_client(&self, client: ClientId) -> Option<Arc<Session>> {
        self.0.lock().of_client(client).cloned()
    }

    /// The number of a client's session.
    pub(super) fn id_of(&self, client: ClientId) -> Option<SessionId> {
        self.0.lock().of_client(client).map(|session| session.id())
    }

    /// True if a client is there, or will be at the next start: at the end of the server nobody has gone.
    pub(super) fn is_there(&self, client: ClientId) -> bool {
        let session = {
            let table = self.0.lock();
            if table.closed {
                return true;
            }
            table.of_client(client).cloned()
        };
        session.is_some_and(|session| !session.is_dead())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().sessions.len()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.0.lock().sessions.values().cloned().collect()
    }

    /// All of them, and whether there will be no more.
    pub(super) fn all_and_closed(&self) -> (Vec<Arc<Session>>, bool) {
        let table = self.0.lock();
        (table.sessions.values().cloned().collect(), table.closed)
    }

    /// All but one, if that one is known.
    pub(super) fn others(&self, by: Option<SessionId>) -> Vec<Arc<Session>> {
        let table = self.0.lock();
        if by.is_some() && table.sessions.len() < 2 {
            return Vec::new();
        }
        table.sessions.values().filter(|other| Some(other.id()) != by).cloned().collect()
    }

    /// Those of which this is true; it takes no lock but the session's own.
    pub(super) fn filtered(&self, is_meant: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        self.0.lock().sessions.values().filter(|session| is_meant(session)).cloned().collect()
    }

    /// Does this for each; it takes no lock but the session's own.
    pub(super) fn for_each(&self, what: impl FnMut(&Arc<Session>)) {
        self.0.lock().sessions.values().for_each(what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::attaching;
    use super::*;
    use forebay_proto::net::session::SessionKey;
    use std::time::Duration;

    fn begin(table: &SessionTable, session: u64, client: u64) -> Result<Arc<Session>> {
        let key = SessionKey { session: SessionId(session), key: 0 };
        table.begin(ClientId(client), |slots| {
            Session::new(&key, attaching(client), None, Duration::from_secs(1), slots)
        })
    }

    fn ids(sessions: &[Arc<Session>]) -> Vec<u64> {
        let mut ids: Vec<_> = sessions.iter().map(|session| session.id().0).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_client_that_comes_back_has_its_slots_and_one_that_has_gone_new_ones() {
        let table = SessionTable::new(OldClients::default());
        let first = begin(&table, 1, 7).unwrap();
        assert!(table.is_there(ClientId(7)) && !table.is_there(ClientId(8)));
        table.ended(&first);
        assert_eq!((table.count(), table.id_of(ClientId(7))), (0, None));
        let second = begin(&table, 2, 7).unwrap();
        assert_eq!(table.id_of(ClientId(7)), Some(SessionId(2)));
        assert!(Arc::ptr_eq(first.slots(), second.slots()), "it may repeat a call");
        table.ended(&second);
        table.forget_slots(ClientId(7));
        let third = begin(&table, 3, 7).unwrap();
        assert!(!Arc::ptr_eq(second.slots(), third.slots()));
    }

    #[test]
    fn all_but_one_are_the_others() {
        let table = SessionTable::new(OldClients::default());
        let first = begin(&table, 1, 7).unwrap();
        assert!(table.others(Some(first.id())).is_empty());
        assert_eq!(ids(&table.others(None)), [1]);
        begin(&table, 2, 8).unwrap();
        begin(&table, 3, 9).unwrap();
        assert_eq!(ids(&table.others(Some(first.id()))), [2, 3]);
        assert_eq!(ids(&table.filtered(|session| session.id() != SessionId(2))), [1, 3]);
    }

    #[test]
    fn a_closed_table_has_no_new_sessions_and_nobody_has_gone_from_it() {
        let table = SessionTable::new(OldClients::default());
        begin(&table, 1, 7).unwrap();
        assert_eq!(ids(&table.close()), [1]);
        assert_eq!(begin(&table, 2, 8).err(), Some(Errno::ESHUTDOWN));
        assert!(table.is_closed() && table.all_and_closed().1);
        assert!(table.is_there(ClientId(8)), "it comes to the next start");
    }
}
