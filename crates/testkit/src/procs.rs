//! Children and other users. A child is a fork that runs one closure and reports by a pipe; a
//! time limit kills it, so a hanging file system fails a test instead of stopping the suite.
//! [`as_user`] runs a closure in a thread with other credentials (the raw calls change only the
//! calling thread), its own umask and its own working directory.

use crate::sys::{self, Sys};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long a child may take before it counts as hung.
pub const CHILD_LIMIT: Duration = Duration::from_secs(240);

/// For a script in a mount namespace of its own, lines: it holds nothing that other tests have mounted, neither buffers nor
/// the file systems that these lie on. A copy of such a mount would keep its loop device in use after its test has
/// unmounted it. What lies below `$KEEP` stays. Another test may unmount one of these mounts first: only a mount that is
/// still there is a failure.
pub const LET_GO: &str = r#"mount --make-rslave /
others() { awk -v keep="${KEEP:-none}/" 'index($5, keep) != 1 && (/ - fuse.forebay / || $5 ~ /\/forebay-/) {print $5}' /proc/self/mountinfo; }
for point in $(others | tac); do umount -l "$(printf %b "$point")" 2> /dev/null || ! others | grep -qxF "$point"; done
"#;

/// Children have copies of every descriptor of their process, other tests' ones too. A test that
/// needs a file closed for good runs while no other one of its executable makes children.
static CHILDREN: RwLock<()> = RwLock::new(());

/// For a test that makes children, where others need their files closed for good.
pub fn with_children() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that needs its files closed for good, or that makes children and needs that, too.
pub fn without_children() -> RwLockWriteGuard<'static, ()> {
    CHILDREN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Who acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Cred {
    /// A user with its own group and `groups`.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.to_vec() }
    }

    /// The superuser.
    pub fn root() -> Cred {
        Cred::new(0, 0, &[])
    }

    /// True for a member of `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Makes the calling thread act on files as this user (file-system ids and groups only, so
    /// that it can go back).
    pub fn act(&self) {
        // SAFETY: plain numbers and a list as long as said; raw calls change this thread alone.
        unsafe {
            libc::syscall(libc::SYS_setfsuid, 0);
            libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr());
            libc::syscall(libc::SYS_setfsgid, self.gid);
            libc::syscall(libc::SYS_setfsuid, self.uid);
        }
    }

    /// Makes the whole process act as this user, so that it can go back: effective ids and groups, by libc.
    pub fn act_as_process(&self) {
        // SAFETY: plain numbers and a list as long as said.
        let failed = unsafe {
            libc::seteuid(0)
                | libc::setgroups(self.groups.len(), self.groups.as_ptr())
                | libc::setegid(self.gid)
                | libc::seteuid(self.uid)
        };
        assert_eq!(failed, 0, "the tests must run as root");
    }

    /// Makes the calling thread this user for good.
    pub fn become_it(&self) {
        // SAFETY: plain numbers and a list as long as said; raw calls change this thread alone.
        let failed = unsafe {
            libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr())
                | libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid)
                | libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid)
        };
        assert_eq!(failed, 0, "the tests must run as root");
    }
}

/// Gives the calling thread its own working directory, root and umask.
pub fn own_fs_state() {
    // SAFETY: affects this thread alone.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0, "unshare: {:?}", sys::last());
}

/// Sets the umask (of the thread, after [`own_fs_state`]).
pub fn umask(mask: u32) -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::umask(mask) }
}

/// Set in a process whose library asks nothing any more once a thread has left what the process has in common (its directory, its
/// user): there it is the process that changes, and that goes back. It runs one test at a time.
pub const AS_PROCESS: &str = "FOREBAY_TEST_AS_PROCESS";

fn is_as_process() -> bool {
    std::env::var_os(AS_PROCESS).is_some()
}

