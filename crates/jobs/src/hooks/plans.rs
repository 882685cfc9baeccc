//! The plans of a buffer: copies that the servers make between it and the PFS. They are begun, found again and waited for.
//!
//! Invariant: a plan goes on at its server while nobody asks, and while its server is away.
//! Callers: `data` (the lines of a script), `copies` (what the program asked for).

use super::refusal::{Refusal, gone, is_gone, unexpected};
use super::servers::PoolServers;
use super::session::Session;
use crate::problem::printable;
use forebay_proto::PlanId;
use forebay_proto::control::{
    ControlError, Direction, PathBytes, PlanStatus, STAGE_WAIT_MAX_MS, StageSpec,
};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};

/// Most errors of files that one message shows.
const MAX_SHOWN_ERRORS: usize = 2;

/// Plans, as the pool of a session (`asker`) is asked for them, in the name of its user.
#[derive(Clone, Copy)]
pub(super) struct Plans<'a> {
    servers: PoolServers<'a>,
}

impl<'a> Plans<'a> {
    pub(super) fn new(servers: PoolServers<'a>) -> Plans<'a> {
        Plans { servers }
    }

    /// All plans of a buffer.
    ///
    /// # Errors
    /// What the servers say.
    pub(super) fn list(
        &self,
        asker: &Session,
        buffer: &BufferName,
    ) -> Result<Vec<PlanStatus>, Refusal> {
        let request = LedgerRequest::StageList { name: buffer.clone() };
        match self.servers.ask_as_user(asker, &request).map_err(gone)? {
            LedgerReply::Plans(plans) => Ok(plans),
            _ => Err(unexpected().into()),
        }
    }

    /// Begins a copy. Inside: why the servers do not.
    ///
    /// # Errors
    /// If the answer is one to another question.
    pub(super) fn start(
        &self,
        asker: &Session,
        buffer: &BufferName,
        spec: &StageSpec,
    ) -> Result<Result<PlanStatus, ControlError>, Refusal> {
        let start =
            LedgerRequest::StageStart { name: buffer.clone(), spec: spec.clone(), token: None };
        match self.servers.ask_as_user(asker, &start) {
            Ok(LedgerReply::Plan(status)) => Ok(Ok(status)),
            Ok(_) => Err(unexpected().into()),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Lets a copy begin that was put off to the end of the job.
    ///
    /// # Errors
    /// What the servers say.
    pub(super) fn release(
        &self,
        asker: &Session,
        buffer: &BufferName,
        plan: PlanId,
    ) -> Result<(), Refusal> {
        let release = LedgerRequest::StageRelease { name: buffer.clone(), plan };
        self.servers.ask_as_user(asker, &release).map(drop).map_err(gone)
    }

    /// Waits for the end of a plan. A server that is away for a while goes on with its plans.
    ///
    /// # Errors
    /// What the servers say, or that they stayed away.
    pub(super) fn wait(
        &self,
        asker: &Session,
        buffer: &BufferName,
        plan: PlanId,
    ) -> Result<PlanStatus, ControlError> {
        let question =
            LedgerRequest::StageWait { name: buffer.clone(), plan, at_most_ms: STAGE_WAIT_MAX_MS };
        loop {
            match self.servers.ask_as_user(asker, &question)? {
                LedgerReply::Plan(status) if status.state.is_final() => return Ok(status),
                LedgerReply::Plan(_) => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// True if the servers say that there is no such file in the buffer.
    pub(super) fn is_absent(&self, asker: &Session, buffer: &BufferName, path: &PathBytes) -> bool {
        let asked = LedgerRequest::FileStatus { name: buffer.clone(), path: path.clone() };
        self.servers.ask_as_user(asker, &asked).is_err_and(|error| is_gone(&error))
    }

    /// Why a plan failed, in one line; of a stage-out, whose buffer is kept, with the command that names all its files.
    pub(super) fn reasons(
        &self,
        asker: &Session,
        buffer: &BufferName,
        status: &PlanStatus,
    ) -> String {
        let server = self.servers.pool(&asker.pool).ok().map(|pool| &pool.server);
        let listed = match (status.spec.direction, server) {
            (Direction::Out, Some(server)) => Some(format!(
                "`forebay stage status {} --buffer {buffer}: --server {server}`",
                status.plan
            )),
            _ => None,
        };
        reasons(status, listed.as_deref())
    }
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
    let noun = if status.other_entries_failed > 0 { "entries" } else { "files" };
    let listed = listed.map_or_else(String::new, |command| format!(" ({command} names them)"));
    match (shown.is_empty(), more) {
        (true, _) => "the server gave no reason; its log may tell".into(),
        (false, 0) => shown.join("; "),
        (false, more) => format!("{}; and {more} more {noun}{listed}", shown.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::{FileError, PlanState, StageKind, StageOptions, Verify};

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
            other_entries_failed: 0,
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
