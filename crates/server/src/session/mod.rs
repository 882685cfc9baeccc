//! Sessions: what each mount of a served buffer holds at this server, and its calls.
//!
//! | module | what it does |
//! | --- | --- |
//! | `buffer_type` | what differs between types of buffer; `scratch`, `cached` are the types |
//! | `calls`, `calls_locks`, `names` | from a call to its answer: what all types share |
//! | `attempts` | what answers gave that their mount has not heard |
//! | `sizes` | turns of calls that change the size of a file |
//! | `changes` | recalls before a change, order of changes in a directory |
//! | `inodes` | what references are to |
//! | `calls_servers` | questions of the servers of other shards |
//! | `private` | the root of a mount where each node has a namespace of its own |
//! | `grace` | clients of an earlier start of the server |
//! | `taken` | locks that others got while their mount was away, for the next start |
//!
//! Leases, recalls and the slots of calls are `forebay-lease`, locks `forebay-locks`.
//!
//! Invariants
//! * A call that is sent again gives once: what the answer of an earlier attempt gave, which the client did not hear, is taken
//!   back.
//! * What a client gives back is bounded by what this server gave it: no client can take another
//!   one's references, locks or leases.
//! * A session ends once: detached, or not heard of for the lease, or deaf to a recall for as
//!   long, or when its mount's process has died on this node; all it held is then given back. Calls of an ended session are answered so.
//!   Time in which this process itself was held up does not count.
//! * No lock is held while a client is waited for, but for the order lock of the directory that
//!   is being changed; a client never needs that lock to answer a recall.
//!
//! Made by whoever serves a buffer (`net`); one [`Sessions`] for each buffer.

mod attempts;
mod buffer_type;
mod cached;
mod calls;
mod calls_locks;
mod calls_servers;
mod changes;
mod grace;
mod inodes;
mod names;
mod private;
mod scratch;
mod sizes;
mod taken;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_cache;
#[cfg(test)]
mod tests_locks;

pub use calls::Reply;

use crate::metrics::CallCounts;
use crate::places::Places;
use attempts::Attempts;
use buffer_type::BufferType;
use cached::Cached;
use forebay_cache::CacheFs;
use forebay_interfaces::references::References;
use forebay_lease::leases::Leases;
use forebay_lease::recall::Channel;
use forebay_lease::slots::{OldClients, Slots};
use forebay_locks::LockTable;
use forebay_namespace::Namespace;
use forebay_net::peer::Process;
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::ledger::{AccessMode, MountedClient};
use forebay_proto::net::session::{
    Attach, Attached, CacheFacts, ClientId, NodeId, SessionId, SessionKey,
};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId, Timing};
use grace::Grace;
use inodes::Inodes;
use parking_lot::Mutex;
use scratch::Scratch;
use sizes::Sizes;
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use taken::Taken;

/// Most sessions of one buffer.
pub const MAX_SESSIONS: usize = 1024;
/// How often ended sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// A wait that ends so much too late was held up together with the whole process. Shorter delays are those of busy
/// processors, and change nothing.
const HELD_UP_LEAST: Duration = Duration::from_secs(1);
/// A client that has attached makes its connection for recalls within that time, or never.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked, while a client's answer is waited for, whether its process has died.
const DEATH_LOOK: Duration = Duration::from_millis(20);
/// Why a session has ended.
const DEAD: &str = "its mount's process has died";

/// Sessions are numbered over all buffers of the process.
static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

/// What the sessions of a buffer tell their clients about it.
#[derive(Clone, Debug)]
pub struct BufferFacts {
    /// Identity, 32 hex digits.
    pub uuid: String,
    /// Part of the namespace served here.
    pub shard: ShardId,
    /// Where all parts are.
    pub places: Arc<Places>,
    /// Counts the server's starts.
    pub incarnation: u64,
    /// Where the server runs.
    pub node: NodeId,
    /// Its Unix socket.
    pub unix_socket: Option<std::path::PathBuf>,
    /// See [`Attached::volatile`].
    pub volatile: bool,
    /// See [`Attached::gives_objects`].
    pub gives_objects: bool,
    /// Capacity.
    pub capacity_bytes: u64,
    /// Each node has a namespace of its own, whose root belongs to this user and group.
    pub private: Option<(u32, u32)>,
    /// Of a cache: what its mounts must know.
    pub cache: Option<CacheFacts>,
}

