//! One of two servers hangs (SIGSTOP): what the other has is there at once, what needs the one that
//! hangs waits for as long as the mount is patient and then fails, a mount comes off, and all goes on
//! when the server does. Mounts by Unix socket and by TCP.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{self, Child};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
/// How long the mounts of these tests wait for a server.
const PATIENCE_S: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(PATIENCE_S as u64);
/// What may come on top of a time limit on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// How long what a mount holds is waited for when nothing is heard of it: `Options::short_lease`.
const LEASE: Duration = Duration::from_secs(4);
/// A call that needs nothing of the server that hangs.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How soon a mount is off that needs nothing of the server any more.
const OFF: Duration = Duration::from_secs(6);
/// The same by force, whatever it waits for: before the mount's patience is over, which says that it does not wait for it.
const OFF_BY_FORCE: Duration = Duration::from_secs(PATIENCE_S as u64 - 1);

fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < limit, "{what} took {:?}", start.elapsed());
    result
}

fn shard(path: &[u8]) -> u64 {
    sys::stat(path).unwrap().ino >> 48
}

/// A directory on a shard, with what is made in it.
fn dir_on(served: &Served, wanted: u64, stem: &str) -> String {
    for n in 0..64 {
        let name = format!("{stem}{n}");
        let path = served.path(0, &name);
        sys::mkdir(&path, 0o755).unwrap();
        if shard(&path) == wanted {
            sys::setxattr(&path, "user.forebay.placement", b"directory", 0).unwrap();
            return name;
        }
        sys::rmdir(&path).unwrap();
    }
    panic!("no name lies on server {wanted}");
}

/// Two servers with a directory on each, and a mount for each way to them.
struct Hung {
    served: Served,
    dirs: [String; 2],
    /// The server that has shard 0, and the other.
    server: [usize; 2],
}

fn patient(patience_s: u32) -> Options {
    Options { patience_s: Some(patience_s), ..Options::over(2, Store::Tmpfs) }
}

fn hung(options: Options) -> Hung {
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    let dirs = [dir_on(&served, 0, "zero"), dir_on(&served, 1, "one")];
    let zero = served.server_of_part(0);
    for (at, dir) in [(0, &dirs[0]), (0, &dirs[1]), (1, &dirs[0]), (1, &dirs[1])] {
        std::fs::write(sys::path(served.path(at, format!("{dir}/f{at}"))), "here").unwrap();
    }
    Hung { served, dirs, server: [zero, 1 - zero] }
}

/// A directory by a descriptor: to look its name up needs the server of the root.
struct Held(OwnedFd);

impl Held {
    fn open(served: &Served, at: usize, dir: &str) -> Held {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        Held(sys::open(served.path(at, dir), flags, 0).unwrap())
    }

    fn path(&self, name: &str) -> Vec<u8> {
        format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()).into_bytes()
    }
}

/// All that can be done with a directory whose server is well.
fn works(dir: &Held, at: usize, number: u64) {
    let p = |name: &str| dir.path(name);
    within(AT_ONCE, "calls that the other server answers", || {
        let name = format!("n{at}.{number}");
        let fd = sys::open(p(&name), NEW_FILE, 0o644).unwrap();
        assert_eq!(sys::pwrite(&fd, 0, b"bytes"), Ok(5));
        assert_eq!(sys::pread(&fd, 0, 9), Ok(b"bytes".to_vec()));
        sys::fsync(&fd).unwrap();
        sys::rename(p(&name), p("last")).unwrap();
        assert_eq!(sys::stat(p("last")).unwrap().size, 5);
        assert!(sys::list(p(".")).unwrap().len() > 3);
        sys::link(p("last"), p(&name)).unwrap();
        sys::unlink(p(&name)).unwrap();
    });
}

