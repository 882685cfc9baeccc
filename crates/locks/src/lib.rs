//! The locks of one buffer: flock, POSIX (`fcntl`) and OFD locks of all its mounts.
//!
//! The semantics are Linux's own (fs/locks.c), over sessions: an owner is (session, number).
//! * flock locks are a world of their own: whole files; another mode by the same owner is first
//!   an unlock, then a new request, so a conversion that fails or waits has lost the old lock.
//! * POSIX and OFD locks are ranges and see each other. An owner's own locks never stand in its
//!   way: they are replaced, split and merged, at the moment of the grant.
//! * A POSIX request that would wait in a circle of waiting POSIX requests is EDEADLK, also when
//!   the circle closes while it waits. OFD and flock requests wait for ever, as in Linux.
//! * Who asks for what nobody holds gets it, also while others wait: a program that holds a
//!   shared lock and waits for a child that takes one, too, must not hang because of a writer in
//!   between. So that no waiting request starves, one that was overtaken often holds newcomers
//!   back for a while ([`fair`]). Requests that wait are granted in the order of their arrival.
//!
//! Tables are bounded ([`LockLimits`]); beyond is ENOLCK. Waiters are called with no lock of the
//! table held, by whoever made the grant possible, or by the table's own timer.
//!
//! Called by the server's sessions, and by tests through [`SessionLocks`].

mod book;
mod fair;
mod graph;
mod lapsed;
mod session;
mod state;
#[cfg(test)]
mod tests;

pub use session::SessionLocks;

use book::{Owner, Range};
use fair::Timer;
use forebay_proto::api::LockWaiter;
use forebay_proto::net::session::{ClientId, LockKind, LockSpec, LockState, SessionId, Ticket};
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;
use state::{LockTableState, Ready};
use std::sync::{Arc, OnceLock, Weak};

/// Bounds of a table. Beyond them a lock, or an unlock that would split one, is ENOLCK.
#[derive(Clone, Copy, Debug)]
pub struct LockLimits {
    /// Most ranges held.
    pub held: usize,
    /// Most ranges held by one session, so that one mount cannot take all.
    pub held_by_session: usize,
    /// Most requests waiting.
    pub waiting: usize,
    /// Most requests waiting of one session.
    pub waiting_of_session: usize,
}

impl Default for LockLimits {
    /// About 100 MB when all is full.
    fn default() -> LockLimits {
        LockLimits {
            held: 1 << 20,
            held_by_session: 1 << 18,
            waiting: 1 << 17,
            waiting_of_session: 1 << 15,
        }
    }
}

/// How full a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockCounts {
    /// Ranges held.
    pub held: usize,
    /// Requests waiting.
    pub waiting: usize,
}

/// Is told whose locks on which files somebody else got while their client was away, before that one hears of it. With no lock
/// of the table held.
pub type OnTaken = Box<dyn Fn(&[(ClientId, Ino)]) + Send + Sync>;

/// The table.
pub struct LockTable {
    state: Mutex<LockTableState>,
    timer: Timer,
    on_taken: OnceLock<OnTaken>,
    me: Weak<LockTable>,
}

/// Tells waiters what came of their requests. No lock of the table is held.
fn tell(ready: Ready) {
    for (waiter, result) in ready {
        waiter(result);
    }
}

impl LockTable {
    /// An empty table.
    pub fn new() -> Arc<LockTable> {
        LockTable::with_limits(LockLimits::default())
    }

    /// An empty table with other bounds.
    pub fn with_limits(limits: LockLimits) -> Arc<LockTable> {
        Arc::new_cyclic(|me| LockTable {
            state: Mutex::new(LockTableState::new(limits)),
            timer: Timer::default(),
            on_taken: OnceLock::new(),
            me: me.clone(),
        })
    }

    /// Who is told what must be known at the next start of the server. Once.
    pub fn on_taken(&self, tell: OnTaken) {
        let _ = self.on_taken.set(tell);
    }

    /// Whoever has got something meanwhile waits here, too, until it is told.
    fn tell_taken(&self, taken: &[(ClientId, Ino)]) {
        if taken.is_empty() {
            return;
        }
        if let Some(tell) = self.on_taken.get() {
            tell(taken);
        }
        self.state.lock().lapsed.told(taken);
    }

    /// Changes the state, then tells waiters what came of it.
    fn change<T>(&self, change: impl FnOnce(&mut LockTableState, &mut Ready) -> T) -> T {
        let mut ready = Ready::new();
        let (out, wake_at, taken) = {
            let mut state = self.state.lock();
            let out = change(&mut state, &mut ready);
            (out, state.next_end_of_hold(), state.lapsed.untold())
        };
        self.tell_taken(&taken);
        if let Some(at) = wake_at {
            self.timer.wake_at(&self.me, at);
        }
        tell(ready);
        out
    }

