//! What a table knows, behind its one lock: who holds what, who waits for what.
//!
//! Invariants:
//! * after each call, no request waits that nothing stands in the way of, except one that
//!   another waiting request holds back ([`super::fair`]);
//! * a waiting request is in `waits`, in `tickets` and in its file's queue, or in none;
//! * a file without locks and requests is not in `files`;
//! * waiters are moved to the caller's list, never called here.

use super::book::{Book, Owner, Range, same_world};
use super::fair::Patience;
use super::lapsed::Lapsed;
use super::{LockCounts, LockLimits, SESSION_ENDED};
use forebay_proto::api::LockWaiter;
use forebay_proto::net::session::{LockKind, LockSpec, LockState, SessionId, Ticket};
use forebay_proto::{Errno, Ino, Result};
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Waiters to be called when the lock of the table is given back.
pub(super) type Ready = Vec<(LockWaiter, Result<()>)>;

/// A waiting request, in the order of arrival.
type Arrival = u64;

struct Wait {
    owner: Owner,
    ino: Ino,
    range: Range,
    ticket: Ticket,
    waiter: LockWaiter,
    patience: Patience,
}

#[derive(Default)]
struct File {
    flocks: Book,
    ranges: Book,
    queue: BTreeSet<Arrival>,
}

impl File {
    fn book(&self, kind: LockKind) -> &Book {
        match kind {
            LockKind::Flock => &self.flocks,
            LockKind::Posix | LockKind::Ofd => &self.ranges,
        }
    }

    fn book_mut(&mut self, kind: LockKind) -> &mut Book {
        match kind {
            LockKind::Flock => &mut self.flocks,
            LockKind::Posix | LockKind::Ofd => &mut self.ranges,
        }
    }
}

#[derive(Default)]
struct Usage {
    held: usize,
    waiting: usize,
}

/// The state of a table.
pub(super) struct LockTableState {
    limits: LockLimits,
    files: HashMap<Ino, File>,
    waits: HashMap<Arrival, Wait>,
    tickets: HashMap<(SessionId, Ticket), Arrival>,
    posix_waits: HashMap<Owner, BTreeSet<Arrival>>,
    sessions: HashMap<SessionId, Usage>,
    held: usize,
    next_arrival: Arrival,
    /// Requests that hold newcomers back.
    holding: BTreeSet<Arrival>,
    pub(super) lapsed: Lapsed,
}

impl LockTableState {
    pub(super) fn new(limits: LockLimits) -> LockTableState {
        LockTableState {
            limits,
            files: HashMap::new(),
            waits: HashMap::new(),
            tickets: HashMap::new(),
            posix_waits: HashMap::new(),
            sessions: HashMap::new(),
            held: 0,
            next_arrival: 0,
            holding: BTreeSet::new(),
            lapsed: Lapsed::default(),
        }
    }

    pub(super) fn book(&self, ino: Ino, kind: LockKind) -> Option<&Book> {
        self.files.get(&ino).map(|file| file.book(kind))
    }

    pub(super) fn posix_waits_of(&self, owner: Owner) -> impl Iterator<Item = (Ino, Range)> {
        let arrivals = self.posix_waits.get(&owner).into_iter().flatten();
        arrivals.filter_map(|a| self.waits.get(a)).map(|wait| (wait.ino, wait.range))
    }

    pub(super) fn counts(&self) -> LockCounts {
        LockCounts { held: self.held, waiting: self.waits.len() }
    }

