//! Requests counted by opcode, one table per reader thread so that readers share no cache line.

use crate::abi;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one reader. Index 0 counts opcodes that we do not know.
pub(crate) struct Counters([AtomicU64; abi::OPCODE_END as usize]);

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(crate) fn count(&self, opcode: u32) {
        let index = if opcode < abi::OPCODE_END { opcode as usize } else { 0 };
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    /// Sums over readers: (name, count) of every opcode, in the order of their numbers.
    pub(crate) fn sum<'a>(
        all: impl Iterator<Item = &'a Counters> + Clone,
    ) -> Vec<(&'static str, u64)> {
        (0..abi::OPCODE_END)
            .filter_map(|opcode| {
                let name = if opcode == 0 { "UNKNOWN" } else { abi::opcode_name(opcode)? };
                let of = |c: &Counters| c.0[opcode as usize].load(Ordering::Relaxed);
                Some((name, all.clone().map(of).sum()))
            })
            .collect()
    }
}
