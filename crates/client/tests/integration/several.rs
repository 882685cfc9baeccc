//! A buffer of three servers, all in this process, and mounts of it over real sockets: names and
//! inodes at different servers, what two mounts see of each other's changes, a server that goes and
//! comes back.

use forebay_client::remote::{RemoteFs, Target};
use forebay_net::ServerAddress;
use forebay_net::handshake::{Credential, Gate, Greeted};
use forebay_net::node::this_node;

use forebay_interfaces::peers::{Peers, ShardHandler};
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, Notify, WriteMode, rename_flags};
use forebay_proto::layout::{OWN_DIRECTORIES, placement_index};
use forebay_proto::net::auth::{Key, Refusal, Secret};
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::net::session::NodeId;
use forebay_proto::{Caller, Cookie, Errno, FileKind, Ino, ServerId, ShardId};
use forebay_server::net::{Backend, Listening, listen};
use forebay_server::places::{Directory, KnownServer, Places};
use forebay_server::session::{BufferFacts, Sessions};
use forebay_server::{Server, ServerOptions};
use forebay_store::flash::{Store, StoreKey, StoreOptions};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ARGS: CreateArgs = CreateArgs { mode: 0o755, umask: 0 };
const COUNT: u16 = 3;

fn secret() -> Secret {
    Secret::from_bytes([9; 32])
}

type Net = Arc<RwLock<BTreeMap<u16, Arc<Sessions>>>>;

struct Wire(ShardId, Net);

impl Peers for Wire {
    fn mine(&self) -> ShardId {
        self.0
    }
    fn count(&self) -> u16 {
        COUNT
    }
    fn buffer(&self) -> u128 {
        7
    }
    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> forebay_proto::Result<Reply> {
        let sessions = self.1.read().get(&to.0).cloned().ok_or(Errno::EHOSTUNREACH)?;
        match question {
            Question::Names { from, question, .. } => {
                sessions.names(*from, question, payload, room).map(Reply::Names)
            }
            Question::Objects { from, question, .. } => {
                sessions.objects(*from, question, payload, room).map(Reply::Objects)
            }
            _ => Err(Errno::EPROTO),
        }
    }
}

struct Part {
    server: u128,
    incarnation: u64,
    sessions: Arc<Sessions>,
}

impl Gate for Part {
    fn secret(&self, _: &Key) -> Result<Secret, Refusal> {
        Ok(secret())
    }
}

impl Backend for Part {
    type Who = ();

    fn server(&self) -> u128 {
        self.server
    }
    fn incarnation(&self) -> u64 {
        self.incarnation
    }
    fn identify(&self, _: &Greeted, _: Option<Caller>) -> Result<(), Refusal> {
        Ok(())
    }
    fn answer(&self, (): &(), _: LedgerRequest) -> LedgerReply {
        LedgerReply::Ok
    }
    fn sessions(&self, (): &(), _: &str) -> Result<Arc<Sessions>, Refusal> {
        Ok(Arc::clone(&self.sessions))
    }
}

struct Running {
    server: Arc<Server>,
    sessions: Arc<Sessions>,
    listening: Listening,
}

/// The servers of one buffer.
struct Buffer {
    dir: tempfile::TempDir,
    net: Net,
    directory: Arc<Directory>,
    running: BTreeMap<u16, Running>,
    starts: u64,
    /// The shards on the node of the mounts.
    near: Vec<u16>,
}

impl Buffer {
    fn new() -> Buffer {
        Buffer::near(&[1])
    }

    fn near(near: &[u16]) -> Buffer {
        let mut buffer = Buffer {
            near: near.to_vec(),
            dir: tempfile::tempdir().unwrap(),
            net: Net::default(),
            directory: Arc::default(),
            running: BTreeMap::new(),
            starts: 0,
        };
        (0..COUNT).for_each(|shard| buffer.start(shard));
        buffer
    }

    fn socket(&self, shard: u16) -> PathBuf {
        self.dir.path().join(format!("{shard}.sock"))
    }

