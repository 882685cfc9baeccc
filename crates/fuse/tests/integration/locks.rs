//! Locks through real mounts and processes, where the file system serves them: two mounts with
//! one lock table, as two nodes with one server.

use crate::common::{Mount, eventually};
use crate::process::{c_path, child, close, fcntl, flock, in_the_way, one_at_a_time, open};
use forebay_locks::{LockCounts, LockTable, SessionLocks};
use forebay_proto::api::{LockWaiter, Locks};
use forebay_proto::net::session::{LockKind, LockSpec, SessionId, Ticket};
use forebay_proto::{Ino, Result};
use libc::{EAGAIN, EDEADLK, EINTR, F_GETLK, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK};
use libc::{F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN};
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Two mounts of one buffer, as far as locks go: the file `f` has one number in both.
struct Pair {
    table: Arc<LockTable>,
    a: Mount,
    /// Kept for its lifetime.
    _b: Mount,
    f_in_a: CString,
    f_in_b: CString,
    _one_at_a_time: MutexGuard<'static, ()>,
}

fn mount(table: &Arc<LockTable>, session: u64, readers: usize) -> Mount {
    let locks = SessionLocks::new(Arc::clone(table), SessionId(session));
    let m = Mount::of(|fs| fs.locks = Some(Box::new(locks)), |o| o.readers = Some(readers));
    std::fs::write(m.at("f"), b"content").unwrap();
    m
}

impl Pair {
    fn new() -> Pair {
        let one = one_at_a_time();
        let table = LockTable::new();
        let (a, b) = (mount(&table, 1, 1), mount(&table, 2, 2));
        assert_eq!(a.fs.ino_of(b"f"), b.fs.ino_of(b"f"));
        let (f_in_a, f_in_b) = (c_path(&a.at("f")), c_path(&b.at("f")));
        Pair { table, a, _b: b, f_in_a, f_in_b, _one_at_a_time: one }
    }

    fn waiting(&self, count: usize) {
        eventually("requests wait", || self.table.counts().waiting == count);
    }

    /// All locks are gone.
    fn is_free(&self) {
        eventually("no locks", || self.table.counts() == LockCounts { held: 0, waiting: 0 });
    }
}

#[test]
fn posix_ranges_between_mounts() {
    let p = Pair::new();
    let (a, b) = (open(&p.f_in_a), open(&p.f_in_b));
    assert_eq!(fcntl(a, F_SETLK, F_WRLCK, 0, 100), 0);
    // One process through two mounts is two owners, as on two nodes.
    assert_eq!(fcntl(b, F_SETLK, F_RDLCK, 99, 1), EAGAIN);
    assert_eq!(in_the_way(b, F_GETLK, F_RDLCK, 50, 0), Some((F_WRLCK, 0, 100, 0)));
    assert_eq!(in_the_way(a, F_GETLK, F_WRLCK, 0, 0), None, "one's own");
    assert_eq!(fcntl(b, F_SETLK, F_WRLCK, 100, 0), 0);
    assert_eq!(in_the_way(a, F_GETLK, F_RDLCK, 0, 0), Some((F_WRLCK, 100, 0, 0)));
    assert_eq!(fcntl(a, F_SETLK, F_UNLCK, 40, 10), 0);
    assert_eq!(fcntl(b, F_SETLK, F_WRLCK, 40, 10), 0);
    assert_eq!(fcntl(b, F_SETLK, F_WRLCK, 39, 1), EAGAIN);
    assert_eq!(fcntl(a, F_SETLK, F_RDLCK, 50, 50), 0, "a downgrade");
    assert_eq!(fcntl(b, F_SETLK, F_RDLCK, 50, 50), 0);
    assert_eq!(fcntl(a, F_SETLK, F_WRLCK, 50, 50), EAGAIN, "no upgrade while another reads");
    assert_eq!(fcntl(b, F_SETLK, F_UNLCK, 0, 0), 0);
    assert_eq!(fcntl(a, F_SETLK, F_WRLCK, 0, 0), 0);
    assert_eq!(p.table.counts().held, 1, "merged");
    close(b);
    close(a);
    p.is_free();
}

