//! The steps of a job's buffer as a scheduler calls them: one hook for each, in processes of their own, which may be
//! killed at any moment and are called again.
//!
//! [`Hooks`] takes a step: it asks the servers ([`Back`]), which do the work, and waits. What it knows of a token is
//! on record ([`session`]). [`call`] is the calling convention, [`site`] the site's configuration, [`answers`] what
//! is told to the scheduler without a server. `forebay` under the names `dw_wlm_cli` and `dwstat` is the front.
//!
//! Invariants: each step may be asked for again, also while it is under way; a hook that is killed changes nothing
//! (the servers go on, the next call finds it); results that the PFS does not have are destroyed only where the
//! scheduler says `--hurry`; what answers a waiting user (`job_process`, `paths`) asks no server.

pub mod answers;
pub mod call;
pub mod session;
pub mod site;

mod copies;
mod data;
mod mounts;
mod persistent;
pub mod reconcile;
mod rescue;
pub mod setup;
mod tables;
mod teardown;

use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeReply, NodeRequest, SessionName};
use session::{Session, Sessions};
use site::{PoolSite, Site};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What a scheduler takes for "there is nothing to do" in data_in, data_out and teardown.
pub const NO_SESSION: &str = "No matching session";
/// The same, of a teardown.
pub const NO_TOKEN: &str = "token not found";
/// Longest text for a scheduler, which cuts what it shows at 1 KiB.
const MAX_SAID_CHARS: usize = 900;
/// Pause between two tries to reach a server.
const AWAY_PAUSE: Duration = Duration::from_millis(200);

/// Servers and nodes, as the hooks ask them; the command line knows addresses and secrets.
pub trait Back: Sync {
    /// Asks a pool, as a user or with all rights.
    ///
    /// # Errors
    /// Why there is no answer, or what the answer is.
    fn ask(
        &self,
        pool: &PoolSite,
        user: Option<&Caller>,
        request: LedgerRequest,
    ) -> Result<LedgerReply, ControlError>;

    /// Asks the agent of a node, at its address.
    ///
    /// # Errors
    /// As `ask`.
    fn ask_node(
        &self,
        address: &str,
        request: &NodeRequest,
        limit: Duration,
    ) -> Result<NodeReply, ControlError>;

    /// A user with the groups that this machine knows for them.
    fn user(&self, uid: u32, gid: u32) -> Caller;

    /// A number that nobody can foresee.
    ///
    /// # Errors
    /// If the kernel has none.
    fn random(&self) -> Result<u128, ControlError>;

    /// What the scheduler says of a job; `None` if it cannot be asked.
    fn job(&self, token: &SessionName) -> Option<SchedulerJob>;

    /// All jobs that the scheduler knows, by their numbers, and whether they are over; `None` if it cannot be asked.
    fn jobs(&self) -> Option<HashMap<String, bool>>;

    /// What the scheduler counts as buffers: numbers of jobs, and names of persistent ones; `None` if it cannot be asked.
    fn buffers(&self) -> Option<HashSet<String>>;

    /// The names of all nodes that the scheduler knows; `None` if it cannot be asked.
    fn nodes(&self) -> Option<Vec<String>>;

    /// A list of nodes as Slurm writes it, one by one; `None` if it cannot be told.
    fn node_names(&self, list: &str) -> Option<Vec<String>>;
}

/// What a scheduler says of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerJob {
    /// Its nodes, as Slurm writes a list of them.
    pub nodes: String,
    /// It ended with an error, or was cancelled.
    pub failed: bool,
    /// How far its buffer is, in the scheduler's words; empty if it says nothing.
    pub buffer_state: String,
}

/// Why a step was not done: one line for the scheduler, who shows it to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl Refusal {
    /// From any text: one line, not too long.
    pub fn new(text: &str) -> Refusal {
        Refusal(one_line(text))
    }
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Refusal {
        Refusal::new(&error.to_string())
    }
}

/// A text as one line that a scheduler can show.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = crate::problem::printable(&lines.join("; "));
    match text.char_indices().nth(MAX_SAID_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What a step says when it is done; mostly nothing.
pub type Done = Result<String, Refusal>;

/// The steps.
pub struct Hooks<'a> {
    /// The site.
    pub site: &'a Site,
    /// What is on record.
    pub sessions: Sessions,
    /// Servers and nodes.
    pub back: &'a dyn Back,
}

/// True if this says that a server is away, and may come back: its plans go on then.
fn is_away(error: &ControlError) -> bool {
    crate::run::served::is_away(error) || error.errno == Some(libc::ENOENT) && is_connect(error)
}

/// A server that is being started again has no Unix socket for a moment.
fn is_connect(error: &ControlError) -> bool {
    error.what.starts_with("connect to the server")
}

/// True if this says that there is no such buffer.
fn is_gone(error: &ControlError) -> bool {
    error.errno == Some(libc::ENOENT) && !is_connect(error)
}

impl Hooks<'_> {
    /// A token as a name.
    ///
    /// # Errors
    /// If it is none.
    pub fn token(text: Option<&str>) -> Result<SessionName, Refusal> {
        let text = text.ok_or_else(|| Refusal::new("--token is missing"))?;
        text.parse().map_err(|error| Refusal::new(&format!("{error}")))
    }

    fn pool(&self, name: &str) -> Result<&PoolSite, Refusal> {
        self.site.pool(name)
    }

    /// Asks the pool of a session as its user. A server that is away is waited for.
    fn ask_as_user(
        &self,
        session: &Session,
        request: &LedgerRequest,
    ) -> Result<LedgerReply, ControlError> {
        let user = self.back.user(session.uid, session.gid);
        self.ask_patiently(session, Some(&user), request)
    }

    fn ask_patiently(
        &self,
        session: &Session,
        user: Option<&Caller>,
        request: &LedgerRequest,
    ) -> Result<LedgerReply, ControlError> {
        let pool = self.site.pools.get(&session.pool).ok_or_else(|| {
            let why = format!("the site has no pool {} any more", session.pool);
            ControlError::new("ask the servers", None, &why)
        })?;
        let begun = Instant::now();
        let patience = Duration::from_secs(self.site.patience_s);
        loop {
            match self.back.ask(pool, user, request.clone()) {
                Err(error) if is_away(&error) && begun.elapsed() < patience => {
                    std::thread::sleep(AWAY_PAUSE);
                }
                answer => return answer,
            }
        }
    }
}

fn unexpected() -> ControlError {
    let why = "the answer does not belong to the question";
    ControlError::new("ask the servers", None, why).errno(libc::EPROTO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scheduler_shows_is_one_line() {
        assert_eq!(one_line("a\n  b\n\n\x1b[31mc\n"), "a; b; \u{fffd}[31mc");
        let long = one_line(&"é".repeat(2_000));
        assert!(long.chars().count() <= MAX_SAID_CHARS + 3 && long.ends_with("..."));
    }
}
