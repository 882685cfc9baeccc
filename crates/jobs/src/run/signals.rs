//! Signals as events: while a [`Signals`] lives, those that would end the command are read from
//! a descriptor instead, so that every wait of a step can end by one and no step is cut short.
//!
//! A signal that is ignored when the command starts (nohup, a shell's background) stays ignored, by
//! us and by the script.
//!
//! Invariant: made before the process has other threads (the mask is inherited by them). Children
//! inherit it as well, and would be deaf: each is started through [`with_clear_mask`].

use super::leaving::{self, Leaving};
use super::record::JobRecord;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is read instead of being delivered.
const WATCHED: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::CHILD];

/// The watched signals of this process.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    /// See [`Signals::hold`].
    held: Cell<Option<Signal>>,
    /// See [`Signals::leave_when_waiting`].
    leaving: Option<Arc<Leaving>>,
    /// In data-out: a signal came, and what another one does was told.
    explained: Arc<AtomicBool>,
}

/// Signals that nobody has read yet, but those of children.
#[derive(Debug)]
pub(super) struct Unread {
    fd: OwnedFd,
}

impl Unread {
    /// Looks for signals that a [`Signals`] watches.
    pub(super) fn watch() -> io::Result<Unread> {
        let mut set = watched_set();
        // SAFETY: `set` is initialised, and the number is valid.
        unsafe { libc::sigdelset(&mut set, Signal::CHILD.as_raw()) };
        Ok(Unread { fd: descriptor(&set)? })
    }

    /// Waits for one, at most `limit`. It stays unread.
    pub(super) fn is_there(&self, limit: Duration) -> io::Result<bool> {
        is_readable(&self.fd, limit)
    }

    /// Reads one, if it is there.
    pub(super) fn take(&self) -> io::Result<Option<Signal>> {
        read(&self.fd)
    }
}

/// True if the process was started with this signal ignored.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: a null action only asks; `action` is written by the kernel, or stays zeroed.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal.as_raw(), std::ptr::null(), &mut action);
        action
    };
    action.sa_sigaction == libc::SIG_IGN
}

fn watched_set() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set that it is given; sigaddset gets valid numbers.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in WATCHED {
            if signal == Signal::CHILD || !is_ignored(signal) {
                libc::sigaddset(&mut set, signal.as_raw());
            }
        }
        set
    }
}

