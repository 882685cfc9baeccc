//! Connections to other servers, and questions on them.
//!
//! Invariants: one question is under way on a connection; connections to one server are bounded
//! ([`MAX_LINKS`], idle ones [`MAX_IDLE`]); every question has a time limit; nothing is asked of a
//! server that greets with another identity than the expected one. A connection that broke is
//! dropped, the next question makes a new one; so nothing has to be told of a server's restart.
//!
//! Why a server does not answer is kept ([`Silence`]) for error messages. A caller that only asks how it is ([`Links::ask_soon`])
//! does not wait again and again for one that was silent a moment ago, nor for a process that is stopped.
//!
//! [`Links`] is one for a process (the ledger's); [`BufferPeers`] shows it to one buffer.

use crate::places::{Directory, Places};
use forebay_interfaces::peers::Peers;
use forebay_net::handshake::{self, Credential, HANDSHAKE_TIMEOUT};
use forebay_net::peer::ARE_STOPPED;
use forebay_net::stream::CONNECT_TIMEOUT;
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

/// So long after a server was silent it is waited for less ([`Links::ask_soon`]).
const SILENT_FOR: Duration = Duration::from_secs(10);
/// Shortest wait for one of several addresses of a server.
const ADDRESS_LIMIT_LEAST: Duration = Duration::from_millis(100);

/// A question about a buffer that has waited for so long is a reason to look whether the server's process is stopped.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// One that has waited for so long is not answered, whatever the reason is.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// What such a look found holds for so long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for a connection by which only the process is seen that listens. The kernel makes it, not the process.
const LOOK_CONNECT: Duration = Duration::from_millis(100);

/// Why a server did not answer when it was last asked; of several addresses what tells most, which is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Silence {
    /// Nobody listens where it was.
    Refused,
    /// Another server is there, or it does not know this one's key, or it closed the connection.
    Other,
    /// It did not answer in time, or its node did not.
    Silent,
    /// Its process, on this node, is stopped.
    Stopped(u32),
}

/// When a server was first silent after it had been asked with all patience, and why.
#[derive(Clone, Copy)]
struct Noted {
    why: Silence,
    at: Instant,
}

/// How long a server is waited for.
#[derive(Clone, Copy)]
struct Wait {
    /// For a place among its connections, and for its answer.
    limit: Duration,
    /// For each of its answers to a greeting.
    greeting: Duration,
    /// All its addresses share that time, and a process that is stopped is not waited for.
    soon: bool,
    /// Less than all patience: it was silent a moment ago.
    again: bool,
}

/// Why nobody was greeted.
struct NotGreeted {
    error: LinkError,
    /// The process that listens there.
    process: Option<u32>,
}

impl From<io::Error> for NotGreeted {
    fn from(error: io::Error) -> NotGreeted {
        NotGreeted { error: error.into(), process: None }
    }
}

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
    /// Since its last answer it did not answer.
    silence: Option<Noted>,
    /// Since when questions about buffers wait.
    asked: Vec<Instant>,
    /// What a look while a question waited found, and when.
    looked: Option<(Instant, Silence)>,
}

/// A question about a buffer that waits for its answer.
struct Waiting {
    line: Arc<Line>,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        if let Some(place) = state.asked.iter().position(|since| *since == self.since) {
            state.asked.swap_remove(place);
        }
    }
}

impl LineState {
    /// How long the oldest question about a buffer has waited, if that is long.
    fn waits(&self) -> Option<Duration> {
        let oldest = self.asked.iter().map(Instant::elapsed).max()?;
        (oldest >= LOOK_AFTER).then_some(oldest)
    }

    /// True while it is not tried again. One that was stopped is, as soon as it goes on.
    fn is_away(&self) -> bool {
        let pauses = self.away_until.is_some_and(|until| Instant::now() < until);
        let goes_on = || match self.silence {
            Some(Noted { why: Silence::Stopped(pid), .. }) => !peer::is_stopped(pid),
            _ => false,
        };
        pauses && !goes_on()
    }

    /// It answered: another question that failed meanwhile keeps nobody from asking it.
    fn answered(&mut self) {
        self.silence = None;
        self.away_until = None;
        self.heard = self.heard.wrapping_add(1);
    }

