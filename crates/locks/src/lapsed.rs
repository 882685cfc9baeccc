//! Locks of mounts whose sessions have ended without their doing: a mount that was stopped or cut off comes back
//! and believes that it still holds them. It may, if nobody else has had them in between, even for a moment: who
//! had them may have changed what they guard.
//!
//! Invariant: from the end of a session to its client's return each grant to somebody else that is in the way of
//! what the session held is noted. Bounded: of too many clients the oldest are forgotten; those
//! that come back after that get what is free. Called by [`super::state`] under its lock.
//!
//! Of a client of an earlier start of the server nobody knows what it held until it says so. Each file of which somebody gets a
//! lock meanwhile is noted against all of them. What is noted against a client of this start is told ([`Lapsed::untold`]), so that
//! it can be known at the next one.

use super::book::{Range, same_world};
use forebay_proto::Ino;
use forebay_proto::net::session::{ClientId, LockSpec};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Most clients, and most ranges of all of them, that are remembered.
const MAX_CLIENTS: usize = 1 << 12;
const MAX_RANGES: usize = 1 << 18;
/// Most files that are noted against one client of an earlier start; beyond that all are.
const MAX_FILES: usize = 1 << 12;

struct Lapse {
    /// The owner's number in its session.
    owner: u64,
    range: Range,
    /// Somebody else had it since.
    taken: bool,
}

/// One that has not come back.
#[derive(Default)]
pub(super) struct Client {
    /// Counts ends of sessions: the lowest is the oldest.
    order: u64,
    /// More was held than can be remembered.
    forgotten: bool,
    by_inode: HashMap<Ino, Vec<Lapse>>,
    ranges: usize,
}

/// One of an earlier start that has not come back.
#[derive(Default)]
struct Unheard {
    /// Files of which somebody else had a lock since.
    taken: HashSet<Ino>,
    /// More than can be remembered, or nobody knows which.
    any: bool,
}

impl Unheard {
    fn granted(&mut self, ino: Ino) {
        self.any |= self.taken.len() >= MAX_FILES;
        if !self.any {
            self.taken.insert(ino);
        }
    }
}

/// All clients that have not come back.
#[derive(Default)]
pub(super) struct Lapsed {
    clients: BTreeMap<u64, Client>,
    ranges: usize,
    next: u64,
    unheard: HashMap<u64, Unheard>,
    /// What is granted now was held before the start of the server.
    is_restoring: bool,
    untold: Vec<(ClientId, Ino)>,
}

impl Lapsed {
    /// A session of this client has ended, and held these.
    pub(super) fn add(&mut self, client: ClientId, held: &[LockSpec]) {
        if held.is_empty() {
            return;
        }
        while self.clients.len() >= MAX_CLIENTS {
            let oldest = self.clients.iter().min_by_key(|(_, c)| c.order).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            if let Some(gone) = self.clients.remove(&oldest) {
                self.ranges -= gone.ranges;
            }
        }
        self.next += 1;
        let (order, room) = (self.next, MAX_RANGES.saturating_sub(self.ranges));
        let entry = self.clients.entry(client.0).or_default();
        entry.order = order;
        entry.forgotten |= held.len() > room;
        for spec in held.iter().take(room) {
            let Ok(range) = Range::of(spec) else { continue };
            let lapse = Lapse { owner: spec.owner, range, taken: false };
            entry.by_inode.entry(spec.ino).or_default().push(lapse);
            entry.ranges += 1;
            self.ranges += 1;
        }
    }

    /// A client of an earlier start of the server may come back.
    pub(super) fn expect(&mut self, client: ClientId) {
        self.unheard.entry(client.0).or_default();
    }

    /// Somebody had locks of a client of an earlier start, on this file, or nobody knows on which.
    pub(super) fn was_taken(&mut self, client: ClientId, ino: Option<Ino>) {
        let unheard = self.unheard.entry(client.0).or_default();
        match ino {
            Some(ino) => unheard.granted(ino),
            None => unheard.any = true,
        }
    }

    /// Whose locks on which files were taken, as far as nobody was told.
    pub(super) fn untold(&self) -> Vec<(ClientId, Ino)> {
        self.untold.clone()
    }

    /// See [`Lapsed::untold`].
    pub(super) fn told(&mut self, taken: &[(ClientId, Ino)]) {
        self.untold.retain(|one| !taken.contains(one));
    }

