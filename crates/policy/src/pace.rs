//! How fast drains go: at most as fast as their limit, and slower while an application needs the processors.

use crate::Moment;
use std::time::Duration;

/// Bytes that may pass at once whatever the rate, as the time that they take at it.
pub const BURST: Duration = Duration::from_millis(50);
/// Pause for each bit of processor time that a drain used while an application is active.
pub const GIVE_WAY_TIMES: u32 = 4;
/// Longest pause for one piece: a drain is slowed, never stopped.
pub const GIVE_WAY_MAX: Duration = Duration::from_millis(100);

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
