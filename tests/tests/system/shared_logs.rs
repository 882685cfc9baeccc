//! Files that are written as logs, on several servers and mounts: random writes and publications against a model of what
//! each mount must see, mounts and servers killed in between, mappings, sizes and times, staging, commands.
#![allow(clippy::unwrap_used)]

use forebay_tests::model::{SharedPlan, run_shared};
use forebay_tests::pfs::Pfs;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::{env_u64, every_point, long, procs, random_steps, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

const RDWR: i32 = libc::O_RDWR;
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
/// For what comes when a lease or a server's return is over.
const SOON: Duration = Duration::from_secs(60);
/// A machine under load may be so late.
const SLACK: Duration = Duration::from_secs(20);

/// A buffer over `servers` with a directory `l` whose files are written as logs.
fn with(options: Options, mounts: &[Via]) -> Served {
    let served = Served::with(options, mounts);
    sys::mkdir(served.path(0, "l"), 0o777).unwrap();
    sys::setxattr(served.path(0, "l"), "user.forebay.layout", b"log", 0).unwrap();
    served
}

fn steps(short: u64) -> u64 {
    env_u64("FOREBAY_STEPS", if long() { 40 * short } else { short })
}

fn until(what: &str, done: impl FnMut() -> bool) {
    forebay_tests::until(what, SOON, done);
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at..end].copy_from_slice(bytes);
}

/// One file, open on every mount; what all see of it, and what each mount sees of its own beyond.
struct Shared<'a> {
    served: &'a Served,
    name: String,
    files: Vec<OwnedFd>,
    /// The same for reading alone. A read by who may also write shows more: what others have not published.
    readers: Vec<OwnedFd>,
    /// As all see it.
    published: Vec<u8>,
    /// As it is before all writes in `writes`.
    base: Vec<u8>,
    /// In their order, until the size of the file changes: by whom, where, what, and whether it was published.
    writes: Vec<(usize, u64, Vec<u8>, bool)>,
    rng: StdRng,
    /// All see what was written at once.
    strict: bool,
    /// A server has asked mounts to publish, and may have done so late: what is not published may be seen too.
    asked: bool,
}

impl<'a> Shared<'a> {
    fn new(served: &'a Served, name: &str, seed: u64) -> Shared<'a> {
        let name = format!("l/{name}");
        drop(sys::open(served.path(0, &name), NEW, 0o644).unwrap());
        let open = |flags: i32| -> Vec<OwnedFd> {
            let open = |at| sys::open(served.path(at, &name), flags, 0).unwrap();
            (0..served.mount_count()).map(open).collect()
        };
        Shared {
            files: open(RDWR),
            readers: open(libc::O_RDONLY),
            served,
            name,
            published: Vec::new(),
            base: Vec::new(),
            writes: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            strict: false,
            asked: false,
        }
    }

    fn publish(&mut self, by: usize) {
        self.writes.iter_mut().filter(|write| write.0 == by).for_each(|write| write.3 = true);
        self.published = self.view(usize::MAX);
    }

    /// Before sizes and appends all mounts publish.
    fn publish_all(&mut self) {
        (0..self.files.len()).for_each(|by| self.publish(by));
        self.writes.clear();
    }

    /// What is written last is what all see that see it, whoever published first.
    fn view(&self, by: usize) -> Vec<u8> {
        let mut view = self.base.clone();
        for (whose, at, bytes, is_published) in &self.writes {
            if *is_published || *whose == by {
                put(&mut view, *at, bytes);
            }
        }
        view
    }

    /// All of it was written otherwise.
    fn is_now(&mut self) {
        self.base = self.published.clone();
    }

    /// One step on one mount, looked at on all of them.
    fn step(&mut self) -> String {
        let by = self.rng.random_range(0..self.files.len());
        let at = self.rng.random_range(0..300_000u64);
        let length = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(1..200),
            1 => 47_008,
            _ => self.rng.random_range(1..100_000),
        };
        let mut bytes = vec![0; length];
        self.rng.fill(&mut bytes[..]);
        let path = self.served.path(by, &self.name);
        let said = match self.rng.random_range(0..13) {
            0..6 => {
                assert_eq!(sys::pwrite(&self.files[by], at, &bytes), Ok(bytes.len()));
                self.writes.push((by, at, bytes, false));
                format!("mount {by} wrote {length} at {at}")
            }
            6 => {
                sys::fsync(&self.files[by]).unwrap();
                self.publish(by);
                format!("mount {by} fsynced")
            }
            7 | 8 => {
                drop(sys::open(path, libc::O_RDONLY, 0).unwrap());
                self.publish(by);
                format!("mount {by} closed a descriptor")
            }
            9 => {
                sys::ftruncate(&self.files[by], at).unwrap();
                self.publish_all();
                self.published.resize(at as usize, 0);
                self.is_now();
                format!("mount {by} set the size to {at}")
            }
            10 => {
                let file = sys::open(path, libc::O_WRONLY | libc::O_APPEND, 0).unwrap();
                assert_eq!(sys::write(&file, &bytes), Ok(bytes.len()));
                self.publish_all();
                let end = self.published.len() as u64;
                put(&mut self.published, end, &bytes);
                self.is_now();
                format!("mount {by} appended {length} at {end}")
            }
            11 => {
                let emptied = sys::open(path, RDWR | libc::O_TRUNC, 0).unwrap();
                self.publish_all();
                self.published.clear();
                assert_eq!(sys::pwrite(&emptied, at % 1000, &bytes), Ok(bytes.len()));
                drop(emptied);
                put(&mut self.published, at % 1000, &bytes);
                self.is_now();
                format!("mount {by} emptied it and wrote {length} at {}", at % 1000)
            }
            _ => {
                self.write_back(by, at, bytes);
                format!("mount {by} wrote {length} back at {at}")
            }
        };
        if self.strict {
            self.publish(by);
        }
        println!("{said}");
        (0..self.files.len()).for_each(|view| self.look(view, at, length, &said));
        said
    }

