//! Traps about locks, over two mounts: fcntl ranges, deadlocks, flock, open-file-description locks.
//! /proc/locks shows locks of the own node only, and is not asked here. More of locks over mounts is
//! in `shared_locks`.

use super::place::Two;
use forebay_tests::procs::{Child, Shared, all, fcntl_lock, without_children};
use forebay_tests::sys::{self, Errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const WRITE: i32 = libc::F_WRLCK;
const READ: i32 = libc::F_RDLCK;
const NONE: i32 = libc::F_UNLCK;
/// How soon what a close gives up must be free on the other mount.
const SOON: Duration = Duration::from_secs(2);

fn open(path: &[u8]) -> OwnedFd {
    sys::open(path, libc::O_RDWR, 0).unwrap()
}

fn until(what: &str, done: impl FnMut() -> bool) {
    forebay_tests::until(what, SOON, done);
}

/// What a process on the other mount sees as locked: (start, length) of the first lock in the way.
fn seen(path: &[u8], start: i64, length: i64) -> Option<(i64, i64)> {
    let shared = Shared::new(3);
    Child::spawn("lock tester", || {
        let lock = fcntl_lock(&open(path), libc::F_GETLK, WRITE, start, length).unwrap();
        shared[0].store((i32::from(lock.l_type) != NONE).into(), SeqCst);
        shared[1].store(lock.l_start as u64, SeqCst);
        shared[2].store(lock.l_len as u64, SeqCst);
    })
    .join();
    (shared[0].load(SeqCst) == 1)
        .then(|| (shared[1].load(SeqCst) as i64, shared[2].load(SeqCst) as i64))
}

pub fn pair06_fcntl_ranges(two: &Two) {
    let _alone = without_children();
    for name in two.files("ranges") {
        let (here, there) = (two.here(&name), two.there(&name));
        let seen = |start, length| seen(&there, start, length);
        // In a child: locks belong to a process, and the tests run in threads.
        Child::spawn("lock holder", || {
            let fd = open(&here);
            fcntl_lock(&fd, libc::F_SETLK, WRITE, 100, 100).unwrap();
            assert_eq!(seen(0, 0), Some((100, 100)));
            fcntl_lock(&fd, libc::F_SETLK, NONE, 140, 20).unwrap();
            assert_eq!(seen(0, 0), Some((100, 40)), "split");
            assert_eq!(seen(140, 20), None);
            assert_eq!(seen(150, 0), Some((160, 40)));
            fcntl_lock(&fd, libc::F_SETLK, WRITE, 140, 20).unwrap();
            assert_eq!(seen(150, 1), Some((100, 100)), "merged");
            fcntl_lock(&fd, libc::F_SETLK, READ, 300, 0).unwrap();
            assert_eq!(seen(5_000_000_000, 1), Some((300, 0)), "to the end of all files");
            Child::spawn("other", || {
                let other = open(&there);
                let refused = fcntl_lock(&other, libc::F_SETLK, WRITE, 199, 1).map(drop);
                assert!(matches!(refused, Err(Errno(libc::EAGAIN | libc::EACCES))), "{refused:?}");
                fcntl_lock(&other, libc::F_SETLK, READ, 400, 5).unwrap();
            })
            .join();
            // Closing any descriptor of the file drops them all.
            drop(open(&here));
            assert_eq!(seen(0, 0), None, "a close drops the process's locks");
            fcntl_lock(&fd, libc::F_SETLK, WRITE, 0, 0).unwrap();
        })
        .join();
        until("the locks of a process that ended", || seen(0, 0).is_none());
    }
}

pub fn pair06_deadlock(two: &Two) {
    let _alone = without_children();
    for name in two.files("deadlock") {
        let ready = Shared::new(3);
        let player = |number: i64, path: Vec<u8>| {
            let ready = &ready;
            Child::spawn("player", move || {
                let fd = open(&path);
                fcntl_lock(&fd, libc::F_SETLK, WRITE, number, 1).unwrap();
                ready[0].fetch_add(1, SeqCst);
                while ready[0].load(SeqCst) < 2 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                match fcntl_lock(&fd, libc::F_SETLKW, WRITE, 1 - number, 1) {
                    Ok(_) => drop(ready[1].fetch_add(1, SeqCst)),
                    Err(Errno(libc::EDEADLK)) => drop(ready[2].fetch_add(1, SeqCst)),
                    Err(other) => panic!("{other:?}"),
                }
            })
        };
        all(vec![player(0, two.here(&name)), player(1, two.there(&name))]);
        let ended = (ready[1].load(SeqCst), ready[2].load(SeqCst));
        assert_eq!(ended, (1, 1), "{name}: one gets EDEADLK, the other its lock");
    }
}

fn flock(fd: &OwnedFd, operation: i32) -> Result<(), Errno> {
    // SAFETY: an open fd and a number.
    match unsafe { libc::flock(fd.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(sys::last()),
    }
}

pub fn pair06_flock_and_ofd(two: &Two) {
    let _alone = without_children();
    for name in two.files("flock") {
        let (here, there) = (two.here(&name), two.there(&name));
        let (one, other) = (open(&here), open(&there));
        let busy = Err(Errno(libc::EWOULDBLOCK));
        let try_exclusive = |fd: &OwnedFd| flock(fd, libc::LOCK_EX | libc::LOCK_NB);
        flock(&one, libc::LOCK_EX).unwrap();
        assert_eq!(flock(&other, libc::LOCK_SH | libc::LOCK_NB), busy);
        // flock and fcntl locks do not see each other.
        fcntl_lock(&other, libc::F_OFD_SETLK, WRITE, 0, 0).unwrap();
        fcntl_lock(&other, libc::F_OFD_SETLK, NONE, 0, 0).unwrap();
        drop(open(&here));
        assert_eq!(flock(&other, libc::LOCK_SH | libc::LOCK_NB), busy, "another close");
        flock(&one, libc::LOCK_SH).unwrap();
        flock(&other, libc::LOCK_SH | libc::LOCK_NB).unwrap();
        let copy = one.try_clone().unwrap();
        drop(one);
        assert_eq!(try_exclusive(&other), busy, "a duplicate keeps it");
        drop(copy);
        until("flock after the last close", || try_exclusive(&other).is_ok());
        drop(other);

        let (one, other) = (open(&here), open(&there));
        fcntl_lock(&one, libc::F_OFD_SETLK, WRITE, 0, 10).unwrap();
        let refused = fcntl_lock(&other, libc::F_OFD_SETLK, READ, 9, 1).map(drop);
        assert!(matches!(refused, Err(Errno(libc::EAGAIN | libc::EACCES))), "{refused:?}");
        let in_the_way = fcntl_lock(&other, libc::F_OFD_GETLK, READ, 0, 0).unwrap();
        assert_eq!((in_the_way.l_start, in_the_way.l_len), (0, 10));
        drop(open(&here));
        let kept = fcntl_lock(&other, libc::F_OFD_SETLK, READ, 9, 1);
        assert!(kept.is_err(), "kept over another close");
        let waited = std::thread::scope(|scope| {
            let wait = || fcntl_lock(&other, libc::F_OFD_SETLKW, WRITE, 0, 1).map(drop);
            let waiter = scope.spawn(wait);
            std::thread::sleep(Duration::from_millis(50));
            drop(one);
            waiter.join().unwrap()
        });
        assert_eq!(waited, Ok(()), "a waiter gets it when the holder on the other mount closes");
        drop(other);

        // As HDF5 does: it closes the file, and opens and tries it again at once, on one mount or the other.
        for round in 0..12 {
            let path = if round % 3 == 0 { &there } else { &here };
            try_exclusive(&open(path))
                .unwrap_or_else(|error| panic!("{name}: flock, round {round}: {error:?}"));
            fcntl_lock(&open(path), libc::F_OFD_SETLK, WRITE, 0, 0)
                .unwrap_or_else(|error| panic!("{name}: OFD lock, round {round}: {error:?}"));
        }
    }
}
