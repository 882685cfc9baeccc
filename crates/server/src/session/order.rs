//! The order locks of directories: changes of one directory are made one after the other.
//!
//! Invariant: a directory waits for itself only. Held by [`super::changes`].

use forebay_proto::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;

/// Parts of the table of turns, each with a lock of its own: calls on several processors rarely meet there.
const ORDER_PARTS: usize = 64;

/// Changes of one directory are made one after the other, from looking which inodes they are
/// about to their end: so what was recalled is what is changed.
///
/// A directory waits for itself only: a change may wait long for another server, and what else this server has must go
/// on meanwhile. The table holds the directories that are being changed, so it is no longer than the calls
/// that are under way.
pub(super) struct Order {
    parts: Vec<Mutex<HashMap<Ino, InUse>>>,
}

/// A directory that is being changed.
struct InUse {
    /// How many calls have its turn or wait for it.
    users: usize,
    is_taken: bool,
    /// Made by the first that waits.
    freed: Option<Arc<Condvar>>,
}

/// The turn of one directory, until it is dropped.
pub(super) struct Turn<'a> {
    order: &'a Order,
    dir: Ino,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut part = self.order.part(self.dir).lock();
        let Some(in_use) = part.get_mut(&self.dir) else { return };
        in_use.users -= 1;
        in_use.is_taken = false;
        match &in_use.freed {
            Some(freed) if in_use.users > 0 => {
                freed.notify_one();
            }
            _ => {
                part.remove(&self.dir);
            }
        }
    }
}

impl Order {
    pub(super) fn new() -> Order {
        Order { parts: (0..ORDER_PARTS).map(|_| Mutex::default()).collect() }
    }

    fn part(&self, dir: Ino) -> &Mutex<HashMap<Ino, InUse>> {
        &self.parts[(dir.0 ^ (dir.0 >> 48)) as usize % ORDER_PARTS]
    }

    /// The turn of one directory.
    pub(super) fn of(&self, dir: Ino) -> Turn<'_> {
        let mut part = self.part(dir).lock();
        let unused = || InUse { users: 0, is_taken: false, freed: None };
        part.entry(dir).or_insert_with(unused).users += 1;
        // Nobody removes the entry while there are users.
        while let Some(in_use) = part.get_mut(&dir) {
            if !in_use.is_taken {
                in_use.is_taken = true;
                break;
            }
            let freed = Arc::clone(in_use.freed.get_or_insert_default());
            freed.wait(&mut part);
        }
        Turn { order: self, dir }
    }

    /// The turn of two, always taken in the same order.
    pub(super) fn of_two(&self, a: Ino, b: Ino) -> (Turn<'_>, Option<Turn<'_>>) {
        let first = self.of(a.min(b));
        (first, (a != b).then(|| self.of(a.max(b))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_directory_waits_for_itself_only() {
        let order = Order::new();
        let held = order.of(Ino(7));
        // All others of this server go on, whatever their numbers, and those of other servers.
        (8..2_000).for_each(|dir| drop(order.of(Ino(dir))));
        (0..2_000).for_each(|dir| drop(order.of(Ino((1 << 48) | dir))));
        drop(order.of_two(Ino(9), Ino(9)));
        let (told, heard) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turns = order.of_two(Ino(8), Ino(7));
                told.send(()).expect("the test hears");
            });
            assert!(heard.recv_timeout(Duration::from_millis(50)).is_err(), "7 is taken");
            drop(held);
            heard.recv().expect("7 was let go");
        });
        assert!(order.parts.iter().all(|part| part.lock().is_empty()), "nothing is left");
    }
}
