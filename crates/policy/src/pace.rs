//! How fast drains go: at most as fast as their limit, and slower while an application needs the processors.

use crate::Moment;
use std::time::Duration;

/// Bytes that may pass at once whatever the rate, as the time that they take at it.
pub const BURST: Duration = Duration::from_millis(50);
/// Pause for each bit of processor time that a drain used while an application is active.
pub const GIVE_WAY_TIMES: u32 = 4;
/// Longest pause for one piece: a drain is slowed, never stopped.
pub const GIVE_WAY_MAX: Duration = Duration::from_millis(100);
/// An application that was silent for so long needs no processors.
pub const SILENCE: Duration = Duration::from_millis(20);

/// A limit of bytes per second.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pace {
    next: Option<Moment>,
}

impl Pace {
    /// So many bytes are to pass at this rate (in bytes per second, not 0): when they may.
    pub fn take(&mut self, bytes: u64, bytes_per_s: u64, now: Moment) -> Moment {
        let start = self.next.unwrap_or(now).max(now.before(BURST));
        self.next = Some(start + Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64));
        start
    }

    /// The rate is another one from now on: what was counted before does not matter.
    pub fn reset(&mut self) {
        self.next = None;
    }
}

/// What can be seen of applications while a file drains.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// How long ago a request read or wrote, or a kernel gave a file back; `None`: never.
    pub request_ago: Option<Duration>,
    /// Kernels have files themselves: what they read is never seen, and what they write only by looking at the files.
    pub kernels_have_files: bool,
    /// Somebody waits for the file that drains.
    pub is_waited_for: bool,
}

/// True if a drain gives way now. `kernel_wrote_ago` looks how long ago a kernel wrote a file itself, which is dear: it is
/// called only where it decides.
///
/// Where a kernel has a file, an application may be busy with it unseen, and a drain that nobody waits for leaves it the
/// processors. Who waits for a drain gives up his own time: then only what is seen counts.
pub fn gives_way(seen: &Seen, kernel_wrote_ago: impl FnOnce() -> Option<Duration>) -> bool {
    let is_recent = |ago: Option<Duration>| ago.is_some_and(|ago| ago < SILENCE);
    if is_recent(seen.request_ago) {
        return true;
    }
    match (seen.kernels_have_files, seen.is_waited_for) {
        (false, _) => false,
        (true, false) => true,
        (true, true) => is_recent(kernel_wrote_ago()),
    }
}

/// The pause that a drain owes an active application for this much processor time out of so much time. What it waited
/// anyway counts: a slow PFS is pause enough.
pub fn pause_owed(cpu: Duration, passed: Duration) -> Duration {
    let waited = passed.saturating_sub(cpu);
    (cpu * GIVE_WAY_TIMES).saturating_sub(waited).min(GIVE_WAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_owed_for_processor_time_and_not_for_waiting() {
        let ms = Duration::from_millis;
        assert_eq!(pause_owed(ms(3), ms(3)), ms(12));
        assert_eq!(pause_owed(ms(3), ms(8)), ms(7));
        // A slow PFS is pause enough.
        assert_eq!(pause_owed(ms(3), ms(40)), Duration::ZERO);
        assert_eq!(pause_owed(ms(500), ms(500)), GIVE_WAY_MAX);
    }

    #[test]
    fn a_drain_that_is_waited_for_gives_way_only_to_what_is_seen() {
        let ms = Duration::from_millis;
        let never = || -> Option<Duration> { panic!("looked at the files for nothing") };
        let mut seen = Seen::default();
        assert!(!gives_way(&seen, never), "nobody is there");
        seen.request_ago = Some(SILENCE);
        assert!(!gives_way(&seen, never), "silent for long enough");
        seen.request_ago = Some(SILENCE - ms(1));
        assert!(gives_way(&seen, never), "requests come");
        // A file that a kernel has is perhaps being read or written.
        let mut open = Seen { kernels_have_files: true, ..Seen::default() };
        assert!(gives_way(&open, never));
        // Somebody waits: that it is open is no reason.
        open.is_waited_for = true;
        assert!(!gives_way(&open, || None));
        assert!(!gives_way(&open, || Some(SILENCE)));
        assert!(gives_way(&open, || Some(ms(3))), "a kernel writes");
        open.request_ago = Some(ms(0));
        assert!(gives_way(&open, never), "so do requests");
    }

    #[test]
    fn a_rate_is_kept_and_time_without_drains_is_not_saved_up() {
        let (mut pace, rate) = (Pace::default(), 1_000_000);
        let mut now = Moment::from_ms(0);
        for _ in 0..100 {
            now = now.max(pace.take(50_000, rate, now));
        }
        // The first piece passes at once.
        assert_eq!(now, Moment::from_ms(99 * 50));
        let later = now + Duration::from_secs(3_600);
        assert!(pace.take(1_000_000, rate, later) <= later);
        let next = pace.take(1, rate, later);
        assert_eq!(next, later.before(BURST) + Duration::from_secs(1), "no more than a burst");
    }
}
