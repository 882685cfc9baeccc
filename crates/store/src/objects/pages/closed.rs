//! Files of which it is heard when nobody has them open any more: those that were made for a kernel, which tells the end of each
//! open. Such a file leaves the lists with its last open. It is looked at once more, for what it got since the last look: one
//! call, where a lease takes six to find out whether a file is open ([`Objects::is_open_elsewhere`]).
//!
//! A mapping may be left. It makes no file longer, so what it stores into was seen by that look.
//!
//! Invariants: a file is counted from before it has a name, or not at all; with an open of which no end is told, or whose end says
//! nothing, it is counted no more, and is asked about as others are. So a count is never too small. Counts and lists change under
//! one lock. Called by [`super`] and, through [`Objects`], by `namespace`.

use super::state::State;
use super::watch::Watch;
use super::{Pages, allocated, has_hole, pace};
use crate::objects::{ObjectStat, Objects};
use forebay_proto::{ObjectId, Result};
use parking_lot::MutexGuard;
use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Files that are counted. Where there are more, all are forgotten, and begun anew.
const COUNTED_MAX: usize = 1 << 14;

/// How often the kernel has each file from us, and tells the end of it.
#[derive(Default)]
pub(super) struct Given {
    counts: HashMap<ObjectId, u32>,
}

impl Given {
    /// A new file, to be given out once.
    pub(super) fn made(&mut self, id: ObjectId) {
        if self.counts.len() >= COUNTED_MAX {
            self.counts.clear();
        }
        self.counts.insert(id, 1);
    }

    fn again(&mut self, id: ObjectId) {
        if let Some(count) = self.counts.get_mut(&id) {
            *count = count.saturating_add(1);
        }
    }

    fn forget(&mut self, id: ObjectId) {
        self.counts.remove(&id);
    }

    /// True if nobody has the file any more.
    fn ended(&mut self, id: ObjectId) -> bool {
        let Some(count) = self.counts.get_mut(&id) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&id);
        }
        is_last
    }
}

/// A file that nobody has open any more, and that may have got something since it was looked at.
pub(super) struct Closed {
    pub(super) id: ObjectId,
    /// What it had then; `None` if that is not known.
    pub(super) bytes: Option<u64>,
    pub(super) watch: Option<Watch>,
    /// What it got is one write that was told, long after the write before.
    pub(super) is_told: bool,
}

impl State {
    /// An open of a file is over of which the end is told. With the last one it leaves the lists.
    pub(super) fn ended(&mut self, id: ObjectId, now: Instant) {
        if self.given.ended(id) {
            self.close(id, now);
        }
    }
}

impl Pages {
    fn change_counts(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.counted.store(state.given.counts.len(), Ordering::Release);
    }

    /// False also before a file is counted whose name nobody knows.
    fn counts_some(&self) -> bool {
        self.counted.load(Ordering::Acquire) > 0
    }
}

impl Objects {
    /// Makes an empty object, open for reading and writing, for a kernel that tells the end of its open ([`Objects::ended`]).
    /// EEXIST if it is there.
    pub fn create_given(&self, id: ObjectId) -> Result<File> {
        let file = self.create(id)?;
        if self.pages.on.load(Ordering::Acquire) {
            self.pages.change_counts(|state| state.given.made(id));
        }
        Ok(file)
    }

    /// A kernel gets an object that tells the end of that open, too. Said before [`Objects::opened_to_write`].
    pub fn given_again(&self, id: ObjectId) {
        if self.pages.counts_some() {
            self.pages.change_counts(|state| state.given.again(id));
        }
    }

    /// Somebody may write an object of whom it is not heard when that is over. Said before [`Objects::opened_to_write`].
    pub fn given_unheard(&self, id: ObjectId) {
        if self.pages.counts_some() {
            self.pages.change_counts(|state| state.given.forget(id));
        }
    }

    /// An open is over with which a kernel had got an object.
    pub fn ended(&self, id: ObjectId) {
        if self.pages.counts_some() {
            self.pages.change_counts(|state| state.ended(id, Instant::now()));
        }
    }

    /// Nobody has a file open any more, as a cache knows that counts opens itself.
    pub fn closed_by_all(&self, id: ObjectId) {
        if self.pages.on.load(Ordering::Acquire) {
            self.pages.state.lock().close(id, Instant::now());
        }
    }

    /// A last look at files that nobody has open any more.
    pub(super) fn look_at_closed(&self, state: &mut MutexGuard<'_, State>) {
        let closed = std::mem::take(&mut state.closed);
        if closed.is_empty() {
            return;
        }
        // Who opens or closes files meanwhile does not wait.
        let look = || closed.into_iter().filter_map(|file| self.changed(file)).collect::<Vec<_>>();
        let changed: Vec<(Closed, ObjectStat)> = MutexGuard::unlocked(state, look);
        for (file, stat) in changed {
            let bytes = allocated(&stat);
            let grown = file.bytes.map_or(0, |before| bytes.saturating_sub(before));
            if has_hole(&stat) {
                self.suspect(state, file.id, &stat, (grown, false));
            } else if grown > 0 {
                let now = Instant::now();
                state.busy_at = Some(now);
                if pace::is_lively(grown, file.is_told) {
                    state.lively_at = Some(now);
                }
            }
        }
    }

