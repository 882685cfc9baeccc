//! What is locked on one inode, in one of its two worlds (flock; POSIX and OFD).
//!
//! Invariants: the ranges of one owner are sorted, disjoint and merged (neighbours of one mode
//! that touch are one range); ranges of different owners that overlap are all shared;
//! `exclusive` counts the exclusive ones; no owner has an empty list. Called by [`super::state`].

use forebay_proto::net::session::{LockKind, LockSpec, SessionId};
use forebay_proto::{Errno, Ino, Result};
use std::collections::BTreeMap;

/// The last byte that a file can have: a lock that ends here ends with the file, however long
/// it gets.
pub(super) const LAST_BYTE: u64 = u64::MAX >> 1;

/// Whether locks of these kinds can be in each other's way at all.
pub(super) fn same_world(a: LockKind, b: LockKind) -> bool {
    (a == LockKind::Flock) == (b == LockKind::Flock)
}

/// Whose lock: an owner's number is unique among all kinds of its session, as the kernel's are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) id: u64,
}

impl Owner {
    pub(super) fn of(session: SessionId, spec: &LockSpec) -> Owner {
        Owner { session, id: spec.owner }
    }
}

/// A locked range, or one that is asked for. Both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) exclusive: bool,
    pub(super) kind: LockKind,
    pub(super) pid: u32,
}

impl Range {
    /// EINVAL for a range without bytes. A flock is the whole file whatever the range says.
    pub(super) fn of(spec: &LockSpec) -> Result<Range> {
        let (start, end) = match spec.kind {
            LockKind::Flock => (0, LAST_BYTE),
            LockKind::Posix | LockKind::Ofd => (spec.start, spec.end.min(LAST_BYTE)),
        };
        if start > end {
            return Err(Errno::EINVAL);
        }
        Ok(Range { start, end, exclusive: spec.exclusive, kind: spec.kind, pid: spec.pid })
    }

    pub(super) fn spec(&self, ino: Ino, owner: u64) -> LockSpec {
        LockSpec {
            ino,
            kind: self.kind,
            owner,
            pid: self.pid,
            start: self.start,
            end: self.end,
            exclusive: self.exclusive,
        }
    }

    pub(super) fn overlaps(&self, other: &Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether two owners cannot have both.
    pub(super) fn conflicts(&self, other: &Range) -> bool {
        (self.exclusive || other.exclusive) && self.overlaps(other)
    }
}

/// The locks of one world of an inode.
#[derive(Default)]
pub(super) struct Book {
    owners: BTreeMap<Owner, Vec<Range>>,
    exclusive: usize,
}

impl Book {
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The ranges of an owner.
    pub(super) fn of(&self, owner: Owner) -> &[Range] {
        self.owners.get(&owner).map_or(&[], Vec::as_slice)
    }

    /// Owners other than `owner` that hold something in the way of `range`, each with the first
    /// such range.
    pub(super) fn in_the_way(
        &self,
        owner: Owner,
        range: Range,
    ) -> impl Iterator<Item = (Owner, Range)> {
        let none = !range.exclusive && self.exclusive == 0;
        let owners = (!none).then_some(&self.owners).into_iter().flatten();
        owners.filter(move |(other, _)| **other != owner).filter_map(move |(other, list)| {
            let from = list.partition_point(|held| held.end < range.start);
            let near = list[from..].iter().take_while(|held| held.start <= range.end);
            near.copied().find(|held| held.conflicts(&range)).map(|held| (*other, held))
        })
    }

    /// By how many ranges the owner's list grows at most when `range` is set or unset.
    pub(super) fn growth(&self, owner: Owner, range: &Range, set: bool) -> usize {
        let list = self.of(owner);
        let at = list.partition_point(|held| held.end < range.start);
        let split = list.get(at).is_some_and(|h| h.start < range.start && h.end > range.end);
        usize::from(split) + usize::from(set)
    }

    /// Gives the owner the range, in place of what it has there. Nothing of others is in the
    /// way. True if others may now have what they could not before.
    pub(super) fn set(&mut self, owner: Owner, range: Range) -> bool {
        let weakened = !range.exclusive
            && self.of(owner).iter().any(|held| held.exclusive && held.overlaps(&range));
        self.change(owner, |list| {
            cut(list, range.start, range.end);
            insert(list, range);
        });
        weakened
    }

