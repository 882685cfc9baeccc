//! Several mounts of one buffer at once: what each did is there for all, of several one wins,
//! names that are replaced never vanish, appended records are whole, and many mounts do not
//! disturb each other.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{self, Child, Shared};
use forebay_tests::served::{Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{long, random_steps, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;

fn rounds(short: u64) -> u64 {
    if long() { 20 * short } else { short }
}

fn mixed(count: usize) -> Vec<Via> {
    (0..count).map(|at| if at % 2 == 0 { Via::Local } else { Via::Tcp }).collect()
}

/// Names that one mount makes and removes in the directory that all use.
const NAMES: usize = 24;
const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;

/// One mount's names in a common directory: by number the content's identity, 0 = absent.
struct Owner<'a> {
    served: &'a Served,
    at: usize,
    rng: StdRng,
    account: &'a [std::sync::atomic::AtomicU64],
    next: u64,
}

impl Owner<'_> {
    fn path(&self, number: usize) -> Vec<u8> {
        self.served.path(self.at, format!("d/{}.{number}", self.at))
    }

    fn is(&self, number: usize) -> u64 {
        self.account[number].load(SeqCst)
    }

    fn set(&self, number: usize, content: u64) {
        self.account[number].store(content, SeqCst);
    }

    fn step(&mut self) {
        let (a, b) = (self.rng.random_range(0..NAMES), self.rng.random_range(0..NAMES));
        let missing = Err(Errno(libc::ENOENT));
        match self.rng.random_range(0..10) {
            0..4 => match sys::open(self.path(a), NEW_FILE, 0o644) {
                Ok(fd) => {
                    assert_eq!(self.is(a), 0, "made, but it was there");
                    self.next += 1;
                    let content = (self.at as u64) << 32 | self.next;
                    let bytes = content.to_le_bytes().repeat(1 + (content % 300) as usize);
                    assert_eq!(sys::write(&fd, &bytes), Ok(bytes.len()));
                    self.set(a, content);
                }
                Err(error) => {
                    assert_eq!(error, Errno(libc::EEXIST));
                    assert_ne!(self.is(a), 0, "told to be there, but it was removed");
                }
            },
            4..7 if a != b => {
                let wanted = if self.is(a) == 0 { missing } else { Ok(()) };
                assert_eq!(sys::rename(self.path(a), self.path(b)), wanted, "rename {a} {b}");
                if wanted.is_ok() {
                    self.set(b, self.is(a));
                    self.set(a, 0);
                }
            }
            7..9 => {
                let wanted = if self.is(a) == 0 { missing } else { Ok(()) };
                assert_eq!(sys::unlink(self.path(a)), wanted, "unlink {a}");
                self.set(a, 0);
            }
            _ => self.listing(),
        }
        let there = sys::stat(self.path(a)).map(|_| ());
        assert_eq!(there, if self.is(a) == 0 { missing } else { Ok(()) }, "stat {a}");
    }

    /// One's own names are all in a listing, once, whatever the others do meanwhile.
    fn listing(&self) {
        let names = sys::list(self.served.path(self.at, "d")).unwrap();
        let all: BTreeSet<&[u8]> = names.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(all.len(), names.len(), "a name is listed twice");
        for number in 0..NAMES {
            let name = format!("{}.{number}", self.at);
            let listed = all.contains(name.as_bytes());
            assert_eq!(listed, self.is(number) != 0, "{name} in a listing");
        }
    }
}

