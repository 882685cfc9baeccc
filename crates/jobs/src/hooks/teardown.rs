//! `teardown`: everything of a token goes, but results that the PFS does not have: their buffer is kept for a rescue,
//! unless the scheduler says to hurry, which it does when a user or administrator said so.

use super::session::{Session, SessionKind};
use super::{Done, Hooks, NO_SESSION, NO_TOKEN, Refusal, is_gone, unexpected};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::node::SessionName;

impl Hooks<'_> {
    /// The step. Done twice it is done once.
    pub fn teardown(&self, token: &SessionName, hurry: bool) -> Done {
        let session = self.sessions.load(token)?.ok_or_else(|| Refusal::new(NO_TOKEN))?;
        if session.kind == SessionKind::Persistent && !hurry {
            if let Some(job) = self.users_of(token)?.first() {
                let text = format!("persistent buffer {token} is used by job {job}");
                return Err(Refusal::new(&text));
            }
            self.drain_before_end(&session)?;
        }
        let left = self.umount_nodes(&session)?;
        if session.holds_results() && !hurry {
            self.sessions.keep(&session)?;
            let buffer = session.buffer.as_ref().map_or("", |buffer| buffer.as_str());
            return Ok(super::one_line(&format!(
                "buffer {buffer} is kept: it holds results that are not on the PFS (`forebay rescue {buffer}`)"
            )));
        }
        self.destroy_buffer(&session)?;
        self.forget_unmade_of(&session)?;
        self.sessions.change(token, |found| {
            // Another job may have the token by now.
            if found.as_ref().is_some_and(|found| found.buffer == session.buffer) {
                *found = None;
            }
            Ok(())
        })?;
        Ok(left.unwrap_or_default())
    }

    /// A persistent cache is destroyed when the PFS has all of it.
    fn drain_before_end(&self, session: &Session) -> Result<(), Refusal> {
        let Some(buffer) = session.writable_cache().filter(|_| session.made) else {
            return Ok(());
        };
        match self.drain(session, buffer) {
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
    pub(super) fn give_up(&self, old: &Session) -> Result<(), Refusal> {
        if old.kind == SessionKind::Persistent {
            return Err(Refusal::new(&format!("a persistent buffer is called {}", old.token)));
        }
        self.teardown(&old.token, false).map(drop)
    }

    /// Gives a session's buffer back; of nothing: done.
    pub(super) fn destroy_buffer(&self, session: &Session) -> Result<(), Refusal> {
        let Some(name) = &session.buffer else { return Ok(()) };
        let request = LedgerRequest::Destroy { name: name.clone(), force: true, discard: true };
        match self.ask_patiently(session, None, &request) {
            Ok(LedgerReply::Ok) => Ok(()),
            Ok(_) => Err(unexpected().into()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
