//! Three servers of one process over a real namespace of three shards, each with its namespace, objects
//! and mover, joined by questions as servers are; and what is said between them, which tests count,
//! lose, repeat and keep. For `over` and `striped`; `striped_kill` makes its servers as processes of
//! the same parts.

use super::support::{LIMIT, spec};
use crate::{Mover, MoverOptions, PfsHook, Servers};
use forebay_interfaces::peers::{Peers, asking};
use forebay_interfaces::tree::BufferTree;
use forebay_namespace::ShardedTree;
use forebay_namespace::shards::{About, Believers, Quiet};
use forebay_namespace::{Namespace, NamespaceOptions};
use forebay_proto::control::{Direction, PlanState, PlanStatus, StageSpec};
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::staging::StagingQuestion;
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::{Accounting, Objects};
use parking_lot::{Mutex, RwLock};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const SERVERS: u16 = 3;
const CAPACITY_BYTES: u64 = 1 << 30;

pub struct Server {
    pub namespace: Arc<Namespace>,
    pub tree: Arc<ShardedTree>,
    pub mover: Arc<Mover>,
}

/// What becomes of a question about staging.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fate {
    Arrives,
    Lost,
    AnswerLost,
    Twice,
}

/// Decides on it; told to whom it goes.
pub type Weather = Box<dyn Fn(ShardId, &StagingQuestion) -> Fate + Send + Sync>;

/// Questions, and to whom they went.
pub type Kept = Vec<(ShardId, Vec<u8>)>;

#[derive(Default)]
pub struct Net {
    pub servers: RwLock<Vec<Option<Arc<Server>>>>,
    pub weather: RwLock<Option<Weather>>,
    /// Bytes of all questions and answers between servers.
    pub bytes: AtomicU64,
    /// Questions about staging, as they came, if they are kept.
    pub kept: Mutex<Option<Kept>>,
}

impl Net {
    fn fate(&self, to: ShardId, question: &Question<'_>) -> Fate {
        let Question::Staging { question, .. } = question else { return Fate::Arrives };
        if let Some(kept) = &mut *self.kept.lock() {
            kept.push((to, question.to_vec()));
        }
        match &*self.weather.read() {
            Some(weather) => weather(to, &frame::decode(question).unwrap()),
            None => Fate::Arrives,
        }
    }

    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        let server = self.servers.read().get(usize::from(to.0)).cloned().flatten();
        let server = server.ok_or(Errno::EHOSTUNREACH)?;
        let mut body = Vec::new();
        frame::encode(question, &mut body).unwrap();
        let fate = self.fate(to, question);
        if fate == Fate::Lost {
            return Err(Errno::EHOSTUNREACH);
        }
        if fate == Fate::Twice {
            let _ = answer(&server, question, payload, room);
            room.clear();
        }
        let reply = answer(&server, question, payload, room)?;
        frame::encode(&reply, &mut body).unwrap();
        let bytes = body.len() + payload.len() + room.len();
        self.bytes.fetch_add(bytes as u64, Relaxed);
        if fate == Fate::AnswerLost { Err(Errno::ETIMEDOUT) } else { Ok(reply) }
    }
}

/// What a server says to a question of another one.
pub fn answer(
    server: &Server,
    question: &Question<'_>,
    payload: &[u8],
    room: &mut Vec<u8>,
) -> Result<Reply> {
    match question {
        Question::Names { from, question, .. } => {
            server.namespace.asked(*from, question).map(Reply::Names)
        }
        Question::Objects { from, question, .. } => server
            .namespace
            .stripes()
            .answer_objects(*from, question, payload, room)
            .map(Reply::Objects),
        Question::Staging { question, .. } => server.mover.answer(question).map(Reply::Staging),
        Question::Tree { asked, .. } => {
            let asked = frame::decode_borrowed(asked).map_err(|_| Errno::EPROTO)?;
            let mut body = Vec::new();
            frame::encode(&server.namespace.tree().answer(&asked), &mut body).unwrap();
            Ok(Reply::Tree(body))
        }
        Question::Pool(_) | Question::Cache { .. } => Err(Errno::EPROTO),
    }
}

/// Nobody has mounted the buffer.
struct Nobody;

impl Believers for Nobody {
    fn recall(&self, _: u64, _: &[About]) -> Quiet {
        Box::new(())
    }

    fn hush(&self, _: &[About]) -> Quiet {
        Box::new(())
    }

    fn name_gone(&self, _: u64, _: Ino, _: Ino, _: &[u8]) {}
}

pub struct Rig {
    pub dir: PathBuf,
    pub net: Arc<Net>,
    _keep: tempfile::TempDir,
}

