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
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A question that has no answer for so long has the servers looked at: after half of its time at most.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// The same for a question that a stopped server of the buffer leaves without an answer, and the pause between two looks whether one
/// of both is there.
const SEEN_AFTER: Duration = Duration::from_millis(300);
const SEEN_PAUSE: Duration = Duration::from_millis(20);
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

/// What a look found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) error: ControlError,
    /// A server of the buffer is seen stopped.
    pub(super) is_seen: bool,
}

/// A look at the servers of a mount.
pub(super) struct Look {
    pub(super) remote: Arc<RemoteFs>,
    pub(super) target: Target,
    pub(super) told_by_other: Arc<Mutex<ToldByOther>>,
}

impl Look {
    /// Looks on a thread of its own. Nothing is told if there can be none.
    pub(super) fn begin(self) -> Receiver<Found> {
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
    fn found(&self) -> Found {
        // At once: together they have the time of one. Those that are stopped are told without it.
        let greeted = self.greet();
        let stopped = self.remote.servers_seen_stopped();
        if !stopped.is_empty() {
            return Found { error: are_stopped(&stopped), is_seen: true };
        }
        let (there, silent) = greeted.recv().unwrap_or_default();
        let who = match silent.is_empty() {
            true => self.target.address.to_string(),
            false => listed(&silent),
        };
        // Where all of the buffer's answer, they may wait for the one that leads the pool.
        let about: AboutOther = if silent.is_empty() { unheard_by } else { said_by };
        let told = there.first().and_then(|asked| self.told_by(asked, about));
        let error = told.unwrap_or_else(|| no_answer(&who, there.first()));
        Found { error, is_seen: false }
    }

    /// Greets the servers on a thread of its own: those that answer, and those that do not.
    fn greet(&self) -> Receiver<(Vec<ServerAddress>, Vec<ServerAddress>)> {
        let (tell, told) = channel();
        let remote = Arc::clone(&self.remote);
        let greet = move || {
            // A server that is stopped is told without this.
            let _gone = tell.send(remote.servers_greeted(GREET_WAIT));
        };
        if let Err(error) = std::thread::Builder::new().name("greet".into()).spawn(greet) {
            tracing::debug!(%error, "the servers are not greeted");
        }
        told
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
    look: impl FnOnce() -> Receiver<Found>,
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
    told.try_recv().map_err(|_| found.map(|found| found.error))
}

/// The same for a question that has no answer while a server of the buffer is stopped: one that is seen ends it, so that who has
/// little time hears its process, too.
pub(super) fn answer_unless_stopped<T>(
    told: &Receiver<T>,
    limit: Duration,
    look: impl FnOnce() -> Receiver<Found>,
) -> Result<T, Option<ControlError>> {
    let begun = Instant::now();
    if let Ok(answer) = told.recv_timeout((limit / 2).min(SEEN_AFTER)) {
        return Ok(answer);
    }
    let looked = look();
    let mut found: Option<Found> = None;
    loop {
        let longest = if found.is_some() { limit } else { limit + LOOK_GRACE };
        let left = longest.saturating_sub(begun.elapsed());
        match told.recv_timeout(left.min(SEEN_PAUSE)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody asks; the look tells why there is no answer.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(SEEN_PAUSE)),
        }
        found = found.or_else(|| looked.try_recv().ok());
        if left.is_zero() || found.as_ref().is_some_and(|found| found.is_seen) {
            return told.try_recv().map_err(|_| found.map(|found| found.error));
        }
    }
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
    fn look(takes: Duration) -> impl FnOnce() -> Receiver<Found> {
        look_that_finds(takes, true)
    }

    fn look_that_finds(takes: Duration, is_seen: bool) -> impl FnOnce() -> Receiver<Found> {
        move || {
            let (tell, told) = channel();
            std::thread::spawn(move || {
                std::thread::sleep(takes);
                // Nobody may wait any more.
                let _gone = tell.send(Found { error: found(), is_seen });
            });
            told
        }
    }

    #[test]
    fn a_server_that_is_seen_stopped_is_named_before_the_time_of_the_question_is_over() {
        const LONG: Duration = Duration::from_secs(60);
        let (asks, told): (Sender<u8>, _) = channel();
        let begun = Instant::now();
        let answer = answer_unless_stopped(&told, LONG, look(LIMIT));
        assert_eq!(answer.unwrap_err(), Some(found()));
        assert!(begun.elapsed() < LONG / 2, "after {:?}", begun.elapsed());
        // One that is only silent may answer until the time is over.
        let silent = || look_that_finds(Duration::ZERO, false);
        let begun = Instant::now();
        let answer = answer_unless_stopped(&told, LIMIT, silent());
        assert_eq!(answer.unwrap_err(), Some(found()));
        assert!(begun.elapsed() >= LIMIT, "after {:?}", begun.elapsed());
        asks.send(1).unwrap();
        assert_eq!(answer_unless_stopped(&told, LIMIT, silent()).unwrap(), 1);
        // Nobody asks any more.
        drop(asks);
        let answer = answer_unless_stopped(&told, LIMIT, silent());
        assert_eq!(answer.unwrap_err(), Some(found()));
        let answer = answer_unless_stopped(&told, LIMIT, look(LONG));
        assert_eq!(answer.unwrap_err(), None, "a look that hangs is not waited for");
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