#[test]
fn posix_locks_between_processes_of_one_mount() {
    let p = Pair::new();
    let fd = open(&p.f_in_a);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 10, 10), 0);
    let mut other = child(|parent| {
        let fd = open(&p.f_in_a);
        parent.tell(fcntl(fd, F_SETLK, F_RDLCK, 0, 0));
        let found = in_the_way(fd, F_GETLK, F_RDLCK, 0, 0).unwrap();
        parent.tell(found.3);
        parent.tell(i32::from(found.0 == F_WRLCK && (found.1, found.2) == (10, 10)));
        parent.tell(fcntl(fd, F_SETLKW, F_RDLCK, 0, 0));
        parent.wait();
    });
    assert_eq!(other.told(), EAGAIN);
    assert_eq!(other.told(), std::process::id() as i32, "F_GETLK names the process");
    assert_eq!(other.told(), 1);
    p.waiting(1);
    assert!(!other.tells_within(50));
    assert_eq!(fcntl(fd, F_SETLK, F_UNLCK, 10, 10), 0);
    assert_eq!(other.told(), 0);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 1), EAGAIN);
    other.finish();
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 1), 0, "at once: its end has closed its files");
    close(fd);
    p.is_free();
}

#[test]
fn closing_any_descriptor_ends_the_locks_of_the_process() {
    let p = Pair::new();
    let (first, second) = (open(&p.f_in_a), open(&p.f_in_a));
    let other = open(&p.f_in_b);
    assert_eq!(fcntl(first, F_SETLK, F_WRLCK, 0, 0), 0);
    assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 0, 0), EAGAIN);
    close(second);
    assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 0, 0), 0, "at once");
    // A duplicate is a descriptor too, and a lock taken after a close stays when the kernel
    // tells later that the closed file is gone.
    assert_eq!(fcntl(other, F_SETLK, F_UNLCK, 0, 0), 0);
    for _ in 0..200 {
        let third = open(&p.f_in_a);
        assert_eq!(fcntl(third, F_SETLK, F_WRLCK, 0, 10), 0);
        close(third);
        assert_eq!(p.table.counts().held, 0);
        assert_eq!(fcntl(first, F_SETLK, F_WRLCK, 0, 10), 0);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(p.table.counts().held, 1);
    // SAFETY: a system call without pointers.
    close(unsafe { libc::dup(first) });
    assert_eq!(p.table.counts().held, 0);
    close(first);
    close(other);
}

#[test]
fn a_killed_lock_waiter_ends_at_once() {
    let p = Pair::new();
    let fd = open(&p.f_in_b);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 0), 0);
    assert_eq!(flock(fd, LOCK_EX), 0);
    let wait = |how: usize| {
        let path = &p.f_in_a;
        child(move |_| {
            let fd = open(path);
            match how {
                0 => fcntl(fd, F_SETLKW, F_WRLCK, 0, 0),
                1 => fcntl(fd, F_OFD_SETLKW, F_RDLCK, 5, 5),
                _ => flock(fd, LOCK_EX),
            };
        })
    };
    for how in 0..3 {
        let mut waiter = wait(how);
        p.waiting(1);
        let began = Instant::now();
        waiter.signal(libc::SIGKILL);
        assert_eq!(waiter.ended(), libc::SIGKILL);
        // The lock is held all the while: without the signal it would wait for ever.
        assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
        assert_eq!(p.table.counts(), LockCounts { held: 2, waiting: 0 });
    }
    close(fd);
    p.is_free();
}

extern "C" fn nothing(_: i32) {}

#[test]
fn a_signal_interrupts_a_waiter_or_restarts_it() {
    let p = Pair::new();
    let fd = open(&p.f_in_b);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 10), 0);
    for restart in [false, true] {
        let mut waiter = child(|parent| {
            // SAFETY: a zeroed sigaction is valid; the handler does nothing.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = nothing as *const () as usize;
                action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
                libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
            }
            let fd = open(&p.f_in_a);
            parent.tell(fcntl(fd, F_SETLK, F_RDLCK, 20, 10));
            parent.tell(fcntl(fd, F_SETLKW, F_WRLCK, 0, 30));
            parent.wait();
        });
        assert_eq!(waiter.told(), 0);
        p.waiting(1);
        waiter.signal(libc::SIGUSR1);
        if restart {
            assert!(!waiter.tells_within(100));
            p.waiting(1);
            assert_eq!(fcntl(fd, F_SETLK, F_UNLCK, 0, 10), 0);
            assert_eq!(waiter.told(), 0);
        } else {
            assert_eq!(waiter.told(), EINTR);
            assert_eq!(in_the_way(fd, F_GETLK, F_WRLCK, 20, 10).unwrap().0, F_RDLCK, "as before");
        }
        waiter.finish();
    }
    close(fd);
    p.is_free();
}

