//! Deadlocks: circles of owners of POSIX locks, each waiting for the next.
//!
//! An owner waits for everybody who holds something in the way of one of its waiting requests.
//! Only POSIX requests count: an OFD lock or flock is not a process's, so that its owner waits
//! does not tell that nobody else will unlock it. Called by [`super::state`] under its lock.

use super::book::{Owner, Range};
use super::state::LockTableState;
use forebay_proto::Ino;
use forebay_proto::net::session::LockKind;
use std::collections::HashSet;

/// Most owners looked at in one search. A circle that is longer is not found.
const MAX_OWNERS_SEARCHED: usize = 4096;

impl LockTableState {
    /// Whether a request of `owner` that waits, or would, is part of a circle.
    pub(super) fn closes_a_circle(&self, owner: Owner, ino: Ino, range: Range) -> bool {
        if range.kind != LockKind::Posix {
            return false;
        }
        let mut seen = HashSet::new();
        let mut open = self.holders_in_the_way(owner, ino, range);
        while let Some(holder) = open.pop() {
            if holder == owner {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            if seen.len() > MAX_OWNERS_SEARCHED {
                tracing::warn!("a search for deadlocked locks was given up: too many owners");
                return false;
            }
            for (ino, range) in self.posix_waits_of(holder) {
                open.extend(self.holders_in_the_way(holder, ino, range));
            }
        }
        false
    }

    fn holders_in_the_way(&self, owner: Owner, ino: Ino, range: Range) -> Vec<Owner> {
        let book = self.book(ino, range.kind);
        book.map_or_else(Vec::new, |b| b.in_the_way(owner, range).map(|(o, _)| o).collect())
    }
}
