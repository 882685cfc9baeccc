//! The servers of the site's pools, as the steps of a session ask them: each question in the name of the session's user, a
//! server that is away is waited for. Here a session's buffer is made and given back.
//!
//! Invariants: a buffer is asked for with the session's own token, so that it is made once, however often the step is called;
//! a buffer that is not there is given back.
//! Callers: `setup`, `persistent`, `data`, `copies`, `drain`, `plans`, `mounts`, `teardown`, `rescue`, `reconcile`, `answers`.

use super::back::Back;
use super::refusal::{NO_SESSION, Refusal, is_away, is_gone, unexpected};
use super::session::Session;
use super::site::{PoolSite, Site};
use crate::request::{AccessMode, JobRequest};
use forebay_proto::Caller;
use forebay_proto::control::{ControlError, Verify};
use forebay_proto::net::ledger::{
    AccessMode as BufferAccess, BufferName, BufferSpec, BufferType, CacheSpec, LedgerReply,
    LedgerRequest, Token,
};
use std::time::{Duration, Instant};

/// Pause between two tries to reach a server.
pub(super) const AWAY_PAUSE: Duration = Duration::from_millis(200);
/// How long names and attributes of a job's cache are believed, and when it drains.
const CACHE_TTL_MS: u64 = 1_000;
const CACHE_POLICY: &str = "idle";

/// The servers of all pools.
#[derive(Clone, Copy)]
pub(super) struct PoolServers<'a> {
    site: &'a Site,
    back: &'a dyn Back,
}

impl<'a> PoolServers<'a> {
    pub(super) fn new(site: &'a Site, back: &'a dyn Back) -> PoolServers<'a> {
        PoolServers { site, back }
    }

    /// A pool by the name that scripts use.
    ///
    /// # Errors
    /// If the site has none of this name.
    pub(super) fn pool(&self, name: &str) -> Result<&'a PoolSite, Refusal> {
        self.site.pool(name)
    }

    /// Asks a pool with all rights, once.
    ///
    /// # Errors
    /// If there is no such pool, or no answer.
    pub(super) fn ask_pool(
        &self,
        pool: &str,
        request: LedgerRequest,
    ) -> Result<LedgerReply, Refusal> {
        Ok(self.back.ask(self.pool(pool)?, None, request)?)
    }

    /// Asks the pool of a session as its user. A server that is away is waited for.
    ///
    /// # Errors
    /// What the servers say, or that they stayed away.
    pub(super) fn ask_as_user(
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

    /// Makes a session's buffer; asked again, the same one. Its capacity in bytes.
    ///
    /// # Errors
    /// Why the servers do not make it.
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

    /// Gives a session's buffer back; of nothing: done.
    ///
    /// # Errors
    /// Why the servers do not destroy it.
    pub(super) fn destroy(&self, session: &Session) -> Result<(), Refusal> {
        let Some(name) = &session.buffer else { return Ok(()) };
        let request = LedgerRequest::Destroy { name: name.clone(), force: true, discard: true };
        match self.ask_patiently(session, None, &request) {
            Ok(LedgerReply::Ok) => Ok(()),
            Ok(_) => Err(unexpected().into()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// True if the servers say that a session's buffer is not there; asked once.
    pub(super) fn is_destroyed(&self, session: &Session, buffer: &BufferName) -> bool {
        let Ok(pool) = self.pool(&session.pool) else { return false };
        let status = LedgerRequest::Status { name: buffer.clone() };
        self.back.ask(pool, None, status).is_err_and(|error| is_gone(&error))
    }
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

/// A server that did not come back.
fn away(error: ControlError) -> Refusal {
    Refusal::new(&format!("{error}; the job can be released when the servers are back"))
}
