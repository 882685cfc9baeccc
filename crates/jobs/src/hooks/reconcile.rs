//! `forebay reconcile`: what is on record is compared with the scheduler's own record. A scheduler may forget a job
//! without a teardown that worked (the Lua plugin gives up after three tries, a state directory is wiped), or remember a
//! job whose teardown it has killed itself and calls no more: Slurm hands a cancellation to a process that kills what runs
//! for the job in one thread, and starts the job's teardown in another, in any order.
//!
//! What agents still have of jobs that are on record nowhere any more is ended too: a teardown does not wait for a node
//! that does not answer, and the node may come back with mounts and swap space of the job.
//!
//! Invariants: nothing is done while the scheduler does not answer; results that the PFS does not have are kept.
//! Caller: `forebay reconcile`.

use super::back::Back;
use super::nodes::NodeAgents;
use super::persistent::Persistent;
use super::refusal::{Refusal, unexpected};
use super::rescue::Rescue;
use super::servers::PoolServers;
use super::session::{Session, SessionKind, Sessions};
use super::site::Site;
use super::teardown::Teardown;
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeReply, SessionName};
use serde::Serialize;
use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Younger sessions are left alone: the scheduler may be about to tell of their jobs.
const AGE_MIN_S: u64 = 60;
/// A persistent cache that no job has made by then was named by a script that could not be read.
const UNMADE_MAX_S: u64 = 600;
/// Pause between two looks at buffers that are the scheduler's alone: one may be just about to come or go.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Jobs that the scheduler does not know any more, or for which it calls no step any more, torn down (or to be).
    pub ended: Vec<SessionName>,
    /// Such jobs whose teardown failed, with the reason.
    pub failed: Vec<String>,
    /// Buffers of jobs at the servers that nothing here knows of: another cluster's, or of a record that was wiped.
    pub unknown: Vec<BufferName>,
    /// Jobs and persistent buffers that the scheduler counts, and that are on record nowhere here.
    pub without_buffer: Vec<String>,
    /// What nodes still had of jobs that nothing here knows of, ended (or to be).
    pub ended_on_nodes: Vec<NodeJob>,
    /// Nodes whose agents did not answer, with the reason.
    pub unreachable_nodes: Vec<String>,
}

/// A job on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeJob {
    /// Node, as the scheduler calls it.
    pub node: String,
    /// The job.
    pub job: SessionName,
}

/// Compares the records.
#[derive(Clone, Copy)]
pub struct Reconcile<'a> {
    site: &'a Site,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    persistent: Persistent<'a>,
    back: &'a dyn Back,
    nodes: NodeAgents<'a>,
    teardown: Teardown<'a>,
    rescue: Rescue<'a>,
}

