//! What fcntl owners have locked, and through which open file, as far as this mount was told.
//!
//! The kernel names an owner in each request: the open file itself for OFD locks, the process's
//! table of descriptors for POSIX locks. It does not say which of the two it is, nor does its
//! RELEASE tell the owner of OFD locks. Mostly we find out ([`crate::fcntl`]) and note the file.
//! Where we cannot, an owner is taken for a process's, and what it is shows in the end: a POSIX
//! owner's locks end with each FLUSH that names it, and a process that has locked through a file
//! sends one before that file's RELEASE. So FLUSH forgets the owner for the whole inode, and an
//! owner that is left when a file is released is the file itself, and its locks go.
//!
//! The kernel's name of an open file is its address. It may be another file's before the RELEASE
//! of the first is read, which waits in a queue of its own. So a file that is known to be the
//! owner is named by our number; and what an unknown owner has locked through one file is kept
//! apart from what it has locked through another, which must stay. (That leaves a moment between
//! a grant and its noting here in which such a late RELEASE can take it back.)
//!
//! Called by [`crate::locks`] under its lock.

use forebay_proto::Ino;
use std::collections::HashMap;

/// An fcntl lock that was granted, with the file that it was asked through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Through {
    pub(crate) ino: Ino,
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// What an open file that was released leaves locked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    pub(crate) owner: u64,
    /// `None`: all that the owner has.
    pub(crate) ranges: Option<Vec<(u64, u64)>>,
}

/// Disjoint and sorted in a list; both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    start: u64,
    end: u64,
    handle: u64,
}

#[derive(Default)]
struct OfOwner {
    /// Also of files through which nothing is locked any more: two requests at once may have
    /// been granted in another order than they were noted.
    handles: Vec<u64>,
    pieces: Vec<Piece>,
}

impl OfOwner {
    fn size(&self) -> usize {
        self.handles.len() + self.pieces.len()
    }

    fn cut(&mut self, start: u64, end: u64) {
        let from = self.pieces.partition_point(|piece| piece.end < start);
        let to = self.pieces.partition_point(|piece| piece.start <= end);
        if from >= to {
            return;
        }
        let (first, last) = (self.pieces[from], self.pieces[to - 1]);
        let before = (first.start < start).then(|| Piece { end: start - 1, ..first });
        let after = (last.end > end).then(|| Piece { start: end + 1, ..last });
        self.pieces.splice(from..to, before.into_iter().chain(after));
    }

    fn set(&mut self, mut piece: Piece) {
        self.cut(piece.start, piece.end);
        let mut at = self.pieces.partition_point(|other| other.end < piece.start);
        let next = self.pieces.get(at).filter(|next| next.handle == piece.handle);
        if let Some(next) = next.filter(|next| next.start == piece.end.saturating_add(1)).copied() {
            piece.end = next.end;
            self.pieces.remove(at);
        }
        let before = at.checked_sub(1).map(|i| self.pieces[i]);
        let before = before.filter(|before| before.handle == piece.handle);
        if let Some(before) = before.filter(|before| before.end + 1 == piece.start) {
            at -= 1;
            piece.start = before.start;
            self.pieces.remove(at);
        }
        self.pieces.insert(at, piece);
    }
}

/// All of a mount.
#[derive(Default)]
pub(crate) struct Locked {
    inodes: HashMap<Ino, HashMap<u64, OfOwner>>,
    /// Open files that have locked for themselves, with the kernel's names of them.
    files: HashMap<u64, u64>,
    size: usize,
}

/// Whose an fcntl lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// The open file's that it is asked through.
    File,
    /// A process's, or not known.
    Process,
    /// The owner was not met yet.
    NotMet,
}

impl Locked {
    /// Handles and ranges noted: what its memory goes with.
    pub(crate) fn size(&self) -> usize {
        self.size + self.files.len()
    }

    /// Whose an owner's lock through a file is.
    pub(crate) fn whose(&self, ino: Ino, handle: u64, owner: u64) -> Whose {
        if self.files.get(&handle) == Some(&owner) {
            return Whose::File;
        }
        let of = self.inodes.get(&ino).and_then(|owners| owners.get(&owner));
        let met = of.is_some_and(|of| of.handles.contains(&handle));
        if met { Whose::Process } else { Whose::NotMet }
    }

    /// The owner is the file itself.
    pub(crate) fn is_file(&mut self, handle: u64, owner: u64) {
        self.files.insert(handle, owner);
    }

    /// Forgets a file that is released. True if it has locked for itself.
    pub(crate) fn forget_own(&mut self, handle: u64) -> bool {
        self.files.remove(&handle).is_some()
    }

    fn change(&mut self, ino: Ino, owner: u64, change: impl FnOnce(&mut OfOwner)) {
        let of = self.inodes.entry(ino).or_default().entry(owner).or_default();
        let before = of.size();
        change(of);
        self.size = self.size + of.size() - before;
    }

    /// Notes a lock that was granted.
    pub(crate) fn set(&mut self, through: Through) {
        self.may_hold(through.ino, through.handle, through.owner);
        let Through { handle, start, end, .. } = through;
        self.change(through.ino, through.owner, |of| of.set(Piece { start, end, handle }));
    }