    /// Takes a range from the owner. True if it had some of it.
    pub(super) fn unset(&mut self, owner: Owner, range: &Range) -> bool {
        if !self.of(owner).iter().any(|held| held.overlaps(range)) {
            return false;
        }
        self.change(owner, |list| cut(list, range.start, range.end));
        true
    }

    fn change(&mut self, owner: Owner, change: impl FnOnce(&mut Vec<Range>)) {
        let exclusive = |list: &[Range]| list.iter().filter(|held| held.exclusive).count();
        let list = self.owners.entry(owner).or_default();
        self.exclusive -= exclusive(list);
        change(list);
        self.exclusive += exclusive(list);
        if list.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// Takes everything from every owner of a session; the count of ranges.
    pub(super) fn drop_session(&mut self, session: SessionId) -> usize {
        let owners: Vec<Owner> = self.of_session(session).map(|(owner, _)| owner).collect();
        let mut count = 0;
        for owner in owners {
            count += self.of(owner).len();
            self.change(owner, Vec::clear);
        }
        count
    }

    /// What a session holds.
    pub(super) fn of_session(&self, session: SessionId) -> impl Iterator<Item = (Owner, &[Range])> {
        let all = Owner { session, id: 0 }..=Owner { session, id: u64::MAX };
        self.owners.range(all).map(|(owner, list)| (*owner, list.as_slice()))
    }
}

/// Takes the bytes `start..=end` out of a list; what sticks out on either side stays.
fn cut(list: &mut Vec<Range>, start: u64, end: u64) {
    let from = list.partition_point(|held| held.end < start);
    let to = list.partition_point(|held| held.start <= end);
    if from >= to {
        return;
    }
    let (first, last) = (list[from], list[to - 1]);
    let before = (first.start < start).then(|| Range { end: start - 1, ..first });
    let after = (last.end > end).then(|| Range { start: end + 1, ..last });
    list.splice(from..to, before.into_iter().chain(after));
}

/// Puts a range where nothing is, and merges it with neighbours of its mode that it touches.
fn insert(list: &mut Vec<Range>, mut range: Range) {
    let at = list.partition_point(|held| held.end < range.start);
    let joins = |a: &Range, b: &Range| a.exclusive == b.exclusive && a.end + 1 == b.start;
    let left = at.checked_sub(1).filter(|&i| joins(&list[i], &range));
    let right = list.get(at).filter(|next| joins(&range, next)).map(|next| next.end);
    range.start = left.map_or(range.start, |i| list[i].start);
    range.end = right.unwrap_or(range.end);
    list.splice(left.unwrap_or(at)..at + usize::from(right.is_some()), [range]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, exclusive: bool) -> Range {
        Range { start, end, exclusive, kind: LockKind::Posix, pid: 1 }
    }

    fn list(book: &Book, owner: Owner) -> Vec<(u64, u64, bool)> {
        book.of(owner).iter().map(|r| (r.start, r.end, r.exclusive)).collect()
    }

    #[test]
    fn ranges_split_and_merge() {
        let mut book = Book::default();
        let me = Owner { session: SessionId(1), id: 7 };
        book.set(me, range(0, 99, true));
        assert_eq!(book.growth(me, &range(40, 49, true), false), 1);
        assert!(book.unset(me, &range(40, 49, false)));
        assert_eq!(list(&book, me), [(0, 39, true), (50, 99, true)]);
        assert!(book.set(me, range(90, 120, false)), "a downgrade lets others in");
        assert_eq!(list(&book, me), [(0, 39, true), (50, 89, true), (90, 120, false)]);
        assert!(!book.set(me, range(40, 49, true)));
        assert_eq!(list(&book, me), [(0, 89, true), (90, 120, false)]);
        book.set(me, range(0, 120, true));
        assert_eq!(list(&book, me), [(0, 120, true)]);
        book.set(me, range(10, 20, false));
        assert_eq!(list(&book, me), [(0, 9, true), (10, 20, false), (21, 120, true)]);
        book.set(me, range(121, LAST_BYTE, true));
        assert_eq!(list(&book, me)[2], (21, LAST_BYTE, true));
        assert_eq!(book.exclusive, 2);
        assert!(book.unset(me, &range(0, LAST_BYTE, false)) && book.is_empty());
        assert_eq!(book.exclusive, 0);
        assert!(!book.unset(me, &range(0, LAST_BYTE, false)));
    }
}
