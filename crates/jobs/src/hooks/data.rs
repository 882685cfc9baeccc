//! `data_in`, `data_out` and `real_size`: the stage lines of a job, one plan of the servers each, in the order of the
//! script; a cache drains. The servers copy, with the rights of the job's user; here they are asked and waited for.
//!
//! Invariants: a plan of a line is on record once it has begun, so that a step that is called again takes it up; what is
//! missing on the PFS at the end is on record, and keeps the buffer.
//! Callers: the front; `rescue`.

use super::back::Back;
use super::copies::OwnCopies;
use super::drain::CacheDrains;
use super::persistent::Persistent;
use super::plans::Plans;
use super::refusal::{Done, NO_SESSION, Refusal, gone, is_gone, unexpected};
use super::servers::PoolServers;
use super::session::{Session, SessionPlan, Sessions};
use super::site::AgentSite;
use crate::request::{AccessMode, JobRequest, StageRequest};
use crate::run::record::as_bytes;
use crate::run::served::not_all_tell;
use forebay_proto::control::{
    Direction, PathBytes, PlanState, PlanStatus, StageOptions, StageSpec, Verify,
};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::node::SessionName;
use forebay_proto::size::format_bytes;

/// Retries of a transient error, per file.
const RETRIES: u32 = 5;

/// Where a stage line's buffer side lies.
struct Place<'s> {
    /// The job.
    job: &'s Session,
    /// Whose pool is asked, as the job's user.
    asker: Session,
    /// The job's own buffer, or a persistent one.
    buffer: BufferName,
}

/// How a copy ended.
enum End {
    Done,
    /// There is no such source.
    Nothing,
    Failed(String),
}

/// Stage lines and drains of jobs.
#[derive(Clone, Copy)]
pub struct Staging<'a> {
    agent: &'a AgentSite,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    persistent: Persistent<'a>,
    back: &'a dyn Back,
    plans: Plans<'a>,
    drains: CacheDrains<'a>,
    own_copies: OwnCopies<'a>,
}

