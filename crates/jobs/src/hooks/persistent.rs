//! Persistent buffers: made and destroyed by jobs, used by others. Each is a session of its own, whose token is the
//! buffer's name.
//!
//! A persistent cache is made in two steps: Slurm's `create_persistent` passes everything of the `#BB` line but `pfs=`, so
//! the name is put on record there, and the buffer is made by the `setup` of the same job, which is given the script.
//! Callers: the front, `setup`, `data`, `copies`, `mounts`, `teardown`, `reconcile`.

use super::back::Back;
use super::call;
use super::refusal::{Done, Refusal};
use super::servers::{AWAY_PAUSE, PoolServers};
use super::session::{PersistentCache, SESSION_FORMAT, Session, SessionKind, Sessions};
use super::site::Site;
use crate::request::{AccessMode, JobRequest, PersistentCreate, PersistentUse};
use forebay_proto::net::ledger::BufferName;
use forebay_proto::net::node::SessionName;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The persistent buffers of a site.
#[derive(Clone, Copy)]
pub struct Persistent<'a> {
    site: &'a Site,
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    back: &'a dyn Back,
}

impl<'a> Persistent<'a> {
    pub(super) fn new(
        site: &'a Site,
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
        back: &'a dyn Back,
    ) -> Persistent<'a> {
        Persistent { site, sessions, servers, back }
    }

    /// `create_persistent`: asked again, the same buffer. What it says must hold the word "created".
    ///
    /// # Errors
    /// What is wrong with the call, or why the buffer is not made.
    pub fn create(&self, call: &call::Call) -> Done {
        let name = call::token(call.token.as_deref())?;
        let uid = call.user.ok_or_else(|| Refusal::new("-u is missing"))?;
        let capacity = call.capacity.as_deref().ok_or_else(|| Refusal::new("-C is missing"))?;
        let (pool, capacity_bytes) = call::capacity(capacity).map_err(|why| Refusal::new(&why))?;
        let cache = kind_of(call.buffer_type.as_deref(), call.access.as_deref())?;
        let is_cache = cache.is_some();
        self.servers.pool(pool)?;
        let gid = self.back.user(uid, u32::MAX).gid;
        let session = self.begin(&name, (uid, gid), pool, capacity_bytes, cache)?;
        if is_cache && !session.made {
            return Ok("created".into());
        }
        match self.finish(&session) {
            Ok(()) => Ok("created".into()),
            Err(refusal) => {
                // It was not made: the scheduler forgets the name, and so do we.
                self.forget_unmade(&name)?;
                Err(refusal)
            }
        }
    }

    /// The session of a persistent buffer: a new one, or that of an earlier call.
    fn begin(
        &self,
        name: &SessionName,
        (uid, gid): (u32, u32),
        pool: &str,
        capacity_bytes: u64,
        cache: Option<PersistentCache>,
    ) -> Result<Session, Refusal> {
        let buffer: BufferName =
            name.as_str().parse().map_err(|e| Refusal::new(&format!("{e}")))?;
        let create_token = format!("{:032x}", self.back.random()?);
        let created_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let session = self.sessions.change(name, |found| {
            let fresh = || Session {
                format: SESSION_FORMAT,
                token: name.clone(),
                kind: SessionKind::Persistent,
                uid,
                gid,
                created_s,
                pool: pool.to_string(),
                buffer: Some(buffer),
                create_token,
                made: false,
                capacity_bytes,
                request: None,
                persistent_cache: cache,
                nodes: Vec::new(),
                ran: false,
                results_safe: false,
                plans: Vec::new(),
                missing: Vec::new(),
            };
            Ok(found.get_or_insert_with(fresh).clone())
        })?;
        if session.kind != SessionKind::Persistent || session.uid != uid {
            let text = format!("there is a buffer {name} already, of user {}", session.uid);
            return Err(Refusal::new(&text));
        }
        Ok(session)
    }

    /// Makes the buffer of a session that is on record.
    fn finish(&self, session: &Session) -> Result<(), Refusal> {
        let bytes = self.servers.create(session)?;
        self.sessions.change(&session.token, |found| {
            if let Some(found) = found {
                found.made = true;
                found.capacity_bytes = bytes;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Forgets a persistent buffer that was never made.
    ///
    /// # Errors
    /// If its record cannot be changed.
    pub(super) fn forget_unmade(&self, name: &SessionName) -> Result<(), Refusal> {
        self.sessions.change(name, |found| {
            if found.as_ref().is_some_and(Session::is_unmade) {
                *found = None;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// The same of those that a job was to make. Whether a server that went away had made one is not known.
    ///
    /// # Errors
    /// If a record cannot be changed, or a server does not destroy what it may have made.
    pub(super) fn forget_unmade_of(&self, session: &Session) -> Result<(), Refusal> {
        let made = session.request.iter().flat_map(|request| &request.create_persistent);
        for made in made.filter(|made| made.cache.is_some()) {
            let Ok(name) = made.name.parse::<SessionName>() else { continue };
            let found = self.sessions.load(&name)?;
            if let Some(found) = found.filter(|f| f.is_unmade() && f.uid == session.uid) {
                self.servers.destroy(&found)?;
                self.forget_unmade(&name)?;
            }
        }
        Ok(())
    }

    /// Makes the persistent caches that a job's script names; those that are there stay as they are.
    ///
    /// # Errors
    /// Why one is not made.
    pub(super) fn make_caches(&self, who: (u32, u32), request: &JobRequest) -> Result<(), Refusal> {
        for made in request.create_persistent.iter().filter(|made| made.cache.is_some()) {
            self.make_cache(who, made)?;
        }
        Ok(())
    }

    fn make_cache(&self, who: (u32, u32), made: &PersistentCreate) -> Result<(), Refusal> {
        let name: SessionName =
            made.name.parse().map_err(|error| Refusal::new(&format!("{error}")))?;
        let default = || self.site.default_pool().map(str::to_string);
        let pool = made.pool.clone().or_else(default).unwrap_or_default();
        self.servers.pool(&pool)?;
        let ldbalance = made.access == AccessMode::Ldbalance;
        let cache = PersistentCache { pfs: made.cache.clone(), ldbalance };
        // Of a job that is released after its setup has failed the name may be forgotten.
        let begun = self.begin(&name, who, &pool, made.capacity_bytes, Some(cache))?;
        if begun.made {
            return Ok(());
        }
        let told = self.sessions.change(&name, |found| {
            if let Some(cache) = found.as_mut().and_then(|found| found.persistent_cache.as_mut()) {
                cache.pfs.clone_from(&made.cache);
            }
            Ok(found.clone())
        })?;
        match told {
            Some(session) => self.finish(&session),
            None => Err(Refusal::new(&format!("persistent buffer {name} was destroyed meanwhile"))),
        }
    }

    /// The persistent buffers that a job uses; a cache that another job is about to make is waited for.
    ///
    /// # Errors
    /// If one is not there.
    pub(super) fn await_used(&self, request: &JobRequest) -> Result<Vec<Session>, Refusal> {
        let until = Instant::now() + Duration::from_secs(self.site.patience_s);
        let is_under_way = |used: &PersistentUse| {
            let name = used.name.parse().ok();
            let found = name.and_then(|name| self.sessions.load(&name).ok().flatten());
            found.is_some_and(|found| found.persistent_cache.is_some() && !found.made)
        };
        while request.persistent.iter().any(is_under_way) && Instant::now() < until {
            std::thread::sleep(AWAY_PAUSE);
        }
        self.used_by(request)
    }

    /// The persistent buffers that a job uses.
    ///
    /// # Errors
    /// If one is not there.
    pub(super) fn used_by(&self, request: &JobRequest) -> Result<Vec<Session>, Refusal> {
        let name = |used: &PersistentUse| -> Result<SessionName, Refusal> {
            used.name.parse().map_err(|error| Refusal::new(&format!("{error}")))
        };
        request.persistent.iter().map(|used| self.find(&name(used)?)).collect()
    }

    /// The jobs that use a persistent buffer now.
    ///
    /// # Errors
    /// If the sessions cannot be listed.
    pub(super) fn users_of(&self, name: &SessionName) -> Result<Vec<SessionName>, Refusal> {
        let uses = |session: &Session| {
            let request = session.request.as_ref();
            request.is_some_and(|r| r.persistent.iter().any(|used| used.name == name.as_str()))
        };
        Ok(self.sessions.list()?.into_iter().filter(uses).map(|session| session.token).collect())
    }

    /// A persistent buffer by its name.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(&self, name: &SessionName) -> Result<Session, Refusal> {
        let found = self.sessions.load(name)?;
        found
            .filter(|found| found.kind == SessionKind::Persistent && found.made)
            .ok_or_else(|| Refusal::new(&format!("there is no persistent buffer {name}")))
    }
}

/// What `-T` and `-a` of `create_persistent` ask for; `None`: scratch.
fn kind_of(kind: Option<&str>, access: Option<&str>) -> Result<Option<PersistentCache>, Refusal> {
    let access = access.unwrap_or("striped");
    match (kind.unwrap_or("scratch"), access) {
        ("scratch", "striped") => Ok(None),
        ("cache", "striped" | "ldbalance") => {
            Ok(Some(PersistentCache { pfs: None, ldbalance: access == "ldbalance" }))
        }
        ("scratch", other) => Err(Refusal::new(&format!(
            "access_mode={other}: a persistent scratch buffer is striped"
        ))),
        ("cache", other) => Err(Refusal::new(&format!(
            "access_mode={other}: a persistent cache is striped or ldbalance"
        ))),
        (other, _) => {
            Err(Refusal::new(&format!("type={other}: a persistent buffer is scratch or cache")))
        }
    }
}
