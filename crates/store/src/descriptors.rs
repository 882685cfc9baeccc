//! The descriptors that this process may have (RLIMIT_NOFILE), and who gets how many of them.
//!
//! Invariants: objects that are kept open take a quarter of them at most, all buffers of the process together;
//! what lasts as long as a program likes (the PFS file behind an open one) leaves a reserve, so that drains,
//! fills and commands always find one. Called by `objects`, by the cache's opens, and by the
//! daemons before they make anything.

use forebay_proto::{Errno, Result};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Fewer than this are not enough for a mount or a server: threads, logs, connections and the reserve take most.
pub const MIN_DESCRIPTORS: u64 = 256;
/// Most objects that are kept open, however many descriptors there may be.
const MAX_CACHED: u64 = 1024;
/// Part of all descriptors that kept objects may take.
const CACHED_SHARE: u64 = 4;
/// Part of all descriptors that opens of programs leave alone, and its bounds.
const RESERVE_SHARE: u64 = 8;
const MIN_RESERVE: u64 = 64;
const MAX_RESERVE: u64 = 1024;
/// How often it is logged that opens are refused.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How many this process may have. Asked once: the daemons raise the limit before anything is open.
fn limit() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Most objects that this process keeps open.
pub(crate) fn max_cached() -> usize {
    cached_of(limit())
}

fn cached_of(limit: u64) -> usize {
    (limit / CACHED_SHARE).min(MAX_CACHED) as usize
}

fn end_of_opens(limit: u64) -> u64 {
    limit - (limit / RESERVE_SHARE).clamp(MIN_RESERVE, MAX_RESERVE).min(limit)
}

/// False for a descriptor of the reserve. The kernel gives out the lowest number that is free, so a number
/// says how many there are.
pub fn may_stay(file: &impl AsFd) -> bool {
    (file.as_fd().as_raw_fd() as u64) < end_of_opens(limit())
}

/// ENFILE if a descriptor that stays as long as a program likes is one of the reserve.
pub fn for_a_program(file: &impl AsFd) -> Result<()> {
    static TOLD: Mutex<Option<Instant>> = Mutex::new(None);
    if may_stay(file) {
        return Ok(());
    }
    let mut told = TOLD.lock();
    if told.is_none_or(|last| last.elapsed() >= TELL_EVERY) {
        *told = Some(Instant::now());
        let limit = limit();
        tracing::warn!(
            limit,
            "opens get ENFILE: programs have so many files open that the rest of the descriptors is for drains; raise the limit of open files (ulimit -Hn)"
        );
    }
    Err(Errno::ENFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_open_leaves_room_at_every_limit() {
        for limit in [MIN_DESCRIPTORS, 1024, 4096, 20_000, 1 << 20, u64::MAX] {
            let (cached, end) = (cached_of(limit) as u64, end_of_opens(limit));
            assert!(limit - end >= MIN_RESERVE, "{limit}");
            // What the process has of its own, and programs, get as much as is kept.
            assert!(end >= cached * 2, "{limit}: {cached} kept, opens end at {end}");
        }
    }
}
