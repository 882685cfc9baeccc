//! When the thread that chooses pages looks at files, and at which.
//!
//! * Nothing is written: it sleeps until a call or a write to a watched file ends that. One look in [`IDLE_LOOK_MOST`] is left, for files
//!   that were closed, of which nobody tells.
//! * Something was written in the last [`QUIET`]: it wakes once more when that is over. Files that can get pages without a word (not
//!   watched, or with holes beyond the allowance, into which a mapping may store) are looked at as often as the capacity asks for.
//! * A file is written: it wakes each millisecond, or so seldom that looks take one part in [`LOOK_SHARE`] of a processor, at
//!   most as seldom as the capacity allows. If a look at all files takes longer than that gives, it wakes for what was told alone,
//!   and looks at all of them once in [`ALL_LOOK_MOST`], or when the store has grown by [`NOTICE_BYTES`] since: what a hole costs is
//!   seen there, whichever file has it.
//! * A file is written, but seldom ([`is_seldom`]): it wakes for each write, looks at the file once, and has the kernel tell the
//!   next write. The second write of a burst is told, too, and begins the close looks. If nothing else was written for [`QUIET`] but little
//!   ([`is_lively`]), pages are small where holes are costly, as while nothing is written: then no mapping has to be looked for.
//!
//! Pure: facts and times in, decisions out. Called by [`super`].

use super::{ACTIVE, LARGE_BYTES, QUIET};
use std::time::Duration;

/// Between two looks while a file is written: in this time a processor fills some 10 large pages.
const LOOK_CLOSE: Duration = Duration::from_millis(1);
/// Looks take at most one part in so many of a processor's time.
const LOOK_SHARE: u32 = 100;
/// Else by the capacity: in this time a writer takes an eighth of it, at 10 GB/s.
const FILL_BYTES_PER_MS: u64 = 8 * 10_000_000;
const LOOK_LEAST: Duration = Duration::from_millis(10);
const LOOK_MOST: Duration = Duration::from_millis(200);
/// While files are written, all of them are looked at as often as this, however long that takes.
const ALL_LOOK_MOST: Duration = Duration::from_millis(100);
/// What a store may grow by before all files are looked at.
const NOTICE_BYTES: u64 = 16 << 20;
/// How long pages stay small after the last file that had to wait for its look: to and fro, for each few files of a rush, costs more.
pub(super) const RUSH_PAUSE: Duration = Duration::from_millis(100);
/// While nothing is written, open files are looked at so often at least.
const IDLE_LOOK_MOST: Duration = Duration::from_secs(10);

/// What is so when the thread begins to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// A file is written, and not seldom, or was opened for that just now.
    pub is_active: bool,
    /// Since a file was written or opened for that, as far as it is known.
    pub quiet_for: Duration,
    /// The same but for little that is written seldom, and told.
    pub calm_for: Duration,
    /// Empty pages of a closed file are to be counted.
    pub is_to_count: bool,
    pub is_small: bool,
    /// They are because of a rush; whether it is over is seen at the next look.
    pub is_rush: bool,
    /// Of some file nobody tells that it is written.
    pub is_untold: bool,
    /// Some file has holes beyond the allowance: stores into a mapping of it are told by nobody.
    pub has_costly_holes: bool,
    /// Some file is kept in a list.
    pub has_files: bool,
    /// What the last look at all files took.
    pub took: Duration,
    /// By the capacity.
    pub look_every: Duration,
}

/// How often a store of this capacity is looked at.
pub(super) fn look_every(capacity_bytes: u64) -> Duration {
    Duration::from_millis(capacity_bytes / FILL_BYTES_PER_MS / 8).clamp(LOOK_LEAST, LOOK_MOST)
}

