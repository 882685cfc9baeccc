//! Connections to other servers, and questions on them.
//!
//! Invariants: one question is under way on a connection; connections to one server are bounded
//! ([`MAX_LINKS`], idle ones [`MAX_IDLE`]); every question has a time limit; nothing is asked of a
//! server that greets with another identity than the expected one. A connection that broke is
//! dropped, the next question makes a new one; so nothing has to be told of a server's restart.
//!
//! [`Links`] is one for a process (the ledger's); [`BufferPeers`] shows it to one buffer.

use crate::places::{Directory, Places};
use forebay_interfaces::peers::Peers;
use forebay_net::handshake::{self, Credential};
use forebay_net::{Link, LinkError, ServerAddress, Stream, peer};
use forebay_proto::net::auth::{Key, Purpose, Secret};
use forebay_proto::net::frame::{self, FrameError, Kind};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Errno, Result, ServerId, ShardId};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most connections to one server. Who needs another waits.
pub const MAX_LINKS: usize = 64;
/// Most of them that are kept while nothing is asked.
const MAX_IDLE: usize = 16;
/// Longest wait for the answer to one question about a buffer.
pub const QUESTION_LIMIT: Duration = Duration::from_secs(20);
/// The same about staging: each is answered at once, or `Busy`, and asked again without harm. A server
/// that hangs keeps a plan that is stopped no longer than twice this.
const STAGING_LIMIT: Duration = Duration::from_secs(5);
/// A server that could not be reached is not tried again for so long.
const AWAY_PAUSE: Duration = Duration::from_millis(200);

/// A connection, with the time limit that it has now.
struct Open {
    link: Link,
    limit: Option<Duration>,
    next_id: u64,
}

/// Connections to one server.
#[derive(Default)]
struct Line {
    state: Mutex<LineState>,
    freed: Condvar,
}

#[derive(Default)]
struct LineState {
    idle: Vec<Open>,
    /// Idle and in use.
    open: usize,
    away_until: Option<Instant>,
    /// Counts how often it has been heard of: an attempt from before says nothing of it any more.
    heard: u64,
}

/// A place among a line's connections; dropped with its connection unless that is given back.
struct InUse<'a> {
    line: &'a Line,
    open: Option<Open>,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        match self.open.take() {
            Some(open) if state.idle.len() < MAX_IDLE => state.idle.push(open),
            _ => state.open -= 1,
        }
        self.line.freed.notify_one();
    }
}

impl Line {
    /// A connection that is idle, or a place for a new one.
    fn place(&self, deadline: Instant) -> Result<InUse<'_>> {
        let mut state = self.state.lock();
        loop {
            while let Some(open) = state.idle.pop() {
                if is_quiet(&open.link) {
                    return Ok(InUse { line: self, open: Some(open) });
                }
                state.open -= 1;
            }
            if state.away_until.is_some_and(|until| Instant::now() < until) {
                return Err(Errno::EHOSTUNREACH);
            }
            if state.open < MAX_LINKS {
                state.open += 1;
                return Ok(InUse { line: self, open: None });
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return Err(Errno::EHOSTUNREACH);
            }
        }
    }
}

/// Is told of a server that could not be reached.
pub type TellUnreached = Box<dyn Fn(ServerId) + Send + Sync>;

/// Reaches other servers.
pub struct Links {
    key: Secret,
    directory: Arc<Directory>,
    lines: Mutex<HashMap<ServerId, Arc<Line>>>,
    unreached: Mutex<Option<TellUnreached>>,
}

/// Connects, and says who is there.
/// A server, as it runs: another start of it, or a copy of its flash that was started, is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Who.
    pub server: ServerId,
    /// Chosen at the start.
    pub incarnation: u64,
}