    /// Reads by who may also write: that shows what all have written by then. And writes there, which others see at once.
    fn write_back(&mut self, by: usize, at: u64, bytes: Vec<u8>) {
        let seen = sys::pread(&self.files[by], at, bytes.len()).unwrap();
        (0..self.files.len()).filter(|other| *other != by).for_each(|other| self.publish(other));
        let model = self.view(by);
        let (from, end) = (at as usize, model.len().min(at as usize + bytes.len()));
        let wanted = model.get(from..end).unwrap_or_default();
        assert!(seen == wanted, "mount {by} reads {} at {at} to write it back", bytes.len());
        assert_eq!(sys::pwrite(&self.files[by], at, &bytes), Ok(bytes.len()));
        self.writes.push((by, at, bytes, false));
        self.publish(by);
    }

    /// Size, and the bytes around a place, as a mount sees them.
    fn look(&self, view: usize, at: u64, length: usize, said: &str) {
        let model = self.view(view);
        let size = sys::fstat(&self.files[view]).unwrap().size as usize;
        if self.asked {
            self.look_leniently(view, at, length, said);
            return;
        }
        assert_eq!(size, model.len(), "after {said}: size on mount {view}");
        let from = at.saturating_sub(100);
        let seen = sys::pread(&self.readers[view], from, length + 200).unwrap();
        let end = model.len().min(from as usize + length + 200);
        let wanted = model.get(from as usize..end).unwrap_or_default();
        let differs = || seen.iter().zip(wanted).position(|(a, b)| a != b);
        assert_eq!(seen.len(), wanted.len(), "after {said}: mount {view} reads at {from}");
        assert!(seen == wanted, "after {said}: mount {view} differs at {from} + {:?}", differs());
    }

    /// All that is published is there, and else nothing but what was written since.
    fn look_leniently(&self, view: usize, at: u64, length: usize, said: &str) {
        let (least, mut most) = (self.view(view), self.base.clone());
        self.writes.iter().for_each(|(_, at, bytes, _)| put(&mut most, *at, bytes));
        let from = at.saturating_sub(100) as usize;
        let seen = sys::pread(&self.readers[view], from as u64, length + 200).unwrap();
        let end = |model: &[u8]| model.len().clamp(from, from + length + 200) - from;
        let sizes = end(&least)..=end(&most);
        assert!(sizes.contains(&seen.len()), "after {said}: mount {view} reads at {from}");
        for (n, byte) in seen.iter().enumerate() {
            let at = from + n;
            let was_written = |(_, from, bytes, _): &(usize, u64, Vec<u8>, bool)| {
                let within = at as u64 >= *from && (at as u64) < *from + bytes.len() as u64;
                within && bytes[at - *from as usize] == *byte
            };
            let may_be =
                *byte == least.get(at).copied().unwrap_or(0) || self.writes.iter().any(was_written);
            assert!(may_be, "after {said}: mount {view} differs at {at}");
        }
    }

    fn sees(&self, view: usize) -> bool {
        let model = self.view(view);
        sys::fstat(&self.files[view]).unwrap().size as usize == model.len()
            && sys::pread(&self.readers[view], 0, model.len() + 10).unwrap() == model
    }

    fn whole(&self, said: &str) {
        for view in 0..self.files.len() {
            self.look(view, 0, self.published.len() + 400_000, said);
        }
    }

    /// A mount dies: what it wrote is there for all, when it is known to have died.
    fn kill_mount(&mut self, at: usize) {
        println!("mount {at} is killed");
        self.served.kill_mount(at);
        self.publish(at);
        let others: Vec<usize> = (0..self.files.len()).filter(|other| *other != at).collect();
        for view in others {
            until("a dead mount's writes", || self.sees(view));
        }
        self.served.mount_again(at);
        let path = self.served.path(at, &self.name);
        self.files[at] = sys::open(&path, RDWR, 0).unwrap();
        self.readers[at] = sys::open(&path, libc::O_RDONLY, 0).unwrap();
    }
}

fn random(served: &Served, name: &str, count: u64) {
    let mut file = Shared::new(served, "f", seed(name));
    for _ in 0..count {
        file.step();
    }
    file.whole("all");
}

#[test]
fn random_writes_into_logs_of_three_mounts_agree_with_a_model() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp, Via::Local]);
    random(&served, "random_writes_into_logs_of_three_mounts_agree_with_a_model", steps(250));
}

#[test]
fn random_writes_into_logs_on_a_counted_store_agree_with_a_model() {
    let served = with(Options::over(3, Store::Directory), &[Via::Local, Via::Tcp]);
    random(&served, "random_writes_into_logs_on_a_counted_store_agree_with_a_model", steps(150));
}

#[test]
fn writes_into_logs_survive_kills_of_servers_and_mounts() {
    let options = Options::over(2, Store::Tmpfs).short_lease();
    let served = with(options, &[Via::Local, Via::Tcp, Via::Local]);
    let seed = seed("writes_into_logs_survive_kills_of_servers_and_mounts");
    let mut file = Shared::new(&served, "f", seed);
    let mut rng = StdRng::seed_from_u64(seed ^ 1);
    for round in 0..steps(6) {
        for _ in 0..12 {
            file.step();
        }
        match round % 3 {
            2 => file.kill_mount(2 * rng.random_range(0..2)),
            _ => {
                let victim = rng.random_range(0..served.server_count());
                // The next step may need it: it waits until the server is there again.
                println!("server {victim} is killed");
                file.asked = true;
                served.while_server_is_away(victim, || file.step());
            }
        }
        file.whole("a kill");
    }
}

