//! The seam between sessions and the type of a buffer: whose rights a call has, how the buffer answers it and answers it
//! again, and which opens it counts.
//!
//! Two traits, since sessions end below the handlers of calls: [`ClientFiles`] is what a type keeps about clients,
//! [`BufferType`] answers their calls.
//!
//! Invariants: each type (`scratch`, `cached`) implements them once, and only [`super::Sessions::new`] chooses between types. A
//! type owns what it keeps about clients. Sessions hold no lock of theirs while they call it.

use super::Session;
use super::reply::{CallContext, Reply};
use forebay_lease::slots::Before;
use forebay_proto::net::Call;
use forebay_proto::net::session::{ClientId, Reclaim};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use std::fs::File;
use std::sync::Arc;

/// What a type of buffer keeps about its clients.
pub(super) trait ClientFiles: Send + Sync {
    /// Opens of a session are over.
    fn closed(&self, _session: &Session, _ino: Ino, _count: u64, _local: bool) {}
    /// A session is over: so is what it has open, but a kernel of its client may write on.
    fn end_opens(&self, _session: &Session) {}
    /// A client's session has ended, with these references, and the client may come back.
    fn client_left(&self, _client: ClientId, _held: Vec<Ino>) {}
    /// A client has said all that it holds from before.
    fn client_is_back(&self, _client: ClientId) {}
    /// A client will not come back.
    fn client_has_gone(&self, _client: ClientId) {}
    /// The time in which clients of the last start may come back is over; these did not.
    fn clients_are_back(&self, _given_up: &[ClientId]) {}
}

/// A type of buffer.
pub(super) trait BufferType: Send + Sync {
    /// Waits until a server that has just started may answer calls on files.
    fn wait_until_settled(&self);
    /// The user whose rights a call of `caller` has.
    fn caller(&self, session: &Session, caller: &Caller) -> Caller;
    /// True if a session's kernel may be given objects: it keeps them for those who may use them.
    fn believes_kernel_of(&self, _session: &Session) -> bool {
        true
    }
    /// True if nobody but this buffer changes its directories: then their attributes go along with answers.
    fn owns_directories(&self) -> bool;

    /// Before a call is done, with no lock held: what others must do first.
    fn prepare(&self, _cx: &CallContext<'_>, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }
    /// Answers a call on files.
    fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply;
    /// The answer to a once-only call of which an earlier attempt may be known; `None` if it is to be done now.
    fn replayed(&self, cx: &CallContext<'_>, call: &Call<'_>, before: Before) -> Option<Reply>;
    /// The object of a file that an earlier answer gave out, open for reading and writing.
    fn object_again(&self, caller: &Caller, ino: Ino) -> Option<Arc<File>>;
    /// Answers the server of another part of the buffer.
    fn answer_peer(&self, _from: ShardId, _request: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EPROTO)
    }

    /// An error if a session speaks of an inode that it was not given.
    fn must_know(&self, _cx: &CallContext<'_>, _ino: Ino) -> Result<()> {
        Ok(())
    }
    /// True if a session may have looked up what it says to hold from an earlier one.
    fn may_have_held(&self, _session: &Session, _ino: Ino) -> bool {
        true
    }
    /// What a client has open from before a restart of the server, or of its session. What is not there any more is passed
    /// over: it is ESTALE when it is used.
    fn reopen(&self, _cx: &CallContext<'_>, _part: &Reclaim) {}
}
