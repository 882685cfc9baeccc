//! What this mount has locked at the server of the locks, so that a restarted one can be told, and what it
//! had locked and lost: a mount that was stopped or cut off for longer than its lease finds that others have
//! got its locks.
//!
//! Invariants
//! * Who has lost a lock on a file reads and writes nothing there, and locks nothing, until it has unlocked or
//!   closed what it lost: it would go on as if nobody else had been there. Each is EIO.
//! * Who has a lock on a file reads and writes there only while this mount's session at the server of the
//!   locks lives, by this mount's clock.
//! * A call on a file's data is not made again, after a failure, if a lock on that file was lost since it began,
//!   whoever makes it.
//!
//! One for all servers of a mount: data may be at other servers than the locks. Called by `locks` and `peer`.

use super::peer::{Peer, Room};
use forebay_proto::api::LockUser;
use forebay_proto::net::Call;
use forebay_proto::net::session::{LockKind, LockSpec};
use forebay_proto::{Caller, Errno, Ino, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// What a lock belongs to, in this mount.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Owner {
    pub(super) ino: Ino,
    pub(super) kind: LockKind,
    pub(super) owner: u64,
}

impl Owner {
    pub(super) fn of(spec: &LockSpec) -> Owner {
        Owner { ino: spec.ino, kind: spec.kind, owner: spec.owner }
    }

    /// True if this may be who uses the file: without a process's name, each process may be.
    fn may_be(&self, ino: Ino, user: LockUser) -> bool {
        self.ino == ino
            && match self.kind {
                LockKind::Flock | LockKind::Ofd => self.owner == user.handle,
                LockKind::Posix => user.process.is_none_or(|process| self.owner == process),
            }
    }
}

/// Ranges by owner; those of one do not overlap, and there are no empty lists.
type Ranges = HashMap<Owner, Vec<LockSpec>>;

/// The locks that this mount holds, and those that it has lost.
#[derive(Default)]
struct LockRanges {
    held: Ranges,
    lost: Ranges,
}

/// How many locks had been lost when a call began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Losses(u64);

/// The locks of one mount.
#[derive(Default)]
pub(super) struct HeldLocks {
    state: Mutex<LockRanges>,
    /// Owners that hold or lost something: most mounts have none, and look no further.
    owners: AtomicUsize,
    losses: AtomicU64,
    keeper: OnceLock<Weak<Peer>>,
}

fn cut(ranges: &mut Vec<LockSpec>, spec: &LockSpec) {
    let mut left = Vec::with_capacity(ranges.len() + 1);
    for held in ranges.drain(..) {
        if held.end < spec.start || spec.end < held.start {
            left.push(held);
            continue;
        }
        if held.start < spec.start {
            left.push(LockSpec { end: spec.start - 1, ..held });
        }
        if held.end > spec.end {
            left.push(LockSpec { start: spec.end + 1, ..held });
        }
    }
    *ranges = left;
}

fn unset(all: &mut Ranges, spec: &LockSpec) {
    if let Some(ranges) = all.get_mut(&Owner::of(spec)) {
        cut(ranges, spec);
        if ranges.is_empty() {
            all.remove(&Owner::of(spec));
        }
    }
}

impl HeldLocks {
    /// Names the server of the locks; once.
    pub(super) fn set_keeper(&self, keeper: &Arc<Peer>) {
        // The second of two is the same.
        let _same = self.keeper.set(Arc::downgrade(keeper));
    }

    fn change<T>(&self, change: impl FnOnce(&mut LockRanges) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.owners.store(state.held.len() + state.lost.len(), Ordering::Release);
        result
    }

    pub(super) fn set(&self, spec: &LockSpec) {
        self.change(|state| {
            let ranges = state.held.entry(Owner::of(spec)).or_default();
            cut(ranges, spec);
            ranges.push(*spec);
        });
    }

    pub(super) fn unset(&self, spec: &LockSpec) {
        self.change(|state| {
            unset(&mut state.held, spec);
            unset(&mut state.lost, spec);
        });
    }

