//! A cache over two servers in one process, killed at each failpoint: what was acknowledged is there under
//! the names that it has, drains to them, and nothing is left beside it.

use super::*;
use crate::data_servers::Request;
use forebay_failpoint::kill::{HOOK, KILL_ONLY, at_each_point, run_killed};
use forebay_interfaces::peers::asking;
use forebay_proto::api::rename_flags;
use forebay_proto::net::frame;
use forebay_proto::net::servers::{Question, Reply};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

const CHILD_BASE: &str = "FOREBAY_TEST_HOMES_BASE";
const CHILD: &str = "tests::data_servers::child_data_servers";
const CAPACITY: u64 = 12 * MIB;
const SERVERS: u16 = 2;

/// Servers of one process ask each other.
fn ask(all: &Mutex<Vec<Weak<CacheFs>>>, to: ShardId, question: &Question<'_>) -> Result<Reply> {
    let Question::Cache { from, asked, .. } = question else { return Err(Errno::EPROTO) };
    let there = all.lock().get(usize::from(to.0)).and_then(Weak::upgrade);
    let asked: Request = frame::decode(asked).unwrap();
    let told = there.ok_or(Errno::EHOSTUNREACH)?.peers.asked(*from, asked)?;
    let mut body = Vec::new();
    frame::encode(&told, &mut body).unwrap();
    Ok(Reply::Cache(body))
}

/// All servers.
struct Shared {
    servers: Vec<Running>,
    overheard: Overheard,
}

/// Hears each question before it is asked (true) and after it is answered.
type Listener = Arc<dyn Fn(&Request, bool) + Send + Sync>;
type Overheard = Arc<Mutex<Option<Listener>>>;

/// Asks, overheard by the test.
fn ask_overheard(
    overheard: &Mutex<Option<Listener>>,
    all: &Mutex<Vec<Weak<CacheFs>>>,
    to: ShardId,
    question: &Question<'_>,
) -> Result<Reply> {
    let Question::Cache { asked, .. } = question else { return Err(Errno::EPROTO) };
    let hear = |before| {
        let listener = overheard.lock().clone();
        if let Some(listener) = listener {
            listener(&frame::decode(asked).unwrap(), before);
        }
    };
    hear(true);
    let reply = ask(all, to, question);
    hear(false);
    reply
}

impl Shared {
    fn open(base: &Path) -> Shared {
        let (all, overheard) = (Arc::new(Mutex::new(Vec::new())), Overheard::default());
        let servers = (0..SERVERS).map(ShardId).map(|mine| {
            let dir = base.join(format!("store{}", mine.0));
            std::fs::create_dir_all(dir.join("meta")).unwrap();
            std::fs::create_dir_all(dir.join("data")).unwrap();
            let options = CacheOptions {
                pfs: base.join("pfs"),
                ttl: Duration::ZERO,
                writes_by_kernel: true,
                policy: When::End.into(),
                verify: Verify::Cache,
                rate_bytes_per_s: 0,
                served: Some(mine),
            };
            let (others, hears) = (Arc::clone(&all), Arc::clone(&overheard));
            let peers = asking(mine, SERVERS, 7, move |to, question, _, _| {
                ask_overheard(&hears, &others, to, question)
            });
            let running = open_shared(&dir, CAPACITY, MAP_BYTES, options, Some(peers));
            all.lock().push(Arc::downgrade(&running.fs));
            running.fs.mounts.mounts_are_back(&[]);
            running
        });
        Shared { servers: servers.collect(), overheard }
    }

    fn names(&self) -> &CacheFs {
        &self.servers[0].fs
    }

    fn data_server(&self, ino: Ino) -> &CacheFs {
        &self.servers[usize::from(ino.shard().0)].fs
    }

    /// As a mount does it: a name at the names, a reference at the data server.
    fn lookup(&self, name: &str) -> Result<Ino> {
        loop {
            let ino = self.names().lookup(&Caller::root(), Ino::ROOT, name.as_bytes())?.attr.ino;
            if ino.shard() == ShardId(0) {
                return Ok(ino);
            }
            self.names().stack.ownership.give_away(ino);
            match self.data_server(ino).peers.take(&[ino], None, false).pop().unwrap() {
                Err(Errno::ESTALE) => {}
                other => return other.map(|attr| attr.ino),
            }
        }
    }

