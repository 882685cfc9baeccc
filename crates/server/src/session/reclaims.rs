//! What a client says it holds from before a restart of the server, or from before its session was ended.
//!
//! Invariant: a client is awaited until it has said all of it; what does not exist any more is passed over, and is ESTALE when it
//! is used.

use super::buffer_type::{BufferType, ClientFiles};
use super::grace::Grace;
use super::grants::Grants;
use super::lock_calls::LockCalls;
use super::locks::Locks;
use super::reply::CallContext;
use super::stack::Stack;
use forebay_proto::net::Answer;
use forebay_proto::net::session::Reclaim;
use std::sync::Arc;

/// Takes it up.
pub(super) struct Reclaims {
    grants: Arc<Grants>,
    grace: Arc<Grace>,
    locks: Arc<Locks>,
    files: Arc<dyn ClientFiles>,
    buffer: Arc<dyn BufferType>,
}

impl Reclaims {
    pub(super) fn new(stack: &Stack, buffer: Arc<dyn BufferType>) -> Reclaims {
        Reclaims {
            grants: Arc::clone(&stack.grants),
            grace: Arc::clone(&stack.grace),
            locks: Arc::clone(&stack.locks),
            files: Arc::clone(&stack.files),
            buffer,
        }
    }

    /// Takes up a part of it; `lock_calls` has the locks.
    pub(super) fn answer(
        &self,
        cx: &CallContext<'_>,
        part: &Reclaim,
        lock_calls: &LockCalls,
    ) -> Answer {
        for &(ino, count) in &part.references {
            if !self.buffer.may_have_held(cx.session, ino) {
                continue;
            }
            for _ in 0..count {
                if !self.grants.take_reference(cx.session, ino) {
                    break;
                }
            }
        }
        self.buffer.reopen(cx, part);
        for &(ino, count) in &part.opens {
            for _ in 0..count {
                self.grants.opened_locally(cx.session, ino);
            }
        }
        let lost = lock_calls.restore(cx, &part.locks);
        cx.session.slots().answered(&part.answered);
        if part.last {
            let client = cx.session.client();
            self.grace.reclaimed(client);
            self.locks.awaits_no_more(client);
            self.files.client_is_back(client);
        }
        Answer::Reclaimed { lost }
    }
}
