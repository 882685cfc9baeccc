//! Striped files over the servers of one process, which can be away: against a model, over restarts,
//! and what is left behind by removals and by servers that were killed. Files in logs use the same servers.

use super::super::{Namespace, NamespaceOptions};
use forebay_interfaces::peers::asking;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, WriteMode};
use forebay_proto::attr::{SetAttr, SetTime, Timestamp};
use forebay_proto::net::frame::MAX_PAYLOAD_BYTES;
use forebay_proto::net::servers::{Question, Reply};
use forebay_proto::{Caller, Errno, FileKind, Ino, ObjectId, RequestId, Result, ShardId};
use forebay_store::metadata::{LmdbStore, StoreOptions};
use forebay_store::objects::{Accounting, Objects};
use forebay_store::record::{AnswerRecord, Answered, slot_of};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ARGS: CreateArgs = CreateArgs { mode: 0o755, umask: 0 };
const STRIPE: u64 = 4096;

/// The servers, in their order; one that is not there is away.
#[derive(Default)]
pub(super) struct Net {
    servers: RwLock<Vec<Option<Arc<Namespace>>>>,
    /// Answers get lost: the question was answered, and who asked does not hear it.
    deaf: AtomicBool,
    asked: AtomicU64,
}

impl Net {
    fn ask(
        &self,
        to: ShardId,
        question: &Question<'_>,
        payload: &[u8],
        room: &mut Vec<u8>,
    ) -> Result<Reply> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        // A longer one has no place in a message.
        if payload.len() > MAX_PAYLOAD_BYTES as usize {
            return Err(Errno::EMSGSIZE);
        }
        let server = self.servers.read().get(usize::from(to.0)).cloned().flatten();
        let server = server.ok_or(Errno::EHOSTUNREACH)?;
        let Question::Objects { from, question, .. } = question else { return Err(Errno::EPROTO) };
        room.clear();
        let answer =
            server.stripes().answer_objects(*from, question, payload, room).map(Reply::Objects);
        match self.deaf.load(Ordering::Relaxed) {
            true => Err(Errno::ETIMEDOUT),
            false => answer,
        }
    }
}

pub(super) struct Rig {
    pub(super) dir: tempfile::TempDir,
    net: Arc<Net>,
    count: u16,
    capacity: u64,
}

impl Rig {
    pub(super) fn new(count: u16) -> Rig {
        Rig::with_capacity(count, 1 << 30)
    }

    pub(super) fn with_capacity(count: u16, capacity: u64) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig { dir, net: Arc::default(), count, capacity };
        rig.net.servers.write().resize(usize::from(count), None);
        (0..count).for_each(|shard| rig.start(shard, false));
        rig
    }

    pub(super) fn start(&self, shard: u16, unclean: bool) {
        let dir = self.dir.path().join(shard.to_string());
        let namespace = open(&dir, ShardId(shard), self.capacity, unclean);
        namespace.answers().settle().unwrap();
        let net = Arc::clone(&self.net);
        let peers = asking(ShardId(shard), self.count, 5, move |to, question, payload, room| {
            net.ask(to, question, payload, room)
        });
        namespace.join_servers(peers).unwrap();
        namespace.stripes.set_patience(Duration::from_millis(100));
        self.net.servers.write()[usize::from(shard)] = Some(namespace);
    }

    /// As after a kill: what the server has not done is not done.
    pub(super) fn kill(&self, shard: u16) {
        let namespace = self.net.servers.write()[usize::from(shard)].take().unwrap();
        namespace.close();
        let gone = Arc::downgrade(&namespace);
        drop(namespace);
        wait_until(|| gone.strong_count() == 0);
    }

    pub(super) fn at(&self, shard: u16) -> Arc<Namespace> {
        self.net.servers.read()[usize::from(shard)].clone().unwrap()
    }

    /// A new file on as many servers as `layout` says.
    pub(super) fn file(&self, name: &str, count: &str) -> Ino {
        let root = self.at(0);
        let who = Caller::root();
        let made = root.mknod(&who, Ino::ROOT, name.as_bytes(), FileKind::File, ARGS, 0).unwrap();
        let set = |name: &str, value: &str| {
            let name = format!("user.forebay.{name}");
            root.setxattr(&who, made.attr.ino, name.as_bytes(), value.as_bytes(), 0, false)
        };
        set("stripe_size_bytes", &STRIPE.to_string()).unwrap();
        set("stripe_count", count).unwrap();
        made.attr.ino
    }

    pub(super) fn objects(&self) -> usize {
        let mut count = 0;
        for server in self.net.servers.read().iter().flatten() {
            server.objects().for_each(&mut |id, _| count += usize::from(id.ino.0 > 1)).unwrap();
        }
        count
    }
}