    fn write(&self, name: &str, data: &[u8]) {
        let root = Caller::root();
        let ino = match self.lookup(name) {
            Ok(ino) => {
                let flags = (libc::O_RDWR | libc::O_TRUNC) as u32;
                self.data_server(ino).open(&root, ino, flags, false, false).unwrap();
                ino
            }
            Err(_) => {
                let made =
                    self.names().create(&root, Ino::ROOT, name.as_bytes(), MODE, false).unwrap();
                let ino = made.0.attr.ino;
                if ino.shard() != ShardId(0) {
                    self.names().stack.ownership.give_away(ino);
                    self.data_server(ino).peers.take(&[ino], None, false).pop().unwrap().unwrap();
                    self.data_server(ino).opens.open_made(&root, ino, false).unwrap();
                }
                ino
            }
        };
        let mut done = 0;
        while done < data.len() {
            let mode = WriteMode::default();
            done += self.data_server(ino).write(ino, done as u64, &data[done..], mode).unwrap();
        }
        self.data_server(ino).release(ino, false);
        self.data_server(ino).forget(ino, 1);
    }

    /// A dirty file that another server than that of the names has: its name, and its number with a reference.
    fn write_some_at_a_data_server(&self) -> (String, Ino) {
        // Numbered names take turns.
        let write = |n: u64| {
            let name = format!("a{n}");
            self.write(&name, &data(0));
            let ino = self.lookup(&name).unwrap();
            (name, ino)
        };
        (0..4).map(write).find(|(_, ino)| ino.shard() != ShardId(0)).unwrap()
    }

    /// Hears when the metadata server is about to be told that this file may be another inode, and when it has been:
    /// in the thread that drains.
    fn listen_to_drain_of(&self, ino: Ino, hear: impl Fn(bool) + Send + Sync + 'static) {
        *self.overheard.lock() = Some(Arc::new(move |asked, is_before| {
            if matches!(asked, Request::Keys { ino: of, also: Some(_), .. } if *of == ino) {
                hear(is_before);
            }
        }));
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let ino = match self.lookup(name) {
            Ok(ino) => ino,
            Err(Errno::ENOENT) => return None,
            Err(error) => panic!("{name}: {error}"),
        };
        let data_server = self.data_server(ino);
        data_server.open(&Caller::root(), ino, libc::O_RDONLY as u32, false, false).unwrap();
        let size = data_server.getattr(ino).unwrap().size_bytes;
        let mut all = vec![0; size as usize + 1];
        let mut have = 0;
        loop {
            match data_server.read(ino, have as u64, &mut all[have..]).unwrap() {
                0 => break,
                got => have += got,
            }
        }
        assert_eq!(have as u64, size, "{name}");
        data_server.release(ino, false);
        data_server.forget(ino, 1);
        all.truncate(have);
        Some(all)
    }

    fn rename(&self, from: &str, to: &str, flags: u32) {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let root = Caller::root();
        self.names().rename(&root, Ino::ROOT, from, Ino::ROOT, to, flags).unwrap();
    }