#[test]
fn eight_mounts_make_rename_and_remove_in_one_directory() {
    let _children = procs::with_children();
    let seed = seed("eight_mounts_make_rename_and_remove_in_one_directory");
    let served = Served::new(Store::Tmpfs, &mixed(8));
    sys::mkdir(served.path(0, "d"), 0o755).unwrap();
    let accounts = Shared::new(8 * NAMES);
    let children = (0..8).map(|at| {
        let mut owner = Owner {
            served: &served,
            at,
            rng: StdRng::seed_from_u64(seed + at as u64),
            account: &accounts[at * NAMES..(at + 1) * NAMES],
            next: 0,
        };
        Child::spawn("owner", move || (0..rounds(random_steps(200))).for_each(|_| owner.step()))
    });
    procs::all(children.collect());
    // Seen from every mount: each name with its content, no other.
    for view in 0..8 {
        let mut real = BTreeMap::new();
        for entry in sys::list(served.path(view, "d")).unwrap() {
            if !entry.name.starts_with(b".") {
                let name = String::from_utf8(entry.name).unwrap();
                let path = served.root(view).join("d").join(&name);
                let stat = sys::stat(sys::bytes(&path)).unwrap();
                let bytes = std::fs::read(path).unwrap();
                let content = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let repeats = 1 + (content % 300) as usize;
                assert!(bytes == content.to_le_bytes().repeat(repeats), "{name}: not whole");
                assert_eq!((stat.size, stat.nlink), (bytes.len() as u64, 1), "{name}");
                assert!(real.insert(name, content).is_none(), "a name is listed twice");
            }
        }
        let wanted = accounts
            .iter()
            .enumerate()
            .map(|(at, content)| (format!("{}.{}", at / NAMES, at % NAMES), content.load(SeqCst)));
        assert_eq!(real, wanted.filter(|(_, content)| *content != 0).collect(), "mount {view}");
        assert_eq!(sys::stat(served.path(view, "d")).unwrap().nlink, 2);
    }
}

#[test]
fn of_several_mounts_one_makes_a_name() {
    let _children = procs::with_children();
    let served = Served::new(Store::Tmpfs, &mixed(4));
    let count = rounds(100) as usize;
    let wins = Shared::new(5 * count);
    sys::mkdir(served.path(0, "src"), 0o755).unwrap();
    let children = (0..4).map(|at| {
        let (served, wins) = (&served, &wins);
        Child::spawn("maker", move || {
            let p = |name: String| served.path(at, name);
            let source = p(format!("src/{at}"));
            for i in 0..count {
                let results = [
                    sys::open(p(format!("file{i}")), NEW_FILE, 0o600).map(drop),
                    sys::mkdir(p(format!("dir{i}")), 0o700),
                    sys::symlink("x", p(format!("link{i}"))),
                    sys::open(&source, libc::O_CREAT | libc::O_WRONLY, 0o600)
                        .and_then(|_| sys::link(&source, p(format!("hard{i}")))),
                    sys::rename2(&source, p(format!("moved{i}")), libc::RENAME_NOREPLACE),
                ];
                for (kind, result) in results.into_iter().enumerate() {
                    match result {
                        Ok(()) => drop(wins[kind * count + i].fetch_add(1, SeqCst)),
                        Err(Errno(libc::EEXIST)) => {}
                        Err(other) => panic!("{kind} {i}: {other:?}"),
                    }
                }
                // All open one name with O_CREAT: one of them makes it, none fails.
                let common = p(format!("common{i}"));
                sys::open(common, libc::O_CREAT | libc::O_RDWR, 0o600).unwrap();
            }
        })
    });
    procs::all(children.collect());
    for (at, won) in wins.iter().enumerate() {
        assert_eq!(won.load(SeqCst), 1, "kind {} number {}", at / count, at % count);
    }
}

