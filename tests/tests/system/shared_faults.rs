//! Servers and mounts of a shared buffer killed, stopped and cut off: who is left goes on, what
//! was acknowledged is there once, what was lost is told and not waited for without end.
#![allow(clippy::unwrap_used)]

use forebay_tests::machines::NetNumber;
use forebay_tests::procs::{self, Child, Shared, with_children, without_children};
use forebay_tests::served::{LEASE, Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::worker::Worker;
use forebay_tests::{long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
/// What may come on top of a time limit on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn server_killed_under_load(store: Store) {
    let _alone = with_children();
    let seed = seed("server_killed_under_load");
    let served = Served::new(store, &[Via::Local, Via::Tcp, Via::Local, Via::Tcp]);
    let kills = if long() { 40 } else { 4 };
    let done = Shared::new(5);
    let (served, done) = (&served, &done);
    let workers = (0..4).map(|at| {
        Child::spawn("worker", move || {
            let mut worker = Worker::new(served, at, seed);
            while done[4].load(SeqCst) == 0 {
                worker.step();
                done[at].fetch_add(1, SeqCst);
            }
            worker.verify();
        })
    });
    let mut workers: Vec<Child> = workers.collect();
    let mut rng = StdRng::seed_from_u64(seed);
    for kill in 0..kills {
        // Not before all have done something since the last one.
        let before: Vec<u64> = (0..4).map(|at| done[at].load(SeqCst)).collect();
        let start = Instant::now();
        while (0..4).any(|at| done[at].load(SeqCst) < before[at] + 20) {
            if let Some(at) = workers.iter().position(Child::ended) {
                workers.swap_remove(at).join();
                panic!("a worker has ended by itself");
            }
            assert!(start.elapsed() < Duration::from_secs(60), "a worker hangs after {kill} kills");
            std::thread::sleep(ms(5));
        }
        std::thread::sleep(ms(rng.random_range(0..300)));
        let pause = ms(if kill == 1 { 3_000 } else { rng.random_range(0..400) });
        match kill % (served.server_count() + 1) {
            at if at < served.server_count() => {
                served.kill_server_at(at);
                std::thread::sleep(pause);
                served.start_server_at(at);
            }
            _ => {
                served.kill_server();
                std::thread::sleep(pause);
                served.start_server();
            }
        }
    }
    std::thread::sleep(ms(500));
    done[4].store(1, SeqCst);
    procs::all(workers);
}

#[test]
fn a_server_killed_under_load_loses_nothing_and_does_nothing_twice() {
    server_killed_under_load(Store::Tmpfs);
}

#[test]
fn a_server_of_a_directory_killed_under_load_does_the_same() {
    server_killed_under_load(Store::Directory);
}

#[test]
fn files_stay_open_over_a_restart_of_the_server() {
    const SIZE: usize = 8 << 20;
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let empty = served.free_bytes(0);
    let mut open = Vec::new();
    let remove = |at: usize| sys::unlink(served.path(1 - at, format!("f{at}"))).unwrap();
    for at in 0..2 {
        let fd = sys::open(served.path(at, format!("f{at}")), NEW_FILE, 0o644).unwrap();
        sys::pwrite(&fd, 0, &vec![1; SIZE]).unwrap();
        if !served.is_cache() {
            remove(at);
        }
        open.push(fd);
    }
    let nlink = u64::from(served.is_cache());
    for round in 0..3u8 {
        served.kill_and_restart_server();
        for fd in &open {
            assert_eq!(sys::pwrite(fd, 5_000, &[round; 10]), Ok(10));
            assert_eq!(sys::pread(fd, 4_999, 3), Ok(vec![1, round, round]));
            let stat = sys::fstat(fd).unwrap();
            assert_eq!((stat.nlink, stat.size), (nlink, SIZE as u64));
            sys::fsync(fd).unwrap();
        }
    }
    if served.is_cache() {
        // What has no name is on no PFS when the server dies that held it: that is told, and its space
        // comes back. What a kernel has itself it goes on with.
        for (at, fd) in open.iter().enumerate() {
            remove(at);
            assert_eq!(sys::pread(fd, 0, 1), Ok(vec![1]), "as long as the server lives");
        }
        served.kill_and_restart_server();
        let stale = Err(Errno(libc::ESTALE));
        for fd in &open {
            assert_eq!(sys::fstat(fd).map(drop), stale);
        }
        assert_eq!(sys::pread(&open[1], 0, 1).map(drop), stale);
        assert_eq!(sys::pwrite(&open[1], 0, b"x").map(drop), stale);
    }
    drop(open);
    let start = Instant::now();
    while served.free_bytes(0) + (1 << 20) < empty {
        assert!(start.elapsed() < LEASE + SLACK, "their space does not come back");
        std::thread::sleep(ms(20));
    }
}

/// The call that made it has its answer: nothing is kept for a repetition.
#[test]
fn the_space_of_a_file_without_a_name_comes_back_over_a_restart_of_the_server() {
    const SIZE: usize = 8 << 20;
    let served = Served::new(Store::Tmpfs, &[Via::Local]);
    let empty = served.free_bytes(0);
    let open = || {
        let fd = sys::open(served.path(0, ""), libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
        sys::pwrite(&fd, 0, &vec![1; SIZE]).unwrap();
        fd
    };
    let unnamed = [open(), open()];
    served.kill_and_restart_server();
    drop(unnamed);
    let start = Instant::now();
    while served.free_bytes(0) + (1 << 20) < empty {
        assert!(start.elapsed() < LEASE + SLACK, "its space does not come back");
        std::thread::sleep(ms(20));
    }
}

/// The kernel of the mount that made a file keeps its inode cached, and with it a reference: it
/// must be told to let it go.
#[test]
fn the_space_of_a_file_removed_on_another_mount_comes_back() {
    const SIZE: usize = 32 << 20;
    let _alone = without_children();
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let empty = served.free_bytes(0);
    for (a, b) in [(0, 1), (1, 0)] {
        for how in ["removed", "renamed and removed", "replaced", "replaced by another name"] {
            for open in [false, true] {
                let fd = sys::open(served.path(a, "f"), NEW_FILE, 0o644).unwrap();
                sys::pwrite(&fd, 0, &vec![1; SIZE]).unwrap();
                let kept = open.then_some(fd);
                let (f, g) = (served.path(b, "f"), served.path(b, "g"));
                if how.starts_with("replaced") {
                    sys::open(&g, NEW_FILE, 0o644).unwrap();
                }
                match how {
                    "removed" => sys::unlink(&f).unwrap(),
                    "replaced" => sys::rename(&g, &f).and_then(|()| sys::unlink(&f)).unwrap(),
                    "renamed and removed" => {
                        sys::rename(&f, &g).and_then(|()| sys::unlink(&g)).unwrap();
                    }
                    _ => {
                        sys::link(&f, served.path(b, "h")).unwrap();
                        sys::unlink(&f).unwrap();
                        sys::rename(&g, served.path(b, "h")).unwrap();
                        sys::unlink(served.path(b, "h")).unwrap();
                    }
                }
                drop(kept);
                let start = Instant::now();
                while served.free_bytes(b) + (1 << 20) < empty {
                    assert!(start.elapsed() < SLACK, "made on {a}, {how} on {b}, open: {open}");
                    std::thread::sleep(ms(10));
                }
            }
        }
    }
}

/// Runs `work` and fails if it took longer.
fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < limit, "{what} took {:?}", start.elapsed());
    result
}

