//! From a call of a session to its answer: what is not about files, and what calls on all types of buffer share. A call is
//! routed once: calls on locks and reclaims to their handlers, those on files to the type ([`super::buffer_type`]).
//!
//! Invariant: what an attempt gave that its mount did not hear of is taken back, also if the attempt comes too late.

use super::Session;
use super::attempts::Gave;
use super::buffer_type::{BufferType, ClientFiles};
use super::grants::Grants;
use super::lock_calls::LockCalls;
use super::reclaims::Reclaims;
use super::reply::{CallContext, Reply};
use super::stack::Stack;
use super::teardown::Teardown;
use crate::metrics::CallCounts;
use crate::places::Places;
use forebay_lease::leases::Subject;
use forebay_lease::slots::Before;
use forebay_namespace::Namespace;
use forebay_proto::api::ops::*;
use forebay_proto::attr::Attr;
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::call::MAX_CARRIED;
use forebay_proto::net::{Answer, Call, GivenBack, Request};
use forebay_proto::{Errno, Ino, RequestId};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

/// Answers the calls of all sessions of a buffer.
pub(super) struct Calls {
    namespace: Arc<Namespace>,
    places: Arc<Places>,
    /// See [`forebay_proto::net::session::Attached::gives_objects`].
    gives_objects: bool,
    buffer: Arc<dyn BufferType>,
    files: Arc<dyn ClientFiles>,
    grants: Arc<Grants>,
    teardown: Arc<Teardown>,
    locks: LockCalls,
    reclaims: Reclaims,
    counts: CallCounts,
}

impl Calls {
    pub(super) fn new(
        stack: &Stack,
        buffer: &Arc<dyn BufferType>,
        places: Arc<Places>,
        gives_objects: bool,
    ) -> Calls {
        Calls {
            namespace: Arc::clone(&stack.namespace),
            places,
            gives_objects,
            buffer: Arc::clone(buffer),
            files: Arc::clone(&stack.files),
            grants: Arc::clone(&stack.grants),
            teardown: Arc::clone(&stack.teardown),
            locks: LockCalls::new(stack, Arc::clone(buffer)),
            reclaims: Reclaims::new(stack, Arc::clone(buffer)),
            counts: CallCounts::default(),
        }
    }

    /// See [`super::Sessions::call`].
    pub(super) fn call(
        &self,
        session: &Arc<Session>,
        request: &Request<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        local: bool,
    ) -> Reply {
        let began = Instant::now();
        let mut reply = self.call_attempted(session, request, payload, room, local);
        reply.dirs = self.changed_dirs(session, &request.call, &reply.answer);
        let bytes = (payload.len(), reply.payload_bytes);
        self.counts.count(&request.call, &reply.answer, began.elapsed(), bytes);
        reply
    }

    /// What was asked for until now.
    pub(super) fn fill_metrics(&self, told: &mut BufferMetrics) {
        self.counts.fill(told);
    }

    /// One attempt of a call, which may be too late.
    fn call_attempted(
        &self,
        session: &Arc<Session>,
        request: &Request<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        local: bool,
    ) -> Reply {
        let (slot, attempt) = (request.slot, request.attempt);
        let unheard = match session.attempts().begin(slot, attempt) {
            Ok(unheard) => unheard,
            Err(errno) => return Reply::failed(errno),
        };
        let reply = self.call_uncounted(session, request, payload, room, local);
        // Not before: what was open goes on being open, and what was referenced stays.
        self.take_back_unheard(session, unheard);
        let too_late =
            session.attempts().end(slot, attempt, Gave::of(&request.call, &reply.answer));
        self.take_back_unheard(session, too_late);
        reply
    }

    fn take_back_unheard(&self, session: &Session, gave: Gave) {
        match gave {
            Gave::Nothing => {}
            Gave::Reference(ino) => self.grants.give_back(session, ino, 1),
            Gave::References(all) => {
                all.into_iter().for_each(|ino| self.grants.give_back(session, ino, 1));
            }
            Gave::Open { ino, local } => {
                if local {
                    self.grants.closed_locally(session, ino, 1);
                }
                self.files.closed(session, ino, 1, local);
            }
        }
    }

    fn call_uncounted(
        &self,
        session: &Arc<Session>,
        request: &Request<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        local: bool,
    ) -> Reply {
        let _busy = session.begin_call();
        if session.is_over() {
            return Reply::of(Answer::SessionOver);
        }
        let given_back = &request.given_back;
        let most = given_back.forgets.len().max(given_back.releases.len());
        if most > MAX_CARRIED || most > 0 && !request.call.is_once_only() {
            return Reply::failed(Errno::EPROTO);
        }
        if needs_names(&request.call) {
            self.buffer.wait_until_settled();
        }
        let mut caller = self.buffer.caller(session, &request.caller);
        if request.call.is_once_only() {
            let seq = u64::from(request.slot.0) << 32 | u64::from(request.slot_seq);
            caller.request = RequestId { client: session.client().0, seq };
        }
        // An object can be written by whoever has it, for as long as they like: only a kernel gets it that
        // is believed to keep it for those who may.
        let local = local && self.gives_objects && self.buffer.believes_kernel_of(session);
        let cx = CallContext { session, caller, payload, local };
        if request.call.is_once_only() {
            return self.once(&cx, request, room);
        }
        if !matches!(request.call, Call::Reclaim(_)) {
            session.slots().used_after(request.slot, request.slot_seq);
        }
        match self.buffer.prepare(&cx, &request.call) {
            Ok(()) => self.answer(&cx, &request.call, room),
            Err(errno) => Reply::failed(errno),
        }
    }

