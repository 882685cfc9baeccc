//! What a mount's process says when servers of its buffer do not answer: which are stopped, with their processes, or what another
//! server says of one that is silent. And how long it waits before it says so.
//!
//! Invariant: who asks the process hears it before they give up, whatever the machine is busy with: a look at the servers begins
//! beside the question, before that has used up its time, and is waited for no longer than [`LOOK_GRACE`] beyond it. Called by
//! `backing`.

use super::asked::{GREET_WAIT, are_stopped, buffer_name, listed, no_answer, said_by, unheard_by};
use forebay_client::remote::{RemoteFs, Target};
use forebay_client::server_process::is_stopped;
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

/// What a look saw holds for so long without another one, as long as the processes are stopped; and for so long where another look is
/// late.
const SEEN_HOLDS: Duration = Duration::from_secs(2);
const SEEN_HOLDS_LATE: Duration = Duration::from_secs(60);

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

/// Which server of the buffer is seen stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    Nobody,
    /// Not the one that is asked: that answers with a part, if it may.
    Another,
    /// The one that is asked.
    Asked,
}

/// What a look found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) error: ControlError,
    pub(super) seen: Seen,
}

/// Servers that are stopped, with their processes.
type Stopped = Vec<(ServerAddress, u32)>;

/// What a look of this mount saw last, and when: on a busy machine one question's look may be late, and tell another one's.
#[derive(Default)]
pub(super) struct LastSeen(Mutex<Option<(Instant, Stopped)>>);

impl LastSeen {
    /// Those that are stopped still; none if that was seen longer ago than `holds`.
    fn still_stopped(&self, holds: Duration, is_stopped: impl Fn(u32) -> bool) -> Stopped {
        let seen = self.0.lock().clone().filter(|(at, _)| at.elapsed() < holds);
        let seen = seen.map(|(_, stopped)| stopped).unwrap_or_default();
        seen.into_iter().filter(|(_, pid)| is_stopped(*pid)).collect()
    }

    /// Looks, unless a look has just seen some that are stopped still.
    fn look(&self, look: impl FnOnce() -> Stopped, is_stopped: impl Fn(u32) -> bool) -> Stopped {
        let known = self.still_stopped(SEEN_HOLDS, is_stopped);
        if !known.is_empty() {
            return known;
        }
        let stopped = look();
        if !stopped.is_empty() {
            *self.0.lock() = Some((Instant::now(), stopped.clone()));
        }
        stopped
    }

    /// For a question whose own look is late: what another one saw, if that is so still.
    pub(super) fn told_late(&self) -> Option<ControlError> {
        let stopped = self.still_stopped(SEEN_HOLDS_LATE, is_stopped);
        (!stopped.is_empty()).then(|| are_stopped(&stopped))
    }
}

