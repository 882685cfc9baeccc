//! Who keeps a mount from ending after it was unmounted, or a cache from draining before: a `forebay umount` with a time limit
//! says it when that is over.
//!
//! The mount's process looks through all mount tables of its node for the answer, which takes some seconds on a busy machine. So it
//! is asked beside the unmount, beforehand: at its end the command waits for moments only, as its time is over.

use forebay_client::Control;
use forebay_proto::control::BufferStatus;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long before the end of the time it is asked first.
const AHEAD: Duration = Duration::from_secs(4);
/// Time that the unmount itself gets first, and the pause between two questions: the answer may be another one by then.
const FIRST_AFTER: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(500);
/// How long an answer that is under way is waited for when the time is over.
const GRACE: Duration = Duration::from_millis(400);

/// As long as it lives the process is asked.
pub(super) struct Who {
    known: Option<String>,
    /// What the process says; the thread that asks ends when the other end is dropped.
    asking: Option<(Receiver<String>, Sender<()>)>,
}

impl Who {
    /// Of the mount of this store, for a command whose time is over at `until`; without that, or where it is known, nothing is
    /// asked.
    pub(super) fn ask(store_dir: &Path, until: Option<Instant>, known: Option<String>) -> Who {
        // Before the unmount is done it says nothing of that.
        Who::asking(store_dir, until.filter(|_| known.is_none()), known, |status| status.ending)
    }

    /// Which server of the buffer is silent, asked in the same way while a drain waits for its answer.
    pub(super) fn silent(store_dir: &Path, until: Option<Instant>) -> Who {
        // That they answer again counts too.
        let silent = |status: BufferStatus| {
            Some(status.server_error.or(status.not_asked).unwrap_or_default())
        };
        Who::asking(store_dir, until, None, silent)
    }

    fn asking(
        store_dir: &Path,
        until: Option<Instant>,
        known: Option<String>,
        says: fn(BufferStatus) -> Option<String>,
    ) -> Who {
        let Some(until) = until else { return Who { known, asking: None } };
        let (tell, told) = channel();
        let (lives, ended) = channel();
        let dir = store_dir.to_path_buf();
        let ask = move || ask_until(&dir, until, says, (&tell, &ended));
        match std::thread::Builder::new().name("who".into()).spawn(ask) {
            Ok(_) => Who { known, asking: Some((told, lives)) },
            Err(error) => {
                tracing::debug!(%error, "nobody asks who keeps the mount from ending");
                Who { known, asking: None }
            }
        }
    }

    /// What the process said last, the time being over; `None` if it has said nothing.
    pub(super) fn told(&self) -> Option<String> {
        let Some((told, _lives)) = &self.asking else { return self.known.clone() };
        let last = told.try_iter().last().or_else(|| told.recv_timeout(GRACE).ok());
        last.filter(|last| !last.is_empty())
    }
}

fn ask_until(
    dir: &Path,
    until: Instant,
    says: fn(BufferStatus) -> Option<String>,
    (tell, ended): (&Sender<String>, &Receiver<()>),
) {
    let left = until.saturating_duration_since(Instant::now());
    let mut pause = left.saturating_sub(AHEAD).max(FIRST_AFTER);
    let end = until.checked_add(GRACE);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = PAUSE;
        if end.is_some_and(|end| Instant::now() >= end) {
            return;
        }
        let control = Control::connect_store_limited(dir, end, AHEAD);
        let status = control.and_then(|mut control| control.buffer_status());
        let who = status.ok().and_then(says);
        if who.is_some_and(|who| tell.send(who).is_err()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_told_at_once_and_nothing_asked() {
        let soon = Instant::now().checked_add(AHEAD);
        let who = Who::ask(Path::new("/no/store"), soon, Some("process 1 (sh)".into()));
        assert_eq!(who.told().as_deref(), Some("process 1 (sh)"));
        // Without a limit the command says it while it waits.
        assert_eq!(Who::ask(Path::new("/no/store"), None, None).told(), None);
    }

    #[test]
    fn the_last_answer_counts_and_none_is_waited_for_for_moments() {
        let (tell, told) = channel();
        let (lives, _ended) = channel();
        let who = Who { known: None, asking: Some((told, lives)) };
        tell.send("process 1 (sh)".to_string()).unwrap();
        tell.send("process 2 (sh)".to_string()).unwrap();
        assert_eq!(who.told().as_deref(), Some("process 2 (sh)"));
        assert_eq!(who.told(), None, "and nothing else came");
        drop(tell);
        assert_eq!(who.told(), None);
    }
}