#[test]
fn two_processes_on_two_mounts_find_their_deadlock() {
    let p = Pair::new();
    let fd = open(&p.f_in_a);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 1), 0);
    let mut other = child(|parent| {
        let fd = open(&p.f_in_b);
        parent.tell(fcntl(fd, F_SETLK, F_WRLCK, 1, 1));
        parent.tell(fcntl(fd, F_SETLKW, F_WRLCK, 0, 1));
        parent.wait();
    });
    assert_eq!(other.told(), 0);
    p.waiting(1);
    assert_eq!(fcntl(fd, F_SETLKW, F_WRLCK, 1, 1), EDEADLK);
    assert_eq!(fcntl(fd, F_SETLK, F_UNLCK, 0, 1), 0);
    assert_eq!(other.told(), 0);
    other.finish();
    close(fd);
    p.is_free();
}

#[test]
fn a_fork_inherits_files_but_no_posix_locks() {
    let p = Pair::new();
    let fd = open(&p.f_in_a);
    let other = open(&p.f_in_b);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 10), 0);
    assert_eq!(fcntl(fd, F_OFD_SETLK, F_WRLCK, 20, 10), 0);
    assert_eq!(flock(fd, LOCK_EX), 0);
    let mut child = child(|parent| {
        parent.tell(fcntl(fd, F_SETLK, F_RDLCK, 0, 10));
        parent.tell(fcntl(fd, F_OFD_SETLK, F_RDLCK, 25, 5));
        parent.tell(flock(fd, LOCK_EX | LOCK_NB));
        close(open(&p.f_in_a));
        parent.tell(0);
        parent.wait();
    });
    assert_eq!(child.told(), EAGAIN, "the POSIX lock is the parent's");
    assert_eq!((child.told(), child.told()), (0, 0), "the others are the file's, and both have it");
    assert_eq!(child.told(), 0);
    assert_eq!(fcntl(other, F_SETLK, F_RDLCK, 0, 10), EAGAIN, "a child's close ends only its own");
    close(fd);
    assert_eq!(fcntl(other, F_SETLK, F_RDLCK, 0, 10), 0);
    assert_eq!(fcntl(other, F_SETLK, F_RDLCK, 20, 10), EAGAIN, "the child still has the file open");
    assert_eq!(flock(other, LOCK_SH | LOCK_NB), EAGAIN);
    child.finish();
    eventually("they end with the last close", || flock(other, LOCK_SH | LOCK_NB) == 0);
    eventually("and OFD locks", || fcntl(other, F_SETLK, F_RDLCK, 20, 10) == 0);
    close(other);
    p.is_free();
}

#[test]
fn locks_outlive_exec_with_their_descriptor() {
    let p = Pair::new();
    let other = open(&p.f_in_b);
    for keep in [true, false] {
        let mut process = child(|parent| {
            let fd = open(&p.f_in_a);
            fcntl(fd, F_SETLK, F_WRLCK, 0, 10);
            fcntl(fd, F_OFD_SETLK, F_WRLCK, 20, 10);
            parent.tell(flock(fd, LOCK_EX));
            parent.wait();
            // SAFETY: system calls; the strings end with NUL, the lists with a null pointer.
            unsafe {
                libc::fcntl(fd, libc::F_SETFD, if keep { 0 } else { libc::FD_CLOEXEC });
                let arguments = [c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null()];
                libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr());
            }
        });
        assert_eq!(process.told(), 0);
        assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 0, 10), EAGAIN);
        process.go_on();
        // The test's end of the pipe is closed by the exec.
        eventually("exec", || process.tells_within(0));
        if keep {
            assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 0, 10), EAGAIN);
            assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 20, 10), EAGAIN);
            assert_eq!(flock(other, LOCK_EX | LOCK_NB), EAGAIN);
            process.signal(libc::SIGKILL);
            process.ended();
            assert_eq!(fcntl(other, F_SETLK, F_WRLCK, 0, 10), 0);
        }
        eventually("all is free", || {
            fcntl(other, F_SETLK, F_WRLCK, 0, 0) == 0 && flock(other, LOCK_EX | LOCK_NB) == 0
        });
        assert_eq!((fcntl(other, F_SETLK, F_UNLCK, 0, 0), flock(other, LOCK_UN)), (0, 0));
    }
    close(other);
    p.is_free();
}