#[test]
fn a_killed_mount_loses_its_hold_and_the_others_go_on() {
    let options = Options::new(Store::Tmpfs).short_lease();
    let served = Served::with(options, &[Via::Local, Via::Tcp, Via::Local]);
    for at in 0..3 {
        sys::mkdir(served.path(at, format!("d{at}")), 0o755).unwrap();
    }
    sys::mkdir(served.path(0, "d0/own"), 0o755).unwrap();
    let empty = served.free_bytes(0);
    // It is the only one that knows these files, and it has the common directory cached.
    let held: Vec<OwnedFd> = [1, 2]
        .map(|at| {
            let fd = sys::open(served.path(at, "lost"), NEW_FILE, 0o644).unwrap();
            sys::pwrite(&fd, 0, &vec![5; 32 << 20]).unwrap();
            sys::unlink(served.path(at, "lost")).unwrap();
            fd
        })
        .into();
    for at in [1, 2] {
        sys::list(served.path(at, "")).unwrap();
        sys::stat(served.path(at, "d0")).unwrap();
        served.kill_mount(at);
    }
    let start = Instant::now();
    drop(held);
    within(Duration::from_secs(2), "a directory of one's own", || {
        for i in 0..100 {
            sys::open(served.path(0, format!("d0/own/{i}")), NEW_FILE, 0o644).unwrap();
        }
    });
    within(
        served.lease() + SLACK,
        "a change that the killed mounts' leases are in the way of",
        || {
            sys::open(served.path(0, "new"), NEW_FILE, 0o644).unwrap();
            sys::rename(served.path(0, "d1"), served.path(0, "renamed")).unwrap();
        },
    );
    loop {
        let free = served.free_bytes(0);
        // What a kernel had open by passthrough it lets go with the dead mount itself.
        if free + (33 << 20) >= empty {
            break;
        }
        let lost = empty - free;
        assert!(
            start.elapsed() < served.lease() + SLACK,
            "{lost} bytes of the killed mounts' open files"
        );
        std::thread::sleep(ms(50));
    }
    while served.status()["clients"].as_array().unwrap().len() != 1 {
        assert!(
            start.elapsed() < served.lease() + SLACK,
            "the killed mounts are listed: {}",
            served.status()
        );
        std::thread::sleep(ms(50));
    }
    served.umount(2, &[]).unwrap();
    assert!(served.free_bytes(0) + (1 << 20) >= empty);
    served.mount_again(1);
    assert!(
        sys::stat(served.path(1, "renamed")).is_ok() && sys::stat(served.path(1, "d1")).is_err()
    );
    sys::mkdir(served.path(1, "renamed/again"), 0o755).unwrap();
}

