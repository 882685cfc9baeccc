//! Sessions: what each mount of a served buffer holds at this server, and its calls.
//!
//! | module | what it does |
//! | --- | --- |
//! | `mount`, `table` | one mount, and which are attached |
//! | `locks`, `taken` | locks of all mounts, and those that were reassigned while their mount was away, for the next start |
//! | `grace` | clients of an earlier start of the server |
//! | `teardown` | how a session ends |
//! | `grants` | references, leases and objects that sessions are given |
//! | `changes`, `order`, `sizes` | locks that order changes, recalls before them, who is told afterwards |
//! | `stack` | makes these, from the bottom up |
//! | `buffer_type` | what differs between types of buffer; `scratch`, `cached` are the types |
//! | `calls`, `lock_calls`, `reclaims`, `names`, `reply` | from a call to its answer: what all types share |
//! | `attempts` | what answers gave that their mount has not heard |
//! | `inodes` | what references are to |
//! | `shard_calls` | questions of the servers of other shards |
//! | `private` | the root of a mount where each node has a namespace of its own |
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
mod changes;
mod grace;
mod grants;
mod inodes;
mod lock_calls;
mod locks;
mod mount;
mod names;
mod order;
mod private;
mod reclaims;
mod reply;
mod scratch;
mod shard_calls;
mod sizes;
mod stack;
mod table;
mod taken;
mod teardown;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_cache;
#[cfg(test)]
mod tests_locks;

pub use mount::Session;
pub use reply::Reply;

use crate::places::Places;
use buffer_type::{BufferType, ClientFiles};
use cached::{Cached, OpenFiles};
use calls::Calls;
use changes::Changes;
use forebay_cache::CacheFs;
use forebay_lease::leases::Leases;
use forebay_namespace::Namespace;
#[cfg(test)]
use forebay_proto::Ino;
use forebay_proto::metrics::BufferMetrics;
use forebay_proto::net::Request;
use forebay_proto::net::ledger::{AccessMode, MountedClient};
use forebay_proto::net::session::{Attach, Attached, CacheFacts, NodeId, SessionId, SessionKey};
use forebay_proto::{Caller, Errno, Result, ShardId, Timing};
use grace::Grace;
use locks::Locks;
use private::Roots;
use scratch::{NothingOpen, Scratch};
use stack::Stack;
#[cfg(test)]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use table::SessionTable;
use teardown::Teardown;

/// Most sessions of one buffer.
pub const MAX_SESSIONS: usize = 1024;
/// How often ended sessions are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// A wait that ends so much too late was held up together with the whole process. Shorter delays are those of busy
/// processors, and change nothing.
const HELD_UP_LEAST: Duration = Duration::from_secs(1);
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

/// How long this process was held up (stopped, suspended with its machine, starved), as a wait shows that was over at `due`.
/// What its clients said meanwhile waits to be read, so that time says nothing of them.
fn held_up(due: Instant, now: Instant) -> Duration {
    let late = now.saturating_duration_since(due);
    if late >= HELD_UP_LEAST { late } else { Duration::ZERO }
}