    /// True if the owner held something.
    pub(super) fn drop_owner(&self, owner: Owner) -> bool {
        self.change(|state| {
            state.lost.remove(&owner);
            state.held.remove(&owner).is_some()
        })
    }

    /// Of a range: what its owner holds there, and what it does not.
    pub(super) fn within(&self, spec: &LockSpec) -> (Vec<LockSpec>, Vec<LockSpec>) {
        let state = self.state.lock();
        let of = state.held.get(&Owner::of(spec)).map_or(&[][..], Vec::as_slice);
        let meets = of.iter().filter(|held| held.start <= spec.end && spec.start <= held.end);
        let held: Vec<LockSpec> = meets
            .map(|held| LockSpec {
                start: held.start.max(spec.start),
                end: held.end.min(spec.end),
                ..*held
            })
            .collect();
        let mut gaps = vec![*spec];
        held.iter().for_each(|held| cut(&mut gaps, held));
        (held, gaps)
    }

    pub(super) fn all(&self) -> Vec<LockSpec> {
        self.state.lock().held.values().flatten().copied().collect()
    }

    /// Somebody else has got these.
    pub(super) fn lose(&self, lost: &[LockSpec]) {
        self.change(|state| {
            for spec in lost {
                unset(&mut state.held, spec);
                state.lost.entry(Owner::of(spec)).or_default().push(*spec);
            }
            self.losses.fetch_add(1, Ordering::Release);
        });
    }

