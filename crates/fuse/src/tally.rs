//! Bytes that went through the daemon, and errors that it gave, over all threads of a mount. What
//! the kernel reads and writes itself (passthrough) does not come here.

use crate::abi;
use forebay_proto::Errno;
use forebay_proto::latency::{Latency, LatencyCounts};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Linux has no errno above this one; what is above counts as 0.
const ERRNO_MAX: usize = 133;

/// Counters of one mount.
pub(crate) struct Tally {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: [AtomicU64; ERRNO_MAX + 1],
    /// How long requests took, by opcode; index 0 is that of opcodes that we do not know.
    latency: Vec<LatencyCounts>,
}

/// What was served through a mount since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Errors and how often, without those that never happened.
    pub errors: Vec<(i32, u64)>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let zero = || AtomicU64::new(0);
        let errors = std::array::from_fn(|_| zero());
        let latency = (0..abi::OPCODE_END).map(|_| LatencyCounts::default()).collect();
        Tally { read_bytes: zero(), written_bytes: zero(), errors, latency }
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn failed(&self, errno: Errno) {
        let index = usize::try_from(errno.0).ok().filter(|index| *index <= ERRNO_MAX);
        self.errors[index.unwrap_or(0)].fetch_add(1, Relaxed);
    }

    /// A request was served.
    pub(crate) fn took(&self, opcode: u32, took: Duration) {
        let index = if opcode < abi::OPCODE_END { opcode as usize } else { 0 };
        self.latency[index].note(took);
    }

    /// How long requests took, of those that came, by the kernel's names of them.
    pub(crate) fn latency(&self) -> Vec<(&'static str, Latency)> {
        let told = self.latency.iter().zip(0..).filter_map(|(counts, opcode)| {
            let mut sum = Latency::default();
            counts.add_to(&mut sum);
            (sum.count() > 0).then(|| (abi::opcode_name(opcode).unwrap_or("UNKNOWN"), sum))
        });
        told.collect()
    }

    pub(crate) fn sum(&self) -> Served {
        let all = self.errors.iter().enumerate();
        let happened = all.map(|(errno, count)| (errno as i32, count.load(Relaxed)));
        Served {
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            errors: happened.filter(|(_, count)| *count > 0).collect(),
        }
    }
}
