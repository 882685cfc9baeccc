//! What a run was asked for: the plan, its requester and its two paths.
//!
//! Invariant: nothing of it changes while the run lasts, so that all components of a run share one. Made by `setup`; read by
//! all that work on the run.

use super::commit::Commit;
use super::fault::{Fault, Where};
use super::plan::PlanFile;
use forebay_credentials::identity::Identity;
use forebay_proto::control::{Direction, FileError, PathBytes, StageSpec};
use forebay_proto::{Caller, PlanId};

/// What was asked for, and by whom.
pub(super) struct PlanRequest {
    pub plan: PlanId,
    /// Random number of the plan, which its temporary names have.
    pub token: u32,
    pub spec: StageSpec,
    pub who: Caller,
    /// The requester, as this process can act as them.
    pub identity: Identity,
    /// Where the requester sees the buffer.
    pub mount_point: Option<Vec<u8>>,
    /// Stands before paths of the buffer in messages.
    pub buffer_prefix: Vec<u8>,
    /// An earlier server began it.
    pub is_resumed: bool,
    /// In an earlier boot of the node.
    pub is_of_another_boot: bool,
    target_path: Vec<u8>,
}

impl PlanRequest {
    /// Of a plan, which may be a commit.
    pub fn new(
        file: PlanFile,
        identity: Identity,
        commit: Option<&Commit>,
        mount_point: Option<Vec<u8>>,
        buffer_prefix: Vec<u8>,
    ) -> PlanRequest {
        let is_of_another_boot = file.is_of_another_boot();
        let PlanFile { plan, spec, who, token, is_resumed, .. } = file;
        let target_path = match (commit, spec.direction) {
            (Some(commit), _) => &commit.place.staging_path[..],
            (None, Direction::In) => spec.buffer_path.as_bytes(),
            (None, Direction::Out) => spec.pfs_path.as_bytes(),
        };
        let target_path = target_path.to_vec();
        PlanRequest {
            plan,
            token,
            spec,
            who,
            identity,
            mount_point,
            buffer_prefix,
            is_resumed,
            is_of_another_boot,
            target_path,
        }
    }

    /// The path that the plan reads from.
    pub fn source_path(&self) -> &[u8] {
        match self.spec.direction {
            Direction::In => self.spec.pfs_path.as_bytes(),
            Direction::Out => self.spec.buffer_path.as_bytes(),
        }
    }

    /// The path that the plan writes to: of a commit, the directory beside its place.
    pub fn target_path(&self) -> &[u8] {
        &self.target_path
    }

    /// The side that is the PFS.
    pub fn pfs_side(&self) -> Where {
        match self.spec.direction {
            Direction::In => Where::Source,
            Direction::Out => Where::Target,
        }
    }

    /// The side that is the buffer.
    pub fn buffer_side(&self) -> Where {
        match self.spec.direction {
            Direction::In => Where::Target,
            Direction::Out => Where::Source,
        }
    }

    /// A path of the source as the user is told it.
    pub fn shown_source(&self, path: &[u8]) -> PathBytes {
        match self.spec.direction {
            Direction::In => PathBytes::new(path),
            Direction::Out => self.shown_in_buffer(path),
        }
    }

    /// A path of the buffer as the user is told it.
    pub fn shown_in_buffer(&self, path: &[u8]) -> PathBytes {
        PathBytes::in_buffer(&self.buffer_prefix, path)
    }

    /// What the user is told of the failure of an item with these two paths, after so many attempts.
    pub fn error_of(
        &self,
        fault: &Fault,
        source: &[u8],
        target: &[u8],
        attempts: u32,
    ) -> FileError {
        match self.spec.direction {
            Direction::In => fault.on(source, self.shown_in_buffer(target).as_bytes(), attempts),
            Direction::Out => fault.on(self.shown_in_buffer(source).as_bytes(), target, attempts),
        }
    }
}