/// How long the thread waits, if nothing is told; `None`: until something is.
pub(super) fn pause(facts: &Facts) -> Option<Duration> {
    let is_quiet = facts.quiet_for >= QUIET;
    if facts.is_active {
        return Some(LOOK_CLOSE.max((facts.took * LOOK_SHARE).min(facts.look_every)));
    }
    if facts.is_to_count || facts.is_rush {
        return Some(LOOK_LEAST);
    }
    // With nobody writing much, pages are small where holes are costly: then a mapping takes no large ones.
    let may_map_large = facts.has_costly_holes && !(is_calm(facts.calm_for) && facts.is_small);
    if facts.is_untold || may_map_large {
        return Some(if facts.is_small && !is_quiet { LOOK_LEAST } else { facts.look_every });
    }
    if !is_quiet {
        return Some((QUIET - facts.quiet_for).max(LOOK_LEAST));
    }
    // The longer it is quiet the seldomer.
    (facts.has_files || facts.is_small).then(|| facts.quiet_for.min(IDLE_LOOK_MOST))
}

/// True if a write that was told so long after the write before is one of few: a look for each costs less than close looks
/// for as long as a file counts as being written. When the watch began is all one: after a burst that is [`ACTIVE`] later.
pub(super) fn is_seldom(since_written: Duration) -> bool {
    since_written >= ACTIVE
}

/// True if a file that has grown by so much was written more than seldom. `is_told`: the kernel has told of one write, long after the
/// one before, and that is what it grew by. One that comes into a hole may have taken a large page.
pub(super) fn is_lively(grown_bytes: u64, is_told: bool) -> bool {
    grown_bytes > if is_told { LARGE_BYTES } else { 0 }
}

/// True if nothing was written for so long but little and seldom: pages are small where holes are costly.
pub(super) fn is_calm(calm_for: Duration) -> bool {
    calm_for >= QUIET
}

/// True if the last file that had to wait for its look began that so short a time ago that pages stay small.
pub(super) fn is_rush(since_rushed: Duration) -> bool {
    since_rushed < RUSH_PAUSE
}

