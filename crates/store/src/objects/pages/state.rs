//! What the thread that chooses pages knows of files: those with holes, those that are written, and those of which the kernel tells
//! the next write.
//!
//! Invariant: the kernel tells the next write to a file with a watch, and to no other one. Times of what happens are passed in; lists are
//! bounded by [`super`], which calls this with its lock.

use super::allowance::Allowance;
use super::closed::{Closed, Given};
use super::pace;
use super::watch::Watch;
use super::{
    ACTIVE, CHURN, CLOSED_MAX, OPENED_MAX, OPENED_SEEN_MAX, QUIET, WAITING_MAX, WATCHES_MAX,
    WATCHES_TIMES_MOST,
};
use forebay_proto::ObjectId;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What of a file is written: bytes, and large pages that they touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) bytes: u64,
    pub(super) pages: u64,
}

/// How far a file has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// Its holes fit into the allowance: large pages. It had `from_bytes` when that began.
    Allowed { from_bytes: u64 },
    /// It gets small pages, and was not looked at yet.
    New,
    /// It gets small pages. It had `from_bytes` when it was looked at; `before` is what was written then, `None` if it had too many
    /// runs to count.
    Open { from_bytes: u64, before: Option<Written> },
    /// It was dense: large pages until it has so many bytes.
    Dense { until_bytes: u64 },
}

/// A file with holes.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) id: ObjectId,
    pub(super) bytes: u64,
    pub(super) grown_at: Instant,
    /// When it grew last, or was written at all after a quiet time.
    pub(super) active_at: Instant,
    pub(super) watch: Option<Watch>,
    /// When it had been written last, as far as it was known, as that watch or the one before began.
    pub(super) written_at: Instant,
    /// Its last write that was told, or open, came long after its last use ([`pace::is_seldom`]), and no other call since.
    pub(super) is_seldom: bool,
    /// When it was looked last whether somebody has it open.
    pub(super) seen_open_at: Instant,
    pub(super) verdict: Verdict,
    /// What it may have in large pages the next time that it is dense.
    pub(super) pass_bytes: u64,
    /// What is written before it is judged again.
    pub(super) probe_bytes: u64,
}

impl Suspect {
    /// Its holes fit into the allowance, and the kernel tells its next write: it need not be looked at.
    pub(super) fn is_told_of(&self) -> bool {
        self.watch.is_some()
            && matches!(self.verdict, Verdict::Allowed { .. })
            && self.grown_at.elapsed() >= QUIET
    }

    /// It is written, and has to be looked at closely. The kernel tells the next write to one that is written seldom; but stores into
    /// a mapping are told by nobody, and of a dense one they may get large pages, unless all pages are small.
    pub(super) fn is_active(&self, now: Instant, are_small: bool) -> bool {
        let is_told = self.is_seldom && self.watch.is_some();
        let may_get_large = matches!(self.verdict, Verdict::Dense { .. }) && !are_small;
        now.saturating_duration_since(self.active_at) < ACTIVE && (may_get_large || !is_told)
    }

    /// A call opens it to write, or may have made a hole: true if it has to be looked at closely. It has not after an open alone, long
    /// after its last use: the kernel tells the write, and stores into a mapping get small pages, or those that are allowed.
    pub(super) fn called(&mut self, now: Instant, is_open: bool) -> bool {
        let since = now.saturating_duration_since(self.active_at);
        self.is_seldom = is_open && self.watch.is_some() && pace::is_seldom(since);
        (self.grown_at, self.active_at) = (now, now);
        !self.is_seldom
    }

    /// The kernel tells the next write from now on, if there is a watch. `is_seldom`: it has just told one of few.
    pub(super) fn begin_watch(&mut self, watch: Option<Watch>, is_seldom: bool) {
        self.watch = watch;
        self.written_at = self.active_at;
        self.is_seldom = is_seldom;
    }

    /// True if it wants small pages.
    pub(super) fn is_small(&self) -> bool {
        matches!(self.verdict, Verdict::New | Verdict::Open { .. })
    }
}

/// A file that is written, or was opened for that just now, without holes when it was looked at last.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: ObjectId,
    /// What it had then; `None` if that is not known.
    pub(super) bytes: Option<u64>,
    pub(super) active_at: Instant,
    /// It was just told of, long after the write before: the kernel is to tell the next one, too.
    pub(super) is_seldom: bool,
    /// It was looked at since it came into the list: it had no hole.
    pub(super) is_seen: bool,
}

/// One that was not written lately, or never; dropped when nobody has it open any more.
#[derive(Debug)]
pub(super) struct WatchedFile {
    pub(super) bytes: u64,
    pub(super) watch: Watch,
    /// When it had been written or opened last, as far as it was known, as that watch began.
    pub(super) written_at: Instant,
    pub(super) seen_open_at: Instant,
}

