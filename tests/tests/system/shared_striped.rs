//! Striped files on several servers and mounts: random changes against a reference, appends of several
//! mounts, servers killed in between, what is away and what is lost, layouts.
#![allow(clippy::unwrap_used)]

use forebay_tests::model::map_write;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{env_u64, long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const STRIPE: u64 = 64 << 10;
const RDWR: i32 = libc::O_RDWR;
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// A buffer over `servers` with a directory `s` whose files are striped over all of them.
fn served(servers: usize, store: Store, mounts: &[Via]) -> Served {
    with(Options::over(servers, store), mounts)
}

fn with(options: Options, mounts: &[Via]) -> Served {
    let served = Served::with(options, mounts);
    sys::mkdir(served.path(0, "s"), 0o777).unwrap();
    set(&served, "s", "stripe_size_bytes", &STRIPE.to_string()).unwrap();
    set(&served, "s", "stripe_count", "all").unwrap();
    served
}

fn set(served: &Served, path: &str, name: &str, value: &str) -> Result<(), Errno> {
    let path = served.path(0, path);
    sys::setxattr(path, &format!("user.forebay.{name}"), value.as_bytes(), 0)
}

fn get(served: &Served, at: usize, path: &str, name: &str) -> String {
    let value = sys::getxattr(served.path(at, path), &format!("user.forebay.{name}")).unwrap();
    String::from_utf8(value).unwrap()
}

fn steps(short: u64) -> u64 {
    env_u64("FOREBAY_STEPS", if long() { 40 * short } else { short })
}

/// One file, open on every mount, and what must be in it.
struct Shared<'a> {
    served: &'a Served,
    name: String,
    files: Vec<OwnedFd>,
    appenders: Vec<OwnedFd>,
    model: Vec<u8>,
    rng: StdRng,
}