fn open(dir: &Path, shard: ShardId, capacity: u64, unclean: bool) -> Arc<Namespace> {
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
    })
    .unwrap();
    let account = Accounting::new(capacity);
    let objects = Objects::open(&dir.join("data"), false, true, Some(account)).unwrap();
    let options = NamespaceOptions {
        peers: None,
        shard,
        capacity_bytes: capacity,
        volatile: false,
        root_uid: 0,
        root_gid: 0,
        log: forebay_proto::layout::Logs::Off,
        hold_orphans: false,
    };
    Namespace::open(Arc::new(store), Arc::new(objects), options, unclean).unwrap().0
}

pub(super) fn wait_until(done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes as a mount does: each object at its own server.
fn write_direct(rig: &Rig, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
    let layout = rig.at(0).attrs().layout(ino).unwrap();
    for part in layout.parts(offset, data.len() as u64) {
        let mut bytes = Vec::new();
        for run in layout.runs(part) {
            let from = (run.file_offset - offset) as usize;
            bytes.extend_from_slice(&data[from..from + run.bytes as usize]);
        }
        let server = rig.at(layout.shard_of(part.stripe, rig.count).0);
        let object = ObjectId { ino, stripe: part.stripe };
        let count = server.stripes().write_object(object, part.offset, &bytes, false)?;
        assert_eq!(count, bytes.len());
    }
    Ok(())
}

pub(super) fn whole(ns: &Namespace, ino: Ino) -> Vec<u8> {
    let size = ns.getattr(ino).unwrap().size_bytes;
    let mut bytes = vec![0xee; size as usize + 100];
    let have = ns.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(have as u64, size);
    bytes.truncate(have);
    bytes
}

pub(super) fn resize(ns: &Namespace, ino: Ino, size_bytes: u64) -> Result<u64> {
    let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    Ok(ns.setattr(&Caller::root(), ino, &change)?.size_bytes)
}

#[test]
fn random_changes_agree_with_a_model() {
    for servers in [2, 3, 5] {
        let rig = Rig::new(servers);
        let mut random = 11 + u64::from(servers);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for (name, count) in [("a", "2"), ("b", &servers.to_string())] {
            let ino = rig.file(name, count);
            let ns = rig.at(0);
            let mut model: Vec<u8> = Vec::new();
            for step in 0..400 {
                let fill = vec![1 + (step % 250) as u8; 1 + next(3 * STRIPE) as usize];
                let at = next(12 * STRIPE);
                let put = |model: &mut Vec<u8>, at: u64, bytes: &[u8]| {
                    let end = at as usize + bytes.len();
                    if model.len() < end {
                        model.resize(end, 0);
                    }
                    model[at as usize..end].copy_from_slice(bytes);
                };
                match next(7) {
                    0 | 1 => {
                        write_direct(&rig, ino, at, &fill).unwrap();
                        put(&mut model, at, &fill);
                    }
                    2 => {
                        let wrote = ns.write(ino, at, &fill, WriteMode::default()).unwrap();
                        assert_eq!(wrote, fill.len());
                        put(&mut model, at, &fill);
                    }
                    3 => {
                        let append = WriteMode { append: true, ..WriteMode::default() };
                        assert_eq!(ns.write(ino, 0, &fill, append), Ok(fill.len()));
                        model.extend_from_slice(&fill);
                    }
                    4 => {
                        assert_eq!(resize(&ns, ino, at), Ok(at));
                        model.resize(at as usize, 0);
                    }
                    5 => {
                        let keep = next(2) as u32 * libc::FALLOC_FL_KEEP_SIZE as u32;
                        ns.fallocate(ino, keep, at, fill.len() as u64).unwrap();
                        if keep == 0 && model.len() < at as usize + fill.len() {
                            model.resize(at as usize + fill.len(), 0);
                        }
                    }
                    _ => {
                        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                        ns.fallocate(ino, punch as u32, at, fill.len() as u64).unwrap();
                        let end = model.len().min(at as usize + fill.len());
                        if let Some(hole) = model.get_mut(at as usize..end) {
                            hole.fill(0);
                        }
                    }
                }
                assert!(whole(&ns, ino) == model, "{servers} servers, file {name}, step {step}");
            }
        }
    }
}

#[test]
fn data_and_holes_are_found_over_the_servers() {
    let rig = Rig::new(3);
    let ino = rig.file("f", "3");
    let ns = rig.at(0);
    write_direct(&rig, ino, 2 * STRIPE, &[1; STRIPE as usize]).unwrap();
    write_direct(&rig, ino, 7 * STRIPE, &[1; 2 * STRIPE as usize]).unwrap();
    assert_eq!(resize(&ns, ino, 11 * STRIPE), Ok(11 * STRIPE));
    let (data, hole) = (libc::SEEK_DATA as u32, libc::SEEK_HOLE as u32);
    let seek = |at: u64, whence| ns.seek(ino, at * STRIPE, whence).map(|at| at / STRIPE);
    assert_eq!((seek(0, data), seek(0, hole)), (Ok(2), Ok(0)));
    assert_eq!((seek(2, data), seek(2, hole)), (Ok(2), Ok(3)));
    assert_eq!((seek(3, data), seek(3, hole)), (Ok(7), Ok(3)));
    assert_eq!((seek(7, data), seek(7, hole)), (Ok(7), Ok(9)));
    assert_eq!((seek(9, data), seek(9, hole)), (Err(Errno::ENXIO), Ok(9)));
    assert_eq!((seek(11, data), seek(11, hole)), (Err(Errno::ENXIO), Err(Errno::ENXIO)));
    resize(&ns, ino, 9 * STRIPE).unwrap();
    assert_eq!(seek(8, hole), Ok(9), "the end counts as a hole");
}

#[test]
fn times_are_those_of_the_last_change() {
    let rig = Rig::new(2);
    let ino = rig.file("f", "2");
    let ns = rig.at(0);
    write_direct(&rig, ino, 0, &[1; 2 * STRIPE as usize]).unwrap();
    let time = |sec| Timestamp { sec, nsec: 7 };
    let set = |atime, mtime| {
        let change = SetAttr { atime, mtime, ..SetAttr::default() };
        ns.setattr(&Caller::root(), ino, &change).unwrap()
    };
    let attr = set(Some(SetTime::At(time(1000))), Some(SetTime::At(time(2000))));
    assert_eq!((attr.atime, attr.mtime), (time(1000), time(2000)));
    let attr = set(Some(SetTime::At(time(3000))), None);
    assert_eq!((attr.atime, attr.mtime), (time(3000), time(2000)));
    std::thread::sleep(Duration::from_millis(20));
    let before = Timestamp::now();
    write_direct(&rig, ino, STRIPE, &[2]).unwrap();
    let attr = ns.getattr(ino).unwrap();
    assert!(attr.mtime >= before && attr.atime == time(3000), "{attr:?}");
    let future = time(9_000_000_000);
    assert_eq!(set(None, Some(SetTime::At(future))).mtime, future);
    std::thread::sleep(Duration::from_millis(20));
    assert!(resize(&ns, ino, 3).is_ok() && ns.getattr(ino).unwrap().mtime < future);
}

#[test]
fn removed_files_leave_nothing_on_any_server() {
    let rig = Rig::new(3);
    let (a, b) = (rig.file("a", "3"), rig.file("b", "3"));
    for ino in [a, b] {
        write_direct(&rig, ino, 0, &[1; 6 * STRIPE as usize]).unwrap();
        rig.at(0).forget(ino, 1);
    }
    assert_eq!(rig.objects(), 6);
    rig.at(0).unlink(&Caller::root(), Ino::ROOT, b"a").unwrap();
    wait_until(|| rig.objects() == 3);
    // A server is away: the record stays until it has answered, also over a restart.
    rig.kill(2);
    rig.at(0).unlink(&Caller::root(), Ino::ROOT, b"b").unwrap();
    wait_until(|| rig.objects() == 0);
    assert!(rig.at(0).store().inode(b).unwrap().is_some());
    rig.kill(0);
    rig.start(0, true);
    assert!(rig.at(0).store().inode(b).unwrap().is_some());
    let late = rig.at(1).stripes().write_object(ObjectId { ino: b, stripe: 1 }, 0, b"x", false);
    assert_eq!(late, Err(Errno::ESTALE), "no object of a file that is being removed");
    rig.start(2, true);
    wait_until(|| rig.objects() == 0 && rig.at(0).store().inode(b).unwrap().is_none());
    assert!(rig.at(0).store().orphans().unwrap().is_empty());
}

#[test]
fn objects_of_unknown_files_go_when_their_server_says_so_and_not_before() {
    let rig = Rig::new(2);
    let ino = rig.file("f", "2");
    write_direct(&rig, ino, 0, &[1; 4 * STRIPE as usize]).unwrap();
    // As a power cut of server 0 leaves it: its record of the file was not durable.
    rig.kill(0);
    rig.at(1).objects().create(ObjectId { ino: Ino(4_000_000), stripe: 1 }).unwrap();
    rig.kill(1);
    rig.start(1, true);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rig.objects(), 2, "nobody can say which are needed");
    rig.start(0, true);
    wait_until(|| {
        rig.objects() == 2
            && rig.at(1).objects().stat(ObjectId { ino: Ino(4_000_000), stripe: 1 }).is_err()
    });
    assert!(whole(&rig.at(0), ino) == vec![1; 4 * STRIPE as usize]);
    for shard in 0..2 {
        rig.kill(shard);
        let data = rig.dir.path().join(shard.to_string()).join("data");
        let ns = open(&rig.dir.path().join(shard.to_string()), ShardId(shard), 1 << 30, false);
        let problems = crate::check_objects(ns.store(), &data, true).unwrap();
        assert_eq!(problems, Vec::<String>::new());
        ns.close();
    }
}

