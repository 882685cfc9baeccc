//! The servers and the client. [`check`]: what is checked of them; [`counts`]: what servers count for the client;
//! [`cuts`]: their power can be cut; [`data`]: with the data of files; [`weather`]: messages are lost or late.

mod check;
mod counts;
mod cuts;
mod data;
mod weather;

pub use cuts::Cut;
pub use data::BLOCK_BYTES;
use weather::Weather;
pub use weather::{Fate, PAUSES_MAX};

use super::BY_HAND;
use crate::places::Places;
use crate::session::{BufferFacts, Session, Sessions};
use forebay_failpoint::kill::HOOK;
use forebay_interfaces::peers::{Peers, ShardHandler};
use forebay_namespace::testing::Unfinished;
use forebay_namespace::{Namespace, NamespaceOptions};
use forebay_proto::api::CreateArgs;
use forebay_proto::api::ops::*;
use forebay_proto::layout::placement_index;
use forebay_proto::net::call::Taking;
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::session::{Attach, ClientId, NodeId, Reclaim, SlotId};
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request};
use forebay_proto::{Caller, Cookie, Errno, FileKind, Ino, Result, ServerId, ShardId};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::Objects;
use parking_lot::RwLock;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub const ARGS: CreateArgs = CreateArgs { mode: 0o755, umask: 0 };
pub const SHARDS: u16 = 3;
const CLIENT: u64 = 0xc1;

thread_local! {
    /// Whose code this thread runs now, innermost last.
    static RUNNING: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
}

struct Killed;

/// A question about names as it was sent, with whom it was for.
pub type Recorded = (ShardId, Vec<u8>);

struct Running {
    sessions: Arc<Sessions>,
    namespace: Arc<Namespace>,
    store: Arc<LmdbStore>,
    session: Arc<Session>,
}

/// The servers that are there.
#[derive(Default)]
pub struct Net {
    servers: RwLock<BTreeMap<u16, Running>>,
    /// Killed, and not cleared away yet: a server may be killed deep in what others ask of it.
    dead: parking_lot::Mutex<Vec<Running>>,
    /// Questions asked.
    asked: AtomicU64,
    /// Who is killed, but for the first, is gone for good.
    for_good: AtomicBool,
    lost: RwLock<BTreeSet<u16>>,
    /// While questions are recorded.
    recorded: parking_lot::Mutex<Option<Vec<Recorded>>>,
    /// What becomes of messages, if not all arrive.
    weather: parking_lot::Mutex<Option<Weather>>,
}

struct Wire {
    mine: ShardId,
    net: Arc<Net>,
}

