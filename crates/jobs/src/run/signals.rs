//! Signals as events: while a [`Signals`] lives, those that would end the command are read from
//! a descriptor instead, so that every wait of a step can end by one and no step is cut short.
//!
//! A signal that is ignored when the command starts (nohup, a shell's background) stays ignored, by
//! us and by the script.
//!
//! Invariant: made before the process has other threads (the mask is inherited by them). Children
//! inherit it as well, and would be deaf: each is started through [`with_clear_mask`].

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// What is read instead of being delivered.
const WATCHED: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::CHILD];

/// The watched signals of this process.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    /// See [`Signals::hold`].
    held: Cell<Option<Signal>>,
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
        // SAFETY: `set` is initialised, -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave this descriptor to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, held: Cell::new(None) })
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
        let timeout = Timespec {
            tv_sec: limit.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.read()
    }

    fn read(&self) -> io::Result<Option<Signal>> {
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = std::mem::size_of_val(&info);
        // SAFETY: the buffer is as large as the size that is given.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
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