fn path_bytes(path: &std::path::Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

/// The sessions of one buffer.
pub struct Sessions {
    /// Of a cache, its flash.
    namespace: Arc<Namespace>,
    facts: BufferFacts,
    /// Of each session, see [`Timing::lease`].
    lease: Duration,
    table: Arc<SessionTable>,
    grace: Arc<Grace>,
    leases: Arc<Leases>,
    locks: Arc<Locks>,
    teardown: Arc<Teardown>,
    changes: Arc<Changes>,
    roots: Roots,
    files: Arc<dyn ClientFiles>,
    buffer: Arc<dyn BufferType>,
    calls: Calls,
}

impl Sessions {
    /// For a buffer. Changes by the server itself (staging) are told to clients from now on.
    /// `clients_file` has the clients of an earlier start that may still be there.
    pub fn new(
        namespace: Arc<Namespace>,
        cache: Option<Arc<CacheFs>>,
        facts: BufferFacts,
        clients_file: std::path::PathBuf,
    ) -> Result<Arc<Sessions>> {
        let (shard, lease) = (facts.shard, Timing::current().lease);
        let (stack, buffer): (_, Arc<dyn BufferType>) = match cache {
            Some(cache) => {
                let (inodes, files) = (cache.clone(), Arc::new(OpenFiles::new(cache.clone())));
                let stack =
                    Stack::new(shard, namespace, inodes, files.clone(), clients_file, lease)?;
                let cached = Cached::new(&stack, cache, files, facts.is_read_only());
                (stack, Arc::new(cached))
            }
            None => {
                let (inodes, files) = (namespace.clone(), Arc::new(NothingOpen));
                let stack = Stack::new(shard, namespace, inodes, files, clients_file, lease)?;
                let scratch = Scratch::new(&stack);
                (stack, Arc::new(scratch))
            }
        };
        let places = &facts.places;
        let calls = Calls::new(&stack, &buffer, Arc::clone(places), facts.gives_objects);
        let roots = Roots::new(&stack, Arc::clone(places), facts.private);
        let writers = scratch::LogWriters::new(&stack.grace, &stack.table);
        stack.namespace.logs().set_writers(Arc::new(writers));
        let believers = shard_calls::ShardBelievers(Arc::downgrade(&stack.changes));
        let Stack { namespace, files, leases, grace, locks, table, teardown, changes, .. } = stack;
        let sessions = Arc::new(Sessions {
            namespace: Arc::clone(&namespace),
            facts,
            lease,
            table,
            grace,
            leases,
            locks,
            teardown,
            changes,
            roots,
            files,
            buffer,
            calls,
        });
        namespace.start_shards(Arc::new(believers))?;
        sessions.start_sweeps()?;
        Ok(sessions)
    }

    /// A thread that ends sessions whose lease is over, as long as there may be any.
    fn start_sweeps(self: &Arc<Self>) -> Result<()> {
        let watched = Arc::downgrade(self);
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
        Ok(())
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
        if let Some(earlier) = self.table.of_client(client) {
            self.teardown.end(&earlier, "its client attached anew");
        }
        let id = SessionId(NEXT_SESSION.fetch_add(1, Ordering::Relaxed));
        let key = SessionKey { session: id, key };
        let session = self
            .table
            .begin(client, |slots| Session::new(&key, attach, acts_as, self.lease, slots))?;
        self.grace.attached(client)?;
        tracing::info!(
            session = session.id().0,
            host = session.host(),
            pid = session.pid(),
            "attached"
        );
        let root = self.roots.root_of(&session).inspect_err(|_| {
            self.teardown.end(&session, "its node has no directory in the buffer");
        })?;
        let attached = Attached {
            key,
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
        let session = self.table.get(key.session).ok_or(Errno::ESTALE)?;
        if !session.has_key(key) {
            return Err(Errno::EACCES);
        }
        session.hear();
        Ok(session)
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
        self.table.for_each(|session| session.was_not_read(late, now));
    }

    /// Ends sessions whose lease is over; true if there will be no more.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let (all, closed) = self.table.all_and_closed();
        for session in all {
            let is_idle = session.is_idle();
            if is_idle && !closed && session.is_dead() {
                self.teardown.detach(&session, DEAD);
            } else if is_idle && session.lease_end() < now {
                self.teardown.end(&session, "its lease is over");
                // A file that only a call of before the last restart made, and that has no name, goes with what the
                // client has open without a name.
                session.slots().unpin();
            }
        }
        self.changes.tell_bytes_gone();
        while let Some(client) = self.table.one_too_many() {
            self.teardown.forget_answers(client);
        }
        if self.grace.just_over() {
            self.table.unpin_old();
            self.namespace.recovery().release_orphans();
            let given_up = self.grace.given_up();
            self.locks.given_up(&given_up);
            self.files.clients_are_back(&given_up);
        }
        closed
    }

    /// Ends all sessions: the server stops (its clients will come back to the next start), or
    /// the buffer is destroyed.
    pub fn close(&self) {
        for session in self.table.close() {
            self.teardown.end(&session, "the server ends");
        }
    }

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
        self.calls.call(session, request, payload, room, local)
    }

    /// Answers the server of another part of the buffer.
    ///
    /// # Errors
    /// EPROTO if this type of buffer has no such questions, and what the answer fails with.
    pub(crate) fn answer_peer(&self, from: ShardId, request: &[u8]) -> Result<Vec<u8>> {
        self.buffer.answer_peer(from, request)
    }

    /// Who is attached.
    pub fn clients(&self) -> Vec<MountedClient> {
        let mut clients: Vec<_> = self.table.all().iter().map(|one| one.mounted()).collect();
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
        self.calls.fill_metrics(told);
        told.sessions = self.table.count() as u64;
        told.awaited_mounts = self.grace.awaited().len() as u64;
        told.leases = self.leases.count() as u64;
        told.recalls = self.changes.recalls();
        let locks = self.locks.table().counts();
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
        let turn = session.channel().connect();
        let ended = loop {
            let Some((serial, message)) = session.channel().next(turn) else { break Ok(()) };
            let told = forebay_lease::recall::in_parts(message)
                .into_iter()
                .try_for_each(|part| tell(serial, part));
            match told {
                Ok(()) => {
                    session.hear();
                    session.channel().done(turn, serial);
                }
                Err(error) => {
                    session.channel().undelivered(turn);
                    break Err(error);
                }
            }
        };
        session.channel().disconnect(turn);
        ended
    }
}
