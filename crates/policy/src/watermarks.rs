//! Which watermarks are in force, from the share of the capacity that is dirty.
//!
//! Invariant: a watermark that was passed stays in force until its lower mark is reached.

use crate::Moment;
use crate::changed::{self, Change};
use crate::when::Watermark;
use std::collections::HashMap;
use std::time::Duration;

/// How often the share of dirty data is looked at where a policy has a watermark.
pub const LOOK: Duration = Duration::from_millis(500);
/// The looks take at most one part in so many of a worker's time.
const LOOK_SHARE: u32 = 50;

/// The watermarks of a cache.
#[derive(Default)]
pub struct Watermarks {
    over: HashMap<Watermark, bool>,
    look_at: Option<Moment>,
    /// What was dirty at the last look, less what is drained since.
    dirty_bytes: u64,
}

impl Watermarks {
    /// True while a watermark was passed and its lower mark is not reached.
    pub fn is_over(&self, mark: Watermark) -> bool {
        self.over.get(&mark).copied().unwrap_or(false)
    }

    /// Whether to look how much is dirty now; nobody else is told so until the look is over. `set`: the watermarks
    /// that policies have.
    pub fn begin_look(&mut self, set: &[Watermark], now: Moment) -> bool {
        if set.is_empty() {
            self.over.clear();
            return false;
        }
        if self.look_at.is_some_and(|at| now < at) {
            return false;
        }
        self.look_at = Some(now + LOOK);
        true
    }

    /// A look that began at `started` and took so long has found so many dirty bytes. True if a mark has just been
    /// passed: all files are to be looked at again.
    pub fn looked(
        &mut self,
        set: &[Watermark],
        dirty_bytes: u64,
        capacity_bytes: u64,
        (started, took): (Moment, Duration),
    ) -> bool {
        self.look_at = Some(started + LOOK.max(took * LOOK_SHARE));
        self.dirty_bytes = dirty_bytes;
        self.note(set, capacity_bytes)
    }

    /// So much is being drained: it counts as gone, so that no more is drained than down to the lower mark, however
    /// many workers there are. A drain that fails is seen by the next look.
    pub fn drains(&mut self, set: &[Watermark], bytes: u64, capacity_bytes: u64) {
        if !set.is_empty() {
            self.dirty_bytes = self.dirty_bytes.saturating_sub(bytes);
            self.note(set, capacity_bytes);
        }
    }

    fn note(&mut self, set: &[Watermark], capacity_bytes: u64) -> bool {
        let dirty_percent = self.dirty_bytes as f64 * 100.0 / capacity_bytes.max(1) as f64;
        let old = std::mem::take(&mut self.over);
        let mut passed = false;
        for &mark in set {
            let was = old.get(&mark).copied().unwrap_or(false);
            let half = if changed::is(Change::Watermarks) { 2.0 } else { 1.0 };
            let least = f64::from(if was { mark.low } else { mark.high }) / half;
            let is = dirty_percent > least;
            passed |= is && !was;
            self.over.insert(mark, is);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_is_in_force_from_its_high_to_its_low_mark() {
        let (one, two) = (Watermark { high: 60, low: 30 }, Watermark { high: 80, low: 10 });
        let mut marks = Watermarks::default();
        for (percent, passed, over) in [
            (60, false, [false, false]),
            (61, true, [true, false]),
            (81, true, [true, true]),
            (31, false, [true, true]),
            (30, false, [false, true]),
            (59, false, [false, true]),
            (9, false, [false, false]),
        ] {
            let look = (Moment::default(), Duration::ZERO);
            assert_eq!(marks.looked(&[one, two], percent, 100, look), passed, "{percent}");
            assert_eq!([marks.is_over(one), marks.is_over(two)], over, "{percent}");
        }
    }

    #[test]
    fn what_is_being_drained_counts_as_gone() {
        let mark = Watermark { high: 60, low: 30 };
        let mut marks = Watermarks::default();
        assert!(marks.looked(&[mark], 70, 100, (Moment::default(), Duration::ZERO)));
        marks.drains(&[mark], 30, 100);
        assert!(marks.is_over(mark));
        marks.drains(&[mark], 10, 100);
        assert!(!marks.is_over(mark), "the lower mark will be reached");
    }

    #[test]
    fn looks_take_a_small_part_of_the_time() {
        let mark = [Watermark { high: 60, low: 30 }];
        let mut marks = Watermarks::default();
        let now = Moment::from_ms(0);
        assert!(!marks.begin_look(&[], now));
        assert!(marks.begin_look(&mark, now));
        assert!(!marks.begin_look(&mark, now), "somebody looks");
        marks.looked(&mark, 0, 100, (now, Duration::from_millis(100)));
        assert!(!marks.begin_look(&mark, Moment::from_ms(4_999)));
        assert!(marks.begin_look(&mark, Moment::from_ms(5_000)));
    }
}
