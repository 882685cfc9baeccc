//! A server process that is killed again and again, mostly between doing calls and answering
//! them, while mounts change names, sizes and data: each call that returned was done exactly
//! once, and each error is the one that the order of calls explains.
//!
//! Mounts reach the server through a relay in this process, which can swallow its answers for a
//! moment before the kill. Seeded: `FOREBAY_TEST_ONCE_SEED`; how long: `FOREBAY_TEST_ONCE_SECONDS`.

use forebay_client::remote::RemoteFs;
use forebay_net::ServerAddress;
use forebay_proto::api::ops::*;
use forebay_proto::api::{CreateArgs, WriteMode, rename_flags, xattr_flags};
use forebay_proto::{Caller, Cookie, Entry, Errno, FileKind, Ino, Result, SetAttr};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CHILD_DIR: &str = "FOREBAY_TEST_ONCE_DIR";
const CHILD_INCARNATION: &str = "FOREBAY_TEST_ONCE_INCARNATION";
const SEED: &str = "FOREBAY_TEST_ONCE_SEED";
const SECONDS: &str = "FOREBAY_TEST_ONCE_SECONDS";
const MOUNTS: u64 = 4;
const ARGS: CreateArgs = CreateArgs { mode: 0o755, umask: 0 };
const APPEND: WriteMode = WriteMode { append: true, kill_suid: false, sync: false };
const STARTED_WITHIN: Duration = Duration::from_secs(20);

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn own_socket(dir: &Path) -> PathBuf {
    dir.join("own.sock")
}

/// Not a test by itself: the server that is killed.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let dir = Path::new(&dir);
    let address = ServerAddress::Unix(own_socket(dir));
    let _running = crate::rig::serve(dir, number(CHILD_INCARNATION, 1), &address, false);
    loop {
        std::thread::park();
    }
}

/// The server's process, which does not outlive the test.
struct Process(Child);

impl Process {
    fn start(dir: &Path, incarnation: u64) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "once::child_server", "--nocapture"])
            .env(CHILD_DIR, dir)
            .env(CHILD_INCARNATION, incarnation.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let process = Process(child);
        let until = Instant::now() + STARTED_WITHIN;
        while UnixStream::connect(own_socket(dir)).is_err() {
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Between the mounts and the server.
#[derive(Default)]
struct Relay {
    /// Answers are swallowed.
    swallowing: AtomicBool,
    swallowed: AtomicU64,
}

impl Relay {
    fn start(dir: &Path) -> (Arc<Relay>, ServerAddress) {
        let relay = Arc::new(Relay::default());
        let path = dir.join("relay.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (accepting, dir) = (Arc::clone(&relay), dir.to_path_buf());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // Without a server the mount's connection ends at once.
                let Ok(server) = UnixStream::connect(own_socket(&dir)) else { continue };
                accepting.join(client.unwrap(), server);
            }
        });
        (relay, ServerAddress::Unix(path))
    }

    fn join(self: &Arc<Relay>, client: UnixStream, server: UnixStream) {
        for answers in [false, true] {
            let relay = Arc::clone(self);
            let (mut from, mut to) = match answers {
                false => (client.try_clone().unwrap(), server.try_clone().unwrap()),
                true => (server.try_clone().unwrap(), client.try_clone().unwrap()),
            };
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    if answers && relay.swallowing.load(Ordering::SeqCst) {
                        relay.swallowed.fetch_add(1, Ordering::Relaxed);
                    } else if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
                let _ = from.shutdown(std::net::Shutdown::Both);
            });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    ino: Ino,
    kind: FileKind,
}

/// What one mount knows of its own directory, where nobody else changes anything.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Node>,
    data: BTreeMap<Ino, Vec<u8>>,
    modes: BTreeMap<Ino, u32>,
    marks: BTreeMap<Ino, String>,
}

struct Mount {
    number: u64,
    fs: Arc<RemoteFs>,
    rng: StdRng,
    dir: Ino,
    shared_dir: Ino,
    shared_file: Ino,
    model: Model,
    calls: u64,
    /// What it appended to the shared file, in order.
    tokens: Vec<String>,
    /// Contested names that it won.
    won: BTreeSet<u64>,
}

fn who() -> Caller {
    Caller::root()
}