    fn note_silence(&mut self, why: Silence, wait: &Wait) {
        let at = match self.silence {
            // Else one that is slow would never be waited for again.
            Some(noted) if wait.again => noted.at,
            _ => Instant::now(),
        };
        self.silence = Some(Noted { why, at });
    }
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
            if state.is_away() {
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

/// A server, as it runs: another start of it, or a copy of its flash that was started, is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// Who.
    pub server: ServerId,
    /// Chosen at the start.
    pub incarnation: u64,
}

/// Connects, and says who is there. `soon`: a process that is stopped is not waited for.
fn greet(
    key: &Secret,
    address: &ServerAddress,
    limit: Duration,
    soon: bool,
) -> std::result::Result<(Link, Start), NotGreeted> {
    let stream = Stream::connect_within(address, limit.min(CONNECT_TIMEOUT))?;
    let process = peer::process(&stream);
    if soon && process.is_some_and(peer::stays_stopped) {
        return Err(NotGreeted { error: timed_out(), process });
    }
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
    let (program, purpose) = (env!("CARGO_PKG_VERSION"), Purpose::Servers);
    let welcome = handshake::connect_within(&mut link, program, purpose, &credential, limit)
        .map_err(|error| NotGreeted { error, process })?;
    Ok((link, Start { server: ServerId(welcome.server), incarnation: welcome.incarnation }))
}

fn timed_out() -> LinkError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// What a failure at one of its addresses says of a server. `process` listens there, if that is known.
fn silence_of(error: &LinkError, address: &ServerAddress, process: Option<u32>) -> Silence {
    use io::ErrorKind as Kind;
    let LinkError::Io(error) = error else { return Silence::Other };
    match error.kind() {
        Kind::ConnectionRefused | Kind::NotFound => Silence::Refused,
        Kind::WouldBlock | Kind::TimedOut => {
            let stopped = process.filter(|pid| peer::is_stopped(*pid));
            let stopped = stopped.or_else(|| peer::stopped_listener(address));
            stopped.map_or(Silence::Silent, Silence::Stopped)
        }
        Kind::HostUnreachable | Kind::NetworkUnreachable => Silence::Silent,
        _ => Silence::Other,
    }
}

/// Why a server whose connection stands does not answer, as far as the kernel shows it: nothing is asked of it.
fn look(address: &ServerAddress) -> Silence {
    let process = match address {
        ServerAddress::Unix(_) => {
            let stream = Stream::connect_within(address, LOOK_CONNECT);
            stream.ok().and_then(|stream| peer::process(&stream))
        }
        ServerAddress::Tcp { .. } => None,
    };
    silence_of(&timed_out(), address, process)
}

/// Why a server does not answer, with what to do. `at`: its addresses, as ` at ADDRESS`; `asked`: how a command names a
/// server that does, as ` --server ADDRESS`.
pub fn told(silence: Option<Silence>, at: &str, asked: &str) -> (String, String) {
    match silence {
        Some(Silence::Stopped(pid)) => (
            format!("its process {pid} is {ARE_STOPPED}"),
            format!("`kill -CONT {pid}` lets it go on; nothing is lost meanwhile"),
        ),
        Some(Silence::Silent) => (
            format!("it gives no answer{at}"),
            "is its process stopped, or its node away? On its node `pgrep forebay | xargs ps -o pid,stat,args -p` \
             shows the process: `kill -CONT PID` lets one in state T go on; its log tells more"
                .into(),
        ),
        Some(Silence::Other) => (
            format!("it cannot be reached{at}"),
            "something else is there, or it has another key; the logs of both servers tell more".into(),
        ),
        Some(Silence::Refused) => (
            format!("it cannot be reached{at}"),
            format!("is `forebay serve` running there? `forebay pool status{asked}` shows the servers"),
        ),
        None => (
            format!("it gave no answer{at}"),
            "the connection broke, or nobody knows where it is; its log tells more".into(),
        ),
    }
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
        let wait = Wait { limit, greeting: HANDSHAKE_TIMEOUT, soon: false, again: false };
        self.ask_waiting(server, question, payload, room, wait)
    }

    /// The same of who is only asked how it is: `limit` is that of the greeting too, over all its addresses; one that
    /// was silent a moment ago is given `again`; and a process of this node that is stopped is not waited for.
    pub fn ask_soon(
        &self,
        server: ServerId,
        question: &Question<'_>,
        limit: Duration,
        again: Duration,
    ) -> Result<Reply> {
        let noted = self.known_line(server).and_then(|line| line.state.lock().silence);
        let was_silent = noted
            .is_some_and(|noted| noted.why >= Silence::Silent && noted.at.elapsed() < SILENT_FOR);
        let limit = if was_silent { again } else { limit };
        let wait = Wait { limit, greeting: limit, soon: true, again: was_silent };
        let until = Instant::now() + limit;
        // Connections that are kept may be broken, all of them, which is seen only when they are used: then a new one is made.
        for _ in 0..MAX_IDLE {
            match self.ask_waiting(server, question, &[], &mut Vec::new(), wait) {
                Err(Errno::ETIMEDOUT)
                    if self.silence(server).is_none() && Instant::now() < until => {}
                answer => return answer,
            }
        }
        self.ask_waiting(server, question, &[], &mut Vec::new(), wait)
    }