/// All of those, at most [`super::WATCHED_MAX`].
#[derive(Default)]
pub(super) struct Watched {
    pub(super) files: HashMap<ObjectId, WatchedFile>,
    pub(super) of_watch: HashMap<Watch, ObjectId>,
}

impl Watched {
    pub(super) fn has(&self, id: ObjectId) -> bool {
        self.files.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn put(&mut self, id: ObjectId, bytes: u64, watch: Watch, written_at: Instant) {
        self.of_watch.insert(watch, id);
        let file = WatchedFile { bytes, watch, written_at, seen_open_at: Instant::now() };
        if let Some(before) = self.files.insert(id, file)
            && before.watch != watch
        {
            self.of_watch.remove(&before.watch);
        }
    }

    pub(super) fn take(&mut self, id: ObjectId) -> Option<WatchedFile> {
        let file = self.files.remove(&id)?;
        self.of_watch.remove(&file.watch);
        Some(file)
    }

    pub(super) fn take_by(&mut self, watch: Watch) -> Option<(ObjectId, WatchedFile)> {
        let id = *self.of_watch.get(&watch)?;
        self.take(id).map(|file| (id, file))
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) suspects: Vec<Suspect>,
    pub(super) allowance: Allowance,
    pub(super) opened: VecDeque<Opened>,
    pub(super) watched: Watched,
    /// Opened while `opened` was full; until each was looked at all pages are small.
    pub(super) waiting: VecDeque<ObjectId>,
    /// When the last of those began to wait, until that is [`pace::RUSH_PAUSE`] ago.
    pub(super) rushed_at: Option<Instant>,
    /// Opens that are counted, files that were closed since the last look, and when the last one was.
    pub(super) given: Given,
    pub(super) closed: Vec<Closed>,
    pub(super) closed_at: Option<Instant>,
    /// A file found no place in the lists: all pages are small until they are half empty.
    pub(super) crowded: bool,
    /// When a call or a write was heard of last, or a file was found to have grown.
    pub(super) busy_at: Option<Instant>,
    /// The same but for little that is written seldom, and told.
    pub(super) lively_at: Option<Instant>,
    /// That may still begin, and since when.
    pub(super) watches_left: u32,
    pub(super) watches_since: Option<Instant>,
    pub(super) small: bool,
    /// The thread waits, and no file was being written.
    pub(super) resting: bool,
    pub(super) stopping: bool,
}

impl State {
    /// A file without holes is written or made, or opened for that: it is looked at from now on. True if an older one has to wait
    /// for its look, so that pages are to be chosen anew.
    pub(super) fn list(&mut self, id: ObjectId, bytes: Option<u64>, now: Instant) -> bool {
        if let Some(known) = self.opened.iter_mut().find(|file| file.id == id) {
            known.active_at = now;
            return false;
        }
        let first = self.first_that_waits();
        if let Some(first) = first.and_then(|at| self.opened.remove(at)) {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_front();
                self.crowded = true;
            }
            self.waiting.push_back(first.id);
            self.rushed_at = Some(now);
        }
        let is_full = first.is_some();
        let (is_seldom, is_seen) = (false, false);
        self.opened.push_back(Opened { id, bytes, active_at: now, is_seldom, is_seen });
        is_full
    }

    /// Which of the opened files has to wait, where one more comes than are looked at: files that come faster than they are looked
    /// at. Those that were looked at, had no hole, and are merely written are no reason, as long as they are not too many.
    fn first_that_waits(&self) -> Option<usize> {
        if self.opened.len() < OPENED_MAX {
            return None;
        }
        let unseen = |file: &Opened| !file.is_seen;
        let are_unseen = self.opened.iter().filter(|file| unseen(file)).count();
        match are_unseen >= OPENED_MAX || self.opened.len() >= OPENED_SEEN_MAX {
            true => Some(self.opened.iter().position(unseen).unwrap_or(0)),
            false => None,
        }
    }

    /// True if a file is in one of the lists.
    pub(super) fn has(&self, id: ObjectId) -> bool {
        self.watched.has(id)
            || self.suspects.iter().any(|suspect| suspect.id == id)
            || self.opened.iter().any(|file| file.id == id)
            || self.waiting.contains(&id)
    }

