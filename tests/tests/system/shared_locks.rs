//! Locks over several mounts of one buffer: flock, fcntl and OFD locks exclude each other's
//! holders as on one machine, deadlocks are found over mounts, waiters get what a holder leaves.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{Child, Shared, fcntl_lock, without_children};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::until;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const NONE: i32 = libc::F_UNLCK;
/// How soon a lock that comes free must reach a waiter whose mount hears.
const SOON: Duration = Duration::from_secs(2);
/// Until a program of the test has come so far, on a busy machine.
const BEGINS: Duration = Duration::from_secs(20);

/// A lock of an open file lives as long as any copy of its descriptor: so these tests run one at a time.
struct Three {
    served: Served,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl std::ops::Deref for Three {
    type Target = Served;
    fn deref(&self) -> &Served {
        &self.served
    }
}

fn three() -> Three {
    three_with(Options::new(Store::Tmpfs))
}

fn three_with(options: Options) -> Three {
    let alone = without_children();
    let served = Served::with(options, &[Via::Local, Via::Local, Via::Tcp]);
    std::fs::write(served.root(0).join("f"), [0; 1000]).unwrap();
    Three { served, _alone: alone }
}

fn open(served: &Served, at: usize) -> OwnedFd {
    sys::open(served.path(at, "f"), libc::O_RDWR, 0).unwrap()
}

fn flock(fd: &OwnedFd, how: i32) -> Result<(), Errno> {
    // SAFETY: an open fd.
    match unsafe { libc::flock(fd.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(sys::last()),
    }
}

fn set(fd: &OwnedFd, command: i32, kind: i32, start: i64, length: i64) -> Result<(), Errno> {
    fcntl_lock(fd, command, kind, start, length).map(drop)
}

fn busy(result: Result<(), Errno>) -> bool {
    matches!(result, Err(Errno(libc::EAGAIN | libc::EACCES)))
}

/// In a child: closes its copy of a descriptor of its parent.
fn close_copy(fd: &OwnedFd) {
    // SAFETY: the child's own copy; it leaves by _exit and uses it no more.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// In another process: an fcntl lock is a process's.
fn elsewhere(work: impl FnOnce()) {
    Child::spawn("other", work).join();
}

#[test]
fn flock_holds_over_mounts() {
    let served = three();
    for (a, b) in [(0, 1), (0, 2), (2, 1)] {
        let (here, there) = (open(&served, a), open(&served, b));
        flock(&here, libc::LOCK_SH).unwrap();
        flock(&there, libc::LOCK_SH | libc::LOCK_NB).unwrap();
        assert!(busy(flock(&here, libc::LOCK_EX | libc::LOCK_NB)), "{a} {b}");
        flock(&there, libc::LOCK_UN).unwrap();
        // Taking the other kind may give up the first for a moment: Linux does so too.
        flock(&here, libc::LOCK_EX | libc::LOCK_NB).unwrap();
        assert!(busy(flock(&there, libc::LOCK_SH | libc::LOCK_NB)), "{a} {b}");
        // fcntl locks do not know of it.
        set(&there, libc::F_SETLK, WRITE, 0, 0).unwrap();
        set(&there, libc::F_SETLK, NONE, 0, 0).unwrap();
        drop(here);
        until("flock after close", SOON, || flock(&there, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    }
}

#[test]
fn fcntl_locks_split_merge_and_go_with_any_close_over_mounts() {
    let served = three();
    for (a, b) in [(0, 1), (0, 2), (2, 1)] {
        let here = open(&served, a);
        set(&here, libc::F_SETLK, WRITE, 0, 100).unwrap();
        set(&here, libc::F_SETLK, NONE, 40, 20).unwrap();
        set(&here, libc::F_SETLK, READ, 80, 20).unwrap();
        elsewhere(|| {
            let there = open(&served, b);
            for (kind, start, length, free) in [
                (WRITE, 0, 40, false),
                (READ, 39, 1, false),
                (WRITE, 40, 20, true),
                (WRITE, 60, 1, false),
                (READ, 80, 20, true),
                (WRITE, 99, 1, false),
                (WRITE, 100, 0, true),
            ] {
                let taken = set(&there, libc::F_SETLK, kind, start, length);
                assert_eq!(taken.is_ok(), free, "{a} {b}: {kind} at {start}+{length}: {taken:?}");
                set(&there, libc::F_SETLK, NONE, 0, 0).unwrap();
            }
            let told = fcntl_lock(&there, libc::F_GETLK, WRITE, 0, 0).unwrap();
            let range = (i32::from(told.l_type), told.l_start, told.l_len);
            assert_eq!(range, (WRITE, 0, 40), "who is in the way");
        });
        set(&here, libc::F_SETLK, WRITE, 0, 0).unwrap();
        elsewhere(|| {
            let there = open(&served, b);
            let told = fcntl_lock(&there, libc::F_GETLK, READ, 500, 1).unwrap();
            assert_eq!((told.l_start, told.l_len), (0, 0), "the ranges are one again");
        });
        drop(open(&served, a));
        elsewhere(|| {
            let there = open(&served, b);
            until("fcntl after a close of any descriptor", SOON, || {
                set(&there, libc::F_SETLK, WRITE, 0, 0).is_ok()
            });
        });
    }
}

#[test]
fn ofd_locks_belong_to_their_open_over_mounts() {
    let served = three();
    for (a, b) in [(0, 1), (0, 2), (2, 1)] {
        let (here, again, there) = (open(&served, a), open(&served, a), open(&served, b));
        set(&here, libc::F_OFD_SETLK, WRITE, 10, 10).unwrap();
        for other in [&again, &there] {
            assert!(busy(set(other, libc::F_OFD_SETLK, READ, 15, 1)), "{a} {b}");
        }
        assert!(busy(set(&there, libc::F_SETLK, READ, 15, 1)), "a process's lock beside it");
        drop(open(&served, a));
        assert!(busy(set(&there, libc::F_OFD_SETLK, READ, 15, 1)), "another's close ends nothing");
        let copy = here.try_clone().unwrap();
        drop(here);
        assert!(busy(set(&there, libc::F_OFD_SETLK, READ, 15, 1)), "it is still open");
        drop(copy);
        until("an OFD lock after its close", SOON, || {
            set(&there, libc::F_OFD_SETLK, WRITE, 0, 0).is_ok()
        });
        // A close returns before the lock's end is told: the next round would meet it.
        set(&there, libc::F_OFD_SETLK, NONE, 0, 0).unwrap();
    }
}

#[test]
fn a_deadlock_over_mounts_is_told() {
    let served = three();
    for (a, b) in [(0, 1), (0, 2), (2, 1)] {
        // 0: both hold their first, 1: one waits no more.
        let steps = Shared::new(2);
        let (served, steps) = (&served, &steps);
        let player = |at: usize, mine: i64, other: i64| {
            Child::spawn("player", move || {
                let fd = open(served, at);
                set(&fd, libc::F_SETLK, WRITE, mine, 1).unwrap();
                steps[0].fetch_add(1, SeqCst);
                until("both", BEGINS, || steps[0].load(SeqCst) == 2);
                match set(&fd, libc::F_SETLKW, WRITE, other, 1) {
                    Ok(()) => {}
                    Err(Errno(libc::EDEADLK)) => drop(steps[1].fetch_add(1, SeqCst)),
                    Err(error) => panic!("{error:?}"),
                }
            })
        };
        let players = [player(a, 0, 1), player(b, 1, 0)];
        for player in players {
            player.wait(Duration::from_secs(10)).unwrap();
        }
        assert_eq!(steps[1].load(SeqCst), 1, "{a} {b}: one of the two is told");
    }
}

/// Spawns who waits for a lock on mount `at`; it counts up in `steps`: waiting, got it.
fn waiter<'a>(served: &'a Served, at: usize, kind: &'static str, steps: &'a Shared) -> Child {
    let child = Child::spawn("waiter", move || {
        let fd = open(served, at);
        steps[0].fetch_add(1, SeqCst);
        take(&fd, kind, true).unwrap();
        steps[1].fetch_add(1, SeqCst);
    });
    until("the waiter", BEGINS, || steps[0].load(SeqCst) == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(steps[1].load(SeqCst), 0, "{kind}: it must wait");
    child
}

fn take(fd: &OwnedFd, kind: &str, wait: bool) -> Result<(), Errno> {
    match (kind, wait) {
        ("flock", true) => flock(fd, libc::LOCK_EX),
        ("flock", false) => flock(fd, libc::LOCK_EX | libc::LOCK_NB),
        ("fcntl", true) => set(fd, libc::F_SETLKW, WRITE, 0, 10),
        ("fcntl", false) => set(fd, libc::F_SETLK, WRITE, 0, 10),
        (_, true) => set(fd, libc::F_OFD_SETLKW, WRITE, 0, 10),
        (_, false) => set(fd, libc::F_OFD_SETLK, WRITE, 0, 10),
    }
}

const KINDS: [&str; 3] = ["flock", "fcntl", "ofd"];

#[test]
fn the_lock_of_a_killed_process_goes_to_the_waiter_on_another_mount() {
    let served = three();
    for kind in KINDS {
        for (a, b) in [(0, 1), (0, 2), (2, 1)] {
            let held = Shared::new(1);
            let (served_, held_) = (&served, &held);
            let holder = Child::spawn("holder", move || {
                let fd = open(served_, a);
                take(&fd, kind, false).unwrap();
                held_[0].store(1, SeqCst);
                std::thread::sleep(Duration::from_secs(60));
            });
            until("the holder", BEGINS, || held[0].load(SeqCst) == 1);
            let steps = Shared::new(2);
            let waiting = waiter(&served, b, kind, &steps);
            holder.signal(libc::SIGKILL);
            waiting.wait(SOON).unwrap_or_else(|why| panic!("{kind}, {a} to {b}: {why}"));
        }
    }
}

#[test]
fn a_waiter_that_is_killed_or_interrupted_ends_at_once_and_gets_nothing() {
    let served = three();
    let here = open(&served, 0);
    for kind in KINDS {
        for at in [1, 2] {
            // A child that has ended closes its files without waiting for the end of it.
            until("the holder", BEGINS, || take(&here, kind, false).is_ok());
            let steps = Shared::new(2);
            let waiting = waiter(&served, at, kind, &steps);
            let start = Instant::now();
            waiting.signal(libc::SIGKILL);
            assert!(waiting.wait(SOON).unwrap_err().contains("signal 9"), "{kind} on {at}");
            assert!(start.elapsed() < SOON);
            // The lock is still the holder's, and free for the next when it lets go.
            match kind {
                "flock" => flock(&here, libc::LOCK_UN).unwrap(),
                "fcntl" => set(&here, libc::F_SETLK, NONE, 0, 0).unwrap(),
                _ => set(&here, libc::F_OFD_SETLK, NONE, 0, 0).unwrap(),
            }
            elsewhere(|| {
                let fd = open(&served, at);
                until("what the waiter wanted", SOON, || take(&fd, kind, false).is_ok());
            });
        }
    }
}

#[test]
fn the_lock_of_a_killed_mount_goes_to_the_waiter_after_its_lease() {
    let served = three_with(Options::new(Store::Tmpfs).short_lease());
    let mut waiting = Vec::new();
    let steps: Vec<Shared> = KINDS.iter().map(|_| Shared::new(2)).collect();
    let held = KINDS.map(|kind| {
        // One file for each kind: they would wait for each other.
        let name = |at| served.path(at, kind);
        let fd = sys::open(name(2), libc::O_CREAT | libc::O_RDWR, 0o644).unwrap();
        take(&fd, kind, false).unwrap();
        fd
    });
    for (kind, steps) in KINDS.into_iter().zip(&steps) {
        let path = served.path(1, kind);
        waiting.push(Child::spawn("waiter", move || {
            let fd = sys::open(path, libc::O_RDWR, 0).unwrap();
            steps[0].fetch_add(1, SeqCst);
            take(&fd, kind, true).unwrap();
            steps[1].fetch_add(1, SeqCst);
        }));
        until("the waiter", BEGINS, || steps[0].load(SeqCst) == 1);
    }
    std::thread::sleep(Duration::from_millis(100));
    served.kill_mount(2);
    let start = Instant::now();
    for (kind, child) in KINDS.into_iter().zip(waiting) {
        let left = (served.lease() + Duration::from_secs(4)).saturating_sub(start.elapsed());
        child.wait(left).unwrap_or_else(|why| panic!("{kind}: {why}"));
    }
    drop(held);
}

#[test]
fn locks_are_held_over_a_restart_of_the_server() {
    let served = three();
    let names = KINDS.map(|kind| (kind, sys::c(kind)));
    for (name, _) in &names {
        std::fs::write(served.root(0).join(name), [0; 10]).unwrap();
    }
    let open_at =
        |at: usize, name: &str| sys::open(served.path(at, name), libc::O_RDWR, 0).unwrap();
    let held: Vec<OwnedFd> = KINDS.iter().map(|kind| open_at(0, kind)).collect();
    for (kind, fd) in KINDS.into_iter().zip(&held) {
        take(fd, kind, false).unwrap();
    }
    let got = Shared::new(1);
    let path = served.path(2, "flock");
    let waiting = Child::spawn("waiter", || {
        // Copies of what its parent holds would hold it too.
        held.iter().for_each(close_copy);
        let fd = sys::open(&path, libc::O_RDWR, 0).unwrap();
        take(&fd, "flock", true).unwrap();
        got[0].store(1, SeqCst);
    });
    std::thread::sleep(Duration::from_millis(200));
    served.kill_and_restart_server();
    elsewhere(|| {
        for at in 1..3 {
            for kind in KINDS {
                let taken = take(&open_at(at, kind), kind, false);
                assert!(busy(taken), "{kind} on mount {at} after the restart: {taken:?}");
            }
        }
    });
    assert_eq!(got[0].load(SeqCst), 0);
    drop(held);
    waiting.wait(Duration::from_secs(10)).unwrap();
    elsewhere(|| {
        for kind in KINDS {
            let fd = open_at(1, kind);
            until(kind, SOON, || take(&fd, kind, false).is_ok());
        }
    });
}

/// Everything that uses a file's data through a descriptor.
fn uses(fd: &OwnedFd, other: &OwnedFd) -> Vec<(&'static str, Result<(), Errno>)> {
    vec![
        ("read", sys::pread(fd, 0, 4).map(drop)),
        ("write", sys::pwrite(fd, 0, b"late").map(drop)),
        ("truncate", sys::ftruncate(fd, 3)),
        ("fallocate", sys::fallocate(fd, 0, 0, 50)),
        ("copy into", sys::copy_range(other, 0, fd, 0, 4).map(drop)),
        ("copy from", sys::copy_range(fd, 0, other, 0, 4).map(drop)),
    ]
}

#[test]
fn who_lost_a_lock_while_its_mount_was_stopped_uses_the_file_no_more_until_it_unlocks() {
    let served = three_with(Options::new(Store::Tmpfs).short_lease());
    let path = |at: usize, kind: &str| served.path(at, kind);
    let open_at = |at: usize, kind: &str| sys::open(path(at, kind), libc::O_RDWR, 0).unwrap();
    std::fs::write(served.root(0).join("other"), "other").unwrap();
    let other = open_at(2, "other");
    let held = KINDS.map(|kind| {
        std::fs::write(served.root(0).join(kind), "nobody's").unwrap();
        let fd = open_at(2, kind);
        take(&fd, kind, false).unwrap();
        sys::pwrite(&fd, 0, b"mine").unwrap();
        fd
    });
    served.signal_mount(2, libc::SIGSTOP);
    // What is asked while the mount is stopped: by a copy of the descriptor, where the lock is the descriptor's.
    let queued: Vec<Child> = KINDS
        .into_iter()
        .zip(&held)
        .filter(|(kind, _)| *kind != "fcntl")
        .map(|(_, fd)| {
            Child::spawn("writer", move || {
                assert_eq!(sys::pwrite(fd, 0, b"late"), Err(Errno(libc::EIO)));
            })
        })
        .collect();
    let taken = KINDS.map(|kind| {
        let fd = open_at(0, kind);
        take(&fd, kind, true).unwrap();
        sys::pwrite(&fd, 0, b"theirs").unwrap();
        fd
    });
    served.signal_mount(2, libc::SIGCONT);
    for child in queued {
        child.wait(Duration::from_secs(10)).unwrap();
    }
    for (kind, fd) in KINDS.into_iter().zip(&held) {
        for (what, used) in uses(fd, &other) {
            assert_eq!(used, Err(Errno(libc::EIO)), "{kind}: {what} without the lock that it had");
        }
        assert_eq!(take(fd, kind, false), Err(Errno(libc::EIO)), "{kind}: it does not know yet");
        elsewhere(|| {
            let fd = open_at(2, kind);
            assert_eq!(sys::pread(&fd, 0, 8).unwrap(), b"theirs's", "{kind}: who had no lock");
            sys::pwrite(&fd, 6, b"..").unwrap();
        });
    }
    for (kind, fd) in KINDS.into_iter().zip(&held) {
        let unlocked = match kind {
            "flock" => flock(fd, libc::LOCK_UN),
            "fcntl" => set(fd, libc::F_SETLK, NONE, 0, 0),
            _ => set(fd, libc::F_OFD_SETLK, NONE, 0, 0),
        };
        unlocked.unwrap();
        assert!(busy(take(fd, kind, false)), "{kind}: somebody else has it");
    }
    drop(taken);
    for (kind, fd) in KINDS.into_iter().zip(&held) {
        until(kind, SOON, || take(fd, kind, false).is_ok());
        assert_eq!(sys::pread(fd, 0, 8).unwrap(), b"theirs..", "{kind}");
        for (what, used) in uses(fd, &other) {
            assert_eq!(used, Ok(()), "{kind}: {what} with a lock again");
        }
    }
}

#[test]
fn a_lock_that_somebody_had_while_its_mount_was_stopped_is_lost_though_it_is_free() {
    let served = three_with(Options::new(Store::Tmpfs).short_lease());
    let open_at =
        |at: usize, kind: &str| sys::open(served.path(at, kind), libc::O_RDWR, 0).unwrap();
    let held = KINDS.map(|kind| {
        std::fs::write(served.root(0).join(kind), "nobody's").unwrap();
        let fd = open_at(2, kind);
        take(&fd, kind, false).unwrap();
        fd
    });
    let untouched = {
        std::fs::write(served.root(0).join("untouched"), "nobody's").unwrap();
        let fd = open_at(2, "untouched");
        take(&fd, "flock", false).unwrap();
        fd
    };
    served.signal_mount(2, libc::SIGSTOP);
    for kind in KINDS {
        let fd = open_at(0, kind);
        take(&fd, kind, true).unwrap();
        sys::pwrite(&fd, 0, b"theirs").unwrap();
    }
    served.signal_mount(2, libc::SIGCONT);
    for (kind, fd) in KINDS.into_iter().zip(&held) {
        assert_eq!(sys::pwrite(fd, 0, b"late"), Err(Errno(libc::EIO)), "{kind}");
        assert_eq!(std::fs::read(served.root(0).join(kind)).unwrap(), b"theirs's", "{kind}");
    }
    sys::pwrite(&untouched, 0, b"still").unwrap();
    elsewhere(|| assert!(busy(take(&open_at(1, "untouched"), "flock", false)), "it is held"));
}
