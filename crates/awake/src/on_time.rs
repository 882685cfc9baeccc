//! Threads that run before others of a busy machine.
//!
//! Some threads do little, and what they do is worth nothing when it comes late: who chooses pages loses each 2 MiB that a
//! program writes into a hole before it looks, and a busy machine writes into a hundred meanwhile; who lets go of programs
//! that have a signal has a second for it.
//!
//! Invariant: what a thread does on time takes microseconds; [`at_leisure`] is for the rest. Called by the threads of `store`
//! (pages), `fuse` (waits) and `cache` (room).

use rustix::process::setpriority_process;

/// Of real-time threads the last.
const PRIORITY: libc::c_int = 1;
/// Among the others the first.
const NICE: i32 = -20;

/// The calling thread runs before all that are not real-time from now on; as [`be_early`] says if it may not.
pub fn be_on_time() {
    if !schedule(libc::SCHED_RR, PRIORITY) {
        be_early();
    }
}

/// The calling thread has the largest share of the processors from now on, if it may.
pub fn be_early() {
    // Of a thread: Linux knows nothing of processes here.
    if let Err(error) = setpriority_process(Some(rustix::thread::gettid()), NICE) {
        tracing::debug!(%error, "a thread that is to be on time runs no sooner than others");
    }
}

/// Does what takes longer as others do.
pub fn at_leisure<T>(work: impl FnOnce() -> T) -> T {
    let _stays_on_time = schedule(libc::SCHED_OTHER, 0);
    let done = work();
    be_on_time();
    done
}

/// Sets how the calling thread is scheduled. False if it may not.
fn schedule(policy: libc::c_int, priority: libc::c_int) -> bool {
    let thread: libc::c_long = 0;
    // Not every C library has a function for it that does anything.
    // SAFETY: the kernel reads a number through the pointer, which lives until the call returns.
    let done = unsafe {
        let policy = libc::c_long::from(policy);
        libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const priority)
    };
    done == 0
}