fn each_server_hangs(which: usize) {
    let Hung { served, dirs, server } = hung(patient(PATIENCE_S));
    let (away, well) = (&dirs[which], &dirs[1 - which]);
    let open: Vec<_> = (0..2)
        .map(|at| sys::open(served.path(at, format!("{away}/f{at}")), libc::O_RDWR, 0).unwrap())
        .collect();
    let held: Vec<Held> = (0..2).map(|at| Held::open(&served, at, well)).collect();
    served.signal_server(server[which], libc::SIGSTOP);
    let timed_out = Errno(libc::ETIMEDOUT);
    std::thread::scope(|scope| {
        for at in 0..2 {
            let (served, open) = (&served, &open);
            scope.spawn(move || {
                within(PATIENCE + SLACK, "the first call at a server that hangs", || {
                    let made = sys::mkdir(served.path(at, format!("{away}/d{at}")), 0o755);
                    assert_eq!(made, Err(timed_out), "mount {at}");
                });
                within(AT_ONCE, "calls after it", || {
                    let looked = sys::stat(served.path(at, format!("{away}/other"))).map(drop);
                    assert_eq!(looked, Err(timed_out), "mount {at}");
                    let listed = sys::list(served.path(at, away)).map(drop);
                    assert_eq!(listed, Err(timed_out), "mount {at}");
                    if at == 1 {
                        assert_eq!(sys::pwrite(&open[1], 0, b"lost"), Err(timed_out));
                        assert_eq!(sys::pread(&open[1], 0, 4).map(drop), Err(timed_out));
                    }
                });
            });
        }
        let start = Instant::now();
        let mut number = 0;
        while start.elapsed() < PATIENCE + Duration::from_secs(3) {
            number += 1;
            (0..2).for_each(|at| works(&held[at], at, number));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    served.signal_server(server[which], libc::SIGCONT);
    for (at, open) in open.iter().enumerate() {
        within(SLACK, "a call to the server that goes on", || {
            while sys::stat(served.path(at, format!("{away}/f0"))).is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        works(&Held::open(&served, at, away), at, 9);
        let read = std::fs::read(sys::path(served.path(at, format!("{away}/f{at}")))).unwrap();
        // What was asked for and never answered is done, or not.
        assert!(read == b"here" || (at == 1 && read == b"lost"), "{read:?}");
        assert_eq!(sys::pread(open, 0, 9).unwrap(), read, "an open file goes on");
    }
    let names = |at: usize| {
        let mut names = sys::list(served.path(at, away)).unwrap();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.into_iter().map(|entry| (entry.name, entry.ino)).collect::<Vec<_>>()
    };
    assert_eq!(names(0), names(1));
}

#[test]
fn the_first_server_hangs_and_only_what_it_has_waits_and_fails() {
    each_server_hangs(0);
}

#[test]
fn the_second_server_hangs_and_only_what_it_has_waits_and_fails() {
    each_server_hangs(1);
}

#[test]
fn a_mount_comes_off_while_a_server_hangs() {
    let _children = procs::with_children();
    for which in [0, 1] {
        let Hung { served, dirs, server } = hung(patient(PATIENCE_S).short_lease());
        served.signal_server(server[which], libc::SIGSTOP);
        // With a call that waits, and without one.
        let waiting = Child::spawn("waiter", || {
            let _ = sys::mkdir(served.path(1, format!("{}/d", dirs[which])), 0o755);
        });
        std::thread::sleep(Duration::from_millis(300));
        within(OFF, "forebay umount", || served.umount(0, &[]).unwrap());
        within(OFF_BY_FORCE, "forebay umount --force with a call that waits", || {
            served.umount(1, &["--force"]).unwrap();
        });
        waiting.wait(SLACK).unwrap();
        served.signal_server(server[which], libc::SIGCONT);
        (0..2).for_each(|at| served.mount_again(at));
        // Idle, as long as nothing tells that the server hangs, and when the mount knows it.
        for silent in [Duration::ZERO, PATIENCE + Duration::from_secs(2)] {
            served.signal_server(server[which], libc::SIGSTOP);
            std::thread::sleep(silent);
            for at in 0..2 {
                within(OFF_BY_FORCE, "forebay umount --force", || {
                    served.umount(at, &["--force"]).unwrap();
                });
            }
            served.signal_server(server[which], libc::SIGCONT);
            (0..2).for_each(|at| served.mount_again(at));
        }
        // It could not hear of their end: what those mounts held there ends with their leases.
        within(LEASE + SLACK, "a change of what lost mounts held", || {
            (0..2).for_each(|at| {
                let path = served.path(at, format!("{}/after{at}", dirs[which]));
                sys::mkdir(&path, 0o755).unwrap();
                sys::rmdir(&path).unwrap();
            });
        });
        (0..2).for_each(|at| works(&Held::open(&served, at, &dirs[which]), at, 1));
    }
}

/// The kernel reads ahead for nobody: at an unmount nobody waits for the answer any more, however patient the mount is.
#[test]
fn a_plain_unmount_waits_for_no_answer_that_nobody_wants() {
    let _alone = procs::without_children();
    let Hung { served, dirs, server } = hung(patient(40));
    for which in [0, 1] {
        let big = served.path(1, format!("{}/big", dirs[which]));
        std::fs::write(sys::path(&big), vec![7; 8 << 20]).unwrap();
        served.umount(1, &[]).unwrap();
        served.mount_again(1);
        let fd = sys::open(&big, libc::O_RDONLY, 0).unwrap();
        assert_eq!(sys::pread(&fd, 0, 1), Ok(vec![7]));
        served.signal_server(server[which], libc::SIGSTOP);
        // Else it may answer what is asked in that moment.
        procs::wait_until_stopped(served.server_pid(server[which]));
        // SAFETY: an open descriptor and plain numbers.
        let asked = unsafe {
            libc::posix_fadvise(fd.as_raw_fd(), 4 << 20, 1 << 20, libc::POSIX_FADV_WILLNEED)
        };
        assert_eq!(asked, 0);
        drop(fd);
        within(2 * OFF, "forebay umount", || served.umount(1, &[]).unwrap());
        served.signal_server(server[which], libc::SIGCONT);
        served.mount_again(1);
        assert_eq!(std::fs::read(sys::path(&big)).unwrap(), vec![7; 8 << 20]);
    }
    served.umount(1, &[]).unwrap();
}

#[test]
fn a_server_that_hangs_for_less_than_the_patience_is_only_waited_for() {
    let _children = procs::with_children();
    let Hung { served, dirs, server } = hung(patient(40).short_lease());
    for which in [0, 1] {
        // Longer than a lease: the mounts trust nothing that they had when the server goes on.
        served.signal_server(server[which], libc::SIGSTOP);
        let asked: Vec<Child> = (0..2)
            .map(|at| {
                let (served, dirs) = (&served, &dirs);
                Child::spawn("asker", move || {
                    let p = |dir: &str| served.path(at, format!("{dir}/{which}.{at}"));
                    // On it, from it to the other one, and from the other one to it.
                    sys::mkdir(p(&dirs[which]), 0o755).unwrap();
                    sys::rename(p(&dirs[which]), p(&dirs[1 - which])).unwrap();
                    let appends = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
                    let log = served.path(at, format!("{}/log{which}", dirs[which]));
                    let log = sys::open(log, appends, 0o644).unwrap();
                    assert_eq!(sys::write(&log, b"once\n"), Ok(5));
                })
            })
            .collect();
        std::thread::sleep(LEASE + Duration::from_secs(2));
        assert!(!asked.iter().any(Child::ended), "nobody can have answered");
        served.signal_server(server[which], libc::SIGCONT);
        asked.into_iter().for_each(|child| child.wait(Duration::from_secs(20)).unwrap());
        let log = sys::path(served.path(0, format!("{}/log{which}", dirs[which])));
        assert_eq!(std::fs::read(log).unwrap(), b"once\nonce\n");
        for at in 0..2 {
            let moved = format!("{}/{which}.{at}", dirs[1 - which]);
            assert!(sys::stat(served.path(1 - at, moved)).is_ok());
        }
    }
}
