//! From a call of a session to its answer: what is not about files, and what calls on all types of buffer share. Calls on
//! files go to the type ([`super::buffer_type`]).

use super::attempts::Gave;
use super::{Session, Sessions};
use forebay_lease::leases::Subject;
use forebay_lease::slots::Before;
use forebay_namespace::{Namespace, SIZE_UNKNOWN};
use forebay_proto::api::Opened;
use forebay_proto::api::ops::*;
use forebay_proto::attr::Attr;
use forebay_proto::net::answer::KeptAttr;
use forebay_proto::net::call::MAX_CARRIED;
use forebay_proto::net::session::Reclaim;
use forebay_proto::net::{Answer, Call, GivenBack, Request};
use forebay_proto::{Caller, Errno, Ino, RequestId, Result};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An answer, with what goes along with it.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Bytes of payload, at the front of the room that the call was given.
    pub payload_bytes: usize,
    /// The object, for a client on this node.
    pub file: Option<Arc<File>>,
    /// See [`forebay_proto::net::Response::dirs`].
    pub dirs: [Option<Attr>; 2],
}

impl Reply {
    pub(super) fn of(answer: Answer) -> Reply {
        Reply { answer, payload_bytes: 0, file: None, dirs: [None; 2] }
    }

    /// An answer with the object.
    pub(super) fn with(answer: Answer, file: Option<Arc<File>>) -> Reply {
        Reply { file, ..Reply::of(answer) }
    }

    /// So many bytes at the front of the room.
    pub(super) fn data(payload_bytes: usize) -> Reply {
        Reply { payload_bytes, ..Reply::of(Answer::Data) }
    }

    pub(super) fn failed(errno: Errno) -> Reply {
        Reply::of(Answer::failed(errno))
    }
}

impl From<Result<Answer>> for Reply {
    fn from(result: Result<Answer>) -> Reply {
        Reply::of(result.unwrap_or_else(Answer::failed))
    }
}

impl From<Result<Opened>> for Reply {
    fn from(opened: Result<Opened>) -> Reply {
        match opened {
            Ok(Opened { local }) => Reply::with(Answer::Opened { local: local.is_some() }, local),
            Err(errno) => Reply::failed(errno),
        }
    }
}

impl From<Result<()>> for Reply {
    fn from(result: Result<()>) -> Reply {
        result.map(|()| Answer::Done).into()
    }
}

/// One call with its surroundings.
pub(super) struct At<'a> {
    pub(super) sessions: &'a Sessions,
    pub(super) session: &'a Arc<Session>,
    pub(super) caller: Caller,
    /// Payload of the request.
    pub(super) payload: &'a [u8],
    /// Descriptors can be sent.
    pub(super) local: bool,
}

