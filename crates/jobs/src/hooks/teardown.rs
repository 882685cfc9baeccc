//! `teardown`: everything of a token goes, but results that the PFS does not have: their buffer is kept for a rescue,
//! unless the scheduler says to hurry, which it does when a user or administrator said so.
//!
//! Invariant: a record goes when all that it names has gone, or is kept for a rescue.
//! Callers: the front; `setup`, of a job whose token another one has; `reconcile`.

use super::drain::CacheDrains;
use super::mounts::Mounts;
use super::persistent::Persistent;
use super::refusal::{Done, NO_SESSION, NO_TOKEN, Refusal, one_line};
use super::servers::PoolServers;
use super::session::{Session, SessionKind, Sessions};
use forebay_proto::net::node::SessionName;

/// The end of sessions.
#[derive(Clone, Copy)]
pub struct Teardown<'a> {
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    persistent: Persistent<'a>,
    mounts: Mounts<'a>,
    drains: CacheDrains<'a>,
}

impl<'a> Teardown<'a> {
    pub(super) fn new(
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
        persistent: Persistent<'a>,
        mounts: Mounts<'a>,
    ) -> Teardown<'a> {
        Teardown { sessions, servers, persistent, mounts, drains: CacheDrains::new(servers) }
    }

    /// The step. Done twice it is done once.
    ///
    /// # Errors
    /// If there is no such session, or what of it does not go, and why.
    pub fn end(&self, token: &SessionName, hurry: bool) -> Done {
        let session = self.sessions.load(token)?.ok_or_else(|| Refusal::new(NO_TOKEN))?;
        if session.kind == SessionKind::Persistent && !hurry {
            if let Some(job) = self.persistent.users_of(token)?.first() {
                let text = format!("persistent buffer {token} is used by job {job}");
                return Err(Refusal::new(&text));
            }
            self.drain_before_end(&session)?;
        }
        let left = self.mounts.umount(&session)?;
        if session.holds_results() && !hurry {
            self.sessions.keep(&session)?;
            let buffer = session.buffer.as_ref().map_or("", |buffer| buffer.as_str());
            return Ok(one_line(&format!(
                "buffer {buffer} is kept: it holds results that are not on the PFS (`forebay rescue {buffer}`)"
            )));
        }
        self.servers.destroy(&session)?;
        self.persistent.forget_unmade_of(&session)?;
        self.sessions.forget(&session)?;
        Ok(left.unwrap_or_default())
    }

    /// A persistent cache is destroyed when the PFS has all of it.
    fn drain_before_end(&self, session: &Session) -> Result<(), Refusal> {
        let Some(buffer) = session.writable_cache().filter(|_| session.made) else {
            return Ok(());
        };
        match self.drains.finish(session, buffer) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => {
                Err(Refusal::new(&format!("persistent buffer {}: {why}", session.token)))
            }
            // The buffer is gone.
            Err(Refusal(why)) if why == NO_SESSION => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// A session that the scheduler has forgotten, whose token another job has now.
    ///
    /// # Errors
    /// As [`Self::end`]; a persistent buffer is not given up.
    pub(super) fn give_up(&self, old: &Session) -> Result<(), Refusal> {
        if old.kind == SessionKind::Persistent {
            return Err(Refusal::new(&format!("a persistent buffer is called {}", old.token)));
        }
        self.end(&old.token, false).map(drop)
    }
}
