//! How long a server that does not answer is waited for, and how one that is slow is told from one that
//! hangs: by a sign of life; and the end, which waits for nobody. Called by the calls of [`Peer`] when an attempt has
//! failed, and by the mount's end.

use super::slots::{InUse, Slot};
use super::{Peer, Room};
use forebay_net::LinkError;
use forebay_proto::net::session::{MAX_SLOTS, SessionId};
use forebay_proto::net::{Attempt, Call, GivenBack, Request};
use forebay_proto::{Caller, Errno, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for one answer: a change may have to wait for another mount's lease to end.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The shortest of such waits, for a mount that is less patient: an answer may take its time, and one
/// that takes longer is asked for again. Those of calls that wait for flash, and of signs of life.
const ANSWER_LIMIT_LEAST: Duration = Duration::from_secs(1);
const SYNC_LIMIT_LEAST: Duration = Duration::from_secs(10);
const ALIVE_LIMIT: Duration = Duration::from_secs(3);
/// Longest wait for a server to hear that a mount ends.
const DETACH_LIMIT: Duration = Duration::from_secs(2);
/// Longest wait of the end for a call that is under way: mostly one that gives references back.
const LAST_CALL_LIMIT: Duration = Duration::from_millis(500);
/// First and longest pause between two attempts to reach a server.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// How long a server that is asked for a sign of life may take, where a signal ends what waits for it. With the looks at both
/// ends, of some 50 and 200 ms, it is within the second in which a signal ends a call.
const SIGN_LIMIT: Duration = Duration::from_millis(600);
/// One that gave a sign of life so lately is not asked again.
const SIGN_HOLDS: Duration = Duration::from_millis(200);

/// A question for a sign of life that somebody waits for.
#[derive(Default)]
pub(super) struct SignOfLife {
    state: Mutex<Sign>,
    wanted: Condvar,
}

#[derive(Default)]
enum Sign {
    #[default]
    NotWanted,
    /// Since when, and whether the question was taken up.
    Wanted(Instant, bool),
    /// When it was given.
    Given(Instant),
}

/// A program waits for an answer.
pub(super) struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Waits<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    /// Ends all: calls fail from now on, those that wait too. The server is told once; if it does not
    /// hear, the session ends with its lease.
    pub(in crate::remote) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.held.end();
        let idle = self.slot_for_the_end();
        for (id, stream) in std::mem::take(&mut *self.streams.lock()) {
            if idle.as_ref().is_none_or(|slot| slot.id != id) {
                stream.shutdown();
            }
        }
        let mut in_use = InUse { peer: self, slot: idle, by_itself: true };
        let Some(slot) = in_use.slot.as_mut() else { return };
        let mut request = Request {
            session: SessionId(0),
            slot: slot.id,
            slot_seq: slot.seq,
            attempt: Attempt::default(),
            caller: Caller::root(),
            cpu: None,
            given_back: GivenBack::default(),
            call: Call::Detach,
        };
        if self.attempt(slot, None, &mut request, &mut None, &[], &mut Room::None).is_err() {
            tracing::debug!("the server was not told of the end");
        }
    }

    /// The connection by which the end is told: one that nobody uses, or one that is soon out of use; a new one
    /// only where none was needed so far, and not to a server that is not heard: it would not hear it.
    fn slot_for_the_end(&self) -> Option<Slot> {
        let until = Instant::now() + LAST_CALL_LIMIT;
        let mut slots = self.slots.lock();
        loop {
            if let Some(at) = slots.iter().rposition(|slot| slot.link.is_some()) {
                return slots.remove(at);
            }
            let all_home = slots.len() == usize::from(MAX_SLOTS);
            if all_home || self.slot_free.wait_until(&mut slots, until).timed_out() {
                let is_heard =
                    !self.silent.load(Ordering::Relaxed) && self.lost_since.lock().is_none();
                return if is_heard { slots.pop_back() } else { None };
            }
        }
    }

    /// True while a program waits for an answer of this server.
    pub(in crate::remote) fn is_waited_for(&self) -> bool {
        self.programs_wait.load(Ordering::Relaxed) > 0
    }

    /// The server is known to be away, or does not give the sign of life that this asks for. Asks and does not wait: who wants
    /// to know looks again.
    pub(in crate::remote) fn is_silent_now(&self) -> bool {
        if self.is_away() {
            return true;
        }
        let mut sign = self.sign_of_life.state.lock();
        match *sign {
            Sign::Wanted(since, _) => since.elapsed() >= SIGN_LIMIT,
            Sign::Given(at) if at.elapsed() < SIGN_HOLDS => false,
            _ => {
                *sign = Sign::Wanted(Instant::now(), false);
                self.sign_of_life.wanted.notify_one();
                false
            }
        }
    }

    /// Waits for so long, or until somebody wants a sign of life, which it asks for then.
    pub(in crate::remote) fn ask_for_wanted_sign(&self, longest: Duration) {
        let mut sign = self.sign_of_life.state.lock();
        if !matches!(*sign, Sign::Wanted(_, false)) {
            let _ = self.sign_of_life.wanted.wait_for(&mut sign, longest);
        }
        let Sign::Wanted(since, is_taken @ false) = &mut *sign else { return };
        let since = *since;
        *is_taken = true;
        drop(sign);
        // On a connection of its own: those of calls may all wait.
        let now = match self.greet_anywhere() {
            Ok(_) | Err(LinkError::Refused(_)) => Sign::Given(Instant::now()),
            // By now who wanted it has looked, or is gone.
            Err(_) if since.elapsed() > 2 * SIGN_LIMIT => Sign::NotWanted,
            Err(_) => {
                std::thread::sleep(RETRY_FIRST);
                Sign::Wanted(since, false)
            }
        };
        *self.sign_of_life.state.lock() = now;
    }

    /// It has not answered for as long as this mount is patient.
    pub(super) fn is_given_up(&self) -> bool {
        let lost = *self.lost_since.lock();
        lost.is_some_and(|since| since.elapsed() >= self.target.patience)
    }

    /// Asks once for a sign of life, on a connection that nobody uses. To make one takes too long where
    /// nothing comes back: without one it counts what was heard since the last sign was due.
    pub(super) fn answers(&self) -> bool {
        let idle = {
            let mut slots = self.slots.lock();
            let at = slots.iter().rposition(|slot| slot.link.is_some());
            at.and_then(|at| slots.remove(at))
        };
        let lease = self.lease();
        if idle.is_none() {
            return self.kept.heard_at(lease).elapsed() < lease / 2;
        }
        let mut in_use = InUse { peer: self, slot: idle, by_itself: true };
        let Some(slot) = in_use.slot.as_mut() else { return false };
        let mut request = Request {
            session: SessionId(0),
            slot: slot.id,
            slot_seq: slot.seq,
            attempt: Attempt::default(),
            caller: Caller::root(),
            cpu: None,
            given_back: GivenBack::default(),
            call: Call::Renew,
        };
        let answered =
            self.attempt(slot, None, &mut request, &mut None, &[], &mut Room::None).is_ok();
        if !answered {
            slot.link = None;
        }
        answered
    }

    /// After a failure of a call that was begun then: waits a little, or gives up.
    pub(super) fn bear(
        &self,
        error: LinkError,
        begun: Instant,
        pause: &mut Duration,
    ) -> Result<()> {
        match &error {
            LinkError::Refused(refusal) if refusal.errno != libc::EAGAIN => {
                if self.refusals.refused(refusal) {
                    tracing::error!(server = %self.address(), why = refusal.why,
                        "the server refuses this mount: calls fail, it is asked again now and then");
                }
                return Err(Errno::EIO);
            }
            LinkError::Frame(error) => {
                tracing::error!(%error, "the server is not understood");
                return Err(Errno::EPROTO);
            }
            _ => {}
        }
        self.silent.store(error.is_timeout(), Ordering::Relaxed);
        // One that hangs has been lost since it was asked and not since that was noticed, unless it has
        // answered somebody else meanwhile.
        let unheard = begun.max(self.kept.heard_at(self.lease()));
        {
            let mut lost = self.lost_since.lock();
            if lost.is_none() {
                tracing::warn!(server = %self.address(), %error, "the server does not answer");
            }
            lost.get_or_insert(unheard);
        }
        if self.is_given_up() {
            return Err(Errno::ETIMEDOUT);
        }
        std::thread::sleep(*pause);
        *pause = (*pause * 2).min(RETRY_LONGEST);
        Ok(())
    }

    /// How long an answer is waited for before the call is made again, with the same number: then it is
    /// seen whether the server is there at all.
    pub(super) fn answer_limit(&self, call: &Call<'_>) -> Duration {
        let patient = ANSWER_LIMIT.min(self.target.patience);
        match call {
            Call::Fsync { .. } | Call::SyncObject { .. } | Call::Fsyncdir(_) | Call::SyncAll => {
                patient.max(SYNC_LIMIT_LEAST)
            }
            Call::Renew => ALIVE_LIMIT.min(patient.max(ANSWER_LIMIT_LEAST)),
            Call::Detach => DETACH_LIMIT,
            _ => patient.max(ANSWER_LIMIT_LEAST),
        }
    }
}