fn greet(key: &Secret, address: &ServerAddress) -> std::result::Result<(Link, Start), LinkError> {
    let stream = Stream::connect(address)?;
    let credential = match address {
        // The kernel tells the server who we are, and us who made the socket.
        ServerAddress::Unix(_) => {
            let maker = peer::identify(&stream)?.uid;
            if maker != 0 && maker != rustix::process::geteuid().as_raw() {
                return Err(io::Error::from_raw_os_error(libc::EACCES).into());
            }
            Credential::Peer
        }
        ServerAddress::Tcp { .. } => Credential::Secret(Key::Server, key.clone()),
    };
    let mut link = Link::new(stream);
    let program = env!("CARGO_PKG_VERSION");
    let welcome = handshake::connect(&mut link, program, Purpose::Servers, &credential)?;
    Ok((link, Start { server: ServerId(welcome.server), incarnation: welcome.incarnation }))
}

/// True if nothing came and the peer has not closed it. While nothing is asked nothing may come.
fn is_quiet(link: &Link) -> bool {
    let mut fds = [PollFd::new(link.stream(), PollFlags::IN | PollFlags::RDHUP)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}

impl Links {
    /// With the servers' key; addresses are those of `directory`.
    pub fn new(key: Secret, directory: Arc<Directory>) -> Links {
        Links { key, directory, lines: Mutex::default(), unreached: Mutex::default() }
    }

    /// What is known of the servers.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Who is told of a server that could not be reached: it may have moved. Called from any
    /// thread that asks, so it must return at once.
    pub fn on_unreached(&self, tell: TellUnreached) {
        *self.unreached.lock() = Some(tell);
    }

    /// Asks a server; errors as those of [`Peers::ask`], which see.
    pub fn ask(
        &self,
        server: ServerId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        limit: Duration,
    ) -> Result<Reply> {
        self.addresses(server)?;
        let line = Arc::clone(self.lines.lock().entry(server).or_default());
        let mut used = self.take(&line, server, limit)?;
        let Some(mut open) = used.open.take() else { return Err(Errno::EHOSTUNREACH) };
        match open.exchange(question, payload, room, limit) {
            Ok(reply) => {
                used.open = Some(open);
                match reply {
                    Reply::Failed(errno) => Err(Errno(errno)),
                    reply => Ok(reply),
                }
            }
            // Nothing of it was sent: asking again would not help.
            Err(LinkError::Frame(error @ FrameError::TooLong { .. })) => {
                tracing::error!(%server, %error, "a question to a server was not sent");
                used.open = Some(open);
                Err(Errno::EMSGSIZE)
            }
            Err(error) => {
                tracing::debug!(%server, %error, "a question to a server has no answer");
                Err(Errno::ETIMEDOUT)
            }
        }
    }

    /// A server has been heard of: it is tried again at once.
    pub fn is_back(&self, server: ServerId) {
        if let Some(line) = self.lines.lock().get(&server) {
            let mut state = line.state.lock();
            state.away_until = None;
            state.heard = state.heard.wrapping_add(1);
        }
    }

    /// Asks who serves at an address; nothing is kept of it.
    pub fn who_is_at(&self, address: &ServerAddress) -> std::result::Result<ServerId, LinkError> {
        self.started_at(address).map(|start| start.server)
    }

    /// The same, and which of its starts it is.
    pub fn started_at(&self, address: &ServerAddress) -> std::result::Result<Start, LinkError> {
        greet(&self.key, address).map(|(_, start)| start)
    }

    /// Where a server is, as far as is known now.
    fn addresses(&self, server: ServerId) -> Result<Vec<ServerAddress>> {
        let known = self.directory.get(server).ok_or(Errno::EHOSTUNREACH)?;
        if known.lost { Err(Errno::EIO) } else { Ok(known.addresses) }
    }

    /// A connection that nobody else uses.
    fn take<'a>(&self, line: &'a Line, server: ServerId, limit: Duration) -> Result<InUse<'a>> {
        let deadline = Instant::now() + limit;
        let mut used = line.place(deadline)?;
        if used.open.is_some() {
            return Ok(used);
        }
        loop {
            let heard = line.state.lock().heard;
            let connected = self.connect(server, &self.addresses(server)?);
            let mut state = line.state.lock();
            if let Some(link) = connected {
                state.away_until = None;
                drop(state);
                used.open = Some(Open { link, limit: None, next_id: 0 });
                return Ok(used);
            }
            // It was heard of after this attempt had begun: that says more than the failure does.
            if state.heard != heard && Instant::now() < deadline {
                continue;
            }
            state.away_until = Some(Instant::now() + AWAY_PAUSE);
            drop(state);
            if let Some(tell) = &*self.unreached.lock() {
                tell(server);
            }
            return Err(Errno::EHOSTUNREACH);
        }
    }

    /// A new connection. Sockets of this node first: they are the fastest, and where the path is
    /// another node's they fail at once.
    fn connect(&self, server: ServerId, addresses: &[ServerAddress]) -> Option<Link> {
        let unix = |address: &&ServerAddress| matches!(address, ServerAddress::Unix(_));
        let (near, far): (Vec<_>, Vec<_>) = addresses.iter().partition(unix);
        for address in near.into_iter().chain(far) {
            match greet(&self.key, address) {
                Ok((link, start)) if start.server == server => return Some(link),
                Ok((_, Start { server: other, .. })) => {
                    tracing::debug!(%server, %address, %other, "another server is there");
                }
                Err(error) => tracing::debug!(%server, %address, %error, "not reached"),
            }
        }
        None
    }
}

