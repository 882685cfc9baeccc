//! Traps about locks: fcntl ranges, deadlocks, flock, open-file-description locks, /proc/locks.

use super::put;
use forebay_tests::buffer::Buffer;
use forebay_tests::procs::{Child, Shared, fcntl_lock};
use forebay_tests::sys::{self, Errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const WRITE: i32 = libc::F_WRLCK;
const READ: i32 = libc::F_RDLCK;
const NONE: i32 = libc::F_UNLCK;

fn open(buffer: &Buffer) -> OwnedFd {
    sys::open(buffer.path("f"), libc::O_RDWR, 0).unwrap()
}

/// What another process sees as locked: (start, length) of the first lock in the way.
fn seen(buffer: &Buffer, start: i64, length: i64) -> Option<(i64, i64)> {
    let shared = Shared::new(3);
    Child::spawn("lock tester", || {
        let lock = fcntl_lock(&open(buffer), libc::F_GETLK, WRITE, start, length).unwrap();
        shared[0].store((i32::from(lock.l_type) != NONE).into(), SeqCst);
        shared[1].store(lock.l_start as u64, SeqCst);
        shared[2].store(lock.l_len as u64, SeqCst);
    })
    .join();
    (shared[0].load(SeqCst) == 1)
        .then(|| (shared[1].load(SeqCst) as i64, shared[2].load(SeqCst) as i64))
}

pub fn t06_fcntl_ranges(buffer: &Buffer) {
    put(buffer, "f", &[0; 1000]);
    // In a child: locks belong to a process, and the tests run in threads.
    Child::spawn("lock holder", || {
        let fd = open(buffer);
        fcntl_lock(&fd, libc::F_SETLK, WRITE, 100, 100).unwrap();
        assert_eq!(seen(buffer, 0, 0), Some((100, 100)));
        fcntl_lock(&fd, libc::F_SETLK, NONE, 140, 20).unwrap();
        assert_eq!(seen(buffer, 0, 0), Some((100, 40)), "split");
        assert_eq!(seen(buffer, 140, 20), None);
        assert_eq!(seen(buffer, 150, 0), Some((160, 40)));
        fcntl_lock(&fd, libc::F_SETLK, WRITE, 140, 20).unwrap();
        assert_eq!(seen(buffer, 150, 1), Some((100, 100)), "merged");
        fcntl_lock(&fd, libc::F_SETLK, READ, 300, 0).unwrap();
        assert_eq!(seen(buffer, 5_000_000_000, 1), Some((300, 0)), "to the end of all files");
        let other = Child::spawn("other", || {
            let refused = fcntl_lock(&open(buffer), libc::F_SETLK, WRITE, 199, 1);
            assert!(matches!(refused, Err(Errno(libc::EAGAIN | libc::EACCES))));
            fcntl_lock(&open(buffer), libc::F_SETLK, READ, 400, 5).unwrap();
        });
        other.join();
        let table = std::fs::read_to_string("/proc/locks").unwrap();
        let ours = table.lines().filter(|l| l.contains(&format!(" {} ", std::process::id())));
        assert!(ours.clone().count() >= 2, "/proc/locks shows them:\n{table}");
        // Closing any fd of the file drops them all.
        drop(open(buffer));
        assert_eq!(seen(buffer, 0, 0), None, "a close drops the process's locks");
        fcntl_lock(&fd, libc::F_SETLK, WRITE, 0, 0).unwrap();
    })
    .join();
    assert_eq!(seen(buffer, 0, 0), None, "gone with the process");
}

pub fn t06_deadlock(buffer: &Buffer) {
    put(buffer, "f", &[0; 10]);
    let ready = Shared::new(4);
    let meet = || {
        ready[0].fetch_add(1, SeqCst);
        while ready[0].load(SeqCst) < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let children: Vec<Child> = (0..2usize)
        .map(|number| {
            let (ready, meet) = (&ready, &meet);
            Child::spawn("deadlocker", move || {
                let fd = open(buffer);
                fcntl_lock(&fd, libc::F_SETLK, WRITE, number as i64, 1).unwrap();
                meet();
                match fcntl_lock(&fd, libc::F_SETLKW, WRITE, 1 - number as i64, 1) {
                    Ok(_) => ready[2].fetch_add(1, SeqCst),
                    Err(Errno(libc::EDEADLK)) => {
                        let counted = ready[3].fetch_add(1, SeqCst);
                        fcntl_lock(&fd, libc::F_SETLK, NONE, 0, 0).unwrap();
                        counted
                    }
                    Err(other) => panic!("{other:?}"),
                };
            })
        })
        .collect();
    forebay_tests::procs::all(children);
    assert_eq!(ready[3].load(SeqCst), 1, "one of two gets EDEADLK");
    assert_eq!(ready[2].load(SeqCst), 1, "the other its lock");
    killed_waiter_ends(buffer);
}

/// A process waiting for a lock dies of SIGKILL at once, and its wait is forgotten.
fn killed_waiter_ends(buffer: &Buffer) {
    let fd = open(buffer);
    let lock = |fd: &OwnedFd, kind: i32, wait: bool| {
        let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
        fcntl_lock(fd, command, kind, 0, 0)
    };
    lock(&fd, WRITE, false).unwrap();
    let waiter = Child::spawn("waiter", || {
        fcntl_lock(&open(buffer), libc::F_SETLKW, WRITE, 0, 0).unwrap();
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.ended(), "it waits");
    waiter.signal(libc::SIGKILL);
    let died = waiter.wait(Duration::from_secs(10)).unwrap_err();
    assert!(died.contains("signal 9"), "{died}");
    lock(&fd, NONE, false).unwrap();
    assert_eq!(seen(buffer, 0, 0), None);
}

fn flock(fd: &OwnedFd, operation: i32) -> Result<(), Errno> {
    // SAFETY: an open fd and a number.
    match unsafe { libc::flock(fd.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(sys::last()),
    }
}

pub fn t06_flock_and_ofd(buffer: &Buffer) {
    put(buffer, "f", &[0; 10]);
    let (one, two) = (open(buffer), open(buffer));
    let busy = Err(Errno(libc::EWOULDBLOCK));
    flock(&one, libc::LOCK_EX).unwrap();
    assert_eq!(flock(&two, libc::LOCK_SH | libc::LOCK_NB), busy);
    // flock and fcntl locks do not see each other on one node.
    fcntl_lock(&two, libc::F_OFD_SETLK, WRITE, 0, 0).unwrap();
    fcntl_lock(&two, libc::F_OFD_SETLK, NONE, 0, 0).unwrap();
    drop(open(buffer));
    assert_eq!(flock(&two, libc::LOCK_SH | libc::LOCK_NB), busy, "another close drops nothing");
    flock(&one, libc::LOCK_SH).unwrap();
    flock(&two, libc::LOCK_SH | libc::LOCK_NB).unwrap();
    let copy = one.try_clone().unwrap();
    drop(one);
    assert_eq!(flock(&two, libc::LOCK_EX | libc::LOCK_NB), busy, "a duplicate keeps it");
    drop(copy);
    flock(&two, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    drop(two);

    let (one, two) = (open(buffer), open(buffer));
    fcntl_lock(&one, libc::F_OFD_SETLK, WRITE, 0, 10).unwrap();
    let refused = fcntl_lock(&two, libc::F_OFD_SETLK, READ, 9, 1).map(drop);
    assert!(matches!(refused, Err(Errno(libc::EAGAIN | libc::EACCES))), "{refused:?}");
    let in_the_way = fcntl_lock(&two, libc::F_OFD_GETLK, READ, 0, 0).unwrap();
    assert_eq!((in_the_way.l_start, in_the_way.l_len, in_the_way.l_pid), (0, 10, -1));
    drop(open(buffer));
    assert!(fcntl_lock(&two, libc::F_OFD_SETLK, READ, 9, 1).is_err(), "kept over another close");
    let waited = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fcntl_lock(&two, libc::F_OFD_SETLKW, WRITE, 0, 1).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        drop(one);
        waiter.join().unwrap()
    });
    assert_eq!(waited, Ok(()), "a waiter gets it when the holder closes");
    drop(two);

    // As HDF5 does: it closes the file, and opens and tries it again at once.
    for round in 0..50 {
        flock(&open(buffer), libc::LOCK_EX | libc::LOCK_NB)
            .unwrap_or_else(|error| panic!("flock, round {round}: {error:?}"));
        fcntl_lock(&open(buffer), libc::F_OFD_SETLK, WRITE, 0, 0)
            .unwrap_or_else(|error| panic!("OFD lock, round {round}: {error:?}"));
    }
}
