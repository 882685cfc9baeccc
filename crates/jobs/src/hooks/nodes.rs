//! The agents of the nodes of jobs: which nodes a job has, and what their agents answer, all within one limit of time.
//!
//! Invariants: a node that does not answer is an error of its own, and holds up nobody; a name of a node is never an option or
//! anything but a name in the address of its agent.
//! Callers: `mounts` (a job's nodes), `reconcile` (all nodes).

use super::back::Back;
use super::refusal::Refusal;
use super::site::AgentSite;
use forebay_proto::control::ControlError;
use forebay_proto::net::node::{NodeReply, NodeRequest, SessionName};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Most nodes that are asked at once.
const MAX_ASKED: usize = 128;
/// Most nodes that one message names.
const MAX_NODES_SHOWN: usize = 3;
/// Most nodes of a job.
const MAX_NODES: usize = 65_536;
/// Most bytes of a file of nodes.
const MAX_NODE_FILE_BYTES: u64 = 16 << 20;

/// The agents.
#[derive(Clone, Copy)]
pub(super) struct NodeAgents<'a> {
    site: &'a AgentSite,
    back: &'a dyn Back,
}

impl<'a> NodeAgents<'a> {
    pub(super) fn new(site: &'a AgentSite, back: &'a dyn Back) -> NodeAgents<'a> {
        NodeAgents { site, back }
    }

    /// Mounts on nodes: what each answered, in their order.
    pub(super) fn mount(
        &self,
        names: &[String],
        request: &NodeRequest,
    ) -> Vec<Result<NodeReply, ControlError>> {
        self.ask(names, request, self.site.mount_limit())
    }

    /// Ends what nodes have of a job: what each answered, in their order.
    pub(super) fn umount(
        &self,
        names: &[String],
        job: &SessionName,
    ) -> Vec<Result<NodeReply, ControlError>> {
        let request = NodeRequest::Umount { session: job.clone() };
        self.ask(names, &request, self.site.umount_limit())
    }

    /// All nodes that the scheduler knows, with what the agent of each says of its jobs.
    pub(super) fn jobs(&self) -> Vec<(String, Result<NodeReply, ControlError>)> {
        let names = self.back.nodes().unwrap_or_default();
        let answers = self.ask(&names, &NodeRequest::Sessions, self.site.umount_limit());
        names.into_iter().zip(answers).collect()
    }

    /// The nodes of a job: from the scheduler's file, its list, or its own words.
    ///
    /// # Errors
    /// If nobody says them, or a name is none.
    pub(super) fn of_job(
        &self,
        token: &SessionName,
        file: Option<&Path>,
        list: Option<&str>,
    ) -> Result<Vec<String>, Refusal> {
        use std::io::Read;
        let names: Vec<String> = match file {
            Some(path) => {
                let mut text = String::new();
                std::fs::File::open(path)
                    .and_then(|file| file.take(MAX_NODE_FILE_BYTES).read_to_string(&mut text))
                    .map_err(|error| Refusal::new(&format!("read the list of nodes: {error}")))?;
                text.split_whitespace().map(str::to_string).collect()
            }
            None => {
                let given = list.filter(|list| !list.is_empty()).map(str::to_string);
                let list = given.or_else(|| self.back.job(token).map(|job| job.nodes));
                list.and_then(|list| self.back.node_names(&list)).unwrap_or_default()
            }
        };
        // A name stands in the address of the agent.
        let plain = |name: &String| {
            !name.is_empty()
                && !name.starts_with('-')
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        match names.iter().all(plain) && !names.is_empty() && names.len() <= MAX_NODES {
            true => Ok(names),
            false => Err(Refusal::new("the scheduler did not say on which nodes the job runs")),
        }
    }

    /// Asks nodes side by side, all of them within `limit`: whoever has not answered by then is an error.
    fn ask(
        &self,
        names: &[String],
        request: &NodeRequest,
        limit: Duration,
    ) -> Vec<Result<NodeReply, ControlError>> {
        let until = Instant::now() + limit;
        let late = || {
            let why = format!("no answer within {} s", limit.as_secs());
            Err(ControlError::new("ask its agent", None, &why).errno(libc::ETIMEDOUT))
        };
        let mut answers: Vec<Result<NodeReply, ControlError>> =
            names.iter().map(|_| late()).collect();
        let (tell, told) = mpsc::channel();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..names.len().min(MAX_ASKED) {
                let (tell, next) = (tell.clone(), &next);
                scope.spawn(move || {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let left = until.saturating_duration_since(Instant::now());
                        let Some(name) = names.get(at).filter(|_| !left.is_zero()) else { break };
                        let address = self.site.of_node(name);
                        let answer = self.back.ask_node(&address, request, left);
                        if tell.send((at, answer)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(tell);
            for (at, answer) in told {
                answers[at] = answer;
            }
        });
        answers
    }
}

/// Failures of nodes in one text.
pub(super) fn named(failed: &[String]) -> String {
    let shown = failed.iter().take(MAX_NODES_SHOWN).cloned().collect::<Vec<_>>().join("; ");
    match failed.len().saturating_sub(MAX_NODES_SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more nodes"),
    }
}
