//! What a mount tells of its buffer where the servers that have it answer, but not the state of it: for that they ask the server
//! that leads the pool, which may be stopped. They count by themselves. Called by `requests`.

use super::backing::Served;
use forebay_proto::control::{ControlError, NO_ANSWER_YET};
use forebay_proto::metrics::{BufferMetrics, PoolMetrics};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use std::time::Duration;

/// How long the count is waited for, beside the time that the state took: servers count from memory.
const COUNT_WAIT: Duration = Duration::from_secs(1);

/// What the servers of a buffer count together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Capacity of the buffer.
    pub(super) capacity_bytes: u64,
    /// Used of it.
    pub(super) used_bytes: u64,
    /// Inodes in use.
    pub(super) inodes: u64,
}

/// The whole count, if the state failed with `error` for lack of a server that has no part of the buffer.
pub(super) fn without_the_state(served: &Served, error: &ControlError) -> Option<Counted> {
    if !is_of_another(error) {
        return None;
    }
    let request = LedgerRequest::Metrics { name: Some(served.name().ok()?), pool: true };
    match served.ask_beside(request, COUNT_WAIT) {
        Ok(LedgerReply::PoolMetrics(metrics)) => together(&metrics, &served.fs.attached().uuid),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "the servers do not count");
            None
        }
    }
}

/// Whether it may be another server than the buffer's that is silent: one that the buffer's have asked, or nobody is known to be.
fn is_of_another(error: &ControlError) -> bool {
    let some_answer = || error.hint.as_ref().is_some_and(|hint| hint.contains("pool status"));
    error.what.starts_with("ask server ") || (error.why == NO_ANSWER_YET && some_answer())
}

/// The parts of the buffer with this identity; `None` if one of them is not told.
fn together(metrics: &PoolMetrics, uuid: &str) -> Option<Counted> {
    let buffers = metrics.servers.iter().flat_map(|server| &server.buffers);
    let parts: Vec<&BufferMetrics> =
        buffers.filter(|buffer| buffer.up && buffer.uuid == uuid).collect();
    let is_whole = parts.first().is_some_and(|first| first.part_count == parts.len() as u64);
    (is_whole && metrics.unheard.is_empty()).then(|| Counted {
        capacity_bytes: parts.iter().map(|part| part.capacity_bytes).sum(),
        used_bytes: parts.iter().map(|part| part.used_bytes).sum(),
        inodes: parts.iter().map(|part| part.inodes).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::events::UtcTime;
    use forebay_proto::metrics::{ServerMetrics, Unheard};

    fn server(uuid: &str, used_bytes: u64) -> ServerMetrics {
        let part = BufferMetrics {
            uuid: uuid.into(),
            up: true,
            part_count: 2,
            capacity_bytes: 100,
            used_bytes,
            inodes: 3,
            ..BufferMetrics::default()
        };
        ServerMetrics {
            time: UtcTime(0),
            program: "1".into(),
            host: "n1".into(),
            server: None,
            pid: 7,
            uptime_s: 1.0,
            cpu_s: 1.0,
            resident_bytes: 1,
            capacity_bytes: None,
            reserved_bytes: None,
            buffers: vec![part],
            mount: None,
        }
    }

    #[test]
    fn all_parts_of_a_buffer_are_its_count_and_some_are_none() {
        let mut metrics = PoolMetrics {
            servers: vec![server("a", 10), server("a", 20), server("b", 40)],
            ..PoolMetrics::default()
        };
        let wanted = Counted { capacity_bytes: 200, used_bytes: 30, inodes: 6 };
        assert_eq!(together(&metrics, "a"), Some(wanted));
        assert_eq!(together(&metrics, "b"), None, "one of two parts");
        assert_eq!(together(&metrics, "c"), None);
        metrics.unheard.push(Unheard { server: "0".into(), host: "n2".into(), why: "?".into() });
        assert_eq!(together(&metrics, "a"), None);
    }

    #[test]
    fn the_buffers_own_server_that_is_stopped_is_not_asked_again() {
        let error = |what: &str, why: &str| ControlError::new(what, None, why);
        assert!(is_of_another(&error("ask server n1 (ab)", "its process 7 is stopped")));
        assert!(!is_of_another(&error("ask the server n1:7", "its process 7 is stopped")));
        let unknown = error("ask the server n1:7", NO_ANSWER_YET);
        assert!(!is_of_another(&unknown));
        assert!(is_of_another(&unknown.hint("`forebay pool status --server n1:7` tells why")));
    }
}
