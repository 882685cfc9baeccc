//! `forebay rescue`: jobs whose results did not all reach the PFS. Their buffers are kept until their lines are done,
//! or somebody gives them up.

use super::session::{Session, Sessions};
use super::{Hooks, Refusal};
use forebay_proto::net::ledger::{BufferName, LedgerRequest};

impl Hooks<'_> {
    /// Kept jobs, by their age. Those whose buffer somebody has destroyed are forgotten.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub fn kept(&self) -> Result<Vec<Session>, Refusal> {
        let mut kept = self.sessions.list_kept()?;
        kept.retain(|session| {
            let Some(buffer) = &session.buffer else { return false };
            let gone = self.is_destroyed(session, buffer);
            // It is listed once more if its record cannot be removed.
            !(gone && self.sessions.forget_kept(buffer).is_ok())
        });
        Ok(kept)
    }

    fn is_destroyed(&self, session: &Session, buffer: &BufferName) -> bool {
        let Ok(pool) = self.pool(&session.pool) else { return false };
        let status = LedgerRequest::Status { name: buffer.clone() };
        self.back.ask(pool, None, status).is_err_and(|error| super::is_gone(&error))
    }

    /// The kept job of a buffer, named by the buffer or by the job's number where that is one only.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn kept_one(&self, name: &str) -> Result<Session, Refusal> {
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
    pub fn rescue(&self, session: &Session) -> Result<(), Refusal> {
        let missing = self.bring_out(session)?;
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
        self.destroy_buffer(session)?;
        let Some(buffer) = &session.buffer else { return Ok(()) };
        Sessions::forget_kept(&self.sessions, buffer).map_err(Into::into)
    }
}