impl Mount {
    fn keep(&self, entry: &Entry) -> Node {
        self.fs.forget(entry.attr.ino, 1);
        Node { ino: entry.attr.ino, kind: entry.attr.kind() }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.random_range(0..7))
    }

    #[track_caller]
    fn must<T: std::fmt::Debug + PartialEq>(&self, what: &str, got: Result<T>, want: Result<T>) {
        assert_eq!(got, want, "mount {}, call {}: {what}", self.number, self.calls);
    }

    fn step(&mut self) {
        self.calls += 1;
        match self.rng.random_range(0..17) {
            0..=2 => self.make(FileKind::File),
            3 => self.make(FileKind::Dir),
            4 => self.make(FileKind::Symlink),
            5 => self.link(),
            6..=7 => self.unlink(),
            8 => self.rmdir(),
            9..=10 => self.rename(0),
            11 => self.rename(rename_flags::EXCHANGE),
            12..=13 => self.change_file(),
            14 => self.append_shared(),
            15 => self.mark(),
            _ => self.contest(),
        }
    }

    fn make(&mut self, kind: FileKind) {
        let name = self.name();
        let (fs, dir, bytes) = (&self.fs, self.dir, name.as_bytes());
        let made = match kind {
            FileKind::Dir => fs.mkdir(&who(), dir, bytes, ARGS),
            FileKind::Symlink => fs.symlink(&who(), dir, bytes, b"target"),
            _ => fs.create(&who(), dir, bytes, ARGS, false).map(|(entry, _)| entry),
        };
        let made = made.map(|entry| self.keep(&entry));
        if self.model.names.contains_key(&name) {
            return self.must(&format!("make {name}"), made.map(|_| ()), Err(Errno::EEXIST));
        }
        let node = made.unwrap_or_else(|e| panic!("mount {}: make {name}: {e}", self.number));
        assert_eq!(node.kind, kind);
        assert!(!self.model.data.contains_key(&node.ino), "a number is given once");
        self.model.data.insert(node.ino, Vec::new());
        self.model.names.insert(name, node);
    }

    fn link(&mut self) {
        let (from, to) = (self.name(), self.name());
        let Some(&node) = self.model.names.get(&from) else { return };
        let linked = self.fs.link(&who(), node.ino, self.dir, to.as_bytes());
        let linked = linked.map(|entry| self.keep(&entry).ino);
        let want = match self.model.names.get(&to) {
            _ if node.kind == FileKind::Dir => Err(Errno::EPERM),
            Some(_) => Err(Errno::EEXIST),
            None => Ok(node.ino),
        };
        self.must(&format!("link {from} {to}"), linked, want);
        if want.is_ok() {
            self.model.names.insert(to, node);
        }
    }

    fn unlink(&mut self) {
        let name = self.name();
        let want = match self.model.names.get(&name) {
            None => Err(Errno::ENOENT),
            Some(node) if node.kind == FileKind::Dir => Err(Errno::EISDIR),
            Some(_) => Ok(()),
        };
        let got = self.fs.unlink(&who(), self.dir, name.as_bytes());
        self.must(&format!("unlink {name}"), got, want);
        if want.is_ok() {
            self.model.names.remove(&name);
        }
    }

    fn rmdir(&mut self) {
        let name = self.name();
        let want = match self.model.names.get(&name) {
            None => Err(Errno::ENOENT),
            Some(node) if node.kind != FileKind::Dir => Err(Errno::ENOTDIR),
            Some(_) => Ok(()),
        };
        let got = self.fs.rmdir(&who(), self.dir, name.as_bytes());
        self.must(&format!("rmdir {name}"), got, want);
        if want.is_ok() {
            self.model.names.remove(&name);
        }
    }

    fn rename(&mut self, flags: u32) {
        let (from, to) = (self.name(), self.name());
        let source = self.model.names.get(&from).copied();
        let target = self.model.names.get(&to).copied();
        let is_dir = |node: Node| node.kind == FileKind::Dir;
        let want = match (source, target) {
            (None, _) => Err(Errno::ENOENT),
            (Some(_), None) if flags != 0 => Err(Errno::ENOENT),
            (Some(a), Some(b)) if flags == 0 && a.ino != b.ino => match (is_dir(a), is_dir(b)) {
                (true, false) => Err(Errno::ENOTDIR),
                (false, true) => Err(Errno::EISDIR),
                _ => Ok(()),
            },
            _ => Ok(()),
        };
        let (fs, dir) = (&self.fs, self.dir);
        let got = fs.rename(&who(), dir, from.as_bytes(), dir, to.as_bytes(), flags);
        self.must(&format!("rename {from} {to} {flags}"), got, want);
        let (Ok(()), Some(source)) = (want, source) else { return };
        match target {
            Some(target) if flags != 0 => {
                self.model.names.insert(from, target);
            }
            Some(target) if target.ino == source.ino => return,
            _ => drop(self.model.names.remove(&from)),
        }
        self.model.names.insert(to, source);
    }

    /// Appends to a file of its own, cuts it, or changes its mode.
    fn change_file(&mut self) {
        let name = self.name();
        let Some(&Node { ino, kind: FileKind::File }) = self.model.names.get(&name) else { return };
        let data = self.model.data.entry(ino).or_default();
        let mut change = SetAttr::default();
        match self.rng.random_range(0..5) {
            4 => {
                self.fs
                    .open(&who(), ino, (libc::O_RDWR | libc::O_TRUNC) as u32, false, false)
                    .unwrap();
                data.clear();
                return;
            }
            0 => change.size_bytes = Some(self.rng.random_range(0..=data.len() as u64 + 3)),
            1 => change.mode = Some(0o600 + self.rng.random_range(0..0o77)),
            _ => {
                let token = format!("[{}]", self.calls);
                assert_eq!(self.fs.write(ino, 0, token.as_bytes(), APPEND), Ok(token.len()));
                data.extend_from_slice(token.as_bytes());
                assert_eq!(self.fs.getattr(ino).unwrap().size_bytes, data.len() as u64);
                return;
            }
        }
        let attr = self.fs.setattr(&who(), ino, &change).unwrap();
        if let Some(size_bytes) = change.size_bytes {
            data.resize(size_bytes as usize, 0);
        }
        if let Some(mode) = change.mode {
            self.model.modes.insert(ino, mode);
        }
        assert_eq!(attr.size_bytes, data.len() as u64);
        let mode = self.model.modes.get(&ino).copied().unwrap_or(ARGS.mode);
        assert_eq!(attr.mode & 0o7777, mode);
    }

    fn mark(&mut self) {
        let name = self.name();
        let Some(&Node { ino, kind: FileKind::File }) = self.model.names.get(&name) else { return };
        let marked = self.model.marks.contains_key(&ino);
        if self.rng.random() {
            let value = format!("{}", self.calls);
            let flags = xattr_flags::CREATE;
            let got = self.fs.setxattr(&who(), ino, b"user.m", value.as_bytes(), flags, false);
            self.must("setxattr", got, if marked { Err(Errno::EEXIST) } else { Ok(()) });
            if !marked {
                self.model.marks.insert(ino, value);
            }
        } else {
            let got = self.fs.removexattr(&who(), ino, b"user.m");
            self.must("removexattr", got, if marked { Ok(()) } else { Err(Errno::ENODATA) });
            self.model.marks.remove(&ino);
        }
    }

    fn append_shared(&mut self) {
        let token = format!("<{}.{}>", self.number, self.calls);
        assert_eq!(self.fs.write(self.shared_file, 0, token.as_bytes(), APPEND), Ok(token.len()));
        self.tokens.push(token);
    }

    /// All mounts want the same names, in the same order: each goes to one of them.
    fn contest(&mut self) {
        let next = self.won.last().map_or(0, |last| last + 1);
        for number in next.. {
            let name = format!("c{number}");
            match self.fs.mkdir(&who(), self.shared_dir, name.as_bytes(), ARGS) {
                Ok(entry) => {
                    self.keep(&entry);
                    self.won.insert(number);
                    return;
                }
                Err(errno) => {
                    self.must(&format!("mkdir {name}"), Err(errno), Err::<(), _>(Errno::EEXIST))
                }
            }
        }
    }

    /// The directory is as its own mount left it.
    fn check(&self, fs: &dyn FileSystem) {
        let mut found = BTreeMap::new();
        let limit = fs.dir_limit(self.dir).unwrap();
        fs.readdir(self.dir, Cookie::DOTDOT, limit, &mut |entry| {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            found.insert(name, Node { ino: entry.ino, kind: entry.kind });
            true
        })
        .unwrap();
        assert_eq!(found, self.model.names, "mount {}", self.number);
        for node in found.values().filter(|node| node.kind == FileKind::File) {
            let data = &self.model.data[&node.ino];
            let mut room = vec![0; data.len() + 64];
            let have = fs.read(node.ino, 0, &mut room).unwrap();
            let shown = String::from_utf8_lossy(&room[..have]).into_owned();
            assert_eq!(shown, String::from_utf8_lossy(data), "mount {}", self.number);
            let names = found.values().filter(|other| other.ino == node.ino).count();
            assert_eq!(fs.getattr(node.ino).unwrap().nlink as usize, names);
            let mark = fs.getxattr(node.ino, b"user.m").ok();
            let want = self.model.marks.get(&node.ino).map(|m| m.as_bytes().to_vec());
            assert_eq!(mark, want, "mount {}", self.number);
        }
    }
}

