//! The thread that chooses pages runs before others: each 2 MiB that a program writes into a hole before the thread looks is
//! lost, and a program on a busy machine writes into a hundred while the thread waits for its turn.
//!
//! Invariant: it does so only for what takes microseconds. Called by [`super`].

use forebay_proto::Errno;

/// Of real-time threads the last.
const PRIORITY: libc::c_int = 1;
/// Among the others the first.
const NICE: libc::c_int = -20;

/// The calling thread runs before others from now on, as far as it may.
pub(super) fn be_on_time() {
    if schedule(libc::SCHED_RR, PRIORITY) {
        return;
    }
    // SAFETY: plain numbers; 0 with PRIO_PROCESS is the calling thread on Linux.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        tracing::debug!(error = %Errno::last(), "who chooses pages runs no sooner than others");
    }
}

/// Does what takes longer as others do.
pub(super) fn at_leisure<T>(work: impl FnOnce() -> T) -> T {
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