    fn address(&self, shard: u16) -> ServerAddress {
        ServerAddress::Unix(self.socket(shard))
    }

    fn start(&mut self, shard: u16) {
        self.starts += 1;
        let dir = self.dir.path().join(shard.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        let store = Store::find_or_create(&StoreOptions {
            flash: dir,
            key: StoreKey::mount(Path::new("/b")),
            capacity_bytes: 64 << 20,
            kind: Some(forebay_proto::control::StoreKind::Directory),
            shared: false,
        })
        .unwrap();
        let peers: Arc<dyn Peers> = Arc::new(Wire(ShardId(shard), Arc::clone(&self.net)));
        let options =
            ServerOptions { hold_orphans: true, peers: Some(peers), ..ServerOptions::default() };
        let server = Server::open(store.clone(), options).unwrap();
        let servers = (0..COUNT).map(|n| ServerId(100 + u128::from(n))).collect();
        let facts = BufferFacts {
            uuid: "7".into(),
            shard: ShardId(shard),
            places: Places::new(servers, Arc::clone(&self.directory)),
            incarnation: self.starts,
            node: match self.near.contains(&shard) {
                true => this_node(),
                false => NodeId("elsewhere".into()),
            },
            unix_socket: None,
            volatile: store.volatile(),
            gives_objects: false,
            capacity_bytes: store.capacity_bytes(),
            private: None,
            cache: None,
        };
        let clients = store.dir().join("clients");
        let sessions = Sessions::new(Arc::clone(server.namespace()), None, facts, clients).unwrap();
        self.net.write().insert(shard, Arc::clone(&sessions));
        let id = 100 + u128::from(shard);
        let part = Part { server: id, incarnation: self.starts, sessions: Arc::clone(&sessions) };
        let addresses = vec![self.address(shard)];
        let listening = listen(Arc::new(part), &addresses).unwrap();
        self.directory.set(ServerId(id), KnownServer { addresses, ..KnownServer::default() });
        self.running.insert(shard, Running { server, sessions, listening });
    }

    fn stop(&mut self, shard: u16) {
        let running = self.running.remove(&shard).unwrap();
        self.net.write().remove(&shard);
        running.listening.stop();
        running.sessions.close();
        let store = running.server.close().unwrap();
        let namespace = Arc::downgrade(running.server.namespace());
        drop((running.sessions, running.server));
        let until = Instant::now() + Duration::from_secs(10);
        while namespace.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(forebay_server::check(&store).unwrap(), Vec::<String>::new());
        store.release().unwrap();
    }

    fn mount(&self, by: u16) -> Arc<RemoteFs> {
        self.mount_patient(by, forebay_client::remote::PATIENCE)
    }

    fn mount_patient(&self, by: u16, patience: Duration) -> Arc<RemoteFs> {
        let fs = RemoteFs::attach(Target {
            address: self.address(by),
            credential: Credential::Secret(Key::Buffer("b".into()), secret()),
            buffer: "b".into(),
            over_tcp: None,
            by_given_address: false,
            is_told: false,
            activity: std::sync::Arc::default(),
            patience,
        })
        .unwrap();
        fs.set_notify(Arc::new(Kernel));
        fs
    }

    fn end(mut self) {
        (0..COUNT).for_each(|shard| self.stop(shard));
    }
}

/// A kernel that can drop all names at once.
struct Kernel;

impl Notify for Kernel {
    fn entry_changed(&self, _: Ino, _: &[u8]) {}
    fn inode_changed(&self, _: Ino) {}
    fn names_recalled(&self) -> bool {
        true
    }
}

fn root() -> Caller {
    Caller::root()
}

fn mkdir(fs: &RemoteFs, dir: Ino, name: &str) -> Ino {
    fs.mkdir(&root(), dir, name.as_bytes(), ARGS).unwrap().attr.ino
}

/// Which shards so many new directories went to.
fn shards_of_new(fs: &RemoteFs, dir: Ino, name: &str, count: u32) -> Vec<u16> {
    (0..count).map(|n| mkdir(fs, dir, &format!("{name}{n}")).shard().0).collect()
}

/// A mount that has made all the directories that go to its node's server: later ones take turns.
fn mount_taking_turns(buffer: &Buffer, by: u16) -> Arc<RemoteFs> {
    let fs = buffer.mount(by);
    let here = shards_of_new(&fs, Ino::ROOT, "own", OWN_DIRECTORIES);
    assert!(here.iter().all(|shard| *shard == 1), "{here:?}");
    (0..OWN_DIRECTORIES).for_each(|n| {
        fs.rmdir(&root(), Ino::ROOT, format!("own{n}").as_bytes()).unwrap();
    });
    fs
}

fn create(fs: &RemoteFs, dir: Ino, name: &str) -> Ino {
    fs.create(&root(), dir, name.as_bytes(), ARGS, false).unwrap().0.attr.ino
}

fn names(fs: &RemoteFs, dir: Ino) -> BTreeMap<String, (Ino, FileKind, Option<u64>)> {
    let limit = fs.dir_limit(dir).unwrap();
    let mut all = BTreeMap::new();
    let mut taken = Vec::new();
    fs.readdir_plus(dir, Cookie::DOTDOT, limit, &mut |entry| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        let size = entry.attr.map(|attr| attr.size_bytes);
        taken.extend(entry.attr.map(|attr| attr.ino));
        all.insert(name, (entry.ino, entry.kind, size));
        true
    })
    .unwrap();
    taken.into_iter().for_each(|ino| fs.forget(ino, 1));
    all
}