#[test]
fn flock_between_mounts() {
    let p = Pair::new();
    let (a, again, b) = (open(&p.f_in_a), open(&p.f_in_a), open(&p.f_in_b));
    assert_eq!((flock(a, LOCK_SH), flock(b, LOCK_SH)), (0, 0));
    assert_eq!(flock(again, LOCK_EX | LOCK_NB), EAGAIN);
    assert_eq!(fcntl(again, F_SETLK, F_WRLCK, 0, 0), 0, "a world of its own");
    assert_eq!(flock(b, LOCK_UN), 0);
    assert_eq!(flock(a, LOCK_EX | LOCK_NB), 0, "a conversion");
    let mut waiter = child(|parent| {
        close(a);
        let fd = open(&p.f_in_b);
        parent.tell(flock(fd, LOCK_SH));
    });
    p.waiting(1);
    // SAFETY: a system call without pointers.
    let duplicate = unsafe { libc::dup(a) };
    close(a);
    assert!(!waiter.tells_within(50), "the duplicate holds it");
    close(duplicate);
    assert_eq!(waiter.told(), 0);
    waiter.ended();
    close(again);
    close(b);
    p.is_free();
}

#[test]
fn who_tries_a_lock_right_after_the_last_close_gets_it() {
    let p = Pair::new();
    for at in 0..2000 {
        let file = open(if at % 2 == 0 { &p.f_in_a } else { &p.f_in_b });
        match at % 4 {
            0 | 1 => assert_eq!(flock(file, LOCK_EX | LOCK_NB), 0, "flock {at}"),
            _ => assert_eq!(fcntl(file, F_OFD_SETLK, F_WRLCK, 0, 0), 0, "OFD lock {at}"),
        }
        close(file);
    }
    p.is_free();
}

/// Who comes first: the end of a lock at a close, or the next one that wants it.
#[derive(Default)]
struct Order {
    /// Requests that wait for a lock, and locks whose end at a close has begun and is over.
    waiting: u32,
    ending: u32,
    ended: u32,
    /// No more requests come.
    is_over: bool,
}

/// Locks that end at a close only when the next one already waits for them, as late as a RELEASE can come; and that one is
/// told that it waits only when the end is over. So the test has no times in it.
struct Late {
    locks: SessionLocks,
    order: Arc<(Mutex<Order>, Condvar)>,
}

impl Late {
    /// Changes the order, then waits for what it is to be; not for ever, so that a test that fails ends.
    fn turn(&self, change: impl FnOnce(&mut Order), is_due: impl Fn(&Order) -> bool) {
        let (order, changed) = &*self.order;
        let mut order = order.lock().unwrap();
        change(&mut order);
        changed.notify_all();
        let longest = Duration::from_secs(10);
        drop(changed.wait_timeout_while(order, longest, |order| !is_due(order)).unwrap());
    }
}

impl Locks for Late {
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>> {
        self.locks.test(spec)
    }

    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>> {
        let done = self.locks.set(spec, waiter);
        if let Ok(Some(_)) = done {
            self.turn(|order| order.waiting += 1, |order| order.ended >= order.waiting);
        }
        done
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        self.locks.unset(spec)
    }

    fn cancel(&self, ticket: Ticket) {
        self.locks.cancel(ticket);
    }

    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()> {
        let begin = |order: &mut Order| order.ending += 1;
        self.turn(begin, |order| order.is_over || order.waiting >= order.ending);
        let done = self.locks.drop_owner(ino, kind, owner);
        self.turn(|order| order.ended += 1, |_| true);
        done
    }
}