    /// Somebody gets this.
    pub(super) fn granted(&mut self, ino: Ino, range: &Range) {
        if !self.is_restoring {
            self.unheard.values_mut().for_each(|client| client.granted(ino));
        }
        if self.ranges == 0 {
            return;
        }
        let Lapsed { clients, untold, .. } = self;
        for (client, lapsed) in clients {
            let mut is_new = false;
            for lapse in lapsed.by_inode.get_mut(&ino).into_iter().flatten() {
                if !lapse.taken
                    && same_world(lapse.range.kind, range.kind)
                    && lapse.range.conflicts(range)
                {
                    (lapse.taken, is_new) = (true, true);
                }
            }
            if is_new {
                untold.push((ClientId(*client), ino));
            }
        }
    }

    /// True if the client, which is back, may have what it had.
    pub(super) fn is_still_its(&self, client: ClientId, spec: &LockSpec) -> bool {
        let unheard = self.unheard.get(&client.0);
        if unheard.is_some_and(|unheard| unheard.any || unheard.taken.contains(&spec.ino)) {
            return false;
        }
        let Some(found) = self.clients.get(&client.0) else { return true };
        let Ok(range) = Range::of(spec) else { return false };
        let lapses = found.by_inode.get(&spec.ino).into_iter().flatten();
        let mut own = lapses.filter(|lapse| {
            let same_owner = (lapse.range.kind, lapse.owner) == (spec.kind, spec.owner);
            same_owner && lapse.range.overlaps(&range)
        });
        !found.forgotten && own.all(|lapse| !lapse.taken)
    }

    /// What is locked now is not noted against this client, until [`Lapsed::put_back`].
    pub(super) fn set_aside(&mut self, client: ClientId) -> Option<Client> {
        self.is_restoring = true;
        self.clients.remove(&client.0)
    }

    /// See [`Lapsed::set_aside`].
    pub(super) fn put_back(&mut self, client: ClientId, own: Option<Client>) {
        self.is_restoring = false;
        if let Some(own) = own {
            self.clients.insert(client.0, own);
        }
    }

