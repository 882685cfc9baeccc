//! How a mount ends, and what becomes of its buffer.
//!
//! Exactly one decision is made: by the first `forebay umount` that could unmount, else (plain
//! umount, signal) the buffer is kept. The main thread waits for the session's end, then closes
//! the server and keeps or destroys the store, then wakes those who asked, so that their answer
//! is the outcome.

use super::{Mount, busy};
use forebay_fuse::UnmountError;
use forebay_proto::control::ControlError;
use rustix::mount::{UnmountFlags, unmount};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a forced end waits for the kernel to let go before the process ends without it.
const FORCE_WAIT: Duration = Duration::from_secs(3);
/// How long a signalled mount that is in use waits for its users after it was detached.
const SIGNAL_WAIT: Duration = Duration::from_secs(10);
/// How long the process waits at its end for those who asked to have read their answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// What was decided, and what came of it.
#[derive(Default)]
pub struct Ending {
    /// Held while a request unmounts.
    turn: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Asked for by `forebay umount`: keep the buffer or not.
    keep: Option<bool>,
    /// Do not wait for the session beyond this.
    deadline: Option<Instant>,
    /// The session's threads have ended.
    session_over: bool,
    /// What was done with the buffer: kept or not. No request changes it any more.
    decided: Option<bool>,
    /// All is done.
    outcome: Option<Result<(), ControlError>>,
    /// Requesters that have not yet sent their answer.
    waiting: u32,
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Mount {
    /// `forebay umount`: unmounts and waits for the outcome. The caller sends the answer and
    /// then calls [`Mount::answered`], whatever this returned.
    pub fn end_by_request(&self, keep: bool, force: bool) -> Result<(), ControlError> {
        self.ending.change(|state| state.waiting += 1);
        self.unmount_once(keep, force)?;
        if force {
            self.ending.change(|state| state.deadline = Some(Instant::now() + FORCE_WAIT));
        }
        let mut state = self.ending.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone().and_then(|()| self.must_be_as_asked(state.decided, keep));
            }
            state = self.ending.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Unmounts, one request at a time; who comes after a success finds it done. What is to be
    /// done with the buffer is set before, since the session may end at once.
    fn unmount_once(&self, keep: bool, force: bool) -> Result<(), ControlError> {
        let _turn = self.ending.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ending.lock().keep.is_some() {
            return Ok(());
        }
        self.ending.change(|state| state.keep = Some(keep));
        let done = self.unmount(force);
        if done.is_err() {
            self.ending.change(|state| state.keep = None);
        }
        done
    }

    /// An unmount by somebody else may have come first, and it kept the buffer.
    fn must_be_as_asked(&self, kept: Option<bool>, keep: bool) -> Result<(), ControlError> {
        if kept == Some(keep) {
            return Ok(());
        }
        let why = match kept {
            Some(false) => "somebody destroyed the buffer at the same moment",
            _ => "somebody unmounted it at the same moment, and the buffer was kept",
        };
        Err(ControlError::new("unmount", Some(self.session.mount_point()), why)
            .hint("run the command again"))
    }

    /// Mounted, but not able to go on: unmounts; what was made for it goes, what was found stays.
    pub fn give_up(&self) {
        self.ending.change(|state| {
            state.keep = Some(!self.backing.created());
            state.deadline = Some(Instant::now() + FORCE_WAIT);
        });
        if let Err(error) = self.session.unmount(true) {
            tracing::error!(%error, "the mount could not be detached");
        }
    }

    /// The answer to [`Mount::end_by_request`] was sent, or could not be.
    pub fn answered(&self) {
        self.ending.change(|state| state.waiting -= 1);
    }

    /// A signal: unmount and keep. A mount in use is detached; its users get some time, at a
    /// second signal none.
    pub fn end_by_signal(&self, signal: i32) {
        tracing::info!(signal, "asked to end; the buffer is kept");
        let again = self.ending.lock().deadline.is_some();
        let wait = if again { Duration::ZERO } else { SIGNAL_WAIT };
        self.ending.change(|state| state.deadline = Some(Instant::now() + wait));
        if again {
            return;
        }
        match self.session.unmount(false) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => (),
            Err(error) => {
                tracing::warn!("{error}: {}", busy::describe(self.session.mount_point()));
                if let Err(error) = self.session.unmount(true) {
                    tracing::error!(%error, "the mount could not be detached");
                }
            }
        }
    }

    fn unmount(&self, force: bool) -> Result<(), ControlError> {
        let point = self.session.mount_point();
        if force {
            // Ends requests that hang, then detaches. Only root may; others just detach.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if unmount(point, flags).is_ok() {
                return Ok(());
            }
        }
        match self.session.unmount(force) {
            Ok(()) => Ok(()),
            // Somebody else was faster.
            Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(UnmountError::Busy(_)) => {
                Err(ControlError::new("unmount", Some(point), &busy::describe(point))
                    .errno(libc::EBUSY)
                    .hint(
                        "end what uses it and try again, or detach it with --force: its users then \
                         get errors",
                    ))
            }
            Err(error) => Err(ControlError::new("unmount", Some(point), &error.to_string())),
        }
    }
}

/// Waits for the end of the session, then keeps or destroys the buffer.
pub fn wait_and_finish(mount: &Mount) -> Result<(), ControlError> {
    let over = std::thread::scope(|scope| {
        scope.spawn(|| {
            mount.session.wait();
            mount.ending.change(|state| state.session_over = true);
        });
        let over = wait_for_session(mount);
        if !over {
            // The scope would wait for a session that others hold open: end here.
            let result = finish(mount, false);
            answer(mount, result.clone());
            std::process::exit(i32::from(result.is_err()));
        }
        over
    });
    let result = finish(mount, over);
    answer(mount, result.clone());
    result
}

/// True when the session is over, false when its deadline is.
fn wait_for_session(mount: &Mount) -> bool {
    let mut state = mount.ending.lock();
    loop {
        if state.session_over {
            return true;
        }
        let left =
            state.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        state = match left {
            Some(Duration::ZERO) => return false,
            Some(left) => {
                let waited = mount.ending.changed.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => mount.ending.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// Decides what becomes of the buffer and does it.
fn finish(mount: &Mount, session_over: bool) -> Result<(), ControlError> {
    let keep = {
        let mut state = mount.ending.lock();
        let keep = state.keep.unwrap_or(true);
        state.decided = Some(keep);
        keep
    };
    mount.backing.finish(keep, session_over)
}

/// Gives the outcome to those who asked and lets them send it.
fn answer(mount: &Mount, result: Result<(), ControlError>) {
    mount.ending.change(|state| state.outcome = Some(result));
    let state = mount.ending.lock();
    let done =
        mount.ending.changed.wait_timeout_while(state, ANSWER_WAIT, |state| state.waiting > 0);
    drop(done.unwrap_or_else(PoisonError::into_inner));
}
