//! Keeps the thread of a connection on the processor of the client that it serves.
//!
//! On one node client and server take turns: while one works the other waits. A turn on one
//! processor is a context switch; on two it is an interrupt to another one, which may be asleep
//! (measured on a machine of 2: 4 us against 45 to 73 us for a round trip). So a thread that was
//! asked from the same processor [`FOLLOW_AFTER`] times in a row goes there, until it is asked
//! from another. Nothing here can fail in a way that matters: then it runs where the scheduler
//! puts it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Calls from one processor in a row after which it is followed.
const FOLLOW_AFTER: u32 = 16;

/// What one connection's thread knows about its client.
pub struct Follower {
    /// Processors that the thread may use; `None`: following is off.
    allowed: Option<CpuSet>,
    last: Option<u16>,
    in_a_row: u32,
    pinned: bool,
}

impl Follower {
    /// For the calling thread.
    #[allow(clippy::new_without_default, reason = "it is about the thread that calls it")]
    pub fn new() -> Follower {
        let allowed = sched_getaffinity(None).ok();
        Follower { allowed, last: None, in_a_row: 0, pinned: false }
    }

    /// A call came from this processor; `None`: from another node.
    pub fn asked_from(&mut self, cpu: Option<u16>) {
        let (Some(allowed), Some(cpu)) = (&self.allowed, cpu) else { return };
        if self.last != Some(cpu) {
            self.last = Some(cpu);
            self.in_a_row = 0;
            if std::mem::take(&mut self.pinned) {
                // If it fails it stays where it is, which is right too.
                let _ = sched_setaffinity(None, allowed);
            }
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let at = usize::from(cpu);
        if self.pinned || self.in_a_row < FOLLOW_AFTER {
            return;
        }
        if at < CpuSet::MAX_CPU && allowed.is_set(at) {
            let mut only = CpuSet::new();
            only.set(at);
            self.pinned = sched_setaffinity(None, &only).is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_followed_and_left_again() {
        // On a thread of its own: affinity must not leak into other tests.
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let own = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap() as u16;
            let mut follower = Follower::new();
            for _ in 0..=FOLLOW_AFTER {
                follower.asked_from(Some(own));
                follower.asked_from(None);
            }
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            follower.asked_from(Some(own + 1));
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