fn check_shared(fs: &dyn FileSystem, mounts: &[Mount]) {
    let ino = mounts[0].shared_file;
    let mut room = vec![0; fs.getattr(ino).unwrap().size_bytes as usize];
    assert_eq!(fs.read(ino, 0, &mut room), Ok(room.len()));
    let text = String::from_utf8(room).unwrap();
    let tokens: Vec<String> = text.split_inclusive('>').map(str::to_string).collect();
    for mount in mounts {
        let prefix = format!("<{}.", mount.number);
        let own: Vec<_> = tokens.iter().filter(|t| t.starts_with(&prefix)).cloned().collect();
        assert_eq!(own, mount.tokens, "each append of mount {} once, in order", mount.number);
    }
    let all: usize = mounts.iter().map(|mount| mount.tokens.len()).sum();
    assert_eq!(tokens.len(), all, "{text}");
    let won: usize = mounts.iter().map(|mount| mount.won.len()).sum();
    let names: BTreeSet<u64> = mounts.iter().flat_map(|mount| mount.won.iter().copied()).collect();
    assert_eq!(names.len(), won, "no name was given to two");
    assert_eq!(names.last().map_or(0, |last| last + 1) as usize, won, "and each to one");
}

/// Kills and starts the server until the end; the last one, and which it is.
fn kill_again_and_again(
    dir: &Path,
    relay: &Relay,
    mut process: Process,
    rng: &mut StdRng,
    until: Instant,
) -> (Process, u64) {
    let mut incarnation = 1;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_micros(rng.random_range(1_000..250_000)));
        if rng.random_range(0..4) > 0 {
            relay.swallowing.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(rng.random_range(100..5_000)));
        }
        drop(process);
        relay.swallowing.store(false, Ordering::SeqCst);
        incarnation += 1;
        process = Process::start(dir, incarnation);
    }
    (process, incarnation)
}

