//! The first steps: a script is looked at when it is submitted, and the job's buffer is made.
//!
//! Invariants: a session is on record before a server is asked for its buffer; what answers a waiting user (`job_process`) asks
//! no server.
//! Callers: the front; `forebay validate --slurm`, for what a site refuses; `mounts`, for the script of a job that is not on
//! record.

use super::answers::{Answers, Pool};
use super::back::Back;
use super::persistent::Persistent;
use super::refusal::{Done, Refusal};
use super::servers::PoolServers;
use super::session::{SESSION_FORMAT, Session, SessionKind, Sessions};
use super::site::Site;
use super::teardown::Teardown;
use crate::problem::Refused;
use crate::request::JobRequest;
use crate::script::{self, Dialect, MAX_SCRIPT_BYTES};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::node::SessionName;
use forebay_proto::size::format_bytes;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Hexadecimal digits that make the name of a job's buffer unique: job numbers begin anew when a scheduler's state
/// is wiped, and a job whose results are kept still has its buffer then.
const UNIQUE_DIGITS: usize = 8;
/// Most problems of a script that one message shows.
const MAX_SHOWN_PROBLEMS: usize = 3;

/// A refused script in one line: line, word, what was expected.
pub fn refused_text(refused: &Refused) -> String {
    let shown = refused.problems.iter().take(MAX_SHOWN_PROBLEMS).map(|problem| {
        let word = match problem.word.is_empty() {
            true => String::new(),
            false => format!(", word {:?}", problem.word),
        };
        format!("line {}{word}: {} (expected {})", problem.line, problem.what, problem.expected)
    });
    let mut text = shown.collect::<Vec<_>>().join("; ");
    let more = refused.problems.len().saturating_sub(MAX_SHOWN_PROBLEMS) + refused.further;
    if more > 0 {
        text += &format!("; and {more} more: `forebay validate` shows all");
    }
    text
}

/// Reads the request of a script.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn read_script(path: Option<&Path>) -> Result<JobRequest, Refusal> {
    let path = path.ok_or_else(|| Refusal::new("--job is missing"))?;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SCRIPT_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| Refusal::new(&format!("read the job script: {error}")))?;
    script::parse_for(Dialect::Scheduler, "job script", &bytes)
        .map_err(|refused| Refusal::new(&refused_text(&refused)))
}

/// A cache shows its directory of the PFS: nothing is staged to or from it.
fn check_stages(request: &JobRequest, used: &[Session]) -> Result<(), Refusal> {
    let is_cache = |name: &str| {
        used.iter().any(|one| one.token.as_str() == name && one.persistent_cache.is_some())
    };
    let stages = request.stage_in.iter().chain(&request.stage_out);
    match stages.into_iter().find(|s| s.persistent.as_deref().is_some_and(is_cache)) {
        Some(stage) => Err(Refusal::new(&format!(
            "line {}: persistent buffer {} is a cache (expected no stage line: it shows its directory of the parallel \
             file system)",
            stage.line,
            stage.persistent.as_deref().unwrap_or_default()
        ))),
        None => Ok(()),
    }
}

/// What of a request this site cannot do. `pools`: what they have, as far as it is known.
///
/// # Errors
/// What cannot be, in one line.
pub fn check_site(site: &Site, pools: &[Pool], request: &JobRequest) -> Result<(), Refusal> {
    check_paths(site, request)?;
    if !request.access_modes.is_empty() {
        let name = pool_of(site, request)?;
        check_room(&name, pools, request.capacity_bytes)?;
    }
    check_swap(site, request)?;
    for made in &request.create_persistent {
        if let Some(name) = &made.pool {
            site.pool(name)?;
            check_room(name, pools, made.capacity_bytes)?;
        }
    }
    Ok(())
}

/// Paths of the PFS are where the site has its PFS.
fn check_paths(site: &Site, request: &JobRequest) -> Result<(), Refusal> {
    if site.pfs_roots.is_empty() {
        return Ok(());
    }
    let stages = request.stage_in.iter().chain(&request.stage_out);
    let named = stages.map(|stage| (format!("line {}", stage.line), &stage.pfs_path));
    let made = request.create_persistent.iter().filter_map(|made| made.cache.as_ref());
    let cache = request.cache.iter().chain(made).map(|path| ("pfs=".to_string(), path));
    for (at, path) in named.chain(cache) {
        let real = crate::run::record::as_path(path);
        if !site.pfs_roots.iter().any(|root| real.starts_with(root)) {
            let roots: Vec<_> = site.pfs_roots.iter().map(|r| r.display().to_string()).collect();
            let roots = roots.join(", ");
            return Err(Refusal::new(&format!(
                "{at}: {path} is not on the parallel file system (expected a path below {roots})"
            )));
        }
    }
    Ok(())
}

