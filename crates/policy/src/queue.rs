//! Which dirty file is next: the one that is due first.
//!
//! Invariants: a file is with one worker at a time; one that is asked for again while a worker has it is due again when
//! it comes back. The list is as long as there are dirty files, which the cache bounds.

use crate::Moment;
use crate::changed::{self, Change};
use crate::when::IDLE_DEFAULT;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// Files that are drained at the same time. They mostly wait: for an fsync of a small file, or the
/// PFS's pace. Of 2,000 small files to a disk of 100 MB/s, two at a time took twice as long as rsync.
pub const WORKERS: usize = 6;
/// What was written while a file drained is looked at again after this pause.
pub const WRITTEN_MEANWHILE: Duration = IDLE_DEFAULT;

struct Listed<V> {
    file: V,
    due: Moment,
    since: Moment,
    busy: bool,
    asked: bool,
    /// A worker has it because it was asked for.
    asked_now: bool,
}

/// Dirty files by their key `K`, with what the caller knows each by.
pub struct DrainQueue<K, V> {
    files: HashMap<K, Listed<V>>,
    by_due: BTreeSet<(Moment, K)>,
    held: bool,
}

/// What a worker does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<V> {
    /// Look at a file that is due, and give it back by [`DrainQueue::put_back`] or remove it.
    File {
        /// The file.
        file: V,
        /// It was asked for, so its policy does not matter.
        asked: bool,
        /// Since when it is dirty.
        since: Moment,
    },
    /// Look how much is dirty.
    Look,
    /// Wait until then, or until something changes.
    Wait(Option<Moment>),
}

impl<K, V> Default for DrainQueue<K, V> {
    fn default() -> DrainQueue<K, V> {
        DrainQueue { files: HashMap::new(), by_due: BTreeSet::new(), held: false }
    }
}

impl<K: Copy + Ord + Hash, V: Clone> DrainQueue<K, V> {
    /// A file has become dirty.
    pub fn add(&mut self, key: K, file: V, due: Moment, since: Moment) {
        self.remove(key);
        self.files
            .insert(key, Listed { file, due, since, busy: false, asked: false, asked_now: false });
        self.by_due.insert((due, key));
    }

    /// It is clean, or gone. False if it was not listed.
    pub fn remove(&mut self, key: K) -> bool {
        let Some(listed) = self.files.remove(&key) else { return false };
        self.by_due.remove(&(listed.due, key));
        true
    }

    /// It is looked at then.
    pub fn set_due(&mut self, key: K, due: Moment) {
        if let Some(listed) = self.files.get_mut(&key) {
            self.by_due.remove(&(listed.due, key));
            listed.due = due;
            if !listed.busy {
                self.by_due.insert((due, key));
            }
        }
    }

    /// All are looked at again.
    pub fn look_again(&mut self, now: Moment) {
        let keys: Vec<K> = self.files.keys().copied().collect();
        keys.into_iter().for_each(|key| self.set_due(key, now));
    }

    /// It is to be drained whatever its policy says.
    pub fn ask(&mut self, key: K, now: Moment) {
        if let Some(listed) = self.files.get_mut(&key) {
            listed.asked = true;
        }
        self.set_due(key, now);
    }

    /// True if it was asked for and is not drained yet, or is just being drained.
    pub fn is_asked(&self, key: K) -> bool {
        self.files.get(&key).is_some_and(|listed| listed.asked || listed.asked_now)
    }

    /// How many are listed.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True if nothing is dirty.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// All that are listed, in no order.
    pub fn files(&self) -> impl Iterator<Item = &V> {
        self.files.values().map(|listed| &listed.file)
    }

    /// Nothing drains while this is so.
    pub fn hold(&mut self, on: bool) {
        self.held = on;
    }