    fn flush(&self, when: &str) {
        let start = Instant::now();
        let of_all = |ask: &dyn Fn(&CacheFs) -> TreeState| {
            self.servers.iter().all(|server| ask(&server.fs).is_durable())
        };
        let root = Caller::root();
        for server in &self.servers {
            server.fs.flush(&root, b"/").unwrap();
        }
        while !of_all(&|fs| fs.tree_state(&root, b"/").unwrap()) {
            let told: Vec<TreeState> =
                self.servers.iter().map(|s| s.fs.tree_state(&root, b"/").unwrap()).collect();
            assert!(told.iter().all(|tree| tree.conflicts == 0), "{when}: {told:?}");
            assert!(start.elapsed() < Duration::from_secs(30), "{when}: not drained: {told:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn crash(self) {
        self.servers.into_iter().for_each(Running::crash);
    }
}

type Tree = BTreeMap<String, Vec<u8>>;

fn data(seed: u64) -> Vec<u8> {
    pattern(seed, 150_000 + seed as usize * 1_000)
}

/// Trees after each acknowledged step; the same in child and parent.
fn trees() -> Vec<Tree> {
    let mut all = Vec::new();
    let mut now = Tree::new();
    let mut after = |change: &mut dyn FnMut(&mut Tree)| {
        change(&mut now);
        all.push(now.clone());
    };
    let put = |tree: &mut Tree, name: &str, seed| drop(tree.insert(name.into(), data(seed)));
    let mv = |tree: &mut Tree, from: &str, to: &str| {
        let moved = tree.remove(from).unwrap();
        tree.insert(to.into(), moved);
    };
    // Numbered names take turns: of each four, two have their data server at each server.
    for n in 0..4 {
        after(&mut |tree| put(tree, &format!("a{n}"), n));
    }
    after(&mut |tree| mv(tree, "a0", "b0"));
    after(&mut |tree| mv(tree, "a1", "b1"));
    after(&mut |tree| mv(tree, "a2", "a3"));
    after(&mut |_| ());
    after(&mut |tree| put(tree, "b0", 10));
    after(&mut |tree| put(tree, "b1", 11));
    after(&mut |tree| {
        let (first, second) = (tree.remove("b0").unwrap(), tree.remove("b1").unwrap());
        tree.insert("b0".into(), second);
        tree.insert("b1".into(), first);
    });
    after(&mut |tree| drop(tree.remove("b0")));
    after(&mut |tree| put(tree, "b0", 12));
    after(&mut |tree| drop(tree.remove("b1")));
    after(&mut |_| ());
    all
}

fn work(shared: &Shared, mut acknowledge: impl FnMut()) {
    for n in 0..4 {
        shared.write(&format!("a{n}"), &data(n));
        acknowledge();
    }
    shared.rename("a0", "b0", 0);
    acknowledge();
    shared.rename("a1", "b1", 0);
    acknowledge();
    shared.rename("a2", "a3", 0);
    acknowledge();
    shared.flush("before a kill");
    acknowledge();
    shared.write("b0", &data(10));
    acknowledge();
    shared.write("b1", &data(11));
    acknowledge();
    shared.rename("b0", "b1", rename_flags::EXCHANGE);
    acknowledge();
    let remove = |name: &[u8]| {
        shared.lookup(std::str::from_utf8(name).unwrap()).unwrap();
        shared.names().unlink(&Caller::root(), Ino::ROOT, name).unwrap();
    };
    remove(b"b0");
    acknowledge();
    shared.write("b0", &data(12));
    acknowledge();
    remove(b"b1");
    acknowledge();
    shared.flush("before a kill");
    acknowledge();
}

#[test]
fn a_file_at_any_data_server_is_in_the_place_of_another_one_when_the_command_ends() {
    let base = tempfile::tempdir().unwrap();
    let (pfs, root) = (base.path().join("pfs"), Caller::root());
    std::fs::create_dir(&pfs).unwrap();
    let shared = Shared::open(base.path());
    // Numbered names take turns: of each four, two have their data server at each server.
    for name in (0..4).map(|n| format!("a{n}")) {
        shared.write(&name, &data(1));
        shared.flush("before");
        shared.write(&name, &data(2));
        std::fs::write(pfs.join("theirs"), b"theirs").unwrap();
        std::fs::rename(pfs.join("theirs"), pfs.join(&name)).unwrap();
        let path = format!("/{name}").into_bytes();
        let data_server = shared.servers.iter().map(|server| &server.fs);
        let data_server = data_server
            .max_by_key(|fs| fs.flush(&root, &path).map_or(0, |tree| tree.files))
            .unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while data_server.tree_state(&root, &path).unwrap().conflicts == 0 && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        data_server.resolve(&root, &path, forebay_proto::cache::Keep::Ours).unwrap();
        assert!(std::fs::read(pfs.join(&name)).unwrap() == data(2), "{name}");
        let ino = shared.lookup(&name).unwrap();
        let linked = format!("l{name}");
        shared.names().link(&root, ino, Ino::ROOT, linked.as_bytes()).unwrap();
        shared.flush("after");
        for name in [&name, &linked] {
            assert!(std::fs::read(pfs.join(name)).unwrap() == data(2), "{name}");
        }
        shared.data_server(ino).forget(ino, 1);
    }
    shared.crash();
}

/// The drain's last step before its file has the name.
const ABOUT_TO_EXCHANGE: &str = "the new file is about to get the name on the PFS";

/// A link by another mount in the moment in which a drain puts a new inode under the file's name: before the
/// metadata server hears of that, or between the drain's last look and the exchange.
#[test]
fn a_name_that_is_made_while_its_file_drains_leads_to_the_same_file() {
    for before in [true, false] {
        let base = tempfile::tempdir().unwrap();
        let pfs = base.path().join("pfs");
        std::fs::create_dir(&pfs).unwrap();
        let shared = Shared::open(base.path());
        let (name, ino) = shared.write_some_at_a_data_server();
        let names = Arc::clone(&shared.servers[0].fs);
        let (tell, linked) = std::sync::mpsc::channel();
        let other = pfs.join("other name");
        // True if it is made within so long.
        let link = move |limit: Duration| {
            let (names, tell) = (Arc::clone(&names), tell.clone());
            std::thread::spawn(move || {
                let made = names.link(&Caller::root(), ino, Ino::ROOT, b"other name");
                tell.send(made.map(|entry| entry.attr.nlink)).unwrap();
            });
            let until = Instant::now() + limit;
            while !other.exists() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            other.exists()
        };
        shared.listen_to_drain_of(ino, move |is_before| match (before, is_before) {
            (true, true) => assert!(link(Duration::from_secs(10)), "nothing keeps it"),
            (false, false) => {
                let link = link.clone();
                HOOK.set(Some(Box::new(move |what| {
                    if what == ABOUT_TO_EXCHANGE {
                        assert!(!link(Duration::from_millis(100)), "it leads to the old inode");
                    }
                })));
            }
            _ => {}
        });
        shared.flush("with a link");
        assert_eq!(linked.recv_timeout(Duration::from_secs(20)), Ok(Ok(2)), "{before}");
        *shared.overheard.lock() = None;
        for (again, data) in [(false, &data(0)), (true, &data(90))] {
            if again {
                shared.write("other name", data);
                shared.flush("by its other name");
            }
            for name in [name.as_str(), "other name"] {
                assert!(shared.read(name).as_ref() == Some(data), "{name}, {before}");
                assert!(std::fs::read(pfs.join(name)).unwrap() == *data, "{name}, {before}");
            }
        }
        shared.data_server(ino).forget(ino, 1);
        shared.crash();
    }
}

/// The same by a program on the PFS, which nobody hears of, between the last look and the exchange.
#[test]
fn a_name_that_others_make_in_the_moment_of_an_exchange_leads_to_the_same_file() {
    let base = tempfile::tempdir().unwrap();
    let pfs = base.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let shared = Shared::open(base.path());
    let (name, ino) = shared.write_some_at_a_data_server();
    let (from, to) = (pfs.join(&name), pfs.join("theirs"));
    shared.listen_to_drain_of(ino, move |is_before| {
        let (from, to) = (from.clone(), to.clone());
        let link = move |what: &str| {
            if what == ABOUT_TO_EXCHANGE && !to.exists() {
                std::fs::hard_link(&from, &to).unwrap();
            }
        };
        if !is_before {
            HOOK.set(Some(Box::new(link)));
        }
    });
    shared.flush("with a link by others");
    for name in [name.as_str(), "theirs"] {
        assert!(std::fs::read(pfs.join(name)).unwrap() == data(0), "{name}");
    }
    shared.crash();
}

#[test]
fn a_changed_limit_of_drains_is_kept_over_a_restart() {
    let base = tempfile::tempdir().unwrap();
    std::fs::create_dir(base.path().join("pfs")).unwrap();
    for (found, changed) in [(0, 5 << 20), (5 << 20, 0), (0, 1)] {
        let shared = Shared::open(base.path());
        for server in &shared.servers {
            assert_eq!(server.fs.parts.drain_list.rate(), found);
            server.fs.set_rate(changed).unwrap();
        }
        shared.crash();
    }
}

/// Not a test by itself: the servers that are killed.
#[test]
fn child_data_servers() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let base = Path::new(&base);
    let shared = Shared::open(base);
    let mut journal = std::fs::File::create(base.join("acknowledged")).unwrap();
    work(&shared, || journal.write_all(b".").unwrap());
    shared.crash();
}

/// A file that was being written may be empty, or have a part of what was written over it.
fn is_between(now: &[u8], last: Option<&Vec<u8>>, next: Option<&Vec<u8>>) -> bool {
    let of = |tree: Option<&Vec<u8>>, at: usize| tree.and_then(|t| t.get(at).copied()).unwrap_or(0);
    let longest = last.map_or(0, Vec::len).max(next.map_or(0, Vec::len));
    now.len() <= longest
        && now.iter().enumerate().all(|(at, b)| of(last, at) == *b || of(next, at) == *b)
}

fn check(shared: &Shared, base: &Path, last: &Tree, next: &Tree, when: &str) {
    let names: BTreeSet<&String> = last.keys().chain(next.keys()).collect();
    let tree = |read: &dyn Fn(&str) -> Option<Vec<u8>>| -> Tree {
        names.iter().filter_map(|name| Some((name.to_string(), read(name)?))).collect()
    };
    let now = tree(&|name| shared.read(name));
    let whole = now == *last || now == *next;
    let written: Vec<&&String> =
        names.iter().filter(|name| last.get(**name) != next.get(**name)).collect();
    let in_part = written.len() == 1
        && names.iter().all(|name| match now.get(*name) {
            Some(now) => is_between(now, last.get(*name), next.get(*name)),
            None => !last.contains_key(*name) || !next.contains_key(*name),
        });
    let told = |tree: &Tree| {
        let line = |(name, data): (&String, &Vec<u8>)| format!("{name}: {} bytes", data.len());
        tree.iter().map(line).collect::<Vec<_>>()
    };
    assert!(whole || in_part, "{when}: {:?}, not {:?} or {:?}", told(&now), told(last), told(next));
    shared.flush(when);
    let on_pfs = tree(&|name| std::fs::read(base.join("pfs").join(name)).ok());
    assert!(on_pfs == now, "{when}: the PFS has {:?}, not {:?}", told(&on_pfs), told(&now));
    assert!(tree(&|name| shared.read(name)) == now, "{when}: the drain changed it");
    let there = std::fs::read_dir(base.join("pfs")).unwrap().count();
    assert_eq!(there, now.len(), "{when}: something is left on the PFS");
}

#[test]
fn the_servers_of_a_cache_killed_anywhere_lose_nothing_acknowledged() {
    let trees = trees();
    let wanted = [
        "a name of a file elsewhere is going",
        "a name of a file elsewhere has gone",
        "its data server is to hear of it",
        "a name is moved on the PFS",
        "both inodes are the file where the names are",
        "the new file has the name on the PFS",
        "the new inode is the file where the names are",
    ];
    at_each_point(&wanted, |at, only| {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        let variables =
            [(CHILD_BASE, base.to_str().unwrap()), (KILL_ONLY, only.unwrap_or_default())];
        let killed = run_killed(CHILD, &variables, at);
        let acknowledged =
            std::fs::metadata(base.join("acknowledged")).map_or(0, |m| m.len()) as usize;
        let when = format!("killed after {killed:?} ({at}), {acknowledged} acknowledged");
        let empty = Tree::new();
        let last = acknowledged.checked_sub(1).map_or(&empty, |at| &trees[at]);
        let next = &trees[acknowledged.min(trees.len() - 1)];
        let shared = Shared::open(base);
        check(&shared, base, last, next, &when);
        shared.crash();
        killed
    });
}
