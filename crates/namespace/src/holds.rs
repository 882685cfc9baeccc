//! The locks of changes over shards (*holds*): names, and empty directories that are about to go.
//!
//! A hold is taken and given back under the namespace's writer lock, and every change looks here
//! under that lock; so between a check and the change that it is for nothing is held that was not.
//! Nobody waits here for a hold while it has a lock: a change that finds one releases everything, waits for
//! a moment ([`Holds::pause`]) and begins again.
//!
//! Bounded by the changes under way, of which each client has at most one a connection.

use forebay_proto::net::servers::TxnId;
use forebay_proto::{Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What is held.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum HoldKey {
    /// What a name leads to.
    Name(Ino, Vec<u8>),
    /// A directory that is empty, and stays so.
    Dir(Ino),
}

struct Hold {
    by: TxnId,
    /// Decided elsewhere, perhaps already: who looks has to wait as well.
    hides: bool,
}

/// All holds of a shard.
#[derive(Default)]
pub(crate) struct Holds {
    held: Mutex<HashMap<HoldKey, Hold>>,
    /// How many, to be read without the lock.
    count: AtomicUsize,
    released: Condvar,
}

impl Holds {
    /// Takes a hold. ERESTART if another change has it.
    pub(crate) fn take(&self, key: HoldKey, by: TxnId, hides: bool) -> Result<()> {
        let mut held = self.held.lock();
        match held.get(&key) {
            Some(hold) if hold.by != by => return Err(Errno::ERESTART),
            _ => held.insert(key, Hold { by, hides }),
        };
        self.count.store(held.len(), Ordering::Release);
        Ok(())
    }

    /// Gives back all that a change holds.
    pub(crate) fn release(&self, by: TxnId) {
        if self.is_empty() {
            return;
        }
        let mut held = self.held.lock();
        held.retain(|_, hold| hold.by != by);
        self.count.store(held.len(), Ordering::Release);
        drop(held);
        self.released.notify_all();
    }

    /// ERESTART if somebody else holds it.
    pub(crate) fn may_change(&self, key: &HoldKey, by: Option<TxnId>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        match self.held.lock().get(key) {
            Some(hold) if Some(hold.by) != by => Err(Errno::ERESTART),
            _ => Ok(()),
        }
    }

    /// ERESTART if what a name leads to is being decided elsewhere.
    pub(crate) fn may_look(&self, dir: Ino, name: &[u8]) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        match self.held.lock().get(&HoldKey::Name(dir, name.to_vec())) {
            Some(hold) if hold.hides => Err(Errno::ERESTART),
            _ => Ok(()),
        }
    }

    /// ERESTART if any name of a directory is being decided elsewhere.
    pub(crate) fn may_list(&self, dir: Ino) -> Result<()> {
        self.may_tell_names(dir, None)
    }

    /// The same for a part of a change, whose own holds are not in its way.
    pub(crate) fn may_tell_names(&self, dir: Ino, by: Option<TxnId>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let of_dir = |key: &HoldKey| matches!(key, HoldKey::Name(of, _) if *of == dir);
        let held = self.held.lock();
        match held.iter().any(|(key, hold)| hold.hides && Some(hold.by) != by && of_dir(key)) {
            true => Err(Errno::ERESTART),
            false => Ok(()),
        }
    }

    /// Waits until something is given back, or for so long; where nothing is held, somebody else's
    /// holds are in the way, and the whole time is waited.
    pub(crate) fn pause(&self, longest: Duration) {
        let mut held = self.held.lock();
        self.released.wait_for(&mut held, longest);
    }

    /// True if nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::ShardId;

    #[test]
    fn what_is_held_is_anothers_until_it_is_given_back() {
        let holds = Holds::default();
        let (a, b) = (TxnId { shard: ShardId(1), seq: 7 }, TxnId { shard: ShardId(2), seq: 7 });
        let name = HoldKey::Name(Ino(5), b"n".to_vec());
        holds.take(name.clone(), a, false).unwrap();
        assert_eq!(holds.take(name.clone(), b, true), Err(Errno::ERESTART));
        assert_eq!(holds.may_change(&name, Some(a)), Ok(()));
        assert_eq!(holds.may_change(&name, None), Err(Errno::ERESTART));
        assert_eq!(holds.may_look(Ino(5), b"n"), Ok(()), "it is only not to be changed");
        holds.take(name.clone(), a, true).unwrap();
        assert_eq!(holds.may_look(Ino(5), b"n"), Err(Errno::ERESTART));
        assert_eq!(holds.may_look(Ino(5), b"m"), Ok(()));
        assert_eq!(
            (holds.may_list(Ino(5)), holds.may_list(Ino(6))),
            (Err(Errno::ERESTART), Ok(()))
        );
        assert_eq!(holds.may_tell_names(Ino(5), Some(a)), Ok(()), "of itself it knows");
        assert_eq!(holds.may_tell_names(Ino(5), Some(b)), Err(Errno::ERESTART));
        holds.release(b);
        assert!(!holds.is_empty());
        holds.release(a);
        assert!(holds.is_empty());
        holds.take(name, b, true).unwrap();
    }
}
