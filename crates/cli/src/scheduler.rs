//! Servers, nodes and Slurm's own commands, as the hooks of schedulers ask them (`forebay_jobs::hooks`).

use crate::secrets;
use forebay_client::{Ledger, node};
use forebay_jobs::hooks::site::{PoolSite, Site};
use forebay_jobs::hooks::{Back, SchedulerJob};
use forebay_net::ServerAddress;
use forebay_net::handshake::Credential;
use forebay_proto::Caller;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::{NodeReply, NodeRequest, SessionName};
use forebay_server::ledger::caller_of;
use std::collections::{HashMap, HashSet};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest that a command of Slurm may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(15);

/// Servers and nodes of a site.
#[derive(Clone, Debug)]
pub struct SiteBack {
    site: Site,
}

impl SiteBack {
    /// Of this site.
    pub fn new(site: &Site) -> SiteBack {
        SiteBack { site: site.clone() }
    }

    /// Who acts for users needs all rights: the servers' key where one is named, else what the kernel says.
    fn credential(&self, address: &ServerAddress) -> Result<Credential, ControlError> {
        let file = self.site.secret_file.as_deref();
        let unix = matches!(address, ServerAddress::Unix(_)) && file.is_none();
        secrets::credential(unix, file, None)
    }
}

fn address(text: &str) -> Result<ServerAddress, ControlError> {
    text.parse()
        .map_err(|error| ControlError::new("ask", None, &format!("{error}")).errno(libc::EINVAL))
}

impl Back for SiteBack {
    fn ask(
        &self,
        pool: &PoolSite,
        user: Option<&Caller>,
        request: LedgerRequest,
    ) -> Result<LedgerReply, ControlError> {
        let address = address(&pool.server)?;
        let request = match user {
            Some(user) => {
                LedgerRequest::OnBehalf { user: user.clone(), request: Box::new(request) }
            }
            None => request,
        };
        Ledger::connect(&address, &self.credential(&address)?)?.ask(&request)
    }

    fn ask_node(
        &self,
        at: &str,
        request: &NodeRequest,
        limit: Duration,
    ) -> Result<NodeReply, ControlError> {
        let address = address(at)?;
        let credential = self.credential(&address)?;
        let request = request.clone();
        let (tell, told) = mpsc::channel();
        // Connecting and greeting have limits of their own, in all longer than this one may be. A thread that is left
        // ends with the process.
        std::thread::spawn(move || {
            // Who waits may have given up.
            let _ = tell.send(node::ask_node(&address, &credential, &request, limit));
        });
        told.recv_timeout(limit).unwrap_or_else(|_| {
            let why = format!("no answer within {:.0} s", limit.as_secs_f64());
            let what = format!("ask the agent {at}");
            Err(ControlError::new(&what, None, &why).errno(libc::ETIMEDOUT))
        })
    }

    fn user(&self, uid: u32, gid: u32) -> Caller {
        let gid = if gid == u32::MAX { primary_group(uid) } else { gid };
        caller_of(uid, gid)
    }

    fn random(&self) -> Result<u128, ControlError> {
        forebay_net::random::u128()
            .map_err(|error| ControlError::io("make a random number", None, &error))
    }

    fn job(&self, token: &SessionName) -> Option<SchedulerJob> {
        let said = printed("scontrol", &["-o", "show", "job", token.as_str()])?;
        Some(job_in(&said))
    }

    fn jobs(&self) -> Option<HashMap<String, bool>> {
        Some(jobs_in(&printed("squeue", &["-h", "-a", "-t", "all", "-o", "%A %T"])?))
    }

    fn buffers(&self) -> Option<HashSet<String>> {
        Some(buffers_in(&printed("scontrol", &["show", "burstbuffer"])?))
    }

    fn nodes(&self) -> Option<Vec<String>> {
        let said = printed("sinfo", &["-h", "-a", "-N", "-o", "%N"])?;
        let mut names: Vec<String> = said.split_whitespace().map(str::to_string).collect();
        // One of several partitions stands there several times.
        names.sort();
        names.dedup();
        Some(names)
    }

    fn node_names(&self, list: &str) -> Option<Vec<String>> {
        if !list.contains(['[', ',']) {
            return Some(vec![list.to_string()]);
        }
        let said = printed("scontrol", &["show", "hostnames", list])?;
        Some(said.split_whitespace().map(str::to_string).collect())
    }
}

/// A user's own group; the user's number where this machine does not know the user.
fn primary_group(uid: u32) -> u32 {
    let said = printed("getent", &["passwd", &uid.to_string()]);
    said.and_then(|line| line.split(':').nth(3)?.trim().parse().ok()).unwrap_or(uid)
}