/// Swap space that no node of the site can give.
fn check_swap(site: &Site, request: &JobRequest) -> Result<(), Refusal> {
    let wanted = request.swap_bytes_per_node;
    if wanted > 0 && site.agent.swap_dir.is_none() {
        return Err(Refusal::new(
            "this site offers no swap (expected no swap line; agent.swap_dir in the site's configuration offers it)",
        ));
    }
    match site.agent.swap_capacity {
        Some(most) if wanted > most.bytes => Err(Refusal::new(&format!(
            "swap {} is more than a node has for it, {}",
            format_bytes(wanted),
            format_bytes(most.bytes)
        ))),
        _ => Ok(()),
    }
}

/// A request that the pool can never hold would wait for ever.
fn check_room(name: &str, pools: &[Pool], capacity_bytes: u64) -> Result<(), Refusal> {
    match pools.iter().find(|pool| pool.id == name).map(Pool::total_bytes) {
        Some(total) if capacity_bytes > total => Err(Refusal::new(&format!(
            "capacity={} is more than pool {name} has in all, {}",
            format_bytes(capacity_bytes),
            format_bytes(total)
        ))),
        _ => Ok(()),
    }
}

/// The pool that a job's buffer lies in.
///
/// # Errors
/// If the site has no such pool.
pub fn pool_of(site: &Site, request: &JobRequest) -> Result<String, Refusal> {
    let default = || site.default_pool().map(str::to_string);
    let name = request.pool.clone().or_else(default).ok_or_else(|| {
        Refusal::new("this site has no pool: [pool.NAME] in the site's configuration")
    })?;
    site.pool(&name).map(|_| name)
}

/// The first steps of jobs.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    site: &'a Site,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    persistent: Persistent<'a>,
    back: &'a dyn Back,
    answers: Answers<'a>,
    teardown: Teardown<'a>,
}

impl<'a> Setup<'a> {
    pub(super) fn new(
        (site, sessions): (&'a Site, &'a Sessions),
        servers: PoolServers<'a>,
        persistent: Persistent<'a>,
        back: &'a dyn Back,
        answers: Answers<'a>,
        teardown: Teardown<'a>,
    ) -> Setup<'a> {
        Setup { site, sessions, servers, persistent, back, answers, teardown }
    }

    /// `job_process`: refuses at submission what could only fail or wait for ever later. Asks no server: the user
    /// and the scheduler's locks wait for it.
    ///
    /// # Errors
    /// What is wrong with the script, in one line.
    pub fn job_process(&self, job: Option<&Path>) -> Done {
        let request = read_script(job)?;
        check_site(self.site, &self.answers.last_pools(), &request)?;
        Ok(String::new())
    }

    /// `setup`: the session is on record, and the job's buffer is made.
    ///
    /// # Errors
    /// What is wrong with the script, or why the buffer is not made.
    pub fn make(&self, token: &SessionName, (uid, gid): (u32, u32), job: Option<&Path>) -> Done {
        let request = read_script(job)?;
        // On record first: what fails from here on is torn down with the job.
        let session = self.begin(token, (uid, gid), request)?;
        if let Some(request) = &session.request {
            check_paths(self.site, request)?;
            self.persistent.make_caches((uid, gid), request)?;
            check_stages(request, &self.persistent.await_used(request)?)?;
        }
        if session.buffer.is_none() {
            return Ok(String::new());
        }
        let made = self.servers.create(&session)?;
        let noted = self.sessions.note(&session, |found| {
            found.made = true;
            found.capacity_bytes = made;
        })?;
        if !noted {
            // A teardown was faster.
            self.servers.destroy(&session)?;
            return Err(Refusal::new("the job was torn down meanwhile"));
        }
        Ok(String::new())
    }

    /// The session of a new job, or the one that an earlier call of the same job has begun.
    fn begin(
        &self,
        token: &SessionName,
        (uid, gid): (u32, u32),
        request: JobRequest,
    ) -> Result<Session, Refusal> {
        let unique = self.back.random()?;
        let pool = pool_of(self.site, &request)?;
        let stale = |found: &Session| {
            let same = found.uid == uid && found.request.as_ref() == Some(&request);
            found.kind != SessionKind::Job || !same
        };
        if let Some(old) = self.sessions.load(token)?.filter(|old| stale(old)) {
            // The scheduler counts from the beginning again, and has forgotten that job.
            self.teardown.give_up(&old)?;
        }
        let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let digits = format!("{unique:032x}");
        let name = format!("job-{token}-{}", &digits[..UNIQUE_DIGITS]);
        let buffer: Option<BufferName> = match request.access_modes.is_empty() {
            true => None,
            false => Some(name.parse().map_err(|e| Refusal::new(&format!("{e}")))?),
        };
        Ok(self.sessions.change(token, |found| {
            let fresh = || Session {
                format: SESSION_FORMAT,
                token: token.clone(),
                kind: SessionKind::Job,
                uid,
                gid,
                created_s,
                pool,
                buffer,
                create_token: digits,
                made: false,
                capacity_bytes: request.capacity_bytes,
                request: Some(request),
                persistent_cache: None,
                nodes: Vec::new(),
                ran: false,
                results_safe: false,
                plans: Vec::new(),
                missing: Vec::new(),
            };
            Ok(found.get_or_insert_with(fresh).clone())
        })?)
    }
}
