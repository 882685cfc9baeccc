//! Two clocks: the node's, and the one that the PFS stamps its files with. They may differ, and each
//! may jump.
//!
//! Invariant: a PFS file counts as old enough to be believed by its times only if the PFS's own clock
//! has moved past them. How far that clock is behind ours is seen in what we do on the PFS ourselves:
//! whoever changes something there tells the ctime that it got. Asked when a base is taken.

use super::pfs::nanoseconds;
use forebay_proto::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering};

/// Grain of the clock that stamps files, with room, in nanoseconds.
const GRAIN_NS: i128 = 20_000_000;
/// The same where a file system stores whole seconds, or two.
const GRAIN_SECONDS_NS: i128 = 2_000_000_000;

/// The clocks.
#[derive(Default)]
pub(crate) struct Clocks {
    /// How far the PFS's clock was behind ours when it was seen last; 0 if it was not.
    behind_ns: AtomicI64,
    /// Tests set the node's clock by this.
    #[cfg(test)]
    pub ahead_ns: AtomicI64,
}

impl Clocks {
    /// The node's clock.
    pub fn now_ns(&self) -> i128 {
        let now = nanoseconds(Timestamp::now());
        #[cfg(test)]
        let now = now + i128::from(self.ahead_ns.load(Ordering::Relaxed));
        now
    }

    /// The PFS has just stamped this.
    pub fn stamped(&self, ctime: Timestamp) {
        let behind = (self.now_ns() - nanoseconds(ctime)).max(0);
        self.behind_ns.store(i64::try_from(behind).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// True if another change of a file could still get the times that this one has. A time in the
    /// future is of a clock that is ahead of ours, or was: nothing is known of such a file. The ctime
    /// is looked at, which no program can choose.
    pub fn is_young(&self, ctime: Timestamp) -> bool {
        let pfs_now_ns = self.now_ns() - i128::from(self.behind_ns.load(Ordering::Relaxed));
        let grain_ns = if ctime.nsec == 0 { GRAIN_SECONDS_NS } else { GRAIN_NS };
        pfs_now_ns - nanoseconds(ctime) < grain_ns
    }

    /// True if the node's clock has moved past a time that it has stamped, so that what is written
    /// from now on gets another one.
    pub fn has_passed(&self, time: Timestamp) -> bool {
        self.now_ns() - nanoseconds(time) >= GRAIN_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: i64 = 3_600_000_000_000;

    fn in_ns(clocks: &Clocks, ns: i128) -> Timestamp {
        let at = clocks.now_ns() + ns;
        Timestamp {
            sec: at.div_euclid(1_000_000_000) as i64,
            nsec: at.rem_euclid(1_000_000_000) as u32,
        }
    }

    #[test]
    fn a_file_is_young_by_the_clock_that_stamped_it() {
        let clocks = Clocks::default();
        let fresh = in_ns(&clocks, -1_000_000);
        let old = in_ns(&clocks, -1_000_000_000 - 1);
        assert!(clocks.is_young(fresh) && !clocks.is_young(old));
        // Stored without nanoseconds.
        assert!(clocks.is_young(Timestamp { nsec: 0, ..fresh }));
        // The PFS is an hour ahead: what it stamps is in our future.
        assert!(clocks.is_young(in_ns(&clocks, HOUR_NS.into())));
        // It is an hour behind: what it stamps looks old, until its clock was seen.
        let fresh = in_ns(&clocks, -i128::from(HOUR_NS));
        assert!(!clocks.is_young(fresh));
        clocks.stamped(fresh);
        assert!(clocks.is_young(fresh));
        assert!(!clocks.is_young(in_ns(&clocks, -i128::from(HOUR_NS) - 1_000_000_000)));
    }

    #[test]
    fn jumps_of_our_clock_make_files_young_and_never_old() {
        let clocks = Clocks::default();
        let old = in_ns(&clocks, -1_000_000_000);
        clocks.ahead_ns.store(-HOUR_NS, Ordering::Relaxed);
        assert!(clocks.is_young(old), "it is in the future now");
        assert!(!clocks.has_passed(old));
        // Ahead: what the PFS stamps then looks old, until something was done there.
        clocks.ahead_ns.store(HOUR_NS, Ordering::Relaxed);
        clocks.stamped(in_ns(&clocks, -i128::from(HOUR_NS)));
        assert!(clocks.is_young(in_ns(&clocks, -i128::from(HOUR_NS))));
    }
}
