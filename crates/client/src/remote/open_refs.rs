//! What this mount holds at a server: references (the kernel's lookups) and opens by descriptor.
//! It is what a new session must be told, and what it gives back is gathered here.

use forebay_proto::Ino;
use forebay_proto::net::GivenBack as Carried;
use forebay_proto::net::answer::Answer;
use forebay_proto::net::call::{MAX_CARRIED, MAX_FORGETS};
use forebay_proto::net::session::{LockSpec, MAX_RECLAIM_ITEMS, Reclaim};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::time::Duration;

/// How long what is given back gathers, so that much is told at once, and how long it may while
/// other calls carry it.
const GATHER: Duration = Duration::from_millis(2);
const GATHER_LONGEST: Duration = Duration::from_millis(32);

/// What the kernel holds, and what it has given back.
#[derive(Default)]
struct RefCounts {
    references: HashMap<Ino, u64>,
    opens: HashMap<Ino, u64>,
    /// Of a cache: opens of files that the server reads and writes.
    served: HashMap<Ino, u64>,
    /// Given back by the kernel, not yet told to the server.
    forgets: HashMap<Ino, u64>,
    releases: HashMap<Ino, u64>,
    closes: HashMap<Ino, u64>,
    /// Counts the sessions that were told what is held.
    generation: u64,
    /// Counts calls that something went along with.
    carried: u64,
    over: bool,
}

/// The table; as large as the kernel's.
#[derive(Default)]
pub(super) struct OpenRefs {
    state: Mutex<RefCounts>,
    given_back: Condvar,
}

/// What is to be told to the server.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct GivenBack {
    /// The session that was told of them as held: no other one is to hear that they are not.
    pub(super) generation: u64,
    pub(super) forgets: Vec<(Ino, u64)>,
    pub(super) releases: Vec<(Ino, u64)>,
    pub(super) closes: Vec<(Ino, u64)>,
}

impl RefCounts {
    fn nothing_to_tell(&self) -> bool {
        self.forgets.is_empty() && self.releases.is_empty() && self.closes.is_empty()
    }
}

impl OpenRefs {
    /// Notes what an answer gave.
    pub(super) fn note(&self, answer: &Answer) {
        match answer {
            Answer::Entry { attr, .. } => self.took(attr.attr.ino, false),
            Answer::Created { attr, local, .. } => self.took(attr.attr.ino, *local),
            Answer::CreatedStriped { attr, open, .. } => self.took(attr.attr.ino, open.writes),
            Answer::Listing { entries, .. } => {
                let mut state = self.state.lock();
                for entry in entries.iter().filter(|entry| entry.attr.is_some()) {
                    *state.references.entry(entry.ino).or_insert(0) += 1;
                }
            }
            Answer::Taken(all) => {
                let mut state = self.state.lock();
                for kept in all.iter().flatten() {
                    *state.references.entry(kept.attr.ino).or_insert(0) += 1;
                }
            }
            _ => {}
        }
    }

    fn took(&self, ino: Ino, opened: bool) {
        let mut state = self.state.lock();
        *state.references.entry(ino).or_insert(0) += 1;
        if opened {
            *state.opens.entry(ino).or_insert(0) += 1;
        }
    }

    /// The kernel has the object open, once more.
    pub(super) fn opened(&self, ino: Ino) {
        *self.state.lock().opens.entry(ino).or_insert(0) += 1;
    }

    /// Of a cache: a file is open that the server reads and writes, once more.
    pub(super) fn opened_served(&self, ino: Ino) {
        *self.state.lock().served.entry(ino).or_insert(0) += 1;
    }

