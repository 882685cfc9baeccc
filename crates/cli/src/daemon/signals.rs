//! SIGTERM, SIGINT and SIGHUP end a mount and keep its buffer, and end a server. They are blocked in every thread
//! and taken by one of their own.

use super::Mount;
use forebay_proto::control::ControlError;
use std::sync::Arc;

const ENDING: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn ending_set() -> libc::sigset_t {
    // SAFETY: sigemptyset makes a valid set of the zeroed memory that it is given, and
    // sigaddset is called with that set and signal numbers that exist.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDING {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Blocks them in this thread, and so in all threads it starts.
pub fn block() {
    let set = ending_set();
    // SAFETY: `set` is a valid set; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for one of them.
pub fn wait() -> i32 {
    let set = ending_set();
    loop {
        let mut signal = 0;
        // SAFETY: both point to valid values of this thread.
        let failed = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
        if failed == 0 {
            return signal;
        }
    }
}

/// Starts the thread that waits for them.
pub fn start(mount: Arc<Mount>) -> Result<(), ControlError> {
    let wait_for_all = move || {
        loop {
            mount.end_by_signal(wait());
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait_for_all)
        .map(drop)
        .map_err(|error| ControlError::io("start a thread", None, &error))
}
