//! A call until it is answered: what is looked at before each attempt and after one that failed, and what becomes of a call
//! that is given up.
//!
//! Invariants: a call that is done once has one number, whatever attempts it takes; a slot in which an answer may still come
//! serves no other call. How long it is tried is bounded by [`Target::patience`](super::Target::patience), for all but what
//! the mount gives back by itself, which ends with the mount. Called by the calls of [`Peer`].

use super::about::{data_used_by, is_by_itself, waits_for_mounts};
use super::left::{self, Left};
use super::patience::{RETRY_FIRST, Waits};
use super::slots::{InUse, Slot};
use super::{Done, Failed, Peer, Room};
use crate::remote::held_locks::Losses;
use forebay_activity::{Activity, Begun};
use forebay_proto::activity::{ActivityKind, Stall};
use forebay_proto::asked::{self, LOOK};
use forebay_proto::net::session::SessionId;
use forebay_proto::net::{Attempt, Call, GivenBack, Request};
use forebay_proto::{Caller, Errno, Ino, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A call that may have to wait for a server; if it did, that is told when it ends.
struct Waited<'a> {
    activity: &'a Activity,
    begun: Begun,
    ino: Ino,
    did: bool,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        if self.did {
            let (kind, why) = (ActivityKind::Stall, Stall::Server as i64);
            self.activity.end(self.begun, kind, self.ino, (0, 0), why);
        }
    }
}

/// A call, and what it has met so far.
struct Tries<'a, 'c> {
    request: Request<'c>,
    /// Nobody asked for it.
    by_itself: bool,
    /// The session in which what it gives back went along first.
    carried_in: Option<u64>,
    begun: Instant,
    /// Before the next attempt to reach the server.
    pause: Duration,
    /// The file whose data it uses, and which locks were lost when it began.
    used: Option<(Ino, Losses)>,
    tried_before: bool,
    /// A server may have heard it.
    may_be_heard: bool,
    waited: Waited<'a>,
}

impl Tries<'_, '_> {
    /// It is a sign of life.
    fn is_sign(&self) -> bool {
        matches!(self.request.call, Call::Renew)
    }

    /// Nobody else says what it gives back.
    fn gives_back(&self) -> bool {
        self.by_itself && self.request.call.is_once_only()
    }
}

/// Why an attempt has brought no answer.
enum NoAnswer {
    /// It is tried again.
    Again,
    /// It has failed, and nothing of it is left.
    Failed(Errno),
    /// It is given up. Its answer may come on the slot's connection (`answer_comes`).
    GivenUp { why: Errno, answer_comes: bool },
}

impl From<Errno> for NoAnswer {
    fn from(errno: Errno) -> NoAnswer {
        NoAnswer::Failed(errno)
    }
}

impl Peer {
    /// Does a call, however often the connection breaks. `left` is set if it has failed and its outcome is not known.
    pub(super) fn call_until_answered(
        &self,
        generation: Option<u64>,
        caller: &Caller,
        call: Call<'_>,
        payload: &[u8],
        mut room: Room<'_>,
        left: &mut Option<Left>,
    ) -> Result<Done> {
        let by_itself = is_by_itself(&call);
        let _waits = (!by_itself).then(|| Waits::new(&self.programs_wait));
        let mut in_use = self.take_slot(by_itself, waits_for_mounts(&call))?;
        let Some(slot) = in_use.slot.as_mut() else { return Err(Errno::EIO) };
        let mut tries = self.begin_tries(slot, by_itself, caller, call);
        let (why, answer_comes) = loop {
            match self.try_once(&mut tries, slot, generation, payload, &mut room) {
                Ok(done) => return Ok(done),
                Err(NoAnswer::Again) => {}
                Err(NoAnswer::Failed(errno)) => return Err(errno),
                Err(NoAnswer::GivenUp { why, answer_comes }) => break (why, answer_comes),
            }
        };
        *left = self.left_of(tries, &mut in_use, why, answer_comes);
        Err(why)
    }