    /// Nobody has a file open any more: it leaves the lists for a last look. One with holes stays, until what it took is counted, and so
    /// do all where too many wait for that look.
    pub(super) fn close(&mut self, id: ObjectId, now: Instant) {
        if self.closed.len() >= CLOSED_MAX {
            return;
        }
        let opened = self.opened.iter().rposition(|file| file.id == id);
        let file = if let Some(file) = opened.and_then(|at| self.opened.remove(at)) {
            Closed { id, bytes: file.bytes, watch: None, is_told: file.is_seldom }
        } else if let Some(file) = self.watched.take(id) {
            // A write that the kernel has told of may not be heard yet.
            Closed { id, bytes: Some(file.bytes), watch: Some(file.watch), is_told: true }
        } else if let Some(at) = self.waiting.iter().rposition(|other| *other == id) {
            self.waiting.remove(at);
            Closed { id, bytes: None, watch: None, is_told: false }
        } else {
            return;
        };
        self.closed.push(file);
        self.closed_at = Some(now);
    }

    /// True if pages are to be small.
    pub(super) fn wants_small(&self, now: Instant) -> bool {
        let is_small = |suspect: &Suspect| {
            suspect.is_small() && now.saturating_duration_since(suspect.grown_at) < QUIET
        };
        let may_be_mapped = self.has_costly_holes() && pace::is_calm(self.calm_for(now));
        self.suspects.iter().any(is_small)
            || self.allowance.is_spent()
            || !self.waiting.is_empty()
            || self.is_rush(now)
            || may_be_mapped
            || self.crowded
    }

    /// Files had to wait for a look until just now.
    fn is_rush(&self, now: Instant) -> bool {
        self.rushed_at.is_some_and(|at| pace::is_rush(now.saturating_duration_since(at)))
    }

    /// If the last one is long over. Pages are chosen next.
    pub(super) fn end_rush(&mut self, now: Instant) {
        if !self.is_rush(now) {
            self.rushed_at = None;
        }
    }

    /// Files are made and closed one after the other.
    fn is_churn(&self, now: Instant) -> bool {
        self.closed_at.is_some_and(|at| now.saturating_duration_since(at) < CHURN)
    }

    /// True if an empty file, made or used at that time, is to be watched at once: it may get its first write anywhere. One of many that
    /// are made and closed is mostly closed sooner.
    pub(super) fn is_watched_empty(&self, active_at: Instant, now: Instant) -> bool {
        !self.is_churn(now) || now.saturating_duration_since(active_at) >= CHURN
    }

    /// True if a file is written, or was opened just now, or such are made and closed one after the other.
    pub(super) fn is_active(&self, now: Instant) -> bool {
        let is_active = |at: Instant| now.saturating_duration_since(at) < ACTIVE;
        !self.closed.is_empty()
            || self.is_churn(now)
            || self.opened.iter().any(|file| is_active(file.active_at))
            || self.suspects.iter().any(|suspect| suspect.is_active(now, self.small))
    }

    /// Since anything was written, or opened for that, as far as it is known.
    pub(super) fn quiet_for(&self, now: Instant) -> Duration {
        let last = self.suspects.iter().map(|suspect| suspect.active_at).chain(self.busy_at).max();
        last.map_or(Duration::MAX, |last| now.saturating_duration_since(last))
    }

    /// The same but for little that is written seldom, and told.
    pub(super) fn calm_for(&self, now: Instant) -> Duration {
        self.lively_at.map_or(Duration::MAX, |last| now.saturating_duration_since(last))
    }

    /// Some file has more holes than it is allowed.
    pub(super) fn has_costly_holes(&self) -> bool {
        self.suspects.iter().any(|suspect| !matches!(suspect.verdict, Verdict::Allowed { .. }))
    }

    /// A watched file was written, or is gone: it is looked at, and watched again if that was long after the write before, or
    /// else looked at closely from now on.
    pub(super) fn heard(&mut self, watch: Watch, now: Instant) -> Option<ObjectId> {
        let is_seldom =
            |written_at: Instant| pace::is_seldom(now.saturating_duration_since(written_at));
        if let Some((id, WatchedFile { bytes, written_at, .. })) = self.watched.take_by(watch) {
            let is_seldom = is_seldom(written_at);
            let (bytes, is_seen) = (Some(bytes), true);
            self.opened.push_back(Opened { id, bytes, active_at: now, is_seldom, is_seen });
            self.busy_at = Some(now);
            if !is_seldom {
                self.lively_at = Some(now);
            }
            return Some(id);
        }
        let suspect = self.suspects.iter_mut().find(|s| s.watch == Some(watch))?;
        suspect.watch = None;
        suspect.active_at = now;
        suspect.is_seldom = is_seldom(suspect.written_at);
        if !suspect.is_seldom {
            self.lively_at = Some(now);
        }
        Some(suspect.id)
    }

    /// More watches may begin, after a time.
    pub(super) fn allow_watches(&mut self, now: Instant) {
        let since = self.watches_since.map_or(ACTIVE, |since| now.saturating_duration_since(since));
        if since < ACTIVE {
            return;
        }
        let times = match self.is_active(now) {
            true => 1,
            false => (since.as_millis() / ACTIVE.as_millis()).min(WATCHES_TIMES_MOST.into()) as u32,
        };
        self.watches_since = Some(now);
        self.watches_left = WATCHES_MAX * times;
    }
}

