//! What the hooks need of servers, nodes and the scheduler itself; the command line implements it, for it knows addresses and
//! secrets.

use super::site::PoolSite;
use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeReply, NodeRequest, SessionName};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

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
