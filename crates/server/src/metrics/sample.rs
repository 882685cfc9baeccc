//! All of a buffer, or of a process, at one moment.

use super::StagingCounts;
use crate::Server;
use forebay_net::node::host_name;
use forebay_proto::Caller;
use forebay_proto::control::{Direction, PlanState};
use forebay_proto::events::UtcTime;
use forebay_proto::metrics::{BufferMetrics, ErrorSource, ServerMetrics, StagingMetrics};
use rustix::time::ClockId;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What the server of a buffer knows: space, staging, events. Calls are counted by who serves them.
pub fn of_server(server: &Server, buffer: String) -> BufferMetrics {
    let namespace = server.namespace();
    let (used_bytes, capacity_bytes) =
        namespace.space().unwrap_or((0, server.store().capacity_bytes()));
    let (events, events_lost) = server.events().counts();
    let counts = server.mover().counts();
    BufferMetrics {
        buffer,
        uuid: server.store().record().uuid,
        up: true,
        capacity_bytes,
        used_bytes,
        inodes: namespace.store().usage().inodes,
        errors: counts.errors.sum(ErrorSource::Staging),
        staging: staging(server, counts),
        events,
        events_lost,
        cache: server.cache().map(|cache| cache.metrics()),
        ..BufferMetrics::default()
    }
}

fn staging(server: &Server, counts: &StagingCounts) -> StagingMetrics {
    let [done, failed, cancelled] = counts.plans();
    let mut told = StagingMetrics {
        done,
        failed,
        cancelled,
        in_bytes: counts.bytes(Direction::In).load(Relaxed),
        out_bytes: counts.bytes(Direction::Out).load(Relaxed),
        eta_s: Some(0.0),
        ..StagingMetrics::default()
    };
    for plan in server.mover().list_unfinished(&Caller::root()) {
        match plan.state {
            PlanState::Running => told.running += 1,
            _ => told.queued += 1,
        }
        told.backlog_bytes += plan.bytes_total.saturating_sub(plan.bytes_done);
        told.rate_bytes_per_s += plan.rate_bytes_per_s;
        told.eta_s = told.eta_s.zip(plan.eta_s).map(|(a, b)| a.max(b));
    }
    if told.queued + told.running == 0 {
        told.eta_s = None;
    }
    told
}

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
        pid: std::process::id(),
        uptime_s: started().elapsed().as_secs_f64(),
        cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        resident_bytes: resident_bytes().unwrap_or(0),
        capacity_bytes: None,
        reserved_bytes: None,
        buffers: Vec::new(),
    }
}

/// The second field of statm(5) counts pages.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