    /// EIO for an owner that has lost something on the file.
    pub(super) fn must_not_be_lost(&self, owner: Owner) -> Result<()> {
        match self.state.lock().lost.contains_key(&owner) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    fn has_none(&self) -> bool {
        self.owners.load(Ordering::Acquire) == 0
    }

    /// Before who that is uses the data of a file.
    pub(super) fn may_use(&self, ino: Ino, user: LockUser) -> Result<()> {
        if self.has_none() {
            return Ok(());
        }
        let has_lost = |state: &LockRanges| state.lost.keys().any(|owner| owner.may_be(ino, user));
        let state = self.state.lock();
        if has_lost(&state) {
            return Err(Errno::EIO);
        }
        let own = |kind, owner| state.held.contains_key(&Owner { ino, kind, owner });
        let holds = own(LockKind::Flock, user.handle)
            || own(LockKind::Ofd, user.handle)
            || match user.process {
                Some(process) => own(LockKind::Posix, process),
                None => state.held.keys().any(|owner| owner.may_be(ino, user)),
            };
        drop(state);
        if holds {
            self.hear_of_losses(None)?;
            if has_lost(&self.state.lock()) {
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }

    /// If the session at the server of the locks may be over, asks there: a new session tells what was lost.
    /// Not for a call at that very server: it meets a new session by itself, and another call beside it
    /// could wait for ever for one of the slots that calls like it have.
    fn hear_of_losses(&self, called_at: Option<&Peer>) -> Result<()> {
        let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) else { return Ok(()) };
        let is_itself = called_at.is_some_and(|peer| std::ptr::eq(peer, &raw const *keeper));
        if is_itself || !keeper.kept.lease_left().is_zero() {
            return Ok(());
        }
        keeper.call(&Caller::root(), Call::Renew, &[], Room::None).map(drop)
    }

    /// A call begins.
    pub(super) fn losses(&self) -> Losses {
        Losses(self.losses.load(Ordering::Acquire))
    }

    /// Before a call at a server on a file's data, that began then and failed, is made again.
    pub(super) fn may_use_again(&self, at: &Peer, ino: Ino, since: Losses) -> Result<()> {
        if self.has_none() {
            return Ok(());
        }
        if self.state.lock().held.keys().any(|owner| owner.ino == ino) {
            self.hear_of_losses(Some(at))?;
        }
        self.must_not_have_lost(ino, since)
    }

    fn must_not_have_lost(&self, ino: Ino, since: Losses) -> Result<()> {
        let state = self.state.lock();
        match self.losses() != since && state.lost.keys().any(|owner| owner.ino == ino) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    fn spec(kind: LockKind, owner: u64, start: u64, end: u64) -> LockSpec {
        LockSpec { ino: INO, kind, owner, pid: 1, start, end, exclusive: true }
    }

    fn posix(start: u64, end: u64) -> LockSpec {
        spec(LockKind::Posix, 1, start, end)
    }

    #[test]
    fn ranges_are_replaced_and_split() {
        let held = HeldLocks::default();
        held.set(&LockSpec { exclusive: false, ..posix(0, 99) });
        held.set(&posix(20, 29));
        held.unset(&posix(90, u64::MAX));
        let mut all: Vec<_> = held.all().iter().map(|s| (s.start, s.end, s.exclusive)).collect();
        all.sort_unstable();
        assert_eq!(all, [(0, 19, false), (20, 29, true), (30, 89, false)]);
        let owner = Owner { ino: INO, kind: LockKind::Posix, owner: 1 };
        assert!(!held.drop_owner(Owner { kind: LockKind::Flock, ..owner }));
        assert!(held.drop_owner(owner));
        assert!(held.all().is_empty() && held.has_none());
    }

    #[test]
    fn a_range_is_what_is_held_there_and_what_is_not() {
        let held = HeldLocks::default();
        held.set(&posix(10, 19));
        held.set(&LockSpec { exclusive: false, ..posix(30, 99) });
        let (there, not) = held.within(&posix(15, 39));
        let mut there: Vec<_> = there.iter().map(|s| (s.start, s.end, s.exclusive)).collect();
        there.sort_unstable();
        assert_eq!(there, [(15, 19, true), (30, 39, false)]);
        assert_eq!(not.iter().map(|s| (s.start, s.end)).collect::<Vec<_>>(), [(20, 29)]);
        let (there, not) = held.within(&spec(LockKind::Flock, 1, 0, u64::MAX));
        assert_eq!((there.len(), not.len()), (0, 1));
    }

    #[test]
    fn who_lost_a_lock_uses_the_file_again_when_it_is_unlocked_or_closed() {
        let held = HeldLocks::default();
        let (mine, other) = (Some(1), Some(2));
        let uses = |handle, process| held.may_use(INO, LockUser { handle, process });
        for spec in [posix(0, 9), posix(20, 29), spec(LockKind::Flock, 7, 0, u64::MAX)] {
            held.set(&spec);
        }
        assert_eq!(uses(7, mine), Ok(()));
        let began = held.losses();
        held.lose(&[posix(0, 9), spec(LockKind::Flock, 7, 0, u64::MAX)]);
        assert_eq!((uses(8, mine), uses(7, other)), (Err(Errno::EIO), Err(Errno::EIO)));
        assert_eq!((uses(8, other), uses(8, None)), (Ok(()), Err(Errno::EIO)));
        assert_eq!(held.may_use(Ino(6), LockUser { handle: 7, process: mine }), Ok(()));
        assert_eq!(held.must_not_be_lost(Owner::of(&posix(50, 59))), Err(Errno::EIO));
        assert_eq!(held.must_not_have_lost(INO, began), Err(Errno::EIO));
        assert_eq!(held.must_not_have_lost(INO, held.losses()), Ok(()));
        held.unset(&posix(0, 4));
        assert_eq!(uses(8, mine), Err(Errno::EIO), "half of it is not unlocked");
        held.unset(&posix(0, u64::MAX));
        assert_eq!((uses(8, mine), uses(7, mine)), (Ok(()), Err(Errno::EIO)));
        assert!(!held.drop_owner(Owner { ino: INO, kind: LockKind::Flock, owner: 7 }));
        assert_eq!((uses(7, mine), held.must_not_have_lost(INO, began)), (Ok(()), Ok(())));
        assert!(held.has_none());
    }
}