#[cfg(test)]
mod tests {
    use super::super::LARGE_BYTES;
    use super::super::watch::Bell;
    use super::*;
    use forebay_proto::Ino;

    const PERIOD: Duration = Duration::from_millis(30);

    fn watch() -> Watch {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        Bell::new().unwrap().watch(&path).unwrap()
    }

    /// A watch begins when the file was quiet for [`ACTIVE`]: a write each 30 ms comes some 10 ms after that, and is seldom.
    #[test]
    fn a_write_is_seldom_by_the_write_before_it_and_not_by_its_watch() {
        let (id, watch) = (ObjectId::whole(Ino(1)), watch());
        let written_at = Instant::now();
        for (after, is_seldom) in [(ACTIVE * 3 / 2, true), (ACTIVE / 2, false)] {
            let mut state = State::default();
            state.watched.put(id, 1, watch, written_at);
            assert_eq!(state.heard(watch, written_at + after), Some(id));
            let told = state.opened.back().map(|file| file.is_seldom);
            assert_eq!(told, Some(is_seldom), "{after:?} after the write before");
        }
    }

    /// A file with holes that was written in a burst at that time, and was dense.
    fn dense(written_at: Instant) -> Suspect {
        Suspect {
            id: ObjectId::whole(Ino(1)),
            bytes: 0,
            grown_at: written_at,
            active_at: written_at,
            watch: None,
            written_at,
            is_seldom: false,
            seen_open_at: written_at,
            verdict: Verdict::Dense { until_bytes: 64 * LARGE_BYTES },
            pass_bytes: 0,
            probe_bytes: 0,
        }
    }

    /// They were looked at and have no holes: one more is no rush. It was one as soon as more than 64 were written at a time, and a dense
    /// file that began then had small pages.
    #[test]
    fn many_files_without_holes_that_are_written_leave_pages_large() {
        let (mut state, now) = (State::default(), Instant::now());
        let id = |number: u64| ObjectId::whole(Ino(number));
        for number in 0..300 {
            assert!(!state.list(id(number), Some(0), now), "file {number}");
            state.opened.iter_mut().for_each(|file| file.is_seen = true);
        }
        assert!(!state.wants_small(now));
        // Files that come faster than they are looked at may have holes.
        let listed = (300..400).filter(|number| state.list(id(*number), Some(0), now)).count();
        assert_eq!((listed, state.waiting.len()), (100 - OPENED_MAX, 100 - OPENED_MAX));
        assert!(state.wants_small(now));
        assert!(
            state.waiting.iter().all(|waiting| *waiting >= id(300)),
            "those that were not seen"
        );
    }

    /// One that was appended to for long, and cut: it was looked at 20 times for each write, for ever.
    #[test]
    fn a_dense_file_that_is_written_seldom_is_looked_at_closely_only_while_pages_are_large() {
        let (begun, watch) = (Instant::now(), watch());
        let mut state = State { lively_at: Some(begun), ..State::default() };
        state.suspects.push(dense(begun));
        state.suspects[0].begin_watch(Some(watch), false);
        for write in 1..=100_u32 {
            let now = begun + PERIOD * write;
            assert!(state.heard(watch, now).is_some(), "write {write}");
            // The look at it.
            let suspect = &mut state.suspects[0];
            let is_seldom = suspect.is_seldom;
            suspect.begin_watch(Some(watch), is_seldom);
            // As it is chosen where holes are costly.
            state.small = pace::is_calm(state.calm_for(now));
            let is_calm = PERIOD * write >= QUIET;
            assert_eq!((state.small, state.is_active(now)), (is_calm, !is_calm), "write {write}");
            assert_eq!(state.quiet_for(now), Duration::ZERO);
        }
        // The second write of a burst ends that.
        let now = begun + PERIOD * 100 + ACTIVE / 2;
        assert!(state.heard(watch, now).is_some());
        assert!(state.is_active(now) && !pace::is_calm(state.calm_for(now)));
    }

    #[test]
    fn an_open_of_a_file_that_is_used_seldom_makes_nobody_look_closely() {
        let begun = Instant::now();
        let mut suspect = dense(begun);
        suspect.verdict = Verdict::New;
        assert!(suspect.called(begun + PERIOD, true), "nobody tells its writes");
        suspect.begin_watch(Some(watch()), false);
        assert!(suspect.called(begun + PERIOD + ACTIVE / 2, true), "just after another one");
        assert!(suspect.called(begun + PERIOD * 3, false), "it may have got a hole");
        let now = begun + PERIOD * 5;
        assert!(!suspect.called(now, true) && !suspect.is_active(now, false));
    }
}