impl BufferFacts {
    /// True if no mount may change anything.
    fn is_read_only(&self) -> bool {
        self.cache.is_some_and(|facts| facts.access == AccessMode::Ldbalance)
    }
}

/// One mount at this server.
pub struct Session {
    id: SessionId,
    key: u128,
    attach: Attach,
    /// Whose rights its calls have on a PFS, if it is not believed who they say they are.
    acts_as: Option<Caller>,
    /// It ends when nothing was heard of it for so long.
    lease: Duration,
    begun: Instant,
    heard: Mutex<Instant>,
    /// Calls being done: it is not silent meanwhile.
    busy: AtomicUsize,
    channel: Channel,
    slots: Arc<Slots>,
    attempts: Attempts,
    /// References given and not taken back.
    held: Mutex<HashMap<Ino, u64, foldhash::fast::RandomState>>,
    /// Opens of a cache's files.
    opens: Mutex<cached::Opens>,
    over: AtomicBool,
    /// Its client will not come back.
    detached: AtomicBool,
    /// The client's process, if it is on this node.
    process: OnceLock<Process>,
}

impl Session {
    /// Which.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Whether what it is told now reaches it, or will in a moment: a mount may know names before its connection for recalls
    /// is there.
    fn hears_soon(&self) -> bool {
        let connects = self.channel.is_new() && self.begun.elapsed() < CONNECTS_WITHIN;
        self.channel.is_connected() || connects
    }

    /// True once it has ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// References that it was given and has not given back.
    #[cfg(test)]
    pub(crate) fn references(&self) -> BTreeMap<Ino, u64> {
        self.held.lock().iter().map(|(ino, count)| (*ino, *count)).collect()
    }

    /// The client's process, as it says.
    pub fn pid(&self) -> u32 {
        self.attach.pid
    }

    /// The client is over when this process is.
    pub fn lives_with(&self, process: Process) {
        // Each connection of a session is that of the same one.
        let _ = self.process.set(process);
    }

    /// True if the client has died: its kernel has let go of the mount, and asks nothing any more.
    fn is_dead(&self) -> bool {
        self.process.get().is_some_and(Process::is_dead)
    }