#[test]
fn what_mounts_that_died_without_their_servers_wrote_is_read_from_their_logs() {
    let options = Options::over(2, Store::Tmpfs).short_lease();
    let served = with(options, &[Via::Local, Via::Local, Via::Tcp]);
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    let other = sys::open(served.path(1, "l/f"), RDWR, 0).unwrap();
    assert_eq!(sys::pwrite(&file, 0, &[1; 100_000]), Ok(100_000));
    assert_eq!(sys::pwrite(&other, 200_000, &[2; 100_000]), Ok(100_000));
    (0..2).for_each(|at| served.kill_server_at(at));
    (0..2).for_each(|at| served.kill_mount(at));
    served.start_server();
    let mut wanted = vec![0; 300_000];
    wanted[..100_000].fill(1);
    wanted[200_000..].fill(2);
    // Its servers wait until the mounts of their last start are known to be gone.
    let name = served.root(2).join("l/f");
    until("all of it", || std::fs::read(&name).is_ok_and(|seen| seen == wanted));
}

#[test]
fn a_server_that_comes_back_publishes_nothing_that_its_mounts_did_not() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    let other = sys::open(served.path(1, "l/f"), RDWR, 0).unwrap();
    let sizes = || [&file, &other].map(|file| sys::fstat(file).unwrap().size);
    assert_eq!(sys::pwrite(&file, 0, &[1; 1_000]), Ok(1_000));
    for server in 0..served.server_count() {
        served.kill_server_at(server);
        served.start_server_at(server);
        let end = 2_000 + 1_000 * server as u64;
        assert_eq!(sys::pwrite(&file, end - 1_000, &[2; 1_000]), Ok(1_000));
        assert_eq!(sizes(), [end, 0], "server {server} came back");
    }
    sys::fsync(&file).unwrap();
    assert_eq!(sizes(), [3_000; 2]);
    let wanted = [vec![1; 1_000], vec![2; 2_000]].concat();
    assert!(sys::pread(&other, 0, 4_000).unwrap() == wanted);
}

#[test]
fn who_writes_after_a_barrier_wins_though_it_publishes_first() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    let other = sys::open(served.path(1, "l/f"), RDWR, 0).unwrap();
    // Who may write would have the other publish.
    let readers = [0, 1].map(|at| sys::open(served.path(at, "l/f"), libc::O_RDONLY, 0).unwrap());
    // As parallel HDF5 does it: one rank writes fill values, others their data over them.
    assert_eq!(sys::pwrite(&file, 0, &[1; 100_000]), Ok(100_000));
    assert_eq!(sys::pwrite(&other, 10_000, &[2; 50_000]), Ok(50_000));
    sys::fsync(&other).unwrap();
    let wanted = [vec![1; 10_000], vec![2; 50_000], vec![1; 40_000]].concat();
    assert!(
        sys::pread(&readers[0], 0, 100_000).unwrap() == wanted,
        "what is later is seen at once"
    );
    sys::fsync(&file).unwrap();
    for (at, reader) in readers.iter().enumerate() {
        assert!(sys::pread(reader, 0, 200_000).unwrap() == wanted, "mount {at}");
    }
    // What was there before a cut does not come back, whoever publishes it when.
    assert_eq!(sys::pwrite(&other, 90_000, &[3; 50_000]), Ok(50_000));
    sys::ftruncate(&file, 20_000).unwrap();
    sys::fsync(&other).unwrap();
    assert!(sys::pread(&readers[0], 0, 200_000).unwrap() == wanted[..20_000]);
    for server in 0..served.server_count() {
        served.kill_server_at(server);
        served.start_server_at(server);
    }
    assert!(sys::pread(&readers[1], 0, 200_000).unwrap() == wanted[..20_000]);
}

/// Strided writes of two mounts, as a parallel program makes them.
fn strided(served: &Served, name: &str, records: u64) -> Vec<u8> {
    const RECORD: usize = 47_008;
    let byte = |n: u64| 1 + (n % 251) as u8;
    drop(sys::open(served.path(0, name), NEW, 0o644).unwrap());
    std::thread::scope(|scope| {
        for by in 0..2u64 {
            let path = served.path(by as usize, name);
            scope.spawn(move || {
                let file = sys::open(path, libc::O_WRONLY, 0).unwrap();
                for n in (by..records).step_by(2) {
                    let at = n * RECORD as u64;
                    assert_eq!(sys::pwrite(&file, at, &vec![byte(n); RECORD]), Ok(RECORD));
                }
                sys::close(file).unwrap();
            });
        }
    });
    (0..records).flat_map(|n| std::iter::repeat_n(byte(n), RECORD)).collect()
}

#[test]
fn strided_writes_of_two_mounts_are_read_staged_and_brought_together_right() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Local, Via::Tcp]);
    let wanted = strided(&served, "l/f", 300);
    for at in 0..3 {
        assert!(std::fs::read(served.root(at).join("l/f")).unwrap() == wanted, "mount {at}");
    }
    let out = served.pfs("out");
    let from = served.root(0).join("l/f");
    served.must(served.forebay(&["stage", "out"]).arg(&from).arg(&out));
    assert!(std::fs::read(&out).unwrap() == wanted, "staged out");
    // A write by a program that appends goes to the file's own objects, behind all that is in logs.
    let mut more = wanted.clone();
    let append = sys::open(served.path(2, "l/f"), libc::O_WRONLY | libc::O_APPEND, 0).unwrap();
    assert_eq!(sys::write(&append, b"the end"), Ok(7));
    more.extend_from_slice(b"the end");
    let committed = served.pfs("committed");
    let tree = served.root(1).join("l");
    served.must(served.forebay(&["commit"]).arg(&tree).arg("--to").arg(&committed));
    assert!(std::fs::read(committed.join("f")).unwrap() == more, "committed");
    // Staged in, it has a layout of its directory and is written like any other.
    let back = served.root(0).join("l/back");
    served.must(served.forebay(&["stage", "in"]).arg(&out).arg(&back));
    let file = sys::open(served.path(1, "l/back"), RDWR, 0).unwrap();
    assert_eq!(sys::pwrite(&file, 5, b"new"), Ok(3));
    drop(file);
    let mut changed = wanted.clone();
    changed[5..8].copy_from_slice(b"new");
    assert!(std::fs::read(served.root(2).join("l/back")).unwrap() == changed, "staged in");
}

