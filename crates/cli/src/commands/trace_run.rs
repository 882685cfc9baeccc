//! Runs the command of `forebay trace` as if nothing was between it and its caller, and the record of
//! the run beside its trace.
//!
//! Not std's `Command`: that opens closed descriptors, empties the signal mask and resets SIGPIPE.

use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString, c_char, c_int};
use std::fmt;
use std::io::{self, Error};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Version of [`RunRecord`].
pub const RUN_RECORD_VERSION: u32 = 1;
/// Most bytes of such a record that are read.
const RECORD_MAX: u64 = 16 << 20;
/// Signals that are handed on to the command.
const FORWARDED: [c_int; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGXCPU,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGCONT,
];

/// What is on record of one `forebay trace`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`RUN_RECORD_VERSION`]
    pub version: u32,
    /// The command.
    pub command: Vec<String>,
    /// Where.
    pub host: String,
    /// The launcher's job.
    pub job: Option<String>,
    /// The launcher's rank.
    pub rank: Option<u64>,
    /// CLOCK_REALTIME, ns.
    pub started_ns: u64,
    /// How it ended, in words; nothing while it runs, or if it was killed together with this program.
    pub ended: Option<String>,
    /// Processes of it that have no file in the trace, as far as that was told.
    #[serde(default)]
    pub unrecorded_processes: u64,
    /// Calls that they are known to have made.
    #[serde(default)]
    pub unrecorded_calls: u64,
}

/// The records in a trace.
///
/// # Errors
/// The directory cannot be read. A record that cannot be is left out.
pub fn records(dir: &Path) -> io::Result<Vec<RunRecord>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let small = entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() < RECORD_MAX);
        if !(name.starts_with("run.") && name.ends_with(".json") && small) {
            continue;
        }
        let record = std::fs::read(entry.path()).ok();
        records.extend(record.and_then(|bytes| serde_json::from_slice::<RunRecord>(&bytes).ok()));
    }
    Ok(records)
}

/// True if a run into this trace goes on: its record has no end, and on this host its tracer lives. Of another host
/// nothing more is known than the record.
pub fn runs(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    entries.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("run.")) else {
            return false;
        };
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        // A record that is being written anew is looked at again the next time.
        let Ok(record) = serde_json::from_slice::<RunRecord>(&bytes) else { return true };
        // run.HOST.PID.TIME.json, and a host has dots too.
        let pid = name.rsplit('.').nth(2).and_then(|pid| pid.parse::<u32>().ok());
        let gone = pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        record.ended.is_none() && !(record.host == here && gone)
    })
}

/// Descriptors 0 to 2 that were closed when this program began (bits), and what SIGPIPE did: std opens
/// the ones and changes the other before `main`.
static CLOSED: AtomicU32 = AtomicU32::new(0);
static SIGPIPE_WAS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
/// What SIGCHLD did before [`start`]: who ignores it has no children to wait for.
static SIGCHLD_WAS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

extern "C" fn as_it_was() {
    for fd in 0..3 {
        // SAFETY: only numbers.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    // SAFETY: zeros are a valid value of the struct, which lives during the call; nothing is changed.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action);
        action
    };
    SIGPIPE_WAS.store(action.sa_sigaction, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static AS_IT_WAS: extern "C" fn() = as_it_was;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Exit code.
    Exit(u8),
    /// Killed by a signal.
    Signal(c_int),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Exit(code) => write!(f, "exit code {code}"),
            Ended::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A running command.
pub struct Child {
    /// Its process.
    pub pid: u32,
}

static CHILD: AtomicI32 = AtomicI32::new(0);

/// A handler with SA_SIGINFO.
type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Hands a signal on that somebody sent; one that a terminal sent has reached the command already.
extern "C" fn forward(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let child = CHILD.load(Ordering::Relaxed);
    // SAFETY: the kernel gives the struct; kill may be called in a handler; errno is brought back.
    unsafe {
        let errno = *libc::__errno_location();
        if child > 0 && (*info).si_code <= 0 {
            libc::kill(child, signal);
        }
        *libc::__errno_location() = errno;
    }
}

/// Hands SIGTSTP on, and stops as well. By the default action, which the kernel leaves out where nobody could continue this
/// program: then the command does not stop either.
extern "C" fn forward_stop(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    forward(signal, info, context);
    // SAFETY: valid, zeroed structs; the calls may be made in a handler; errno is brought back.
    unsafe {
        let errno = *libc::__errno_location();
        let (mut action, mut ours): (libc::sigaction, libc::sigaction) =
            (std::mem::zeroed(), std::mem::zeroed());
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, &raw mut ours);
        libc::raise(signal);
        // Here it stops, until SIGCONT.
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &raw const only, std::ptr::null_mut());
        libc::sigaction(signal, &raw const ours, std::ptr::null_mut());
        *libc::__errno_location() = errno;
    }
}

