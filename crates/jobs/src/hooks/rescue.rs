//! `forebay rescue`: jobs whose results did not all reach the PFS. Their buffers are kept until their lines are done,
//! or somebody gives them up.
//!
//! Invariant: a kept job is forgotten after its buffer has gone, never before.
//! Callers: `forebay rescue`; `reconcile`, for the names of kept buffers.

use super::data::Staging;
use super::refusal::Refusal;
use super::servers::PoolServers;
use super::session::{Session, Sessions};

/// Kept jobs.
#[derive(Clone, Copy)]
pub struct Rescue<'a> {
    sessions: &'a Sessions,
    servers: PoolServers<'a>,
    staging: Staging<'a>,
}

impl<'a> Rescue<'a> {
    pub(super) fn new(
        sessions: &'a Sessions,
        servers: PoolServers<'a>,
        staging: Staging<'a>,
    ) -> Rescue<'a> {
        Rescue { sessions, servers, staging }
    }

    /// Kept jobs, by their age. Those whose buffer somebody has destroyed are forgotten.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn list(&self) -> Result<Vec<Session>, Refusal> {
        let mut kept = self.sessions.list_kept()?;
        kept.retain(|session| {
            let Some(buffer) = &session.buffer else { return false };
            let gone = self.servers.is_destroyed(session, buffer);
            // It is listed once more if its record cannot be removed.
            !(gone && self.sessions.forget_kept(buffer).is_ok())
        });
        Ok(kept)
    }

    /// The kept job of a buffer, named by the buffer or by the job's number where that is one only.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn find(&self, name: &str) -> Result<Session, Refusal> {
        let all = self.sessions.list_kept()?;
        let is = |session: &&Session| {
            session.token.as_str() == name
                || session.buffer.as_ref().is_some_and(|b| b.as_str() == name)
        };
        let mut found = all.iter().filter(is);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one.clone()),
            (None, _) => Err(Refusal::new(&format!("no kept job or buffer is called {name}"))),
            (Some(_), Some(_)) => Err(Refusal::new(&format!(
                "several kept jobs have the number {name}: name the buffer"
            ))),
        }
    }

    /// Does the lines of a kept job again, and gives its buffer back when all results are on the PFS.
    ///
    /// # Errors
    /// What is still missing; the buffer is kept then.
    pub fn go_on(&self, session: &Session) -> Result<(), Refusal> {
        let missing = self.staging.bring_out(session)?;
        match missing.is_empty() {
            true => self.discard(session),
            false => Err(Refusal::new(&missing.join("; "))),
        }
    }

    /// Gives a kept job up, with all that only its buffer has.
    ///
    /// # Errors
    /// If the buffer cannot be destroyed: it is kept then.
    pub fn discard(&self, session: &Session) -> Result<(), Refusal> {
        self.servers.destroy(session)?;
        let Some(buffer) = &session.buffer else { return Ok(()) };
        self.sessions.forget_kept(buffer).map_err(Into::into)
    }
}
