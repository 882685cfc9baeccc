//! A signal that comes while `forebay run --resume` or `--discard` waits for a server, a mount or a command: the command ends, says
//! that the job is left, and how to go on. In data-out of a `forebay run` the first one says what another one does, which is that.
//!
//! Every step is on record before it is taken, so that such a command may end at any moment. Calls that wait for a server
//! cannot be cut short: another thread looks for signals that nobody reads, and ends the process. Those that are read belong
//! to the step (a script, a copy), which acts on them.
//!
//! Invariant: never between the removal of a job's files and that of its record ([`Leaving::ending`]). Called by
//! [`super::signals`].

use super::console::Console;
use super::record::{JobRecord, RECORD_NAME};
use super::signals::{Unread, signal_name};
use super::words::shell_word;
use rustix::process::Signal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::time::Duration;

/// A signal that nobody has read for so long came while a call waits: steps that act on signals read them at once.
const UNREAD_MAX: Duration = Duration::from_millis(500);
/// Longest wait before the thread looks whether it is still needed.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// As a shell has it: this and the number of the signal.
const EXIT_SIGNALLED: i32 = 128;

/// How far the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing of it is given up.
    Kept,
    /// It is on record that it is given up.
    GivenUp,
    /// The record is gone.
    Ended,
}

/// What is said of a job that is left.
#[derive(Debug)]
pub(super) struct Leaving {
    job: String,
    /// How the user called this executable.
    called: String,
    /// The job's record, as a shell takes it.
    record: String,
    phase: Mutex<Phase>,
    /// See [`Leaving::on_second`].
    explained: Option<Arc<AtomicBool>>,
    /// Signals that steps have read.
    read: AtomicU64,
}

impl Leaving {
    /// Of a job in `dir`; `called` is what the user called this executable.
    pub(super) fn of(record: &JobRecord, dir: &Path, called: &str) -> Leaving {
        Leaving {
            job: record.id.clone(),
            called: called.to_string(),
            record: shell_word(&dir.join(RECORD_NAME)),
            phase: Mutex::new(match record.given_up {
                Some(_) => Phase::GivenUp,
                None => Phase::Kept,
            }),
            explained: None,
            read: AtomicU64::new(0),
        }
    }

    /// The same, where the first signal is only told what a second one does. `explained`: whether that was done, by whoever read it.
    pub(super) fn on_second(self, explained: Arc<AtomicBool>) -> Leaving {
        Leaving { explained: Some(explained), ..self }
    }