    /// Of a server that was asked already.
    fn known_line(&self, server: ServerId) -> Option<Arc<Line>> {
        self.lines.lock().get(&server).cloned()
    }

    fn ask_waiting(
        &self,
        server: ServerId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
        wait: Wait,
    ) -> Result<Reply> {
        self.addresses(server)?;
        let line = Arc::clone(self.lines.lock().entry(server).or_default());
        let mut used = self.take(&line, server, wait)?;
        let Some(mut open) = used.open.take() else { return Err(Errno::EHOSTUNREACH) };
        let process = peer::process(open.link.stream());
        if let (true, Some(pid)) = (wait.soon, process)
            && peer::stays_stopped(pid)
        {
            line.state.lock().note_silence(Silence::Stopped(pid), &wait);
            used.open = Some(open);
            return Err(Errno::EHOSTUNREACH);
        }
        match open.exchange(question, payload, room, wait.limit) {
            Ok(reply) => {
                line.state.lock().answered();
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
                // A connection that broke says nothing of why; a process that is stopped does.
                let is_late = error.is_timeout();
                let error = if is_late { error } else { timed_out() };
                let why = self.why_silent(server, &error, process);
                if is_late || matches!(why, Silence::Stopped(_)) {
                    line.state.lock().note_silence(why, &wait);
                }
                Err(Errno::ETIMEDOUT)
            }
        }
    }

    /// Why a server did not answer on a connection that it had taken.
    fn why_silent(&self, server: ServerId, error: &LinkError, process: Option<u32>) -> Silence {
        let addresses = self.addresses(server).unwrap_or_default();
        let whys = addresses.iter().map(|address| silence_of(error, address, process));
        whys.max().unwrap_or(Silence::Silent)
    }

    /// Why a server does not answer, if it did not when it was last asked.
    pub fn silence(&self, server: ServerId) -> Option<Silence> {
        let noted = self.known_line(server)?.state.lock().silence;
        noted.map(|noted| noted.why)
    }

    /// The same for an error message: a process of this node that is stopped is looked for, unless it is known that one is, or that
    /// nobody listens. What was noted may be from a moment before: a server that was silent then is not tried again at once.
    pub fn silence_or_seen(&self, server: ServerId) -> Option<Silence> {
        match self.silence(server) {
            known @ Some(Silence::Stopped(_) | Silence::Refused) => known,
            known => self.seen_stopped(server).or(known),
        }
    }

    /// The same for the error that ends a question, which is the last that is said: a process that is not seen is looked for again.
    pub fn silence_at_last(&self, server: ServerId) -> Option<Silence> {
        match self.silence_or_seen(server) {
            known @ Some(Silence::Stopped(_) | Silence::Refused) => known,
            known => {
                std::thread::sleep(peer::SECOND_LOOK);
                self.seen_stopped(server).or(known)
            }
        }
    }

    /// Its process, if that is on this node, and stopped now.
    fn seen_stopped(&self, server: ServerId) -> Option<Silence> {
        let addresses = self.addresses(server).ok()?;
        let is_stopped = |why: &Silence| matches!(why, Silence::Stopped(_));
        addresses.iter().map(look).filter(is_stopped).max()
    }

    /// A question about a buffer begins to wait.
    fn begins_to_wait(&self, server: ServerId) -> Waiting {
        let line = Arc::clone(self.lines.lock().entry(server).or_default());
        let since = Instant::now();
        line.state.lock().asked.push(since);
        Waiting { line, since }
    }

    /// True while a question about a buffer waits for it for long.
    fn is_waited_for(&self, server: ServerId) -> bool {
        self.known_line(server).is_some_and(|line| line.state.lock().waits().is_some())
    }

    /// The same as [`Links::silence`], also while a question still waits.
    pub fn silence_now(&self, server: ServerId) -> Option<Silence> {
        let line = self.known_line(server)?;
        let (waits, looked) = {
            let state = line.state.lock();
            if let Some(noted) = state.silence {
                return Some(noted.why);
            }
            (state.waits()?, state.looked)
        };
        let why = match looked.filter(|(at, _)| at.elapsed() < LOOK_AGAIN) {
            Some((_, why)) => why,
            None => {
                let addresses = self.addresses(server).ok()?;
                let why = addresses.iter().map(look).max()?;
                line.state.lock().looked = Some((Instant::now(), why));
                why
            }
        };
        (matches!(why, Silence::Stopped(_)) || waits >= SILENT_AFTER).then_some(why)
    }

    /// A server has been heard of: it is tried again at once.
    pub fn is_back(&self, server: ServerId) {
        if let Some(line) = self.lines.lock().get(&server) {
            let mut state = line.state.lock();
            state.answered();
        }
    }

