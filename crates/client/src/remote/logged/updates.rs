//! What programs have read of a file in logs by descriptors that may also write, while other mounts write it.
//!
//! Such a program may write back what it has read, as MPI libraries do: bytes of other mounts among its own. What is written there
//! is published at once, before the write returns. So a mount that writes there next has learnt of it, and its write is the
//! later one, whatever its node's clock says.
//!
//! Called by `logged`.

use std::collections::VecDeque;

/// Ranges that are kept. The oldest go first: who reads to write back does that soon.
const MAX_RANGES: usize = 64;
/// Bytes of a range that several reads in a row make.
const MAX_RANGE_BYTES: u64 = 64 << 20;

/// Ranges, each from and to; none overlap.
#[derive(Default)]
pub(super) struct Updates(VecDeque<(u64, u64)>);

impl Updates {
    /// A range was read.
    pub(super) fn read(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        self.take(from, to);
        match self.0.back_mut() {
            // The kernel asks for a large one piece by piece.
            Some((first, last)) if *last == from && to - *first <= MAX_RANGE_BYTES => *last = to,
            _ => self.0.push_back((from, to)),
        }
        self.bound();
    }

    /// A range is written; true if some of it had been read. What was written is not waited for any more.
    pub(super) fn take(&mut self, from: u64, to: u64) -> bool {
        let meets = |(first, last): &(u64, u64)| *first < to && from < *last;
        if !self.0.iter().any(meets) {
            return false;
        }
        let mut left = VecDeque::with_capacity(self.0.len() + 1);
        for range in self.0.drain(..) {
            let (first, last) = range;
            if !meets(&range) {
                left.push_back(range);
                continue;
            }
            if first < from {
                left.push_back((first, from));
            }
            if to < last {
                left.push_back((to, last));
            }
        }
        self.0 = left;
        self.bound();
        true
    }

    fn bound(&mut self) {
        let over = self.0.len().saturating_sub(MAX_RANGES);
        self.0.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_known_until_it_is_written() {
        let mut updates = Updates::default();
        updates.read(100, 200);
        assert!(!updates.take(0, 100) && !updates.take(200, 300), "what lies beside it");
        assert!(updates.take(120, 130));
        assert!(!updates.take(120, 130), "once");
        assert!(updates.take(100, 120) && updates.take(0, 1_000), "what is left on both sides");
        assert!(updates.0.is_empty());
        updates.read(5, 5);
        assert!(updates.0.is_empty(), "nothing was read");
    }

    #[test]
    fn pieces_of_one_read_are_one_range() {
        let mut updates = Updates::default();
        (0..16).for_each(|n| updates.read(n << 20, (n + 1) << 20));
        assert_eq!(updates.0, [(0, 16 << 20)]);
        updates.read(1 << 20, 2 << 20);
        assert_eq!(
            updates.0,
            [(0, 1 << 20), (2 << 20, 16 << 20), (1 << 20, 2 << 20)],
            "read again"
        );
    }

    #[test]
    fn the_oldest_ranges_go() {
        let mut updates = Updates::default();
        (0..200).for_each(|n| updates.read(10 * n, 10 * n + 1));
        assert_eq!(updates.0.len(), MAX_RANGES);
        assert!(!updates.take(0, 1) && updates.take(1_990, 1_991));
        updates.read(0, MAX_RANGE_BYTES);
        updates.read(MAX_RANGE_BYTES, MAX_RANGE_BYTES + 1);
        assert_eq!(updates.0.back(), Some(&(MAX_RANGE_BYTES, MAX_RANGE_BYTES + 1)), "too long");
    }
}
