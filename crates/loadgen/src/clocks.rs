//! Clocks that processes of one host can compare, and what the calling thread and process used and waited.
//!
//! Callers: all of this crate, `forebay-bench`.

/// Nanoseconds of CLOCK_MONOTONIC; comparable between processes.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of the calling process so far, in nanoseconds.
pub fn own_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How long the calling thread has waited for a processor so far, in nanoseconds
/// (the second number of /proc/thread-self/schedstat); 0 where the kernel does not say.
pub fn own_waited_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
