//! Plans over a real namespace of three shards: three servers of one process, each with its
//! namespace, objects and mover, joined by questions as servers are.

use super::snapshot;
use super::support::{LIMIT, leftovers, need_root, noise, spec};
use crate::mover::tree::BufferTree;
use crate::mover::{Mover, MoverOptions, Servers};
use crate::namespace::shards::{About, Believers, Quiet};
use crate::namespace::store::{LmdbStore, StoreOptions};
use crate::namespace::{Namespace, NamespaceOptions};
use crate::objects::{Accounting, Objects};
use crate::over_tree::OverTree;
use crate::peers::Peers;
use forebay_proto::api::{CreateArgs, FileSystem};
use forebay_proto::control::{Direction, PathBytes, PlanState, PlanStatus, StageKind, StageSpec};
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Caller, Errno, Ino, Result, ShardId};
use parking_lot::RwLock;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVERS: u16 = 3;
const CAPACITY_BYTES: u64 = 1 << 30;

struct Server {
    namespace: Arc<Namespace>,
    tree: Arc<OverTree>,
    mover: Arc<Mover>,
}

#[derive(Default)]
struct Net {
    servers: RwLock<Vec<Option<Arc<Server>>>>,
}

struct Line {
    net: Arc<Net>,
    mine: ShardId,
}

impl Peers for Line {
    fn mine(&self) -> ShardId {
        self.mine
    }

    fn count(&self) -> u16 {
        SERVERS
    }

