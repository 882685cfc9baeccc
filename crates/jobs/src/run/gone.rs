//! A job's buffer that is gone before its results are on the PFS: somebody destroyed it by hand, or its flash lost it. There is
//! nothing to finish then, and nothing is kept: the job's record is ended by `--discard`.
//!
//! Invariant: a buffer is gone only if that was found so. A server that cannot be asked, or flash that cannot be looked at, says
//! nothing about it. Called by [`super`] and [`super::discard`].

use super::mount;
use super::record::{JobRecord, as_path};
use super::served::Servers;
use forebay_proto::net::ledger::BufferState;

/// Where the buffer of a job is no more, in words; `None` if it is there, or if that cannot be told.
pub(super) fn why(record: &JobRecord, servers: &dyn Servers) -> Option<String> {
    let Some(job) = &record.served else { return why_here(record, servers) };
    let (server, buffer) = (&job.server, &job.buffer);
    match servers.find(job) {
        Ok(None) => Some(format!("the server {server} has no buffer {buffer}")),
        Ok(Some(found)) if found.state == BufferState::Destroying => {
            Some(format!("the server {server} is destroying the buffer {buffer}"))
        }
        Ok(Some(_)) | Err(_) => None,
    }
}

/// The same of a buffer on this node.
fn why_here(record: &JobRecord, servers: &dyn Servers) -> Option<String> {
    let (point, flash) = (record.mount_point(), as_path(&record.flash));
    let is_gone =
        !mount::is_mounted(point) && matches!(servers.is_on_flash(flash, point), Ok(false));
    is_gone.then(|| {
        format!(
            "nothing is mounted at {}, and {} has no buffer of it",
            point.display(),
            flash.display()
        )
    })
}