#[test]
fn removed_files_in_logs_give_their_space_back_on_all_servers() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let free = || sys::statfs(served.path(0, "")).unwrap().free;
    let before = free();
    let wanted = strided(&served, "l/f", 600);
    assert!(free() + wanted.len() as u64 * 9 / 10 < before);
    sys::unlink(served.path(1, "l/f")).unwrap();
    until("its space", || free() + (1 << 20) > before);
}

#[test]
fn a_file_written_over_and_over_takes_a_bounded_space() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let free = || sys::statfs(served.path(0, "")).unwrap().free;
    let before = free();
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    // Eight times what the buffer has, in `make test` four times.
    let rounds: u32 = if every_point() { 1024 } else { 512 };
    for round in 0..rounds {
        let bytes = vec![round as u8; 4 << 20];
        let what = format!("round {round}: its old space comes back");
        until(&what, || sys::pwrite(&file, 0, &bytes) == Ok(bytes.len()));
        if round % 4 == 3 {
            sys::fsync(&file).unwrap();
        }
    }
    until("its old space", || free() + (200 << 20) > before);
    assert!(sys::pread(&file, 0, 4 << 20).unwrap() == vec![255; 4 << 20]);
}

#[test]
fn sizes_times_mappings_and_holes_of_files_in_logs_are_those_of_any_file() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    assert_eq!(sys::pwrite(&file, 10_000, &[1; 10_000]), Ok(10_000));
    assert_eq!(sys::fstat(&file).unwrap().size, 20_000, "one's own write at once");
    assert_eq!(sys::stat(served.path(1, "l/f")).unwrap().size, 0, "others' when it is published");
    let (wrote, same) = (sys::fstat(&file).unwrap(), sys::open(served.path(0, "l/f"), RDWR, 0));
    drop(same.unwrap());
    let closed = sys::fstat(&file).unwrap();
    assert_eq!(
        (closed.mtime, closed.ctime),
        (wrote.mtime, wrote.ctime),
        "no time is new by a close"
    );
    assert_eq!(sys::pwrite(&file, 19_999, b"\x01"), Ok(1));
    let again = sys::fstat(&file).unwrap();
    assert!(again.mtime >= closed.mtime && again.ctime >= closed.ctime, "{again:?} {closed:?}");
    sys::link(served.path(0, "l/f"), served.path(0, "l/g")).unwrap();
    let linked = sys::fstat(&file).unwrap();
    assert!(linked.mtime == again.mtime && linked.ctime >= again.ctime, "{linked:?} {again:?}");
    sys::unlink(served.path(0, "l/g")).unwrap();
    assert_eq!(sys::pread(&file, 9_990, 20).unwrap(), [[0; 10], [1; 10]].concat());
    assert_eq!(sys::lseek(&file, 0, libc::SEEK_END), Ok(20_000));
    assert_eq!(sys::lseek(&file, 0, libc::SEEK_HOLE), Ok(20_000), "all counts as data");
    sys::utimens(served.path(0, "l/f"), (-1_000_000, 7), (1_000_000, 5), 0).unwrap();
    drop(file);
    let seen = sys::stat(served.path(1, "l/f")).unwrap();
    assert_eq!((seen.size, seen.mtime), (20_000, (1_000_000, 5)), "a close is no write");
    assert_eq!(seen.atime, (-1_000_000, 7));
    // Emptied before anything was brought together: no object shows the time.
    drop(sys::open(served.path(0, "l/f"), libc::O_WRONLY | libc::O_TRUNC, 0).unwrap());
    let emptied = sys::stat(served.path(1, "l/f")).unwrap();
    assert!(emptied.size == 0 && emptied.mtime.0 > 1_000_000, "{emptied:?}");
    std::fs::write(served.root(0).join("l/f"), [1; 20_000]).unwrap();
    sys::utimens(served.path(0, "l/f"), (1_000_000, 5), (1_000_000, 5), 0).unwrap();
    sys::truncate(served.path(0, "l/f"), 0).unwrap();
    let emptied = sys::stat(served.path(1, "l/f")).unwrap();
    assert!(emptied.size == 0 && emptied.mtime.0 > 1_000_000, "{emptied:?}");
    std::fs::write(served.root(0).join("l/f"), [1; 20_000]).unwrap();
    sys::utimens(served.path(0, "l/f"), (1_000_000, 5), (1_000_000, 5), 0).unwrap();
    // A store into a shared mapping is a write when it is synced.
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b')\n\
        m=mmap.mmap(f.fileno(),20000)\n\
        assert m[10000]==1\n\
        m[0:4]=b'FOUR'\n\
        m.flush()\n";
    procs::run(Command::new("python3").args(["-c", script]).arg(served.root(1).join("l/f")));
    let seen = std::fs::read(served.root(0).join("l/f")).unwrap();
    assert!(&seen[..4] == b"FOUR" && seen[10_000..] == [1; 10_000], "stored on another mount");
    let newer = sys::stat(served.path(0, "l/f")).unwrap();
    assert!(newer.mtime.0 > 1_000_000, "{:?}", newer.mtime);
}