#[test]
fn a_server_that_comes_back_at_another_address_is_found_by_mounts_that_were_there() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Tcp]);
    let names: Vec<String> = (0..8).map(|i| format!("d{i}")).collect();
    for name in &names {
        sys::mkdir(served.path(0, name), 0o755).unwrap();
        std::fs::write(served.root(0).join(name).join("f"), name).unwrap();
    }
    let opened: Vec<OwnedFd> = names
        .iter()
        .map(|name| sys::open(served.path(0, format!("{name}/f")), libc::O_RDWR, 0).unwrap())
        .collect();
    let was = served.tcp_at(1);
    served.kill_server_at(1);
    served.start_moved_server_at(1);
    assert_ne!(served.tcp_at(1), was);
    within(SLACK * 2, "everything at both servers", || {
        for (name, fd) in names.iter().zip(&opened) {
            assert_eq!(sys::pread(fd, 0, 9).unwrap(), name.as_bytes());
            std::fs::write(served.root(0).join(name).join("new"), "new").unwrap();
        }
    });
}

#[test]
fn the_end_of_a_mount_on_the_node_is_seen_by_each_server_of_its_buffer() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    let names: Vec<String> = (0..8).map(|i| format!("d{i}")).collect();
    for name in &names {
        sys::mkdir(served.path(1, name), 0o755).unwrap();
    }
    for name in &names {
        // Leases on names at both servers.
        let _ = sys::stat(served.path(0, format!("{name}/absent")));
        sys::list(served.path(0, name)).unwrap();
    }
    served.kill_mount(0);
    within(SLACK, "changes of what the dead mount had cached", || {
        for name in &names {
            std::fs::write(served.root(1).join(name).join("absent"), "new").unwrap();
        }
    });
}