    /// One of those opens is over; false if there was none.
    pub(super) fn close_served(&self, ino: Ino) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (given, _) = take(&mut state.served, ino, 1);
        if given > 0 {
            *state.closes.entry(ino).or_insert(0) += given;
            self.given_back.notify_one();
        }
        given > 0
    }

    /// The kernel gives references back; true if none is left.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (given, none_left) = take(&mut state.references, ino, count);
        if given > 0 {
            *state.forgets.entry(ino).or_insert(0) += given;
            self.given_back.notify_one();
        }
        none_left
    }

    /// One open by descriptor is over.
    pub(super) fn release(&self, ino: Ino) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (given, _) = take(&mut state.opens, ino, 1);
        if given > 0 {
            *state.releases.entry(ino).or_insert(0) += given;
            self.given_back.notify_one();
        }
    }

    /// What goes along with a call in the session of this generation.
    pub(super) fn carry(&self, generation: u64) -> Carried {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.forgets.is_empty() && state.releases.is_empty() || state.generation != generation {
            return Carried::default();
        }
        state.carried += 1;
        Carried {
            forgets: take_some(&mut state.forgets, MAX_CARRIED),
            releases: take_some(&mut state.releases, MAX_CARRIED),
        }
    }

    /// A call that was to carry this was not sent.
    pub(super) fn not_carried(&self, given_back: &Carried, generation: u64) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // A new session was not told that these are held.
        if state.generation != generation || given_back.is_empty() {
            return;
        }
        let back = |map: &mut HashMap<Ino, u64>, list: &[(Ino, u64)]| {
            list.iter().for_each(|(ino, count)| *map.entry(*ino).or_insert(0) += count);
        };
        back(&mut state.forgets, &given_back.forgets);
        back(&mut state.releases, &given_back.releases);
        self.given_back.notify_one();
    }

    /// Waits for something to tell that no call carries; `None` after [`OpenRefs::end`].
    pub(super) fn next_given_back(&self) -> Option<GivenBack> {
        let mut state = self.state.lock();
        loop {
            while state.nothing_to_tell() {
                if state.over {
                    return None;
                }
                self.given_back.wait(&mut state);
            }
            // More come soon, mostly: one call tells of all. While other calls take it along,
            // none is needed.
            let mut pause = GATHER;
            loop {
                let carried = state.carried;
                MutexGuard::unlocked(&mut state, || std::thread::sleep(pause));
                let much = state.forgets.len().max(state.releases.len()) > MAX_CARRIED;
                let waits = much || !state.closes.is_empty();
                if state.nothing_to_tell() || waits || state.carried == carried || state.over {
                    break;
                }
                pause = (pause * 2).min(GATHER_LONGEST);
            }
            if state.nothing_to_tell() {
                continue;
            }
            let state = &mut *state;
            return Some(GivenBack {
                generation: state.generation,
                forgets: take_some(&mut state.forgets, MAX_FORGETS),
                releases: take_some(&mut state.releases, MAX_FORGETS),
                closes: take_some(&mut state.closes, MAX_FORGETS),
            });
        }
    }

    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.given_back.notify_all();
    }

    /// All that is held, for a new session, and that session's generation: what was given back
    /// and not told is not part of it, and need not be told any more.
    pub(super) fn for_new_session(&self, locks: &[LockSpec]) -> (u64, Vec<Reclaim>) {
        let mut state = self.state.lock();
        state.generation += 1;
        let generation = state.generation;
        state.forgets.clear();
        state.releases.clear();
        state.closes.clear();
        let list = |map: &HashMap<Ino, u64>| map.iter().map(|(i, n)| (*i, *n)).collect::<Vec<_>>();
        let (references, opens) = (list(&state.references), list(&state.opens));
        let served = list(&state.served);
        drop(state);
        let mut parts: Vec<Reclaim> = references
            .chunks(MAX_RECLAIM_ITEMS)
            .map(|part| Reclaim { references: part.to_vec(), ..Reclaim::default() })
            .collect();
        parts.extend(
            opens
                .chunks(MAX_RECLAIM_ITEMS)
                .map(|part| Reclaim { opens: part.to_vec(), ..Reclaim::default() }),
        );
        parts.extend(
            served
                .chunks(MAX_RECLAIM_ITEMS)
                .map(|part| Reclaim { served: part.to_vec(), ..Reclaim::default() }),
        );
        parts.extend(
            locks
                .chunks(MAX_RECLAIM_ITEMS)
                .map(|part| Reclaim { locks: part.to_vec(), ..Reclaim::default() }),
        );
        parts.push(Reclaim { last: true, ..Reclaim::default() });
        (generation, parts)
    }
}

