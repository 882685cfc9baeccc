//! Programs that wait for a server that hangs, is gone or is cut off get signals: they end at once, and when the server is
//! there again all goes on, with nothing done late, nothing held that nobody has, and no lock that nobody knows of.
//! What the kernel writes by itself, stores into a mapping, no signal ends: an unmount by force does.
//! Mounts by Unix socket and by TCP; all data is served.
#![allow(clippy::unwrap_used)]

use forebay_tests::machines::Machines;
use forebay_tests::procs::{self, CHILD_LIMIT, Child, Shared, without_children};
use forebay_tests::served::{LEASE, Options, Served, Store, Via};
use forebay_tests::slow_disk::SlowDisk;
use forebay_tests::sys::{self, Errno, Sys};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
/// How soon a program has to be gone: less than a second, but for a busy machine. Servers are waited for 60 s.
const SOON: Duration = Duration::from_secs(10);
/// What may come on top of a time limit on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const SIZE: usize = 512 << 10;

/// What a program is at.
struct At {
    dir: Vec<u8>,
    fd: OwnedFd,
}

impl At {
    fn path(&self, name: &str) -> Vec<u8> {
        [self.dir.as_slice(), b"/", name.as_bytes()].concat()
    }
}

type Call = fn(&At) -> Sys<()>;

/// One of each kind that waits for the server.
const CALLS: &[(&str, Call)] = &[
    ("lookup", |at| sys::stat(at.path("none")).map(drop)),
    ("a known file", |at| sys::fstat(&at.fd).map(drop)),
    ("list", |at| sys::list(&at.dir).map(drop)),
    ("open", |at| sys::open(at.path("g"), libc::O_RDWR, 0).map(drop)),
    ("open and empty", |at| sys::open(at.path("f"), libc::O_RDWR | libc::O_TRUNC, 0).map(drop)),
    ("create", |at| sys::open(at.path("new"), NEW_FILE, 0o644).map(drop)),
    ("mkdir", |at| sys::mkdir(at.path("made"), 0o755)),
    ("unlink", |at| sys::unlink(at.path("g"))),
    ("rename", |at| sys::rename(at.path("g"), at.path("h"))),
    ("link", |at| sys::link(at.path("f"), at.path("h"))),
    ("symlink", |at| sys::symlink("f", at.path("h"))),
    ("chmod", |at| sys::fchmod(&at.fd, 0o600)),
    ("truncate", |at| sys::ftruncate(&at.fd, 5)),
    ("read", |at| sys::pread(&at.fd, 0, 4096).map(drop)),
    ("a large read", |at| sys::pread(&at.fd, 0, 1 << 20).map(drop)),
    ("write", |at| sys::pwrite(&at.fd, 0, b"late").map(drop)),
    ("a large write", |at| sys::pwrite(&at.fd, 0, &[b'l'; 1 << 20]).map(drop)),
    ("fallocate", |at| sys::fallocate(&at.fd, 0, 0, 4 << 20)),
    ("fsync", |at| sys::fsync(&at.fd)),
    ("xattr", |at| sys::setxattr(at.path("f"), "user.a", b"b", 0)),
    ("statfs", |at| sys::statfs(&at.dir).map(drop)),
    ("flock", |at| flock(&at.fd, libc::LOCK_EX)),
    ("fcntl", |at| lock(&at.fd, libc::F_SETLK)),
    ("fcntl that waits", |at| lock(&at.fd, libc::F_SETLKW)),
];