    fn buffer(&self) -> u128 {
        5
    }

    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        let server = self.net.servers.read().get(usize::from(to.0)).cloned().flatten();
        let server = server.ok_or(Errno::EHOSTUNREACH)?;
        match question {
            Question::Names { from, question, .. } => {
                server.namespace.asked(*from, question).map(Reply::Names)
            }
            Question::Objects { from, question, .. } => {
                server.namespace.answer_objects(*from, question, payload, room).map(Reply::Objects)
            }
            Question::Staging { question, .. } => server.mover.answer(question).map(Reply::Staging),
            Question::Tree { asked, .. } => {
                let asked = frame::decode_borrowed(asked).map_err(|_| Errno::EPROTO)?;
                let mut body = Vec::new();
                frame::encode(&server.namespace.answer_tree(&asked), &mut body).unwrap();
                Ok(Reply::Tree(body))
            }
            Question::Pool(_) => Err(Errno::EPROTO),
        }
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

struct Rig {
    dir: PathBuf,
    net: Arc<Net>,
    _keep: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().to_path_buf();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.join("pfs")).unwrap();
        let net = Arc::<Net>::default();
        net.servers.write().resize_with(usize::from(SERVERS), || None);
        let rig = Rig { dir, net, _keep: keep };
        let servers: Vec<_> = (0..SERVERS).map(|shard| rig.open(shard, false)).collect();
        for (shard, server) in servers.into_iter().enumerate() {
            rig.net.servers.write()[shard] = Some(server);
        }
        (0..SERVERS).for_each(|shard| rig.begin(shard));
        rig
    }

    fn open(&self, shard: u16, unclean: bool) -> Arc<Server> {
        let dir = self.dir.join(format!("store-{shard}"));
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
        let peers: Arc<dyn Peers> = Arc::new(Line { net: self.net.clone(), mine: ShardId(shard) });
        let options = NamespaceOptions {
            peers: Some(peers.clone()),
            shard: ShardId(shard),
            capacity_bytes: CAPACITY_BYTES,
            volatile: false,
            root_uid: 0,
            root_gid: 0,
            hold_orphans: false,
        };
        let objects = Arc::new(objects);
        let store = Arc::new(store.unwrap());
        let namespace = Namespace::open(store, objects, options, unclean).unwrap().0;
        namespace.join_servers(peers.clone()).unwrap();
        let tree = Arc::new(OverTree::new(namespace.clone(), peers.clone()));
        let options = MoverOptions {
            servers: Some(Servers::new(peers)),
            workers: 2,
            ..MoverOptions::default()
        };
        let mover = Mover::new(tree.clone(), dir.join("plans"), options).unwrap();
        Arc::new(Server { namespace, tree, mover: Arc::new(mover) })
    }

    /// What a server does once it can be reached.
    fn begin(&self, shard: u16) {
        let server = self.at(shard);
        server.namespace.start_shards(Arc::new(Nobody)).unwrap();
        server.mover.resume();
    }

    fn at(&self, shard: u16) -> Arc<Server> {
        self.net.servers.read()[usize::from(shard)].clone().unwrap()
    }

    fn pfs(&self, rel: &str) -> PathBuf {
        self.dir.join("pfs").join(rel)
    }

    fn stage_in(&self, pfs: &str, buffer: &str) -> StageSpec {
        spec(Direction::In, &self.pfs(pfs), buffer)
    }

    fn stage_out(&self, buffer: &str, pfs: &str) -> StageSpec {
        spec(Direction::Out, &self.pfs(pfs), buffer)
    }

    fn run_as(&self, who: &Caller, spec: StageSpec) -> PlanStatus {
        let mover = self.at(0).mover.clone();
        let plan = mover.start(who, spec).unwrap().plan;
        let status = mover.wait(&Caller::root(), plan, LIMIT).unwrap();
        assert!(status.state.is_final(), "the plan does not end: {status:#?}");
        status
    }

    fn must(&self, spec: StageSpec) -> PlanStatus {
        let status = self.run_as(&Caller::root(), spec);
        assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
        assert_eq!(status.files_done, status.files_total);
        assert_eq!(status.bytes_done, status.bytes_total);
        status
    }

    /// Files and their bytes on each server.
    fn held(&self) -> Vec<(usize, u64)> {
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

fn make_tree(top: &Path, files: u64) {
    for dir in 0..5 {
        let dir = top.join(format!("d{dir}/\u{e4}\u{df} \n"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..files / 5 {
            let file = dir.join(std::ffi::OsStr::from_bytes(
                &[format!("rank.{number}").as_bytes(), b"\xff"].concat(),
            ));
            std::fs::write(&file, noise(1_000 + 13 * number as usize, number)).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        }
        std::fs::write(dir.join("first"), noise(5_000, 9)).unwrap();
        let again =
            top.join(format!("again-{}", dir.parent().unwrap().file_name().unwrap().display()));
        std::fs::hard_link(dir.join("first"), again).unwrap();
        symlink("first", dir.join("link")).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o555)).unwrap();
    }
    let made = Command::new("mkfifo").arg(top.join("fifo")).status().unwrap();
    assert!(made.success());
    let big = std::fs::File::create(top.join("sparse")).unwrap();
    big.write_all_at(&noise(1 << 20, 5), 1 << 20).unwrap();
    big.set_len(40 << 20).unwrap();
    std::fs::write(top.join("empty"), b"").unwrap();
}

fn same(one: &Path, other: &Path) {
    let take = |path: &Path| snapshot::forget_atimes(snapshot::take(path));
    snapshot::assert_same(&take(one), &take(other));
}

#[test]
fn a_tree_goes_into_three_shards_and_comes_out_the_same() {
    need_root();
    let rig = Rig::new();
    make_tree(&rig.pfs("tree"), 300);
    let status = rig.must(rig.stage_in("tree", "/in/deep"));
    assert!(status.parts.iter().all(|part| part.files_done > 50), "{:#?}", status.parts);
    let held = rig.held();
    assert!(held.iter().all(|(files, _)| (70..140).contains(files)), "{held:?}");
    // Each server held all of what it copied: the plan's parts say so, and so does the tree.
    let status = rig.must(rig.stage_out("/in/deep", "out"));
    assert!(status.parts.iter().all(|part| part.files_done > 50), "{:#?}", status.parts);
    same(&rig.pfs("tree"), &rig.pfs("out"));
    assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
    // Again over what is there: files of other shards give way.
    std::fs::write(rig.pfs("tree/d1/\u{e4}\u{df} \n/first"), b"other").unwrap();
    rig.must(rig.stage_in("tree", "/in/deep"));
    rig.must(rig.stage_out("/in/deep", "out-2"));
    // But for the top, which was there before and keeps its own times.
    let below = |path: &Path| {
        let mut tree = snapshot::forget_atimes(snapshot::take(path));
        tree.remove(&b""[..]).unwrap();
        tree
    };
    snapshot::assert_same(&below(&rig.pfs("tree")), &below(&rig.pfs("out-2")));
    let end = Instant::now() + Duration::from_secs(20);
    while rig.held().iter().map(|(files, _)| files).sum::<usize>() > held.iter().map(|h| h.0).sum()
    {
        assert!(Instant::now() < end, "files that gave way stay: {:?}", rig.held());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn large_files_are_spread_by_bytes() {
    let rig = Rig::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..12 {
        std::fs::write(rig.pfs(&format!("tree/rank.{number}")), noise(3 << 20, number)).unwrap();
    }
    rig.must(rig.stage_in("tree", "/in"));
    assert_eq!(rig.held(), [(4, 12 << 20); 3]);
}

#[test]
fn striped_files_are_staged_both_ways() {
    need_root();
    let rig = Rig::new();
    let (root, who) = (rig.at(0), Caller::root());
    let dir = root.tree.mkdir(&who, Ino::ROOT, b"wide", 0o755).unwrap().ino;
    let at = rig.at(dir.shard().0);
    for (name, value) in [("stripe_count", "3"), ("stripe_size_bytes", "65536")] {
        let name = format!("user.forebay.{name}");
        let set = at.namespace.setxattr(&who, dir, name.as_bytes(), value.as_bytes(), 0, false);
        set.unwrap();
    }
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..6 {
        let bytes = noise((number as usize * 700_001) % 3_000_000, number);
        std::fs::write(rig.pfs(&format!("tree/{number}")), bytes).unwrap();
    }
    let sparse = std::fs::File::create(rig.pfs("tree/sparse")).unwrap();
    sparse.write_all_at(&noise(200_000, 5), 7 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    rig.must(rig.stage_in("tree", "/wide"));
    let held = rig.held();
    assert!(held.iter().all(|(files, bytes)| *files == 6 && *bytes > 1 << 20), "{held:?}");
    std::fs::create_dir(rig.pfs("out")).unwrap();
    rig.must(rig.stage_out("/wide", "out"));
    for name in ["0", "1", "2", "3", "4", "5", "sparse"] {
        let read = |dir: &str| std::fs::read(rig.pfs(&format!("{dir}/{name}"))).unwrap();
        assert!(read("tree") == read("out"), "{name}");
    }
    let blocks = std::os::unix::fs::MetadataExt::blocks(&rig.pfs("out/sparse").metadata().unwrap());
    assert!(blocks * 512 < 1 << 20, "{blocks}");
}

#[test]
fn rights_are_checked_by_the_server_that_has_the_directory() {
    need_root();
    let rig = Rig::new();
    let user = Caller { uid: 1234, gid: 1234, groups: vec![1234], ..Caller::default() };
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..20 {
        std::fs::write(rig.pfs(&format!("tree/{number}")), noise(2_000, number)).unwrap();
    }
    let tree = rig.at(1).tree.clone();
    let mut dirs = Vec::new();
    for number in 0..8 {
        let name = format!("closed-{number}");
        let made = tree.mkdir(&Caller::root(), Ino::ROOT, name.as_bytes(), 0o755).unwrap();
        dirs.push(made.ino.shard());
        let status = rig.run_as(&user, rig.stage_in("tree", &format!("/{name}")));
        assert_eq!(status.state, PlanState::Failed);
        assert_eq!(status.files_done, 0, "{status:#?}");
        assert!(status.errors.iter().all(|e| e.errno == libc::EACCES), "{:#?}", status.errors);
    }
    assert!((0..SERVERS).all(|shard| dirs.contains(&ShardId(shard))), "{dirs:?}");
    assert_eq!(rig.held(), [(0, 0); 3]);
}

#[test]
fn lists_and_files_on_other_shards_are_found() {
    let rig = Rig::new();
    let root = rig.at(0);
    let who = Caller::root();
    let mut list = String::new();
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    for number in 0..9 {
        std::fs::write(rig.pfs(&format!("tree/f{number}")), noise(9_000, number)).unwrap();
        list.push_str(&format!("/in/f{number}\n"));
    }
    rig.must(rig.stage_in("tree", "/in"));
    for number in 0..4 {
        std::fs::write(rig.pfs(&format!("list{number}")), &list).unwrap();
        rig.must(rig.stage_in(&format!("list{number}"), &format!("/list{number}")));
        let out = format!("listed{number}");
        std::fs::create_dir(rig.pfs(&out)).unwrap();
        let spec = rig.stage_out(&format!("/list{number}"), &out);
        rig.must(StageSpec { kind: StageKind::List, ..spec });
        for number in 0..9 {
            let file = std::fs::read(rig.pfs(&format!("{out}/f{number}"))).unwrap();
            assert_eq!(file, noise(9_000, number));
        }
        let status = root.tree.status(&who, format!("/list{number}").as_bytes()).unwrap();
        assert_eq!(status.size_bytes, list.len() as u64);
        assert_eq!(status.path, PathBytes::new(format!("/list{number}").as_bytes()));
    }
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let rig = Rig::new();
    make_tree(&rig.pfs("tree"), 60);
    let away = rig.net.servers.write()[2].take();
    let mover = rig.at(0).mover.clone();
    let plan = mover.start(&Caller::root(), rig.stage_in("tree", "/in")).unwrap().plan;
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(mover.status(&Caller::root(), plan).unwrap().state, PlanState::Running);
    rig.net.servers.write()[2] = away;
    let status = mover.wait(&Caller::root(), plan, LIMIT).unwrap();
    assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
    rig.must(rig.stage_out("/in", "out"));
}

#[test]
fn names_made_meanwhile_by_mounts_are_seen() {
    let rig = Rig::new();
    let (root, who) = (rig.at(0), Caller::root());
    let args = CreateArgs { mode: 0o755, umask: 0 };
    for number in 0..3_000 {
        let name = format!("a name that is long enough for several answers {number:06}");
        FileSystem::mkdir(&*root.namespace, &who, Ino::ROOT, name.as_bytes(), args).unwrap();
    }
    let names = rig.at(2).tree.list(&who, Ino::ROOT).unwrap();
    assert_eq!(names.len(), 3_000);
    let many = "x".repeat(200);
    for number in 0..2_000 {
        let name = format!("{many}{number}");
        FileSystem::mkdir(&*root.namespace, &who, Ino::ROOT, name.as_bytes(), args).unwrap();
    }
    let mut names = rig.at(1).tree.list(&who, Ino::ROOT).unwrap();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(names.len(), 5_000);
}
