//! The first steps: a script is looked at when it is submitted, and the job's buffer is made.

use super::answers::{self, Pool};
use super::session::{SESSION_FORMAT, Session, SessionKind};
use super::site::Site;
use super::{Done, Hooks, NO_SESSION, Refusal, is_away, unexpected};
use crate::problem::Refused;
use crate::request::{AccessMode, JobRequest};
use crate::script::{self, Dialect, MAX_SCRIPT_BYTES};
use forebay_proto::control::{ControlError, Verify};
use forebay_proto::net::ledger::{
    AccessMode as BufferAccess, BufferName, BufferSpec, BufferType, CacheSpec, LedgerReply,
    LedgerRequest, Token,
};
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
/// How long names and attributes of a job's cache are believed, and when it drains.
const CACHE_TTL_MS: u64 = 1_000;
const CACHE_POLICY: &str = "idle";

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

/// How the servers are to show a job's buffer to its nodes.
fn access(request: &JobRequest) -> BufferAccess {
    match request.access_modes[..] {
        [AccessMode::Private] => BufferAccess::Private,
        [AccessMode::Ldbalance] => BufferAccess::Ldbalance,
        _ => BufferAccess::Striped,
    }
}

/// The same of a session, also of a persistent buffer.
fn access_of(session: &Session) -> BufferAccess {
    match (&session.request, &session.persistent_cache) {
        (Some(request), _) => access(request),
        (None, Some(cache)) if cache.ldbalance => BufferAccess::Ldbalance,
        (None, _) => BufferAccess::Striped,
    }
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

impl Hooks<'_> {
    /// `job_process`: refuses at submission what could only fail or wait for ever later. Asks no server: the user
    /// and the scheduler's locks wait for it.
    pub fn job_process(&self, job: Option<&Path>) -> Done {
        let request = read_script(job)?;
        check_site(self.site, &answers::last_pools(self.sessions.dir()), &request)?;
        Ok(String::new())
    }

    /// `setup`: the session is on record, and the job's buffer is made.
    pub fn setup(&self, token: &SessionName, (uid, gid): (u32, u32), job: Option<&Path>) -> Done {
        let request = read_script(job)?;
        // On record first: what fails from here on is torn down with the job.
        let session = self.begin(token, (uid, gid), request)?;
        if let Some(request) = &session.request {
            check_paths(self.site, request)?;
            self.make_persistent_caches((uid, gid), request)?;
            check_stages(request, &self.await_persistent(request)?)?;
        }
        let Some(buffer) = &session.buffer else { return Ok(String::new()) };
        let made = self.create(&session)?;
        let noted = self.sessions.change(token, |found| {
            let mine = found.as_mut().filter(|found| found.buffer.as_ref() == Some(buffer));
            Ok(mine.map(|found| {
                found.made = true;
                found.capacity_bytes = made;
            }))
        })?;
        if noted.is_none() {
            // A teardown was faster.
            self.destroy_buffer(&session)?;
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
            self.give_up(&old)?;
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

    /// Makes a session's buffer; asked again, the same one. Its capacity.
    pub(super) fn create(&self, session: &Session) -> Result<u64, Refusal> {
        let name = session.buffer.clone().ok_or_else(|| Refusal::new(NO_SESSION))?;
        let pool = self.pool(&session.pool)?;
        let cache = session.cached();
        let spec = BufferSpec {
            name,
            capacity_bytes: session.capacity_bytes,
            buffer_type: match cache {
                Some(_) => BufferType::Cache,
                None => BufferType::Scratch,
            },
            access: access_of(session),
            servers: pool.servers,
            store_kind: None,
            log: session.request.as_ref().map_or_else(Default::default, |request| request.log),
            cache: cache.map(|pfs| CacheSpec {
                pfs: pfs.clone(),
                ttl_ms: CACHE_TTL_MS,
                writes_by_kernel: true,
                policy: CACHE_POLICY.into(),
                verify: Verify::Cache,
                rate_bytes_per_s: 0,
            }),
        };
        self.create_as(session, spec)
    }

    fn create_as(&self, session: &Session, spec: BufferSpec) -> Result<u64, Refusal> {
        if session.made {
            return Ok(session.capacity_bytes);
        }
        let token = Token(session.create_token.clone());
        let request = LedgerRequest::Create { token, spec };
        match self.ask_as_user(session, &request) {
            Ok(LedgerReply::Created { buffer, .. }) => Ok(buffer.capacity_bytes),
            Ok(_) => Err(unexpected().into()),
            Err(error) if is_away(&error) => Err(away(error)),
            Err(error) => Err(error.into()),
        }
    }
}

/// A server that did not come back.
pub(super) fn away(error: ControlError) -> Refusal {
    Refusal::new(&format!("{error}; the job can be released when the servers are back"))
}
