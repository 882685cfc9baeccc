//! One server of a mounted buffer: connections, the session there, and calls.
//!
//! Each call takes a *slot*: a connection with one call under way, and the number of the call in
//! it, so that a repeated call is done once. A connection that breaks is made anew and the call
//! repeated, for up to [`Target::patience`] since the server was last reached; after that calls fail at
//! once until it is there again. A session that has ended (a restart of the server, or a lease
//! that ran out) is begun anew by the first call that notices: everything kept is dropped, and
//! the server is told what this mount holds.
//!
//! Invariant: what a call's answer gives is noted before a new session can be told what is held
//! (`session` is read-locked from the question to the note, and write-locked for a new session).

mod about;
mod left;
mod patience;
mod slots;
mod tries;

use super::held_locks::HeldLocks;
use super::lease_cache::{LeaseCache, Mark};
use super::open_refs::OpenRefs;
use super::place::Expected;
use super::refusal::Refusals;
use crate::ledger::while_busy;
use about::changes_attributes_of;
use forebay_activity::Activity;
use forebay_net::handshake::Credential;
use forebay_net::node::{groups_of_process, host_name, this_node};
use forebay_net::{Link, LinkError, Pipes, ServerAddress, Stream};
use forebay_proto::asked::{self, LOOK};
use forebay_proto::net::answer::Answer;
use forebay_proto::net::auth::Purpose;
use forebay_proto::net::frame::{self, FrameError, FrameHeader, Kind};
use forebay_proto::net::session::{
    Attach, Attached, ClientId, MAX_SLOTS, NodeId, Recall, Reclaim, SessionId, SlotId,
};
use forebay_proto::net::{Attempt, Call, GivenBack, Request, Response};
use forebay_proto::{Attr, Caller, Errno, Result};
pub(super) use left::Then;
use left::{Left, Touched, WhenLeft};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use patience::{ANSWER_LIMIT, SignOfLife};
use slots::{Slot, this_cpu};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long a server that does not answer is waited for, unless a mount is told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which buffer, where, as whom.
#[derive(Clone, Debug)]
pub struct Target {
    /// A server of the buffer.
    pub address: ServerAddress,
    /// What is shown to it.
    pub credential: Credential,
    /// What is shown over TCP to the buffer's other servers, where `credential` is good on a socket
    /// of this node only.
    pub over_tcp: Option<Box<Credential>>,
    /// The buffer's name.
    pub buffer: String,
    /// Never by another address than the given one, even where that is faster.
    pub by_given_address: bool,
    /// A server told the address, not the user: a Unix socket there must be root's or this user's.
    pub is_told: bool,
    /// How long the server is waited for when it does not answer; see [`PATIENCE`].
    pub patience: Duration,
    /// Where it is told, while somebody watches, that a call waited for a server.
    pub activity: Arc<Activity>,
}