#[test]
fn names_and_inodes_lie_on_all_servers_and_work_as_on_one() {
    let buffer = Buffer::new();
    let fs = mount_taking_turns(&buffer, 0);
    let (who, mut shards) = (root(), BTreeSet::new());
    let mut dirs = Vec::new();
    for n in 0..6 {
        let name = format!("dir.{n}");
        let dir = fs.mkdir(&who, Ino::ROOT, name.as_bytes(), ARGS).unwrap().attr;
        assert_eq!((dir.nlink, dir.kind()), (2, FileKind::Dir));
        shards.insert(dir.ino.shard().0);
        dirs.push(dir.ino);
        let file = create(&fs, dir.ino, "file");
        assert_eq!(file.shard(), ShardId(1), "new files go to the server on this node");
        let data = format!("data of {n}");
        fs.write(file, 0, data.as_bytes(), WriteMode::default()).unwrap();
        let found = fs.lookup(&who, dir.ino, b"file").unwrap().attr;
        assert_eq!((found.ino, found.size_bytes), (file, data.len() as u64));
        let up = fs.lookup(&who, dir.ino, b"..").unwrap().attr.ino;
        assert_eq!(up, Ino::ROOT);
    }
    assert_eq!(shards.len(), 3, "directories take turns");
    assert_eq!(fs.getattr(Ino::ROOT).unwrap().nlink, 8);
    for (n, dir) in dirs.iter().enumerate() {
        let listed = names(&fs, *dir);
        assert_eq!(listed["file"].2, Some(format!("data of {n}").len() as u64), "with attributes");
    }
    // All over all.
    for (n, dir) in dirs.iter().enumerate().skip(1) {
        let (from, to) = ((dirs[n - 1], format!("file{}", "x".repeat(n - 1))), *dir);
        let new = format!("file{}", "x".repeat(n));
        fs.rename(&who, from.0, from.1.as_bytes(), to, new.as_bytes(), 0).unwrap();
        let linked = fs.lookup(&who, to, new.as_bytes()).unwrap().attr.ino;
        assert_eq!(fs.link(&who, linked, dirs[0], new.as_bytes()).unwrap().attr.nlink, 2);
        fs.unlink(&who, dirs[0], new.as_bytes()).unwrap();
        assert_eq!(fs.getattr(linked).unwrap().nlink, 1);
    }
    fs.rename(&who, Ino::ROOT, b"dir.0", dirs[1], b"moved", 0).unwrap();
    assert_eq!(
        fs.rename(&who, Ino::ROOT, b"dir.1", dirs[0], b"circle", 0),
        Err(Errno::EINVAL),
        "into itself, over two servers"
    );
    fs.rename(&who, dirs[1], b"moved", Ino::ROOT, b"dir.2", rename_flags::EXCHANGE).unwrap();
    assert_eq!(fs.lookup(&who, dirs[2], b"..").unwrap().attr.ino, dirs[1]);
    assert_eq!(fs.rmdir(&who, Ino::ROOT, b"dir.5"), Err(Errno::ENOTEMPTY));
    let total = fs.statfs().unwrap();
    assert_eq!(total.blocks_total * u64::from(total.block_bytes), 3 * (64 << 20));
    fs.sync_all().unwrap();
    fs.close();
    buffer.end();
}