/// Does something as a server; `None` if it was killed meanwhile.
fn as_server<T>(shard: u16, work: impl FnOnce() -> T) -> Option<T> {
    RUNNING.with_borrow_mut(|running| running.push(shard));
    let done = catch_unwind(AssertUnwindSafe(work));
    RUNNING.with_borrow_mut(|running| running.pop());
    match done {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<Killed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

impl Peers for Wire {
    fn mine(&self) -> ShardId {
        self.mine
    }
    fn count(&self) -> u16 {
        SHARDS
    }
    fn buffer(&self) -> u128 {
        7
    }
    fn is_lost(&self, shard: ShardId) -> bool {
        self.net.lost.read().contains(&shard.0)
    }
    fn ask(
        &self,
        to: ShardId,
        q: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        self.net.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_lost(to) {
            return Err(Errno::EIO);
        }
        let fate = self.net.fate(to);
        let asked = {
            let servers = self.net.servers.read();
            // Who is killed says nothing any more.
            if !servers.contains_key(&self.mine.0) {
                return Err(Errno::EHOSTUNREACH);
            }
            servers.get(&to.0).ok_or(Errno::EHOSTUNREACH)?.sessions.clone()
        };
        let mut body = Vec::new();
        frame::encode(q, &mut body).unwrap();
        if let (Question::Names { .. }, Some(all)) = (q, &mut *self.net.recorded.lock()) {
            all.push((to, body.clone()));
        }
        room.clear();
        match fate {
            Fate::Arrives | Fate::AnswerLost => {}
            Fate::NotSent => return Err(Errno::EHOSTUNREACH),
            Fate::Lost => return Err(Errno::ETIMEDOUT),
            Fate::Late => {
                self.net.delay(to, body, payload);
                return Err(Errno::ETIMEDOUT);
            }
        }
        let answer = as_server(to.0, || match frame::decode_borrowed(&body).unwrap() {
            Question::Names { from, question, .. } => {
                asked.names(from, &question, payload, room).map(Reply::Names)
            }
            Question::Objects { from, question, .. } => {
                asked.objects(from, &question, payload, room).map(Reply::Objects)
            }
            other => panic!("{other:?}"),
        });
        match answer {
            Some(answer) if fate != Fate::AnswerLost => answer,
            _ => Err(Errno::ETIMEDOUT),
        }
    }
}

/// Three servers of one buffer and one client.
pub struct World {
    dir: tempfile::TempDir,
    net: Arc<Net>,
    seqs: RefCell<[u32; SHARDS as usize]>,
    /// The last attempts of calls, in the one slot that there is at each.
    attempts: RefCell<[Attempt; SHARDS as usize]>,
    held: RefCell<BTreeMap<Ino, u64>>,
    /// Opens by descriptor.
    opens: RefCell<BTreeMap<Ino, u64>>,
    power: Option<Arc<parking_lot::Mutex<cuts::Power>>>,
    /// What is not synced of files' data is lost with the power, too, and files may be striped.
    has_data: bool,
}

impl World {
    pub fn new() -> World {
        World::with(None, false)
    }

    /// All on flash that survives a power cut; the power can be cut.
    pub fn with_power() -> World {
        World::with(Some(Arc::default()), false)
    }

    fn with(power: Option<Arc<parking_lot::Mutex<cuts::Power>>>, has_data: bool) -> World {
        BY_HAND.set(true);
        // In memory, if that is there: a world costs a twentieth of the time. What a power cut takes is simulated.
        let mut builder = tempfile::Builder::new();
        let named = builder.prefix("forebay-test-");
        let world = World {
            dir: named.tempdir_in("/dev/shm").or_else(|_| named.tempdir()).unwrap(),
            has_data,
            net: Arc::default(),
            seqs: RefCell::default(),
            attempts: RefCell::default(),
            held: RefCell::default(),
            opens: RefCell::default(),
            power,
        };
        world.start_missing();
        world
    }

    fn open(&self, shard: u16) -> Running {
        let dir = self.dir.path().join(shard.to_string());
        for sub in ["meta", "data"] {
            std::fs::create_dir_all(dir.join(sub)).unwrap();
        }
        let store = Arc::new(match &self.power {
            Some(power) => self.open_powered(shard, &dir, power),
            None => LmdbStore::open(store_options(&dir)).unwrap(),
        });
        let objects = match self.has_data {
            true => self.open_data(shard, &dir),
            false => Objects::open(&dir.join("data"), true, true, None).unwrap(),
        };
        let options = NamespaceOptions {
            shard: ShardId(shard),
            peers: Some(Arc::new(Wire { mine: ShardId(shard), net: self.net.clone() })),
            // So much is free anywhere that tests run: else new inodes would go elsewhere.
            capacity_bytes: 1 << 30,
            // Flash that survives a power cut, but for one of them.
            volatile: shard == 2 && self.power.is_none(),
            root_uid: 0,
            root_gid: 0,
            log: forebay_proto::layout::Logs::Off,
            hold_orphans: true,
        };
        let (namespace, _) =
            Namespace::open(store.clone(), Arc::new(objects), options, true).unwrap();
        namespace.testing().lose_patience();
        if self.has_data {
            let wire = Wire { mine: ShardId(shard), net: self.net.clone() };
            namespace.join_servers(Arc::new(wire)).unwrap();
        }
        let facts = BufferFacts {
            uuid: "7".into(),
            shard: ShardId(shard),
            places: Places::of_one(ServerId(7)),
            incarnation: 1,
            node: NodeId("here".into()),
            unix_socket: None,
            volatile: false,
            gives_objects: !self.has_data,
            capacity_bytes: 1 << 40,
            private: None,
            cache: None,
        };
        let sessions = Sessions::new(namespace.clone(), None, facts, dir.join("clients")).unwrap();
        let attach = Attach {
            buffer: "b".into(),
            client: ClientId(CLIENT),
            host: "h".into(),
            pid: 1,
            node: NodeId("here".into()),
        };
        let (session, _) = sessions.attach(attach, None).unwrap();
        let reclaim = Reclaim {
            references: counts::of_shard(&self.held, shard).into_iter().collect(),
            opens: counts::of_shard(&self.opens, shard).into_iter().collect(),
            last: true,
            ..Reclaim::default()
        };
        let request = request(&session, 0, Call::Reclaim(reclaim));
        sessions.call(&session, &request, &[], &mut Vec::new(), false);
        // The client is back: what it did not claim goes now and not at the next sweep.
        namespace.recovery().release_orphans();
        Running { sessions, namespace, store, session }
    }

    /// Starts the servers that are not there, and settles what they find.
    pub fn start_missing(&self) {
        let is_missing = |shard: &u16| !self.net.servers.read().contains_key(shard);
        let missing: Vec<u16> = self.there().into_iter().filter(is_missing).collect();
        for &shard in &missing {
            let running = self.open(shard);
            self.net.servers.write().insert(shard, running);
        }
        for shard in missing {
            let namespace = self.namespace(shard);
            as_server(shard, || namespace.testing().settle_start());
            drop(namespace);
            self.clear_dead();
        }
    }

    /// A killed server's threads and files go, so that another one can be started on them.
    fn clear_dead(&self) {
        let servers = std::mem::take(&mut *self.net.dead.lock());
        for running in servers {
            running.namespace.close();
            let gone = Arc::downgrade(&running.store);
            drop(running);
            while gone.strong_count() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub fn namespace(&self, shard: u16) -> Arc<Namespace> {
        self.net.servers.read()[&shard].namespace.clone()
    }

    /// From now on this thread kills who runs when it passes the point `at`, counted from 0; what is
    /// returned says whether it has.
    pub fn kill_at(&self, at: u32) -> Arc<AtomicBool> {
        let (net, mut left) = (self.net.clone(), Some(at));
        let fired = Arc::new(AtomicBool::new(false));
        let tell = fired.clone();
        let hook = move |_: &str| match left {
            Some(0) => {
                left = None;
                tell.store(true, Ordering::Relaxed);
                let who = RUNNING.with_borrow(|running| *running.last().unwrap());
                if who != 0 && net.for_good.load(Ordering::Relaxed) {
                    net.lost.write().insert(who);
                }
                if let Some(running) = net.servers.write().remove(&who) {
                    if let Some(weather) = &mut *net.weather.lock() {
                        weather.killed(who);
                    }
                    running.store.refuse();
                    net.dead.lock().push(running);
                }
                resume_unwind(Box::new(Killed));
            }
            _ => left = left.map(|left| left - 1),
        };
        HOOK.set(Some(Box::new(hook)));
        fired
    }

    /// Kills nobody any more, and starts who was killed.
    pub fn recover(&self) {
        HOOK.set(None);
        self.clear_dead();
        self.start_missing();
        for shard in self.there() {
            self.namespace(shard).testing().pass_over_none();
        }
    }

    /// Who is killed from now on, but for the server of the root, does not come back.
    pub fn kill_for_good(&self) {
        self.net.for_good.store(true, Ordering::Relaxed);
    }

    /// Servers that are not gone for good.
    pub fn there(&self) -> Vec<u16> {
        let lost = self.net.lost.read();
        (0..SHARDS).filter(|shard| !lost.contains(shard)).collect()
    }

    /// The rounds of all servers that are there; then nothing may be left to do at any.
    pub fn finish(&self) {
        for _ in 0..3 {
            for shard in self.there() {
                let namespace = self.namespace(shard);
                as_server(shard, || namespace.testing().finish_round()).unwrap().unwrap();
            }
        }
        for shard in self.there() {
            let namespace = self.namespace(shard);
            assert_eq!(namespace.testing().unfinished(), Unfinished::default(), "shard {shard}");
        }
    }

    /// The parent that a directory's server has on record.
    pub fn parent(&self, dir: Ino) -> Ino {
        self.namespace(dir.shard().0).store().inode(dir).unwrap().unwrap().parent
    }

    /// A call at a shard, repeated while its server is killed. What it gave is held.
    pub fn call(&self, shard: u16, call: Call<'_>) -> Answer {
        self.call_with(shard, call, &[])
    }

    fn call_with(&self, shard: u16, call: Call<'_>, payload: &[u8]) -> Answer {
        self.call_until_answered(shard, &call, payload, false)
    }

    /// The same; `in_session`: in no other session, which was not told of what this gives back.
    fn call_until_answered(
        &self,
        shard: u16,
        call: &Call<'_>,
        payload: &[u8],
        in_session: bool,
    ) -> Answer {
        let is_once = call.is_once_only();
        let seq = {
            let mut seqs = self.seqs.borrow_mut();
            seqs[usize::from(shard)] += u32::from(is_once);
            seqs[usize::from(shard)]
        };
        loop {
            if !self.there().contains(&shard) {
                return Answer::failed(Errno::EIO);
            }
            if !is_once {
                self.net.late_ones_arrive();
            }
            let running = {
                let servers = self.net.servers.read();
                servers.get(&shard).map(|one| (one.sessions.clone(), one.session.clone()))
            };
            // What of an attempt is known: nothing, that its server was killed, or its answer.
            let (mut fate, mut reply) = (Fate::Arrives, None);
            if let Some((sessions, session)) = running {
                let mut request = request(&session, seq, call.clone());
                request.attempt = self.next_attempt(shard);
                let mut room = Vec::new();
                if !is_once {
                    fate = self.net.fate_of_attempt(shard, &request);
                }
                if matches!(fate, Fate::Arrives | Fate::AnswerLost) {
                    let local = !self.has_data;
                    let call = || sessions.call(&session, &request, payload, &mut room, local);
                    reply = as_server(shard, call);
                    // The client asks again, as it does on a new connection, and is told the same.
                    if is_once && reply.is_some() && self.net.is_answer_lost(shard, &request) {
                        continue;
                    }
                }
            }
            match (reply, fate) {
                (Some(reply), Fate::Arrives) => {
                    self.heard(shard);
                    return self.note(reply.answer);
                }
                (None, Fate::Arrives | Fate::AnswerLost) => {
                    self.recover();
                    if in_session {
                        return Answer::Done;
                    }
                }
                _ if self.net.gives_up() => return Answer::failed(Errno::ETIMEDOUT),
                _ => {}
            }
        }
    }

    /// The inode of what a call gave, with a reference to it.
    fn given(&self, answer: Answer, after: Taking) -> Result<Ino> {
        match answer {
            Answer::Entry { attr, .. } | Answer::Created { attr, .. } => Ok(attr.attr.ino),
            Answer::Elsewhere { ino, .. } => {
                self.given(self.call(ino.shard().0, Call::Take { ino, after }), after)
            }
            Answer::Failed(errno) => Err(Errno(errno)),
            Answer::Absent { .. } => Err(Errno::ENOENT),
            other => panic!("{other:?}"),
        }
    }

    pub fn create(&self, parent: Ino, name: &str, near: u16) -> Result<Ino> {
        let (name, near) = (name.as_bytes(), Some(ShardId(near)));
        let call = Call::Create { parent, name, args: ARGS, want_local: false, near };
        let after = Taking::File { want_local: false };
        let ino = self.given(self.call(parent.shard().0, call), after)?;
        self.forget(ino);
        Ok(ino)
    }

    pub fn mkdir(&self, parent: Ino, name: &str) -> Result<Ino> {
        let call =
            Call::Mkdir { parent, name: name.as_bytes(), args: ARGS, near: None, own: false };
        let ino = self.given(self.call(parent.shard().0, call), Taking::Directory)?;
        self.forget(ino);
        Ok(ino)
    }

    /// A new directory on a shard: names are tried until one leads there.
    pub fn dir_on(&self, parent: Ino, shard: u16, name: &str) -> (Ino, String) {
        let leads = |name: &String| {
            placement_index(parent, name.as_bytes()) % u64::from(SHARDS) == u64::from(shard)
        };
        let name = (0..).map(|n| format!("{name}.{n}")).find(leads).unwrap();
        let ino = self.mkdir(parent, &name).unwrap();
        assert_eq!(ino.shard().0, shard);
        (ino, name)
    }

    pub fn symlink(&self, parent: Ino, name: &str, near: u16) -> Result<Ino> {
        let (name, near) = (name.as_bytes(), Some(ShardId(near)));
        let call = Call::Symlink { parent, name, target: b"to/there", near };
        let ino = self.given(self.call(parent.shard().0, call), Taking::Name)?;
        self.forget(ino);
        Ok(ino)
    }

    pub fn link(&self, ino: Ino, parent: Ino, name: &str) -> Result<Ino> {
        let call = Call::Link { ino, parent, name: name.as_bytes() };
        let ino = self.given(self.call(parent.shard().0, call), Taking::Name)?;
        self.forget(ino);
        Ok(ino)
    }

    fn done(&self, shard: u16, call: Call<'_>) -> Result<()> {
        match self.call(shard, call) {
            Answer::Done => Ok(()),
            Answer::Failed(errno) => Err(Errno(errno)),
            other => panic!("{other:?}"),
        }
    }

    pub fn unlink(&self, parent: Ino, name: &str) -> Result<()> {
        self.done(parent.shard().0, Call::Unlink { parent, name: name.as_bytes() })
    }

    pub fn rmdir(&self, parent: Ino, name: &str) -> Result<()> {
        self.done(parent.shard().0, Call::Rmdir { parent, name: name.as_bytes() })
    }

    pub fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: u32) -> Result<()> {
        let call = Call::Rename {
            parent: from.0,
            name: from.1.as_bytes(),
            new_parent: to.0,
            new_name: to.1.as_bytes(),
            flags,
        };
        self.done(to.0.shard().0, call)
    }

    /// From now on questions about names are recorded.
    pub fn record(&self) {
        *self.net.recorded.lock() = Some(Vec::new());
    }

    /// What was recorded; nothing is recorded any more.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.net.recorded.lock().take().unwrap_or_default()
    }

    /// A question arrives once more, when nobody waits for its answer any more.
    pub fn deliver_again(&self, (to, body): &Recorded) {
        let Question::Names { from, question, .. } = frame::decode_borrowed(body).unwrap() else {
            panic!("only questions about names are recorded")
        };
        let sessions = self.net.servers.read()[&to.0].sessions.clone();
        let answer = as_server(to.0, || sessions.names(from, &question, &[], &mut Vec::new()));
        drop(answer.unwrap());
    }

    /// Questions that servers have asked each other.
    pub fn asked(&self) -> u64 {
        self.net.asked.load(Ordering::Relaxed)
    }

    pub fn nlink(&self, ino: Ino) -> u32 {
        self.namespace(ino.shard().0).attrs().of(ino).unwrap().nlink
    }

    /// What is in a directory: names, with what they lead to.
    pub fn entries(&self, dir: Ino) -> BTreeMap<String, (Ino, FileKind)> {
        let namespace = self.namespace(dir.shard().0);
        let mut all = BTreeMap::new();
        let limit = namespace.dir_limit(dir).unwrap();
        namespace
            .readdir(dir, Cookie::DOTDOT, limit, &mut |entry| {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                all.insert(name, (entry.ino, entry.kind));
                true
            })
            .unwrap();
        all
    }

    /// All servers end in order, and what they leave is right.
    pub fn close(self) {
        self.check();
        let servers = std::mem::take(&mut *self.net.servers.write());
        for (shard, running) in servers {
            running.sessions.close();
            running.namespace.close();
            if let Some(power) = &self.power {
                power.lock().running[&shard].let_go(&running.store);
            }
            running.store.close().unwrap();
            let gone = Arc::downgrade(&running.store);
            drop(running);
            while gone.strong_count() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.power.is_none() {
                let meta = self.dir.path().join(shard.to_string()).join("meta");
                assert_eq!(LmdbStore::verify(&meta).unwrap(), []);
            }
        }
    }
}

fn store_options(dir: &Path) -> StoreOptions {
    StoreOptions {
        dir: dir.join("meta"),
        uuid: [7; 16],
        // The least that there is: each world has many stores, and the kernel makes these pages for each.
        log_bytes: 4096 + (4 << 20),
        map_bytes: 32 << 20,
        volatile: true,
        preallocate: false,
    }
}

fn request<'a>(session: &Arc<Session>, seq: u32, call: Call<'a>) -> Request<'a> {
    Request {
        session: session.id(),
        slot: SlotId(0),
        slot_seq: seq,
        attempt: Attempt::default(),
        cpu: None,
        given_back: GivenBack::default(),
        caller: Caller::root(),
        call,
    }
}
