//! What a mount's process says when servers of its buffer do not answer: which are stopped, with their processes, or what another
//! server says of one that is silent. And how long it waits before it says so.
//!
//! Invariant: who asks the process hears it before they give up, whatever the machine is busy with: a look at the servers begins
//! beside the question, before that has used up its time, and is waited for no longer than [`LOOK_GRACE`] beyond it. Called by
//! `backing`.

use super::asked::{GREET_WAIT, are_stopped, buffer_name, listed, no_answer, said_by, unheard_by};
use forebay_client::remote::{RemoteFs, Target};
use forebay_net::ServerAddress;
use forebay_proto::control::ControlError;
use forebay_proto::net::ledger::BufferName;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A question that has no answer for so long has the servers looked at: after half of its time at most.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// How long the look is waited for beyond the time of the question: it goes through all processes of the node.
pub(super) const LOOK_GRACE: Duration = Duration::from_secs(1);
/// How much longer who asks a mount's process waits: on a busy machine each of both begins and ends late.
const ASKER_MARGIN: Duration = Duration::from_secs(3);
/// What another server says of one that is silent holds for so long.
const TOLD_HOLDS: Duration = Duration::from_secs(5);

/// How long who asks a mount's process waits for what that itself waits `limit` for: so its answer comes first, with which server is
/// silent, why, and what to do.
pub const fn asker_waits(limit: Duration) -> Duration {
    limit.saturating_add(LOOK_GRACE).saturating_add(ASKER_MARGIN)
}

/// A question to a server about another one.
type AboutOther = fn(&Target, &ServerAddress, BufferName) -> Option<ControlError>;

/// What a server said of another one that is silent.
#[derive(Default)]
pub(super) struct ToldByOther {
    is_being_asked: bool,
    said: Option<(Instant, ControlError)>,
}

/// A look at the servers of a mount.
pub(super) struct Look {
    pub(super) remote: Arc<RemoteFs>,
    pub(super) target: Target,
    pub(super) told_by_other: Arc<Mutex<ToldByOther>>,
}

impl Look {
    /// Looks on a thread of its own. Nothing is told if there can be none.
    pub(super) fn begin(self) -> Receiver<ControlError> {
        let (tell, told) = channel();
        let look = move || {
            // Whoever asked may have gone.
            let _gone = tell.send(self.found());
        };
        if let Err(error) = std::thread::Builder::new().name("silent".into()).spawn(look) {
            tracing::debug!(%error, "nobody looks which server is silent");
        }
        told
    }

    /// Names the servers that are stopped, else those that do not even greet, for the one that is asked may wait for another one.
    fn found(&self) -> ControlError {
        let remote = &self.remote;
        // At once: together they have the time of one.
        let ((there, silent), stopped) = std::thread::scope(|scope| {
            let greeted = scope.spawn(|| remote.servers_greeted(GREET_WAIT));
            let stopped = remote.servers_seen_stopped();
            (greeted.join().unwrap_or_default(), stopped)
        });
        if !stopped.is_empty() {
            return are_stopped(&stopped);
        }
        let who = match silent.is_empty() {
            true => self.target.address.to_string(),
            false => listed(&silent),
        };
        // Where all of the buffer's answer, they may wait for the one that leads the pool.
        let about: AboutOther = if silent.is_empty() { unheard_by } else { said_by };
        if let Some(asked) = there.first()
            && let Some(error) = self.told_by(asked, about)
        {
            return error;
        }
        no_answer(&who, there.first())
    }

    /// What a server that answers said lately of one that does not: it may see the process. It is asked now for who asks next;
    /// nobody waits for that here.
    fn told_by(&self, asked: &ServerAddress, about: AboutOther) -> Option<ControlError> {
        let mut told = self.told_by_other.lock();
        let said = told.said.as_ref().filter(|(at, _)| at.elapsed() < TOLD_HOLDS);
        let said = said.map(|(_, error)| error.clone());
        if !told.is_being_asked
            && let Ok(name) = buffer_name(&self.target)
        {
            let (told_by_other, target) = (Arc::clone(&self.told_by_other), self.target.clone());
            let asked = asked.clone();
            let question = move || {
                let error = about(&target, &asked, name);
                *told_by_other.lock() = ToldByOther {
                    is_being_asked: false,
                    said: error.map(|error| (Instant::now(), error)),
                };
            };
            let spawned = std::thread::Builder::new().name("told by other".into()).spawn(question);
            told.is_being_asked = spawned.is_ok();
        }
        said
    }
}

/// What is told within `limit`; else what the look found that `look` begins meanwhile, or nothing.
pub(super) fn answer_within<T>(
    told: &Receiver<T>,
    limit: Duration,
    look: impl FnOnce() -> Receiver<ControlError>,
) -> Result<T, Option<ControlError>> {
    let begun = Instant::now();
    if let Ok(answer) = told.recv_timeout((limit / 2).min(LOOK_AFTER)) {
        return Ok(answer);
    }
    let looked = look();
    if let Ok(answer) = told.recv_timeout(limit.saturating_sub(begun.elapsed())) {
        return Ok(answer);
    }
    let left = (limit + LOOK_GRACE).saturating_sub(begun.elapsed());
    let found = looked.recv_timeout(left).ok();
    // The answer may have come meanwhile.
    told.try_recv().map_err(|_| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    const LIMIT: Duration = Duration::from_millis(400);

    fn found() -> ControlError {
        ControlError::new("ask the server", None, "its process 7 is stopped")
    }

    /// A look that takes so long.
    fn look(takes: Duration) -> impl FnOnce() -> Receiver<ControlError> {
        move || {
            let (tell, told) = channel();
            std::thread::spawn(move || {
                std::thread::sleep(takes);
                // Nobody may wait any more.
                let _gone = tell.send(found());
            });
            told
        }
    }

    #[test]
    fn a_server_that_is_silent_is_named_within_the_time_of_the_question() {
        let (_asks, told): (Sender<u8>, _) = channel();
        let begun = Instant::now();
        // The look takes its time, and is through when the time is over.
        let answer = answer_within(&told, LIMIT, look(LIMIT / 4));
        assert_eq!(answer.unwrap_err(), Some(found()));
        assert!(begun.elapsed() < LIMIT + LOOK_GRACE / 2, "after {:?}", begun.elapsed());
        // One that hangs is not waited for.
        let begun = Instant::now();
        assert_eq!(answer_within(&told, LIMIT, look(LOOK_GRACE * 10)).unwrap_err(), None);
        let waited = begun.elapsed();
        assert!(waited >= LIMIT + LOOK_GRACE && waited < LOOK_GRACE * 5, "after {waited:?}");
    }

    #[test]
    fn an_answer_counts_until_something_else_is_told() {
        let (asks, told) = channel();
        asks.send(1).unwrap();
        assert_eq!(answer_within(&told, LIMIT, look(Duration::ZERO)).unwrap(), 1);
        // Beside a look that is under way.
        let late = move || {
            asks.send(2).unwrap();
            look(LOOK_GRACE * 10)()
        };
        assert_eq!(answer_within(&told, LIMIT, late).unwrap(), 2);
        // Nobody asks any more, since no thread could be made for that.
        assert_eq!(answer_within(&told, LIMIT, look(Duration::ZERO)).unwrap_err(), Some(found()));
    }
}
