//! One connection, from its greeting to its end.

use super::{Backend, Connections, MAX_CONNECTIONS, WRITE_TIMEOUT};
use crate::session::{Session, Sessions};
use forebay_awake::Follower;
use forebay_net::handshake::{self, HANDSHAKE_TIMEOUT};
use forebay_net::peer;
use forebay_net::{Link, LinkError, Pipes, Stream};
use forebay_proto::Errno;
use forebay_proto::net::auth::{Purpose, Refusal};
use forebay_proto::net::frame::{self, FrameError, FrameHeader, Kind};
use forebay_proto::net::ledger::LedgerRequest;
use forebay_proto::net::node::NodeRequest;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::{Answer, Call, Request, Response};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A place among the connections, given back when the connection ends.
struct Place {
    id: u64,
    connections: Arc<Connections>,
    is_unix: bool,
    greeting: bool,
}

impl Place {
    fn take(connections: &Arc<Connections>, stream: &Stream) -> Option<Place> {
        let id = connections.next.fetch_add(1, Ordering::Relaxed);
        let is_unix = stream.is_unix();
        let mut open = connections.open.lock();
        if open.len() >= MAX_CONNECTIONS {
            return None;
        }
        // Without a second handle it could not be ended from outside.
        open.insert(id, stream.try_clone().ok()?);
        if let Some(other) = connections.greeting.enter(id, stream)
            && let Some(other) = open.get(&other)
        {
            // It hears nothing more, so that its thread wakes, and tells it why.
            other.shutdown_receive();
        }
        drop(open);
        Some(Place { id, connections: Arc::clone(connections), is_unix, greeting: true })
    }

    /// It has proven who it is; false if it had to give way before that.
    fn greeted(&mut self) -> bool {
        let was_greeting = std::mem::replace(&mut self.greeting, false);
        !was_greeting || self.connections.greeting.leave(self.id, self.is_unix)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.greeted();
        self.connections.open.lock().remove(&self.id);
    }
}

fn too_many() -> Refusal {
    Refusal {
        errno: libc::EAGAIN,
        why: "the server has too many connections".into(),
        hint: Some("try again later".into()),
    }
}