impl Open {
    fn exchange(
        &mut self,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        limit: Duration,
    ) -> std::result::Result<Reply, LinkError> {
        if self.limit != Some(limit) {
            self.link.set_timeouts(Some(limit), Some(limit))?;
            self.limit = Some(limit);
        }
        self.next_id += 1;
        match question {
            Question::Pool(told) => {
                let sealed = self.link.seal(self.next_id, told)?;
                let question = Question::Pool(&sealed);
                self.link.send(Kind::Server, self.next_id, &question, payload, None)?;
            }
            plain => self.link.send(Kind::Server, self.next_id, plain, payload, None)?,
        }
        let mut body = Vec::new();
        let header = self.link.receive(&mut body)?;
        header.expect(Kind::ServerReply)?;
        if header.id != self.next_id {
            return Err(LinkError::Io(Errno::EPROTO.into()));
        }
        self.link.payload_vec(&header, room)?;
        let mut reply = frame::decode(&body)?;
        if let Reply::Pool(told) = &mut reply {
            *told = self.link.open(header.id, told)?;
        }
        Ok(reply)
    }
}

/// The other servers of one buffer.
pub struct BufferPeers {
    links: Arc<Links>,
    places: Arc<Places>,
    mine: ShardId,
    buffer: u128,
}

impl BufferPeers {
    /// As seen from the server of part `mine`.
    pub fn new(links: Arc<Links>, places: Arc<Places>, mine: ShardId, buffer: u128) -> BufferPeers {
        BufferPeers { links, places, mine, buffer }
    }
}

impl Peers for BufferPeers {
    fn mine(&self) -> ShardId {
        self.mine
    }

    fn count(&self) -> u16 {
        self.places.count()
    }

    fn buffer(&self) -> u128 {
        self.buffer
    }

    fn is_lost(&self, shard: ShardId) -> bool {
        self.places.is_lost(shard)
    }

    fn name(&self, shard: ShardId) -> String {
        let places = self.places.shards();
        let place = places.get(usize::from(shard.0));
        match place.and_then(|place| place.addresses.first()) {
            Some(address) => address.clone(),
            None => format!("the server of part {}", shard.0),
        }
    }

    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        let server = self.places.server(to).ok_or(Errno::EINVAL)?;
        let limit = match question {
            Question::Staging { .. } => STAGING_LIMIT,
            _ => QUESTION_LIMIT,
        };
        self.links.ask(server, question, payload, room, limit)
    }

    fn ask_within(&self, to: ShardId, question: &Question<'_>, limit: Duration) -> Result<Reply> {
        let server = self.places.server(to).ok_or(Errno::EINVAL)?;
        self.links.ask(server, question, &[], &mut Vec::new(), limit)
    }
}