#[test]
fn a_stopped_mount_is_waited_for_as_long_as_its_lease_and_shows_nothing_old_after_it() {
    let _alone = with_children();
    let served =
        Served::with(Options::new(Store::Tmpfs).short_lease(), &[Via::Local, Via::Local, Via::Tcp]);
    std::fs::write(served.root(0).join("file"), "old").unwrap();
    std::fs::write(served.root(0).join("gone"), "old").unwrap();
    let mut opened = Vec::new();
    for at in [1, 2] {
        // Leases on names, attributes, absent names; an open file.
        for name in ["file", "gone", "absent"] {
            let _ = sys::stat(served.path(at, name));
        }
        sys::list(served.path(at, "")).unwrap();
        opened.push(sys::open(served.path(at, "file"), libc::O_RDWR, 0).unwrap());
        served.signal_mount(at, libc::SIGSTOP);
    }
    within(served.lease() + SLACK, "changes of what stopped mounts have cached", || {
        sys::unlink(served.path(0, "gone")).unwrap();
        std::fs::write(served.root(0).join("absent"), "new").unwrap();
        std::fs::write(served.root(0).join("other"), "fresh").unwrap();
        sys::rename(served.path(0, "other"), served.path(0, "file")).unwrap();
    });
    let mut asking = Vec::new();
    for at in [1, 2] {
        let served = &served;
        asking.push(Child::spawn("asker", move || {
            let gone = sys::stat(served.path(at, "gone"));
            assert_eq!(
                gone.map(|_| ()),
                Err(Errno(libc::ENOENT)),
                "mount {at} shows a removed name"
            );
            assert_eq!(sys::stat(served.path(at, "file")).unwrap().size, 5, "mount {at}: old size");
            assert!(sys::stat(served.path(at, "absent")).is_ok(), "mount {at} hides a new name");
            let made = sys::open(served.path(at, "absent"), NEW_FILE, 0o644).map(drop);
            assert_eq!(made, Err(Errno(libc::EEXIST)), "mount {at} makes what is there");
        }));
    }
    std::thread::sleep(ms(300));
    assert!(!asking.iter().any(Child::ended), "stopped mounts cannot know, and must not guess");
    for at in [1, 2] {
        served.signal_mount(at, libc::SIGCONT);
    }
    for child in asking {
        child.wait(Duration::from_secs(10)).unwrap();
    }
    for (at, fd) in [1, 2].into_iter().zip(&opened) {
        assert_eq!(std::fs::read(served.root(at).join("file")).unwrap(), b"fresh");
        // The file that was open was renamed over while the mount counted as gone: its last
        // name went and nobody had it open. It is told to be gone, not mixed up with the new.
        match sys::fstat(fd) {
            Ok(stat) => assert_eq!((stat.nlink, stat.size), (0, 3), "mount {at}"),
            Err(error) => assert_eq!(error, Errno(libc::ESTALE), "mount {at}"),
        }
    }
    assert_eq!(std::fs::read(served.root(0).join("file")).unwrap(), b"fresh");
}

