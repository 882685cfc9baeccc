//! `paths`, `pre_run` and `post_run`: where the job finds its buffers, mounted by the agents of its nodes and
//! unmounted again. A node that does not answer is named, and holds up nobody.
//!
//! Invariant: a node is on record before its agent is asked to mount, and until it has unmounted.
//! Callers: the front; `teardown`.

use super::nodes::{NodeAgents, named};
use super::persistent::Persistent;
use super::refusal::{Done, NO_SESSION, Refusal};
use super::servers::PoolServers;
use super::session::{Session, SessionNode, Sessions};
use super::site::{AgentSite, JOB_MOUNT, persistent_mount};
use crate::record_file;
use crate::request::{AccessMode, JobRequest, persistent_cache_variable, persistent_variable};
use forebay_proto::control::ControlError;
use forebay_proto::net::node::{NodeMount, NodeReply, NodeRequest, OWN_LINK, SessionName};
use std::io::Write;
use std::path::Path;

/// What jobs mount on their nodes.
#[derive(Clone, Copy)]
pub struct Mounts<'a> {
    agent: &'a AgentSite,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    persistent: Persistent<'a>,
    nodes: NodeAgents<'a>,
}

impl<'a> Mounts<'a> {
    pub(super) fn new(
        agent: &'a AgentSite,
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
        persistent: Persistent<'a>,
        nodes: NodeAgents<'a>,
    ) -> Mounts<'a> {
        Mounts { agent, sessions, servers, persistent, nodes }
    }

    /// `paths`: the job's environment, NAME=value lines. Asks nobody: the scheduler's locks wait for it.
    ///
    /// # Errors
    /// What is wrong with the script, or why the file cannot be written.
    pub fn paths(&self, token: &SessionName, job: Option<&Path>, path_file: Option<&Path>) -> Done {
        let known = self.sessions.load(token)?.and_then(|session| session.request);
        let request = match known {
            Some(request) => request,
            None => super::setup::read_script(job)?,
        };
        let file = path_file.ok_or_else(|| Refusal::new("--pathfile is missing"))?;
        let mut text = String::new();
        for (name, value) in self.environment(token, &request) {
            text += &format!("{name}={value}\n");
        }
        record_file::create(file, record_file::RECORD_MODE)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Refusal::new(&format!("write {}: {error}", file.display())))?;
        Ok(String::new())
    }

    /// What the job finds in its environment. Mode paths end in a slash: there are programs that put a name right
    /// behind them.
    fn environment(&self, token: &SessionName, request: &JobRequest) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let job = self.agent.mount_point(token, JOB_MOUNT);
        for mode in &request.access_modes {
            let path = match (request.access_modes.len() > 1, mode) {
                (true, AccessMode::Private) => self.agent.mount_point(token, OWN_LINK),
                (true, mode) => job.join(request.mode_root(*mode).trim_matches('/')),
                (false, _) => job.clone(),
            };
            all.push((request.variable(*mode).to_string(), format!("{}/", path.display())));
        }
        for used in &request.persistent {
            let point = self.agent.mount_point(token, &persistent_mount(&used.name));
            // A record, not a server: whoever asks holds the scheduler's locks.
            let cache = used.name.parse().ok().and_then(|name| {
                self.sessions.load(&name).ok().flatten().and_then(|found| found.persistent_cache)
            });
            let variable = match cache {
                Some(cache) => persistent_cache_variable(&used.name, cache.ldbalance),
                None => persistent_variable(&used.name),
            };
            all.push((variable, format!("{}/", point.display())));
        }
        if !request.access_modes.is_empty() {
            all.push(("FOREBAY_BUFFER".into(), job.display().to_string()));
        }
        all
    }

    /// What a job's nodes are to mount.
    fn wanted(&self, session: &Session) -> Result<Vec<NodeMount>, Refusal> {
        let name = |text: &str| -> Result<SessionName, Refusal> {
            text.parse().map_err(|error| Refusal::new(&format!("{error}")))
        };
        let Some(request) = &session.request else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        if let Some(buffer) = &session.buffer {
            let both = request.access_modes.len() > 1;
            let root = |mode: AccessMode| request.mode_root(mode).trim_matches('/').to_string();
            all.push(NodeMount {
                name: name(JOB_MOUNT)?,
                buffer: buffer.clone(),
                server: self.servers.pool(&session.pool)?.server.clone(),
                directories: match both {
                    true => request.access_modes.iter().map(|mode| root(*mode)).collect(),
                    false => Vec::new(),
                },
                own_of: both.then(|| root(AccessMode::Private)),
                limits: request.limits.flags(),
            });
        }
        for persistent in self.persistent.used_by(request)? {
            all.push(NodeMount {
                name: name(&persistent_mount(persistent.token.as_str()))?,
                buffer: persistent.buffer.clone().ok_or_else(|| Refusal::new(NO_SESSION))?,
                server: self.servers.pool(&persistent.pool)?.server.clone(),
                directories: Vec::new(),
                own_of: None,
                limits: Vec::new(),
            });
        }
        Ok(all)
    }

    /// `pre_run`: the nodes are known, and mount. One that cannot fails the job's start.
    ///
    /// # Errors
    /// Which nodes did not mount, and why.
    pub fn pre_run(&self, token: &SessionName, file: Option<&Path>, list: Option<&str>) -> Done {
        let session = self.sessions.find(token)?;
        let wanted = self.wanted(&session)?;
        let swap_bytes = session.swap_bytes_per_node();
        if wanted.is_empty() && swap_bytes == 0 {
            return Ok(String::new());
        }
        let names = self.nodes.of_job(token, file, list)?;
        // On record before anybody is asked: a kill leaves nothing that is not unmounted later.
        let asked = self.sessions.change(token, |found| {
            Ok(found.as_mut().map(|found| {
                let fresh =
                    |name: &String| SessionNode { name: name.clone(), host: None, mounted: true };
                found.nodes = names.iter().map(fresh).collect();
                found.ran = true;
            }))
        })?;
        asked.ok_or_else(|| Refusal::new(NO_SESSION))?;
        let request = NodeRequest::Mount {
            session: token.clone(),
            uid: session.uid,
            gid: session.gid,
            mounts: wanted,
            swap_bytes,
        };
        let answers = self.nodes.mount(&names, &request);
        let mut failed = Vec::new();
        let mut hosts = Vec::new();
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(NodeReply::Mounted { host }) => hosts.push((name.clone(), host)),
                Ok(_) => failed.push(format!("node {name}: an answer to another question")),
                Err(error) => failed.push(format!("node {name}: {error}")),
            }
        }
        self.sessions.change(token, |found| {
            for node in found.iter_mut().flat_map(|found| &mut found.nodes) {
                let host = hosts.iter().find(|(name, _)| *name == node.name);
                node.host = host.map(|(_, host)| host.clone());
            }
            // The job does not start: there will be no results.
            if let (Some(found), false) = (found, failed.is_empty()) {
                found.ran = false;
            }
            Ok(())
        })?;
        match failed.is_empty() {
            true => Ok(String::new()),
            false => Err(Refusal::new(&named(&failed))),
        }
    }

    /// `post_run`: unmounts everywhere. Nodes that did not do it are said, and hold nobody up: the teardown asks
    /// them again.
    ///
    /// # Errors
    /// If there is no such session, or its record cannot be changed.
    pub fn post_run(&self, token: &SessionName) -> Done {
        let session = self.sessions.find(token)?;
        Ok(self.umount(&session)?.unwrap_or_default())
    }

    /// Ends the mounts of a job; which nodes did not do it.
    ///
    /// # Errors
    /// If the record cannot be changed.
    pub(super) fn umount(&self, session: &Session) -> Result<Option<String>, ControlError> {
        let names: Vec<String> = session
            .nodes
            .iter()
            .filter(|node| node.mounted)
            .map(|node| node.name.clone())
            .collect();
        if names.is_empty() {
            return Ok(None);
        }
        let answers = self.nodes.umount(&names, &session.token);
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(_) => done.push(name.clone()),
                Err(error) => failed.push(format!("node {name}: {error}")),
            }
        }
        self.sessions.change(&session.token, |found| {
            for node in found.iter_mut().flat_map(|found| &mut found.nodes) {
                node.mounted &= !done.contains(&node.name);
            }
            Ok(())
        })?;
        Ok((!failed.is_empty()).then(|| format!("not unmounted: {}", named(&failed))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::tests::session;
    use super::super::site::{PoolSite, Site};
    use super::super::{Back, Hooks, SchedulerJob};
    use super::*;
    use forebay_proto::Caller;
    use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
    use std::collections::{BTreeMap, HashMap, HashSet};
    use std::time::{Duration, Instant};

    /// A thousand nodes, of which some take a question and never answer.
    struct Nodes;

    fn nobody() -> ControlError {
        ControlError::new("ask", None, "nobody is there")
    }

    impl Back for Nodes {
        fn ask(
            &self,
            _pool: &PoolSite,
            _user: Option<&Caller>,
            _request: LedgerRequest,
        ) -> Result<LedgerReply, ControlError> {
            Err(nobody())
        }

        fn ask_node(
            &self,
            address: &str,
            _request: &NodeRequest,
            limit: Duration,
        ) -> Result<NodeReply, ControlError> {
            if address.starts_with("n1") && address.ends_with("7:1") {
                std::thread::sleep(limit);
                return Err(nobody());
            }
            std::thread::sleep(Duration::from_millis(1));
            Ok(NodeReply::Unmounted)
        }

        fn user(&self, uid: u32, gid: u32) -> Caller {
            Caller { uid, gid, ..Caller::root() }
        }

        fn random(&self) -> Result<u128, ControlError> {
            Ok(0)
        }

        fn job(&self, _token: &SessionName) -> Option<SchedulerJob> {
            None
        }

        fn jobs(&self) -> Option<HashMap<String, bool>> {
            None
        }

        fn buffers(&self) -> Option<HashSet<String>> {
            None
        }

        fn nodes(&self) -> Option<Vec<String>> {
            None
        }

        fn node_names(&self, _list: &str) -> Option<Vec<String>> {
            None
        }
    }

    #[test]
    fn dead_ones_of_a_thousand_nodes_are_named_within_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let site = Site {
            pools: BTreeMap::new(),
            default_pool: None,
            flash: None,
            pfs_roots: Vec::new(),
            state_dir: dir.path().to_path_buf(),
            secret_file: None,
            patience_s: 1,
            agent: AgentSite {
                address: "{node}:1".into(),
                umount_limit_s: 1,
                ..AgentSite::default()
            },
        };
        let sessions = Sessions::open(dir.path()).unwrap();
        let hooks = Hooks::new(&site, &sessions, &Nodes);
        let mut job = session("17");
        let node = |at: usize| SessionNode { name: format!("n{at}"), host: None, mounted: true };
        job.nodes = (0..1_000).map(node).collect();
        let put = job.clone();
        sessions
            .change(&job.token, |found| {
                *found = Some(put);
                Ok(())
            })
            .unwrap();
        let begun = Instant::now();
        let said = hooks.mounts.post_run(&job.token).unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(1 + 5), "{took:?}");
        // 17, 107, 117, ..., 197.
        assert!(
            said.contains("node n17: ask: nobody") && said.ends_with("and 8 more nodes"),
            "{said}"
        );
        let left = sessions.load(&job.token).unwrap().unwrap();
        let left: Vec<_> = left.nodes.iter().filter(|node| node.mounted).collect();
        assert_eq!(left.len(), 11, "{left:?}");
    }
}