fn flock(fd: &OwnedFd, how: i32) -> Sys<()> {
    // SAFETY: an open descriptor.
    match unsafe { libc::flock(fd.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(sys::last()),
    }
}

fn lock(fd: &OwnedFd, command: i32) -> Sys<()> {
    procs::fcntl_lock(fd, command, libc::F_WRLCK, 0, 10).map(drop)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    Stopped,
    Killed,
    /// The network takes what is sent, and nothing arrives.
    CutOff,
}

/// Machines of a server that is cut off: its own, that of the mount that looks on, and that of the programs.
const SERVER: usize = 0;
const OTHER: usize = 1;
const PROGRAMS: usize = 2;

/// A server, a mount that looks on, and two mounts of programs. The server goes before its machine.
struct Place {
    served: Served,
    machines: Option<Machines>,
}

impl Place {
    fn new(how: Server) -> Place {
        if how != Server::CutOff {
            let served = Served::new(Store::Directory, &[Via::Local, Via::Local, Via::Tcp]);
            return Place { served, machines: None };
        }
        let machines = Machines::new(3);
        let options = Options { hosts: machines.hosts(1), ..Options::new(Store::Directory) };
        let served = Served::with(options, &[]);
        for at in [OTHER, PROGRAMS, PROGRAMS] {
            served.mount(Via::Namespace(machines.name(at), served.tcp()));
        }
        Place { served, machines: Some(machines) }
    }

    fn away(&self, how: Server) {
        match how {
            Server::Stopped => {
                self.served.signal_server(0, libc::SIGSTOP);
                procs::wait_until_stopped(self.served.server_pid(0));
            }
            Server::Killed => self.served.kill_server(),
            Server::CutOff => self.machines.as_ref().unwrap().cut(PROGRAMS, SERVER),
        }
    }

    fn back(&self, how: Server) {
        match how {
            Server::Stopped => self.served.signal_server(0, libc::SIGCONT),
            Server::Killed => self.served.start_server(),
            Server::CutOff => self.machines.as_ref().unwrap().heal(PROGRAMS, SERVER),
        }
    }
}

/// A directory for each call and signal, made by mount 0, and what the programs of another mount have open there.
fn places(served: &Served, mount: usize) -> Vec<At> {
    let signals = CALLS.iter().flat_map(|(name, _)| [(name, "int"), (name, "kill")]);
    let make = |(name, signal): (&&str, &str)| {
        let name = format!("{}-{signal}-{mount}", name.replace(' ', "-"));
        let dir = served.path(0, &name);
        sys::mkdir(&dir, 0o755).unwrap();
        for file in ["f", "g"] {
            let path = [dir.as_slice(), b"/", file.as_bytes()].concat();
            let fd = sys::open(path, NEW_FILE, 0o644).unwrap();
            sys::pwrite(&fd, 0, &vec![b'a'; SIZE]).unwrap();
        }
        let dir = served.path(mount, &name);
        let fd = sys::open([dir.as_slice(), b"/f"].concat(), libc::O_RDWR, 0).unwrap();
        At { dir, fd }
    };
    signals.map(make).collect()
}

fn everything_ends(how: Server) {
    let _alone = without_children();
    let place = Place::new(how);
    let served = &place.served;
    let empty = served.free_bytes(0);
    let mounts = [1, 2];
    let all: Vec<Vec<At>> = mounts.map(|mount| places(served, mount)).into();
    // Names are believed again: each program gets to its own call.
    std::thread::sleep(Duration::from_millis(600));
    for at in all.iter().flatten() {
        sys::stat(at.path("f")).unwrap();
    }
    let begun = Shared::new(1);
    place.away(how);
    let mut children = Vec::new();
    for places in &all {
        for (number, at) in places.iter().enumerate() {
            let (name, call) = CALLS[number / 2];
            let signal = [libc::SIGINT, libc::SIGKILL][number % 2];
            let begun = &begun;
            let child = Child::spawn(name, move || {
                begun[0].fetch_add(1, SeqCst);
                // What was believed needs no server.
                let _ = call(at);
            });
            children.push((name, signal, child));
        }
    }
    let start = Instant::now();
    while begun[0].load(SeqCst) < children.len() as u64 {
        assert!(start.elapsed() < SLACK, "the programs do not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    children.iter().for_each(|(_, signal, child)| child.signal(*signal));
    let start = Instant::now();
    let mut waited_for = 0;
    for (name, signal, child) in children {
        match child.wait(SOON.saturating_sub(start.elapsed())) {
            Ok(()) => {}
            Err(why) if why.contains(&format!("signal {signal}")) => waited_for += 1,
            Err(why) => panic!("{name}, server {how:?}: {why}"),
        }
    }
    assert!(waited_for > CALLS.len(), "only {waited_for} programs waited for the server");
    place.back(how);
    let start = Instant::now();
    let goes_on = match how {
        // What was lost on the way is sent again after up to as long as the cut, or on new connections.
        Server::CutOff => SLACK + LEASE,
        _ => SLACK,
    };
    for (places, mount) in all.iter().zip(mounts) {
        for at in places {
            // Not done later than what comes after it.
            while sys::pwrite(&at.fd, 0, b"after").is_err() {
                assert!(start.elapsed() < goes_on, "mount {mount} does not go on");
            }
            // Nobody has a lock.
            let (here, name) = (served.path(0, ""), &at.dir[served.path(mount, "").len()..]);
            let other =
                sys::open([here.as_slice(), name, b"/f"].concat(), libc::O_RDWR, 0).unwrap();
            let free = |what: &dyn Fn() -> Sys<()>, kind: &str| {
                while let Err(error) = what() {
                    assert_eq!(error, Errno(libc::EAGAIN));
                    let dir = String::from_utf8_lossy(&at.dir);
                    assert!(start.elapsed() < goes_on, "{dir}: its {kind} lock stays");
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            free(&|| flock(&other, libc::LOCK_EX | libc::LOCK_NB), "flock");
            free(&|| lock(&other, libc::F_SETLK), "fcntl");
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    for (places, mount) in all.into_iter().zip(mounts) {
        for At { dir, fd } in places {
            assert_eq!(
                sys::pread(&fd, 0, 5).unwrap(),
                b"after",
                "{}",
                String::from_utf8_lossy(&dir)
            );
            drop(fd);
            let known: Vec<_> = names(&dir);
            let there =
                [served.path(0, "").as_slice(), &dir[served.path(mount, "").len()..]].concat();
            assert_eq!(known, names(&there), "{}", String::from_utf8_lossy(&dir));
            std::fs::remove_dir_all(sys::path(&there)).unwrap();
        }
    }
    let start = Instant::now();
    while served.free_bytes(0) + (1 << 20) < empty {
        assert!(start.elapsed() < LEASE + SLACK, "something is held that nobody has");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn names(dir: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let listed = sys::list(dir).unwrap().into_iter().map(|entry| entry.name);
    let mut names: Vec<(Vec<u8>, bool)> = listed
        .filter(|name| name != b"." && name != b"..")
        .map(|name| {
            let path = [dir, b"/", name.as_slice()].concat();
            (name, sys::lstat(path).is_ok())
        })
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn programs_that_wait_for_a_stopped_server_end_with_a_signal_and_all_goes_on() {
    everything_ends(Server::Stopped);
}

#[test]
fn programs_that_wait_for_a_killed_server_end_with_a_signal_and_all_goes_on() {
    everything_ends(Server::Killed);
}

#[test]
fn programs_that_wait_for_a_server_that_is_cut_off_end_with_a_signal_and_all_goes_on() {
    everything_ends(Server::CutOff);
}

#[test]
fn a_signal_that_a_program_takes_is_eintr_while_the_server_hangs() {
    let _alone = without_children();
    // With this lease nothing tells for 30 s that the server is silent, unless it is asked.
    let options = Options { timing: Some("lease_ms=60000"), ..Options::new(Store::Directory) };
    let served = Served::with(options, &[Via::Local, Via::Local, Via::Tcp]);
    for mount in [1, 2] {
        let at = places(&served, mount).pop().unwrap();
        // Written before the server stops: the kernel sends it at once, and the data is not on flash yet.
        sys::pwrite(&at.fd, 0, &[b'a'; SIZE]).unwrap();
        let calls: [(&str, Call); 4] = [
            ("fsync", |at| sys::fsync(&at.fd)),
            ("read", |at| sys::pread(&at.fd, 0, 4096).map(drop)),
            ("lookup", |at| sys::stat(at.path("none")).map(drop)),
            ("lock", |at| lock(&at.fd, libc::F_SETLKW)),
        ];
        served.signal_server(0, libc::SIGSTOP);
        procs::wait_until_stopped(served.server_pid(0));
        for (name, call) in calls {
            let at = &at;
            let told = Shared::new(1);
            let told_ = &told;
            let child = Child::spawn(name, move || {
                procs::take_a_signal();
                told_[0].store(1, SeqCst);
                assert_eq!(call(at), Err(Errno(libc::EINTR)));
            });
            while told[0].load(SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            child.until_it_waits();
            std::thread::sleep(Duration::from_millis(300));
            child.signal(libc::SIGUSR1);
            child.wait(SOON).unwrap();
        }
        served.signal_server(0, libc::SIGCONT);
        assert_eq!(sys::pread(&at.fd, 0, 1), Ok(b"a".to_vec()));
        lock(&at.fd, libc::F_SETLK).unwrap();
    }
}

#[test]
fn a_signal_that_a_program_takes_is_eintr_where_the_server_waits_for_another_one() {
    let _alone = without_children();
    // Sessions outlast the time for which a server is stopped, and nothing tells that it is silent, unless it is asked.
    let options = Options { timing: Some("lease_ms=60000"), ..Options::over(2, Store::Directory) };
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    let [here, there] = [0, 1].map(|part| dir_of_whole_files(&served, part));
    let away = served.server_of_part(1);
    for mount in [0, 1] {
        let path = |dir: &str, what: &str| served.path(mount, format!("{dir}/{what}{mount}"));
        let linked = sys::open(path(&here, "linked"), NEW_FILE, 0o644).unwrap();
        let other = sys::open(path(&here, "other"), NEW_FILE, 0o644).unwrap();
        for file in [&linked, &other] {
            sys::pwrite(file, 0, &[b'a'; SIZE]).unwrap();
            sys::fsync(file).unwrap();
        }
        // Whether the name is on flash there the file's server asks that of the name.
        sys::link(path(&here, "linked"), path(&there, "name")).unwrap();
        take_away(&served, away, Server::Stopped);
        ends_by_a_signal("fsync", &|| sys::fsync(&linked).map(|()| 0));
        assert_eq!(sys::fsync(&other), Ok(()), "it needs no other server");
        bring_back(&served, away, Server::Stopped);
        sys::fsync(&linked).unwrap();
        assert_eq!(sys::stat(path(&there, "name")).unwrap().nlink, 2);
    }
}

/// More than a mount has threads for such calls from the beginning, and slots that it had for those at one server.
const WAITING: usize = 20;

#[test]
fn an_fsync_that_needs_no_stopped_server_is_done_beside_many_that_wait_for_one() {
    let _alone = without_children();
    let options = Options { timing: Some("lease_ms=60000"), ..Options::over(2, Store::Directory) };
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    make_dir(&served, "striped", STRIPED);
    let here = dir_of_whole_files(&served, 0);
    let away = served.server_of_part(1);
    for mount in [0, 1] {
        let path = |what: String| served.path(mount, what);
        let open = |name: String| {
            let file = sys::open(path(name), NEW_FILE, 0o644).unwrap();
            sys::pwrite(&file, 0, &[b'a'; 4 * SIZE]).unwrap();
            file
        };
        let striped: Vec<_> = (0..WAITING).map(|n| open(format!("striped/{mount}-{n}"))).collect();
        let other = open(format!("{here}/other{mount}"));
        take_away(&served, away, Server::Stopped);
        let waiting: Vec<Child> = striped
            .iter()
            .map(|file| Child::spawn("fsync", move || sys::fsync(file).unwrap()))
            .collect();
        waiting.iter().for_each(Child::until_it_waits);
        assert_eq!(sys::fsync(&other), Ok(()), "it needs no other server");
        bring_back(&served, away, Server::Stopped);
        for child in waiting {
            child.wait(SOON).unwrap_or_else(|why| panic!("a server is back: {why}"));
        }
    }
}

/// Between two mounts the kernel reads and writes the pages by itself, and waits for those of the source as for a mapping's.
#[test]
fn a_copy_that_the_kernel_makes_by_itself_ends_by_a_signal_that_kills() {
    let _alone = without_children();
    let served = Served::with(Options::over(2, Store::Directory), &[Via::Local, Via::Local]);
    make_dir(&served, "s", STRIPED);
    let open = |mount, name: &str| sys::open(served.path(mount, name), NEW_FILE, 0o644).unwrap();
    let (from, to) = (open(0, "s/from"), open(1, "s/to"));
    sys::pwrite(&from, 0, &vec![b'a'; SIZE]).unwrap();
    // SAFETY: an open descriptor.
    let dropped = unsafe { libc::posix_fadvise(from.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(dropped, 0, "the kernel has the pages");
    for server in [0, 1] {
        served.signal_server(server, libc::SIGSTOP);
        procs::wait_until_stopped(served.server_pid(server));
    }
    let told = Shared::new(1);
    let (told_, from_, to_) = (&told, &from, &to);
    let child = Child::spawn("copy_file_range", move || {
        told_[0].store(1, SeqCst);
        let _ = sys::copy_range(from_, 0, to_, 0, SIZE);
    });
    while told[0].load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.until_it_waits();
    std::thread::sleep(Duration::from_millis(300));
    child.signal(libc::SIGKILL);
    let ended = child.wait(SOON).unwrap_err();
    for server in [0, 1] {
        served.signal_server(server, libc::SIGCONT);
    }
    assert!(ended.contains("signal 9"), "{ended}");
    let copied = sys::copy_range(&from, 0, &to, 0, SIZE).unwrap();
    assert!(copied > 0, "it goes on");
    assert_eq!(sys::pread(&to, 0, copied), Ok(vec![b'a'; copied]));
}

const STRIPED: &[(&str, &str)] = &[("stripe_size_bytes", "65536"), ("stripe_count", "all")];
const IN_LOGS: &[(&str, &str)] = &[("layout", "log")];

/// A directory, made by mount 0, whose files are as these attributes say.
fn make_dir(served: &Served, name: &str, attributes: &[(&str, &str)]) {
    let dir = served.path(0, name);
    sys::mkdir(&dir, 0o755).unwrap();
    for (name, value) in attributes {
        sys::setxattr(&dir, &format!("user.forebay.{name}"), value.as_bytes(), 0).unwrap();
    }
}

/// One whose files are whole, and at the server of this part.
fn dir_of_whole_files(served: &Served, part: u64) -> String {
    for number in 0..64 {
        let name = format!("w{part}-{number}");
        make_dir(served, &name, &[("placement", "directory")]);
        if sys::stat(served.path(0, &name)).unwrap().ino >> 48 == part {
            return name;
        }
    }
    panic!("no directory lies on part {part}");
}

/// More than a mount copies at a time.
const COPY: usize = 3 << 19;

/// A program is in this call when a signal comes that it takes: it ends soon, with EINTR, or with a part of the bytes done.
fn ends_by_a_signal(name: &str, call: &dyn Fn() -> Sys<usize>) {
    let told = Shared::new(1);
    let told_ = &told;
    let child = Child::spawn(name, move || {
        procs::take_a_signal();
        told_[0].store(1, SeqCst);
        match call() {
            Err(Errno(libc::EINTR)) => {}
            Ok(count) if (1..COPY).contains(&count) => {}
            other => panic!("{other:?}"),
        }
    });
    while told[0].load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.until_it_waits();
    std::thread::sleep(Duration::from_millis(300));
    child.signal(libc::SIGUSR1);
    child.wait(SOON).unwrap_or_else(|why| panic!("{name}: {why}"));
}

fn take_away(served: &Served, server: usize, how: Server) {
    match how {
        Server::Stopped => {
            served.signal_server(server, libc::SIGSTOP);
            procs::wait_until_stopped(served.server_pid(server));
        }
        _ => served.kill_server_at(server),
    }
}

fn bring_back(served: &Served, server: usize, how: Server) {
    match how {
        Server::Stopped => served.signal_server(server, libc::SIGCONT),
        _ => served.start_server_at(server),
    }
}

/// Files of which two have not one server, or not one object each. Once with both servers away, and once with one of them,
/// which each copy needs.
fn copies_over_servers_end(how: Server) {
    let _alone = without_children();
    // Sessions outlast the time for which a server is stopped, on a busy machine too.
    let timing = (how == Server::Stopped).then_some("lease_ms=60000");
    let options = Options { timing, ..Options::over(2, Store::Directory) };
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    make_dir(&served, "s", STRIPED);
    make_dir(&served, "l", IN_LOGS);
    let whole = [0, 1].map(|part| dir_of_whole_files(&served, part));
    let (w0, w1) = (&*whole[0], &*whole[1]);
    let pairs = [("s", "s"), ("s", w0), (w1, "s"), (w0, w1), ("l", "s"), ("s", "l")];
    for (mount, away) in [(0, &[0, 1][..]), (1, &[1][..])] {
        let path = |at: usize, what: &str, number: usize| {
            let (from, to) = pairs[number];
            let dir = if what == "from" { from } else { to };
            served.path(at, format!("{dir}/{what}{number}-{mount}"))
        };
        let open = |number: usize| {
            let open = |what| sys::open(path(mount, what, number), NEW_FILE, 0o644).unwrap();
            let (from, to) = (open("from"), open("to"));
            assert_eq!(sys::pwrite(&from, 0, &vec![b'a'; COPY]), Ok(COPY));
            sys::fsync(&from).unwrap();
            (from, to)
        };
        let files: Vec<(OwnedFd, OwnedFd)> = (0..pairs.len()).map(open).collect();
        away.iter().for_each(|server| take_away(&served, *server, how));
        ends_by_a_signal("fsync", &|| sys::fsync(&files[0].0).map(|()| 0));
        for ((from, to), pair) in files.iter().zip(pairs) {
            ends_by_a_signal(&format!("{pair:?}"), &|| sys::copy_range(from, 0, to, 0, COPY));
        }
        away.iter().for_each(|server| bring_back(&served, *server, how));
        let start = Instant::now();
        for (_, to) in &files {
            // Not done later than what comes after it.
            while sys::pwrite(to, 0, &vec![b'b'; COPY]) != Ok(COPY) {
                assert!(start.elapsed() < SLACK + LEASE, "mount {mount} does not go on");
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        for (number, (from, to)) in files.iter().enumerate() {
            let is_all = |byte: u8| {
                sys::fsync(to).unwrap();
                let here = sys::pread(to, 0, COPY + 1).unwrap();
                let there = std::fs::read(sys::path(path(1 - mount, "to", number))).unwrap();
                here == vec![byte; COPY] && there == here
            };
            assert!(is_all(b'b'), "{:?}: something was done later", pairs[number]);
            let mut done = 0;
            while done < COPY {
                let at = done as u64;
                let copied = sys::copy_range(from, at, to, at, COPY - done).unwrap();
                assert!(copied > 0, "{:?}: nothing copied at {at}", pairs[number]);
                done += copied;
            }
            assert!(is_all(b'a'), "{:?}: another copy", pairs[number]);
        }
    }
}

#[test]
fn copies_over_servers_that_are_stopped_end_by_a_signal_that_a_program_takes() {
    copies_over_servers_end(Server::Stopped);
}

#[test]
fn copies_over_servers_that_are_killed_end_by_a_signal_that_a_program_takes() {
    copies_over_servers_end(Server::Killed);
}

/// More programs than a mount has threads for such calls from the beginning; each waits for several others.
const SLOW_FSYNCS: usize = 24;
/// What the disk of the flash takes in a second.
const SLOW_BYTES_PER_S: u64 = 256 << 10;

#[test]
fn a_signal_that_a_program_takes_ends_no_fsync_of_a_server_that_is_only_slow() {
    let _alone = without_children();
    let place = tempfile::tempdir().unwrap();
    let disk = SlowDisk::new(place.path(), 256 << 20).unwrap();
    let (flash, capacity) = (Some(disk.path().to_path_buf()), 64 << 20);
    let served =
        Served::with(Options { flash, capacity, ..Options::new(Store::Directory) }, &[Via::Tcp]);
    let files: Vec<OwnedFd> = (0..SLOW_FSYNCS)
        .map(|at| sys::open(served.path(0, format!("{at}")), NEW_FILE, 0o644).unwrap())
        .collect();
    for file in &files {
        sys::pwrite(file, 0, &[b's'; 64 << 10]).unwrap();
    }
    disk.limit(SLOW_BYTES_PER_S).unwrap();
    let begun = Shared::new(1);
    let ended = Shared::new(1);
    let (begun_, ended_) = (&begun, &ended);
    let children = files.iter().map(|file| {
        Child::spawn("fsync", move || {
            procs::take_a_signal();
            begun_[0].fetch_add(1, SeqCst);
            assert_eq!(sys::fsync(file), Ok(()));
            ended_[0].fetch_add(1, SeqCst);
        })
    });
    let children: Vec<Child> = children.collect();
    while begun[0].load(SeqCst) < SLOW_FSYNCS as u64 {
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        children.iter().for_each(|child| child.signal(libc::SIGUSR1));
    }
    assert!(
        ended[0].load(SeqCst) < SLOW_FSYNCS as u64,
        "no fsync took so long as to be interrupted"
    );
    disk.limit(0).unwrap();
    for child in children {
        child.wait(SOON).unwrap();
    }
}

const PAGE: usize = 4096;

/// A page of a file, mapped shared.
struct Page(*mut u8);

impl Page {
    fn of(fd: &OwnedFd, rights: i32) -> Page {
        let (flags, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{:?}", sys::last());
        Page(base.cast())
    }

    fn load(&self) -> u8 {
        // SAFETY: mapped as long as `self` lives, and each mapping here may be read.
        unsafe { self.0.read_volatile() }
    }

    /// Only of a page that may be written.
    fn store(&self, byte: u8) {
        // SAFETY: mapped as long as `self` lives.
        unsafe { self.0.write_volatile(byte) };
    }

    /// Its outcome is nobody's concern: the program is killed in it.
    fn sync(&self) {
        // SAFETY: our own mapping.
        unsafe { libc::msync(self.0.cast(), PAGE, libc::MS_SYNC) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: our own mapping, with its length.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

type End = fn(Page, &OwnedFd);

/// What a program may do that waits for its stores into a mapping.
const ENDS: &[(&str, End)] = &[
    ("msync", |page, _| page.sync()),
    ("fsync", |_page, fd| {
        let _ended = sys::fsync(fd);
    }),
    ("munmap", |page, _| drop(page)),
    ("exit", |_page, _| std::thread::sleep(CHILD_LIMIT)),
];

/// Programs count themselves here: those that are ready, whether the server is away, those that have begun.
const READY: usize = 0;
const AWAY: usize = 1;
const BEGUN: usize = 2;

fn wait_for(count: u64, told: &Shared, which: usize) {
    let start = Instant::now();
    while told[which].load(SeqCst) < count {
        assert!(start.elapsed() < SOON + SLACK, "{which}: {:?} of {count}", told[which]);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// In a program: it is ready, and goes on when the server is away.
fn is_ready(told: &Shared) {
    told[READY].fetch_add(1, SeqCst);
    wait_for(1, told, AWAY);
    told[BEGUN].fetch_add(1, SeqCst);
}

/// Waits for a program that was killed.
fn is_gone(child: Child) {
    let why = child.wait(SOON).unwrap_err();
    assert!(why.contains("signal 9"), "{why}");
}

#[test]
fn stores_into_a_mapping_wait_for_a_stopped_server_until_the_mount_is_off_by_force() {
    let _alone = without_children();
    let served = Served::new(Store::Directory, &[Via::Local, Via::Tcp]);
    for name in ENDS.iter().map(|(name, _)| *name).chain(["fault"]) {
        let fd = sys::open(served.path(0, name), NEW_FILE, 0o644).unwrap();
        sys::pwrite(&fd, 0, &[b'a'; PAGE]).unwrap();
    }
    let told = Shared::new(3);
    // Each program opens its own file: whoever closes a copy of one would wait for its stores, too.
    let open = |name: &str| sys::open(served.path(1, name), libc::O_RDWR, 0).unwrap();
    let store = |(name, end): &(&str, End)| {
        Child::spawn(name, || {
            let fd = open(name);
            let page = Page::of(&fd, libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(page.load(), b'a');
            is_ready(&told);
            page.store(b's');
            end(page, &fd);
        })
    };
    let storing: Vec<Child> = ENDS.iter().map(store).collect();
    let reading = Child::spawn("fault", || {
        let page = Page::of(&open("fault"), libc::PROT_READ);
        is_ready(&told);
        let _never_seen = page.load();
    });
    let all = storing.len() as u64 + 1;
    wait_for(all, &told, READY);
    served.signal_server(0, libc::SIGSTOP);
    procs::wait_until_stopped(served.server_pid(0));
    told[AWAY].store(1, SeqCst);
    wait_for(all, &told, BEGUN);
    std::thread::sleep(Duration::from_millis(500));
    for child in storing.iter().chain([&reading]) {
        assert!(!child.ended(), "a program does not wait for the server");
        child.signal(libc::SIGKILL);
    }
    is_gone(reading);
    let start = Instant::now();
    served.umount(1, &["--force"]).unwrap();
    storing.into_iter().for_each(is_gone);
    assert!(start.elapsed() < SOON, "the unmount by force took {:?}", start.elapsed());
}