#[test]
fn without_its_server_a_mount_gives_errors_after_its_patience_and_comes_off() {
    let _alone = without_children();
    let mut options = Options::new(Store::Tmpfs);
    options.patience_s = Some(3);
    let patience = Duration::from_secs(3);
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    let mut open = Vec::new();
    for at in 0..2 {
        let fd = sys::open(served.path(at, format!("f{at}")), NEW_FILE, 0o644).unwrap();
        sys::pwrite(&fd, 0, b"kept").unwrap();
        open.push(fd);
    }
    served.kill_server();
    let told = |error: Errno| [libc::ETIMEDOUT, libc::EIO, libc::ENOTCONN].contains(&error.0);
    for (at, fd) in open.iter().enumerate() {
        within(patience + SLACK, "the first call", || {
            let made = sys::open(served.path(at, "new"), NEW_FILE, 0o644).map(drop);
            assert!(made.is_err_and(told), "mount {at}: {made:?}");
        });
        within(SLACK, "calls after it", || {
            let looked = sys::stat(served.path(at, "other")).map(drop);
            assert!(looked.is_err_and(told), "mount {at}: {looked:?}");
            let listed = sys::list(served.path(at, "")).map(drop);
            assert!(listed.is_err_and(told), "mount {at}: {listed:?}");
            if at == 1 {
                let written = sys::pwrite(fd, 0, b"lost");
                assert!(written.is_err_and(told), "{written:?}");
                let read = sys::pread(fd, 0, 4).map(drop);
                assert!(read.is_err_and(told), "{read:?}");
            }
        });
    }
    drop(open);
    for at in 0..2 {
        // A cache's data may not be on the PFS: who unmounts without asking its server says so.
        let args: &[&str] = if served.is_cache() { &["--keep", "--no-drain"] } else { &[] };
        within(Duration::from_secs(10), "forebay umount", || served.umount(at, args).unwrap());
    }
    served.start_server();
    for at in 0..2 {
        served.mount_again(at);
        let there = |name: &str| std::fs::read(served.root(at).join(name));
        assert_eq!((there("f0").unwrap(), there("f1").unwrap()), (b"kept".into(), b"kept".into()));
        assert!(there("new").is_err());
    }
}

#[test]
fn a_mount_that_outlived_its_patience_works_again_with_its_server() {
    let mut options = Options::new(Store::Tmpfs);
    options.patience_s = Some(1);
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    std::fs::write(served.root(0).join("f"), "here").unwrap();
    served.kill_server();
    for at in 0..2 {
        assert!(sys::mkdir(served.path(at, "d"), 0o755).is_err());
    }
    served.start_server();
    for at in 0..2 {
        within(SLACK, "a call to the server that is back", || {
            while sys::stat(served.path(at, "f")).is_err() {
                std::thread::sleep(ms(20));
            }
        });
        sys::mkdir(served.path(at, format!("d{at}")), 0o755).unwrap();
        assert!(sys::stat(served.path(1 - at, format!("d{at}"))).is_ok());
    }
}

/// A network namespace as another machine, with one link to this one.
struct Machine {
    name: String,
    number: NetNumber,
}

fn run(line: &str) {
    let mut words = line.split(' ');
    procs::run(Command::new(words.next().unwrap()).args(words));
}

impl Machine {
    fn new() -> Machine {
        let taken = NetNumber::take("links");
        let number = taken.get();
        let machine = Machine { name: format!("fbt{number}"), number: taken };
        // What a test that was killed has left.
        machine.clear();
        let name = &machine.name;
        // Nothing of it may ever leave this machine.
        run(&format!("ip route add unreachable {}", machine.net()));
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add {name} type veth peer name eth0 netns {name}"));
        run(&format!("ip addr add {}/30 dev {name}", machine.here()));
        run(&format!("ip link set {name} up"));
        run(&format!("ip -n {name} addr add 10.213.{number}.2/30 dev eth0"));
        run(&format!("ip -n {name} link set eth0 up"));
        machine
    }

    fn net(&self) -> String {
        format!("10.213.{}.0/24", self.number.get())
    }

    fn here(&self) -> String {
        format!("10.213.{}.1", self.number.get())
    }

    fn rules(&self, how: &str) {
        run(&format!("iptables -w {how} INPUT -i {} -j DROP", self.name));
        run(&format!("iptables -w {how} OUTPUT -o {} -j DROP", self.name));
    }

    fn cut(&self) {
        self.rules("-I");
    }

    fn heal(&self) {
        self.rules("-D");
    }