    /// Asks who serves at an address; nothing is kept of it.
    pub fn who_is_at(&self, address: &ServerAddress) -> std::result::Result<ServerId, LinkError> {
        self.started_at(address).map(|start| start.server)
    }

    /// The same, and which of its starts it is.
    pub fn started_at(&self, address: &ServerAddress) -> std::result::Result<Start, LinkError> {
        let greeted = greet(&self.key, address, HANDSHAKE_TIMEOUT, false);
        greeted.map(|(_, start)| start).map_err(|failed| failed.error)
    }

    /// Where a server is, as far as is known now.
    fn addresses(&self, server: ServerId) -> Result<Vec<ServerAddress>> {
        let known = self.directory.get(server).ok_or(Errno::EHOSTUNREACH)?;
        if known.lost { Err(Errno::EIO) } else { Ok(known.addresses) }
    }

    /// A connection that nobody else uses.
    fn take<'a>(&self, line: &'a Line, server: ServerId, wait: Wait) -> Result<InUse<'a>> {
        let deadline = Instant::now() + wait.limit;
        let mut used = line.place(deadline)?;
        if used.open.is_some() {
            return Ok(used);
        }
        loop {
            let heard = line.state.lock().heard;
            let connected = self.connect(server, &self.addresses(server)?, wait);
            let mut state = line.state.lock();
            let why = match connected {
                Ok(link) => {
                    state.away_until = None;
                    drop(state);
                    used.open = Some(Open { link, limit: None, next_id: 0 });
                    return Ok(used);
                }
                Err(why) => why,
            };
            // It was heard of, or has answered another question, after this attempt had begun: that says more than the failure
            // does. A greeting that began while it was stopped may be lost.
            if state.heard != heard && Instant::now() < deadline {
                continue;
            }
            state.note_silence(why, &wait);
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
    fn connect(
        &self,
        server: ServerId,
        addresses: &[ServerAddress],
        wait: Wait,
    ) -> std::result::Result<Link, Silence> {
        let unix = |address: &&ServerAddress| matches!(address, ServerAddress::Unix(_));
        let (near, far): (Vec<_>, Vec<_>) = addresses.iter().partition(unix);
        let until = Instant::now() + wait.greeting;
        let mut why: Option<Silence> = None;
        for address in near.into_iter().chain(far) {
            let limit = match wait.soon {
                true => until.saturating_duration_since(Instant::now()).max(ADDRESS_LIMIT_LEAST),
                false => wait.greeting,
            };
            let failed = match greet(&self.key, address, limit, wait.soon) {
                Ok((link, start)) if start.server == server => return Ok(link),
                Ok((_, Start { server: other, .. })) => {
                    tracing::debug!(%server, %address, %other, "another server is there");
                    Silence::Other
                }
                Err(NotGreeted { error, process }) => {
                    tracing::debug!(%server, %address, %error, "not reached");
                    silence_of(&error, address, process)
                }
            };
            why = why.max(Some(failed));
            // Its other addresses would be waited for as long.
            if wait.soon && matches!(failed, Silence::Stopped(_)) {
                break;
            }
        }
        Err(why.unwrap_or(Silence::Other))
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
    /// As seen from the server of shard `mine`.
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
            None => format!("the server of shard {}", shard.0),
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
        let _waiting = self.links.begins_to_wait(server);
        self.links.ask(server, question, payload, room, limit)
    }

    fn is_waited_for(&self, shard: ShardId) -> bool {
        self.places.server(shard).is_some_and(|server| self.links.is_waited_for(server))
    }

    fn why_silent(&self, shard: ShardId) -> Option<String> {
        let silence = self.links.silence_now(self.places.server(shard)?)?;
        // Where it is, who asks says itself.
        let (why, hint) = told(Some(silence), "", "");
        Some(format!("{why} ({hint})"))
    }

    fn ask_within(&self, to: ShardId, question: &Question<'_>, limit: Duration) -> Result<Reply> {
        let server = self.places.server(to).ok_or(Errno::EINVAL)?;
        self.links.ask(server, question, &[], &mut Vec::new(), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answered_is_asked_also_right_after_another_question_failed() {
        const LONG: Duration = Duration::from_secs(60);
        let noted = Noted { why: Silence::Silent, at: Instant::now() };
        // A connection was not made in time, as the server was stopped; it goes on, and answers on another one.
        let away_until = Some(Instant::now() + LONG);
        let mut state = LineState { away_until, silence: Some(noted), ..LineState::default() };
        assert!(state.is_away());
        state.answered();
        assert!(!state.is_away(), "nobody would know why it is not asked");
        assert!(state.silence.is_none());
        assert_eq!(state.heard, 1, "an attempt from before says nothing any more");
    }
}
