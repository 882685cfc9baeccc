//! Looks at other processes in /proc that nobody can hold up.
//!
//! A process that begins a program closes its copies of files first, and each close may be a request to a mount that does not
//! answer. For that time it has a lock (`exec_update_lock`), which the kernel takes for these files of /proc/PID, and on
//! Linux 7.1, 6.18.40 or so and later for more than before: `stat`, `wchan`, `ns/*`, `exe`, `cwd`, `root`, where `fd/N` leads
//! to, `map_files`, `maps`, `environ`, `syscall`, `io`. Whoever reads one of them waits as long. `status`, `comm`,
//! `mountinfo` and the list of `fd` do not wait. So what can be known by those is asked there; the others are looked at here,
//! by a thread that is left behind if it does not come back. Only the end of the process, or of the other one's wait, ends it.
//!
//! Invariant: one such thread at most for each process that holds looks up, whoever asks and however often.
//! Called by commands and mounts that say who uses a buffer, and by the runner of jobs.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a look at one process: it takes microseconds, of one with a million files a second.
pub const LOOK_MAX: Duration = Duration::from_secs(2);
/// Longest wait for looks at all processes that one question is about, if some of them hold looks up.
pub const ALL_LOOKS_MAX: Duration = Duration::from_secs(5);

/// Processes at which a look has not come back.
static HELD_UP: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn held_up() -> MutexGuard<'static, BTreeSet<u32>> {
    HELD_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The looks of one question.
#[derive(Debug, Default)]
pub struct Looks {
    /// What was waited for looks that did not come back.
    waited: Duration,
    unseen: Vec<u32>,
}

impl Looks {
    /// What `look` finds out about a process; `None` if that could not be looked at.
    pub fn at<T: Send + 'static>(
        &mut self,
        pid: u32,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let longest = LOOK_MAX.min(ALL_LOOKS_MAX.saturating_sub(self.waited));
        let begun = Instant::now();
        let found = look_within(pid, longest, look);
        if found.is_none() {
            self.waited += begun.elapsed();
            self.unseen.push(pid);
        }
        found
    }

    /// Processes that could not be looked at.
    pub fn unseen(&self) -> &[u32] {
        &self.unseen
    }
}

/// The same for one process alone.
pub fn at<T: Send + 'static>(pid: u32, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    look_within(pid, LOOK_MAX, look)
}

fn look_within<T: Send + 'static>(
    pid: u32,
    longest: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if longest.is_zero() || held_up().contains(&pid) {
        return None;
    }
    let (tell, told) = sync_channel(1);
    let run = move || {
        // Nobody may wait for it any more.
        let _ = tell.send(look());
        held_up().remove(&pid);
    };
    std::thread::Builder::new().name("look".into()).spawn(run).ok()?;
    match told.recv_timeout(longest) {
        Ok(found) => Some(found),
        // It panicked.
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            let mut held_up = held_up();
            // The thread tells first, and takes itself off afterwards.
            match told.try_recv() {
                Ok(found) => Some(found),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    held_up.insert(pid);
                    None
                }
            }
        }
    }
}

/// True if a process is gone, or on its way: its memory is gone, or it was killed. The kernel gives its files back after its
/// memory.
pub fn is_ending(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => shows_an_end(&status),
        Err(_) => true,
    }
}

/// The same of the text of /proc/PID/status of a process that is no part of the kernel (proc(5)).
fn shows_an_end(status: &str) -> bool {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_killed = ["SigPnd:", "ShdPnd:"].iter().any(|name| {
        let pending = value(name).and_then(|bits| u64::from_str_radix(bits, 16).ok());
        pending.is_some_and(|bits| bits & (1 << (libc::SIGKILL - 1)) != 0)
    });
    let is_dead = value("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    is_dead || is_killed || value("VmSize:").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A number that no process has, another one for each test.
    const NOBODY: u32 = u32::MAX - 10;

    #[test]
    fn a_look_that_does_not_come_back_is_given_up_and_not_begun_again() {
        let pid = NOBODY;
        let (let_go, stays) = channel::<()>();
        let mut looks = Looks::default();
        let begun = Instant::now();
        assert_eq!(looks.at(pid, move || stays.recv().is_err()), None);
        assert!(begun.elapsed() >= LOOK_MAX);
        assert_eq!(looks.at(NOBODY + 1, || 7), Some(7), "others are looked at all the same");
        // While it is held up nobody begins another one, nor waits.
        assert_eq!(looks.at(pid, || 8), None);
        assert_eq!(at(pid, || 9), None);
        assert_eq!(looks.unseen(), [pid, pid]);
        drop(let_go);
        let until = Instant::now() + Duration::from_secs(60);
        while at(pid, || ()).is_none() {
            assert!(Instant::now() < until, "it came back and is not looked at again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn looks_for_one_question_have_an_end_together() {
        let mut looks = Looks { waited: ALL_LOOKS_MAX, unseen: Vec::new() };
        assert_eq!(looks.at(NOBODY + 2, || 2), None, "no time is left");
        assert_eq!(looks.unseen(), [NOBODY + 2]);
        // A look that comes back costs nothing of it.
        let mut looks = Looks::default();
        assert_eq!(looks.at(NOBODY + 3, || 3), Some(3));
        assert_eq!(looks.waited, Duration::ZERO);
    }

    #[test]
    fn an_end_shows_in_the_status() {
        let runs = "Name:\tsh\nState:\tS (sleeping)\nVmSize:\t  2576 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";
        assert!(!shows_an_end(runs));
        assert!(shows_an_end(&runs.replace("S (sleeping)", "Z (zombie)")));
        assert!(shows_an_end(&runs.replace("VmSize:\t  2576 kB\n", "")), "its memory is gone");
        assert!(shows_an_end(&runs.replacen("0000000000000000", "0000000000000100", 1)));
        assert!(shows_an_end(
            &runs.replace("ShdPnd:\t0000000000000000", "ShdPnd:\t0000000000000100")
        ));
        assert!(
            !shows_an_end(&runs.replacen("0000000000000000", "0000000000004000", 1)),
            "SIGTERM"
        );
        assert!(!is_ending(std::process::id()));
        assert!(is_ending(NOBODY + 4));
    }
}