/// Runs `work` with umask 022, and goes back to the umask and the working directory from before.
fn as_process<T>(work: impl FnOnce() -> T) -> T {
    let here = sys::open(".", libc::O_PATH | libc::O_DIRECTORY, 0).unwrap();
    let mask = umask(0o022);
    let result = work();
    umask(mask);
    // SAFETY: an open directory.
    assert_eq!(unsafe { libc::fchdir(here.as_raw_fd()) }, 0, "fchdir: {:?}", sys::last());
    result
}

/// Runs `work` in a thread with its own umask (022) and working directory, and gives its result.
pub fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if is_as_process() {
        return as_process(work);
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            own_fs_state();
            umask(0o022);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` as another user.
pub fn as_user<T: Send>(cred: &Cred, work: impl FnOnce() -> T + Send) -> T {
    if is_as_process() {
        return as_process(|| {
            cred.act_as_process();
            let result = work();
            Cred::root().act_as_process();
            result
        });
    }
    apart(|| {
        cred.become_it();
        work()
    })
}

type Job = (Command, Duration, mpsc::Sender<(Command, (bool, String))>);

/// Runs commands whose start closes none of the files that the test opens later. A command begins with copies of
/// all descriptors of its thread, and closes them: a close may publish, or wait for a server that this very command starts.
pub struct Starter(mpsc::Sender<Job>);

impl Starter {
    /// Its commands have the first three descriptors alone.
    pub fn start() -> Starter {
        let (jobs, asked) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            // SAFETY: plain numbers. This thread, and those that it starts, get a table of descriptors of their own with
            // the first three alone; nobody here has another one.
            let failed = unsafe {
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
            };
            assert_eq!(failed, 0, "close_range: {:?}", sys::last());
            drop(ready);
            for (mut command, limit, done) in asked {
                std::thread::spawn(move || {
                    let result = try_run_for(&mut command, limit);
                    // Who asked waits, or its test has failed.
                    drop(done.send((command, result)));
                });
            }
        });
        // It ends by the drop.
        let _ready = is_ready.recv();
        Starter(jobs)
    }

    /// [`try_run_for`] from there.
    pub fn try_run_for(&self, command: &mut Command, limit: Duration) -> (bool, String) {
        let (done, result) = mpsc::channel();
        let taken = std::mem::replace(command, Command::new("true"));
        self.0.send((taken, limit, done)).expect("the thread that starts commands");
        let (taken, result) = result.recv().expect("the thread of a command");
        *command = taken;
        result
    }
}

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// A panic in a child is reported through its pipe; printing it could wait for a lock that a
/// thread of the parent held when the child was made.
fn quiet_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IN_CHILD.load(Ordering::Relaxed) {
                print(info);
            }
        }));
    });
}

/// A child process that runs a closure. The closure does system calls only: it must start no
/// thread and no command, for the child has no copy of the threads that might hold their locks.
pub struct Child {
    pid: i32,
    report: Option<std::fs::File>,
    name: String,
}

impl Child {
    /// Forks; the child runs `work` and exits. A panic in it is reported by [`Child::join`].
    pub fn spawn(name: &str, work: impl FnOnce()) -> Child {
        quiet_children();
        let (ours, theirs) = pipe();
        // SAFETY: glibc makes malloc usable in the child; the child runs only `work`, which
        // touches no lock of the test runner, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {:?}", sys::last());
        if pid == 0 {
            drop(ours);
            let mut theirs = std::fs::File::from(theirs);
            IN_CHILD.store(true, Ordering::Relaxed);
            // SAFETY: plain numbers: the child dies with the thread that made it, and of Ctrl-C, which a shell that runs the
            // tests in the background has them ignore.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::signal(libc::SIGINT, libc::SIG_DFL);
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let code = match result {
                Ok(()) => 0,
                Err(panic) => {
                    let _ = theirs.write_all(panic_text(&*panic).as_bytes());
                    1
                }
            };
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(code) };
        }
        drop(theirs);
        Child { pid, report: Some(ours.into()), name: name.to_string() }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for yet, so the id is still its own.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Waits until it waits in the kernel: on a busy machine a child that is about to call may not have got to its call for long.
    pub fn until_it_waits(&self) {
        let waits = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
            let status = status.unwrap_or_default();
            status.contains("\nState:\tS") || status.contains("\nState:\tD")
        };
        let until = Instant::now() + STOP_LIMIT;
        while !waits() {
            assert!(!self.ended(), "{} has ended, and was to wait", self.name);
            assert!(Instant::now() < until, "{} does not wait", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True when it has ended (it stays to be joined).
    pub fn ended(&self) -> bool {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: a place for the answer; all zero if the child still runs.
        unsafe {
            libc::waitid(libc::P_PID, self.pid as u32, info.as_mut_ptr(), flags);
            info.assume_init().si_pid() == self.pid
        }
    }

    /// Waits; `Err` says how it failed: a panic's text, a signal, or that it hung.
    pub fn wait(mut self, limit: Duration) -> Result<(), String> {
        let start = Instant::now();
        while !self.ended() {
            if start.elapsed() > limit {
                self.signal(libc::SIGKILL);
                return Err(format!("{} hung: no end after {limit:?}", self.name));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for the answer.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        self.pid = 0;
        let mut text = String::new();
        if let Some(mut report) = self.report.take() {
            let _ = report.read_to_string(&mut text);
        }
        if libc::WIFSIGNALED(status) {
            return Err(format!("{} died of signal {}", self.name, libc::WTERMSIG(status)));
        }
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            _ => Err(format!("{}: {text}", self.name)),
        }
    }

    /// Waits, and fails the test if the child failed.
    pub fn join(self) {
        if let Err(why) = self.wait(CHILD_LIMIT) {
            panic!("{why}");
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid > 0 {
            self.signal(libc::SIGKILL);
            // SAFETY: our own child. Not waited for: it may be stuck in a dead file system.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }
}

/// Runs several closures, each in a child, and joins them all.
pub fn all(children: Vec<Child>) {
    let failures: Vec<String> =
        children.into_iter().filter_map(|child| child.wait(CHILD_LIMIT).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A pipe: reading end, writing end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: a place for two fds, which are ours from then on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// The text of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
        .unwrap_or_else(|| "panic".into())
}

/// Memory shared with children: a page-aligned array of atomic counters.
pub struct Shared {
    base: *mut std::sync::atomic::AtomicU64,
    length: usize,
}

// SAFETY: only atomics are reached through it, and the memory lives as long as the value.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// `length` counters, zero.
    pub fn new(length: usize) -> Shared {
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Shared { base: base.cast(), length }
    }
}

impl std::ops::Deref for Shared {
    type Target = [std::sync::atomic::AtomicU64];
    fn deref(&self) -> &Self::Target {
        // SAFETY: mapped for as long as `self` lives, aligned, zeroed, shared only as atomics.
        unsafe { std::slice::from_raw_parts(self.base, self.length) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping, with its length.
        unsafe { libc::munmap(self.base.cast(), self.length * 8) };
    }
}

/// `fcntl` with a lock: `Ok` if it was taken.
pub fn fcntl_lock(
    fd: &OwnedFd,
    command: i32,
    kind: i32,
    start: i64,
    length: i64,
) -> Sys<libc::flock> {
    // SAFETY: all zero is a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: an open fd and a lock to read and fill.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut lock) } {
        -1 => Err(sys::last()),
        _ => Ok(lock),
    }
}

/// Output of a command that must succeed; its messages are in the panic if it does not.
pub fn run(command: &mut Command) -> String {
    let (ok, text) = try_run(command);
    assert!(ok, "{command:?} failed:\n{text}");
    text
}

/// Whether a command succeeded, and all it said. A command that is not installed fails the test;
/// one that does not end within [`CHILD_LIMIT`] is killed and counts as failed.
pub fn try_run(command: &mut Command) -> (bool, String) {
    try_run_for(command, CHILD_LIMIT)
}

/// As [`try_run`], with another limit.
pub fn try_run_for(command: &mut Command, limit: Duration) -> (bool, String) {
    try_run_until(command, limit, |_| false)
}

/// As [`try_run_for`], of a command that is killed as soon as it has said enough, as what it has to say does not end it.
pub fn try_run_until(
    command: &mut Command,
    limit: Duration,
    is_enough: impl Fn(&str) -> bool,
) -> (bool, String) {
    use std::process::Stdio;
    let has_said_enough = |text: &Said| is_enough(&String::from_utf8_lossy(&text.lock().unwrap()));
    let (ours, theirs) = pipe();
    let copy = || ours.try_clone().expect("a copy of the pipe's end");
    let (pipe_end, waited_at) = (copy(), copy());
    let spawned =
        command.stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs).spawn();
    // The command keeps copies of the pipe's end for a next run: put something else there.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child =
        spawned.unwrap_or_else(|e| panic!("{command:?}: {e} (see tests/apt-packages.txt)"));
    let text = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = text.clone();
    let reader = std::thread::spawn(move || {
        let (mut from, mut some) = (std::fs::File::from(ours), [0u8; 4096]);
        loop {
            while !has_more(&waited_at, -1) {}
            let mut text = sink.lock().unwrap();
            match from.read(&mut some) {
                Ok(count @ 1..) => text.extend_from_slice(&some[..count]),
                _ => break,
            }
        }
    });
    let start = Instant::now();
    let ok = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.success(),
            None if start.elapsed() > limit => {
                let _ = child.kill();
                sink_note(&text, "\nkilled: no end within the limit");
                break false;
            }
            None if has_said_enough(&text) => {
                let _ = child.kill();
                break false;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    wait_for_the_rest(&reader, &pipe_end, &text);
    let text = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
    (ok, text)
}

/// What a command has said so far.
type Said = std::sync::Mutex<Vec<u8>>;

/// Longest wait for the reader of what a command has said, when the command has ended: on a busy machine it may not have run
/// for long.
const REST_LIMIT: Duration = Duration::from_secs(10);
/// So long what the command left behind may still say something.
const LEFT_BEHIND: Duration = Duration::from_millis(300);

/// Waits until the reader of a command that has ended has all that it said. A daemon that the command left behind may hold
/// the pipe: its end is not waited for, but what is in it.
fn wait_for_the_rest(reader: &std::thread::JoinHandle<()>, pipe_end: &OwnedFd, text: &Said) {
    let end = Instant::now();
    while !reader.is_finished() && end.elapsed() < REST_LIMIT {
        // The reader takes nothing out of the pipe without this lock.
        let noting = text.lock().unwrap();
        if end.elapsed() >= LEFT_BEHIND && !has_more(pipe_end, 0) {
            return;
        }
        drop(noting);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a read of a pipe would give something, or its end, at once; waits for that so many ms (-1: as long as it takes).
fn has_more(pipe_end: &OwnedFd, longest_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: pipe_end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, to read and fill.
    unsafe { libc::poll(&mut poll, 1, longest_ms) > 0 }
}

fn sink_note(text: &Said, note: &str) {
    text.lock().unwrap().extend_from_slice(note.as_bytes());
}

/// Lets a command be ended by Ctrl-C. A shell that runs the tests in the background has them ignore it.
pub fn ended_by_ctrl_c(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: one call of the kernel, which a process may make between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    }
}

/// Longest wait for SIGSTOP to reach all threads of a process.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Returns when SIGSTOP has reached each thread of a process: on a busy machine one may answer for a moment longer.
pub fn wait_until_stopped(pid: i32) {
    let is_stopped = |task: &std::path::Path| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        status.contains("\nState:\tT")
    };
    let all = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let until = Instant::now() + STOP_LIMIT;
    while !all().all(|task| is_stopped(&task.unwrap().path())) {
        assert!(Instant::now() < until, "a thread of process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// For a child: SIGUSR1 does nothing from now on, but end calls that wait.
pub fn take_a_signal() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing, and all zero else: no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
}