    fn hear(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// For so long nobody read what it says.
    fn was_not_read(&self, late: Duration, now: Instant) {
        let mut heard = self.heard.lock();
        *heard = now.min(*heard + late);
    }

    /// When it ends if nothing is heard.
    fn lease_end(&self) -> Instant {
        *self.heard.lock() + self.lease
    }

    fn took(&self, ino: Ino) {
        *self.held.lock().entry(ino).or_insert(0) += 1;
    }

    /// Takes up to `count` references off what it holds; how many there were, and whether none is
    /// left.
    fn gave_back(&self, ino: Ino, count: u64) -> (u64, bool) {
        let mut held = self.held.lock();
        let Some(have) = held.get_mut(&ino) else { return (0, true) };
        let given = count.min(*have);
        *have -= given;
        let none = *have == 0;
        if none {
            held.remove(&ino);
        }
        (given, none)
    }
}

/// How long this process was held up (stopped, suspended with its machine, starved), as a wait shows that was over at `due`.
/// What its clients said meanwhile waits to be read, so that time says nothing of them.
fn held_up(due: Instant, now: Instant) -> Duration {
    let late = now.saturating_duration_since(due);
    if late >= HELD_UP_LEAST { late } else { Duration::ZERO }
}

/// A table of locks in which mounts of an earlier start get back what nobody else has had.
fn locks_of(taken: &Arc<Taken>, grace: &Grace) -> Arc<LockTable> {
    let locks = LockTable::new();
    grace.awaited().into_iter().for_each(|client| locks.expect(client));
    taken.all().into_iter().for_each(|(client, ino)| locks.was_taken(client, ino));
    let taken = Arc::clone(taken);
    locks.on_taken(Box::new(move |now| {
        taken.add(now.iter().map(|(client, ino)| (*client, Some(*ino))));
    }));
    locks
}

fn path_bytes(path: &std::path::Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

/// The sessions of one buffer.
pub struct Sessions {
    /// Of a cache, its flash.
    namespace: Arc<Namespace>,
    buffer: Box<dyn BufferType>,
    inodes: Arc<dyn Inodes>,
    facts: BufferFacts,
    leases: Leases,
    locks: Arc<LockTable>,
    taken: Arc<Taken>,
    order: changes::Order,
    sizes: Sizes,
    /// Of each session, see [`Timing::lease`].
    lease: Duration,
    grace: Grace,
    table: Mutex<Table>,
    counts: CallCounts,
    recalls: AtomicU64,
    /// Files of which bytes have gone, and who took them if it was one alone, that others are still to be
    /// told of.
    bytes_gone: Mutex<HashMap<Ino, Option<SessionId>>>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Last answers of clients whose session has ended: they may come back and repeat a call.
    old: OldClients,
    closed: bool,
}

impl Sessions {
    /// For a buffer. Changes by the server itself (staging) are told to clients from now on.
    /// `known` are the clients of an earlier start that may still be there.
    pub fn new(
        namespace: Arc<Namespace>,
        cache: Option<Arc<CacheFs>>,
        facts: BufferFacts,
        clients_file: std::path::PathBuf,
    ) -> Result<Arc<Sessions>> {
        let buffer: Box<dyn BufferType> = match cache {
            Some(cache) => Box::new(Cached::new(cache)),
            None => Box::new(Scratch(Arc::clone(&namespace))),
        };
        let inodes = buffer.inodes();
        let lease = Timing::current().lease;
        let references: Arc<dyn References> = inodes.clone();
        let old = OldClients::recorded(&references, namespace.answers().settle()?);
        let taken = Arc::new(Taken::open(clients_file.with_file_name(taken::NAME))?);
        let grace = Grace::open(clients_file, lease)?;
        let sessions = Arc::new(Sessions {
            lease,
            locks: locks_of(&taken, &grace),
            taken,
            grace,
            namespace: Arc::clone(&namespace),
            buffer,
            inodes,
            facts,
            leases: Leases::new(),
            order: changes::Order::new(),
            sizes: Sizes::new(),
            table: Mutex::new(Table { old, ..Table::default() }),
            counts: CallCounts::default(),
            recalls: AtomicU64::new(0),
            bytes_gone: Mutex::default(),
        });
        let notify = Arc::new(changes::ServerChanges(Arc::downgrade(&sessions)));
        sessions.buffer.set_notify(notify);
        namespace.logs().set_writers(Arc::new(scratch::LogWriters(Arc::downgrade(&sessions))));
        namespace
            .start_shards(Arc::new(calls_servers::ShardBelievers(Arc::downgrade(&sessions))))?;
        let watched = Arc::downgrade(&sessions);
        std::thread::Builder::new()
            .name("sessions".into())
            .spawn(move || {
                let mut late = Duration::ZERO;
                while let Some(sessions) = watched.upgrade() {
                    sessions.was_held_up(late);
                    if sessions.sweep() {
                        return;
                    }
                    drop(sessions);
                    let due = Instant::now() + SWEEP;
                    std::thread::sleep(SWEEP);
                    late = held_up(due, Instant::now());
                }
            })
            .map_err(|e| Errno::from_io(&e))?;
        Ok(sessions)
    }

    /// Begins a session. The client's earlier one, if there is one, ends. `acts_as`: on a PFS its
    /// calls have these rights, whoever they say they are.
    pub fn attach(
        &self,
        attach: Attach,
        acts_as: Option<Caller>,
    ) -> Result<(Arc<Session>, Attached)> {
        let key = forebay_net::random::u128()?;
        let client = attach.client;
        let earlier = {
            let table = self.table.lock();
            table.sessions.values().find(|s| s.attach.client == client).cloned()
        };
        if let Some(earlier) = earlier {
            self.end(&earlier, "its client attached anew");
        }
        let session = {
            let mut table = self.table.lock();
            if table.closed {
                return Err(Errno::ESHUTDOWN);
            }
            if table.sessions.len() >= MAX_SESSIONS {
                return Err(Errno::EAGAIN);
            }
            let slots = table.old.remove(client).unwrap_or_else(|| Arc::new(Slots::new()));
            let session = Arc::new(Session {
                id: SessionId(NEXT_SESSION.fetch_add(1, Ordering::Relaxed)),
                key,
                attach,
                acts_as,
                lease: self.lease,
                begun: Instant::now(),
                heard: Mutex::new(Instant::now()),
                busy: AtomicUsize::new(0),
                channel: Channel::default(),
                slots,
                attempts: Attempts::default(),
                held: Mutex::default(),
                opens: Mutex::default(),
                over: AtomicBool::new(false),
                detached: AtomicBool::new(false),
                process: OnceLock::new(),
            });
            table.sessions.insert(session.id, Arc::clone(&session));
            session
        };
        self.grace.attached(client)?;
        tracing::info!(
            session = session.id.0,
            host = session.attach.host,
            pid = session.attach.pid,
            "attached"
        );
        let root = self
            .root_of(&session)
            .inspect_err(|_| self.end(&session, "its node has no directory in the buffer"))?;
        let attached = Attached {
            key: SessionKey { session: session.id, key },
            lease_ms: self.lease.as_millis() as u32,
            incarnation: self.facts.incarnation,
            uuid: self.facts.uuid.clone(),
            shard: self.facts.shard,
            shards: self.facts.places.shards(),
            root,
            node: self.facts.node.clone(),
            unix_socket: self.facts.unix_socket.as_deref().map(path_bytes),
            uid: rustix::process::geteuid().as_raw(),
            volatile: self.facts.volatile,
            gives_objects: self.facts.gives_objects,
            capacity_bytes: self.facts.capacity_bytes,
            cache: self.facts.cache,
        };
        Ok((session, attached))
    }

    /// The session that a connection joins. ESTALE if it has ended, EACCES with a wrong key.
    pub fn join(&self, key: &SessionKey) -> Result<Arc<Session>> {
        let session = self.table.lock().sessions.get(&key.session).cloned().ok_or(Errno::ESTALE)?;
        if session.key != key.key {
            return Err(Errno::EACCES);
        }
        session.hear();
        Ok(session)
    }

    /// Ends a session and gives back all that it held. Does nothing if it has ended already.
    fn end(&self, session: &Arc<Session>, why: &str) {
        if session.over.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::info!(session = session.id.0, host = session.attach.host, why, "session over");
        {
            let mut table = self.table.lock();
            table.sessions.remove(&session.id);
            table.old.insert(session.attach.client, Arc::clone(&session.slots));
        }
        session.channel.end();
        self.leases.session_over(session.id);
        if self.table.lock().closed {
            // The server ends. Clients find what they hold at its next start.
            return;
        }
        match session.detached.load(Ordering::Acquire) {
            true => self.locks.drop_session(session.id),
            false => self.locks.session_lapsed(session.id, session.attach.client),
        }
        self.buffer.end_opens(session);
        let held = std::mem::take(&mut *session.held.lock());
        if !session.detached.load(Ordering::Acquire) {
            self.buffer.client_left(session.attach.client, held.keys().copied().collect());
        }
        for (ino, count) in held {
            self.inodes.forget(ino, count);
        }
    }

    /// Ends a session because its client says so: it will not come back.
    fn detach(&self, session: &Arc<Session>, why: &str) {
        session.detached.store(true, Ordering::Release);
        self.end(session, why);
        if let Err(error) = self.grace.detached(session.attach.client) {
            tracing::warn!(%error, "cannot record that a client has gone");
        }
        let client = session.attach.client;
        self.table.lock().old.remove(client);
        self.locks.is_back(client);
        self.taken.forget(client);
        self.forget_answers(client);
    }

    /// A client will not repeat its last calls any more.
    fn forget_answers(&self, client: ClientId) {
        self.buffer.client_has_gone(client);
        if let Err(error) = self.namespace.answers().forget(client.0) {
            tracing::warn!(%error, "the last answers to a client that has gone are kept");
        }
    }

    /// This process did not run for so long: that time is not counted as silence of its clients, whose signs of life wait
    /// to be read. Else a session would end, and its locks go to others, for what the server itself did.
    fn was_held_up(&self, late: Duration) {
        if late.is_zero() {
            return;
        }
        // It may have begun as soon as the wait did that ended late.
        let (seconds, at_most) = (late.as_secs_f64(), (late + SWEEP).as_secs_f64());
        tracing::warn!(seconds, at_most, "this process was held up; no session ends for that");
        let now = Instant::now();
        for session in self.table.lock().sessions.values() {
            session.was_not_read(late, now);
        }
    }

    /// Ends sessions whose lease is over; true if there will be no more.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let (all, closed): (Vec<_>, bool) = {
            let table = self.table.lock();
            (table.sessions.values().cloned().collect(), table.closed)
        };
        for session in all {
            let is_idle = session.busy.load(Ordering::Acquire) == 0;
            if is_idle && !closed && session.is_dead() {
                self.detach(&session, DEAD);
            } else if is_idle && session.lease_end() < now {
                self.end(&session, "its lease is over");
                // A file that only a call of before the last restart made, and that has no name, goes with what the
                // client has open without a name.
                session.slots.unpin();
            }
        }
        self.tell_bytes_gone();
        while let Some(client) = {
            let mut table = self.table.lock();
            (!table.closed).then(|| table.old.one_too_many()).flatten()
        } {
            self.forget_answers(client);
        }
        if self.grace.just_over() {
            self.table.lock().old.unpin();
            self.namespace.recovery().release_orphans();
            let given_up = self.grace.given_up();
            // This start knows what others get meanwhile; the next one will not wait for them.
            self.taken.add(given_up.iter().map(|client| (*client, None)));
            self.buffer.clients_are_back(&given_up);
        }
        closed
    }

