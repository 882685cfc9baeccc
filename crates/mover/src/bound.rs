//! A bound on the memory of what a run keeps until its end.
//!
//! Owned by `dirs` and `links`, one each.

use super::fault::{Fault, Outcome, Sort, Where};
use parking_lot::Mutex;

/// What is kept in memory until the end of a run, up to a bound.
pub(super) struct MemoryBound {
    what: &'static str,
    most_bytes: u64,
    /// Records held, and their bytes.
    held: Mutex<(u64, u64)>,
}

impl MemoryBound {
    /// For records of `what`.
    pub fn new(what: &'static str, most_bytes: u64) -> MemoryBound {
        MemoryBound { what, most_bytes, held: Mutex::new((0, 0)) }
    }

    /// Takes memory for one more record; a refusal if there is none left.
    pub fn take(&self, bytes: usize) -> Outcome<()> {
        let mut held = self.held.lock();
        let (count, sum_bytes) = *held;
        if sum_bytes + bytes as u64 > self.most_bytes {
            let why = format!(
                "a plan may take {} bytes of memory for {}, and the {count} before take all of it; \
                 stage parts of the tree one by one",
                self.most_bytes, self.what
            );
            return Err(Fault::of(Sort::Refused, Where::Source, "walk source", why));
        }
        *held = (count + 1, sum_bytes + bytes as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_beyond_the_bound_is_refused_and_takes_nothing() {
        let bound = MemoryBound::new("things", 100);
        bound.take(60).unwrap();
        let fault = bound.take(41).unwrap_err();
        assert_eq!(fault.sort, Sort::Refused);
        let why = fault.why.unwrap();
        assert!(why.contains("100 bytes of memory for things, and the 1 before"), "{why}");
        bound.take(40).unwrap();
        assert!(bound.take(1).is_err());
    }
}
