//! Ctrl-C of a command that waits for a plan: it ends the command, not the plan, and the command says so.
//!
//! The thread that waits may be in a call to a server that does not answer. So another one waits for the signal, gives
//! the first a moment to end in good order, and else tells what is known and ends the process.
//! Callers: `stage`, `commit`, `stager`.

use crate::failure::{EXIT_FAILED, print_json, visible};
use crate::json;
use forebay_proto::PlanId;
use forebay_proto::control::ControlError;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// How long a command may take to end by itself after Ctrl-C: longer than it waits between two looks at a plan.
const GRACE: Duration = Duration::from_millis(500);

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Where the signal is told to the thread that waits for it; -1 as long as there is none.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// What is waited for; `None` if nothing is, and then Ctrl-C has nothing to end here.
static WAITS: Mutex<Option<Waits>> = Mutex::new(None);

/// What a command waits for.
#[derive(Clone)]
pub(super) struct Waits {
    /// Whose answers.
    pub who: String,
    /// How commands name the buffer.
    pub flags: String,
    /// Whether an error is told as JSON, too.
    pub json: bool,
    /// The plan, once its number is known.
    pub plan: Option<PlanId>,
    /// What is on the terminal.
    pub bar: Option<ProgressBar>,
}

/// As long as it lives Ctrl-C ends the command by words.
pub(super) struct Caught(());

impl Drop for Caught {
    fn drop(&mut self) {
        settle();
    }
}

/// Ctrl-C from now on only asks for the end of the wait; a second one ends the command at once.
pub(super) fn catch(waits: Waits) -> Caught {
    static FIRST: Once = Once::new();
    *WAITS.lock() = Some(waits);
    FIRST.call_once(|| {
        start_helper();
        take_signal();
    });
    Caught(())
}

/// Whether Ctrl-C came since [`catch`].
pub(super) fn is_interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// From here on this thread says what becomes of the plan.
pub(super) fn settle() {
    *WAITS.lock() = None;
}

/// What Ctrl-C leaves of a plan that is known.
pub(super) fn goes_on(plan: PlanId, flags: &str) -> String {
    format!(
        "forebay: plan {plan} goes on without this command. To follow it:\n  \
         forebay stage wait {plan} {flags}\nTo stop it:\n  \
         forebay stage cancel {plan} {flags}"
    )
}

/// Ctrl-C came before the server said that a plan was begun.
pub(super) fn not_known(who: &str, flags: &str) -> ControlError {
    let why = format!(
        "Ctrl-C came before {who} answered: whether the plan was begun is not known, and if so it goes on"
    );
    let hint = format!(
        "`forebay stage status {flags}` shows it when the server answers, `forebay stage cancel PLAN {flags}` stops it"
    );
    ControlError::new("start staging", None, &why).errno(libc::EINTR).hint(&hint)
}

/// Waits for the signal beside the command. Without it Ctrl-C is seen at the next answer only.
fn start_helper() {
    let Ok((mut woken, wake)) = UnixStream::pair() else { return };
    // The signal's handler has it for as long as the process lives.
    WAKE.store(wake.into_raw_fd(), Relaxed);
    let helper = move || {
        if woken.read_exact(&mut [0]).is_ok() {
            std::thread::sleep(GRACE);
            end();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("interrupt".into()).spawn(helper) {
        tracing::debug!(%error, "no thread waits for Ctrl-C");
    }
}

fn take_signal() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Relaxed);
        // SAFETY: write may be called in a handler; it writes one byte that lives. Room for it is there: it is the first.
        unsafe { libc::write(WAKE.load(Relaxed), [1_u8].as_ptr().cast(), 1) };
    }
    // SAFETY: the handler only does what it may; the action is a valid, zeroed struct with its handler and flags set;
    // SA_RESETHAND gives the second signal its default.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
    }
}

/// Ends the process, unless the command has settled by itself. The lock is held until then, so only one of the two speaks.
fn end() {
    let waits = WAITS.lock();
    let Some(waits) = &*waits else { return };
    if let Some(bar) = &waits.bar {
        bar.finish_and_clear();
    }
    match waits.plan {
        Some(plan) => eprintln!("{}", goes_on(plan, &waits.flags)),
        None => {
            let error = not_known(&waits.who, &waits.flags);
            eprintln!("forebay: {}", visible(&error.to_string()));
            if waits.json {
                // Nobody may be there to read it.
                let _ = print_json(&json::error(&error));
            }
        }
    }
    std::process::exit(EXIT_FAILED.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_with_how_to_see_and_to_end_it() {
        let told = not_known("the server n1:7070", "--buffer b: --server n1:7070").to_string();
        for part in [
            "start staging: Ctrl-C came before the server n1:7070 answered",
            "whether the plan was begun is not known",
            "`forebay stage status --buffer b: --server n1:7070`",
            "`forebay stage cancel PLAN --buffer b: --server n1:7070`",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