#[test]
fn what_a_kill_interrupted_is_done_once() {
    let rig = Rig::new(2);
    let ino = rig.file("f", "2");
    write_direct(&rig, ino, 0, &[1; 3 * STRIPE as usize]).unwrap();
    let at = 3 * STRIPE;
    let who = |seq| Caller { request: RequestId { client: 9, seq }, ..Caller::root() };
    let note = |seq, what| rig.at(0).answers().note(&who(seq), what).unwrap();
    let count = 2 * STRIPE as u32;
    let appending = Answered::Appending { ino, at, count, alone: true };
    // Half of the append is there, and server 1 is away when server 0 starts again.
    note(1, appending);
    write_direct(&rig, ino, at, &[2; 100]).unwrap();
    rig.kill(1);
    rig.kill(0);
    rig.start(0, true);
    assert!(rig.at(0).getattr(ino).is_err(), "it cannot be told yet");
    rig.start(1, true);
    wait_until(|| rig.at(0).getattr(ino).is_ok());
    assert_eq!(rig.at(0).getattr(ino).unwrap().size_bytes, at, "a part is taken off");
    assert_eq!(rig.at(0).striped().settled(&who(1), appending), Ok(Answered::Undone));
    // All of it is there.
    note(2, appending);
    write_direct(&rig, ino, at, &[2; 2 * STRIPE as usize]).unwrap();
    rig.kill(0);
    rig.start(0, true);
    assert_eq!(rig.at(0).striped().settled(&who(2), appending), Ok(Answered::Appended(count)));
    assert_eq!(rig.at(0).getattr(ino).unwrap().size_bytes, 5 * STRIPE);
    // A new size that reached one of the servers.
    let truncating = Answered::Truncating { ino, size_bytes: 5000, alone: true };
    note(3, truncating);
    rig.kill(0);
    rig.start(0, true);
    assert_eq!(rig.at(0).striped().settled(&who(3), truncating), Ok(Answered::Truncated));
    assert_eq!(rig.at(0).getattr(ino).unwrap().size_bytes, 5000);
    let (slot, seq) = slot_of(who(3).request);
    let kept = AnswerRecord { seq, what: Answered::Truncated };
    assert!(rig.at(0).store().answers().unwrap().contains(&((9, slot), kept)));
}

