//! What the engine asks of commits: whether a request is one that can be, which plan may run beside
//! which, and what is to be done with unfinished ones when the buffer is to be destroyed.

use super::place::Place;
use crate::mover::Mover;
use crate::mover::engine::{CANCEL_WAIT_MAX, Plan, Shared, State, plan_error};
use forebay_proto::control::{ControlError, Direction, PlanState, StageKind, StageSpec};
use forebay_proto::{Caller, Errno, PlanId};
use std::time::Instant;

/// Refuses what no commit can be.
pub(in crate::mover) fn check_commit(spec: &StageSpec) -> Result<(), ControlError> {
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

impl State {
    /// The next plan that may run: commits to one place take turns, in the order of their numbers.
    pub(in crate::mover) fn next_in_turn(&mut self) -> Option<PlanId> {
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
    pub(in crate::mover) fn versions_left(&self, plan: &Plan) -> Vec<String> {
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
    /// Before the buffer is destroyed: an unfinished commit would leave on the PFS what nobody
    /// knows of any more. Refused (EBUSY), or with `force` they are given up, which is waited for
    /// at most [`CANCEL_WAIT_MAX`] in all.
    pub fn end_commits(&self, force: bool) -> Result<(), ControlError> {
        let root = Caller::root();
        let unfinished = |state: PlanState| !state.is_final();
        let commits: Vec<_> = self.list(&root).into_iter().filter(|p| p.commit.is_some()).collect();
        let running: Vec<_> = commits.iter().filter(|plan| unfinished(plan.state)).collect();
        let Some(first) = running.first() else { return Ok(()) };
        if !force {
            let path = first.spec.pfs_path.as_bytes();
            let mut error = plan_error("end commit to", Errno::EBUSY, Some(path));
            error.why = format!("commit {} is not finished", first.plan);
            error.hint = Some(format!(
                "wait for it with `forebay stage wait {}`, or give it up: `forebay stage cancel \
                 {}`, or --force",
                first.plan, first.plan
            ));
            return Err(error);
        }
        let end = Instant::now() + CANCEL_WAIT_MAX;
        for plan in &running {
            let left = end.saturating_duration_since(Instant::now());
            if self.cancel_within(&root, plan.plan, left).is_err() {
                tracing::error!(plan = %plan.plan, pfs = %plan.spec.pfs_path,
                    "the PFS does not answer: what the commit copied stays beside its place");
            }
        }
        Ok(())
    }
}