    pub(super) fn set(
        &mut self,
        session: SessionId,
        spec: &LockSpec,
        range: Range,
        wait: Option<(Ticket, LockWaiter)>,
        ready: &mut Ready,
    ) -> Result<LockState> {
        let (owner, ino) = (Owner::of(session, spec), spec.ino);
        if let Some((ticket, _)) = &wait {
            if self.tickets.contains_key(&(session, *ticket)) {
                return Err(Errno::EEXIST);
            }
        }
        if self.has_exactly(owner, ino, &range) {
            return Ok(LockState::Free);
        }
        self.room_for(owner, ino, &range, true)?;
        let converted = range.kind == LockKind::Flock && self.take(owner, ino, &range);
        let mut weakened = converted;
        let out = self.set_or_wait(owner, ino, range, wait, &mut weakened, ready);
        if weakened {
            self.go_on(ino, ready);
        }
        self.tidy(ino);
        out
    }

    /// Asking for what one has changes nothing (an flock of another mode does).
    fn has_exactly(&self, owner: Owner, ino: Ino, range: &Range) -> bool {
        let Some(book) = self.book(ino, range.kind) else { return false };
        let covers = |held: &Range| {
            held.exclusive == range.exclusive && held.start <= range.start && held.end >= range.end
        };
        book.of(owner).iter().any(covers)
    }

    fn set_or_wait(
        &mut self,
        owner: Owner,
        ino: Ino,
        range: Range,
        wait: Option<(Ticket, LockWaiter)>,
        weakened: &mut bool,
        ready: &mut Ready,
    ) -> Result<LockState> {
        let blocked = self.is_blocked(owner, ino, range);
        let arrival = self.next_arrival;
        let Some((ticket, waiter)) = wait else {
            if blocked {
                return Err(Errno::EAGAIN);
            }
            *weakened |= self.grant(owner, ino, range, arrival, ready);
            return Ok(LockState::Free);
        };
        if !blocked && !self.is_held_back(owner, ino, range, arrival) {
            *weakened |= self.grant(owner, ino, range, arrival, ready);
            return Ok(LockState::Free);
        }
        if blocked && self.closes_a_circle(owner, ino, range) {
            return Err(Errno::EDEADLK);
        }
        let of_session = self.sessions.get(&owner.session).map_or(0, |usage| usage.waiting);
        if self.waits.len() >= self.limits.waiting || of_session >= self.limits.waiting_of_session {
            return Err(Errno::ENOLCK);
        }
        self.sessions.entry(owner.session).or_default().waiting += 1;
        self.next_arrival += 1;
        self.tickets.insert((owner.session, ticket), arrival);
        if range.kind == LockKind::Posix {
            self.posix_waits.entry(owner).or_default().insert(arrival);
        }
        self.files.entry(ino).or_default().queue.insert(arrival);
        let patience = Patience::new();
        self.waits.insert(arrival, Wait { owner, ino, range, ticket, waiter, patience });
        Ok(LockState::Waits)
    }

    fn is_blocked(&self, owner: Owner, ino: Ino, range: Range) -> bool {
        let book = self.book(ino, range.kind);
        book.is_some_and(|book| book.in_the_way(owner, range).next().is_some())
    }

    /// Whether a request that waits longer holds this one back. Who holds something of the file
    /// already is not held back: others may wait for it.
    fn is_held_back(&self, owner: Owner, ino: Ino, range: Range, arrival: Arrival) -> bool {
        let holds_some = || self.book(ino, range.kind).is_some_and(|b| !b.of(owner).is_empty());
        let mut older = self.holding.range(..arrival).filter_map(|a| self.waits.get(a));
        older.any(|w| w.ino == ino && w.stands_against(owner, &range)) && !holds_some()
    }

    /// Makes the lock held, by a request that came at `arrival`. True if others may now have what
    /// they could not before.
    fn grant(
        &mut self,
        owner: Owner,
        ino: Ino,
        range: Range,
        arrival: Arrival,
        ready: &mut Ready,
    ) -> bool {
        self.lapsed.granted(ino, &range);
        let file = self.files.entry(ino).or_default();
        let book = file.book_mut(range.kind);
        let before = book.of(owner).len();
        let weakened = book.set(owner, range);
        let after = book.of(owner).len();
        self.count_held(owner.session, before, after);
        let Some(file) = self.files.get(&ino) else { return weakened };
        for older in file.queue.range(..arrival) {
            let Some(wait) = self.waits.get_mut(older) else { continue };
            if wait.stands_against(owner, &range) && wait.patience.overtaken() {
                self.holding.insert(*older);
            }
        }
        if self.posix_waits.contains_key(&owner) {
            // Another thread of the owner waits: who waits for this lock now waits for that.
            self.fail_circles(ino, ready);
        }
        weakened
    }