#[test]
fn a_change_whose_answer_was_lost_does_not_come_late() {
    let rig = Rig::new(2);
    let ino = rig.file("f", "2");
    write_direct(&rig, ino, 0, &[1; 4 * STRIPE as usize]).unwrap();
    rig.net.deaf.store(true, Ordering::Relaxed);
    assert_eq!(resize(&rig.at(0), ino, 0), Err(Errno::ETIMEDOUT));
    rig.net.deaf.store(false, Ordering::Relaxed);
    assert_eq!(resize(&rig.at(0), ino, 0), Ok(0));
    use forebay_proto::net::servers::{ChangeOrder, ObjectChange, ObjectsQuestion};
    write_direct(&rig, ino, 0, &[3; 2 * STRIPE as usize]).unwrap();
    let stripe = rig.at(0).attrs().layout(ino).unwrap().stripe_on(ShardId(1), 2).unwrap();
    let change =
        ObjectChange::Truncate { object: ObjectId { ino, stripe }, size_bytes: 0, at_most: true };
    let late = ObjectsQuestion::Change { order: ChangeOrder { start: 1, number: 0 }, change };
    let answer = rig.at(1).stripes().answer_objects(ShardId(0), &late, b"", &mut Vec::new());
    assert_eq!(answer, Err(Errno::EAGAIN));
    assert_eq!(rig.at(0).getattr(ino).unwrap().size_bytes, 2 * STRIPE);
    let foreign = rig.at(0).stripes().answer_objects(ShardId(1), &late, b"", &mut Vec::new());
    assert_eq!(foreign, Err(Errno::EPERM), "only the inode's server may ask");
}

