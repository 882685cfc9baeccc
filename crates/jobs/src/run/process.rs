//! The script as a process: started by its interpreter in a process group of its own, given the
//! terminal if there is one, watched, and ended with everything that it left.
//!
//! Signals that reach the runner go to the whole group; after [`GRACE`] the group is killed.
//! Called by [`super`] in the steps run and post-run.

use super::console::Console;
use super::record::{ProcessRef, ScriptExit};
use super::signals::{Signals, signal_name, with_clear_mask};
use super::step::Step;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time that the script has to end after a signal was passed to it, before it is killed.
pub const GRACE: Duration = Duration::from_secs(30);

/// Time that processes have which outlive the script.
const LEFT_OVER_GRACE: Duration = Duration::from_secs(5);

/// Longest wait between two looks at a process that is not our child.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The script, started.
pub struct Script {
    /// Its process, which leads its group.
    pub process: ProcessRef,
    /// We are its parent, and get its exit code.
    is_child: bool,
}

/// What happened until the script ended.
#[derive(Debug)]
pub struct Watched {
    /// How it ended.
    pub exit: ScriptExit,
    /// The signal that was passed to it first, if any.
    pub interrupted_by: Option<Signal>,
}

impl Script {
    /// Starts the script by its `#!` line, or by `/bin/sh`. The kernel would do the same with
    /// an executable file; a batch script need not be executable.
    ///
    /// # Errors
    /// Those of starting the interpreter.
    pub fn start(
        path: &Path,
        interpreter: Option<&str>,
        args: &[OsString],
        environment: &[(&str, OsString)],
    ) -> io::Result<Script> {
        let line = interpreter.unwrap_or("/bin/sh");
        // As execve(2): the rest of the line is one argument.
        let (program, argument) = match line.split_once([' ', '\t']) {
            Some((program, argument)) => (program, Some(argument.trim())),
            None => (line, None),
        };
        let mut command = Command::new(program);
        command.args(argument.filter(|text| !text.is_empty()).map(OsStr::new));
        // A shell looks for a name without a slash in $PATH.
        let has_slash = path.as_os_str().as_encoded_bytes().contains(&b'/');
        command.arg(if has_slash { path.to_path_buf() } else { Path::new(".").join(path) });
        command.args(args);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let child = with_clear_mask(command.process_group(0)).spawn()?;
        let pid = child.id() as i32;
        // A child that ended at once is still there, as a zombie, until it is waited for.
        let process = ProcessRef::of(pid).unwrap_or(ProcessRef { pid, start_ticks: 0 });
        Ok(Script { process, is_child: true })
    }

