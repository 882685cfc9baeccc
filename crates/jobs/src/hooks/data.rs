//! `data_in`, `data_out` and `real_size`: the stage lines of a job, one plan of the servers each, in the order of the
//! script; a cache drains. The servers copy, with the rights of the job's user; here they are asked and waited for.

use super::mounts::{JOB_MOUNT, PERSISTENT_PREFIX};
use super::session::{Session, SessionPlan};
use super::{Done, Hooks, NO_SESSION, Refusal, is_gone, unexpected};
use crate::problem::printable;
use crate::request::{AccessMode, JobRequest, StageRequest};
use crate::run::record::as_bytes;
use crate::run::served::not_all_tell;
use forebay_proto::PlanId;
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanState, PlanStatus, STAGE_WAIT_MAX_MS, StageOptions,
    StageSpec, Verify,
};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::node::SessionName;
use forebay_proto::size::format_bytes;
use std::time::{Duration, Instant};

/// Retries of a transient error, per file.
const RETRIES: u32 = 5;
/// Most errors of files that one message shows.
const MAX_SHOWN_ERRORS: usize = 2;
/// Time between two looks at a cache that drains, and after which it is asked to drain again.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a drain that makes no way because of errors is waited for.
const STUCK_AFTER: Duration = Duration::from_secs(10);

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

