//! Calls on locks. All locks of a buffer are in one table, so that deadlocks are found over all
//! its mounts. A request that has to wait holds no thread: the client hears of its end on the
//! session's channel.

use super::buffer_type::BufferType;
use super::grace::Grace;
use super::inodes::Inodes;
use super::locks::Locks;
use super::reply::CallContext;
use super::stack::Stack;
use forebay_failpoint::step;
use forebay_proto::net::Answer;
use forebay_proto::net::session::{LockCall, LockSpec, LockState};
use forebay_proto::{Errno, Ino, Result, ShardId};
use std::sync::Arc;

/// Answers them.
pub(super) struct LockCalls {
    shard: ShardId,
    locks: Arc<Locks>,
    grace: Arc<Grace>,
    inodes: Arc<dyn Inodes>,
    buffer: Arc<dyn BufferType>,
}

impl LockCalls {
    pub(super) fn new(stack: &Stack, buffer: Arc<dyn BufferType>) -> LockCalls {
        LockCalls {
            shard: stack.shard,
            locks: Arc::clone(&stack.locks),
            grace: Arc::clone(&stack.grace),
            inodes: Arc::clone(&stack.inodes),
            buffer,
        }
    }

    pub(super) fn answer(&self, cx: &CallContext<'_>, call: &LockCall) -> Result<Answer> {
        let (locks, session) = (self.locks.table(), cx.session.id());
        // Clients of the last server first say what they hold.
        self.grace.wait();
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
                self.buffer.must_know(cx, spec.ino)?;
                self.must_exist(spec.ino)?;
                let waiter = wait.map(|ticket| {
                    let asking = Arc::downgrade(cx.session);
                    let told: forebay_proto::api::LockWaiter = Box::new(move |result| {
                        if let Some(session) = asking.upgrade() {
                            session.channel().lock_ended(ticket, result.map_err(|e| e.0));
                        }
                    });
                    (ticket, told)
                });
                step("lock: to be set");
                let set = locks.set(session, spec, waiter);
                self.drop_if_over(cx);
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
    fn drop_if_over(&self, cx: &CallContext<'_>) {
        if cx.session.is_over() {
            self.locks.table().drop_session(cx.session.id());
        }
    }

    /// Locks from before a restart of the server, or from before the session was ended; those
    /// that somebody else has, or had meanwhile, are lost.
    pub(super) fn restore(&self, cx: &CallContext<'_>, held: &[LockSpec]) -> Vec<LockSpec> {
        let (locks, session) = (self.locks.table(), cx.session.id());
        let client = cx.session.client();
        let restored = |spec: &LockSpec| {
            self.buffer
                .must_know(cx, spec.ino)
                .and_then(|()| locks.restore(session, client, spec))
                .is_ok()
        };
        let lost = held.iter().filter(|spec| !restored(spec)).copied().collect();
        self.drop_if_over(cx);
        lost
    }

    /// Locks of what does not exist would be nobody's to clear away until the session ends. What is at
    /// another shard is not looked for: the client has it open.
    fn must_exist(&self, ino: Ino) -> Result<()> {
        if ino.shard() != self.shard {
            return Ok(());
        }
        self.inodes.must_exist(ino)
    }
}