/// Gives a new connection its thread, or says why not.
pub(super) fn admit<B: Backend>(backend: &Arc<B>, connections: &Arc<Connections>, stream: Stream) {
    let Some(place) = Place::take(connections, &stream) else {
        let mut link = Link::new(stream);
        // Full: a peer that does not read this now gets a closed connection.
        if link.set_timeouts(None, Some(std::time::Duration::from_millis(100))).is_ok() {
            link.refuse(&too_many());
        }
        return;
    };
    let backend = Arc::clone(backend);
    let serve = move || {
        let mut place = place;
        let name = stream.peer_name();
        let mut link = Link::new(stream);
        let conversed = converse(&*backend, &mut link, &mut place);
        if place.greeting && !place.greeted() {
            tracing::debug!(peer = name, "a connection gave way before it said who it is");
            link.refuse(&too_many());
            return;
        }
        match conversed {
            Ok(()) | Err(LinkError::Closed) => {}
            Err(LinkError::Frame(error)) => {
                tracing::warn!(peer = name, %error, "a connection made no sense");
                link.refuse(&Refusal { errno: libc::EPROTO, why: error.to_string(), hint: None });
            }
            Err(LinkError::Refused(refusal)) => {
                tracing::warn!(peer = name, why = refusal.why, "a connection was refused");
                link.refuse(&refusal);
            }
            Err(error) => tracing::debug!(peer = name, %error, "a connection ended"),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("conn".into()).spawn(serve) {
        tracing::warn!(%error, "cannot start a thread for a connection");
    }
}

fn converse<B: Backend>(backend: &B, link: &mut Link, place: &mut Place) -> Result<(), LinkError> {
    let program = env!("CARGO_PKG_VERSION");
    let (server, incarnation) = (backend.server(), backend.incarnation());
    let greeted = handshake::accept(link, program, server, incarnation, backend)?;
    let peer = match link.stream().is_unix() {
        true => Some(peer::identify(link.stream())?),
        false => None,
    };
    let who = backend.identify(&greeted, peer).map_err(LinkError::Refused)?;
    if !place.greeted() {
        return Err(LinkError::Refused(too_many()));
    }
    link.set_timeouts(None, Some(WRITE_TIMEOUT))?;
    match greeted.purpose {
        Purpose::Ledger => ledger(backend, &who, link),
        Purpose::Calls => calls(backend, &who, link),
        Purpose::Recalls => recalls(backend, &who, link),
        Purpose::Servers => servers(backend, &who, link),
        Purpose::Node => node(backend, &who, link),
    }
}

fn node<B: Backend>(backend: &B, who: &B::Who, link: &mut Link) -> Result<(), LinkError> {
    backend.is_agent(who).map_err(LinkError::Refused)?;
    loop {
        let (id, request): (u64, NodeRequest) = link.receive_json(Kind::Node)?;
        let reply = backend.node(request);
        link.send_json(Kind::NodeReply, id, &reply)?;
    }
}

fn ledger<B: Backend>(backend: &B, who: &B::Who, link: &mut Link) -> Result<(), LinkError> {
    loop {
        let (id, request): (u64, LedgerRequest) = link.receive_json(Kind::Ledger)?;
        let reply = backend.answer(who, request);
        link.send_json(Kind::LedgerReply, id, &reply)?;
    }
}

fn servers<B: Backend>(backend: &B, who: &B::Who, link: &mut Link) -> Result<(), LinkError> {
    backend.is_server(who).map_err(LinkError::Refused)?;
    let (mut body, mut payload, mut room) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let header = link.receive(&mut body)?;
        forebay_awake::request();
        header.expect(Kind::Server)?;
        link.payload_vec(&header, &mut payload)?;
        let mut question: Question<'_> = frame::decode_borrowed(&body)?;
        room.clear();
        let opened;
        if let Question::Pool(sealed) = question {
            opened = link.open(header.id, sealed)?;
            question = Question::Pool(&opened);
        }
        let mut reply = backend.question(&question, &payload, &mut room);
        if let Reply::Pool(told) = &mut reply {
            *told = link.seal(header.id, told)?;
        }
        link.send(Kind::ServerReply, header.id, &reply, &room, None)?;
    }
}

/// The process of a mount on this node, if it is the one that connected.
fn watch_process(link: &Link, session: &Session) {
    let stream = link.stream();
    let pid = session.pid();
    let connected = stream.is_unix() && peer::identify(stream).is_ok_and(|who| who.pid == pid);
    if let Some(process) = connected.then(|| peer::Process::of(stream)).flatten() {
        session.lives_with(process);
    }
}

/// Pipes for a connection of calls on this node. Without descriptors to spare it goes without.
fn pipes_for(link: &Link, call: &Call<'_>) -> Option<(Pipes, [OwnedFd; 2])> {
    match call {
        Call::Join { .. } if link.stream().is_unix() => Pipes::pair().ok(),
        _ => None,
    }
}

/// The first call of a connection says which session it belongs to.
fn enter<B: Backend>(
    backend: &B,
    who: &B::Who,
    link: &mut Link,
    header: &FrameHeader,
    body: &[u8],
) -> Result<(Arc<Sessions>, Arc<Session>), LinkError> {
    header.expect(Kind::Call)?;
    link.no_payload(header)?;
    let request: Request<'_> = frame::decode_borrowed(body)?;
    let pipes = pipes_for(link, &request.call);
    let (sessions, entered) = match request.call {
        Call::Attach(attach) => {
            let sessions = backend.sessions(who, &attach.buffer).map_err(LinkError::Refused)?;
            let acts_as = backend.acts_as(who, &attach.buffer).map_err(LinkError::Refused)?;
            let entered = sessions.attach(attach, acts_as).map(|(session, attached)| {
                watch_process(link, &session);
                (session, Answer::Attached(Box::new(attached)))
            });
            (sessions, entered)
        }
        Call::Join { buffer, key } => {
            let sessions = backend.sessions(who, buffer).map_err(LinkError::Refused)?;
            let entered = sessions.join(&key).map(|session| {
                // Attached over TCP, and the server turned out to be near.
                watch_process(link, &session);
                (session, Answer::Done)
            });
            (sessions, entered)
        }
        _ => {
            return Err(FrameError::Body("a call before Attach or Join".into()).into());
        }
    };
    match entered {
        Ok((session, answer)) => {
            let response = Response::from(answer);
            match pipes {
                None => link.send(Kind::Answer, header.id, &response, &[], None)?,
                Some((ours, theirs)) => {
                    let ends = theirs.each_ref().map(|end| end.as_fd());
                    link.send_with(Kind::Answer, header.id, &response, &ends)?;
                    link.set_pipes(ours, false);
                }
            }
            Ok((sessions, session))
        }
        Err(errno) => {
            let response = Response::from(Answer::failed(errno));
            link.send(Kind::Answer, header.id, &response, &[], None)?;
            Err(LinkError::Closed)
        }
    }
}

fn calls<B: Backend>(backend: &B, who: &B::Who, link: &mut Link) -> Result<(), LinkError> {
    let mut body = Vec::new();
    let header = link.receive(&mut body)?;
    let (sessions, session) = enter(backend, who, link, &header, &body)?;
    let local = link.stream().is_unix();
    let (mut payload, mut room) = (Vec::new(), Vec::new());
    let mut follower = Follower::new();
    loop {
        let header = link.receive(&mut body)?;
        forebay_awake::request();
        header.expect(Kind::Call)?;
        link.payload_vec(&header, &mut payload)?;
        let request: Request<'_> = frame::decode_borrowed(&body)?;
        if request.session != session.id() {
            return Err(FrameError::Body("a call for another session".into()).into());
        }
        follower.asked_from(request.cpu);
        let reply = sessions.call(&session, &request, &payload, &mut room, local);
        let fd = reply.file.as_ref().map(|file| file.as_fd());
        let payload = &room[..reply.payload_bytes];
        let response = Response { answer: reply.answer, dirs: reply.dirs };
        link.send(Kind::Answer, header.id, &response, payload, fd)?;
    }
}

fn recalls<B: Backend>(backend: &B, who: &B::Who, link: &mut Link) -> Result<(), LinkError> {
    let mut body = Vec::new();
    let header = link.receive(&mut body)?;
    let (sessions, session) = enter(backend, who, link, &header, &body)?;
    // A client that is gone is noticed by TCP, one that does not answer by this limit.
    link.set_timeouts(Some(HANDSHAKE_TIMEOUT), Some(WRITE_TIMEOUT))?;
    sessions.serve_recalls(&session, |id, recall| {
        link.send(Kind::Recall, id, &recall, &[], None)?;
        let header = link.receive(&mut body)?;
        header.expect(Kind::Recalled)?;
        link.no_payload(&header)?;
        match header.id == id {
            true => Ok(()),
            false => Err(LinkError::Io(Errno::EPROTO.into())),
        }
    })
}
