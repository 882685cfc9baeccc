//! Calls on locks. All locks of a buffer are in one table, so that deadlocks are found over all
//! its mounts. A request that has to wait holds no thread: the client hears of its end on the
//! session's channel.

use super::Sessions;
use super::calls::At;
use forebay_failpoint::step;
use forebay_proto::net::Answer;
use forebay_proto::net::session::{LockCall, LockSpec, LockState};
use forebay_proto::{Errno, Result};
use std::sync::Arc;

impl At<'_> {
    pub(super) fn lock_call(&self, call: &LockCall) -> Result<Answer> {
        let (locks, session) = (&self.sessions.locks, self.session.id());
        // Clients of the last server first say what they hold.
        self.sessions.grace.wait();
        let done = Ok(Answer::Lock(LockState::Free));
        match call {
            LockCall::Test(spec) => {
                let held = locks.test(session, spec)?;
                Ok(Answer::Lock(held.map_or(LockState::Free, |(holder, held)| {
                    // A process number says nothing on another node.
                    let pid = if holder == session { held.pid } else { 0 };
                    LockState::Held(LockSpec { pid, ..held })
                })))
            }
            LockCall::Set { spec, wait } => {
                self.sessions.buffer.must_know(self, spec.ino)?;
                must_exist(self.sessions, spec)?;
                let waiter = wait.map(|ticket| {
                    let asking = Arc::downgrade(self.session);
                    let told: forebay_proto::api::LockWaiter = Box::new(move |result| {
                        if let Some(session) = asking.upgrade() {
                            session.channel.lock_ended(ticket, result.map_err(|e| e.0));
                        }
                    });
                    (ticket, told)
                });
                step("lock: to be set");
                let set = locks.set(session, spec, waiter);
                self.drop_locks_of_the_ended();
                match set {
                    // Asked again, because the first answer was lost.
                    Err(Errno::EEXIST) => Ok(Answer::Lock(LockState::Waits)),
                    other => other.map(Answer::Lock),
                }
            }
            LockCall::Unset(spec) => {
                locks.unset(session, spec)?;
                done
            }
            LockCall::Cancel(ticket) => {
                locks.cancel(session, *ticket);
                done
            }
            LockCall::Drop { ino, kind, owner } => {
                locks.drop_owner(session, *ino, *kind, *owner);
                done
            }
        }
    }

    /// A session that ended just now has given back what it held, perhaps before what was locked for it since.
    fn drop_locks_of_the_ended(&self) {
        if self.session.is_over() {
            self.sessions.locks.drop_session(self.session.id());
        }
    }

    /// Locks from before a restart of the server, or from before the session was ended; those
    /// that somebody else has, or had meanwhile, are lost.
    pub(super) fn restore_locks(&self, held: &[LockSpec]) -> Vec<LockSpec> {
        let (locks, session) = (&self.sessions.locks, self.session.id());
        let client = self.session.attach.client;
        let restored = |spec: &LockSpec| {
            self.sessions
                .buffer
                .must_know(self, spec.ino)
                .and_then(|()| locks.restore(session, client, spec))
                .is_ok()
        };
        let lost = held.iter().filter(|spec| !restored(spec)).copied().collect();
        self.drop_locks_of_the_ended();
        lost
    }
}

/// Locks of what does not exist would be nobody's to clear away until the session ends. What is at
/// another shard is not looked for: the client has it open.
fn must_exist(sessions: &Sessions, spec: &LockSpec) -> Result<()> {
    if spec.ino.shard() != sessions.facts.shard {
        return Ok(());
    }
    sessions.inodes.must_exist(spec.ino)
}
