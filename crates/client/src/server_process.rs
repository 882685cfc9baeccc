//! The process behind a control socket: which it is, and whether it is stopped.
//!
//! The kernel accepts connections for a process that is stopped (SIGSTOP, Ctrl-Z, a debugger), so that a
//! client would wait for the whole of its time limit. Nothing here asks the process.

use crate::Result;
use forebay_net::socket_path::with_short_path;
use forebay_net::{ServerAddress, Stream, peer};
use forebay_proto::control::{ControlError, SOCKET_NAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub use forebay_net::peer::{ARE_STOPPED, is_stopped};

/// Pause between the two looks of [`must_run`] and [`seen_stopped_at_last`].
const SECOND_LOOK: Duration = Duration::from_millis(300);

/// The id of the process that listens at the other end; `None` if it is in another PID namespace.
pub fn id(stream: &UnixStream) -> Option<u32> {
    let peer = socket_peercred(stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// How long a process is waited for of which only threads that hang in calls are left, and how often it is looked at.
const HANGING_WAIT: Duration = Duration::from_secs(1);
const HANGING_LOOK: Duration = Duration::from_millis(200);

/// Waits until there is something to read, or the other end is closed; false after `timeout`.
pub fn wait_readable(stream: &UnixStream, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A process that is watched from before its end. Its connections are closed while it may have other files open; when it is gone,
/// the kernel has closed all, and what was unmounted or deleted while they were open is free.
pub(crate) struct Watched(Option<(u32, OwnedFd)>);

impl Watched {
    /// The process at the other end. One that cannot be watched counts as gone: it is in another PID namespace, or has ended.
    pub fn peer_of(stream: &UnixStream) -> Watched {
        let own = std::process::id();
        id(stream).filter(|pid| *pid != own).map_or(Watched(None), Watched::process)
    }

    fn process(pid: u32) -> Watched {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        Watched(opened.map(|fd| (pid, fd)))
    }

    /// Waits until its last thread has ended, no longer than `longest`; nor for threads that hang in a call (on a PFS, say) once all
    /// else of it has ended for [`HANGING_WAIT`]: it has closed its files before that end, and they may live for ever.
    pub fn wait_until_gone(&self, longest: Duration) {
        let Some((pid, process)) = &self.0 else { return };
        let deadline = Instant::now() + longest;
        let mut hangs_since: Option<Instant> = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(pause) = Timespec::try_from(left.min(HANGING_LOOK)) else { return };
            let mut fds = [PollFd::new(process, PollFlags::IN)];
            match poll(&mut fds, Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
            let hangs = only_hanging_threads_live(*pid);
            hangs_since = hangs.then(|| hangs_since.unwrap_or_else(Instant::now));
            if left.is_zero() || hangs_since.is_some_and(|since| since.elapsed() >= HANGING_WAIT) {
                return;
            }
        }
    }
}

/// Whether the first thread of a process has ended, and none of those that live is ending: they are in the kernel, and end when their
/// calls do.
fn only_hanging_threads_live(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.map(|task| std::fs::read_to_string(task.path().join("stat")));
    let states: Vec<ThreadState> = stats.flatten().filter_map(|stat| thread_state(&stat)).collect();
    let is_first = |state: &&ThreadState| state.id == pid;
    let has_ended = states.iter().find(is_first).is_some_and(|first| first.is_over);
    has_ended && states.iter().all(|state| state.is_over || !state.is_ending)
}

/// How far a thread is.
struct ThreadState {
    id: u32,
    /// It has begun to end: it may be giving back what it has.
    is_ending: bool,
    /// Nothing of it runs any more.
    is_over: bool,
}

/// Of a line of /proc/PID/task/TID/stat (proc(5)): number, name in brackets, state, and behind five other fields the kernel's flags.
fn thread_state(stat: &str) -> Option<ThreadState> {
    /// PF_EXITING of the kernel.
    const IS_ENDING: u32 = 4;
    let (id, rest) = stat.split_once(" (")?;
    // A name may have brackets too.
    let (_, fields) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let flags: u32 = fields.get(6)?.parse().ok()?;
    Some(ThreadState {
        id: id.parse().ok()?,
        is_ending: flags & IS_ENDING != 0,
        is_over: matches!(fields.first(), Some(&("Z" | "X"))),
    })
}

/// The process id of the server that listens at a Unix socket, if that is stopped now.
pub fn stopped_at(address: &ServerAddress) -> Option<u32> {
    let ServerAddress::Unix(_) = address else { return None };
    match Stream::connect(address).ok()? {
        Stream::Unix(stream) => id(&stream).filter(|pid| is_stopped(*pid)),
        Stream::Tcp(_) => None,
    }
}

/// The same, of a server that listens at a TCP address of this machine, too: all processes are looked through for it, so this is
/// for who has waited already. `None` also if this user may not see whose the socket is.
pub fn seen_stopped_at(address: &ServerAddress) -> Option<u32> {
    match address {
        ServerAddress::Unix(_) => stopped_at(address),
        ServerAddress::Tcp { .. } => peer::stopped_listener(address),
    }
}

/// The same for the error that ends a wait, which is the last that is said: one that is not seen is looked at again.
pub fn seen_stopped_at_last(address: &ServerAddress) -> Option<u32> {
    at_second_look(|| seen_stopped_at(address))
}

fn at_second_look(mut look: impl FnMut() -> Option<u32>) -> Option<u32> {
    if let Some(pid) = look() {
        return Some(pid);
    }
    std::thread::sleep(SECOND_LOOK);
    look()
}

/// Connects to the control socket of a store.
pub(crate) fn open_socket(store_dir: &Path) -> io::Result<UnixStream> {
    with_short_path(&store_dir.join(SOCKET_NAME), |path| UnixStream::connect(path))
}

/// The process id of a store's server, if that is stopped now.
pub fn stopped_server(store_dir: &Path) -> Option<u32> {
    let stream = open_socket(store_dir).ok()?;
    id(&stream).filter(|pid| is_stopped(*pid))
}

/// An error if the server of a store is stopped: a call on its mount would wait for it.
pub fn must_run(what: &str, store_dir: &Path) -> Result<()> {
    if stopped_server(store_dir).is_none() {
        return Ok(());
    }
    std::thread::sleep(SECOND_LOOK);
    match stopped_server(store_dir) {
        Some(pid) => Err(stopped(what, store_dir, pid)),
        None => Ok(()),
    }
}

/// The error that says so.
pub fn stopped(what: &str, store_dir: &Path, pid: u32) -> ControlError {
    let why = format!("its process {pid} is {ARE_STOPPED}");
    let hint = format!(
        "`kill -CONT {pid}` lets it go on; `forebay umount --force` of its mount detaches that without it, and \
         keeps the buffer"
    );
    ControlError::new(what, Some(store_dir), &why).errno(libc::ETIMEDOUT).hint(&hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_stopped_process_that_the_first_look_does_not_see_is_seen_by_the_second() {
        let mut looks = [None, Some(9)].into_iter();
        assert_eq!(at_second_look(|| looks.next().flatten()), Some(9));
        let mut looks = [Some(8), None].into_iter();
        assert_eq!(at_second_look(|| looks.next().flatten()), Some(8));
        assert_eq!(at_second_look(|| None), None);
    }

    #[test]
    fn a_process_is_waited_for_until_it_is_gone_and_not_for_ever() {
        const SHORT: Duration = Duration::from_millis(50);
        const LONG: Duration = Duration::from_secs(60);
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let watched = Watched::process(child.id());
        let begun = Instant::now();
        watched.wait_until_gone(SHORT);
        assert!(begun.elapsed() >= SHORT);
        child.kill().unwrap();
        watched.wait_until_gone(LONG);
        assert!(begun.elapsed() < LONG);
        child.wait().unwrap();
        // One that has gone before, and this one, which could not tell of its own end.
        Watched::process(child.id()).wait_until_gone(LONG);
        let (one, _other) = UnixStream::pair().unwrap();
        Watched::peer_of(&one).wait_until_gone(LONG);
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn threads_that_hang_in_calls_are_not_waited_for_when_all_else_has_ended() {
        const LONG: Duration = Duration::from_secs(60);
        // Its first thread ends, and another one is in a call for longer than that.
        let script = "import ctypes,threading,time; threading.Thread(target=lambda: time.sleep(600)).start(); \
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", script]).spawn().unwrap();
        let watched = Watched::process(child.id());
        let begun = Instant::now();
        watched.wait_until_gone(LONG);
        let waited = begun.elapsed();
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(waited >= HANGING_WAIT && waited < LONG / 2, "after {waited:?}");
    }

    #[test]
    fn a_thread_that_is_ending_is_told_from_one_that_hangs() {
        let read =
            |stat: &str| thread_state(stat).map(|state| (state.id, state.is_ending, state.is_over));
        let hangs = "20121 (a (b) c) D 1 20056 9676 0 -1 4194368 0 0 0";
        assert_eq!(read(hangs), Some((20121, false, false)));
        let ends = "20072 (forebay) D 1 20056 9676 0 -1 4227084 0 0 0";
        assert_eq!(read(ends), Some((20072, true, false)));
        assert_eq!(
            read("20072 (forebay) Z 1 20056 9676 0 -1 4227084 0"),
            Some((20072, true, true))
        );
        assert_eq!(read("20072 (forebay"), None);
    }
}