fn late_ends_are_waited_for(lock: impl Fn(RawFd) -> i32) {
    let table = LockTable::new();
    let order = Arc::default();
    let locks = SessionLocks::new(Arc::clone(&table), SessionId(1));
    let late = Late { locks, order: Arc::clone(&order) };
    let m = Mount::of(|fs| fs.locks = Some(Box::new(late)), |o| o.readers = Some(3));
    std::fs::write(m.at("f"), b"content").unwrap();
    let path = c_path(&m.at("f"));
    for round in 0..5 {
        let file = open(&path);
        assert_eq!(lock(file), 0, "round {round}: its last holder has closed the file");
        close(file);
    }
    order.0.lock().unwrap().is_over = true;
    order.1.notify_all();
    eventually("no locks", || table.counts() == LockCounts { held: 0, waiting: 0 });
}

#[test]
fn a_lock_whose_end_is_heard_only_after_the_next_try_is_got_by_that() {
    let _one = one_at_a_time();
    late_ends_are_waited_for(|file| flock(file, LOCK_EX | LOCK_NB));
    late_ends_are_waited_for(|file| fcntl(file, F_OFD_SETLK, F_WRLCK, 0, 0));
}

#[test]
fn who_tries_a_lock_that_is_held_is_told_so_soon_and_leaves_nothing() {
    let p = Pair::new();
    let (a, b) = (open(&p.f_in_a), open(&p.f_in_b));
    assert_eq!(flock(a, LOCK_SH), 0);
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(flock(b, LOCK_EX | LOCK_NB), EAGAIN);
        assert_eq!(p.table.counts(), LockCounts { held: 1, waiting: 0 });
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(flock(b, LOCK_SH | LOCK_NB), 0);
    close(a);
    close(b);
    p.is_free();
}

#[test]
fn ofd_locks_are_the_open_files() {
    let p = Pair::new();
    let (first, second, b) = (open(&p.f_in_a), open(&p.f_in_a), open(&p.f_in_b));
    assert_eq!(fcntl(first, F_OFD_SETLK, F_WRLCK, 0, 10), 0);
    assert_eq!(fcntl(second, F_OFD_SETLK, F_RDLCK, 5, 1), EAGAIN, "in one process too");
    assert_eq!(fcntl(first, F_SETLK, F_RDLCK, 5, 1), EAGAIN, "POSIX locks see them");
    let found = in_the_way(second, F_OFD_GETLK, F_RDLCK, 0, 0);
    assert_eq!(found, Some((F_WRLCK, 0, 10, -1)));
    assert_eq!(fcntl(second, F_OFD_SETLK, F_WRLCK, 10, 10), 0);
    close(open(&p.f_in_a));
    assert_eq!(p.table.counts().held, 2, "another descriptor's close ends none");
    close(second);
    eventually("its locks end with the file", || p.table.counts().held == 1);
    let mut waiter = child(|parent| {
        let fd = open(&p.f_in_b);
        parent.tell(fcntl(fd, F_OFD_SETLKW, F_WRLCK, 0, 0));
    });
    p.waiting(1);
    assert_eq!(fcntl(first, F_OFD_SETLK, F_UNLCK, 0, 0), 0);
    assert_eq!(waiter.told(), 0);
    waiter.ended();
    close(first);
    close(b);
    p.is_free();
}

#[test]
fn ofd_locks_that_wait_for_each_other_wait() {
    let p = Pair::new();
    let (first, second) = (open(&p.f_in_a), open(&p.f_in_a));
    assert_eq!(fcntl(first, F_OFD_SETLK, F_WRLCK, 0, 1), 0);
    assert_eq!(fcntl(second, F_OFD_SETLK, F_WRLCK, 1, 1), 0);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| fcntl(first, F_OFD_SETLKW, F_WRLCK, 1, 1));
        let two = scope.spawn(|| fcntl(second, F_OFD_SETLKW, F_WRLCK, 0, 1));
        // Linux has no deadlock here: a third thread may unlock, as this one does.
        p.waiting(2);
        assert_eq!(fcntl(first, F_OFD_SETLK, F_UNLCK, 0, 1), 0);
        assert_eq!(two.join().unwrap(), 0);
        assert_eq!(fcntl(second, F_OFD_SETLK, F_UNLCK, 1, 1), 0);
        assert_eq!(one.join().unwrap(), 0);
    });
    close(first);
    close(second);
    p.is_free();
}