impl Hooks<'_> {
    fn session(&self, token: &SessionName) -> Result<Session, Refusal> {
        self.sessions.load(token)?.ok_or_else(|| Refusal::new(NO_SESSION))
    }

    fn place<'s>(&self, session: &'s Session, stage: &StageRequest) -> Result<Place<'s>, Refusal> {
        let mut asker = session.clone();
        let buffer = match &stage.persistent {
            None => session.buffer.clone(),
            Some(name) => {
                let name = name.parse().map_err(|error| Refusal::new(&format!("{error}")))?;
                let persistent = self.persistent(&name)?;
                asker.pool = persistent.pool;
                persistent.buffer
            }
        };
        let buffer = buffer.ok_or_else(|| Refusal::new(NO_SESSION))?;
        Ok(Place { job: session, asker, buffer })
    }

    /// `real_size`: what the buffer has, in bytes; beside it the swap space of each node, which is none of the pool's.
    pub fn real_size(&self, token: &SessionName) -> Done {
        let session = self.session(token)?;
        let swap = session.swap_bytes_per_node();
        Ok(format!(
            r#"{{"units":"bytes","capacity":{},"swap_bytes_per_node":{swap}}}"#,
            session.capacity_bytes
        ))
    }

    /// `data_in`: stops at the first line that fails.
    pub fn data_in(&self, token: &SessionName) -> Done {
        let session = self.session(token)?;
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
        let session = self.session(token)?;
        let missing = self.bring_out(&session)?;
        self.note(&session, |found| {
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
            && let Err(why) = self.drain(session, buffer)?
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
        missing.extend(self.bring_own_copies_out(session)?);
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
        for used in self.persistent_of(request)? {
            let Some(buffer) = used.writable_cache() else { continue };
            let mut asker = session.clone();
            asker.pool.clone_from(&used.pool);
            let others = self.users_of(&used.token)?;
            if others.iter().any(|job| *job != session.token) {
                self.tree(&asker, buffer, true)?;
            } else if let Err(why) = self.drain(&asker, buffer)? {
                missing.push(format!("persistent buffer {}: {why}", used.token));
            }
        }
        Ok(missing)
    }

    /// Changes what is on record of a session, if it is still that session's.
    fn note(&self, session: &Session, change: impl FnOnce(&mut Session)) -> Result<(), Refusal> {
        self.sessions.change(&session.token, |found| {
            if let Some(found) = found.as_mut().filter(|found| found.buffer == session.buffer) {
                change(found);
            }
            Ok(())
        })?;
        Ok(())
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
        let used = match self.ask_as_user(session, &status).map_err(gone)? {
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
        match self
            .ask_as_user(session, &LedgerRequest::StageList { name: buffer.clone() })
            .map_err(gone)?
        {
            LedgerReply::Plans(plans) => Ok(plans
                .iter()
                .filter(|plan| plan.spec.direction == Direction::In)
                .map(|plan| plan.bytes_done + plan.files_done * BLOCK_BYTES)
                .sum()),
            _ => Err(unexpected().into()),
        }
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
        let name = match &stage.persistent {
            Some(name) => format!("{PERSISTENT_PREFIX}{name}"),
            None => JOB_MOUNT.to_string(),
        };
        let seen_at = self.mount_point(&session.token, &name);
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
            match self.wait(session, buffer, plan) {
                Ok(status) if status.state == PlanState::Done => return Ok(End::Done),
                // It failed at an earlier call: once more, for this one.
                Ok(_) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let start =
            LedgerRequest::StageStart { name: buffer.clone(), spec: spec.clone(), token: None };
        let plan = match self.ask_as_user(session, &start) {
            Ok(LedgerReply::Plan(status)) => status.plan,
            Ok(_) => return Err(unexpected().into()),
            Err(error) if is_gone(&error) && !self.is_there(at.job) => {
                return Err(Refusal::new(NO_SESSION));
            }
            Err(_) if self.is_unwritten(at, spec) => return Ok(End::Nothing),
            Err(error) => return Ok(End::Failed(error.to_string())),
        };
        self.note(at.job, |found| {
            found.plans.retain(|plan| !same(plan));
            let (line, node) = (stage.line, node.map(str::to_string));
            found.plans.push(SessionPlan { line, node, plan });
        })?;
        let status = self.wait(session, buffer, plan).map_err(gone)?;
        Ok(match status.state {
            PlanState::Done => End::Done,
            PlanState::Cancelled => End::Failed("the copy was cancelled".into()),
            _ if found_nothing(&status) && self.is_unwritten(at, spec) => End::Nothing,
            _ => End::Failed(self.reasons(session, buffer, &status)),
        })
    }

    /// Why a plan failed, in one line; of a stage-out, whose buffer is kept, with the command that names all its files.
    pub(super) fn reasons(
        &self,
        asker: &Session,
        buffer: &BufferName,
        status: &PlanStatus,
    ) -> String {
        let server = self.pool(&asker.pool).ok().map(|pool| &pool.server);
        let listed = match (status.spec.direction, server) {
            (Direction::Out, Some(server)) => Some(format!(
                "`forebay stage status {} --buffer {buffer}: --server {server}`",
                status.plan
            )),
            _ => None,
        };
        reasons(status, listed.as_deref())
    }

    /// True if there is no such result in the buffer.
    fn is_unwritten(&self, at: &Place<'_>, spec: &StageSpec) -> bool {
        let (name, path) = (at.buffer.clone(), spec.buffer_path.clone());
        let asked = LedgerRequest::FileStatus { name, path };
        spec.direction == Direction::Out
            && self.ask_as_user(&at.asker, &asked).is_err_and(|error| is_gone(&error))
    }

    /// True if the session is still on record, or kept: it was not torn down meanwhile.
    fn is_there(&self, session: &Session) -> bool {
        let live = self
            .sessions
            .load(&session.token)
            .is_ok_and(|found| found.is_some_and(|found| found.buffer == session.buffer));
        live || self
            .sessions
            .list_kept()
            .is_ok_and(|kept| kept.iter().any(|kept| kept.buffer == session.buffer))
    }

    /// Waits for the end of a plan. A server that is away for a while goes on with its plans.
    pub(super) fn wait(
        &self,
        session: &Session,
        name: &BufferName,
        plan: PlanId,
    ) -> Result<PlanStatus, ControlError> {
        let question =
            LedgerRequest::StageWait { name: name.clone(), plan, at_most_ms: STAGE_WAIT_MAX_MS };
        loop {
            match self.ask_as_user(session, &question)? {
                LedgerReply::Plan(status) if status.state.is_final() => return Ok(status),
                LedgerReply::Plan(_) => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Drains a cache: all that the PFS does not have; why not, if it makes no way.
    pub(super) fn drain(
        &self,
        session: &Session,
        buffer: &BufferName,
    ) -> Result<Result<(), String>, Refusal> {
        let mut asked: Option<Instant> = None;
        let mut moved = (Instant::now(), 0, 0);
        loop {
            let flush = asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
            if flush {
                asked = Some(Instant::now());
            }
            let state = self.tree(session, buffer, flush)?;
            if state.is_durable() {
                return Ok(Ok(()));
            }
            if (state.drained_bytes, state.files) != (moved.1, moved.2) {
                moved = (Instant::now(), state.drained_bytes, state.files);
            }
            let stuck = state.failed + state.conflicts;
            if stuck > 0 && stuck + state.busy >= state.files && moved.0.elapsed() > STUCK_AFTER {
                let example = state.problems.first().map(|problem| {
                    let why = problem.error.as_ref().map_or("", |error| error.what.as_str());
                    format!(": {}: {} {why}", problem.path, problem.state)
                });
                return Ok(Err(format!(
                    "the cache holds {} of {} files that the PFS does not have{}",
                    format_bytes(state.dirty_bytes),
                    state.files,
                    example.unwrap_or_default()
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn tree(
        &self,
        session: &Session,
        name: &BufferName,
        flush: bool,
    ) -> Result<TreeState, Refusal> {
        let path = PathBytes::new(b"/");
        let request = match flush {
            true => CacheRequest::Flush { path },
            false => CacheRequest::State { path },
        };
        let asked = LedgerRequest::Cache { name: name.clone(), request, on_behalf: None };
        match self.ask_as_user(session, &asked).map_err(gone)? {
            LedgerReply::CacheTree(state) => Ok(*state),
            _ => Err(unexpected().into()),
        }
    }
}

/// A buffer that is not there any more was torn down.
pub(super) fn gone(error: ControlError) -> Refusal {
    match is_gone(&error) {
        true => Refusal::new(NO_SESSION),
        false => error.into(),
    }
}

/// True if a plan ended because its source is not there: it is opened first.
fn found_nothing(status: &PlanStatus) -> bool {
    status.files_total == 0
        && status.files_failed == 1
        && matches!(status.errors.as_slice(), [only] if only.errno == libc::ENOENT)
}

/// Why a plan failed, in one line. `listed`: the command that names those of its files that are not shown.
fn reasons(status: &PlanStatus, listed: Option<&str>) -> String {
    let shown: Vec<String> = status
        .errors
        .iter()
        .take(MAX_SHOWN_ERRORS)
        .map(|error| {
            let path = printable(&error.path.to_string());
            format!("{path}: {} ({})", error.why, error.what)
        })
        .collect();
    let more = status.files_failed.saturating_sub(shown.len() as u64);
    let listed = listed.map_or_else(String::new, |command| format!(" ({command} names them)"));
    match (shown.is_empty(), more) {
        (true, _) => "the server gave no reason; its log may tell".into(),
        (false, 0) => shown.join("; "),
        (false, more) => format!("{}; and {more} more files{listed}", shown.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::{FileError, StageKind};

    /// A stage-out of which these files failed.
    fn failed(names: &[&str]) -> PlanStatus {
        let error = |name: &&str| FileError {
            path: PathBytes::new(format!("/pfs/out/{name}").as_bytes()),
            errno: libc::EDQUOT,
            what: "write".into(),
            why: "quota".into(),
            attempts: 1,
            server: None,
        };
        PlanStatus {
            plan: PlanId(3),
            spec: StageSpec {
                direction: Direction::Out,
                kind: StageKind::Auto,
                pfs_path: PathBytes::new(b"/pfs/out"),
                buffer_path: PathBytes::new(b"/out"),
                verify: Verify::Cache,
                rate_bytes_per_s: 0,
                keep_going: true,
                retries: 0,
                seen_at: None,
                commit: None,
                options: StageOptions::default(),
            },
            buffer_prefix: PathBytes::none(),
            state: PlanState::Failed,
            uid: 1,
            scanned: true,
            files_total: names.len() as u64,
            files_done: 0,
            other_entries_total: 0,
            other_entries_done: 0,
            files_failed: names.len() as u64,
            files_skipped: 0,
            files_existing: 0,
            files_owner_changed: 0,
            not_kept: Vec::new(),
            bytes_total: 0,
            bytes_done: 0,
            rate_bytes_per_s: 0.0,
            eta_s: None,
            elapsed_s: 0.0,
            silent_s: None,
            errors: names.iter().map(error).collect(),
            verified: None,
            parts: Vec::new(),
            behind: Vec::new(),
            commit: None,
            dry_run: None,
        }
    }

    #[test]
    fn files_that_are_not_shown_are_named_by_a_command() {
        let two = "/pfs/out/a: quota (write); /pfs/out/b: quota (write)";
        let listed = Some("`forebay stage status 3`");
        assert_eq!(reasons(&failed(&["a", "b"]), listed), two);
        let four = failed(&["a", "b", "c", "d"]);
        let said = format!("{two}; and 2 more files (`forebay stage status 3` names them)");
        assert_eq!(reasons(&four, listed), said);
        assert_eq!(reasons(&four, None), format!("{two}; and 2 more files"));
    }
}