/// Takes up to `count` off; how many there were, and whether none is left.
fn take(map: &mut HashMap<Ino, u64>, ino: Ino, count: u64) -> (u64, bool) {
    let Some(have) = map.get_mut(&ino) else { return (0, true) };
    let given = count.min(*have);
    *have -= given;
    let none_left = *have == 0;
    if none_left {
        map.remove(&ino);
    }
    (given, none_left)
}

fn take_some(map: &mut HashMap<Ino, u64>, most: usize) -> Vec<(Ino, u64)> {
    if map.len() <= most {
        return map.drain().collect();
    }
    let some: Vec<Ino> = map.keys().take(most).copied().collect();
    some.into_iter().filter_map(|ino| map.remove_entry(&ino)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_told_once_and_not_reclaimed() {
        let held = OpenRefs::default();
        for _ in 0..3 {
            held.took(Ino(5), false);
        }
        held.took(Ino(6), true);
        assert!(!held.forget(Ino(5), 2));
        assert!(held.forget(Ino(6), 9), "no more than it has");
        held.release(Ino(6));
        let mut told = held.next_given_back().unwrap();
        told.forgets.sort();
        assert_eq!(told.forgets, [(Ino(5), 2), (Ino(6), 1)]);
        assert_eq!(told.releases, [(Ino(6), 1)]);
        assert!(held.forget(Ino(5), 1));
        let (_, parts) = held.for_new_session(&[]);
        assert!(parts.iter().all(|p| p.references.is_empty()) && parts.last().unwrap().last);
        held.end();
        assert!(held.next_given_back().is_none());
    }

    #[test]
    fn opens_of_a_cache_are_reclaimed_until_they_are_over() {
        let held = OpenRefs::default();
        held.opened_served(Ino(5));
        held.opened_served(Ino(5));
        assert!(held.close_served(Ino(5)) && !held.close_served(Ino(6)));
        let (_, parts) = held.for_new_session(&[]);
        assert_eq!(parts[0].served, [(Ino(5), 1)]);
        assert!(held.close_served(Ino(5)));
        assert_eq!(held.next_given_back().unwrap().closes, [(Ino(5), 1)]);
    }

    #[test]
    fn what_a_call_carries_is_not_told_again() {
        let held = OpenRefs::default();
        let (first, _) = held.for_new_session(&[]);
        held.took(Ino(5), true);
        held.forget(Ino(5), 1);
        held.release(Ino(5));
        assert!(held.carry(first + 1).is_empty(), "another session was not told of it");
        let carried = held.carry(first);
        assert_eq!((carried.forgets, carried.releases), (vec![(Ino(5), 1)], vec![(Ino(5), 1)]));
        assert!(held.carry(first).is_empty());
        let again = Carried { forgets: vec![(Ino(5), 1)], releases: vec![(Ino(5), 1)] };
        held.not_carried(&again, first + 1);
        assert!(held.carry(first).is_empty(), "it went with its session");
        held.not_carried(&again, first);
        assert_eq!(held.carry(first).releases, [(Ino(5), 1)]);
        for ino in 0..=MAX_CARRIED as u64 {
            held.took(Ino(ino), false);
            held.forget(Ino(ino), 1);
        }
        assert_eq!(held.carry(first).forgets.len(), MAX_CARRIED);
        assert_eq!(held.next_given_back().unwrap().forgets.len(), 1);
        held.end();
        assert!(held.next_given_back().is_none());
    }

    #[test]
    fn what_is_given_back_is_for_the_session_that_was_told_of_it() {
        let held = OpenRefs::default();
        let (first, _) = held.for_new_session(&[]);
        for ino in [5, 6] {
            held.took(Ino(ino), false);
        }
        held.forget(Ino(5), 1);
        assert_eq!(held.next_given_back().unwrap().generation, first);
        let (second, parts) = held.for_new_session(&[]);
        assert_eq!(parts[0].references, [(Ino(6), 1)]);
        // The thread that tells may have waited for this since before the new session.
        held.forget(Ino(6), 1);
        let told = held.next_given_back().unwrap();
        assert!(second != first && told.generation == second);
    }
}
