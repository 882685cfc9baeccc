//! Drains of caches before a job or a persistent buffer ends: asked for, and waited for until the PFS has everything.
//!
//! Invariant: a drain that makes no way because of errors is given up, and says so; any other is waited for.
//! Callers: `data` (the end of a job), `teardown` (of a persistent cache).

use super::refusal::{Refusal, gone, unexpected};
use super::servers::PoolServers;
use super::session::Session;
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::PathBytes;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::size::{files_text, format_bytes};
use std::time::{Duration, Instant};

/// Time between two looks at a cache that drains, and after which it is asked to drain again.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a drain that makes no way because of errors is waited for.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Caches, as the pool of a session is asked to drain them, in the name of its user.
#[derive(Clone, Copy)]
pub(super) struct CacheDrains<'a> {
    servers: PoolServers<'a>,
}

impl<'a> CacheDrains<'a> {
    pub(super) fn new(servers: PoolServers<'a>) -> CacheDrains<'a> {
        CacheDrains { servers }
    }

    /// Drains a cache: all that the PFS does not have; why not, if it makes no way.
    ///
    /// # Errors
    /// What the servers say.
    pub(super) fn finish(
        &self,
        asker: &Session,
        buffer: &BufferName,
    ) -> Result<Result<(), String>, Refusal> {
        let mut asked: Option<Instant> = None;
        let mut moved = (Instant::now(), 0, 0);
        loop {
            let flush = asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
            if flush {
                asked = Some(Instant::now());
            }
            let state = self.tree(asker, buffer, flush)?;
            if state.is_durable() {
                return Ok(Ok(()));
            }
            if (state.drained_bytes, state.files) != (moved.1, moved.2) {
                moved = (Instant::now(), state.drained_bytes, state.files);
            }
            let stuck = state.failed + state.conflicts;
            if stuck > 0 && stuck + state.busy >= state.files && moved.0.elapsed() > STUCK_AFTER {
                return Ok(Err(undrained(&state)));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Asks a cache to drain, and waits for nothing.
    ///
    /// # Errors
    /// What the servers say.
    pub(super) fn begin(&self, asker: &Session, buffer: &BufferName) -> Result<(), Refusal> {
        self.tree(asker, buffer, true).map(drop)
    }

    fn tree(
        &self,
        asker: &Session,
        buffer: &BufferName,
        flush: bool,
    ) -> Result<TreeState, Refusal> {
        let path = PathBytes::new(b"/");
        let request = match flush {
            true => CacheRequest::Flush { path },
            false => CacheRequest::State { path },
        };
        let asked = LedgerRequest::Cache { name: buffer.clone(), request, on_behalf: None };
        match self.servers.ask_as_user(asker, &asked).map_err(gone)? {
            LedgerReply::CacheTree(state) => Ok(*state),
            _ => Err(unexpected().into()),
        }
    }
}

/// What a cache still has that the PFS does not, with the first reason.
fn undrained(state: &TreeState) -> String {
    let example = state.problems.first().map(|problem| {
        let why = problem.error.as_ref().map_or("", |error| error.what.as_str());
        format!(": {}: {} {why}", problem.path, problem.state)
    });
    format!(
        "the cache holds {} of {} that the PFS does not have{}",
        format_bytes(state.dirty_bytes),
        files_text(state.files),
        example.unwrap_or_default()
    )
}