#[test]
fn a_name_replaced_on_two_mounts_never_vanishes_on_others() {
    let _children = procs::with_children();
    let served = Served::new(Store::Tmpfs, &mixed(4));
    let done = Shared::new(1);
    std::fs::write(served.root(0).join("target"), [0; 512]).unwrap();
    let mut children = Vec::new();
    for at in 0..2 {
        let (served, done) = (&served, &done);
        children.push(Child::spawn("replacer", move || {
            let (own, target) = (served.path(at, format!("new{at}")), served.path(at, "target"));
            for number in 0..rounds(random_steps(600)) {
                let fd = sys::open(&own, libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
                sys::write(&fd, &[(number % 251) as u8; 512]).unwrap();
                drop(fd);
                sys::rename(&own, &target).unwrap();
            }
            done[0].fetch_add(1, SeqCst);
        }));
    }
    for at in 0..4 {
        let (served, done) = (&served, &done);
        children.push(Child::spawn("opener", move || {
            let target = served.path(at, "target");
            while done[0].load(SeqCst) < 2 {
                let fd = sys::open(&target, libc::O_RDONLY, 0).unwrap();
                let bytes = sys::pread(&fd, 0, 1024).unwrap();
                assert!(bytes.len() == 512 && bytes.iter().all(|&b| b == bytes[0]), "not whole");
                assert!(sys::fstat(&fd).unwrap().nlink <= 1);
                assert_eq!(sys::stat(&target).unwrap().size, 512);
            }
        }));
    }
    procs::all(children);
}

/// A record that tells its writer, number and length, and shows if it is torn.
fn record(writer: u64, number: u64) -> Vec<u8> {
    let length = 24 + (number * 37 + writer * 13) % 9000;
    let mut bytes: Vec<u8> =
        [writer, number, length].iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes.resize(length as usize, (writer * 50 + number % 50) as u8);
    bytes
}

fn appended_records_are_whole(served: &Served) {
    let _children = procs::with_children();
    let (count, writers) = (rounds(500), served.mount_count() as u64);
    let children = (0..writers).map(|writer| {
        Child::spawn("appender", move || {
            let flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
            let path = served.path(writer as usize, "records");
            let mut fd = sys::open(&path, flags, 0o644).unwrap();
            for number in 0..count {
                let bytes = record(writer, number);
                assert_eq!(sys::write(&fd, &bytes), Ok(bytes.len()));
                if number % 50 == 49 {
                    fd = sys::open(&path, flags, 0o644).unwrap();
                }
            }
        })
    });
    procs::all(children.collect());
    for view in 0..writers as usize {
        let bytes = std::fs::read(served.root(view).join("records")).unwrap();
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let mut at = 0;
        while at < bytes.len() {
            let field = |i: usize| {
                u64::from_le_bytes(bytes[at + i * 8..at + i * 8 + 8].try_into().unwrap())
            };
            let (writer, number) = (field(0), field(1));
            let wanted = record(writer, number);
            assert!(bytes[at..].starts_with(&wanted), "torn record {writer}.{number} at {at}");
            assert_eq!(number, *next.entry(writer).or_default(), "a record of {writer} is lost");
            next.insert(writer, number + 1);
            at += wanted.len();
        }
        assert!((0..writers).all(|writer| next.get(&writer) == Some(&count)), "{next:?}");
    }
}

#[test]
fn records_appended_on_mounts_by_passthrough_and_served_are_whole() {
    let vias = [Via::Local, Via::Tcp, Via::Local];
    appended_records_are_whole(&Served::new(Store::Tmpfs, &vias));
}

#[test]
fn records_appended_on_served_mounts_are_whole() {
    let vias = [Via::Local, Via::Tcp, Via::Tcp];
    appended_records_are_whole(&Served::new(Store::Directory, &vias));
}

#[test]
fn sixty_four_mounts_at_once() {
    let _children = procs::with_children();
    const MOUNTS: usize = 64;
    let served = Served::new(Store::Tmpfs, &mixed(MOUNTS));
    let written = Shared::new(MOUNTS);
    let children = (0..MOUNTS).map(|at| {
        let (served, written) = (&served, &written);
        Child::spawn("small job", move || {
            let own = served.path(at, format!("own{at}"));
            sys::mkdir(&own, 0o755).unwrap();
            let file = [&own[..], b"/file"].concat();
            let fd = sys::open(&file, libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
            sys::write(&fd, &[at as u8; 5000]).unwrap();
            written[at].store(1, SeqCst);
            let flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
            let log = sys::open(served.path(at, "log"), flags, 0o644).unwrap();
            assert_eq!(sys::write(&log, &[at as u8; 10]), Ok(10));
            let next = (at + 1) % MOUNTS;
            while written[next].load(SeqCst) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let theirs = served.path(at, format!("own{next}/file"));
            let fd = sys::open(theirs, libc::O_RDONLY, 0).unwrap();
            assert_eq!(sys::pread(&fd, 0, 8192), Ok(vec![next as u8; 5000]));
        })
    });
    procs::all(children.collect());
    let mut log = std::fs::read(served.root(63).join("log")).unwrap();
    log.sort_unstable();
    let wanted: Vec<u8> = (0..MOUNTS).flat_map(|at| [at as u8; 10]).collect();
    assert!(log == wanted, "each mount's record once");
    assert_eq!(served.status()["clients"].as_array().unwrap().len(), MOUNTS);
    assert_eq!(sys::stat(served.path(7, "")).unwrap().nlink, 2 + MOUNTS as u64);
}