    fn begin_tries<'c>(
        &self,
        slot: &mut Slot,
        by_itself: bool,
        caller: &Caller,
        call: Call<'c>,
    ) -> Tries<'_, 'c> {
        if call.is_once_only() {
            slot.seq = slot.seq.wrapping_add(1);
        }
        let request = Request {
            session: SessionId(0),
            slot: slot.id,
            slot_seq: slot.seq,
            attempt: Attempt::default(),
            caller: self.with_groups(caller, &call),
            cpu: None,
            given_back: GivenBack::default(),
            call,
        };
        let begun = Instant::now();
        let used = data_used_by(&request.call).map(|ino| (ino, self.held_locks.losses()));
        let waited = Waited {
            activity: &self.target.activity,
            begun: self.target.activity.begin(),
            ino: used.as_ref().map_or(Ino(0), |used| used.0),
            did: false,
        };
        Tries {
            request,
            by_itself,
            carried_in: None,
            begun,
            pause: RETRY_FIRST,
            used,
            tried_before: false,
            may_be_heard: false,
            waited,
        }
    }

    /// Makes an attempt, if that makes sense now.
    fn try_once(
        &self,
        tries: &mut Tries<'_, '_>,
        slot: &mut Slot,
        generation: Option<u64>,
        payload: &[u8],
        room: &mut Room<'_>,
    ) -> std::result::Result<Done, NoAnswer> {
        self.may_try(tries)?;
        let Some(seen) = self.session_read().map(|session| session.generation) else {
            return Err(NoAnswer::Again);
        };
        slot.sent = false;
        let carried = &mut tries.carried_in;
        let tried = self.attempt(slot, generation, &mut tries.request, carried, payload, room);
        let failed = match tried {
            Ok(done) => {
                self.is_there();
                let answer = done.answer.into_result()?;
                return Ok(Done { answer, ..done });
            }
            Err(failed) => failed,
        };
        tries.may_be_heard |= slot.sent;
        tries.waited.did |=
            !tries.by_itself && matches!(failed, Failed::Link(_) | Failed::SessionOver);
        if matches!(failed, Failed::GivenUp) {
            return Err(NoAnswer::GivenUp { why: Errno::EINTR, answer_comes: slot.sent });
        }
        slot.link = None;
        Err(self.after_failure(tries, failed, seen))
    }

    /// Whether an attempt makes sense now.
    fn may_try(&self, tries: &mut Tries<'_, '_>) -> std::result::Result<(), NoAnswer> {
        if self.is_closing() {
            return Err(NoAnswer::Failed(Errno::ENOTCONN));
        }
        if asked::is_given_up() {
            return Err(NoAnswer::GivenUp { why: Errno::EINTR, answer_comes: false });
        }
        if let (true, Some((ino, losses))) = (tries.tried_before, tries.used) {
            self.held_locks.may_use_again(self, ino, losses)?;
        }
        tries.tried_before = true;
        if self.lost.load(Ordering::Acquire) || self.refusals.is_refused() {
            return Err(NoAnswer::Failed(Errno::EIO));
        }
        // Whether one that hangs, or is behind a network that swallows everything, is back is found out by
        // signs of life: each call anew would take its time to hear nothing.
        if !tries.is_sign() && self.silent.load(Ordering::Relaxed) && self.is_given_up() {
            if tries.gives_back() {
                std::thread::sleep(LOOK);
                return Err(NoAnswer::Again);
            }
            return Err(NoAnswer::GivenUp { why: Errno::ETIMEDOUT, answer_comes: false });
        }
        Ok(())
    }

    /// What comes after an attempt in the session of generation `seen` that failed; the slot has no connection any more.
    fn after_failure(&self, tries: &mut Tries<'_, '_>, failed: Failed, seen: u64) -> NoAnswer {
        if !tries.is_sign()
            && matches!(&failed, Failed::Link(error) if error.is_timeout())
            && self.answers()
        {
            // It is only slow: the repeated call waits for the answer of this one.
            return NoAnswer::Again;
        }
        let error = match failed {
            Failed::OtherSession => return NoAnswer::Failed(Errno::ECANCELED),
            Failed::SessionOver => match self.new_session(seen) {
                Ok(()) => return NoAnswer::Again,
                Err(error) if error.is_given_up() => return NoAnswer::Again,
                Err(error) => error,
            },
            Failed::Link(error) => error,
            Failed::GivenUp => return NoAnswer::Again,
        };
        match self.bear(error, tries.begun, &mut tries.pause) {
            Ok(()) => NoAnswer::Again,
            // Nobody else says what this gives back: it is said, with the same number, until it is heard.
            Err(Errno::ETIMEDOUT) if tries.gives_back() => {
                std::thread::sleep(LOOK);
                NoAnswer::Again
            }
            Err(Errno::ETIMEDOUT) => {
                NoAnswer::GivenUp { why: Errno::ETIMEDOUT, answer_comes: false }
            }
            Err(errno) => NoAnswer::Failed(errno),
        }
    }

    /// What is to be settled of a call that is given up, with its slot; `None` if nothing came of it, or what came matters to
    /// nobody.
    fn left_of(
        &self,
        tries: Tries<'_, '_>,
        in_use: &mut InUse<'_>,
        why: Errno,
        answer_comes: bool,
    ) -> Option<Left> {
        let call = &tries.request.call;
        let is_once = call.is_once_only();
        let is_waited_for = why == Errno::EINTR && left::gives(call);
        let worth_it = tries.may_be_heard && (is_once || is_waited_for);
        if !answer_comes || !worth_it {
            // Nothing may be asked where another answer is still to come.
            if let Some(slot) = &mut in_use.slot {
                slot.link = None;
            }
        }
        if let (false, Some(generation)) = (tries.may_be_heard, tries.carried_in) {
            self.held.not_carried(&tries.request.given_back, generation);
        }
        if !worth_it {
            return None;
        }
        let slot = in_use.slot.take()?;
        Some(Left {
            slot,
            is_once,
            opens: left::opened_by(call),
            changes: left::touched(call),
            given_back: tries.request.given_back,
            carried_in: tries.carried_in,
            then: None,
        })
    }
}