#[test]
fn waiters_hold_no_thread() {
    const WAITERS: usize = 80;
    let p = Pair::new();
    let b = open(&p.f_in_b);
    assert_eq!(fcntl(b, F_SETLK, F_WRLCK, 0, 0), 0);
    std::thread::scope(|scope| {
        for _ in 0..WAITERS {
            scope.spawn(|| {
                let fd = open(&p.f_in_a);
                assert_eq!(fcntl(fd, F_OFD_SETLKW, F_WRLCK, 0, 0), 0);
                close(fd);
            });
        }
        // One reader and a few workers; all requests wait, and others are served.
        p.waiting(WAITERS);
        for i in 0..20 {
            std::fs::write(p.a.at(&format!("g{i}")), b"x").unwrap();
        }
        assert_eq!(fcntl(b, F_SETLK, F_UNLCK, 0, 0), 0);
    });
    close(b);
    p.is_free();
}

/// Shared between processes.
struct SharedCounter(*mut i64);

impl SharedCounter {
    fn new() -> SharedCounter {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new anonymous memory, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        SharedCounter(at.cast())
    }

    /// In two steps, which lose counts when two do it at once.
    fn count(&self) {
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe {
            let before = self.0.read_volatile();
            libc::sched_yield();
            self.0.write_volatile(before + 1);
        }
    }

    fn get(&self) -> i64 {
        // SAFETY: inside the mapping, which lives as long as self.
        unsafe { self.0.read_volatile() }
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

#[test]
fn one_at_a_time_whatever_the_kind_of_lock() {
    const ROUNDS: i64 = 150;
    let p = Pair::new();
    for kind in 0..3 {
        let counter = SharedCounter::new();
        let mut children: Vec<_> = (0..6)
            .map(|n| {
                let path = if n % 2 == 0 { &p.f_in_a } else { &p.f_in_b };
                child(|_| {
                    for _ in 0..ROUNDS {
                        let fd = open(path);
                        let rc = match kind {
                            0 => fcntl(fd, F_SETLKW, F_WRLCK, 3, 4),
                            1 => fcntl(fd, F_OFD_SETLKW, F_WRLCK, 3, 4),
                            _ => flock(fd, LOCK_EX),
                        };
                        assert_eq!(rc, 0);
                        counter.count();
                        close(fd);
                    }
                })
            })
            .collect();
        for child in &mut children {
            assert_eq!(child.ended(), 0);
        }
        assert_eq!(counter.get(), 6 * ROUNDS, "kind {kind}");
        p.is_free();
    }
}

#[test]
fn a_mount_that_is_ended_by_force_leaves_no_waiter() {
    let mut p = Pair::new();
    let fd = open(&p.f_in_b);
    assert_eq!(fcntl(fd, F_SETLK, F_WRLCK, 0, 0), 0);
    let mut waiter = child(|parent| {
        let fd = open(&p.f_in_a);
        parent.tell(fcntl(fd, F_SETLKW, F_WRLCK, 0, 0));
    });
    p.waiting(1);
    let force = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(&p.a.path, force).unwrap();
    assert_eq!(waiter.told(), libc::ECONNABORTED);
    waiter.ended();
    p.a.session.take().unwrap().wait();
    assert_eq!(p.table.counts(), LockCounts { held: 1, waiting: 0 });
    close(fd);
    p.is_free();
}

#[test]
fn a_mount_that_leaves_locks_to_the_kernel_has_no_requests_for_them() {
    let _one = one_at_a_time();
    let m = Mount::new();
    std::fs::write(m.at("f"), b"x").unwrap();
    let path = c_path(&m.at("f"));
    let (first, second) = (open(&path), open(&path));
    assert_eq!(fcntl(first, F_OFD_SETLK, F_WRLCK, 0, 0), 0);
    assert_eq!(fcntl(second, F_OFD_SETLK, F_WRLCK, 0, 0), EAGAIN);
    assert_eq!((flock(first, LOCK_EX), flock(second, LOCK_EX | LOCK_NB)), (0, EAGAIN));
    close(first);
    close(second);
    let counts = m.counts();
    assert_eq!([counts["SETLK"], counts["SETLKW"], counts["GETLK"], counts["FLUSH"]], [0; 4]);
}