    /// Notes that an owner may hold something, not known what.
    pub(crate) fn may_hold(&mut self, ino: Ino, handle: u64, owner: u64) {
        self.change(ino, owner, |of| {
            if !of.handles.contains(&handle) {
                of.handles.push(handle);
            }
        });
    }

    /// Notes an unlock.
    pub(crate) fn unset(&mut self, ino: Ino, owner: u64, start: u64, end: u64) {
        let owners = self.inodes.get(&ino);
        if owners.is_some_and(|owners| owners.contains_key(&owner)) {
            self.change(ino, owner, |of| of.cut(start, end));
        }
    }

    /// Forgets an owner on an inode. True if it may hold locks.
    pub(crate) fn forget_owner(&mut self, ino: Ino, owner: u64) -> bool {
        let Some(owners) = self.inodes.get_mut(&ino) else { return false };
        let gone = owners.remove(&owner);
        if owners.is_empty() {
            self.inodes.remove(&ino);
        }
        self.size -= gone.as_ref().map_or(0, OfOwner::size);
        gone.is_some()
    }

    /// Forgets a file that is released. What it leaves locked is to be unlocked.
    pub(crate) fn forget_file(&mut self, ino: Ino, handle: u64) -> Vec<Left> {
        let Some(owners) = self.inodes.get(&ino) else { return Vec::new() };
        let through = owners.iter().filter(|(_, of)| of.handles.contains(&handle));
        let through: Vec<(u64, bool)> =
            through.map(|(owner, of)| (*owner, of.handles.len() == 1)).collect();
        let mut left = Vec::new();
        for (owner, alone) in through {
            let mut ranges = None;
            if alone {
                self.forget_owner(ino, owner);
            } else {
                self.change(ino, owner, |of| {
                    of.handles.retain(|other| *other != handle);
                    let ours = of.pieces.iter().filter(|piece| piece.handle == handle);
                    ranges = Some(ours.map(|piece| (piece.start, piece.end)).collect());
                    of.pieces.retain(|piece| piece.handle != handle);
                });
            }
            left.push(Left { owner, ranges });
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(2);

    fn through(handle: u64, owner: u64, start: u64, end: u64) -> Through {
        Through { ino: INO, handle, owner, start, end }
    }

    fn all(owner: u64) -> Left {
        Left { owner, ranges: None }
    }

    #[test]
    fn what_is_left_at_a_release_is_the_file_itself() {
        let mut locked = Locked::default();
        // A process, 100, through files 1 and 2; file 1 itself, 501.
        locked.set(through(1, 100, 0, 9));
        locked.set(through(1, 501, 20, 29));
        locked.set(through(2, 100, 5, 14));
        assert!(locked.forget_owner(INO, 100) && !locked.forget_owner(INO, 100));
        // The process has locked again, through 2, before the kernel tells of the end of 1.
        locked.set(through(2, 100, 0, 9));
        assert_eq!(locked.forget_file(INO, 1), [all(501)]);
        assert_eq!(locked.forget_file(INO, 1), []);
        assert!(locked.forget_owner(INO, 100));
        assert_eq!(locked.size(), 0);
    }

    #[test]
    fn a_late_release_leaves_the_locks_of_the_next_file_at_the_same_address() {
        let mut locked = Locked::default();
        locked.set(through(1, 501, 0, 99));
        locked.set(through(1, 501, 200, u64::MAX));
        locked.set(through(2, 501, 50, 149));
        locked.unset(INO, 501, 20, 29);
        let ranges = Some(vec![(0, 19), (30, 49), (200, u64::MAX)]);
        assert_eq!(locked.forget_file(INO, 1), [Left { owner: 501, ranges }]);
        assert_eq!(locked.forget_file(INO, 2), [all(501)]);
        assert_eq!(locked.size(), 0);
    }

    #[test]
    fn files_are_known_by_number() {
        let mut locked = Locked::default();
        assert_eq!(locked.whose(INO, 1, 501), Whose::NotMet);
        locked.is_file(1, 501);
        locked.set(through(1, 100, 0, 9));
        assert_eq!(locked.whose(INO, 1, 501), Whose::File);
        assert_eq!(locked.whose(INO, 1, 100), Whose::Process);
        assert_eq!(locked.whose(INO, 2, 501), Whose::NotMet, "another file at the same address");
        assert!(locked.forget_own(1) && !locked.forget_own(1));
        assert_eq!(locked.forget_file(INO, 1), [all(100)]);
        assert_eq!(locked.size(), 0);
    }

    #[test]
    fn neighbours_are_one_range() {
        let mut locked = Locked::default();
        for start in [0, 20, 10, 30] {
            locked.set(through(1, 7, start, start + 9));
        }
        assert_eq!(locked.size(), 2, "a handle and a range");
        locked.unset(INO, 7, 10, 10);
        locked.set(through(2, 7, 10, 10));
        assert_eq!(locked.size(), 5);
        locked.set(through(1, 7, 0, u64::MAX));
        assert_eq!(locked.size(), 3);
        locked.unset(INO, 7, 0, u64::MAX);
        assert_eq!(locked.size(), 2);
        assert!(locked.forget_owner(INO, 7), "it may hold what was granted out of order");
    }
}
