//! Processes for the tests of locks: children by fork that only make system calls, in step with
//! the test through pipes. A child inherits every descriptor of the test's process, also of
//! tests that run beside, so those tests run [`one_at_a_time`].

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE: Mutex<()> = Mutex::new(());

pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn result(rc: i32) -> i32 {
    if rc < 0 { errno() } else { 0 }
}

/// A path as system calls want it, made before a fork.
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Opens for reading and writing, without close-on-exec.
pub fn open(path: &CString) -> RawFd {
    // SAFETY: a system call with a string that ends with NUL.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
    assert!(fd >= 0, "open: {}", errno());
    fd
}

pub fn close(fd: RawFd) {
    // SAFETY: the tests close only what they opened.
    assert_eq!(unsafe { libc::close(fd) }, 0, "close: {}", errno());
}

/// A lock call: 0 or the errno. `len` 0 is to the end.
pub fn fcntl(fd: RawFd, command: i32, kind: i32, start: i64, len: i64) -> i32 {
    let mut lock = request(kind, start, len);
    // SAFETY: the structure lives until the call returns.
    result(unsafe { libc::fcntl(fd, command, &raw mut lock) })
}

fn request(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// What is in the way: (kind, start, length, pid), `None` if nothing is.
pub fn in_the_way(
    fd: RawFd,
    command: i32,
    kind: i32,
    start: i64,
    len: i64,
) -> Option<(i32, i64, i64, i32)> {
    let mut lock = request(kind, start, len);
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::fcntl(fd, command, &raw mut lock) }, 0, "getlk: {}", errno());
    let found = (i32::from(lock.l_type), lock.l_start, lock.l_len, lock.l_pid);
    (found.0 != libc::F_UNLCK).then_some(found)
}

/// flock(2): 0 or the errno.
pub fn flock(fd: RawFd, operation: i32) -> i32 {
    // SAFETY: a system call without pointers.
    result(unsafe { libc::flock(fd, operation) })
}

/// The child's end of the pipes.
#[derive(Clone, Copy)]
pub struct Parent {
    tell: RawFd,
    hear: RawFd,
}

impl Parent {
    /// Tells the test a number.
    pub fn tell(&self, value: i32) {
        let bytes = value.to_ne_bytes();
        // SAFETY: the buffer is as long as said.
        unsafe { libc::write(self.tell, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Waits until the test says [`Child::go_on`]; ends the process if there is no test any more.
    pub fn wait(&self) {
        let mut byte = 0u8;
        // SAFETY: the buffer is as long as said.
        if unsafe { libc::read(self.hear, (&raw mut byte).cast(), 1) } != 1 {
            // SAFETY: ends this process, which is a child.
            unsafe { libc::_exit(99) };
        }
    }
}

/// A child; killed when it goes out of scope.
pub struct Child {
    pub pid: i32,
    heard: std::fs::File,
    go_on: std::fs::File,
    reaped: bool,
}

fn pipe() -> (RawFd, RawFd) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    (fds[0], fds[1])
}

/// Forks. `body` may only make system calls: no allocation, no lock of this process.
pub fn child(body: impl FnOnce(Parent)) -> Child {
    let (heard, tell) = pipe();
    let (hear, go_on) = pipe();
    // SAFETY: the child makes system calls only, and ends without running destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", errno());
    if pid == 0 {
        // SAFETY: a system call. The child must not outlive a test that fails: it holds the
        // device of each mount of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        close(heard);
        close(go_on);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            body(Parent { tell, hear });
        }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 98 }) };
    }
    close(tell);
    close(hear);
    // SAFETY: both are ours alone.
    let (heard, go_on) =
        unsafe { (std::fs::File::from_raw_fd(heard), std::fs::File::from_raw_fd(go_on)) };
    Child { pid, heard, go_on, reaped: false }
}

impl Child {
    /// The next number that the child tells.
    pub fn told(&mut self) -> i32 {
        assert!(self.tells_within(20_000), "the child tells nothing for 20 s");
        let mut bytes = [0; 4];
        self.heard.read_exact(&mut bytes).expect("the child has ended early");
        i32::from_ne_bytes(bytes)
    }

    /// Whether a number has come within some milliseconds.
    pub fn tells_within(&self, ms: i32) -> bool {
        use std::os::fd::AsRawFd;
        let fd = self.heard.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, as said.
        unsafe { libc::poll(&raw mut poll, 1, ms) > 0 }
    }

    pub fn go_on(&mut self) {
        self.go_on.write_all(&[1]).unwrap();
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of this process that was not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Waits for its end; the raw status.
    pub fn ended(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process; room for the status.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        self.reaped = true;
        status
    }

    /// Lets it go on, and waits for its end without an error.
    pub fn finish(&mut self) {
        self.go_on();
        assert_eq!(self.ended(), 0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(libc::SIGKILL);
            self.ended();
        }
    }
}
