//! Starts the ranks as processes and watches over them.
//!
//! Invariants: ranks are forked while this process has one thread; they end with it (PR_SET_PDEATHSIG), and by
//! [`Team::finish`] or the drop at the latest. A rank that ends early stops the run, and its reason is kept.
//! SIGINT and SIGTERM stop the run in good order; ranks themselves ignore SIGINT, which a terminal sends
//! to all of them.
//! Callers: `ior`, `replay`.

use crate::shared::Shared;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How long ranks may take to end after a stop before they are killed. A rank in a call on a file system that
/// hangs cannot end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often the coordinator looks after its ranks while it waits for their end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The signal that asked for an end; 0 for none.
static SIGNALLED: AtomicI32 = AtomicI32::new(0);

/// The processes.
pub struct Team<'a> {
    shared: &'a Shared,
    members: Vec<Member>,
    /// Its other end is held by the members: it ends when the last of them does.
    alive: OwnedFd,
    signals: Signals,
}

struct Member {
    pid: libc::pid_t,
    /// How it ended: None while it runs.
    ended: Option<Ended>,
}

#[derive(Clone, Copy)]
enum Ended {
    Well,
    Badly { status: i32 },
}

const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

impl<'a> Team<'a> {
    /// Forks so many processes; each runs `work` with its number and ends. This process must have one thread.
    pub fn start(
        shared: &'a Shared,
        processes: u32,
        work: impl Fn(u32) -> Result<(), String>,
    ) -> io::Result<Team<'a>> {
        let signals = Signals::catch();
        let (alive, _held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut team = Team { shared, members: Vec::new(), alive, signals };
        let parent = std::process::id();
        for rank in 0..processes {
            // SAFETY: the process has one thread, so the child may run any code.
            match unsafe { libc::fork() } {
                -1 => {
                    let error = io::Error::last_os_error();
                    shared.stop();
                    return Err(error);
                }
                0 => {
                    // `_held` stays open in it until it ends; here it is closed with the end of this function.
                    follow_parent(parent);
                    let outcome =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(rank)));
                    let failed = match outcome {
                        Ok(Ok(())) => false,
                        Ok(Err(message)) => {
                            shared.slot(rank).fail(&message);
                            true
                        }
                        Err(_) => {
                            shared.slot(rank).fail("the rank's code panicked");
                            true
                        }
                    };
                    if failed {
                        shared.stop();
                    }
                    // SAFETY: ends the child without running the parent's destructors.
                    unsafe { libc::_exit(i32::from(failed)) }
                }
                pid => team.members.push(Member { pid, ended: None }),
            }
        }
        Ok(team)
    }

    /// To be called while the coordinator waits: stops the run if a rank has ended too early or a signal came.
    pub fn watch(&mut self) {
        self.reap();
        let failed =
            self.members.iter().any(|member| matches!(member.ended, Some(Ended::Badly { .. })));
        if failed {
            self.shared.stop();
        }
        self.signals.watch(self.shared);
    }

    fn reap(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.ended.is_none()) {
            let mut status = 0;
            // SAFETY: `status` is valid; the child is ours and not yet waited for.
            let answer = unsafe { libc::waitpid(member.pid, &mut status, libc::WNOHANG) };
            if answer == member.pid {
                let well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
                member.ended = Some(if well { Ended::Well } else { Ended::Badly { status } });
            }
        }
    }

    /// Waits for all ranks to end, and says why the run ended early if it did.
    pub fn finish(self) -> Result<(), String> {
        self.finish_with(|| {})
    }

    /// The same, with something to do now and then while it waits.
    pub fn finish_with(mut self, idle: impl FnMut()) -> Result<(), String> {
        self.wait_for_all(idle);
        match self.reason() {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// Waits for all, looking after them now and then; `idle` runs each time.
    fn wait_for_all(&mut self, mut idle: impl FnMut()) {
        let mut stopped_since = None;
        loop {
            self.watch();
            idle();
            if self.members.iter().all(|member| member.ended.is_some()) {
                return;
            }
            if self.shared.is_stopped() {
                let since = *stopped_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    self.kill();
                }
            }
            let mut ends = [PollFd::new(&self.alive, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
            let hung_up = matches!(rustix::event::poll(&mut ends, Some(&timeout)), Ok(1));
            if hung_up {
                // All have closed it, so all are about to be gone.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    fn kill(&self) {
        for member in self.members.iter().filter(|member| member.ended.is_none()) {
            // SAFETY: a child of ours that has not been waited for, so the number is its own.
            unsafe { libc::kill(member.pid, libc::SIGKILL) };
        }
    }

    /// Why the run ended early: a rank's own words first, then how a rank died, then a signal.
    fn reason(&self) -> Option<String> {
        let said = why_ranks_failed(self.shared);
        let died = || {
            self.members.iter().enumerate().find_map(|(rank, member)| match member.ended {
                Some(Ended::Badly { status }) if libc::WIFSIGNALED(status) => {
                    Some(format!("rank {rank} was killed by signal {}", libc::WTERMSIG(status)))
                }
                Some(Ended::Badly { status }) => {
                    Some(format!("rank {rank} ended with {}", libc::WEXITSTATUS(status)))
                }
                _ => None,
            })
        };
        said.or_else(|| self.signals.reason()).or_else(died)
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        if self.members.iter().any(|member| member.ended.is_none()) {
            self.shared.stop();
            self.wait_for_all(|| {});
        }
    }
}

/// In a rank: ends with the coordinator, and leaves a terminal's SIGINT to it.
fn follow_parent(parent: u32) {
    // SAFETY: both calls change this process only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        // The coordinator may have ended before the line above.
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
    }
}

/// What the first rank said that failed.
pub(crate) fn why_ranks_failed(shared: &Shared) -> Option<String> {
    (0..shared.ranks()).find_map(|rank| {
        shared.slot(rank).failure().map(|failure| format!("rank {rank}: {failure}"))
    })
}

/// SIGINT and SIGTERM stop the run in good order, until the drop.
pub(crate) struct Signals([libc::sigaction; 2]);

impl Signals {
    pub(crate) fn catch() -> Signals {
        SIGNALLED.store(0, Ordering::SeqCst);
        Signals(catch_signals())
    }

    /// To be called while the coordinator waits.
    pub(crate) fn watch(&self, shared: &Shared) {
        if SIGNALLED.load(Ordering::SeqCst) != 0 {
            shared.stop();
        }
    }

    /// The signal that came, in words.
    pub(crate) fn reason(&self) -> Option<String> {
        match SIGNALLED.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(format!("stopped by signal {signal}")),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.iter().zip(&self.0) {
            // SAFETY: puts back the action that was in force before.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}

extern "C" fn note_signal(signal: libc::c_int) {
    SIGNALLED.store(signal, Ordering::SeqCst);
}

fn catch_signals() -> [libc::sigaction; 2] {
    SIGNALS.map(|signal| {
        // SAFETY: the handler only stores to an atomic; both structures are valid, zeroed is a valid start.
        unsafe {
            let (mut action, mut before): (libc::sigaction, libc::sigaction) =
                (std::mem::zeroed(), std::mem::zeroed());
            action.sa_sigaction = note_signal as *const () as usize;
            libc::sigaction(signal, &raw const action, &raw mut before);
            before
        }
    })
}
