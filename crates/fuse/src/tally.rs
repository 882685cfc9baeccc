//! Bytes that went through the daemon, and errors that it gave, over all threads of a mount. What
//! the kernel reads and writes itself (passthrough) does not come here.

use forebay_proto::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Linux has no errno above this one; what is above counts as 0.
const ERRNO_MAX: usize = 133;

/// Counters of one mount.
pub(crate) struct Tally {
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: [AtomicU64; ERRNO_MAX + 1],
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
        Tally { read_bytes: zero(), written_bytes: zero(), errors }
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
