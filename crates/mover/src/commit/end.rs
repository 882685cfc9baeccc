//! What the engine asks of commits: whether a request is one that can be, which plan may run beside
//! which, and what is to be done with unfinished ones when the buffer is to be destroyed.

use super::place::Place;
use crate::Mover;
use crate::engine::{CANCEL_WAIT_MAX, Plan, PlanTable, Shared, plan_error};
use forebay_proto::control::{ControlError, Direction, StageKind, StageSpec};
use forebay_proto::{Caller, Errno, PlanId};
use std::time::Instant;

/// Refuses what no commit can be.
pub(crate) fn check_commit(spec: &StageSpec) -> Result<(), ControlError> {
    if spec.commit.is_none() {
        return Ok(());
    }
    let path = spec.pfs_path.as_bytes();
    let why = match spec {
        StageSpec { direction: Direction::In, .. } => "a commit goes from a buffer to the PFS",
        StageSpec { kind: StageKind::List | StageKind::File, .. } => "a commit is of a directory",
        _ if Place::of(path, "").is_none() => "the path must end in the name that the tree gets",
        _ => return Ok(()),
    };
    let mut error = plan_error("commit to", Errno::EINVAL, Some(path));
    error.why = why.to_string();
    Err(error)
}

impl PlanTable {
    /// The next plan that may run: commits to one place take turns, in the order of their numbers.
    pub(crate) fn next_in_turn(&mut self) -> Option<PlanId> {
        let place = |plan: &Plan| plan.commit.as_ref().map(|commit| commit.place.path.clone());
        let taken: Vec<_> = self
            .plans
            .iter()
            .filter(|(id, _)| self.active.contains(id))
            .filter_map(|(_, plan)| place(plan))
            .collect();
        let is_free = |id: &PlanId| {
            let wanted = self.plans.get(id).and_then(|plan| place(plan));
            let Some(wanted) = wanted else { return true };
            let earlier = self.queue.iter().filter(|other| *other < id);
            let mut waiting = earlier.filter_map(|other| place(self.plans.get(other)?));
            !taken.contains(&wanted) && !waiting.any(|other| other == wanted)
        };
        let at = self.queue.iter().position(is_free)?;
        self.queue.remove(at)
    }
}

impl Shared {
    /// Versions that ended commits of the same user to the same place could not remove.
    pub(crate) fn versions_left(&self, plan: &Plan) -> Vec<String> {
        let Some(commit) = &plan.commit else { return Vec::new() };
        let plans: Vec<_> = self.state.lock().plans.values().cloned().collect();
        let mut versions = Vec::new();
        for other in plans.iter().filter(|other| other.uid == plan.uid && other.is_final()) {
            let same = other.commit.as_ref().is_some_and(|c| c.place.path == commit.place.path);
            let status = same.then(|| other.status().commit).flatten();
            versions.extend(status.filter(|s| s.left.is_some()).map(|status| status.version));
        }
        versions
    }
}

impl Mover {
    /// Before the buffer is destroyed by force: an unfinished commit would leave on the PFS what nobody
    /// knows of any more. Each is given up, which is waited for at most [`CANCEL_WAIT_MAX`] in all.
    pub fn give_up_commits(&self) {
        let root = Caller::root();
        let plans = self.list_unfinished(&root);
        let end = Instant::now() + CANCEL_WAIT_MAX;
        for plan in plans.iter().filter(|plan| plan.spec.commit.is_some()) {
            let left = end.saturating_duration_since(Instant::now());
            if self.cancel_within(&root, plan.plan, left).is_err() {
                tracing::error!(plan = %plan.plan, pfs = %plan.spec.pfs_path,
                    "the PFS does not answer: what the commit copied stays beside its place");
            }
        }
    }
}