/// A look at the servers of a mount.
pub(super) struct Look {
    pub(super) remote: Arc<RemoteFs>,
    pub(super) target: Target,
    pub(super) told_by_other: Arc<Mutex<ToldByOther>>,
    pub(super) last_seen: Arc<LastSeen>,
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
        if let Some(found) = self.found_stopped() {
            return found;
        }
        let (there, silent) = greeted.recv().unwrap_or_default();
        // One that does not greet may have been missed by the first look: it may have been stopped only then.
        if !silent.is_empty()
            && let Some(found) = self.found_stopped()
        {
            return found;
        }
        let who = match silent.is_empty() {
            true => self.target.address.to_string(),
            false => listed(&silent),
        };
        // Where all of the buffer's answer, they may wait for the one that leads the pool.
        let about: AboutOther = if silent.is_empty() { unheard_by } else { said_by };
        let told = there.first().and_then(|asked| self.told_by(asked, about));
        let error = told.unwrap_or_else(|| no_answer(&who, there.first()));
        Found { error, seen: Seen::Nobody }
    }

    /// The servers that are stopped, if some are seen to be. None is asked; all processes are looked through, unless that was done
    /// a moment ago: for who has waited already.
    pub(super) fn found_stopped(&self) -> Option<Found> {
        let stopped = self.last_seen.look(|| self.remote.servers_seen_stopped(), is_stopped);
        let is_asked = stopped.iter().any(|(address, _)| *address == self.target.address);
        let seen = if is_asked { Seen::Asked } else { Seen::Another };
        (!stopped.is_empty()).then(|| Found { error: are_stopped(&stopped), seen })
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
/// little time hears its process, too. `ends`: what has to be seen for that; [`Seen::Asked`] where the server that is asked answers
/// for the others.
pub(super) fn answer_unless_stopped<T>(
    told: &Receiver<T>,
    (limit, ends): (Duration, Seen),
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
        if left.is_zero() || found.as_ref().is_some_and(|found| found.seen >= ends) {
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
        look_that_finds(takes, Seen::Another)
    }

    fn look_that_finds(takes: Duration, seen: Seen) -> impl FnOnce() -> Receiver<Found> {
        move || {
            let (tell, told) = channel();
            std::thread::spawn(move || {
                std::thread::sleep(takes);
                // Nobody may wait any more.
                let _gone = tell.send(Found { error: found(), seen });
            });
            told
        }
    }

    #[test]
    fn a_server_that_is_seen_stopped_is_named_before_the_time_of_the_question_is_over() {
        const LONG: Duration = Duration::from_secs(60);
        let (asks, told): (Sender<u8>, _) = channel();
        let begun = Instant::now();
        let answer = answer_unless_stopped(&told, (LONG, Seen::Another), look(LIMIT));
        assert_eq!(answer.unwrap_err(), Some(found()));
        assert!(begun.elapsed() < LONG / 2, "after {:?}", begun.elapsed());
        // One that is only silent may answer until the time is over.
        let silent = || look_that_finds(Duration::ZERO, Seen::Nobody);
        let begun = Instant::now();
        let answer = answer_unless_stopped(&told, (LIMIT, Seen::Another), silent());
        assert_eq!(answer.unwrap_err(), Some(found()));
        assert!(begun.elapsed() >= LIMIT, "after {:?}", begun.elapsed());
        asks.send(1).unwrap();
        assert_eq!(answer_unless_stopped(&told, (LIMIT, Seen::Another), silent()).unwrap(), 1);
        // Nobody asks any more.
        drop(asks);
        let answer = answer_unless_stopped(&told, (LIMIT, Seen::Another), silent());
        assert_eq!(answer.unwrap_err(), Some(found()));
        let answer = answer_unless_stopped(&told, (LIMIT, Seen::Another), look(LONG));
        assert_eq!(answer.unwrap_err(), None, "a look that hangs is not waited for");
    }

    #[test]
    fn another_server_that_is_stopped_does_not_end_a_question_that_is_answered_without_it() {
        const LONG: Duration = Duration::from_secs(60);
        let (asks, told) = channel();
        std::thread::spawn(move || {
            std::thread::sleep(SEEN_AFTER * 3);
            // With what the servers have that run.
            asks.send(1).unwrap();
            std::thread::sleep(LONG);
        });
        let limits = (LONG, Seen::Asked);
        let another = look_that_finds(Duration::ZERO, Seen::Another);
        assert_eq!(answer_unless_stopped(&told, limits, another).unwrap(), 1);
        // The one that is asked answers nothing.
        let begun = Instant::now();
        let asked = look_that_finds(Duration::ZERO, Seen::Asked);
        assert_eq!(answer_unless_stopped(&told, limits, asked).unwrap_err(), Some(found()));
        assert!(begun.elapsed() < LONG / 2, "after {:?}", begun.elapsed());
        // Without an answer the other one is named when the time is over.
        let another = look_that_finds(Duration::ZERO, Seen::Another);
        let answer = answer_unless_stopped(&told, (LIMIT, Seen::Asked), another);
        assert_eq!(answer.unwrap_err(), Some(found()));
    }

    #[test]
    fn what_a_late_look_saw_is_told_to_the_next_question_as_long_as_it_is_so() {
        let seen = LastSeen::default();
        let stopped: Stopped = vec![("127.0.0.1:7".parse().unwrap(), 9)];
        // The first look fails, and nothing is known; the next one looks again.
        assert!(seen.look(Vec::new, |_| true).is_empty());
        assert!(seen.still_stopped(SEEN_HOLDS_LATE, |_| true).is_empty());
        assert_eq!(seen.look(|| stopped.clone(), |_| true), stopped);
        assert_eq!(seen.still_stopped(SEEN_HOLDS_LATE, |pid| pid == 9), stopped);
        // Seen a moment ago: nobody looks.
        assert_eq!(seen.look(|| panic!("looked"), |_| true), stopped);
        // It goes on.
        assert!(seen.still_stopped(SEEN_HOLDS_LATE, |_| false).is_empty());
        assert!(seen.look(Vec::new, |_| false).is_empty());
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