    /// `None` if it has no hole, and what it had.
    fn changed(&self, file: Closed) -> Option<(Closed, ObjectStat)> {
        if let Some(watch) = file.watch {
            self.pages.forget(watch);
        }
        let stat = self.stat(file.id).ok()?;
        let is_same = !has_hole(&stat) && file.bytes == Some(allocated(&stat));
        (!is_same).then_some((file, stat))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CHURN, CLOSED_MAX, WAITING_LOOKED_AT};
    use super::*;
    use crate::objects::pages::pace::RUSH_PAUSE;
    use forebay_proto::Ino;
    use std::time::Duration;

    /// Files in a second: 15,000.
    const BETWEEN: Duration = Duration::from_micros(66);
    const FILES: u32 = 3_000;

    fn id(number: u32) -> ObjectId {
        ObjectId::whole(Ino(u64::from(number) + 1))
    }

    /// What a store does in which files are made so, if nobody looks sooner than after 150 of them.
    #[derive(Default)]
    struct Run {
        state: State,
        switches: u32,
        looks_by_lease: usize,
        looks: usize,
    }

    impl Run {
        fn choose(&mut self, now: Instant) {
            self.state.end_rush(now);
            let small = self.state.wants_small(now);
            self.switches += u32::from(small != self.state.small);
            self.state.small = small;
        }

        fn make(&mut self, number: u32, now: Instant) {
            self.state.given.made(id(number));
            if self.state.list(id(number), Some(0), now) {
                self.choose(now);
            }
        }

        fn look(&mut self, now: Instant) {
            let rush = self.state.waiting.len().min(WAITING_LOOKED_AT);
            self.looks_by_lease += self.state.waiting.drain(..rush).count();
            self.looks += std::mem::take(&mut self.state.closed).len();
            self.choose(now);
        }
    }

    /// It was six calls for a lease of nearly each of them, and 478 switches of all pages.
    #[test]
    fn files_that_are_made_and_closed_cost_one_look_each_and_leave_pages_large() {
        let (mut run, begun) = (Run::default(), Instant::now());
        for number in 0..FILES {
            let now = begun + BETWEEN * number;
            run.make(number, now);
            let is_watched = run.state.is_watched_empty(now, now);
            assert_eq!(is_watched, number == 0, "another one is closed sooner than that tells");
            run.state.ended(id(number), now);
            if number % 150 == 149 {
                assert!(run.state.is_active(now), "nobody has to be woken for the next one");
                run.look(now);
                assert!(!run.state.is_active(now + CHURN), "and nobody looks on for nothing");
            }
        }
        assert_eq!((run.switches, run.looks_by_lease, run.looks), (0, 0, FILES as usize));
        assert!(run.state.opened.is_empty() && run.state.given.counts.is_empty());
        let last = begun + BETWEEN * FILES;
        assert!(run.state.is_watched_empty(last, last + CHURN), "one that stays open");
    }

    #[test]
    fn a_rush_of_files_that_stay_open_makes_pages_small_once() {
        let (mut run, begun) = (Run::default(), Instant::now());
        let mut now = begun;
        for number in 0..FILES {
            now = begun + BETWEEN * number;
            run.make(number, now);
            if number % 50 == 49 {
                run.look(now);
            }
        }
        assert_eq!(run.switches, 1, "small, and not large between two looks");
        while !run.state.waiting.is_empty() {
            run.look(now);
        }
        run.look(now + RUSH_PAUSE / 2);
        assert_eq!(run.switches, 1);
        assert!(run.state.rushed_at.is_some(), "looked for");
        run.look(now + RUSH_PAUSE);
        assert_eq!((run.switches, run.state.small), (2, false));
        assert!(run.state.rushed_at.is_none());
    }

    #[test]
    fn a_file_is_closed_with_the_last_open_and_asked_about_where_not_all_ends_are_told() {
        let (mut state, now) = (State::default(), Instant::now());
        for number in 0..3 {
            state.given.made(id(number));
            assert!(!state.list(id(number), Some(0), now));
        }
        state.given.again(id(1));
        state.given.forget(id(2));
        for number in 0..3 {
            state.ended(id(number), now);
        }
        let closed = |state: &State| state.closed.iter().map(|file| file.id).collect::<Vec<_>>();
        assert_eq!(closed(&state), [id(0)]);
        state.ended(id(1), now);
        state.ended(id(2), now);
        assert_eq!(closed(&state), [id(0), id(1)]);
        assert!(state.opened.iter().map(|file| file.id).eq([id(2)]));
        // One that was not made here, or is in no list.
        state.ended(id(3), now);
        state.given.made(id(4));
        state.ended(id(4), now);
        assert_eq!(state.closed.len(), 2);
    }

    #[test]
    fn files_of_a_rush_leave_it_when_they_are_closed_and_lists_are_bounded() {
        let (mut state, now) = (State::default(), Instant::now());
        for number in 0..FILES {
            state.given.made(id(number));
            state.list(id(number), Some(0), now);
        }
        let listed = state.opened.len() + state.waiting.len();
        assert_eq!(listed, FILES as usize);
        (0..FILES).for_each(|number| state.ended(id(number), now));
        assert_eq!(state.closed.len(), CLOSED_MAX);
        let left = state.opened.len() + state.waiting.len();
        assert_eq!(left, FILES as usize - CLOSED_MAX, "asked about as others are");
        for number in 0..2 * COUNTED_MAX as u32 {
            state.given.made(id(number));
            assert!(state.given.counts.len() <= COUNTED_MAX);
        }
    }
}