/// A descriptor that these signals are read from while they are blocked.
fn descriptor(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised, -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits at most `limit` for something to read; an interruption ends the wait.
fn is_readable(fd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: limit.as_secs().min(1 << 30) as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// The next signal that such a descriptor has.
fn read(fd: &OwnedFd) -> io::Result<Option<Signal>> {
    let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let size = std::mem::size_of_val(&info);
    // SAFETY: the buffer is as large as the size that is given.
    let got = unsafe { libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    if got as usize != size {
        return Ok(None);
    }
    // SAFETY: a signalfd gives whole records, and one of full size was read.
    let number = unsafe { info.assume_init() }.ssi_signo as i32;
    Ok(WATCHED.into_iter().find(|signal| signal.as_raw() == number))
}

impl Signals {
    /// Starts watching.
    ///
    /// # Errors
    /// What the kernel says if there are no more descriptors.
    pub fn watch() -> io::Result<Signals> {
        let set = watched_set();
        // SAFETY: `set` is initialised; the old mask is not asked for.
        let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        let explained = Arc::new(AtomicBool::new(false));
        Ok(Signals { fd: descriptor(&set)?, held: Cell::new(None), leaving: None, explained })
    }

    /// From now on a signal that no step acts on, because a call waits, ends the process: it says that the job in `dir` is left,
    /// and how to go on with it.
    ///
    /// # Errors
    /// If there is no descriptor or thread for it.
    pub(super) fn leave_when_waiting(
        &mut self,
        record: &JobRecord,
        dir: &Path,
        called: &str,
    ) -> io::Result<()> {
        self.leave_as(Leaving::of(record, dir, called))
    }

    /// The same for data-out of a `forebay run`: the first such signal is told what a second one does, and only that one ends the
    /// process. Until [`Signals::no_longer_leave`].
    ///
    /// # Errors
    /// As [`Signals::leave_when_waiting`].
    pub(super) fn leave_on_second(
        &mut self,
        record: &JobRecord,
        dir: &Path,
        called: &str,
    ) -> io::Result<()> {
        let leaving = Leaving::of(record, dir, called);
        self.leave_as(leaving.on_second(Arc::clone(&self.explained)))
    }

    fn leave_as(&mut self, leaving: Leaving) -> io::Result<()> {
        let leaving = Arc::new(leaving);
        leaving::watch(&leaving)?;
        self.leaving = Some(leaving);
        Ok(())
    }

    /// From now on no signal ends the process.
    pub(super) fn no_longer_leave(&mut self) {
        self.leaving = None;
    }

    /// True once: the signal that was just read is the first of data-out, and is to be explained.
    pub(super) fn is_first(&self) -> bool {
        !self.explained.swap(true, Ordering::Relaxed)
    }

    /// Acts on a signal that a step has read while it waits for who does not answer, as on one that nobody has read; false if
    /// signals are not to end the process.
    pub(super) fn while_silent(&self, signal: Signal) -> bool {
        let Some(leaving) = &self.leaving else { return false };
        leaving.waiting(signal);
        true
    }

    /// Takes what has come and nobody has read: at the end of a job there is nothing left that it could stop.
    pub(super) fn forget_unread(&self) {
        while matches!(read(&self.fd), Ok(Some(_))) {}
    }

    /// True if this signal is to end the process ([`Signals::leave_when_waiting`]).
    pub(super) fn may_leave(&self) -> bool {
        self.leaving.is_some()
    }

    /// Ends the process if signals are to do so; else nothing.
    pub(super) fn leave(&self, signal: Signal) {
        if let Some(leaving) = &self.leaving {
            leaving.leave(signal);
        }
    }

    /// Puts on record that the job is given up: then that is what is said of the job that is left.
    pub(super) fn while_giving_up(&self, put: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.leaving {
            Some(leaving) => leaving.giving_up(put),
            None => put(),
        }
    }

    /// Removes a job's files and its record, which no signal cuts short.
    pub(super) fn while_removing(&self, remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.leaving {
            Some(leaving) => leaving.ending(remove),
            None => remove(),
        }
    }

    /// Gives back a signal that came while it could not be acted on: the next wait gets it.
    pub fn hold(&self, signal: Signal) {
        self.held.set(Some(signal));
    }

    /// Waits for the next signal, at most `limit`.
    ///
    /// # Errors
    /// Those of poll(2) and read(2) other than interruption.
    pub fn wait(&self, limit: Duration) -> io::Result<Option<Signal>> {
        if let Some(signal) = self.held.take() {
            return Ok(Some(signal));
        }
        if !is_readable(&self.fd, limit)? {
            return Ok(None);
        }
        let signal = read(&self.fd)?;
        if let (Some(leaving), Some(_)) = (&self.leaving, signal.filter(|s| *s != Signal::CHILD)) {
            leaving.note_read();
        }
        Ok(signal)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let set = watched_set();
        // SAFETY: as in `watch`. What is still pending is delivered now.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    }
}

/// Makes a command start its program with no signal blocked.
pub fn with_clear_mask(command: &mut Command) -> &mut Command {
    let clear = || {
        // SAFETY: sigemptyset initialises the set before it is used.
        let rc = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, `clear` calls only async-signal-safe functions and takes
    // no memory: a raw OS error holds none.
    unsafe { command.pre_exec(clear) }
}

/// `SIGINT` and so on.
pub fn signal_name(signal: Signal) -> String {
    match signal {
        Signal::INT => "SIGINT".into(),
        Signal::TERM => "SIGTERM".into(),
        Signal::HUP => "SIGHUP".into(),
        Signal::QUIT => "SIGQUIT".into(),
        Signal::KILL => "SIGKILL".into(),
        Signal::SEGV => "SIGSEGV".into(),
        Signal::ABORT => "SIGABRT".into(),
        Signal::BUS => "SIGBUS".into(),
        other => format!("signal {}", other.as_raw()),
    }
}
