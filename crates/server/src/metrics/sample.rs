//! All of a buffer at one moment.

use super::device::{of_device, since};
use crate::Server;
use forebay_mover::StagingCounts;
use forebay_proto::Caller;
use forebay_proto::control::{Direction, PlanState};
use forebay_proto::metrics::{BufferMetrics, DeviceMetrics, Errors, StagingMetrics, errno_name};
use std::sync::atomic::Ordering::Relaxed;

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
        cache: server.buffer().cache_metrics(),
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