    /// A script that another runner started.
    pub fn adopt(process: ProcessRef) -> Script {
        Script { process, is_child: false }
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.process.pid)
    }

    /// Sends a signal to the script's whole group.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // ESRCH: it has ended, which is what the next look finds.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// Waits until the script has ended, passing signals on.
    ///
    /// # Errors
    /// Those of waiting; the script goes on then.
    pub fn watch(&self, signals: &Signals, console: &Console) -> io::Result<Watched> {
        let terminal = Terminal::give_to(self.pid().filter(|_| self.is_child));
        let mut interrupted_by = None;
        let mut kill_at: Option<Instant> = None;
        loop {
            if let Some(exit) = self.look(terminal.as_ref())? {
                return Ok(Watched { exit, interrupted_by });
            }
            let wait = if self.is_child { Duration::from_secs(1) } else { LOOK_INTERVAL };
            let left = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            match signals.wait(left.map_or(wait, |left| left.min(wait)))? {
                None | Some(Signal::CHILD) => {}
                Some(signal) if interrupted_by.is_none() => {
                    interrupted_by = Some(signal);
                    kill_at = Some(Instant::now() + GRACE);
                    self.signal(signal);
                    let (name, grace) = (signal_name(signal), GRACE.as_secs());
                    console.step(
                        Step::Run,
                        &format!(
                            "{name} passed to the job; it has {grace} s to end (once more to kill \
                             it now); its results are staged out then"
                        ),
                    );
                }
                Some(_) => kill_at = Some(Instant::now()),
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                console.step(Step::Run, "the job is killed");
                self.signal(Signal::KILL);
                kill_at = None;
            }
        }
    }

    /// Looks whether the script has ended.
    fn look(&self, terminal: Option<&Terminal>) -> io::Result<Option<ScriptExit>> {
        if !self.is_child {
            return Ok((!self.process.is_alive()).then_some(ScriptExit::Unknown));
        }
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let Some((_, status)) = rustix::process::waitpid(self.pid(), options)? else {
            return Ok(None);
        };
        if status.stopped() {
            self.suspend(terminal);
            return Ok(None);
        }
        Ok(exit_of(status))
    }

    /// The script was stopped from the terminal (Ctrl-Z): stop too, so that the shell has the
    /// terminal, and let the script go on when we do.
    fn suspend(&self, terminal: Option<&Terminal>) {
        let Some(terminal) = terminal else { return };
        terminal.take_back();
        // Only ourselves: the group that started us may hold other programs.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        terminal.give(self.pid());
        self.signal(Signal::CONT);
    }

    /// Ends what the script left running in its group: it would keep the mount busy.
    /// True if there was something.
    ///
    /// # Errors
    /// Those of waiting for signals.
    pub fn end_left_over(&self, signals: &Signals) -> io::Result<bool> {
        if !self.group_exists() {
            return Ok(false);
        }
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        let kill_at = Instant::now() + LEFT_OVER_GRACE;
        while self.group_exists() && Instant::now() < kill_at {
            signals.wait(Duration::from_millis(20))?;
        }
        if self.group_exists() {
            self.signal(Signal::KILL);
            let until = Instant::now() + LEFT_OVER_GRACE;
            while self.group_exists() && Instant::now() < until {
                signals.wait(Duration::from_millis(20))?;
            }
        }
        Ok(true)
    }

    fn group_exists(&self) -> bool {
        // While a member of our group lives its number is not given again; a process that has
        // it and is not ours says that the group is not ours either.
        let leader = ProcessRef::of(self.process.pid);
        if leader.is_some_and(|leader| leader != self.process) {
            return false;
        }
        self.pid().is_some_and(|pid| rustix::process::test_kill_process_group(pid).is_ok())
    }
}

fn exit_of(status: WaitStatus) -> Option<ScriptExit> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(ScriptExit::Code(code)),
        (None, Some(signal)) => Some(ScriptExit::Signal(signal)),
        (None, None) => None,
    }
}

/// The controlling terminal, lent to the script's group so that it can read from it.
/// Dropped, it is ours again.
struct Terminal;

impl Terminal {
    /// Lends it, if there is one and we have it.
    fn give_to(pid: Option<Pid>) -> Option<Terminal> {
        let stdin = std::io::stdin();
        let ours = stdin.is_terminal()
            && rustix::termios::tcgetpgrp(&stdin).ok() == Some(rustix::process::getpgrp());
        if !ours {
            return None;
        }
        // Taking the terminal back from the background would stop us otherwise.
        // SAFETY: SIG_IGN is a valid disposition, and no handler of this signal exists.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
        let terminal = Terminal;
        terminal.give(pid);
        // It may have tried to read before it had the terminal, and been stopped.
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, Signal::CONT);
        }
        Some(terminal)
    }

    fn give(&self, pid: Option<Pid>) {
        if let Some(pid) = pid {
            // It fails if the script has ended already: nobody needs it then.
            let _ = rustix::termios::tcsetpgrp(std::io::stdin(), pid);
        }
    }

    fn take_back(&self) {
        let _ = rustix::termios::tcsetpgrp(std::io::stdin(), rustix::process::getpgrp());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
