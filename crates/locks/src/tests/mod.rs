//! Tests of the lock table: each rule, random operations beside a naive model, many threads.

mod model;
mod rules;
mod stress;

use super::*;
use std::sync::mpsc::{Receiver, channel};

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

fn spec(
    kind: LockKind,
    owner: u64,
    range: std::ops::RangeInclusive<u64>,
    exclusive: bool,
) -> LockSpec {
    let (start, end) = range.into_inner();
    LockSpec { ino: Ino(2), kind, owner, pid: owner as u32, start, end, exclusive }
}

fn read(owner: u64, range: std::ops::RangeInclusive<u64>) -> LockSpec {
    spec(LockKind::Posix, owner, range, false)
}

fn write(owner: u64, range: std::ops::RangeInclusive<u64>) -> LockSpec {
    spec(LockKind::Posix, owner, range, true)
}

fn flock(owner: u64, exclusive: bool) -> LockSpec {
    spec(LockKind::Flock, owner, 0..=0, exclusive)
}

fn on(ino: u64, spec: LockSpec) -> LockSpec {
    LockSpec { ino: Ino(ino), ..spec }
}

/// A table and what its waiters were told.
struct Bench {
    table: Arc<LockTable>,
    told: Receiver<(u64, Result<()>)>,
    tell: std::sync::mpsc::Sender<(u64, Result<()>)>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(LockLimits::default())
    }

    fn with(limits: LockLimits) -> Bench {
        let (tell, told) = channel();
        Bench { table: LockTable::with_limits(limits), told, tell }
    }

    fn lock(&self, session: SessionId, spec: LockSpec) -> Result<()> {
        self.table.set(session, &spec, None).map(|state| assert_eq!(state, LockState::Free))
    }

    /// Asks with a waiter under `ticket`; the tickets of all sessions are distinct here.
    fn wait(&self, session: SessionId, ticket: u64, spec: LockSpec) -> Result<LockState> {
        let tell = self.tell.clone();
        let waiter = Box::new(move |result| tell.send((ticket, result)).unwrap());
        self.table.set(session, &spec, Some((Ticket(ticket), waiter)))
    }

    fn unlock(&self, session: SessionId, spec: LockSpec) {
        self.table.unset(session, &spec).unwrap();
    }

    /// What was told since the last time.
    fn told(&self) -> Vec<(u64, Result<()>)> {
        self.told.try_iter().collect()
    }

    fn ranges(&self, session: SessionId) -> Vec<(u64, u64, bool)> {
        let mut held: Vec<_> =
            self.table.held_by(session).iter().map(|h| (h.start, h.end, h.exclusive)).collect();
        held.sort_unstable();
        held
    }
}