    fn count_held(&mut self, session: SessionId, before: usize, after: usize) {
        let usage = self.sessions.entry(session).or_default();
        usage.held = usage.held + after - before;
        self.held = self.held + after - before;
        if usage.held == 0 && usage.waiting == 0 {
            self.sessions.remove(&session);
        }
    }

    fn room_for(&self, owner: Owner, ino: Ino, range: &Range, set: bool) -> Result<()> {
        let growth = match self.book(ino, range.kind) {
            Some(book) => book.growth(owner, range, set),
            None => usize::from(set),
        };
        let held = self.sessions.get(&owner.session).map_or(0, |usage| usage.held);
        let full =
            self.held + growth > self.limits.held || held + growth > self.limits.held_by_session;
        if growth > 0 && full { Err(Errno::ENOLCK) } else { Ok(()) }
    }

    /// Takes a range from its owner. True if it had some of it.
    fn take(&mut self, owner: Owner, ino: Ino, range: &Range) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        let book = file.book_mut(range.kind);
        let before = book.of(owner).len();
        let had = book.unset(owner, range);
        let after = book.of(owner).len();
        self.count_held(owner.session, before, after);
        had
    }

    pub(super) fn unset(
        &mut self,
        owner: Owner,
        ino: Ino,
        range: &Range,
        bounded: bool,
        ready: &mut Ready,
    ) -> Result<()> {
        if bounded {
            self.room_for(owner, ino, range, false)?;
        }
        if self.take(owner, ino, range) {
            self.go_on(ino, ready);
        }
        self.tidy(ino);
        Ok(())
    }

    /// Grants, in the order of arrival, all that can go.
    fn go_on(&mut self, ino: Ino, ready: &mut Ready) {
        // Each further round was made possible by a waiting downgrade that was granted.
        while self.grant_round(ino, ready) {}
    }

    fn grant_round(&mut self, ino: Ino, ready: &mut Ready) -> bool {
        let Some(file) = self.files.get(&ino) else { return false };
        let mut weakened = false;
        for arrival in file.queue.iter().copied().collect::<Vec<_>>() {
            let Some(wait) = self.waits.get(&arrival) else { continue };
            let (owner, range) = (wait.owner, wait.range);
            if self.is_blocked(owner, ino, range) || self.is_held_back(owner, ino, range, arrival) {
                continue;
            }
            let result = self.room_for(owner, ino, &range, true);
            self.end_wait(arrival, result, ready);
            if result.is_ok() {
                weakened |= self.grant(owner, ino, range, arrival, ready);
            }
        }
        weakened
    }

    /// Fails requests on a file that have become part of a circle.
    fn fail_circles(&mut self, ino: Ino, ready: &mut Ready) {
        let Some(file) = self.files.get(&ino) else { return };
        for arrival in file.queue.iter().copied().collect::<Vec<_>>() {
            let Some(wait) = self.waits.get(&arrival) else { continue };
            if self.closes_a_circle(wait.owner, ino, wait.range) {
                self.end_wait(arrival, Err(Errno::EDEADLK), ready);
            }
        }
    }

    fn end_wait(&mut self, arrival: Arrival, result: Result<()>, ready: &mut Ready) {
        let Some(wait) = self.waits.remove(&arrival) else { return };
        self.tickets.remove(&(wait.owner.session, wait.ticket));
        self.holding.remove(&arrival);
        if let Some(file) = self.files.get_mut(&wait.ino) {
            file.queue.remove(&arrival);
        }
        if let Some(waits) = self.posix_waits.get_mut(&wait.owner) {
            waits.remove(&arrival);
            if waits.is_empty() {
                self.posix_waits.remove(&wait.owner);
            }
        }
        if let Some(usage) = self.sessions.get_mut(&wait.owner.session) {
            usage.waiting -= 1;
            if usage.held == 0 && usage.waiting == 0 {
                self.sessions.remove(&wait.owner.session);
            }
        }
        ready.push((wait.waiter, result));
    }

    pub(super) fn cancel(&mut self, session: SessionId, ticket: Ticket, ready: &mut Ready) {
        let Some(&arrival) = self.tickets.get(&(session, ticket)) else { return };
        let held_back_others = self.holding.contains(&arrival);
        let ino = self.waits.get(&arrival).map(|wait| wait.ino);
        self.end_wait(arrival, Err(Errno::EINTR), ready);
        if let Some(ino) = ino {
            if held_back_others {
                self.go_on(ino, ready);
            }
            self.tidy(ino);
        }
    }

    pub(super) fn drop_session(&mut self, session: SessionId, ready: &mut Ready) {
        let of_session = |(arrival, wait): (&Arrival, &Wait)| {
            (wait.owner.session == session).then_some(*arrival)
        };
        let waiting: Vec<Arrival> = self.waits.iter().filter_map(of_session).collect();
        let mut inos: BTreeSet<Ino> =
            waiting.iter().filter_map(|a| self.waits.get(a)).map(|wait| wait.ino).collect();
        for arrival in waiting {
            self.end_wait(arrival, Err(SESSION_ENDED), ready);
        }
        let mut dropped = 0;
        for (ino, file) in &mut self.files {
            let count = file.flocks.drop_session(session) + file.ranges.drop_session(session);
            if count > 0 {
                inos.insert(*ino);
            }
            dropped += count;
        }
        self.count_held(session, dropped, 0);
        for ino in inos {
            self.go_on(ino, ready);
            self.tidy(ino);
        }
    }

    pub(super) fn held_by(&self, session: SessionId) -> Vec<LockSpec> {
        let mut out = Vec::new();
        for (&ino, file) in &self.files {
            for book in [&file.flocks, &file.ranges] {
                for (owner, list) in book.of_session(session) {
                    out.extend(list.iter().map(|held| held.spec(ino, owner.id)));
                }
            }
        }
        out
    }

    fn tidy(&mut self, ino: Ino) {
        let empty = |f: &File| f.flocks.is_empty() && f.ranges.is_empty() && f.queue.is_empty();
        if self.files.get(&ino).is_some_and(empty) {
            self.files.remove(&ino);
        }
    }

    /// When the first hold ends, if there is one.
    pub(super) fn next_end_of_hold(&self) -> Option<Instant> {
        let holding = self.holding.iter().filter_map(|a| self.waits.get(a));
        holding.filter_map(|wait| wait.patience.holds_until).min()
    }

    /// Lets newcomers go that were held back long enough.
    pub(super) fn end_holds(&mut self, ready: &mut Ready) {
        let now = Instant::now();
        for arrival in self.holding.iter().copied().collect::<Vec<_>>() {
            let Some(wait) = self.waits.get_mut(&arrival) else { continue };
            if wait.patience.holds_until.is_none_or(|until| until <= now) {
                wait.patience.holds_until = None;
                let ino = wait.ino;
                self.holding.remove(&arrival);
                self.go_on(ino, ready);
            }
        }
    }
}

impl Wait {
    /// Whether a lock of somebody else would be in the way of this request.
    fn stands_against(&self, owner: Owner, range: &Range) -> bool {
        self.owner != owner
            && same_world(self.range.kind, range.kind)
            && self.range.conflicts(range)
    }
}