#[test]
fn a_node_s_first_directories_lie_on_its_own_server_and_later_ones_take_turns() {
    let buffer = Buffer::new();
    let fs = buffer.mount(0);
    // What is not made, or not there, does not count.
    let spread = mkdir(&fs, Ino::ROOT, "spread");
    fs.setxattr(&root(), spread, b"user.forebay.placement", b"spread", 0, false).unwrap();
    let elsewhere = shards_of_new(&fs, spread, "sub.", 6);
    assert_eq!(elsewhere.iter().collect::<BTreeSet<_>>().len(), 3, "{elsewhere:?}");
    for _ in 0..2 * OWN_DIRECTORIES {
        assert_eq!(fs.mkdir(&root(), Ino::ROOT, b"spread", ARGS).err(), Some(Errno::EEXIST));
    }
    let of_spread = 1 + elsewhere.iter().filter(|shard| **shard == 1).count() as u32;
    let own = shards_of_new(&fs, Ino::ROOT, "own", OWN_DIRECTORIES - of_spread);
    assert!(own.iter().all(|shard| *shard == 1), "{own:?}");
    // Numbered names: evenly.
    let later = shards_of_new(&fs, Ino::ROOT, "rank.", 60);
    assert!((0..3).all(|at| later.iter().filter(|shard| **shard == at).count() == 20), "{later:?}");
    // Another mount of the node has a count of its own, and its creates below are one message.
    let other = buffer.mount(2);
    let dir = mkdir(&other, Ino::ROOT, "mine");
    assert_eq!((dir.shard(), create(&other, dir, "file").shard()), (ShardId(1), ShardId(1)));
    fs.close();
    other.close();
    buffer.end();
}

#[test]
fn directories_of_a_node_with_no_server_or_several_take_turns_from_the_first_on() {
    for near in [&[][..], &[0, 1], &[0, 1, 2]] {
        let buffer = Buffer::near(near);
        let fs = buffer.mount(0);
        let shards = shards_of_new(&fs, Ino::ROOT, "rank.", 12);
        let even = (0..3).all(|at| shards.iter().filter(|shard| **shard == at).count() == 4);
        assert!(even, "near {near:?}: {shards:?}");
        fs.close();
        buffer.end();
    }
}