fn attach(address: &ServerAddress) -> Arc<RemoteFs> {
    RemoteFs::attach(crate::rig::target(address)).unwrap()
}

fn mounts(address: &ServerAddress, seed: u64) -> Vec<Mount> {
    let first = attach(address);
    let shared_dir = first.mkdir(&who(), Ino::ROOT, b"shared", ARGS).unwrap().attr.ino;
    let shared_file = first.create(&who(), Ino::ROOT, b"log", ARGS, false).unwrap().0.attr.ino;
    (0..MOUNTS)
        .map(|number| {
            let fs = if number == 0 { Arc::clone(&first) } else { attach(address) };
            let name = format!("own{number}");
            let dir = fs.mkdir(&who(), Ino::ROOT, name.as_bytes(), ARGS).unwrap().attr.ino;
            Mount {
                number,
                fs,
                rng: StdRng::seed_from_u64(seed * MOUNTS + number),
                dir,
                shared_dir,
                shared_file,
                model: Model::default(),
                calls: 0,
                tokens: Vec::new(),
                won: BTreeSet::new(),
            }
        })
        .collect()
}

#[test]
fn each_call_is_done_once_however_often_the_server_is_killed() {
    let seed = number(SEED, 1);
    println!("{SEED}={seed}");
    let temporary = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(temporary.path()).unwrap();
    let (relay, address) = Relay::start(&dir);
    let process = Process::start(&dir, 1);
    let mut mounts = mounts(&address, seed);
    let until = Instant::now() + Duration::from_secs(number(SECONDS, 6));
    let (process, incarnation) = std::thread::scope(|scope| {
        for mount in &mut mounts {
            scope.spawn(move || {
                while Instant::now() < until {
                    mount.step();
                }
            });
        }
        let mut rng = StdRng::seed_from_u64(seed);
        kill_again_and_again(&dir, &relay, process, &mut rng, until)
    });
    let swallowed = relay.swallowed.load(Ordering::Relaxed);
    let calls: u64 = mounts.iter().map(|mount| mount.calls).sum();
    println!("{incarnation} starts, {calls} calls, {swallowed} answers swallowed");
    assert!(incarnation > 3 && swallowed > 3, "{incarnation} starts, {swallowed} swallowed");
    for mount in &mounts {
        mount.check(&*mount.fs);
    }
    check_shared(&*mounts[0].fs, &mounts);
    mounts.iter().for_each(|mount| mount.fs.close());
    drop(process);
    let own = ServerAddress::Unix(own_socket(&dir));
    let running = crate::rig::serve(&dir, incarnation + 1, &own, true);
    let fresh = attach(&running.address());
    mounts.iter().for_each(|mount| mount.check(&*fresh));
    check_shared(&*fresh, &mounts);
    fresh.close();
    running.stop();
}
