//! Points in time as plain numbers.

use std::ops::Add;
use std::time::{Duration, Instant};

/// A point in time: nanoseconds after a start that the caller chooses (negative before it). Only distances count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment {
    ns: i64,
}

impl Moment {
    /// So many milliseconds after the start.
    pub const fn from_ms(ms: i64) -> Moment {
        Moment { ns: ms.saturating_mul(1_000_000) }
    }

    /// Whole milliseconds after the start.
    pub const fn as_ms(self) -> i64 {
        self.ns.div_euclid(1_000_000)
    }

    /// How long after `earlier` it is; zero if it is before.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(u64::try_from(self.ns.saturating_sub(earlier.ns)).unwrap_or(0))
    }

    /// So much earlier.
    pub fn before(self, by: Duration) -> Moment {
        Moment { ns: self.ns.saturating_sub(nanoseconds(by)) }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment { ns: self.ns.saturating_add(nanoseconds(by)) }
    }
}

/// The start from which a process counts its moments.
#[derive(Clone, Copy, Debug)]
pub struct Origin(Instant);

impl Origin {
    /// This one.
    pub const fn new(start: Instant) -> Origin {
        Origin(start)
    }

    /// The moment of an instant.
    pub fn moment(self, at: Instant) -> Moment {
        match at.checked_duration_since(self.0) {
            Some(after) => Moment::default() + after,
            None => Moment::default().before(self.0.duration_since(at)),
        }
    }

    /// The instant of a moment; the start for one that no instant of this machine can be.
    pub fn instant(self, at: Moment) -> Instant {
        let by = Duration::from_nanos(at.ns.unsigned_abs());
        let instant = if at.ns < 0 { self.0.checked_sub(by) } else { self.0.checked_add(by) };
        instant.unwrap_or(self.0)
    }
}