    /// A call that is done once only: it is answered again if it was answered before.
    fn once(&self, cx: &CallContext<'_>, request: &Request<'_>, room: &mut Vec<u8>) -> Reply {
        let (session, call) = (cx.session, &request.call);
        let (mut file, mut is_first) = (None, false);
        let once = session.slots().once(request.slot, request.slot_seq, session.id(), |before| {
            is_first = true;
            if matches!(before, Before::Nothing) {
                self.take_back(session, &request.given_back);
                // Within its slot, so that an attempt that waits here is not overtaken by its own repetition.
                if let Err(errno) = self.buffer.prepare(cx, call) {
                    return Answer::failed(errno);
                }
            }
            let replayed = self.buffer.replayed(cx, call, before);
            let reply = replayed.unwrap_or_else(|| self.answer(cx, call, room));
            file = reply.file;
            reply.answer
        });
        let mut answer = once.unwrap_or_else(Answer::failed);
        if !is_first {
            answer = answer.again();
        }
        if matches!(call, Call::Lock(_)) && session.is_over() {
            // What it has locked is gone with it.
            return Reply::of(Answer::SessionOver);
        }
        if file.is_none() {
            file = self.local_again(cx, call, &answer);
        }
        Reply::with(answer, file)
    }

    fn answer(&self, cx: &CallContext<'_>, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        match call {
            Call::Attach(_) | Call::Join { .. } => Reply::failed(Errno::EPROTO),
            Call::Renew => Reply::of(Answer::Done),
            Call::Reclaim(part) => Reply::of(self.reclaims.answer(cx, part, &self.locks)),
            Call::Detach => {
                self.teardown.detach(cx.session, "detached");
                Reply::of(Answer::Done)
            }
            Call::Places => Reply::of(Answer::Places(self.places.shards())),
            Call::Forget(list) => {
                self.forget(cx.session, list);
                Reply::of(Answer::Done)
            }
            Call::Release(list) => {
                self.release(cx.session, list);
                Reply::of(Answer::Done)
            }
            Call::Close(list) => {
                for &(ino, count) in list {
                    self.files.closed(cx.session, ino, count, false);
                }
                Reply::of(Answer::Done)
            }
            Call::Lock(call) => self.locks.answer(cx, call).into(),
            of_files => self.buffer.answer(cx, of_files, room),
        }
    }

    /// What the client's kernel is going to ask for after a change of directories. Read after the
    /// change, under a lease that is entered before: so it is true until it is recalled, or until
    /// the client changes the directory again.
    fn changed_dirs(
        &self,
        session: &Session,
        call: &Call<'_>,
        answer: &Answer,
    ) -> [Option<Attr>; 2] {
        if !self.buffer.owns_directories()
            || matches!(answer, Answer::Failed(_) | Answer::SessionOver)
        {
            return [None; 2];
        }
        call.changed_dirs().map(|dir| {
            let dir = dir.filter(|dir| dir.shard() == self.namespace.shard())?;
            self.grants.lease(session, Subject::Attrs(dir))?;
            self.namespace.getattr(dir).ok().filter(|attr| attr.nlink > 0)
        })
    }

    /// What came along with a call that is done for the first time.
    fn take_back(&self, session: &Session, given_back: &GivenBack) {
        self.release(session, &given_back.releases);
        self.forget(session, &given_back.forgets);
    }

    fn forget(&self, session: &Session, list: &[(Ino, u64)]) {
        for &(ino, count) in list {
            self.grants.give_back(session, ino, count);
        }
    }

    fn release(&self, session: &Session, list: &[(Ino, u64)]) {
        for &(ino, count) in list {
            self.grants.closed_locally(session, ino, count);
            self.files.closed(session, ino, count, true);
        }
    }

    /// The descriptor that went with an answer which is given once more.
    fn local_again(
        &self,
        cx: &CallContext<'_>,
        call: &Call<'_>,
        answer: &Answer,
    ) -> Option<Arc<File>> {
        let ino = match (answer, call) {
            (Answer::Created { attr, local: true, .. }, _) => attr.attr.ino,
            (Answer::Opened { local: true }, Call::Open { ino, .. }) => *ino,
            _ => return None,
        };
        self.buffer.object_again(&cx.caller, ino)
    }
}

/// False for calls that a server which has just started needs, to settle what it finds.
fn needs_names(call: &Call<'_>) -> bool {
    !matches!(
        call,
        Call::Renew
            | Call::Reclaim(_)
            | Call::Detach
            | Call::Places
            | Call::Forget(_)
            | Call::Release(_)
            | Call::Close(_)
            | Call::Lock(_)
    )
}