/// What one mount's programs do with files agrees with what POSIX says, over kills of the servers.
#[test]
fn a_mount_of_a_buffer_in_logs_agrees_with_the_model() {
    let options = Options { log: true, ..Options::over(2, Store::Tmpfs) };
    let served = Served::with(options, &[Via::Local]);
    let status = served.status();
    assert_eq!(status["layout"], "log", "{status}");
    let plan = SharedPlan {
        seed: seed("a_mount_of_a_buffer_in_logs_agrees_with_the_model"),
        steps: steps(random_steps(1_200)),
        whole_every: 300,
        kill_server_every: 200,
        kill_mount_every: 0,
    };
    run_shared(&served, plan);
}

/// What the servers of a buffer in logs tell of all its logs.
fn told_of_logs(served: &Served) -> serde_json::Value {
    let mut top = served.forebay(&["top", "--once", "--json", "--server", &served.unix()]);
    let told: serde_json::Value = serde_json::from_str(&served.must(&mut top)).unwrap();
    told["buffers"][0]["logs"].clone()
}

#[test]
fn what_a_buffer_has_in_logs_is_counted() {
    let options = Options { log: true, ..Options::over(2, Store::Tmpfs) };
    let served = Served::with(options, &[Via::Local, Via::Local]);
    std::fs::write(served.root(0).join("f"), vec![1; 100_000]).unwrap();
    std::fs::write(served.root(1).join("g"), vec![2; 50_000]).unwrap();
    until("both are told of", || told_of_logs(&served)["files"] == 2);
    let logs = told_of_logs(&served);
    let number = |key: &str| logs[key].as_u64().unwrap();
    assert_eq!(number("live_bytes"), 150_000, "{logs}");
    assert!(number("log_bytes") > 150_000 && number("log_bytes") < 160_000, "{logs}");
    assert!(number("begun") >= 2 && number("log_count") >= 2, "{logs}");
    assert!(number("publications") >= 2 && number("published_bytes") >= 150_000, "{logs}");
    // A hole is made in the objects: what is there is brought together first.
    let file = served.root(1).join("f");
    procs::run(Command::new("fallocate").args(["-p", "-o", "4096", "-l", "50000"]).arg(file));
    until("it is brought together", || told_of_logs(&served)["together_bytes"].as_u64() > Some(0));
    let mut top = served.forebay(&["top", "--once", "--server", &served.unix()]);
    let shown = served.must(&mut top);
    assert!(shown.contains("IN LOGS") && shown.contains("TOGETHER"), "{shown}");
}

#[test]
fn the_log_layout_is_shown_set_and_inherited() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local]);
    let dir = served.root(0).join("d");
    std::fs::create_dir(&dir).unwrap();
    let set = ["stripe", "set", "--layout", "log", "--json"];
    let said = served.must(served.forebay(&set).arg(&dir));
    assert!(said.contains("\"layout\":\"log\""), "{said}");
    std::fs::write(dir.join("f"), "data").unwrap();
    let said = served.must(served.forebay(&["stripe"]).arg(dir.join("f")));
    assert!(said.contains("in logs"), "{said}");
    let said = served.must(served.forebay(&["status"]).arg(dir.join("f")));
    assert!(said.contains("log"), "{said}");
    let (ok, said) =
        served.local(&["stripe", "set", "--layout", "plain", &dir.join("f").display().to_string()]);
    assert!(!ok && said.contains("fixed"), "{said}");
    let file = served.path(0, "d/g");
    drop(sys::open(&file, NEW, 0o644).unwrap());
    until("its last close", || {
        sys::setxattr(&file, "user.forebay.layout", b"plain", 0) != Err(Errno(libc::EBUSY))
    });
    assert_eq!(sys::getxattr(&file, "user.forebay.layout"), Ok(b"plain".to_vec()));
    assert_eq!(
        sys::setxattr(&file, "user.forebay.layout", b"sideways", 0),
        Err(Errno(libc::EINVAL))
    );
}

/// A directory `l` of strict files.
fn with_strict(options: Options, mounts: &[Via]) -> Served {
    let served = with(options, mounts);
    sys::setxattr(served.path(0, "l"), "user.forebay.consistency", b"strict", 0).unwrap();
    served
}

#[test]
fn readers_of_strict_files_see_all_that_was_written_on_any_mount() {
    let served = with_strict(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp, Via::Local]);
    let seed = seed("readers_of_strict_files_see_all_that_was_written_on_any_mount");
    let mut file = Shared::new(&served, "f", seed);
    file.strict = true;
    for _ in 0..steps(120) {
        file.step();
    }
    file.whole("all");
    // Copies have all of it too, although nobody published it.
    let length = file.published.len() as u64;
    assert_eq!(sys::pwrite(&file.files[1], length, &[5; 3_000]), Ok(3_000));
    file.writes.push((1, length, vec![5; 3_000], true));
    file.publish(1);
    let (from, out) = (served.root(0).join("l/f"), served.pfs("out"));
    served.must(served.forebay(&["stage", "out"]).arg(&from).arg(&out));
    assert!(std::fs::read(&out).unwrap() == file.published, "staged out");
    served.kill_server_at(0);
    served.start_server_at(0);
    for _ in 0..10 {
        file.step();
    }
    file.kill_mount(0);
    file.whole("a mount's death");
}

