//! A job's buffer that is gone before its results are on the PFS: somebody destroyed it by hand, or its flash lost it. There is
//! nothing to finish then, and nothing is kept: the job's record is ended by `--discard`.
//!
//! Invariants: a buffer is gone only if that was found so. A server that cannot be asked, or flash that cannot be looked at, says
//! nothing about it. Flash that has neither the buffer nor what the job has left there for that ([`record::is_noted`]) may be another
//! one, as a directory is whose file system is not mounted: nothing is made or given up on it. What was found is never stored: each
//! look finds anew. Called by [`super`], [`super::discard`] and [`super::left_jobs`].

use super::mount;
use super::record::{self, JobRecord, as_path};
use super::served::Servers;
use super::step::{self, Step};
use forebay_proto::net::ledger::BufferState;

/// What is found of a buffer on this node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Here {
    /// It is there, or that cannot be told.
    MayBe,
    /// The flash is that of the job, and has no buffer of it.
    Gone,
    /// The flash has nothing of the job.
    OtherFlash,
}

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

/// The same of a job that nobody runs, if it needs its buffer to be finished.
pub(super) fn of_left(record: &JobRecord, servers: &dyn Servers) -> Option<String> {
    let is_needed = record.given_up.is_none() && step::resume_at(record.step) != Step::Teardown;
    is_needed.then(|| why(record, servers)).flatten()
}

/// True if the flash of a job has nothing of it: what is there now may be another one.
pub(super) fn is_flash_away(record: &JobRecord, servers: &dyn Servers) -> bool {
    record.served.is_none() && look_here(record, servers) == Here::OtherFlash
}

/// Why the buffer of a job on this node is gone.
fn why_here(record: &JobRecord, servers: &dyn Servers) -> Option<String> {
    (look_here(record, servers) == Here::Gone).then(|| {
        format!(
            "nothing is mounted at {}, and {} has no buffer of it",
            record.mount_point().display(),
            as_path(&record.flash).display()
        )
    })
}

fn look_here(record: &JobRecord, servers: &dyn Servers) -> Here {
    let (point, flash) = (record.mount_point(), as_path(&record.flash));
    if !matches!(servers.is_on_flash(flash, point), Ok(false)) {
        return Here::MayBe;
    }
    match (record::is_noted(flash, &record.id), mount::is_mounted(point)) {
        (true, false) => Here::Gone,
        (true, true) => Here::MayBe,
        // Its process may have the flash still, which somebody has detached.
        (false, true) if mount::answers(point) => Here::MayBe,
        (false, _) => Here::OtherFlash,
    }
}