    /// The client has said what it holds, or will not come back.
    pub(super) fn end(&mut self, client: ClientId) {
        self.unheard.remove(&client.0);
        if let Some(gone) = self.clients.remove(&client.0) {
            self.ranges -= gone.ranges;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LockTable;
    use super::*;
    use forebay_proto::net::session::{LockKind, LockState, SessionId};
    use forebay_proto::{Errno, Result};
    use parking_lot::Mutex;
    use std::sync::Arc;

    const INO: Ino = Ino(7);
    const CLIENT: ClientId = ClientId(42);

    fn spec(kind: LockKind, start: u64, end: u64, exclusive: bool) -> LockSpec {
        LockSpec { ino: INO, kind, owner: 1, pid: 0, start, end, exclusive }
    }

    /// What comes back after its session ended with `had` held, and `other` was had by another session meanwhile.
    fn back(had: &LockSpec, other: &LockSpec) -> Result<()> {
        let table = LockTable::new();
        table.set(SessionId(1), had, None).unwrap();
        table.session_lapsed(SessionId(1), CLIENT);
        assert_eq!(table.set(SessionId(2), other, None), Ok(LockState::Free));
        table.unset(SessionId(2), other).unwrap();
        let restored = table.restore(SessionId(3), CLIENT, had);
        table.is_back(CLIENT);
        // Another mount of the same name of an owner never had it, and it is free.
        assert!(restored.is_ok() || table.restore(SessionId(4), ClientId(43), had).is_ok());
        restored
    }

    #[test]
    fn a_lock_that_somebody_had_in_between_is_lost() {
        use LockKind::{Flock, Ofd, Posix};
        let posix = |start, end, exclusive| spec(Posix, start, end, exclusive);
        let lost = Err(Errno::EAGAIN);
        assert_eq!(back(&posix(0, 9, true), &posix(9, 20, false)), lost);
        assert_eq!(back(&posix(0, 9, false), &spec(Ofd, 5, 5, true)), lost);
        assert_eq!(back(&spec(Flock, 0, 0, true), &spec(Flock, 0, 0, true)), lost);
        assert_eq!(back(&posix(0, 9, true), &posix(10, 20, true)), Ok(()));
        assert_eq!(back(&posix(0, 9, false), &posix(0, 9, false)), Ok(()));
        assert_eq!(back(&posix(0, 9, true), &spec(Flock, 0, 0, true)), Ok(()));
    }

    /// As SQLite locks a database: three ranges that touch.
    #[test]
    fn what_comes_back_in_parts_is_not_lost_to_itself() {
        let table = LockTable::new();
        let parts = [(0, 0), (1, 1), (2, 511)];
        let parts = parts.map(|(start, end)| spec(LockKind::Posix, start, end, true));
        for part in &parts {
            assert_eq!(table.set(SessionId(1), part, None), Ok(LockState::Free));
        }
        table.session_lapsed(SessionId(1), CLIENT);
        for part in &parts {
            assert_eq!(table.restore(SessionId(3), CLIENT, part), Ok(()), "{part:?}");
        }
        table.is_back(CLIENT);
        assert_eq!(table.held_by(SessionId(3)), [spec(LockKind::Posix, 0, 511, true)]);
        // What somebody had of it in between is lost with all of it.
        table.session_lapsed(SessionId(3), CLIENT);
        assert_eq!(table.set(SessionId(2), &parts[1], None), Ok(LockState::Free));
        table.unset(SessionId(2), &parts[1]).unwrap();
        for part in &parts {
            assert_eq!(table.restore(SessionId(4), CLIENT, part), Err(Errno::EAGAIN), "{part:?}");
        }
    }

    #[test]
    fn a_client_of_an_earlier_start_gets_nothing_that_somebody_had_since() {
        let table = LockTable::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        table.on_taken(Box::new(move |taken| hears.lock().extend_from_slice(taken)));
        let (late, other) = (ClientId(41), ClientId(43));
        let had = spec(LockKind::Posix, 0, 9, true);
        let elsewhere = LockSpec { ino: Ino(8), ..had };
        [late, CLIENT, other].into_iter().for_each(|client| table.expect(client));
        // What was held together before the start comes back together.
        let shared = LockSpec { exclusive: false, ..elsewhere };
        assert_eq!(table.restore(SessionId(1), CLIENT, &shared), Ok(()));
        assert_eq!(table.restore(SessionId(2), other, &shared), Ok(()));
        [CLIENT, other].into_iter().for_each(|client| table.is_back(client));
        assert_eq!(table.set(SessionId(1), &had, None), Ok(LockState::Free));
        table.unset(SessionId(1), &had).unwrap();
        assert_eq!(table.restore(SessionId(3), late, &had), Err(Errno::EAGAIN), "it is free");
        assert_eq!(table.restore(SessionId(3), late, &shared), Ok(()), "nobody had that");
        assert!(told.lock().is_empty(), "the next start waits for it no more");

        // Of this start: what the next one has to know is told before who took it hears of it.
        table.session_lapsed(SessionId(2), other);
        assert_eq!(table.set(SessionId(1), &shared, None), Ok(LockState::Free));
        assert!(told.lock().is_empty(), "both may have it");
        table.drop_session(SessionId(3));
        assert_eq!(table.set(SessionId(1), &elsewhere, None), Ok(LockState::Free));
        assert_eq!(*told.lock(), [(other, Ino(8))]);
        let next = LockTable::new();
        next.was_taken(other, Some(Ino(8)));
        next.was_taken(CLIENT, None);
        assert_eq!(next.restore(SessionId(4), other, &shared), Err(Errno::EAGAIN));
        assert_eq!(next.restore(SessionId(4), other, &had), Ok(()));
        assert_eq!(next.restore(SessionId(5), CLIENT, &shared), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_waiter_that_gets_it_takes_it_too() {
        let table = LockTable::new();
        let had = spec(LockKind::Flock, 0, 0, true);
        table.set(SessionId(1), &had, None).unwrap();
        let waits = (forebay_proto::net::session::Ticket(1), Box::new(|_| ()) as _);
        assert_eq!(table.set(SessionId(2), &had, Some(waits)), Ok(LockState::Waits));
        table.session_lapsed(SessionId(1), CLIENT);
        table.drop_session(SessionId(2));
        assert_eq!(table.restore(SessionId(3), CLIENT, &had), Err(Errno::EAGAIN));
    }

    #[test]
    fn of_too_many_the_oldest_go() {
        let mut lapsed = Lapsed::default();
        for client in 0..MAX_CLIENTS as u64 + 5 {
            lapsed.add(ClientId(client), &[spec(LockKind::Flock, 0, 0, true)]);
        }
        assert_eq!((lapsed.clients.len(), lapsed.ranges), (MAX_CLIENTS, MAX_CLIENTS));
        assert!(!lapsed.clients.contains_key(&4) && lapsed.clients.contains_key(&5));
    }
}