/// Where the payload of an answer goes.
pub(super) enum Room<'a> {
    None,
    Slice(&'a mut [u8]),
    Vec(&'a mut Vec<u8>),
}

/// What came of a call.
pub(super) struct Done {
    pub(super) answer: Answer,
    /// Bytes of payload.
    pub(super) bytes: usize,
    /// Descriptor that came along.
    pub(super) file: Option<File>,
    pub(super) mark: Mark,
    /// Directories that it changed, as they are after it.
    dirs: [Option<Attr>; 2],
}

/// The session at the server.
pub(super) struct Session {
    /// Which of this mount's sessions there (see [`OpenRefs::for_new_session`]); 0 = none yet.
    generation: u64,
    pub(super) attached: Option<Attached>,
    /// Where connections for calls go: the server's Unix socket if this is its node.
    pub(super) address: ServerAddress,
    /// Where it was begun.
    pub(super) begun_at: ServerAddress,
    /// What was there before, if this one is over or is being made.
    last: Option<LastSession>,
}

/// A session that is over.
struct LastSession {
    /// Of its server.
    incarnation: u64,
    /// By this mount's clock.
    lease_end: Instant,
}

impl LastSession {
    /// Whether a server of this incarnation changes nothing that was leased in it: one that has started since then
    /// waits for this mount to say all that it holds, or for as long as a lease is, which ends later than this one.
    fn is_kept_by(&self, incarnation: u64) -> bool {
        self.incarnation != incarnation && Instant::now() < self.lease_end
    }
}

impl Session {
    /// See [`Attached::counts_served_opens`]; false if there is no session.
    fn counts_served_opens(&self) -> bool {
        self.attached.as_ref().is_some_and(Attached::counts_served_opens)
    }

    /// It is over, or taken for it: the next call makes another one. `lease_end`: of its lease.
    pub(super) fn over(&mut self, lease_end: Instant) {
        if let Some(attached) = self.attached.take() {
            self.last = Some(LastSession { incarnation: attached.incarnation, lease_end });
        }
    }
}

/// One server.
pub(super) struct Peer {
    pub(super) target: Target,
    pub(super) expected: Expected,
    /// Where it may be reached, the best first.
    pub(super) addresses: RwLock<Vec<ServerAddress>>,
    /// It runs on this node.
    pub(super) near: AtomicBool,
    /// It will not come back.
    pub(super) lost: AtomicBool,
    client: ClientId,
    pub(super) node: NodeId,
    pub(super) session: RwLock<Session>,
    /// Where connections for calls of its last session went, also while that is over and another one is being made, which
    /// holds `session`.
    pub(super) spoken_at: Mutex<ServerAddress>,
    /// Who makes a new session.
    renewal: Mutex<()>,
    /// The one used last is at the front (see `slots`).
    slots: Mutex<VecDeque<Slot>>,
    slot_free: Condvar,
    /// Calls under way for which a program waits.
    programs_wait: AtomicUsize,
    /// A sign of life that somebody waits for (see `patience`).
    sign_of_life: SignOfLife,
    /// The connections of the slots, to end calls that wait when the mount ends.
    streams: Mutex<BTreeMap<SlotId, Stream>>,
    /// Since when it cannot be reached.
    pub(super) lost_since: Mutex<Option<Instant>>,
    /// It was found lost by waiting: it says nothing, not even that it is not there.
    silent: AtomicBool,
    refusals: Refusals,
    closing: AtomicBool,
    /// Calls that were left, by slot, with what they may change; and how many.
    left: Mutex<Vec<(u16, Touched)>>,
    lefts: AtomicUsize,
    settled: Condvar,
    /// For threads that settle calls.
    pub(super) me: OnceLock<Weak<Peer>>,
    /// See [`Peer::lease`].
    lease_ms: AtomicU64,
    /// Calls are made on a PFS as who asks.
    needs_pfs: AtomicBool,
    pub(super) kept: LeaseCache,
    pub(super) held: OpenRefs,
    pub(super) held_locks: Arc<HeldLocks>,
}

/// Why an attempt failed.
enum Failed {
    /// Try again: the connection broke, or could not be made.
    Link(LinkError),
    /// Try again in a new session.
    SessionOver,
    /// Asked for too late: the session is another one.
    OtherSession,
    /// Nobody waits for it any more.
    GivenUp,
}

impl From<LinkError> for Failed {
    fn from(error: LinkError) -> Failed {
        match error.is_given_up() {
            true => Failed::GivenUp,
            false => Failed::Link(error),
        }
    }
}

impl From<FrameError> for Failed {
    fn from(error: FrameError) -> Failed {
        Failed::Link(error.into())
    }
}

/// True for calls whose effect on sgid depends on the caller's groups.
fn takes_sgid_off(call: &Call<'_>) -> bool {
    match call {
        Call::Setattr { change, .. } => {
            change.kill_suid || change.uid.is_some() || change.gid.is_some()
        }
        Call::Open { kill_suid, .. } => *kill_suid,
        Call::Fallocate { .. } => true,
        _ => false,
    }
}

impl Peer {
    pub(super) fn new(
        target: Target,
        client: ClientId,
        expected: Expected,
        held_locks: Arc<HeldLocks>,
    ) -> Peer {
        let slots = (0..MAX_SLOTS).map(Slot::new).collect();
        Peer {
            client,
            expected,
            addresses: RwLock::new(vec![target.address.clone()]),
            near: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            node: this_node(),
            session: RwLock::new(Session {
                generation: 0,
                attached: None,
                address: target.address.clone(),
                begun_at: target.address.clone(),
                last: None,
            }),
            spoken_at: Mutex::new(target.address.clone()),
            target,
            renewal: Mutex::new(()),
            slots: Mutex::new(slots),
            slot_free: Condvar::new(),
            programs_wait: AtomicUsize::new(0),
            sign_of_life: SignOfLife::default(),
            streams: Mutex::default(),
            lost_since: Mutex::new(None),
            silent: AtomicBool::new(false),
            refusals: Refusals::default(),
            closing: AtomicBool::new(false),
            left: Mutex::default(),
            lefts: AtomicUsize::new(0),
            settled: Condvar::new(),
            me: OnceLock::new(),
            lease_ms: AtomicU64::new(0),
            needs_pfs: AtomicBool::new(false),
            kept: LeaseCache::new(),
            held: OpenRefs::default(),
            held_locks,
        }
    }

    /// Begins the first session. Tried once: who mounts wants to know what is wrong. A server that has
    /// too many connections is nothing wrong: it says to try again later.
    pub(super) fn attach(&self) -> std::result::Result<Attached, LinkError> {
        while_busy(self.target.patience, || self.new_session(0))?;
        match &self.session.read().attached {
            Some(attached) => Ok(attached.clone()),
            None => Err(LinkError::Closed),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Does a call, however often the connection breaks.
    pub(super) fn call(
        &self,
        caller: &Caller,
        call: Call<'_>,
        payload: &[u8],
        room: Room<'_>,
    ) -> Result<Done> {
        self.call_in(None, caller, call, payload, room)
    }

    /// The same, but in the session of this generation or not at all (ECANCELED).
    pub(super) fn call_in(
        &self,
        generation: Option<u64>,
        caller: &Caller,
        call: Call<'_>,
        payload: &[u8],
        room: Room<'_>,
    ) -> Result<Done> {
        self.call_or_leave(generation, caller, call, payload, room, None)
    }

    /// The same; if the call is left ([`left`]), `when_left` is told before this returns, and what it gives is done
    /// when the call is settled.
    pub(super) fn call_or_leave(
        &self,
        generation: Option<u64>,
        caller: &Caller,
        call: Call<'_>,
        payload: &[u8],
        room: Room<'_>,
        when_left: Option<WhenLeft<'_>>,
    ) -> Result<Done> {
        self.wait_settled(&left::touched(&call))?;
        let others_too = matches!(call, Call::Rename { .. } | Call::Rmdir { .. });
        let changing = self.kept.begin(changes_attributes_of(&call), others_too);
        let mut left = None;
        let done = self.call_until_answered(generation, caller, call, payload, room, &mut left);
        match left {
            None => {
                let brought = done.as_ref().ok().map(|done| (done.dirs, done.mark));
                self.kept.end(changing, brought);
            }
            Some(left) => {
                let then = when_left.map(|when_left| when_left());
                self.leave(Left { then, ..left }, changing);
            }
        }
        done
    }

    /// It has answered.
    fn is_there(&self) {
        *self.lost_since.lock() = None;
        self.refusals.over();
    }

    /// The session, for a call; `None` if nobody waits for the call any more.
    fn session_read(&self) -> Option<RwLockReadGuard<'_, Session>> {
        loop {
            if let Some(session) = self.session.try_read_for(LOOK) {
                return Some(session);
            }
            if asked::is_given_up() {
                return None;
            }
        }
    }

    /// Who asks. The kernel tells no supplementary groups: a cache's server needs them, and so does who
    /// is to take sgid off; only this node knows the process.
    fn with_groups(&self, caller: &Caller, call: &Call<'_>) -> Caller {
        let mut caller = caller.clone();
        let unknown = caller.groups.is_empty() && caller.uid != 0 && caller.pid != 0;
        if unknown && (self.needs_pfs.load(Ordering::Acquire) || takes_sgid_off(call)) {
            caller.groups = groups_of_process(caller.pid);
        }
        caller
    }

    fn attempt(
        &self,
        slot: &mut Slot,
        generation: Option<u64>,
        request: &mut Request<'_>,
        carried_in: &mut Option<u64>,
        payload: &[u8],
        room: &mut Room<'_>,
    ) -> std::result::Result<Done, Failed> {
        let session = self.session_read().ok_or(Failed::GivenUp)?;
        let Some(attached) = &session.attached else { return Err(Failed::SessionOver) };
        if generation.is_some_and(|wanted| wanted != session.generation) {
            return Err(Failed::OtherSession);
        }
        request.session = attached.key.session;
        if slot.link.as_ref().is_none_or(|(_, made_in)| *made_in != session.generation) {
            let link = self.join(&session, attached, Purpose::Calls)?;
            self.streams.lock().insert(slot.id, link.stream().try_clone().map_err(LinkError::Io)?);
            slot.link = Some((link, session.generation));
        }
        let Some((link, _)) = slot.link.as_mut() else { return Err(Failed::SessionOver) };
        let limit = self.answer_limit(&request.call);
        link.wait_at_most(limit).map_err(LinkError::Io)?;
        self.give_something_to_carry(request, carried_in, session.generation);
        request.cpu = self.near.load(Ordering::Relaxed).then(this_cpu).flatten();
        let mark = self.kept.mark();
        let sent = Instant::now();
        if asked::is_given_up() {
            // A connection may have taken long to make: what nobody waits for any more is not begun.
            return Err(Failed::GivenUp);
        }
        slot.attempt.number += 1;
        request.attempt = slot.attempt;
        let id = slot.attempt.number;
        // A part of a frame does nothing there, but nothing else can follow it.
        link.send(Kind::Call, id, request, payload, None)?;
        slot.sent = true;
        let header = link.receive(&mut slot.body)?;
        header.expect(Kind::Answer)?;
        is_answer_to(&header, id)?;
        let bytes = match room {
            Room::None => {
                link.no_payload(&header)?;
                0
            }
            Room::Slice(into) => link.payload_into(&header, into)?,
            Room::Vec(into) => {
                link.payload_vec(&header, into)?;
                into.len()
            }
        };
        let Response { answer, dirs } = frame::decode(&slot.body)?;
        if answer == Answer::SessionOver {
            return Err(Failed::SessionOver);
        }
        let file = link.take_file();
        self.kept.renewed(sent, Duration::from_millis(attached.lease_ms.into()));
        let counts_opens = attached.counts_served_opens();
        self.note_given(left::opened_by(&request.call), counts_opens, &answer);
        slot.heard();
        Ok(Done { answer, bytes, file, mark, dirs })
    }

    /// What is given back goes along with a call that is done once, and so is given back once. A
    /// repetition carries the same, for nobody knows whether the first attempt was heard; in another
    /// session nothing, for that was not told that this mount holds it.
    fn give_something_to_carry(
        &self,
        request: &mut Request<'_>,
        carried_in: &mut Option<u64>,
        generation: u64,
    ) {
        match *carried_in {
            None => {
                *carried_in = Some(generation);
                if request.call.is_once_only() {
                    request.given_back = self.held.carry(generation);
                }
            }
            Some(first) if first != generation => request.given_back = GivenBack::default(),
            Some(_) => {}
        }
    }

    /// A connection of the session.
    fn join(
        &self,
        session: &Session,
        attached: &Attached,
        purpose: Purpose,
    ) -> std::result::Result<Link, Failed> {
        let (mut link, incarnation) = self.greet(&session.address, purpose, Some(attached.uid))?;
        if incarnation != attached.incarnation {
            return Err(Failed::SessionOver);
        }
        let call = Call::Join { buffer: &self.target.buffer, key: attached.key };
        match first_call(&mut link, call)? {
            Answer::Done => {
                if let Some(ends) = link.take_files() {
                    let pipes = Pipes::of(ends.map(OwnedFd::from)).map_err(LinkError::Io)?;
                    link.set_pipes(pipes, true);
                }
                link.set_timeouts(None, Some(ANSWER_LIMIT)).map_err(LinkError::Io)?;
                Ok(link)
            }
            _ => Err(Failed::SessionOver),
        }
    }

    /// Makes a new session, if the one of generation `seen` is still the last.
    fn new_session(&self, seen: u64) -> std::result::Result<(), LinkError> {
        let given_up = || LinkError::Io(std::io::ErrorKind::Interrupted.into());
        let _renewal: MutexGuard<'_, ()> = loop {
            match self.renewal.try_lock_for(LOOK) {
                Some(renewal) => break renewal,
                None if asked::is_given_up() => return Err(given_up()),
                None => {}
            }
        };
        if self.session_read().ok_or_else(given_up)?.generation != seen {
            return Ok(());
        }
        // Whoever has an answer notes first what it gave.
        let mut session = loop {
            match self.session.try_write_for(LOOK) {
                Some(session) => break session,
                None if asked::is_given_up() => return Err(given_up()),
                None => {}
            }
        };
        session.over(self.kept.lease_end());
        let names_stay = self.kept.all_recalled();
        let (mut link, server, incarnation) = self.greet_anywhere()?;
        let is_kept = session.last.as_ref().is_some_and(|last| last.is_kept_by(incarnation));
        if names_stay && !is_kept {
            self.kept.names_are_over();
        }
        let sent = Instant::now();
        let attach = Attach {
            buffer: self.target.buffer.clone(),
            client: self.client,
            host: host_name(),
            pid: std::process::id(),
            node: self.node.clone(),
        };
        let attached = match first_call(&mut link, Call::Attach(attach))? {
            Answer::Attached(attached) => *attached,
            answer => return Err(refused(answer)),
        };
        self.must_be_expected(&attached)?;
        self.near.store(attached.node == self.node, Ordering::Relaxed);
        let locks = self.held_locks.all();
        let (generation, mut parts) = self.held.for_new_session(&locks);
        let is_later = names_stay && is_kept;
        if let Some(last) = parts.last_mut() {
            last.answered = self.slots_in_no_use();
            last.last = !is_later;
        }
        self.reclaim(&mut link, attached.key.session, parts)?;
        if seen > 0 {
            tracing::warn!(%server, "a new session with the server");
        }
        self.needs_pfs.store(attached.needs_pfs(), Ordering::Release);
        self.kept.set_longest(attached.believed_ms());
        self.kept.renewed(sent, Duration::from_millis(attached.lease_ms.into()));
        session.begun_at = server.clone();
        session.address = self.best_address(&attached, server);
        self.spoken_at.lock().clone_from(&session.address);
        session.generation = generation;
        self.lease_ms.store(attached.lease_ms.into(), Ordering::Relaxed);
        session.attached = Some(attached);
        if is_later {
            self.say_all_later(generation);
        }
        Ok(())
    }

    /// Tells what this mount holds, on the connection that has begun the session.
    fn reclaim(
        &self,
        link: &mut Link,
        session: SessionId,
        parts: Vec<Reclaim>,
    ) -> std::result::Result<(), LinkError> {
        for part in parts {
            let request = Request {
                session,
                slot: SlotId(0),
                slot_seq: 0,
                attempt: Attempt::default(),
                caller: Caller::root(),
                cpu: None,
                given_back: GivenBack::default(),
                call: Call::Reclaim(part),
            };
            link.send(Kind::Call, 0, &request, &[], None)?;
            match link.receive_as::<Response>(Kind::Answer)?.answer {
                Answer::Reclaimed { lost } if lost.is_empty() => {}
                Answer::Reclaimed { lost } => {
                    tracing::error!(
                        ?lost,
                        "locks of this mount were given to others while it could not be heard"
                    );
                    self.held_locks.lose(&lost);
                }
                answer => return Err(refused(answer)),
            }
        }
        Ok(())
    }

    /// Others stand on names of this mount, so its kernel believes for a while what it was told in the last session. The server
    /// has started anew since and changes nothing before this mount has said all: that is said when those names are over. What
    /// the mount holds is told already, and its reads go on.
    fn say_all_later(&self, generation: u64) {
        let Some(me) = self.me.get().and_then(Weak::upgrade) else { return };
        let say = move || {
            me.kept.names_are_over();
            let all = Call::Reclaim(Reclaim { last: true, ..Reclaim::default() });
            let said = me.call_in(Some(generation), &Caller::root(), all, &[], Room::None);
            // Another session says it anew.
            if let Err(error) = said.map(drop)
                && error != Errno::ECANCELED
            {
                tracing::debug!(%error, "the server waits for what this mount holds until its grace is over");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("names".into()).spawn(say) {
            tracing::warn!(%error, "cannot start a thread: the server waits for this mount until its grace is over");
        }
    }

    /// Which of this mount's sessions at the server it is.
    pub(super) fn generation(&self) -> u64 {
        self.session.read().generation
    }

    /// The same, without a wait: `None` while a new one is being made.
    pub(super) fn generation_now(&self) -> Option<u64> {
        self.session.try_read().map(|session| session.generation)
    }

    /// How long a session lives unheard.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Relaxed))
    }

    /// Hears recalls on one connection until it breaks or the mount ends; each is done by `done`
    /// before it is answered. `joined_in` is told the session's generation first.
    pub(super) fn hear_recalls(
        &self,
        joined_in: impl FnOnce(u64),
        mut handle: impl FnMut(&Recall),
    ) -> Result<()> {
        let joined = {
            let session = self.session.read();
            let Some(attached) = &session.attached else { return Err(Errno::ENOTCONN) };
            (self.join(&session, attached, Purpose::Recalls), session.generation)
        };
        let (joined, generation) = joined;
        let mut link = joined.map_err(|_| Errno::ENOTCONN)?;
        joined_in(generation);
        let mut body = Vec::new();
        loop {
            let header = link.receive(&mut body).map_err(|_| Errno::ECONNRESET)?;
            let recall = header
                .expect(Kind::Recall)
                .and_then(|()| frame::decode::<Recall>(&body))
                .map_err(|_| Errno::EPROTO)?;
            handle(&recall);
            link.send(Kind::Recalled, header.id, &(), &[], None).map_err(|_| Errno::ECONNRESET)?;
        }
    }
}

/// The first call of a connection, which has no session yet.
fn first_call(link: &mut Link, call: Call<'_>) -> std::result::Result<Answer, LinkError> {
    let request = Request {
        session: SessionId(0),
        slot: SlotId(0),
        slot_seq: 0,
        attempt: Attempt::default(),
        caller: Caller::root(),
        cpu: None,
        given_back: GivenBack::default(),
        call,
    };
    link.send(Kind::Call, 0, &request, &[], None)?;
    Ok(link.receive_as::<Response>(Kind::Answer)?.answer)
}

/// An answer to an earlier attempt is none to a later one. None can come on its connection; one that does ends it.
fn is_answer_to(header: &FrameHeader, attempt: u64) -> std::result::Result<(), LinkError> {
    match header.id == attempt {
        true => Ok(()),
        false => Err(LinkError::Io(Errno::EPROTO.into())),
    }
}

fn refused(answer: Answer) -> LinkError {
    match answer {
        Answer::Failed(errno) => LinkError::Io(std::io::Error::from_raw_os_error(errno)),
        _ => LinkError::Closed,
    }
}