impl<'a> Reconcile<'a> {
    pub(super) fn new(
        (site, sessions): (&'a Site, &'a Sessions),
        (servers, back): (PoolServers<'a>, &'a dyn Back),
        persistent: Persistent<'a>,
        nodes: NodeAgents<'a>,
        teardown: Teardown<'a>,
        rescue: Rescue<'a>,
    ) -> Reconcile<'a> {
        Reconcile { site, sessions, servers, persistent, back, nodes, teardown, rescue }
    }

    /// Compares, and tears down what the scheduler has forgotten; with `dry_run` only compares.
    ///
    /// # Errors
    /// If the scheduler or a pool does not answer.
    pub fn compare(&self, dry_run: bool) -> Result<Reconciled, Refusal> {
        let jobs = self
            .back
            .jobs()
            .ok_or_else(|| Refusal::new("squeue does not answer: nothing was compared"))?;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut result = Reconciled::default();
        // Before the record is read: a job is on record before a node has anything of it.
        let on_nodes = self.jobs_on_nodes(&mut result);
        let sessions = self.sessions.list()?;
        let known: HashSet<&SessionName> = sessions.iter().map(|session| &session.token).collect();
        let forgotten = on_nodes.into_iter().filter(|one| !known.contains(&one.job)).collect();
        self.end_on_nodes(forgotten, dry_run, &mut result);
        let is_old = |session: &&Session, age_s: u64| session.created_s + age_s <= now_s;
        let forgotten = sessions.iter().filter(|session| {
            session.kind == SessionKind::Job
                && is_old(session, AGE_MIN_S)
                && self.is_forgotten(session, jobs.get(session.token.as_str()).copied())
        });
        for session in forgotten {
            if dry_run {
                result.ended.push(session.token.clone());
                continue;
            }
            match self.teardown.end(&session.token, false) {
                Ok(_) => result.ended.push(session.token.clone()),
                Err(Refusal(why)) => result.failed.push(format!("{}: {why}", session.token)),
            }
        }
        let unmade = sessions.iter().filter(|session| {
            session.is_unmade()
                && session.persistent_cache.is_some()
                && is_old(session, UNMADE_MAX_S)
        });
        for session in unmade.filter(|_| !dry_run) {
            self.persistent.forget_unmade(&session.token)?;
        }
        result.without_buffer = self.only_at_the_scheduler()?;
        result.unknown = self.only_at_the_servers(&sessions)?;
        Ok(result)
    }

    /// True if the scheduler calls no step of a job any more. `is_over`: what it says of it, if it knows it.
    fn is_forgotten(&self, session: &Session, is_over: Option<bool>) -> bool {
        match is_over {
            None => true,
            Some(false) => false,
            Some(true) => match self.back.job(&session.token) {
                None => false,
                Some(job) if job.buffer_state.is_empty() || job.buffer_state == "complete" => true,
                // Its teardown may be under way, or was killed. Done twice it is done once; whether to hurry is not known
                // here, but that is about results, and there are none.
                Some(job) => job.buffer_state.starts_with("teardown") && !session.holds_results(),
            },
        }
    }

    /// What the scheduler counts and nothing here knows.
    fn only_at_the_scheduler(&self) -> Result<Vec<String>, Refusal> {
        let look = || -> Result<HashSet<String>, Refusal> {
            let mut counted = self.back.buffers().unwrap_or_default();
            for session in self.sessions.list()? {
                counted.remove(session.token.as_str());
            }
            Ok(counted)
        };
        let first = look()?;
        if first.is_empty() {
            return Ok(Vec::new());
        }
        std::thread::sleep(SECOND_LOOK);
        let mut both: Vec<String> = look()?.intersection(&first).cloned().collect();
        both.sort();
        Ok(both)
    }

    /// Buffers of jobs at the servers that nothing here knows of.
    fn only_at_the_servers(&self, sessions: &[Session]) -> Result<Vec<BufferName>, Refusal> {
        let kept = self.rescue.list()?;
        let known: Vec<&BufferName> =
            sessions.iter().chain(&kept).filter_map(|session| session.buffer.as_ref()).collect();
        let mut unknown = Vec::new();
        for pool in self.site.pool_names() {
            let LedgerReply::Buffers(all) = self.servers.ask_pool(pool, LedgerRequest::List)?
            else {
                continue;
            };
            let names = all.into_iter().map(|buffer| buffer.spec.name);
            unknown.extend(
                names.filter(|name| name.as_str().starts_with("job-") && !known.contains(&name)),
            );
        }
        unknown.sort();
        unknown.dedup();
        Ok(unknown)
    }

    /// What the agents of all nodes have of jobs.
    fn jobs_on_nodes(&self, result: &mut Reconciled) -> Vec<NodeJob> {
        let mut found = Vec::new();
        for (node, answer) in self.nodes.jobs() {
            match answer {
                Ok(NodeReply::Sessions(jobs)) => {
                    found.extend(jobs.into_iter().map(|job| NodeJob { node: node.clone(), job }));
                }
                Ok(_) => result.unreachable_nodes.push(format!("node {node}: {}", unexpected())),
                Err(error) => result.unreachable_nodes.push(format!("node {node}: {error}")),
            }
        }
        found
    }

    fn end_on_nodes(&self, forgotten: Vec<NodeJob>, dry_run: bool, result: &mut Reconciled) {
        for one in forgotten {
            if !dry_run {
                let asked = self.nodes.umount(std::slice::from_ref(&one.node), &one.job);
                if let Some(Err(error)) = asked.first() {
                    result.failed.push(format!("{} on node {}: {error}", one.job, one.node));
                    continue;
                }
            }
            result.ended_on_nodes.push(one);
        }
    }
}