/// One mount counts up, and others never see less than what it has counted to.
#[test]
fn a_strict_file_is_never_older_than_what_was_acknowledged() {
    let served = with_strict(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp, Via::Local]);
    let writer = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    assert_eq!(sys::pwrite(&writer, 0, &0u64.to_le_bytes()), Ok(8));
    let acknowledged = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mount in 1..3 {
            let (path, acknowledged, over) = (served.path(mount, "l/f"), &acknowledged, &over);
            scope.spawn(move || {
                let file = sys::open(path, RDWR, 0).unwrap();
                for _ in 0..steps(150) {
                    let least = acknowledged.load(SeqCst);
                    let seen = sys::pread(&file, 0, 8).unwrap();
                    let seen = u64::from_le_bytes(seen.try_into().unwrap());
                    assert!(seen >= least, "mount {mount} saw {seen}, {least} was written before");
                    assert!(sys::fstat(&file).unwrap().size >= 8 + least, "its size too");
                }
                over.store(true, SeqCst);
            });
        }
        let mut count = 0u64;
        while !over.load(SeqCst) {
            count += 1;
            assert_eq!(sys::pwrite(&writer, 0, &count.to_le_bytes()), Ok(8));
            assert_eq!(sys::pwrite(&writer, 7 + count, &[1]), Ok(1));
            acknowledged.store(count, SeqCst);
        }
    });
}

#[test]
fn a_published_file_shows_what_all_mounts_wrote_and_a_final_one_is_written_no_more() {
    const EPERM: Errno = Errno(libc::EPERM);
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let files = [
        sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap(),
        sys::open(served.path(1, "l/f"), RDWR, 0).unwrap(),
    ];
    // Who may write would see all, published or not.
    let readers: Vec<OwnedFd> =
        (0..2).map(|at| sys::open(served.path(at, "l/f"), libc::O_RDONLY, 0).unwrap()).collect();
    let write = |by: usize, byte: u8| {
        let at = by as u64 * 1_000;
        assert_eq!(sys::pwrite(&files[by], at, &[byte; 1_000]), Ok(1_000));
    };
    let see = |wanted: [u8; 2]| {
        let wanted = wanted.map(|byte| vec![byte; 1_000]).concat();
        for (by, reader) in readers.iter().enumerate() {
            assert!(sys::pread(reader, 0, 4_000).unwrap() == wanted, "{by}");
        }
    };
    let publish = |mount: usize, more: &[&str]| {
        let path = served.root(mount).join("l");
        let mut command = served.forebay(&[&["publish", "--json"][..], more].concat());
        let said = served.must(command.arg(path));
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["publish"].clone()
    };
    write(0, 1);
    write(1, 2);
    assert_eq!(publish(1, &[]), "open");
    see([1, 2]);
    // What comes next is seen when it is published next.
    write(0, 3);
    write(1, 4);
    assert_eq!(sys::pread(&readers[0], 1_000, 1).unwrap(), [2], "not published");
    assert_eq!(publish(0, &[]), "open");
    see([3, 4]);
    // A mode that lets nobody write publishes too; who has it open writes on.
    write(0, 5);
    write(1, 6);
    sys::chmod(served.path(0, "l/f"), 0o444).unwrap();
    see([5, 6]);
    write(0, 7);
    write(1, 8);
    assert_eq!(publish(0, &["--final"]), "final");
    see([7, 8]);
    let is_final = |mount: usize| {
        let path = served.path(mount, "l/f");
        assert_eq!(sys::getxattr(&path, "user.forebay.publish"), Ok(b"final".to_vec()));
        assert_eq!(sys::open(&path, RDWR, 0).map(drop), Err(EPERM), "also for root");
        assert_eq!(sys::truncate(&path, 5), Err(EPERM));
        assert_eq!(sys::stat(&path).unwrap().mode & 0o777, 0o444);
        let said =
            served.must(served.forebay(&["status", "--json"]).arg(served.root(mount).join("l/f")));
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(status["in_logs"]["publish"], "final", "{status}");
        assert_eq!(status["in_logs"]["live_bytes"], 2_000, "{status}");
    };
    for (by, file) in files.iter().enumerate() {
        assert_eq!(sys::pwrite(file, 0, &[9]), Err(EPERM), "who has it open");
        is_final(by);
    }
    for server in 0..served.server_count() {
        served.kill_server_at(server);
        served.start_server_at(server);
    }
    see([7, 8]);
    (0..2).for_each(is_final);
    assert_eq!(sys::pwrite(&files[0], 0, &[9]), Err(EPERM));
    sys::chmod(served.path(1, "l/f"), 0o644).unwrap();
    assert_eq!(sys::getxattr(served.path(0, "l/f"), "user.forebay.publish"), Ok(b"open".to_vec()));
    write(0, 10);
    write(1, 11);
    assert_eq!(publish(1, &[]), "open");
    see([10, 11]);
}

#[test]
fn files_of_other_layouts_become_final_when_no_program_has_them_open() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    sys::mkdir(served.path(0, "s"), 0o777).unwrap();
    sys::setxattr(served.path(0, "s"), "user.forebay.stripe_count", b"all", 0).unwrap();
    for name in ["s/striped", "whole"] {
        let path = served.path(0, name);
        let file = sys::open(&path, NEW, 0o644).unwrap();
        assert_eq!(sys::pwrite(&file, 0, b"data"), Ok(4));
        let publish = |more: &[&str]| {
            let at = served.root(1).join(name).display().to_string();
            served.local(&[&["publish"][..], more, &[&at]].concat())
        };
        assert!(publish(&[]).0, "{name}: all is seen at once");
        let (ok, said) = publish(&["--final"]);
        assert!(!ok && said.contains("a program has it open"), "{name}: {said}");
        assert_eq!(sys::pwrite(&file, 4, b" and more"), Ok(9));
        assert_eq!(sys::stat(&path).unwrap().mode & 0o777, 0o644);
        drop(file);
        until("its last close", || publish(&["--final"]).0);
        for mount in 0..2 {
            let path = served.path(mount, name);
            assert_eq!(sys::open(&path, RDWR, 0).map(drop), Err(Errno(libc::EPERM)), "{name}");
            assert_eq!(sys::truncate(&path, 0), Err(Errno(libc::EPERM)), "{name}");
            assert!(std::fs::read(served.root(mount).join(name)).unwrap() == b"data and more");
        }
        sys::chmod(served.path(1, name), 0o644).unwrap();
        drop(sys::open(&path, RDWR, 0).unwrap());
    }
}