impl<'a> Staging<'a> {
    pub(super) fn new(
        agent: &'a AgentSite,
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
        persistent: Persistent<'a>,
        back: &'a dyn Back,
    ) -> Staging<'a> {
        Staging {
            agent,
            sessions,
            servers,
            persistent,
            back,
            plans: Plans::new(servers),
            drains: CacheDrains::new(servers),
            own_copies: OwnCopies::new(agent, servers, persistent),
        }
    }

    fn place<'s>(&self, session: &'s Session, stage: &StageRequest) -> Result<Place<'s>, Refusal> {
        let mut asker = session.clone();
        let buffer = match &stage.persistent {
            None => session.buffer.clone(),
            Some(name) => {
                let name = name.parse().map_err(|error| Refusal::new(&format!("{error}")))?;
                let persistent = self.persistent.find(&name)?;
                asker.pool = persistent.pool;
                persistent.buffer
            }
        };
        let buffer = buffer.ok_or_else(|| Refusal::new(NO_SESSION))?;
        Ok(Place { job: session, asker, buffer })
    }

    /// `real_size`: what the buffer has, in bytes; beside it the swap space of each node, which is none of the pool's.
    pub fn real_size(&self, token: &SessionName) -> Done {
        let session = self.sessions.find(token)?;
        let swap = session.swap_bytes_per_node();
        Ok(format!(
            r#"{{"units":"bytes","capacity":{},"swap_bytes_per_node":{swap}}}"#,
            session.capacity_bytes
        ))
    }

    /// `data_in`: stops at the first line that fails.
    pub fn data_in(&self, token: &SessionName) -> Done {
        let session = self.sessions.find(token)?;
        let Some(request) = &session.request else { return Ok(String::new()) };
        for stage in &request.stage_in {
            let at = self.place(&session, stage)?;
            let inside = request.buffer_path(stage);
            let spec = self.spec(&session, Direction::In, stage, &inside, &stage.pfs_path);
            match self.copy(&at, stage, None, &spec)? {
                End::Done => {}
                _ if stage.tolerate_errors => {}
                End::Nothing => {
                    let why = format!("{} is not there", stage.pfs_path);
                    return Err(Refusal::new(&format!("stage_in of line {}: {why}", stage.line)));
                }
                End::Failed(why) => {
                    return Err(Refusal::new(&format!("stage_in of line {}: {why}", stage.line)));
                }
            }
        }
        Ok(String::new())
    }

    /// `data_out`: a line that fails does not stop the others. What did not reach the PFS is on record.
    pub fn data_out(&self, token: &SessionName) -> Done {
        let session = self.sessions.find(token)?;
        let missing = self.bring_out(&session)?;
        self.sessions.note(&session, |found| {
            found.results_safe = missing.is_empty();
            found.missing = missing.clone();
        })?;
        match missing.is_empty() {
            true => Ok(String::new()),
            false => {
                let kept = session.buffer.as_ref().map_or_else(String::new, |buffer| {
                    format!(
                        "; the data is kept in buffer {buffer}: `forebay rescue {buffer}` goes on"
                    )
                });
                Err(Refusal::new(&format!("{}{kept}", missing.join("; "))))
            }
        }
    }

    /// All that a job's lines bring to the PFS: a line that fails does not stop the others. What is missing there, a
    /// line each.
    pub(super) fn bring_out(&self, session: &Session) -> Result<Vec<String>, Refusal> {
        let Some(request) = &session.request else { return Ok(Vec::new()) };
        let mut missing = Vec::new();
        if let (Some(_), Some(buffer)) = (&request.cache, &session.buffer)
            && let Err(why) = self.drains.finish(session, buffer)?
        {
            missing.push(why);
        }
        missing.extend(self.drain_persistent(session, request)?);
        let mut unwritten = Vec::new();
        for stage in &request.stage_out {
            match self.stage_out(session, stage)? {
                End::Done => {}
                _ if stage.tolerate_errors => {}
                End::Nothing => unwritten.push(stage),
                End::Failed(why) => {
                    missing.push(format!("stage_out of line {}: {why}", stage.line));
                }
            }
        }
        missing.extend(self.own_copies.bring_out(session)?);
        if !unwritten.is_empty() {
            missing.extend(self.judge_unwritten(session, &unwritten)?);
        }
        Ok(missing)
    }

    /// Drains the persistent caches that a job used. One that another job uses too is only asked to: its own end waits.
    fn drain_persistent(
        &self,
        session: &Session,
        request: &JobRequest,
    ) -> Result<Vec<String>, Refusal> {
        let mut missing = Vec::new();
        for used in self.persistent.used_by(request)? {
            let Some(buffer) = used.writable_cache() else { continue };
            let mut asker = session.clone();
            asker.pool.clone_from(&used.pool);
            let others = self.persistent.users_of(&used.token)?;
            if others.iter().any(|job| *job != session.token) {
                self.drains.begin(&asker, buffer)?;
            } else if let Err(why) = self.drains.finish(&asker, buffer)? {
                missing.push(format!("persistent buffer {}: {why}", used.token));
            }
        }
        Ok(missing)
    }

    /// Results that are not there: of a job that failed, and has written nothing else, there are none.
    fn judge_unwritten(
        &self,
        session: &Session,
        stages: &[&StageRequest],
    ) -> Result<Option<String>, Refusal> {
        let shown: Vec<String> = stages.iter().map(|stage| stage.line.to_string()).collect();
        let shown = shown.join(", ");
        let failed = self.back.job(&session.token).is_some_and(|job| job.failed);
        if !failed {
            return Ok(Some(format!("line {shown}: the job did not write this result")));
        }
        // A persistent buffer stays, with all that is in it.
        let own = stages.iter().any(|stage| stage.persistent.is_none());
        let Some(buffer) = session.buffer.as_ref().filter(|_| own) else { return Ok(None) };
        let status = LedgerRequest::Status { name: buffer.clone() };
        let used = match self.servers.ask_as_user(session, &status).map_err(gone)? {
            LedgerReply::Buffer(buffer) if buffer.is_partial() => {
                return Ok(Some(format!(
                    "line {shown}: the job failed before it wrote this result, and what its buffer holds is not known: {}",
                    not_all_tell(&buffer)
                )));
            }
            LedgerReply::Buffer(buffer) => buffer.used_bytes,
            _ => return Err(unexpected().into()),
        };
        let staged_in = self.staged_bytes(session, buffer)?;
        Ok((used > staged_in).then(|| {
            format!(
                "line {shown}: the job failed before it wrote this result, and its buffer holds {} more than was \
                 staged in",
                format_bytes(used - staged_in)
            )
        }))
    }

    /// What the stage-in plans have taken of the buffer: data in whole blocks.
    fn staged_bytes(&self, session: &Session, buffer: &BufferName) -> Result<u64, Refusal> {
        const BLOCK_BYTES: u64 = 4_096;
        let plans = self.plans.list(session, buffer)?;
        let staged_in = plans.iter().filter(|plan| plan.spec.direction == Direction::In);
        Ok(staged_in.map(|plan| plan.bytes_done + plan.files_done * BLOCK_BYTES).sum())
    }

    /// One stage-out line: one copy, or one for each node's own namespace, below a directory of its name.
    fn stage_out(&self, session: &Session, stage: &StageRequest) -> Result<End, Refusal> {
        let Some(request) = &session.request else { return Ok(End::Done) };
        let at = self.place(session, stage)?;
        if stage.mode != AccessMode::Private {
            let inside = request.buffer_path(stage);
            let spec = self.spec(session, Direction::Out, stage, &inside, &stage.pfs_path);
            return self.copy(&at, stage, None, &spec);
        }
        let root = request.mode_root(stage.mode).trim_end_matches('/').as_bytes();
        let below = stage.buffer_path.as_bytes();
        let below = if below == b"/" { b"" } else { below };
        let mut failed = Vec::new();
        let mut found = false;
        for node in session.nodes.iter().filter_map(|node| node.host.as_deref()) {
            let inside = PathBytes::new(&[root, b"/", node.as_bytes(), below].concat());
            let pfs = PathBytes::new(&[stage.pfs_path.as_bytes(), b"/", node.as_bytes()].concat());
            let mut spec = self.spec(session, Direction::Out, stage, &inside, &pfs);
            // The directory that the nodes' own ones go into is made by the first.
            spec.options.parents = true;
            match self.copy(&at, stage, Some(node), &spec)? {
                End::Done => found = true,
                End::Nothing => {}
                End::Failed(why) => failed.push(format!("{node}: {why}")),
            }
        }
        Ok(match (failed.is_empty(), found) {
            (false, _) => End::Failed(failed.join("; ")),
            (true, true) => End::Done,
            (true, false) => End::Nothing,
        })
    }

    fn spec(
        &self,
        session: &Session,
        direction: Direction,
        stage: &StageRequest,
        inside: &PathBytes,
        pfs: &PathBytes,
    ) -> StageSpec {
        let seen_at = self.agent.mount_of(&session.token, stage.persistent.as_deref());
        StageSpec {
            direction,
            kind: stage.kind,
            pfs_path: pfs.clone(),
            buffer_path: inside.clone(),
            verify: Verify::Cache,
            rate_bytes_per_s: 0,
            keep_going: stage.tolerate_errors || direction == Direction::Out,
            retries: RETRIES,
            seen_at: Some(as_bytes(&seen_at)),
            commit: None,
            options: StageOptions::default(),
        }
    }

    /// Makes a copy, or takes up the one that an earlier call has begun, and waits for its end.
    fn copy(
        &self,
        at: &Place<'_>,
        stage: &StageRequest,
        node: Option<&str>,
        spec: &StageSpec,
    ) -> Result<End, Refusal> {
        let (session, buffer) = (&at.asker, &at.buffer);
        let same = |plan: &SessionPlan| plan.line == stage.line && plan.node.as_deref() == node;
        let known = at.job.plans.iter().find(|plan| same(plan)).map(|plan| plan.plan);
        if let Some(plan) = known {
            match self.plans.wait(session, buffer, plan) {
                Ok(status) if status.state == PlanState::Done => return Ok(End::Done),
                // It failed at an earlier call: once more, for this one.
                Ok(_) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let plan = match self.plans.start(session, buffer, spec)? {
            Ok(status) => status.plan,
            Err(error) if is_gone(&error) && !self.sessions.is_there(at.job) => {
                return Err(Refusal::new(NO_SESSION));
            }
            Err(_) if self.is_unwritten(at, spec) => return Ok(End::Nothing),
            Err(error) => return Ok(End::Failed(error.to_string())),
        };
        self.sessions.note(at.job, |found| {
            found.plans.retain(|plan| !same(plan));
            let (line, node) = (stage.line, node.map(str::to_string));
            found.plans.push(SessionPlan { line, node, plan });
        })?;
        let status = self.plans.wait(session, buffer, plan).map_err(gone)?;
        Ok(match status.state {
            PlanState::Done => End::Done,
            PlanState::Cancelled => End::Failed("the copy was cancelled".into()),
            _ if found_nothing(&status) && self.is_unwritten(at, spec) => End::Nothing,
            _ => End::Failed(self.plans.reasons(session, buffer, &status)),
        })
    }

    /// True if there is no such result in the buffer.
    fn is_unwritten(&self, at: &Place<'_>, spec: &StageSpec) -> bool {
        spec.direction == Direction::Out
            && self.plans.is_absent(&at.asker, &at.buffer, &spec.buffer_path)
    }
}

/// True if a plan ended because its source is not there: it is opened first.
fn found_nothing(status: &PlanStatus) -> bool {
    status.files_total == 0
        && status.files_failed == 1
        && matches!(status.errors.as_slice(), [only] if only.errno == libc::ENOENT)
}