    fn clear(&self) {
        let quiet = |line: &str| {
            let mut words = line.split(' ');
            let _ = procs::try_run(Command::new(words.next().unwrap()).args(words));
        };
        quiet(&format!("iptables -w -D INPUT -i {} -j DROP", self.name));
        quiet(&format!("iptables -w -D OUTPUT -o {} -j DROP", self.name));
        quiet(&format!("ip link del {}", self.name));
        quiet(&format!("ip netns del {}", self.name));
        quiet(&format!("ip route del unreachable {}", self.net()));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[test]
fn a_mount_that_is_cut_off_is_waited_for_and_comes_back() {
    let _alone = with_children();
    let machine = Machine::new();
    let mut options = Options::new(Store::Tmpfs);
    options.listen = machine.here();
    let served = Served::with(options, &[Via::Local]);
    served.mount(Via::Namespace(machine.name.clone(), served.tcp()));
    let old = |at: usize, name: &str| sys::stat(served.path(at, name)).map(|stat| stat.size);
    std::fs::write(served.root(1).join("far"), "far").unwrap();
    assert_eq!(std::fs::read(served.root(0).join("far")).unwrap(), b"far");
    let log_flags = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
    let log = sys::open(served.path(1, "log"), log_flags, 0o644).unwrap();
    let unlinked = sys::open(served.path(1, "unlinked"), NEW_FILE, 0o644).unwrap();
    sys::pwrite(&unlinked, 0, b"mine").unwrap();
    sys::unlink(served.path(1, "unlinked")).unwrap();

    // Shorter than the lease: everything waits, nothing fails, nothing is lost.
    sys::list(served.path(1, "")).unwrap();
    machine.cut();
    let far = Child::spawn("far", || {
        for i in 0..20 {
            assert_eq!(sys::write(&log, &[b'a' + i]), Ok(1));
            sys::mkdir(served.path(1, format!("d{i}")), 0o755).unwrap();
        }
    });
    let near = Child::spawn("near", || {
        std::fs::write(sys::path(served.path(0, "near")), "near").unwrap();
    });
    std::thread::sleep(Duration::from_secs(3));
    assert!(!far.ended(), "it cannot have been done");
    machine.heal();
    far.wait(Duration::from_secs(20)).unwrap();
    near.wait(Duration::from_secs(20)).unwrap();
    assert_eq!(std::fs::read(served.root(0).join("log")).unwrap(), b"abcdefghijklmnopqrst");
    assert_eq!(old(1, "near"), Ok(4));
    assert_eq!(sys::pread(&unlinked, 0, 9), Ok(b"mine".to_vec()), "its session goes on");

    // Longer: the others go on, and what comes back has forgotten what it believed.
    assert_eq!(old(1, "far"), Ok(3));
    sys::list(served.path(1, "")).unwrap();
    machine.cut();
    let start = Instant::now();
    within(LEASE + SLACK, "a change of what the cut mount has cached", || {
        sys::rename(served.path(0, "near"), served.path(0, "far")).unwrap();
        sys::unlink(served.path(0, "d0")).unwrap_err();
        sys::rmdir(served.path(0, "d0")).unwrap();
    });
    let far = Child::spawn("far", || {
        assert_eq!(sys::write(&log, b"u"), Ok(1));
        assert_eq!(sys::stat(served.path(1, "far")).unwrap().size, 4, "it shows a replaced file");
        let gone = sys::stat(served.path(1, "d0"));
        assert_eq!(gone.map(|_| ()), Err(Errno(libc::ENOENT)), "it shows a removed directory");
        sys::mkdir(served.path(1, "d0"), 0o755).unwrap();
    });
    std::thread::sleep((LEASE + ms(1_500)).saturating_sub(start.elapsed()));
    machine.heal();
    far.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(std::fs::read(served.root(0).join("log")).unwrap(), b"abcdefghijklmnopqrstu");
    assert!(sys::stat(served.path(0, "d0")).is_ok());
    let stale = sys::pread(&unlinked, 0, 9).map(drop);
    // Over a cache the PFS may have given its inode number to what was made since: then the kernel itself takes the
    // file for a bad one, and never for the other.
    assert!(matches!(stale, Ok(()) | Err(Errno(libc::ESTALE | libc::EIO))), "{stale:?}");
}