/// Programs that lock what they change need not publish: a lock that is given back does, as POSIX programs expect.
#[test]
fn who_gets_a_lock_sees_what_was_written_under_the_last_one() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp, Via::Local]);
    let name = "l/counter";
    let file = sys::open(served.path(0, name), NEW, 0o644).unwrap();
    assert_eq!(sys::pwrite(&file, 0, &0u64.to_le_bytes()), Ok(8));
    sys::fsync(&file).unwrap();
    let rounds = steps(40);
    std::thread::scope(|scope| {
        for mount in 0..3 {
            let path = served.path(mount, name);
            scope.spawn(move || {
                let file = sys::open(&path, RDWR, 0).unwrap();
                // The lock alone shows it: who may write would see all without one.
                let reader = sys::open(&path, libc::O_RDONLY, 0).unwrap();
                for _ in 0..rounds {
                    lock(&file, true);
                    let count = sys::pread(&reader, 0, 8).unwrap();
                    let count = 1 + u64::from_le_bytes(count.try_into().unwrap());
                    assert_eq!(sys::pwrite(&file, 0, &count.to_le_bytes()), Ok(8));
                    lock(&file, false);
                }
            });
        }
    });
    let count = sys::pread(&file, 0, 8).unwrap();
    assert_eq!(u64::from_le_bytes(count.try_into().unwrap()), 3 * rounds);
}

/// As MPI libraries do it: a rank reads what lies between its pieces, puts them in, and writes all of it back.
#[test]
fn who_writes_back_what_it_has_read_keeps_what_others_wrote() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let open = |at: usize, flags: i32| sys::open(served.path(at, "l/f"), flags, 0o644).unwrap();
    let first = open(0, NEW);
    let write = |file: &OwnedFd, at: u64, bytes: &[u8]| {
        assert_eq!(sys::pwrite(file, at, bytes), Ok(bytes.len()));
    };
    write(&first, 0, &[8; 4_096]);
    assert!(sys::pread(&first, 0, 4_096).unwrap() == [8; 4_096]);
    write(&first, 0, &[9; 4_096]);
    let files = [first, open(1, RDWR)];
    let readers = [0, 1].map(|at| open(at, libc::O_RDONLY));
    let read = |file: &OwnedFd| sys::pread(file, 0, 20_000).unwrap();
    let mut wanted = vec![9; 4_096];
    for round in 0..6u8 {
        let (by, other) = (usize::from(round % 2), usize::from((round + 1) % 2));
        let before = read(&readers[by]);
        write(&files[other], 0, &[round; 4_096]);
        assert!(read(&readers[by]) == before, "round {round}: not published");
        // The end too is where another mount wrote last.
        wanted[..4_096].fill(round);
        let mut all = read(&files[by]);
        assert!(all == wanted, "round {round}: who may write sees what is not published");
        all.resize(wanted.len() + 1_000, round);
        write(&files[by], 0, &all);
        wanted.clone_from(&all);
        assert!(read(&readers[other]) == wanted, "round {round}: what was written back is seen");
        // And is earlier than what comes next.
        write(&files[other], 100, &[100 + round; 100]);
        wanted[100..200].fill(100 + round);
        assert!(read(&readers[other]) == wanted, "round {round}");
    }
    for file in files {
        sys::close(file).unwrap();
    }
    for (at, reader) in readers.iter().enumerate() {
        assert!(read(reader) == wanted, "mount {at}");
    }
}

/// A mount that does not publish is waited for until its lease is over: then its log is read.
#[test]
fn who_writes_back_waits_for_a_stopped_mount_and_sees_no_zeros() {
    let options = Options::over(2, Store::Tmpfs).short_lease();
    let served = with(options, &[Via::Local, Via::Tcp]);
    let file = sys::open(served.path(0, "l/f"), NEW, 0o644).unwrap();
    let other = sys::open(served.path(1, "l/f"), RDWR, 0).unwrap();
    assert_eq!(sys::pwrite(&file, 0, &[1; 100_000]), Ok(100_000));
    served.signal_mount(0, libc::SIGSTOP);
    let begun = Instant::now();
    let seen = sys::pread(&other, 0, 200_000);
    let waited = begun.elapsed();
    served.signal_mount(0, libc::SIGCONT);
    assert!(seen.unwrap() == vec![1; 100_000], "what the stopped mount wrote");
    assert!(waited < served.lease() + SLACK, "{waited:?}");
    until("its next write", || sys::pwrite(&file, 100_000, &[2; 10]) == Ok(10));
    assert!(sys::pread(&other, 99_990, 100).unwrap() == [[1; 10], [2; 10]].concat());
}

/// Reads that wait for a stopped mount have not all connections of theirs: else it could not publish what others wait for.
#[test]
fn a_mount_publishes_what_it_is_asked_for_while_many_of_its_reads_wait() {
    // More than it has connections for calls at a server.
    const READS: usize = forebay_proto::net::session::MAX_SLOTS as usize + 8;
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp, Via::Tcp]);
    let open = |at: usize, name: &str| sys::open(served.path(at, name), RDWR, 0).unwrap();
    let make = |name: &str| {
        let file = sys::open(served.path(0, name), NEW, 0o644).unwrap();
        assert_eq!(sys::pwrite(&file, 0, &[1; 1_000]), Ok(1_000));
        file
    };
    let waiting = make("l/stopped");
    let stopped = open(1, "l/stopped");
    assert_eq!(sys::pwrite(&stopped, 0, &[2; 1_000]), Ok(1_000));
    // Of several files one is at the server that those reads ask.
    let names = ["l/a", "l/b", "l/c", "l/d"];
    let _written = names.map(make);
    let others = names.map(|name| open(2, name));
    served.signal_mount(1, libc::SIGSTOP);
    std::thread::scope(|scope| {
        let reads: Vec<_> =
            (0..READS).map(|_| scope.spawn(|| sys::pread(&waiting, 0, 2_000))).collect();
        // Until they have all connections that they may have.
        std::thread::sleep(Duration::from_secs(2));
        let begun = Instant::now();
        let seen = others.each_ref().map(|other| sys::pread(other, 0, 2_000));
        let waited = begun.elapsed();
        served.signal_mount(1, libc::SIGCONT);
        for read in reads {
            assert!(read.join().unwrap().unwrap() == [2; 1_000], "what the stopped mount wrote");
        }
        for seen in seen {
            assert!(seen.unwrap() == [1; 1_000]);
        }
        assert!(waited < served.lease() / 2, "{waited:?}");
    });
}