    /// True while nothing drains.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// What a worker does now; `look`: when the share of dirty data is to be looked at, if it matters.
    pub fn next(&mut self, now: Moment, look: Option<Moment>) -> Next<V> {
        if self.held {
            return Next::Wait(None);
        }
        while let Some((due, key)) = self.first_due(now) {
            self.by_due.remove(&(due, key));
            let Some(listed) = self.files.get_mut(&key) else { continue };
            listed.busy = true;
            // Asked for again while it is drained, it is drained again.
            let asked = std::mem::take(&mut listed.asked);
            listed.asked_now = asked;
            return Next::File { file: listed.file.clone(), asked, since: listed.since };
        }
        if look.is_some_and(|look| look <= now) {
            return Next::Look;
        }
        let first = self.by_due.first().map(|(due, _)| *due);
        Next::Wait(first.into_iter().chain(look).min())
    }

    /// The file that is due first, if one is due.
    fn first_due(&self, now: Moment) -> Option<(Moment, K)> {
        if changed::is(Change::DrainOrder) {
            return self.by_due.iter().take_while(|(due, _)| *due <= now).last().copied();
        }
        self.by_due.first().copied().filter(|(due, _)| *due <= now)
    }

    /// What a file has now is younger than this: what it had before was drained.
    pub fn dirty_since(&mut self, key: K, since: Moment) {
        if let Some(listed) = self.files.get_mut(&key) {
            listed.since = since;
        }
    }

    /// A worker is done with a file that stays dirty.
    pub fn put_back(&mut self, key: K, due: Moment, still_asked: bool, now: Moment) {
        let mut due = due;
        if let Some(listed) = self.files.get_mut(&key) {
            listed.busy = false;
            listed.asked_now = false;
            if listed.asked {
                due = due.min(now);
            }
            listed.asked |= still_asked;
        }
        self.set_due(key, due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(i64) -> Moment = Moment::from_ms;

    #[test]
    fn the_file_that_is_due_first_is_next_and_one_worker_has_it() {
        let mut queue = DrainQueue::default();
        queue.add(1, "a", AT(20), AT(0));
        queue.add(2, "b", AT(10), AT(5));
        assert_eq!(queue.next(AT(5), None), Next::Wait(Some(AT(10))));
        assert_eq!(queue.next(AT(5), Some(AT(7))), Next::Wait(Some(AT(7))));
        assert_eq!(queue.next(AT(7), Some(AT(7))), Next::Look);
        let b = Next::File { file: "b", asked: false, since: AT(5) };
        assert_eq!(queue.next(AT(30), None), b);
        assert_eq!(queue.next(AT(30), None), Next::File { file: "a", asked: false, since: AT(0) });
        assert_eq!(queue.next(AT(30), None), Next::Wait(None));
        queue.ask(2, AT(31));
        assert_eq!(queue.next(AT(31), None), Next::Wait(None), "a worker has it");
        queue.put_back(2, AT(900), false, AT(40));
        assert_eq!(queue.next(AT(40), None), Next::File { file: "b", asked: true, since: AT(5) });
        assert!(queue.remove(2) && !queue.remove(2));
        queue.put_back(2, AT(41), true, AT(41));
        assert_eq!(queue.len(), 1, "what is gone does not come back");
    }

    #[test]
    fn a_file_counts_as_asked_for_until_a_worker_is_done_with_it() {
        let mut queue = DrainQueue::default();
        queue.add(1, (), AT(0), AT(0));
        assert!(!queue.is_asked(1) && !queue.is_asked(2));
        assert!(matches!(queue.next(AT(1), None), Next::File { asked: false, .. }));
        assert!(!queue.is_asked(1));
        // Somebody begins to wait while it drains.
        queue.ask(1, AT(2));
        assert!(queue.is_asked(1));
        queue.put_back(1, AT(900), false, AT(3));
        assert!(queue.is_asked(1), "it comes again");
        assert!(matches!(queue.next(AT(4), None), Next::File { asked: true, .. }));
        assert!(queue.is_asked(1), "a worker has it");
        queue.put_back(1, AT(900), false, AT(5));
        assert!(!queue.is_asked(1));
    }

    #[test]
    fn nothing_is_next_while_drains_are_held() {
        let mut queue = DrainQueue::default();
        queue.add(1, (), AT(0), AT(0));
        queue.hold(true);
        assert_eq!(queue.next(AT(9), Some(AT(1))), Next::Wait(None));
        queue.hold(false);
        assert!(matches!(queue.next(AT(9), None), Next::File { .. }));
    }
}