/// True if all files are to be looked at, and not only those that were told of. The last such look began `since` ago, and
/// the store has grown since by so much, if that is known.
pub(super) fn is_due_for_all(since: Duration, took: Duration, grown_bytes: Option<u64>) -> bool {
    let has_grown = grown_bytes.is_none_or(|bytes| bytes >= NOTICE_BYTES);
    has_grown || since >= (took * LOOK_SHARE).min(ALL_LOOK_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    /// Files are open that the kernel tells of, and nobody writes.
    fn quiet(quiet_for: Duration) -> Facts {
        Facts {
            is_active: false,
            quiet_for,
            calm_for: quiet_for,
            is_to_count: false,
            is_small: false,
            is_rush: false,
            is_untold: false,
            has_costly_holes: false,
            has_files: true,
            took: 5 * MS / 1_000,
            look_every: look_every(4 << 30),
        }
    }

    /// How often it wakes in a time in which nothing is told, if all that changes is that it is quiet.
    fn wakes(from: Facts, time: Duration) -> u32 {
        let (mut facts, mut count) = (from, 0);
        while let Some(pause) = pause(&facts) {
            facts.quiet_for += pause;
            if facts.quiet_for > from.quiet_for + time {
                break;
            }
            count += 1;
        }
        count
    }

    #[test]
    fn nobody_looks_at_files_to_which_nobody_writes() {
        // It was 99 times a second for a sparse file that merely lay open.
        let sparse = Facts { has_costly_holes: true, is_small: true, ..quiet(QUIET) };
        assert!(wakes(sparse, 60 * S) <= 10, "{} in a minute", wakes(sparse, 60 * S));
        assert!(wakes(sparse, 3_600 * S) <= 3_600 / 10 + 5);
        assert_eq!(wakes(Facts { has_files: false, ..quiet(QUIET) }, 3_600 * S), 0);
        // A moment after the last write: once more when the quiet time is over, and no timer till then.
        assert_eq!(pause(&quiet(QUIET / 4)), Some(QUIET * 3 / 4));
        assert_eq!(pause(&quiet(QUIET - MS / 2)), Some(LOOK_LEAST));
    }

    #[test]
    fn what_is_written_without_a_word_is_looked_at_as_often_as_the_capacity_asks() {
        let every = look_every(64 << 30);
        assert!(every > LOOK_LEAST && every < LOOK_MOST, "{every:?}");
        assert_eq!((look_every(1 << 30), look_every(1 << 50)), (LOOK_LEAST, LOOK_MOST));
        for quiet_for in [20 * MS, 60 * S] {
            let untold = Facts { is_untold: true, look_every: every, ..quiet(quiet_for) };
            assert_eq!(pause(&untold), Some(every));
        }
        // Somebody else writes, so pages are large: a mapping of a sparse file could take them.
        let costly = Facts { has_costly_holes: true, look_every: every, ..quiet(100 * MS) };
        assert_eq!(pause(&costly), Some(every));
        // Small ones are large again soon.
        assert_eq!(pause(&Facts { is_small: true, ..costly }), Some(LOOK_LEAST));
        assert_eq!(pause(&Facts { is_to_count: true, ..quiet(QUIET) }), Some(LOOK_LEAST));
        let rush = Facts { is_rush: true, is_small: true, ..quiet(RUSH_PAUSE / 2) };
        assert_eq!(pause(&rush), Some(LOOK_LEAST));
        assert!(is_rush(RUSH_PAUSE - MS) && !is_rush(RUSH_PAUSE));
    }

    /// How often it wakes in a time in which one file is written so often: each write that is told, and each time-out. The file is
    /// watched when that begins, or was just written in a burst, and is looked at closely.
    fn wakes_for_writes(every: Duration, time: Duration, is_after_burst: bool) -> u32 {
        // While there is a watch: the last write that had been seen as it began. And the last one by now.
        let (mut watched, mut written_at) =
            ((!is_after_burst).then_some(Duration::ZERO), Duration::ZERO);
        let (mut now, mut next_write, mut count) = (Duration::ZERO, every, 0);
        while now < time {
            let quiet_for = now - written_at;
            let is_active = watched.is_none();
            let facts = Facts { is_active, is_untold: is_active, ..quiet(quiet_for) };
            let next_look = pause(&facts).map_or(Duration::MAX, |pause| now + pause);
            now = match watched {
                Some(_) => next_look.min(next_write),
                None => next_look,
            };
            count += 1;
            if now < next_write {
                if now - written_at >= ACTIVE {
                    watched = watched.or(Some(written_at));
                }
                continue;
            }
            // The write was told, or is seen by the look; more of them may have come since the one before.
            let is_told_again = watched.is_some_and(|before| is_seldom(now - before));
            watched = is_told_again.then_some(now);
            written_at = now;
            while next_write <= now {
                next_write += every;
            }
        }
        count
    }

    /// One file that was written each 30 ms woke it some 500 times a second, and later only after a burst.
    #[test]
    fn a_file_that_is_written_seldom_wakes_it_once_for_each_write() {
        let looks_after_burst = (ACTIVE.as_millis() / LOOK_CLOSE.as_millis()) as u32;
        for every in [22 * MS, 25 * MS, 30 * MS, 45 * MS, 100 * MS, 900 * MS] {
            let writes = 10_000 / every.as_millis() as u32;
            for (is_after_burst, more) in [(false, 5), (true, looks_after_burst + 5)] {
                let count = wakes_for_writes(every, 10 * S, is_after_burst);
                assert!(
                    count <= writes + more,
                    "{count} wakes for {writes} writes, one in {every:?}, after a burst: {is_after_burst}"
                );
            }
        }
        // Many writes one after the other are not told: it looks by the clock.
        let count = wakes_for_writes(MS / 100, 10 * S, false);
        assert!((9_000..=10_010).contains(&count), "{count} wakes for a million writes");
    }

    /// The same where the file has holes beyond the allowance, and each write is told. Nothing else was written for so long.
    fn wakes_beside_costly_holes(every: Duration, time: Duration, calm_for: Duration) -> u32 {
        let (mut now, mut written_at, mut count) = (Duration::ZERO, Duration::ZERO, 0);
        while now < time {
            let calm_for = calm_for + now;
            let is_small = is_calm(calm_for);
            let facts =
                Facts { has_costly_holes: true, calm_for, is_small, ..quiet(now - written_at) };
            let next_write = written_at + every;
            now = pause(&facts).map_or(next_write, |pause| next_write.min(now + pause));
            count += 1;
            if now == next_write {
                written_at = now;
            }
        }
        count
    }

    /// It was 110 to 150 times a second for one that was written each 30 ms.
    #[test]
    fn a_file_with_costly_holes_that_is_written_seldom_wakes_it_once_for_each_write() {
        for every in [22 * MS, 30 * MS, 100 * MS, 900 * MS] {
            let writes = 10_000 / every.as_millis() as u32;
            let count = wakes_beside_costly_holes(every, 10 * S, QUIET);
            assert!(count <= writes + 5, "{count} wakes for {writes} writes, one in {every:?}");
            // In the time after much was written a mapping may take large pages.
            let looks = (QUIET.as_millis() / LOOK_LEAST.as_millis()) as u32;
            let count = wakes_beside_costly_holes(every, 10 * S, Duration::ZERO);
            assert!((looks..=writes + looks + 5).contains(&count), "{count} for {writes} writes");
        }
        // What was chosen for the time before holds until the thread has looked once more.
        let large = Facts { has_costly_holes: true, ..quiet(QUIET) };
        assert_eq!(pause(&large), Some(large.look_every));
    }

    #[test]
    fn one_write_of_little_is_not_lively_and_what_nobody_told_is() {
        assert!(!is_lively(0, false) && !is_lively(0, true));
        assert!(is_lively(4_096, false) && !is_lively(4_096, true));
        assert!(!is_lively(LARGE_BYTES, true) && is_lively(LARGE_BYTES + 1, true));
        assert!(!is_calm(QUIET - MS) && is_calm(QUIET));
    }

    #[test]
    fn a_file_that_is_written_is_looked_at_each_millisecond() {
        let active = Facts { is_active: true, ..quiet(Duration::ZERO) };
        assert_eq!(pause(&active), Some(MS));
        assert!(is_due_for_all(MS, active.took, Some(0)), "all files of few");
        // Few files: as often as their share of a processor allows.
        let took = MS / 20;
        assert_eq!(pause(&Facts { took, ..active }), Some(5 * MS));
        assert!(is_due_for_all(5 * MS, took, Some(0)));
    }

    /// 300 files, each written every 10 ms, took 14.5 % of a processor.
    #[test]
    fn looks_at_many_files_that_are_written_cost_little_and_holes_are_seen_soon() {
        let took = MS * 3 / 2;
        let active = Facts { is_active: true, took, ..quiet(Duration::ZERO) };
        let wait = pause(&active).unwrap();
        assert_eq!(wait, LOOK_LEAST, "what is told, and what the store takes");
        // In a second: those looks, each of a system call or two, and a few at all files.
        let (mut since, mut all) = (Duration::ZERO, 0);
        for _ in 0..100 {
            since += wait;
            if is_due_for_all(since, took, Some(0)) {
                (since, all) = (Duration::ZERO, all + 1);
            }
        }
        assert!((5..=10).contains(&all), "{all} looks at all files");
        // A hole that takes large pages is looked for at once, and so where it is not known what the store takes.
        assert!(!is_due_for_all(wait, took, Some(NOTICE_BYTES - 1)));
        assert!(is_due_for_all(wait, took, Some(NOTICE_BYTES)));
        assert!(is_due_for_all(wait, took, None));
    }
}
