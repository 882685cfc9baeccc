//! What a buffer does with files while somebody watches: hits, misses, fills, drains, stalls. A ring in memory that
//! `forebay trace` reads by the control socket, so that calls of a program and what the buffer did then are on one clock.
//!
//! Invariants: nothing is kept, and no clock is read, while nobody watches: [`Activity::begin`] is then one load. The ring
//! has [`RING_EVENTS`] places; what was not fetched in time is counted, never waited for. Moments are CLOCK_BOOTTIME, as
//! those of traces. Who watches says so by each question, and is forgotten [`WATCHED_NS`] after the last one.
//! Callers: cache, mover, fuse (what happens), server and the mount's process (who asks).

use forebay_proto::Ino;
use forebay_proto::activity::{ACTIVITY_PAGE_MAX, ActivityKind, ActivityPage, ActivityRow};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Events that wait to be fetched, of 56 bytes each; older ones give way.
pub const RING_EVENTS: usize = 1 << 16;
/// How long after a question nobody watches any more.
pub const WATCHED_NS: u64 = 10_000_000_000;

/// The ring of one buffer.
#[derive(Debug, Default)]
pub struct Activity {
    watched: AtomicBool,
    until_ns: AtomicU64,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    rows: VecDeque<ActivityRow>,
    /// Number of the event after the last one.
    next: u64,
}

/// When something began, if somebody watches.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Begun(Option<u64>);

fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// CLOCK_BOOTTIME.
pub fn now_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Boottime)
}

/// Says on an answer where it comes from, and what the clocks are there.
pub fn stamp(page: &mut ActivityPage, host: String) {
    page.host = host;
    page.boottime_ns = now_ns();
    page.realtime_ns = clock_ns(rustix::time::ClockId::Realtime);
}

impl Activity {
    /// Something begins that may be worth an event.
    #[inline]
    pub fn begin(&self) -> Begun {
        match self.watched.load(Ordering::Relaxed) {
            true => Begun(Some(now_ns())),
            false => Begun(None),
        }
    }

    /// It has ended.
    #[inline]
    pub fn end(
        &self,
        begun: Begun,
        kind: ActivityKind,
        ino: Ino,
        (offset, length): (u64, u64),
        result: i64,
    ) {
        if let Begun(Some(start_ns)) = begun {
            self.put(kind, ino, (offset, length), result, start_ns);
        }
    }

    /// What has no duration.
    pub fn happened(&self, kind: ActivityKind, ino: Ino, place: (u64, u64), result: i64) {
        self.end(self.begin(), kind, ino, place, result);
    }

    #[cold]
    fn put(&self, kind: ActivityKind, ino: Ino, place: (u64, u64), result: i64, start_ns: u64) {
        let now_ns = now_ns();
        if now_ns > self.until_ns.load(Ordering::Relaxed) {
            self.watched.store(false, Ordering::Relaxed);
            self.ring.lock().rows = VecDeque::new();
            return;
        }
        let duration_ns = now_ns.saturating_sub(start_ns);
        let row = ActivityRow(kind as u8, ino.0, place.0, place.1, result, start_ns, duration_ns);
        let mut ring = self.ring.lock();
        if ring.rows.len() == RING_EVENTS {
            ring.rows.pop_front();
        }
        ring.rows.push_back(row);
        ring.next += 1;
    }

    /// Events after number `after`, the oldest first; without a number none, but from now on they are kept.
    pub fn read(&self, after: Option<u64>) -> ActivityPage {
        let now_ns = now_ns();
        self.until_ns.store(now_ns.saturating_add(WATCHED_NS), Ordering::Relaxed);
        self.watched.store(true, Ordering::Relaxed);
        let ring = self.ring.lock();
        let first = ring.next - ring.rows.len() as u64;
        // A number from before this process is none of these.
        let wanted = after.unwrap_or(ring.next).min(ring.next);
        let from = wanted.max(first);
        let rows: Vec<ActivityRow> = ring
            .rows
            .iter()
            .skip((from - first) as usize)
            .take(ACTIVITY_PAGE_MAX)
            .copied()
            .collect();
        let next_after = from + rows.len() as u64;
        let more = next_after < ring.next;
        ActivityPage { rows, next_after, lost: from - wanted, more, ..ActivityPage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(activity: &Activity, offset: u64) {
        let begun = activity.begin();
        activity.end(begun, ActivityKind::Hit, Ino(7), (offset, 1), 1);
    }

    #[test]
    fn nothing_is_kept_until_somebody_asks() {
        let activity = Activity::default();
        hit(&activity, 1);
        let page = activity.read(None);
        assert!(page.rows.is_empty() && page.next_after == 0 && page.lost == 0);
        hit(&activity, 2);
        hit(&activity, 3);
        let page = activity.read(Some(page.next_after));
        assert_eq!(page.rows.iter().map(|row| row.2).collect::<Vec<_>>(), [2, 3]);
        assert!(page.rows[0].5 <= page.rows[1].5 && page.rows[1].5 <= now_ns());
        assert!(activity.read(Some(page.next_after)).rows.is_empty());
        // A number of a process before this one.
        assert!(activity.read(Some(1000)).rows.is_empty());
    }

    #[test]
    fn what_nobody_fetched_in_time_is_counted() {
        let activity = Activity::default();
        let _ = activity.read(None);
        for offset in 0..RING_EVENTS as u64 + 10 {
            hit(&activity, offset);
        }
        let mut page = activity.read(Some(0));
        assert_eq!((page.lost, page.rows[0].2, page.more), (10, 10, true));
        let mut count = page.rows.len();
        while page.more {
            page = activity.read(Some(page.next_after));
            assert_eq!(page.lost, 0);
            count += page.rows.len();
        }
        assert_eq!(count, RING_EVENTS);
    }

    #[test]
    fn who_asks_no_more_is_forgotten() {
        let activity = Activity::default();
        let _ = activity.read(None);
        activity.until_ns.store(1, Ordering::Relaxed);
        hit(&activity, 1);
        assert!(!activity.watched.load(Ordering::Relaxed));
        assert!(activity.read(Some(0)).rows.is_empty());
    }
}
