//! What a job's program has begun to copy to the PFS by itself, or put off to the end of the job: by `forebay stage out`,
//! libforebay, or libdatawarp. The end of the job waits for it, as for the lines of the script.
//!
//! Invariants: a copy that the program put off is released once the job has ended, never before; one that failed, and that
//! no later one has made good, is tried once more in each call, and what is missing then keeps the buffer. In a
//! persistent buffer only copies count that were asked for by this job's mount: other jobs have theirs.
//! Caller: `data`, at the end of a job.

use super::persistent::Persistent;
use super::plans::Plans;
use super::refusal::{Refusal, gone};
use super::servers::PoolServers;
use super::session::Session;
use super::site::AgentSite;
use crate::problem::printable;
use crate::run::record::as_bytes;
use forebay_proto::at_risk;
use forebay_proto::control::{Direction, PathBytes, PlanState, PlanStatus, StageSpec};
use forebay_proto::net::ledger::BufferName;

/// Copies that programs have asked for.
#[derive(Clone, Copy)]
pub(super) struct OwnCopies<'a> {
    agent: &'a AgentSite,
    persistent: Persistent<'a>,
    plans: Plans<'a>,
}

impl<'a> OwnCopies<'a> {
    pub(super) fn new(
        agent: &'a AgentSite,
        servers: PoolServers<'a>,
        persistent: Persistent<'a>,
    ) -> OwnCopies<'a> {
        OwnCopies { agent, persistent, plans: Plans::new(servers) }
    }

    /// Waits for all such copies of a job; why some are missing on the PFS, a line each.
    ///
    /// # Errors
    /// What the servers say.
    pub(super) fn bring_out(&self, session: &Session) -> Result<Vec<String>, Refusal> {
        let Some(request) = &session.request else { return Ok(Vec::new()) };
        let mut missing = Vec::new();
        if let (Some(buffer), None) = (&session.buffer, &request.cache) {
            missing.extend(self.of_buffer(session, session, buffer, None)?);
        }
        for persistent in self.persistent.used_by(request)? {
            let Some(buffer) = &persistent.buffer else { continue };
            let mut asker = session.clone();
            asker.pool.clone_from(&persistent.pool);
            let mount = self.agent.mount_of(&session.token, Some(persistent.token.as_str()));
            let seen_at = as_bytes(&mount);
            missing.extend(self.of_buffer(session, &asker, buffer, Some(&seen_at))?);
        }
        Ok(missing)
    }

    fn of_buffer(
        &self,
        session: &Session,
        asker: &Session,
        buffer: &BufferName,
        seen_at: Option<&PathBytes>,
    ) -> Result<Vec<String>, Refusal> {
        let is_own = |plan: &PlanStatus| {
            plan.spec.direction == Direction::Out
                && !is_of_a_line(session, &plan.spec)
                && seen_at.is_none_or(|at| plan.spec.seen_at.as_ref() == Some(at))
        };
        let all = self.plans.list(asker, buffer)?;
        for plan in all.iter().filter(|plan| is_own(plan) && plan.is_deferred()) {
            self.plans.release(asker, buffer, plan.plan)?;
        }
        for plan in all.iter().filter(|plan| is_own(plan) && !plan.state.is_final()) {
            self.plans.wait(asker, buffer, plan.plan).map_err(gone)?;
        }
        let all = self.plans.list(asker, buffer)?;
        let is_there = |path: &PathBytes| !self.plans.is_absent(asker, buffer, path);
        let failed = at_risk::failed(&all, is_there);
        let mut missing = Vec::new();
        for plan in failed.into_iter().filter(|plan| is_own(plan)) {
            if let Some(why) = self.once_more(asker, buffer, &plan.spec)? {
                let (from, to) = (&plan.spec.buffer_path, &plan.spec.pfs_path);
                let (from, to) = (printable(&from.to_string()), printable(&to.to_string()));
                missing.push(format!("stage-out by the program, {from} to {to}: {why}"));
            }
        }
        Ok(missing)
    }

    /// A copy that failed, again; why it fails still.
    fn once_more(
        &self,
        asker: &Session,
        buffer: &BufferName,
        spec: &StageSpec,
    ) -> Result<Option<String>, Refusal> {
        let begun = match self.plans.start(asker, buffer, spec)? {
            Ok(status) => status,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let ended = self.plans.wait(asker, buffer, begun.plan).map_err(gone)?;
        Ok((ended.state != PlanState::Done).then(|| self.plans.reasons(asker, buffer, &ended)))
    }
}

/// True if a line of the script asks for that copy: the line's own step sees to it.
fn is_of_a_line(session: &Session, spec: &StageSpec) -> bool {
    let Some(request) = &session.request else { return false };
    request.stage_out.iter().any(|stage| {
        let inside = request.buffer_path(stage);
        let private = stage.mode == crate::request::AccessMode::Private;
        // Of a namespace for each node there is a plan for each node.
        match private {
            true => spec.pfs_path.as_bytes().starts_with(stage.pfs_path.as_bytes()),
            false => spec.buffer_path == inside && spec.pfs_path == stage.pfs_path,
        }
    })
}