/// A server's part of the buffer below `dir`. It does nothing before [`begin`].
pub fn open_server(
    dir: &Path,
    shard: u16,
    unclean: bool,
    peers: Arc<dyn Peers>,
    hook: Option<PfsHook>,
) -> Server {
    let dir = dir.join(format!("store-{shard}"));
    for sub in ["meta", "data"] {
        std::fs::create_dir_all(dir.join(sub)).unwrap();
    }
    let store = LmdbStore::open(StoreOptions {
        dir: dir.join("meta"),
        uuid: [7; 16],
        log_bytes: 8 << 20,
        map_bytes: 32 << 20,
        volatile: false,
        preallocate: false,
    });
    let account = Accounting::new(CAPACITY_BYTES);
    let objects = Objects::open(&dir.join("data"), false, true, Some(account)).unwrap();
    let options = NamespaceOptions {
        peers: Some(peers.clone()),
        shard: ShardId(shard),
        capacity_bytes: CAPACITY_BYTES,
        volatile: false,
        root_uid: 0,
        root_gid: 0,
        log: forebay_proto::layout::Logs::Off,
        hold_orphans: false,
    };
    let objects = Arc::new(objects);
    let store = Arc::new(store.unwrap());
    let namespace = Namespace::open(store, objects, options, unclean).unwrap().0;
    namespace.join_servers(peers.clone()).unwrap();
    let tree = Arc::new(ShardedTree::new(namespace.clone(), peers.clone()));
    let options = MoverOptions {
        servers: Some(Servers::new(peers)),
        workers: 2,
        hook,
        ..MoverOptions::default()
    };
    let mover = Mover::new(tree.clone(), dir.join("plans"), options).unwrap();
    Server { namespace, tree, mover: Arc::new(mover) }
}

/// What a server does once it can be reached.
pub fn begin(server: &Server) {
    server.namespace.start_shards(Arc::new(Nobody)).unwrap();
    server.mover.resume();
}

/// Makes a directory whose files are striped over all servers.
pub fn make_wide(server: &Server, name: &str, unit_bytes: u64) {
    let who = Caller::root();
    let dir = server.tree.mkdir(&who, Ino::ROOT, name.as_bytes(), 0o755).unwrap().ino;
    let values = [("stripe_count", SERVERS.into()), ("stripe_size_bytes", unit_bytes)];
    for (name, value) in values {
        let (name, value) = (format!("user.forebay.{name}"), value.to_string());
        server.tree.set_xattr(&who, dir, name.as_bytes(), value.as_bytes()).unwrap();
    }
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(None)
    }

    /// With a hook at the PFS of one server.
    pub fn with(hook: Option<(u16, PfsHook)>) -> Rig {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().to_path_buf();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.join("pfs")).unwrap();
        let net = Arc::<Net>::default();
        net.servers.write().resize_with(usize::from(SERVERS), || None);
        let rig = Rig { dir, net, _keep: keep };
        let servers: Vec<_> = (0..SERVERS)
            .map(|shard| {
                let hook = hook.clone().filter(|(whose, _)| *whose == shard);
                rig.open(shard, hook.map(|(_, hook)| hook))
            })
            .collect();
        for (shard, server) in servers.into_iter().enumerate() {
            rig.net.servers.write()[shard] = Some(server);
        }
        (0..SERVERS).for_each(|shard| begin(&rig.at(shard)));
        rig
    }

    fn open(&self, shard: u16, hook: Option<PfsHook>) -> Arc<Server> {
        let net = self.net.clone();
        let peers = asking(ShardId(shard), SERVERS, 5, move |to, question, payload, room| {
            net.ask(to, question, payload, room)
        });
        Arc::new(open_server(&self.dir, shard, false, peers, hook))
    }

    pub fn at(&self, shard: u16) -> Arc<Server> {
        self.net.servers.read()[usize::from(shard)].clone().unwrap()
    }

    pub fn pfs(&self, rel: &str) -> PathBuf {
        self.dir.join("pfs").join(rel)
    }

    pub fn stage_in(&self, pfs: &str, buffer: &str) -> StageSpec {
        spec(Direction::In, &self.pfs(pfs), buffer)
    }

    pub fn stage_out(&self, buffer: &str, pfs: &str) -> StageSpec {
        spec(Direction::Out, &self.pfs(pfs), buffer)
    }

    pub fn run_as(&self, who: &Caller, spec: StageSpec) -> PlanStatus {
        let mover = self.at(0).mover.clone();
        let plan = mover.start(who, spec).unwrap().plan;
        let status = mover.wait(&Caller::root(), plan, LIMIT).unwrap();
        assert!(status.state.is_final(), "the plan does not end: {status:#?}");
        status
    }

    pub fn must(&self, spec: StageSpec) -> PlanStatus {
        let status = self.run_as(&Caller::root(), spec);
        assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
        assert_eq!(status.files_done, status.files_total);
        assert_eq!(status.bytes_done, status.bytes_total);
        status
    }

    /// Files and their bytes on each server.
    pub fn held(&self) -> Vec<(usize, u64)> {
        let of = |shard| {
            let objects = self.at(shard).namespace.objects().clone();
            let (mut files, mut bytes) = (0, 0);
            objects
                .for_each(&mut |id, _| {
                    files += 1;
                    bytes += objects.stat(id).unwrap().size_bytes;
                })
                .unwrap();
            (files, bytes)
        };
        (0..SERVERS).map(of).collect()
    }
}