    /// Ends all sessions: the server stops (its clients will come back to the next start), or
    /// the buffer is destroyed.
    pub fn close(&self) {
        let sessions: Vec<_> = {
            let mut table = self.table.lock();
            table.closed = true;
            table.sessions.values().cloned().collect()
        };
        for session in sessions {
            self.end(&session, "the server ends");
        }
    }

    /// Answers the server of another part of the buffer.
    ///
    /// # Errors
    /// EPROTO if this type of buffer has no such questions, and what the answer fails with.
    pub(crate) fn answer_peer(&self, from: ShardId, request: &[u8]) -> Result<Vec<u8>> {
        self.buffer.answer_peer(self, from, request)
    }

    /// Who is attached.
    pub fn clients(&self) -> Vec<MountedClient> {
        let table = self.table.lock();
        let mut clients: Vec<_> = table
            .sessions
            .values()
            .map(|s| MountedClient {
                host: s.attach.host.clone(),
                pid: s.attach.pid,
                silent_s: s.heard.lock().elapsed().as_secs_f64(),
            })
            .collect();
        clients.sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
        clients
    }

    /// Opens by descriptor that count, of all sessions.
    #[cfg(test)]
    pub(crate) fn local_opens(&self) -> BTreeMap<Ino, u64> {
        self.leases.local_opens()
    }

