//! Watches that the PFS of a run stays the one it was when the plan began: a mount point from which the PFS was unmounted is an
//! empty directory of another file system, and nothing may be copied into it.
//!
//! Invariant: once the file system of the target is known, it is in the journal, and no later run of the plan takes another.
//! Called by `run` and `commit` at their phases, by `retry` before each further attempt, by `delegated` at its begin.

use super::fault::{Outcome, Where};
use super::journal::{Journal, Record};
use super::pfs::RequesterPfs;
use super::pfs_target::FsIdentity;
use super::request::PlanRequest;
use forebay_proto::control::Direction;
use std::sync::{Arc, OnceLock};

/// The watch of one run.
pub(super) struct PfsWatch {
    request: Arc<PlanRequest>,
    pfs: RequesterPfs,
    journal: Arc<Journal>,
    /// The file system of the target, as an earlier run has it on record.
    recorded: Option<FsIdentity>,
    /// The file system that the PFS's path lies on.
    found: OnceLock<FsIdentity>,
}

impl PfsWatch {
    /// With the file system that an earlier run has journaled.
    pub fn new(
        request: Arc<PlanRequest>,
        pfs: RequesterPfs,
        journal: Arc<Journal>,
        recorded: Option<FsIdentity>,
    ) -> PfsWatch {
        PfsWatch { request, pfs, journal, recorded, found: OnceLock::new() }
    }

    /// Fails if the PFS is not the one it was when the plan began (an empty mount point), or is
    /// not there at all.
    pub fn check(&self) -> Outcome<()> {
        if let Some(known) = self.found.get() {
            return known.check(&self.pfs, self.request.pfs_side());
        }
        if self.request.spec.direction == Direction::In {
            // What is wrong with a source is told better by who opens it.
            let found = FsIdentity::of(&self.pfs, self.request.source_path());
            return found.map_or(Ok(()), |found| self.found.set(found).or(Ok(())));
        }
        if let Some(known) = &self.recorded {
            known.check(&self.pfs, Where::Target)?;
            return self.found.set(known.clone()).or(Ok(()));
        }
        let found = FsIdentity::of(&self.pfs, self.request.target_path())?;
        self.journal.append(&[Record::Target(found.clone())])?;
        self.found.set(found).or(Ok(()))
    }
}
