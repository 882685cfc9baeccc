//! This process at one moment: since when it serves, its time and memory.

use forebay_net::node::host_name;
use forebay_proto::events::UtcTime;
use forebay_proto::metrics::ServerMetrics;
use rustix::time::ClockId;
use std::sync::OnceLock;
use std::time::Instant;

/// When the process began to serve: the first call of this.
pub fn started() -> Instant {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    *STARTED.get_or_init(Instant::now)
}

/// This process, with no buffers yet.
pub fn process() -> ServerMetrics {
    let cpu = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    ServerMetrics {
        time: UtcTime::now(),
        program: env!("CARGO_PKG_VERSION").into(),
        host: host_name(),
        server: None,
        pid: std::process::id(),
        uptime_s: started().elapsed().as_secs_f64(),
        cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        resident_bytes: resident_bytes().unwrap_or(0),
        capacity_bytes: None,
        reserved_bytes: None,
        buffers: Vec::new(),
        mount: None,
    }
}

/// The second field of statm(5) counts pages.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