/// Hands signals on from now on, but for those that this program was told to ignore.
fn forward_signals() {
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    for signal in FORWARDED.into_iter().chain([libc::SIGTSTP]).chain(real_time) {
        let handler: Handler = if signal == libc::SIGTSTP { forward_stop } else { forward };
        // SAFETY: valid, zeroed structs; the handler calls only what it may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                action = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
}

fn c_strings(words: &[OsString]) -> io::Result<Vec<CString>> {
    let no_zero = |_| Error::new(io::ErrorKind::InvalidInput, "a word holds a NUL byte");
    words.iter().map(|word| CString::new(word.clone().into_vec()).map_err(no_zero)).collect()
}

fn pointers(words: &[CString]) -> Vec<*const c_char> {
    words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Starts a command.
///
/// # Errors
/// It could not be run: as execvp(3) says.
pub fn start(command: &[OsString], environment: &[OsString]) -> io::Result<Child> {
    let (argv, environment) = (c_strings(command)?, c_strings(environment)?);
    let (argv, environment) = (pointers(&argv), pointers(&environment));
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::last_os_error());
    }
    // All signals wait until the child is known, so that none is lost between.
    // SAFETY: valid, zeroed structs.
    let mask = unsafe {
        let (mut all, mut mask) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut mask);
        mask
    };
    let parent = std::process::id();
    // SAFETY: a disposition of this process alone.
    let sigchld = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    SIGCHLD_WAS.store(sigchld, Ordering::Relaxed);
    // SAFETY: this program has one thread; the child calls only what may be called after fork.
    let pid = unsafe { libc::fork() };
    match pid {
        // SAFETY: this is the child; the arrays end with NULL.
        0 => unsafe { become_command(&argv, &environment, pipe[1], &mask, parent) },
        -1 => {
            let error = Error::last_os_error();
            // SAFETY: the descriptors are ours; the mask is what it was.
            unsafe {
                libc::close(pipe[0]);
                libc::close(pipe[1]);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            }
            return Err(error);
        }
        _ => {}
    }
    CHILD.store(pid, Ordering::Relaxed);
    forward_signals();
    let mut errno: c_int = 0;
    // SAFETY: the descriptors are ours; the number lives during the call; the mask is what it was.
    let got = unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        libc::close(pipe[1]);
        let got = libc::read(pipe[0], (&raw mut errno).cast(), size_of::<c_int>());
        libc::close(pipe[0]);
        got
    };
    let child = Child { pid: pid as u32 };
    if got == size_of::<c_int>() as isize {
        let _ = child.wait();
        return Err(Error::from_raw_os_error(errno));
    }
    Ok(child)
}

/// Becomes a command, in the place of this program, which it finds as it was started.
///
/// # Errors
/// It could not be run: as execvp(3) says.
pub fn exec(
    command: &[OsString],
    environment: &[OsString],
) -> io::Result<std::convert::Infallible> {
    let (argv, environment) = (c_strings(command)?, c_strings(environment)?);
    let (argv, environment) = (pointers(&argv), pointers(&environment));
    // SAFETY: this program has one thread; the arrays end with NULL; what says an error has a copy of its own.
    unsafe {
        libc::signal(libc::SIGPIPE, SIGPIPE_WAS.load(Ordering::Relaxed));
        let closed = |fd: &c_int| CLOSED.load(Ordering::Relaxed) & (1 << fd) != 0;
        let kept = libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3);
        (0..3).filter(closed).for_each(|fd| {
            libc::close(fd);
        });
        libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr());
        let error = Error::last_os_error();
        libc::dup2(kept, 2);
        Err(error)
    }
}

/// The child: brings back what this program's start changed, and execs.
///
/// # Safety
/// Called once after fork, in the child.
unsafe fn become_command(
    argv: &[*const c_char],
    environment: &[*const c_char],
    report: c_int,
    mask: &libc::sigset_t,
    parent: u32,
) -> ! {
    // SAFETY: only calls that may be made after fork, with what lives in the parent's copy.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent as i32 {
            libc::_exit(127);
        }
        libc::signal(libc::SIGCHLD, SIGCHLD_WAS.load(Ordering::Relaxed));
        libc::signal(libc::SIGPIPE, SIGPIPE_WAS.load(Ordering::Relaxed));
        // The report must not be on a number that is closed here.
        let report = libc::fcntl(report, libc::F_DUPFD_CLOEXEC, 3);
        for fd in 0..3 {
            if CLOSED.load(Ordering::Relaxed) & (1 << fd) != 0 {
                libc::close(fd);
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
        libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr());
        let errno: c_int = *libc::__errno_location();
        libc::write(report, (&raw const errno).cast(), size_of::<c_int>());
        libc::_exit(127);
    }
}

impl Child {
    /// Waits for its end.
    ///
    /// # Errors
    /// Somebody else waited for it.
    pub fn wait(&self) -> io::Result<Ended> {
        let mut status = 0;
        loop {
            // SAFETY: the number lives during the call.
            if unsafe { libc::waitpid(self.pid as i32, &raw mut status, 0) } >= 0 {
                break;
            }
            let error = Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        CHILD.store(0, Ordering::Relaxed);
        Ok(match libc::WIFSIGNALED(status) {
            true => Ended::Signal(libc::WTERMSIG(status)),
            false => Ended::Exit(libc::WEXITSTATUS(status) as u8),
        })
    }
}

/// Exit code for a command that could not be run, as shells have it.
pub fn exit_code_of(error: &Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

/// Dies by a signal, without a core of this program.
pub fn die_by(signal: c_int) {
    // SAFETY: valid, zeroed structs; only this process is concerned.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Ticks a second of the processor's counter, measured over some milliseconds; `None` where the recorder
/// uses another clock.
#[cfg(target_arch = "x86_64")]
pub fn counter_hz() -> Option<u64> {
    use std::time::{Duration, Instant};
    // SAFETY: every x86-64 processor has the instruction.
    let now = || unsafe { (core::arch::x86_64::_rdtsc(), Instant::now()) };
    let (ticks, begun) = now();
    std::thread::sleep(Duration::from_millis(3));
    let (later, ended) = now();
    let seconds = ended.duration_since(begun).as_secs_f64();
    Some((later.checked_sub(ticks)? as f64 / seconds) as u64)
}

/// Ticks a second of the processor's counter: other architectures tell it with the first block.
#[cfg(not(target_arch = "x86_64"))]
pub fn counter_hz() -> Option<u64> {
    None
}