    /// A step has read a signal: what is unread now came after it.
    pub(super) fn note_read(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// A signal came while a call waits, or while a step waits for who does not answer: the process ends, unless that is to be
    /// explained first.
    pub(super) fn waiting(&self, signal: Signal) {
        match &self.explained {
            Some(explained) if !explained.swap(true, Ordering::Relaxed) => {
                let (name, text) = (signal_name(signal), self.explanation());
                Console::new().say(&format!("forebay: {}: {name}: {text}", self.job));
            }
            _ => self.leave(signal),
        }
    }

    fn explanation(&self) -> String {
        let Leaving { called, record, .. } = self;
        format!(
            "the results are to be copied to the PFS, and no answer of a server or mount has come for that yet; once more leaves the \
             job as it is, with its buffer and its record. To finish it then:\n  {called} run --resume {record}\nTo give it \
             up:\n  {called} run --discard {record}"
        )
    }

    /// Puts on record that the job is given up: from then on there is nothing to finish. What is said of it is what its record says.
    pub(super) fn giving_up<T, E>(&self, put: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.uncut(Phase::GivenUp, put)
    }

    /// Does what must not be cut short: removes the record and all before it. No signal ends the process meanwhile, nor after it,
    /// if it went well.
    pub(super) fn ending<T, E>(&self, remove: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.uncut(Phase::Ended, remove)
    }

    /// Does what leads to the next phase; no signal ends the process meanwhile.
    fn uncut<T, E>(&self, next: Phase, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work();
        if done.is_ok() {
            *phase = next;
        }
        done
    }

    /// Says that the job is left and ends the process. Returns only if the record is gone: then this command ends by itself.
    pub(super) fn leave(&self, signal: Signal) {
        let name = signal_name(signal);
        let say =
            |text: &str| Console::new().say(&format!("forebay: {}: {name}: {text}", self.job));
        // Held until the process is gone.
        let phase = match self.phase.try_lock() {
            Ok(phase) => phase,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                say("the job's record is being written or removed, which is not cut short");
                self.phase.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if *phase == Phase::Ended {
            return;
        }
        say(&self.text(*phase));
        std::process::exit(EXIT_SIGNALLED + signal.as_raw());
    }

    fn text(&self, phase: Phase) -> String {
        let Leaving { called, record, .. } = self;
        let discard = format!("{called} run --discard {record}");
        match phase {
            Phase::Kept => format!(
                "the job is left as it is, with its record; what servers and mounts were asked for goes on there. To finish the job:\n  \
                 {called} run --resume {record}\nTo give it up:\n  {discard}"
            ),
            Phase::GivenUp | Phase::Ended => format!(
                "the job is given up, but not all of it is removed; its record is left. To remove the rest:\n  {discard}"
            ),
        }
    }
}

/// Starts the thread that looks for unread signals, as long as `leaving` lives.
///
/// # Errors
/// If there is no descriptor or thread for it.
pub(super) fn watch(leaving: &Arc<Leaving>) -> std::io::Result<()> {
    let unread = Unread::watch()?;
    let leaving = Arc::downgrade(leaving);
    let look = move || leave_on_unread(&unread, &leaving);
    std::thread::Builder::new().name("leaving".into()).spawn(look).map(drop)
}

fn leave_on_unread(unread: &Unread, leaving: &Weak<Leaving>) {
    let read = || leaving.upgrade().map(|leaving| leaving.read.load(Ordering::Relaxed));
    while let Some(before) = read() {
        match unread.is_there(LOOK_INTERVAL) {
            Ok(false) => continue,
            Ok(true) => std::thread::sleep(UNREAD_MAX),
            Err(error) => return no_longer(&error),
        }
        let Some(leaving) = leaving.upgrade() else { return };
        if leaving.read.load(Ordering::Relaxed) != before {
            // A step reads them. What is there now may have come just now.
            continue;
        }
        match unread.take() {
            Ok(Some(signal)) => leaving.waiting(signal),
            Ok(None) => {}
            Err(error) => return no_longer(&error),
        }
    }
}

fn no_longer(error: &std::io::Error) {
    let text = format!("forebay: signals are not looked for while a call waits: {error}");
    Console::new().say(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving() -> Leaving {
        Leaving {
            job: "job-1".into(),
            called: "forebay".into(),
            record: "/w/job-1/job.json".into(),
            phase: Mutex::new(Phase::Kept),
            explained: None,
            read: AtomicU64::new(0),
        }
    }

    #[test]
    fn a_job_that_is_left_is_told_with_the_commands_that_go_on() {
        let leaving = leaving();
        let kept = leaving.text(Phase::Kept);
        for said in ["left as it is", "forebay run --resume /w/job-1/job.json", "run --discard /w"]
        {
            assert!(kept.contains(said), "{kept}");
        }
        let given_up = leaving.text(Phase::GivenUp);
        assert!(given_up.ends_with("\n  forebay run --discard /w/job-1/job.json"), "{given_up}");
        assert!(!given_up.contains("--resume"), "{given_up}");
    }

    #[test]
    fn a_job_whose_record_is_gone_is_not_left() {
        let leaving = leaving();
        assert_eq!(leaving.giving_up(|| Err::<(), _>("no room")), Err("no room"));
        assert_eq!(*leaving.phase.lock().unwrap(), Phase::Kept);
        assert_eq!(leaving.giving_up(|| Ok::<_, ()>(())), Ok(()));
        assert_eq!(leaving.ending(|| Err::<(), _>("not empty")), Err("not empty"));
        assert_eq!(*leaving.phase.lock().unwrap(), Phase::GivenUp);
        assert_eq!(leaving.ending(|| Ok::<_, ()>(())), Ok(()));
        // It would end this process otherwise.
        leaving.leave(Signal::INT);
    }

    #[test]
    fn the_first_signal_in_data_out_is_told_what_the_second_does() {
        let explained = Arc::new(AtomicBool::new(false));
        let leaving = leaving().on_second(Arc::clone(&explained));
        let text = leaving.explanation();
        for said in
            ["once more leaves the job as it is", "run --resume /w/job-1", "run --discard /w"]
        {
            assert!(text.contains(said), "{text}");
        }
        // It would end this process if it were the second.
        leaving.waiting(Signal::TERM);
        assert!(explained.load(Ordering::Relaxed));
    }
}