    /// Where the parts of the buffer are.
    pub fn places(&self) -> &Arc<Places> {
        &self.facts.places
    }

    /// What these sessions hold and have asked for.
    pub fn fill_metrics(&self, told: &mut BufferMetrics) {
        self.counts.fill(told);
        told.sessions = self.table.lock().sessions.len() as u64;
        told.leases = self.leases.count() as u64;
        told.recalls = self.recalls.load(Ordering::Relaxed);
        let locks = self.locks.counts();
        (told.locks, told.lock_waits) = (locks.held as u64, locks.waiting as u64);
    }

    /// Leases given out now.
    pub fn lease_count(&self) -> usize {
        self.leases.count()
    }

    /// Serves a session's recalls on a connection: `tell` sends one message and returns when the
    /// client has done it. Returns when the session or the connection is over, or when another
    /// connection takes over.
    pub fn serve_recalls<E>(
        &self,
        session: &Arc<Session>,
        mut tell: impl FnMut(u64, forebay_proto::net::session::Recall) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let turn = session.channel.connect();
        let ended = loop {
            let Some((serial, message)) = session.channel.next(turn) else { break Ok(()) };
            let told = forebay_lease::recall::in_parts(message)
                .into_iter()
                .try_for_each(|part| tell(serial, part));
            match told {
                Ok(()) => {
                    session.hear();
                    session.channel.done(turn, serial);
                }
                Err(error) => {
                    session.channel.undelivered(turn);
                    break Err(error);
                }
            }
        };
        session.channel.disconnect(turn);
        ended
    }
}