/// The session is not silent while it has a call under way.
struct Busy<'a>(&'a Session);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.hear();
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Sessions {
    /// Does a call. `room` is for the payload of the reply; `local` says that descriptors can be
    /// sent with it.
    pub fn call(
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
        let unheard = match session.attempts.begin(slot, attempt) {
            Ok(unheard) => unheard,
            Err(errno) => return Reply::failed(errno),
        };
        let reply = self.call_uncounted(session, request, payload, room, local);
        // Not before: what was open goes on being open, and what was referenced stays.
        self.take_back_unheard(session, unheard);
        let too_late = session.attempts.end(slot, attempt, Gave::of(&request.call, &reply.answer));
        self.take_back_unheard(session, too_late);
        reply
    }

    fn take_back_unheard(&self, session: &Session, gave: Gave) {
        match gave {
            Gave::Nothing => {}
            Gave::Reference(ino) => self.give_back(session, ino, 1),
            Gave::References(all) => {
                all.into_iter().for_each(|ino| self.give_back(session, ino, 1));
            }
            Gave::Open { ino, local } => {
                if local {
                    self.leases.closed_locally(ino, session.id(), 1);
                }
                self.buffer.closed(session, ino, 1, local);
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
        session.busy.fetch_add(1, Ordering::AcqRel);
        let _busy = Busy(session);
        session.hear();
        if session.is_over() {
            return Reply::of(Answer::SessionOver);
        }
        let given_back = &request.given_back;
        let most = given_back.forgets.len().max(given_back.releases.len());
        if most > MAX_CARRIED || most > 0 && !request.call.is_once_only() {
            return Reply::failed(Errno::EPROTO);
        }
        if needs_names(&request.call) {
            self.buffer.wait_until_settled(&self.grace);
        }
        let mut caller = self.buffer.caller(session, &request.caller);
        if request.call.is_once_only() {
            let seq = u64::from(request.slot.0) << 32 | u64::from(request.slot_seq);
            caller.request = RequestId { client: session.attach.client.0, seq };
        }
        // An object can be written by whoever has it, for as long as they like: only a kernel gets it that
        // is believed to keep it for those who may.
        let local = local && self.facts.gives_objects && self.buffer.believes_kernel_of(session);
        let at = At { sessions: self, session, caller, payload, local };
        if !request.call.is_once_only() {
            if !matches!(request.call, Call::Reclaim(_)) {
                session.slots.used_after(request.slot, request.slot_seq);
            }
            return match self.buffer.prepare(&at, &request.call) {
                Ok(()) => at.answer(&request.call, room),
                Err(errno) => Reply::failed(errno),
            };
        }
        let (mut file, mut is_first) = (None, false);
        let once = session.slots.once(request.slot, request.slot_seq, session.id, |before| {
            is_first = true;
            if matches!(before, Before::Nothing) {
                at.take_back(given_back);
                // Within its slot, so that an attempt that waits here is not overtaken by its own repetition.
                if let Err(errno) = self.buffer.prepare(&at, &request.call) {
                    return Answer::failed(errno);
                }
            }
            let reply = self.buffer.answer_once(&at, &request.call, before, room);
            file = reply.file;
            reply.answer
        });
        let mut answer = once.unwrap_or_else(Answer::failed);
        if !is_first {
            answer = answer.again();
        }
        if matches!(request.call, Call::Lock(_)) && session.is_over() {
            // What it has locked is gone with it.
            return Reply::of(Answer::SessionOver);
        }
        if file.is_none() {
            file = at.local_again(&request.call, &answer);
        }
        Reply::with(answer, file)
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
            self.grant(session, Subject::Attrs(dir))?;
            self.namespace.getattr(dir).ok().filter(|attr| attr.nlink > 0)
        })
    }

    /// Gives a lease, if the session may have one.
    pub(super) fn grant(&self, session: &Session, subject: Subject) -> Option<bool> {
        let ino = match subject {
            Subject::Names(ino) | Subject::Attrs(ino) => ino,
        };
        // Without a reference there is no end to it but the session's.
        let held = ino == Ino::ROOT || session.held.lock().contains_key(&ino);
        if !held || !session.channel.is_connected() {
            return None;
        }
        // A mount that is not back yet may be changing the file without asking.
        if matches!(subject, Subject::Attrs(_)) && !self.grace.is_over() {
            return None;
        }
        self.leases.grant(subject, session.id())
    }

    /// Attributes with a lease on them, if there can be one. They are read again after a new
    /// lease: they may have changed before it.
    pub(super) fn keep(&self, session: &Session, attr: Attr) -> KeptAttr {
        if attr.blksize_bytes == SIZE_UNKNOWN {
            // Not to be asked for: a server is away.
            return KeptAttr { attr, keep: false };
        }
        // A removed file is to be let go of as soon as it is closed.
        let lease = match attr.nlink {
            0 => None,
            _ => self.grant(session, Subject::Attrs(attr.ino)),
        };
        match lease {
            None => KeptAttr { attr, keep: false },
            Some(true) => KeptAttr { attr, keep: true },
            Some(false) => match self.inodes.attributes_now(attr.ino) {
                Ok(attr) => KeptAttr { attr, keep: attr.nlink > 0 },
                Err(_) => KeptAttr { attr, keep: false },
            },
        }
    }

    /// The namespace gave a reference: it is the session's from now on.
    pub(super) fn took(&self, session: &Session, ino: Ino) {
        session.took(ino);
        if session.is_over() {
            // It ended just now and has given back what it held, perhaps before this.
            let (count, _) = session.gave_back(ino, u64::MAX);
            self.inodes.forget(ino, count);
        }
    }

    pub(super) fn give_back(&self, session: &Session, ino: Ino, count: u64) {
        let (given, none_left) = session.gave_back(ino, count);
        if none_left {
            self.leases.forgotten(ino, session.id());
        }
        if given > 0 {
            self.inodes.forget(ino, given);
        }
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

impl At<'_> {
    pub(super) fn namespace(&self) -> &Namespace {
        &self.sessions.namespace
    }

    pub(super) fn answer(&self, call: &Call<'_>, room: &mut Vec<u8>) -> Reply {
        match call {
            Call::Attach(_) | Call::Join { .. } => Reply::failed(Errno::EPROTO),
            Call::Renew => Reply::of(Answer::Done),
            Call::Reclaim(part) => self.reclaim(part).into(),
            Call::Detach => {
                self.sessions.detach(self.session, "detached");
                Reply::of(Answer::Done)
            }
            Call::Places => Reply::of(Answer::Places(self.sessions.facts.places.shards())),
            Call::Forget(list) => {
                self.forget(list);
                Reply::of(Answer::Done)
            }
            Call::Release(list) => {
                self.release(list);
                Reply::of(Answer::Done)
            }
            Call::Close(list) => {
                for &(ino, count) in list {
                    self.sessions.buffer.closed(self.session, ino, count, false);
                }
                Reply::of(Answer::Done)
            }
            Call::Lock(call) => self.lock_call(call).into(),
            of_files => self.sessions.buffer.answer(self, of_files, room),
        }
    }

    /// What came along with a call that is done for the first time.
    fn take_back(&self, given_back: &GivenBack) {
        self.release(&given_back.releases);
        self.forget(&given_back.forgets);
    }

    fn forget(&self, list: &[(Ino, u64)]) {
        for &(ino, count) in list {
            self.sessions.give_back(self.session, ino, count);
        }
    }

    fn release(&self, list: &[(Ino, u64)]) {
        for &(ino, count) in list {
            self.sessions.leases.closed_locally(ino, self.session.id(), count);
            self.sessions.buffer.closed(self.session, ino, count, true);
        }
    }

    /// A file like the objects of the store, for a mount on this node that tries passthrough.
    pub(super) fn probe(&self) -> Result<Opened> {
        let probe = || self.namespace().objects().probe().map(Arc::new);
        self.local.then(probe).transpose().map(|local| Opened { local })
    }

    pub(super) fn bytes(&self, bytes: Result<Vec<u8>>, room: &mut Vec<u8>) -> Reply {
        match bytes {
            Ok(bytes) => {
                *room = bytes;
                Reply::data(room.len())
            }
            Err(errno) => Reply::failed(errno),
        }
    }

    pub(super) fn getattr(&self, ino: Ino) -> Result<Answer> {
        // First the lease, then the reading: once is enough.
        let keep = self.sessions.grant(self.session, Subject::Attrs(ino)).is_some();
        let attr = self.sessions.inodes.attributes_now(ino)?;
        Ok(Answer::Attr(KeptAttr { attr, keep: keep && attr.nlink > 0 }))
    }

    /// What a client holds from before a restart of the server, or from before its session was
    /// ended. What does not exist any more is passed over: it is ESTALE when it is used.
    fn reclaim(&self, part: &Reclaim) -> Result<Answer> {
        for &(ino, count) in &part.references {
            if !self.sessions.buffer.may_have_held(self.session, ino) {
                continue;
            }
            for _ in 0..count {
                if !self.sessions.inodes.take_reference(ino) {
                    break;
                }
                self.sessions.took(self.session, ino);
            }
        }
        self.sessions.buffer.reopen(self, part);
        for &(ino, count) in &part.opens {
            for _ in 0..count {
                self.sessions.leases.opened_locally(ino, self.session.id());
            }
        }
        let lost = self.restore_locks(&part.locks);
        self.session.slots.answered(&part.answered);
        if part.last {
            let client = self.session.attach.client;
            self.sessions.grace.reclaimed(client);
            self.sessions.locks.is_back(client);
            self.sessions.taken.forget(client);
            self.sessions.buffer.client_is_back(client);
        }
        Ok(Answer::Reclaimed { lost })
    }

    pub(super) fn changed<T>(&self, ino: Ino, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let _changing = self.sessions.change(self.session, &[Subject::Attrs(ino)]);
        let _turn = self.sessions.sizes.shared(ino);
        change()
    }

    /// The descriptor that went with an answer which is given once more.
    fn local_again(&self, call: &Call<'_>, answer: &Answer) -> Option<Arc<File>> {
        let ino = match (answer, call) {
            (Answer::Created { attr, local: true, .. }, _) => attr.attr.ino,
            (Answer::Opened { local: true }, Call::Open { ino, .. }) => *ino,
            _ => return None,
        };
        self.sessions.buffer.object_again(&self.caller, ino)
    }
}