/// Locks a file as a whole and waits for it, or unlocks it.
fn lock(file: &OwnedFd, set: bool) {
    let kind = if set { libc::F_WRLCK } else { libc::F_UNLCK };
    // SAFETY: a structure of numbers, and a call that reads it.
    let done = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as i16;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &lock)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Mounts that only read keep where the file is, while nobody has it open for writing.
#[test]
fn readers_that_keep_where_a_file_is_see_each_change_of_it() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let mut model = vec![7; 200_000];
    std::fs::write(served.root(0).join("l/f"), &model).unwrap();
    let readers: Vec<OwnedFd> =
        (0..2).map(|at| sys::open(served.path(at, "l/f"), libc::O_RDONLY, 0).unwrap()).collect();
    let see = |model: &[u8], said: &str| {
        for (at, reader) in readers.iter().enumerate() {
            assert_eq!(sys::fstat(reader).unwrap().size, model.len() as u64, "{said}: {at}");
            // Again and again: from what the first ones learnt.
            for _ in 0..6 {
                let seen = sys::pread(reader, 0, model.len() + 10).unwrap();
                assert!(seen == model, "{said}: mount {at}");
            }
        }
    };
    for round in 0..10u8 {
        // No lease is given for a moment after one was taken back.
        std::thread::sleep(Duration::from_millis(600));
        see(&model, "before a change");
        let by = usize::from(round % 2);
        let path = served.path(by, "l/f");
        let said = match round % 5 {
            0 | 1 => {
                let file = sys::open(&path, libc::O_WRONLY, 0).unwrap();
                for n in 0..20u64 {
                    let at = n * 12_345 + u64::from(round);
                    assert_eq!(sys::pwrite(&file, at, &[round; 1_000]), Ok(1_000));
                    put(&mut model, at, &[round; 1_000]);
                }
                "written"
            }
            2 => {
                sys::truncate(&path, 100_003).unwrap();
                model.truncate(100_003);
                "cut"
            }
            3 => {
                let file = sys::open(&path, libc::O_WRONLY | libc::O_APPEND, 0).unwrap();
                assert_eq!(sys::write(&file, &[round; 5_000]), Ok(5_000));
                model.extend([round; 5_000]);
                "appended"
            }
            _ => {
                let file = sys::open(&path, RDWR, 0).unwrap();
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                sys::fallocate(&file, hole, 10_000, 20_000).unwrap();
                model[10_000..30_000].fill(0);
                "punched"
            }
        };
        see(&model, said);
    }
}

/// The pattern of the Global Cloud Resolving Model: many records of 1.6 MB at odd offsets, and small updates of the header by one.
fn gcrm(paths: [PathBuf; 2]) {
    const RECORD_BYTES: u64 = 1_600_016;
    const HEADER_BYTES: u64 = 3_001;
    const RECORDS: u64 = 48;
    drop(sys::open(sys::bytes(&paths[0]), NEW, 0o644).unwrap());
    std::thread::scope(|scope| {
        for (by, path) in paths.iter().enumerate() {
            scope.spawn(move || {
                let file = sys::open(sys::bytes(path), libc::O_WRONLY, 0).unwrap();
                for n in (by as u64..RECORDS).step_by(2) {
                    let record = vec![1 + n as u8; RECORD_BYTES as usize];
                    let at = HEADER_BYTES + n * RECORD_BYTES;
                    assert_eq!(sys::pwrite(&file, at, &record), Ok(record.len()));
                    if by == 0 {
                        let update = [100 + n as u8; 300];
                        assert_eq!(sys::pwrite(&file, n * 37, &update), Ok(update.len()));
                    }
                }
                sys::close(file).unwrap();
            });
        }
    });
}

#[test]
fn many_writers_with_odd_records_reach_the_pfs_in_large_aligned_writes() {
    let served = with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Local]);
    let pfs = Pfs::mount(&served.pfs("backing"), &served.pfs("charged"));
    // What a locked stripe of a disk array takes that is read, changed and written.
    pfs.weather.charge(Duration::from_millis(1), Duration::from_millis(5));
    let direct = served.pfs("charged/direct");
    gcrm([direct.clone(), direct.clone()]);
    let directly = pfs.weather.writes();
    gcrm([served.root(0).join("l/f"), served.root(1).join("l/f")]);
    pfs.weather.charge(Duration::from_millis(1), Duration::from_millis(5));
    let staged = served.pfs("charged/staged");
    served.must(served.forebay(&["stage", "out"]).arg(served.root(0).join("l/f")).arg(&staged));
    let by_stage = pfs.weather.writes();
    println!("directly: {directly:?}\nstaged out: {by_stage:?}");
    assert!(std::fs::read(&staged).unwrap() == std::fs::read(&direct).unwrap(), "the same bytes");
    assert!(by_stage.aligned_bytes * 100 >= by_stage.bytes * 99, "{by_stage:?}");
    assert!(by_stage.charged * 4 <= directly.charged, "{by_stage:?}, directly {directly:?}");
}