#[test]
fn a_full_server_ends_an_append_where_it_is_full() {
    let rig = Rig::with_capacity(2, 8 * STRIPE);
    let ino = rig.file("f", "2");
    let ns = rig.at(0);
    let append = WriteMode { append: true, ..WriteMode::default() };
    // One of the servers has three units taken by another file.
    let other = rig.file("g", "1");
    ns.open(&Caller::root(), other, libc::O_RDWR as u32, false, false).unwrap();
    ns.write(other, 0, &[1; 4 * STRIPE as usize], WriteMode::default()).unwrap();
    let mut all = 0;
    loop {
        match ns.write(ino, 0, &[5; 3 * STRIPE as usize], append) {
            Ok(count) => all += count as u64,
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                break;
            }
        }
        assert_eq!(ns.getattr(ino).unwrap().size_bytes, all);
    }
    assert!(whole(&ns, ino) == vec![5; all as usize] && all >= 8 * STRIPE, "{all}");
    assert_eq!(ns.getattr(ino).unwrap().size_bytes, all);
}

#[test]
fn layouts_are_inherited_and_fixed_with_the_first_byte() {
    let rig = Rig::new(3);
    let (ns, who) = (rig.at(0), Caller::root());
    let get = |ino, name: &str| {
        let value = ns.getxattr(ino, format!("user.forebay.{name}").as_bytes());
        value.map(|value| String::from_utf8(value).unwrap())
    };
    let set = |ino, name: &str, value: &str| {
        let name = format!("user.forebay.{name}");
        ns.setxattr(&who, ino, name.as_bytes(), value.as_bytes(), 0, false)
    };
    let dir = ns.mkdir(&who, Ino::ROOT, b"d", ARGS).unwrap().attr.ino;
    assert_eq!(get(dir, "stripe_count"), Ok("1".into()));
    set(dir, "stripe_count", "2").unwrap();
    set(dir, "stripe_size_bytes", "65536").unwrap();
    set(dir, "placement", "directory").unwrap();
    assert_eq!(set(dir, "stripe_count", "4"), Err(Errno::ERANGE));
    assert_eq!(set(dir, "stripe_count", "0"), Err(Errno::ERANGE));
    assert_eq!(set(dir, "stripe_size_bytes", "5000"), Err(Errno::ERANGE));
    assert_eq!(set(dir, "placement", "nowhere"), Err(Errno::EINVAL));
    assert_eq!(set(dir, "servers", "1"), Err(Errno::EPERM));
    let sub = ns.mkdir(&who, dir, b"sub", ARGS).unwrap().attr.ino;
    assert_eq!(get(sub, "placement"), Ok("directory".into()));
    let mut on = [0; 3];
    for n in 0..30 {
        let name = format!("rank.{n}");
        let file = ns.create(&who, sub, name.as_bytes(), ARGS, false).unwrap().0.attr.ino;
        assert_eq!(get(file, "stripe_count"), Ok("2".into()));
        assert_eq!(get(file, "stripe_size_bytes"), Ok("65536".into()));
        for server in get(file, "servers").unwrap().split(',') {
            on[server.parse::<usize>().unwrap()] += 1;
        }
    }
    assert_eq!(on, [20; 3], "numbered names are spread evenly");
    set(sub, "stripe_count", "all").unwrap();
    assert_eq!(get(sub, "stripe_count"), Ok("all".into()));
    let file = ns.create(&who, sub, b"f", ARGS, false).unwrap().0.attr.ino;
    assert_eq!(get(file, "stripe_count"), Ok("3".into()));
    write_direct(&rig, file, 0, b"data").unwrap();
    assert_eq!(set(file, "stripe_count", "2"), Err(Errno::EEXIST));
    resize(&ns, file, 0).unwrap();
    set(file, "stripe_count", "1").unwrap();
    ns.write(file, 0, b"whole", WriteMode::default()).unwrap();
    assert_eq!((whole(&ns, file), get(file, "servers")), (b"whole".to_vec(), Ok("0".into())));
    assert_eq!(rig.objects(), 1);
    assert_eq!(set(file, "stripe_count", "2"), Err(Errno::EEXIST));
}