    /// A lock of another owner that is in the way, with whose session it is.
    pub fn test(
        &self,
        session: SessionId,
        spec: &LockSpec,
    ) -> Result<Option<(SessionId, LockSpec)>> {
        let range = Range::of(spec)?;
        let state = self.state.lock();
        let Some(book) = state.book(spec.ino, spec.kind) else { return Ok(None) };
        let first = book
            .in_the_way(Owner::of(session, spec), range)
            .min_by_key(|(owner, held)| (held.start, *owner));
        Ok(first.map(|(owner, held)| (owner.session, held.spec(spec.ino, owner.id))))
    }

    /// Locks; what the owner holds in the range is replaced. `Free`: done. `Waits`: somebody is
    /// in the way, and the waiter will be called, by another call than this one, with what came
    /// of it. EAGAIN: somebody is in the way and there is no waiter. EDEADLK, ENOLCK: see
    /// the module. EEXIST: the session has a request waiting under this ticket.
    pub fn set(
        &self,
        session: SessionId,
        spec: &LockSpec,
        wait: Option<(Ticket, LockWaiter)>,
    ) -> Result<LockState> {
        let range = Range::of(spec)?;
        self.change(|state, ready| state.set(session, spec, range, wait, ready))
    }

    /// Unlocks a range of what the owner holds (all of a flock).
    pub fn unset(&self, session: SessionId, spec: &LockSpec) -> Result<()> {
        let range = Range::of(spec)?;
        self.change(|state, ready| {
            state.unset(Owner::of(session, spec), spec.ino, &range, true, ready)
        })
    }

    /// Gives up a request that waits: its waiter is called with EINTR. Nothing happens if it was
    /// granted or has failed before.
    pub fn cancel(&self, session: SessionId, ticket: Ticket) {
        self.change(|state, ready| state.cancel(session, ticket, ready));
    }

    /// Unlocks all that an owner holds on an inode (in the world of `kind`).
    pub fn drop_owner(&self, session: SessionId, ino: Ino, kind: LockKind, owner: u64) {
        let all = Range { start: 0, end: book::LAST_BYTE, exclusive: false, kind, pid: 0 };
        let owner = Owner { session, id: owner };
        // Nothing is split by taking everything, so this cannot fail.
        let _ = self.change(|state, ready| state.unset(owner, ino, &all, false, ready));
    }

    /// Ends a session: its requests that wait fail with ENOLCK, its locks go.
    pub fn drop_session(&self, session: SessionId) {
        self.change(|state, ready| state.drop_session(session, ready));
    }

    /// Ends a session without its client's doing. The client may come back, and finds what nobody else had meanwhile.
    pub fn session_lapsed(&self, session: SessionId, client: ClientId) {
        self.change(|state, ready| {
            let held = state.held_by(session);
            state.lapsed.add(client, &held);
            state.drop_session(session, ready);
        });
    }

    /// A client of an earlier start of the server may come back.
    pub fn expect(&self, client: ClientId) {
        self.state.lock().lapsed.expect(client);
    }

    /// Somebody had locks of a client of an earlier start, on this file, or nobody knows on which.
    pub fn was_taken(&self, client: ClientId, ino: Option<Ino>) {
        self.state.lock().lapsed.was_taken(client, ino);
    }

    /// A client that had lapsed has said what it holds, or will not come back.
    pub fn is_back(&self, client: ClientId) {
        self.state.lock().lapsed.end(client);
    }

    /// What a session holds, in no order: for a reclaim after the server's restart.
    pub fn held_by(&self, session: SessionId) -> Vec<LockSpec> {
        self.state.lock().held_by(session)
    }

    /// Gives a session back what its client held before the server's restart, or before its session lapsed. EAGAIN
    /// if somebody else has it, or had it in between.
    pub fn restore(&self, session: SessionId, client: ClientId, spec: &LockSpec) -> Result<()> {
        let range = Range::of(spec)?;
        self.change(|state, ready| {
            if !state.lapsed.is_still_its(client, spec) {
                return Err(Errno::EAGAIN);
            }
            // What was one range may come back in parts, as it was locked: the first takes nothing from the others.
            let own = state.lapsed.set_aside(client);
            let done = state.set(session, spec, range, None, ready);
            state.lapsed.put_back(client, own);
            done.map(|_| ())
        })
    }

    /// How full it is.
    pub fn counts(&self) -> LockCounts {
        self.state.lock().counts()
    }

    /// Lets requests go that were held back long enough, and says when to come again.
    fn end_holds(&self) -> Option<std::time::Instant> {
        let mut ready = Ready::new();
        let (next, taken) = {
            let mut state = self.state.lock();
            state.end_holds(&mut ready);
            (state.next_end_of_hold(), state.lapsed.untold())
        };
        self.tell_taken(&taken);
        tell(ready);
        next
    }
}

/// Why a request of a session that ended has failed: fcntl(2) has it for a remote lock protocol
/// that failed. Not EINTR: the kernel would restart a call that no signal has interrupted.
const SESSION_ENDED: Errno = Errno::ENOLCK;
