//! Locks on the data of a file, shared or exclusive, so that what a kill leaves of a call that changes a size can be
//! told from what others did.
//!
//! An append and a change of size hold the lock of a file's data alone, from writing down what they are about
//! to do to writing down that it is done; all other calls that change data, and those that let a
//! kernel change it itself, go on together.

use forebay_proto::Ino;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks that the files share.
const LOCKS: usize = 256;

/// The turns.
pub(super) struct Sizes {
    locks: Vec<RwLock<()>>,
}

impl Sizes {
    pub(super) fn new() -> Sizes {
        Sizes { locks: (0..LOCKS).map(|_| RwLock::new(())).collect() }
    }

    fn of(&self, ino: Ino) -> &RwLock<()> {
        &self.locks[(ino.0 ^ (ino.0 >> 48)) as usize % LOCKS]
    }

    /// Together with others.
    pub(super) fn shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.of(ino).read()
    }

    /// Alone.
    pub(super) fn alone(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        self.of(ino).write()
    }
}
