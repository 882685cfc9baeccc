//! Counters that many threads add to.

use crate::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Stripes of a counter: threads beyond this share them.
pub const STRIPES: usize = 8;
/// Linux has no errno above this one (EHWPOISON); what is above counts as 0.
const ERRNO_MAX: usize = 133;

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// This thread's stripe.
pub fn stripe() -> usize {
    STRIPE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT_STRIPE.fetch_add(1, Relaxed) % STRIPES);
        }
        mine.get()
    })
}

/// Errors by errno.
pub struct ErrnoCounts([AtomicU64; ERRNO_MAX + 1]);

impl Default for ErrnoCounts {
    fn default() -> ErrnoCounts {
        ErrnoCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl ErrnoCounts {
    /// One more.
    pub fn count(&self, errno: Errno) {
        let index = usize::try_from(errno.0).ok().filter(|index| *index <= ERRNO_MAX);
        self.0[index.unwrap_or(0)].fetch_add(1, Relaxed);
    }

    /// Those that happened, and how often.
    pub fn sum(&self) -> impl Iterator<Item = (Errno, u64)> {
        let all = self.0.iter().enumerate();
        let counted = all.map(|(errno, count)| (Errno(errno as i32), count.load(Relaxed)));
        counted.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_errno_also_strange_ones() {
        let counts = ErrnoCounts::default();
        for errno in [libc::ENOENT, libc::EIO, libc::ENOENT, 4711, -3] {
            counts.count(Errno(errno));
        }
        let told: Vec<_> = counts.sum().map(|(errno, count)| (errno.0, count)).collect();
        assert_eq!(told, [(0, 2), (libc::ENOENT, 2), (libc::EIO, 1)]);
    }
}