#[test]
fn many_threads_make_no_more_than_the_bound_on_their_own_server() {
    let buffer = Buffer::new();
    let fs = buffer.mount(0);
    // Whether each is on the node's server, and whether its turn had brought it there.
    let made: Vec<(bool, bool)> = std::thread::scope(|scope| {
        let fs = &fs;
        let make = |t: u32, n: u32| {
            let name = format!("t{t}.{n}");
            let its_turn = placement_index(Ino::ROOT, name.as_bytes()) % u64::from(COUNT) == 1;
            (mkdir(fs, Ino::ROOT, &name).shard() == ShardId(1), its_turn)
        };
        let make_all = move |t| (0..12).map(|n| make(t, n)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|t| scope.spawn(move || make_all(t))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let own = made.iter().filter(|(own, _)| *own).count() as u32;
    let out_of_turn = made.iter().filter(|(own, its_turn)| *own && !its_turn).count() as u32;
    assert!((OWN_DIRECTORIES..48).contains(&own), "{own}");
    assert!((1..=OWN_DIRECTORIES).contains(&out_of_turn), "{out_of_turn}");
    fs.close();
    buffer.end();
}

#[test]
fn two_mounts_see_each_other_s_changes_at_once_wherever_they_are() {
    let buffer = Buffer::new();
    let (a, b, who) = (mount_taking_turns(&buffer, 0), buffer.mount(2), root());
    // The recall connections of both are there.
    std::thread::sleep(Duration::from_millis(300));
    for n in 0..12 {
        let name = format!("d{n}");
        let dir = a.mkdir(&who, Ino::ROOT, name.as_bytes(), ARGS).unwrap().attr.ino;
        assert_eq!(b.lookup(&who, Ino::ROOT, name.as_bytes()).unwrap().attr.ino, dir);
        assert_eq!(b.lookup(&who, dir, b"f").err(), Some(Errno::ENOENT));
        let file = create(&a, dir, "f");
        assert_eq!(b.lookup(&who, dir, b"f").unwrap().attr.ino, file);
        b.write(file, 0, b"12345", WriteMode::default()).unwrap();
        assert_eq!(a.getattr(file).unwrap().size_bytes, 5);
        b.rename(&who, dir, b"f", Ino::ROOT, name.replace('d', "f").as_bytes(), 0).unwrap();
        assert_eq!(a.lookup(&who, dir, b"f").err(), Some(Errno::ENOENT));
        b.rmdir(&who, Ino::ROOT, name.as_bytes()).unwrap();
        assert_eq!(a.lookup(&who, Ino::ROOT, name.as_bytes()).err(), Some(Errno::ENOENT));
        assert_eq!(a.mkdir(&who, dir, b"late", ARGS).err(), Some(Errno::ENOENT), "it is removed");
        a.unlink(&who, Ino::ROOT, name.replace('d', "f").as_bytes()).unwrap();
        // Open over there: it is there until its last close.
        let mut text = [0; 5];
        assert_eq!((b.read(file, 0, &mut text), text), (Ok(5), *b"12345"));
    }
    a.close();
    b.close();
    buffer.end();
}

#[test]
fn a_server_that_is_away_fails_only_what_needs_it_and_is_waited_for() {
    let mut buffer = Buffer::new();
    let fs = buffer.mount_patient(0, Duration::from_secs(2));
    let who = root();
    let on = |shard: u16| {
        let name = |n: u32| format!("on{n}.{shard}");
        (0..).map(name).find_map(|name| {
            let dir = fs.mkdir(&who, Ino::ROOT, name.as_bytes(), ARGS).unwrap().attr.ino;
            (dir.shard().0 == shard).then_some(dir)
        })
    };
    let (here, away) = (on(0).unwrap(), on(2).unwrap());
    create(&fs, away, "file");
    buffer.stop(2);
    let begun = Instant::now();
    assert_eq!(fs.lookup(&who, away, b"file").err(), Some(Errno::ETIMEDOUT));
    assert!(begun.elapsed() >= Duration::from_secs(1), "it was waited for");
    let begun = Instant::now();
    create(&fs, here, "while-away");
    assert!(names(&fs, Ino::ROOT).len() > 1);
    fs.statfs().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "others are not held up");
    let waits = {
        let fs = Arc::clone(&fs);
        std::thread::spawn(move || {
            loop {
                match fs.lookup(&root(), away, b"file") {
                    Err(Errno::ETIMEDOUT) => std::thread::sleep(Duration::from_millis(50)),
                    other => return other,
                }
            }
        })
    };
    buffer.start(2);
    assert!(waits.join().unwrap().is_ok(), "it is there again, with all it had");
    fs.close();
    buffer.end();
}