/// States of a job that is over. One that is staged out or completes is shown in those words instead.
const OVER: [&str; 9] = [
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "DEADLINE",
    "BOOT_FAIL",
    "PREEMPTED",
];

/// Jobs in the words of `squeue -o "%A %T"`, and whether they are over.
fn jobs_in(said: &str) -> HashMap<String, bool> {
    let job = |line: &str| {
        let (number, state) = line.trim().split_once(' ')?;
        Some((number.to_string(), OVER.contains(&state.trim())))
    };
    said.lines().filter_map(job).collect()
}

/// What `scontrol show burstbuffer` lists as allocated: a job's number, behind that of its array in parentheses, or a
/// persistent buffer's name.
fn buffers_in(said: &str) -> HashSet<String> {
    let token = |line: &str| {
        let word = line.split_whitespace().next()?;
        if let Some(name) = word.strip_prefix("Name=") {
            return Some(name.to_string());
        }
        let job = word.strip_prefix("JobID=")?;
        let number = job.split_once('(').map_or(job, |(_, task)| task.trim_end_matches(')'));
        Some(number.to_string())
    };
    let mut found = HashSet::new();
    let mut listed = false;
    for line in said.lines() {
        match line.trim() {
            "Allocated Buffers:" => listed = true,
            // The next plugin, or the sums of users.
            text if text.starts_with("Per User") || !line.starts_with(' ') => listed = false,
            _ if listed => found.extend(token(line)),
            _ => {}
        }
    }
    found
}

/// A job in the words of `scontrol -o show job`.
fn job_in(said: &str) -> SchedulerJob {
    let value = |key: &str| {
        let word = said.split_whitespace().find_map(|word| word.strip_prefix(key));
        word.unwrap_or_default().to_string()
    };
    let state = value("JobState=");
    let is_failure = state != "COMPLETED" && OVER.contains(&state.as_str());
    let exit = value("ExitCode=");
    SchedulerJob {
        nodes: value("NodeList=").replace("(null)", ""),
        failed: !exit.is_empty() && exit != "0:0" || is_failure,
        buffer_state: value("BurstBufferState="),
    }
}

/// What a command prints, if it ends well and in time.
fn printed(program: &str, args: &[&str]) -> Option<String> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let pid = child.id();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Who waits may have given up.
        let _ = tell.send(child.wait_with_output());
    });
    match told.recv_timeout(COMMAND_LIMIT) {
        Ok(Ok(output)) if output.status.success() => String::from_utf8(output.stdout).ok(),
        Ok(_) => None,
        Err(_) => {
            // The number is still the child's: the thread that waits for it has not returned.
            if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_from_the_words_of_scontrol() {
        let job = job_in(
            "JobId=7 JobState=STAGE_OUT Reason=None ExitCode=0:0 NodeList=n[1-2] BatchHost=n1",
        );
        assert_eq!(job, SchedulerJob { nodes: "n[1-2]".into(), ..SchedulerJob::default() });
        let job = job_in("JobId=7 JobState=CANCELLED ExitCode=0:0 BurstBufferState=teardown");
        assert!(job.failed && job.buffer_state == "teardown");
        assert!(job_in("JobId=7 JobState=STAGE_OUT ExitCode=3:0 NodeList=n1").failed);
        assert!(job_in("JobId=7 JobState=CANCELLED ExitCode=0:0 NodeList=(null)").failed);
        assert_eq!(job_in("JobId=7 NodeList=(null)").nodes, "");
    }

    #[test]
    fn jobs_and_buffers_are_read_from_the_words_of_slurm() {
        let jobs = jobs_in("7 RUNNING\n8 COMPLETED\n 9 STAGE_OUT\n10 CANCELLED\n");
        let over: Vec<bool> = ["7", "8", "9", "10"].iter().map(|job| jobs[*job]).collect();
        assert_eq!(over, [false, true, false, true]);
        let said = "Name=datawarp DefaultPool=flash Granularity=16MiB TotalSpace=256MiB
  Flags=EnablePersistent
  Allocated Buffers:
    JobID=17 CreateTime=2026-11-25T19:00:00 Pool=flash Size=64MiB State=running UserID=nobody(65534)
    JobID=20_3(23) CreateTime=2026-11-25T19:00:00 Pool=flash Size=64MiB State=teardown UserID=nobody(65534)
    Name=alpha CreateTime=2026-11-25T19:00:00 Pool=flash Size=64MiB State=allocated UserID=nobody(65534)
  Per User Buffer Use:
    UserID=nobody(65534) Used=192MiB
";
        let mut found: Vec<String> = buffers_in(said).into_iter().collect();
        found.sort();
        assert_eq!(found, ["17", "23", "alpha"]);
        assert!(buffers_in("Name=lua DefaultPool=(null)\n  Flags=DisablePersistent\n").is_empty());
    }
}