impl<'a> Shared<'a> {
    fn new(served: &'a Served, name: &str, seed: u64) -> Shared<'a> {
        let name = format!("s/{name}");
        drop(sys::open(served.path(0, &name), NEW, 0o644).unwrap());
        let open = |at, flags| sys::open(served.path(at, &name), flags, 0).unwrap();
        let mounts = 0..served.mount_count();
        Shared {
            files: mounts.clone().map(|at| open(at, RDWR)).collect(),
            appenders: mounts.map(|at| open(at, libc::O_WRONLY | libc::O_APPEND)).collect(),
            served,
            name,
            model: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..200),
            1 => STRIPE as usize,
            _ => self.rng.random_range(1..3 * STRIPE as usize),
        };
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes[..]);
        bytes
    }

    fn offset(&mut self) -> u64 {
        match self.rng.random_range(0..3) {
            0 => self.rng.random_range(0..12) * STRIPE,
            _ => self.rng.random_range(0..12 * STRIPE),
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    /// One change on one mount, seen on the others.
    fn step(&mut self) -> String {
        let by = self.rng.random_range(0..self.files.len());
        let (at, bytes) = (self.offset(), self.bytes());
        let said = match self.rng.random_range(0..10) {
            0..4 => {
                assert_eq!(sys::pwrite(&self.files[by], at, &bytes), Ok(bytes.len()));
                self.put(at, &bytes);
                format!("mount {by} wrote {} at {at}", bytes.len())
            }
            4..6 => {
                let end = self.model.len() as u64;
                assert_eq!(sys::write(&self.appenders[by], &bytes), Ok(bytes.len()));
                self.put(end, &bytes);
                format!("mount {by} appended {} at {end}", bytes.len())
            }
            6 => {
                sys::ftruncate(&self.files[by], at).unwrap();
                self.model.resize(at as usize, 0);
                format!("mount {by} set the size to {at}")
            }
            7 => {
                sys::fallocate(&self.files[by], 0, at, bytes.len() as u64).unwrap();
                let end = at as usize + bytes.len();
                self.model.resize(self.model.len().max(end), 0);
                format!("mount {by} allocated {} at {at}", bytes.len())
            }
            8 => {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                sys::fallocate(&self.files[by], punch, at, bytes.len() as u64).unwrap();
                let end = self.model.len().min(at as usize + bytes.len());
                if let Some(hole) = self.model.get_mut(at as usize..end) {
                    hole.fill(0);
                }
                format!("mount {by} punched {} at {at}", bytes.len())
            }
            _ => {
                let emptied =
                    sys::open(self.served.path(by, &self.name), RDWR | libc::O_TRUNC, 0).unwrap();
                self.model.clear();
                assert_eq!(sys::pwrite(&emptied, at, &bytes[..1]), Ok(1));
                self.put(at, &bytes[..1]);
                format!("mount {by} emptied it and wrote at {at}")
            }
        };
        for view in 0..self.files.len() {
            self.look(view, at, bytes.len(), &said);
        }
        said
    }

    /// Size, and the bytes around a place, as a mount sees them.
    fn look(&self, view: usize, at: u64, length: usize, said: &str) {
        let size = sys::fstat(&self.files[view]).unwrap().size as usize;
        assert_eq!(size, self.model.len(), "after {said}: size on mount {view}");
        let from = at.saturating_sub(100);
        let seen = sys::pread(&self.files[view], from, length + 200).unwrap();
        let end = self.model.len().min(from as usize + length + 200);
        let wanted = self.model.get(from as usize..end).unwrap_or_default();
        let differs = || seen.iter().zip(wanted).position(|(a, b)| a != b);
        assert_eq!(seen.len(), wanted.len(), "after {said}: mount {view} reads at {from}");
        assert!(seen == wanted, "after {said}: mount {view} differs at {from} + {:?}", differs());
    }

    fn whole(&self) {
        for view in 0..self.files.len() {
            let path = self.served.root(view).join(&self.name);
            assert!(std::fs::read(path).unwrap() == self.model, "mount {view}: {}", self.name);
        }
    }
}

fn random_changes(served: &Served, name: &str, count: u64) {
    let mut file = Shared::new(served, "f", seed(name));
    for _ in 0..count {
        file.step();
    }
    file.whole();
}

#[test]
fn random_changes_of_two_mounts_on_two_servers_agree_with_a_model() {
    let served = served(2, Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let name = "random_changes_of_two_mounts_on_two_servers_agree_with_a_model";
    random_changes(&served, name, steps(400));
}

#[test]
fn random_changes_of_two_mounts_on_three_servers_agree_with_a_model() {
    let served = served(3, Store::Directory, &[Via::Tcp, Via::Tcp]);
    let name = "random_changes_of_two_mounts_on_three_servers_agree_with_a_model";
    random_changes(&served, name, steps(300));
}

#[test]
fn changes_go_on_over_kills_of_servers() {
    let served = served(3, Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let seed = seed("changes_go_on_over_kills_of_servers");
    let mut file = Shared::new(&served, "f", seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 1);
    for _ in 0..steps(6) {
        for _ in 0..20 {
            file.step();
        }
        let victim = rng.random_range(0..served.server_count());
        // The next change may need it: it waits until the server is there again.
        served.while_server_is_away(victim, || file.step());
        file.whole();
    }
}

#[test]
fn appends_of_two_mounts_are_each_there_once_over_kills() {
    let served = served(2, Store::Tmpfs, &[Via::Local, Via::Tcp]);
    drop(sys::open(served.path(0, "s/log"), NEW, 0o644).unwrap());
    let count = 400u32;
    let record = |who: usize, n: u32| {
        let mut record = format!("{who}:{n:06}:").into_bytes();
        record.resize(1000 + (n as usize % 7) * 3000, b'a' + (n % 26) as u8);
        record.push(b'\n');
        record
    };
    std::thread::scope(|scope| {
        for who in 0..2 {
            let path = served.path(who, "s/log");
            scope.spawn(move || {
                let log = sys::open(path, libc::O_WRONLY | libc::O_APPEND, 0).unwrap();
                for n in 0..count {
                    let bytes = record(who, n);
                    assert_eq!(sys::write(&log, &bytes), Ok(bytes.len()));
                }
            });
        }
        for victim in [1, 0, 1, 0] {
            std::thread::sleep(Duration::from_millis(250));
            served.kill_server_at(victim);
            served.start_server_at(victim);
        }
    });
    let all = std::fs::read(served.root(0).join("s/log")).unwrap();
    let mut next = [0; 2];
    for line in all.split_inclusive(|b| *b == b'\n') {
        let who = usize::from(line[0] - b'0');
        assert!(line == record(who, next[who]), "record {} of {who} is not whole", next[who]);
        next[who] += 1;
    }
    assert_eq!(next, [count; 2]);
}

#[test]
fn a_server_that_is_away_fails_only_its_own_stripes() {
    let options = Options { patience_s: Some(2), ..Options::over(2, Store::Tmpfs) };
    let served = with(options, &[Via::Tcp]);
    let bytes: Vec<u8> = (0..4 * STRIPE).map(|n| (n / STRIPE) as u8 + 1).collect();
    std::fs::write(served.root(0).join("s/f"), &bytes).unwrap();
    let file = sys::open(served.path(0, "s/f"), RDWR, 0).unwrap();
    served.kill_server_at(1);
    let begun = Instant::now();
    let came: Vec<_> = (0..4)
        .map(|unit| sys::pread(&file, unit * STRIPE, STRIPE as usize).map(|bytes| bytes.len()))
        .collect();
    // Which part of the buffer is on which server is the leader's choice.
    let (there, away) = (Ok(STRIPE as usize), Err(Errno(libc::ETIMEDOUT)));
    let either = [[there, away, there, away], [away, there, away, there]];
    assert!(either.iter().any(|wanted| came == wanted), "{came:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    served.start_server_at(1);
    let until = Instant::now() + Duration::from_secs(20);
    while sys::pread(&file, 0, bytes.len()) != Ok(bytes.clone()) {
        assert!(Instant::now() < until, "it does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn layouts_are_set_by_xattrs_and_spread_numbered_names_evenly() {
    let served = served(3, Store::Tmpfs, &[Via::Local, Via::Tcp]);
    set(&served, "s", "stripe_count", "2").unwrap();
    assert_eq!(set(&served, "s", "stripe_count", "4"), Err(Errno(libc::ERANGE)));
    let mut on = [0; 3];
    for n in 0..30 {
        let name = format!("s/rank.{n:02}");
        drop(sys::open(served.path(n % 2, &name), NEW, 0o644).unwrap());
        assert_eq!(get(&served, 1, &name, "stripe_count"), "2");
        for server in get(&served, 1, &name, "servers").split(',') {
            on[server.parse::<usize>().unwrap()] += 1;
        }
    }
    assert_eq!(on, [20; 3]);
    // Opened for writing elsewhere, and then with data: the layout is fixed.
    drop(sys::open(served.path(0, "s/g"), NEW, 0o644).unwrap());
    let writer = sys::open(served.path(1, "s/g"), RDWR, 0).unwrap();
    assert_eq!(set(&served, "s/g", "stripe_count", "3"), Err(Errno(libc::EBUSY)));
    sys::pwrite(&writer, 0, b"data").unwrap();
    drop(writer);
    let until = Instant::now() + Duration::from_secs(10);
    while set(&served, "s/g", "stripe_count", "3") == Err(Errno(libc::EBUSY)) {
        assert!(Instant::now() < until, "its last close is not heard of");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(set(&served, "s/g", "stripe_count", "3"), Err(Errno(libc::EEXIST)));
}

#[test]
fn removed_striped_files_give_their_space_back_on_all_servers() {
    let served = served(2, Store::Tmpfs, &[Via::Tcp]);
    let free = || sys::statfs(served.path(0, "")).unwrap().free;
    let before = free();
    let bytes = vec![7; 64 << 20];
    for n in 0..3 {
        std::fs::write(served.root(0).join(format!("s/{n}")), &bytes).unwrap();
    }
    assert!(free() + 180 * (1 << 20) < before);
    for n in 0..3 {
        sys::unlink(served.path(0, format!("s/{n}"))).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while free() + (1 << 20) < before {
        assert!(Instant::now() < until, "{} of {before} are free", free());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_server_is_told_and_what_was_written_stays() {
    let options = Options { capacity: 64 << 20, ..Options::over(2, Store::Tmpfs) };
    let served = with(options, &[Via::Tcp]);
    let file = sys::open(served.path(0, "s/f"), NEW, 0o644).unwrap();
    let block = vec![9; 1 << 20];
    let mut at = 0;
    let full = loop {
        match sys::pwrite(&file, at, &block) {
            Ok(count) => at += count as u64,
            Err(errno) => break errno,
        }
        assert!(at < 80 << 20, "more than there is");
    };
    assert_eq!(full, Errno(libc::ENOSPC));
    assert!(at > 56 << 20, "{at}");
    let seen = std::fs::read(served.root(0).join("s/f")).unwrap();
    assert!(seen[..at as usize].iter().all(|byte| *byte == 9));
    sys::unlink(served.path(0, "s/f")).unwrap();
}

#[test]
fn mapped_stores_and_copies_reach_the_other_mount() {
    let served = served(2, Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let bytes: Vec<u8> = (0..3 * STRIPE as u32 + 777).map(|n| (n % 251) as u8).collect();
    std::fs::write(served.root(0).join("s/a"), &bytes).unwrap();
    let file = sys::open(served.path(0, "s/a"), RDWR, 0).unwrap();
    map_write(&file, STRIPE - 50, &[0xee; 100]).unwrap();
    let mut wanted = bytes.clone();
    wanted[STRIPE as usize - 50..STRIPE as usize + 50].fill(0xee);
    assert!(std::fs::read(served.root(1).join("s/a")).unwrap() == wanted);
    std::fs::copy(served.root(1).join("s/a"), served.root(1).join("s/b")).unwrap();
    std::fs::copy(served.root(1).join("s/a"), served.root(1).join("whole")).unwrap();
    for name in ["s/b", "whole"] {
        assert!(std::fs::read(served.root(0).join(name)).unwrap() == wanted, "{name}");
    }
    // Holes stay holes, and are found.
    let sparse = sys::open(served.path(0, "s/sparse"), NEW, 0o644).unwrap();
    sys::pwrite(&sparse, 5 * STRIPE, b"x").unwrap();
    let other = sys::open(served.path(1, "s/sparse"), libc::O_RDONLY, 0).unwrap();
    let seek = |whence| sys::lseek(&other, 0, whence);
    assert_eq!((seek(libc::SEEK_DATA), seek(libc::SEEK_HOLE)), (Ok(5 * STRIPE), Ok(0)));
    sys::fsync(&sparse).unwrap();
}
