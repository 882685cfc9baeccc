//! All of a buffer, or of a process, at one moment.

use crate::Server;
use forebay_mover::StagingCounts;
use forebay_net::node::host_name;
use forebay_proto::Caller;
use forebay_proto::control::{Direction, PlanState, StoreKind};
use forebay_proto::events::UtcTime;
use forebay_proto::metrics::{
    BufferMetrics, DeviceMetrics, Errors, ServerMetrics, StagingMetrics, errno_name,
};
use forebay_store::flash::Store;
use rustix::time::ClockId;
use std::os::unix::fs::MetadataExt;
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
        store_kind: Some(server.store().kind()),
        device: device(server),
        why: namespace.fault(),
        error_counts: Errors {
            staging: counts.errors.sum().map(|(errno, n)| (errno_name(errno), n)).collect(),
            ..Errors::default()
        },
        staging: staging(server, counts),
        events,
        events_lost,
        cache: server.cache().map(|cache| cache.metrics()),
        logs: namespace.logs().metrics(),
        ..BufferMetrics::default()
    }
}

/// What the loop device of an image store has moved: the only place where bytes are counted that kernels read and write
/// by themselves. A tmpfs has no device, and the file system of a plain directory has the files of others too.
fn device(server: &Server) -> Option<DeviceMetrics> {
    let (now, begun) = (of_device(server.store())?, server.device_at_start()?);
    Some(since(&begun, &now))
}

/// What was moved since then: the kernel counts for a device's number, also what earlier images moved that had it.
fn since(begun: &DeviceMetrics, now: &DeviceMetrics) -> DeviceMetrics {
    DeviceMetrics {
        read_bytes: now.read_bytes.saturating_sub(begun.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(begun.written_bytes),
    }
}

/// What the loop device of a store has moved since the machine's start.
pub(crate) fn of_device(store: &Store) -> Option<DeviceMetrics> {
    if store.kind() != StoreKind::LoopXfs {
        return None;
    }
    let device = std::fs::metadata(store.data_dir()).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    of_stat(&text)
}

/// Documentation/block/stat.rst of Linux: the third field is sectors read, the seventh sectors written; of 512 bytes always.
fn of_stat(text: &str) -> Option<DeviceMetrics> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |field: usize| fields.get(field).map(|sectors| sectors.saturating_mul(512));
    Some(DeviceMetrics { read_bytes: bytes(2)?, written_bytes: bytes(6)? })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_device_are_its_sectors() {
        let text = "     10       0       80      1        5        0      24       3        0        4        4\n";
        let told = of_stat(text).unwrap();
        assert_eq!((told.read_bytes, told.written_bytes), (80 * 512, 24 * 512));
        assert_eq!(of_stat("1 2 3"), None);
    }

    #[test]
    fn a_device_that_had_another_image_counts_from_zero() {
        let [begun, now] = [(13 << 30, 52 << 30), ((13 << 30) + 4096, (52 << 30) + 512)]
            .map(|(read_bytes, written_bytes)| DeviceMetrics { read_bytes, written_bytes });
        assert_eq!(since(&begun, &now), DeviceMetrics { read_bytes: 4096, written_bytes: 512 });
    }
}
