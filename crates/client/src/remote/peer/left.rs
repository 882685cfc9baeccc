//! Calls that nobody waits for any more, and whose outcome is not known: they are *left* to a thread that settles them.
//!
//! A program got a signal while its call waited for the server, and was let go ([`forebay_proto::asked`]); or the server did not
//! answer for as long as the mount is patient, and a call that changes something has ended with ETIMEDOUT. The call may have
//! been done, may be done later, or may never have been heard. Invariants:
//! * the slot of a call that was left, and its connection, serve no other call before it is settled: its answer has come,
//!   its session is over, or its number was used up. That is a repetition that does nothing: heard first it takes the number,
//!   so that the call is not done when it arrives later; else it is answered with what the call had, when that is known;
//! * what an answer gives that nobody took (references, opens, locks) is given back. Where the answer of a call that may be done
//!   twice is not heard at all, the server takes that back itself, with the slot's next call;
//! * a call of this mount on what a call that was left may change waits until it is settled: a write that comes
//!   after a program's signal must not be overtaken by the one before it;
//! * what the kernel believes of what it may have changed is dropped when it is settled.
//!
//! A call that never left this mount is not left: it was not done. Called by the calls of [`Peer`].

use super::patience::RETRY_FIRST;
use super::slots::{InUse, Slot};
use super::{Failed, Peer, Room, is_answer_to};
use crate::remote::dirs::Changing;
use forebay_net::LinkError;
use forebay_proto::asked::{self, LOOK};
use forebay_proto::net::frame::{self, Kind};
use forebay_proto::net::session::SessionId;
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request, Response};
use forebay_proto::{Caller, Errno, Ino, Result};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest pause between two attempts to settle a call.
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// What is done when a call that was left is settled.
pub(in crate::remote) type Then = Box<dyn FnOnce() + Send>;
/// Called when a call is left, before its program goes on.
pub(in crate::remote) type WhenLeft<'a> = &'a mut dyn FnMut() -> Then;

/// Inodes that a call uses, or changes.
pub(super) type Touched = [Option<Ino>; 4];

/// A call whose outcome is not known.
pub(super) struct Left {
    pub(super) slot: Slot,
    pub(super) is_once: bool,
    pub(super) given_back: GivenBack,
    pub(super) carried_in: Option<u64>,
    /// The file that it was to open.
    pub(super) opens: Option<Ino>,
    pub(super) changes: Touched,
    pub(super) then: Option<Then>,
}

/// The call's own answer is worth waiting for: it gives something.
pub(super) fn gives(call: &Call<'_>) -> bool {
    matches!(
        call,
        Call::Lookup { .. }
            | Call::List { plus: true, .. }
            | Call::Open { .. }
            | Call::Take { .. }
            | Call::TakeAll(_)
            | Call::Lock(_)
    )
}

/// The inodes that a call is about.
pub(super) fn touched(call: &Call<'_>) -> Touched {
    match *call {
        Call::Lookup { parent, .. } => [Some(parent), None, None, None],
        Call::Link { ino, parent, .. } => [Some(ino), Some(parent), None, None],
        Call::Getattr(ino)
        | Call::Readlink(ino)
        | Call::Listxattr(ino)
        | Call::DirLimit(ino)
        | Call::Fsyncdir(ino)
        | Call::Setattr { ino, .. }
        | Call::Getxattr { ino, .. }
        | Call::Setxattr { ino, .. }
        | Call::Removexattr { ino, .. }
        | Call::Open { ino, .. }
        | Call::Read { ino, .. }
        | Call::Write { ino, .. }
        | Call::Fsync { ino, .. }
        | Call::Fallocate { ino, .. }
        | Call::Seek { ino, .. }
        | Call::Take { ino, .. }
        | Call::LogBegin { ino, .. }
        | Call::LogPublish { ino, .. }
        | Call::LogMap { ino, .. }
        | Call::List { ino, .. } => [Some(ino), None, None, None],
        Call::ReadObject { object, .. } | Call::WriteObject { object, .. } => {
            [Some(object.ino), None, None, None]
        }
        Call::CopyRange { source, target, .. } => [Some(source), Some(target), None, None],
        ref other => {
            let [a, b] = other.changed_dirs();
            [a, b, None, None]
        }
    }
}

impl Peer {
    /// Waits until no call that was left may change these any more.
    pub(super) fn wait_settled(&self, touched: &Touched) -> Result<()> {
        if self.lefts.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut left = self.left.lock();
        let meets = |(_, changes): &(u16, Touched)| {
            changes.iter().flatten().any(|ino| touched.contains(&Some(*ino)))
        };
        while left.iter().any(meets) {
            self.may_wait_on()?;
            let _ = self.settled.wait_for(&mut left, LOOK);
        }
        Ok(())
    }

    /// Whether a call that is not under way yet may wait on.
    pub(in crate::remote) fn may_wait_on(&self) -> Result<()> {
        match () {
            () if asked::is_given_up() => Err(Errno::EINTR),
            () if self.is_closing() => Err(Errno::ENOTCONN),
            () if self.lost.load(Ordering::Acquire) => Err(Errno::EIO),
            // Whoever settles or asks for a sign of life finds out that it is back.
            () if self.is_given_up() => Err(Errno::ETIMEDOUT),
            () => Ok(()),
        }
    }

    /// Leaves a call: it is settled on a thread of its own. At most one for each slot.
    pub(super) fn leave(&self, left: Left, changing: Option<Changing>) {
        let id = left.slot.id.0;
        if left.is_once {
            self.left.lock().push((id, left.changes));
            self.lefts.fetch_add(1, Ordering::AcqRel);
        }
        let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else {
            return asked::part(None, || self.settle(left, changing));
        };
        // Kept in a cell, so that it is not lost with a thread that could not be started.
        let job = std::sync::Arc::new(parking_lot::Mutex::new(Some((left, changing))));
        let taken = std::sync::Arc::clone(&job);
        let work = move || {
            if let Some((left, changing)) = taken.lock().take() {
                me.settle(left, changing);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("settle".into()).spawn(work) {
            tracing::warn!(%error, "cannot start a thread: a call is settled in the place of its program's");
            if let Some((left, changing)) = job.lock().take() {
                asked::part(None, || self.settle(left, changing));
            }
        }
    }

    fn settle(&self, left: Left, changing: Option<Changing>) {
        let Left { slot, is_once, given_back, carried_in, opens, changes, then } = left;
        let id = slot.id.0;
        let mut in_use = InUse { peer: self, slot: Some(slot), by_itself: true };
        if let Some(slot) = in_use.slot.as_mut() {
            let settled = self.wait_for_answer(slot, opens);
            if !settled && is_once {
                self.use_up(slot, given_back, carried_in, opens);
            }
        }
        if is_once && !self.is_closing() {
            // The kernel may believe what was before, and the program's thread is not the one that changed it.
            let all: Vec<Ino> = changes.iter().flatten().copied().collect();
            self.kept.recalled(&all, &all);
        }
        self.kept.end(changing, None);
        if is_once {
            self.left.lock().retain(|(slot, _)| *slot != id);
            self.lefts.fetch_sub(1, Ordering::AcqRel);
            self.settled.notify_all();
        }
        drop(in_use);
        if let Some(then) = then {
            then();
        }
    }

    /// Waits for the answer where it is to come. True if it came, or will not matter: the session is over.
    fn wait_for_answer(&self, slot: &mut Slot, opens: Option<Ino>) -> bool {
        let Some((link, made_in)) = slot.link.as_mut() else { return false };
        let (made_in, sent) = (*made_in, slot.attempt.number);
        let received = loop {
            match link.receive(&mut slot.body) {
                Err(error) if error.is_timeout() && !self.is_closing() => {}
                other => break other,
            }
        };
        let answer = received.and_then(|header| {
            header.expect(Kind::Answer)?;
            is_answer_to(&header, sent)?;
            link.no_payload(&header)?;
            Ok(frame::decode::<Response>(&slot.body)?.answer)
        });
        drop(link.take_file());
        match answer {
            Ok(Answer::SessionOver) | Err(_) => {
                slot.link = None;
                false
            }
            Ok(answer) => {
                let session = self.session.read();
                if session.generation == made_in {
                    let counts_opens = session.counts_served_opens();
                    self.note_given(opens, counts_opens, &answer);
                    self.give_back_given(opens, counts_opens, &answer);
                }
                slot.heard();
                true
            }
        }
    }

    /// Uses the call's number up, by a call that does nothing; its answer is the call's, if that was done.
    fn use_up(
        &self,
        slot: &mut Slot,
        given_back: GivenBack,
        mut carried_in: Option<u64>,
        opens: Option<Ino>,
    ) {
        let mut request = Request {
            session: SessionId(0),
            slot: slot.id,
            slot_seq: slot.seq,
            attempt: Attempt::default(),
            caller: Caller::root(),
            cpu: None,
            given_back,
            call: Call::Forget(Vec::new()),
        };
        let mut pause = RETRY_FIRST;
        while !self.is_closing() && !self.lost.load(Ordering::Acquire) {
            let seen = self.session.read().generation;
            let tried =
                self.attempt(slot, None, &mut request, &mut carried_in, &[], &mut Room::None);
            match tried {
                Ok(done) => {
                    self.is_there();
                    let session = self.session.read();
                    let counts_opens = session.counts_served_opens();
                    if let Some(ino) = opens {
                        self.note_opened(ino, counts_opens, &done.answer);
                    }
                    return self.give_back_given(opens, counts_opens, &done.answer);
                }
                Err(Failed::SessionOver) => {
                    slot.link = None;
                    if let Err(error) = self.new_session(seen) {
                        tracing::debug!(%error, "a call that was left is not settled yet");
                    }
                }
                // The answer does not come there any more.
                Err(Failed::Link(LinkError::Refused(refusal))) if refusal.errno != libc::EAGAIN => {
                    return slot.link = None;
                }
                Err(_) => slot.link = None,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Gives back what an answer gave that nobody took.
    fn give_back_given(&self, opens: Option<Ino>, counts_opens: bool, answer: &Answer) {
        let forget = |ino: Ino| {
            if self.held.forget(ino, 1) {
                self.kept.forgotten(ino);
            }
        };
        let close = |ino: Ino, local: bool| match local {
            true => self.held.release(ino),
            false if counts_opens => drop(self.held.close_served(ino)),
            false => {}
        };
        match answer {
            Answer::Entry { attr, .. } => forget(attr.attr.ino),
            Answer::Created { attr, local, .. } => {
                close(attr.attr.ino, *local);
                forget(attr.attr.ino);
            }
            Answer::CreatedStriped { attr, open, .. } => {
                if open.writes {
                    self.held.release(attr.attr.ino);
                }
                forget(attr.attr.ino);
            }
            Answer::Listing { entries, .. } => {
                entries.iter().filter(|entry| entry.attr.is_some()).for_each(|e| forget(e.ino));
            }
            Answer::Taken(all) => all.iter().flatten().for_each(|kept| forget(kept.attr.ino)),
            Answer::Opened { local } => {
                if let Some(ino) = opens {
                    close(ino, *local);
                }
            }
            Answer::OpenedStriped(open) if open.writes => {
                if let Some(ino) = opens {
                    self.held.release(ino);
                }
            }
            _ => {}
        }
    }

    /// Notes what an answer gave; `opens` is the file that the call was to open.
    pub(super) fn note_given(&self, opens: Option<Ino>, counts_opens: bool, answer: &Answer) {
        self.held.note(answer);
        if let (Answer::Created { attr, local: false, .. }, true) = (answer, counts_opens) {
            self.held.opened_served(attr.attr.ino);
        }
        if let Some(ino) = opens {
            self.note_opened(ino, counts_opens, answer);
        }
    }

    fn note_opened(&self, ino: Ino, counts_opens: bool, answer: &Answer) {
        match answer {
            Answer::Opened { local: true } => self.held.opened(ino),
            Answer::Opened { local: false } if counts_opens => self.held.opened_served(ino),
            Answer::OpenedStriped(open) if open.writes => self.held.opened(ino),
            _ => {}
        }
    }
}

/// The file that a call is to open.
pub(super) fn opened_by(call: &Call<'_>) -> Option<Ino> {
    match *call {
        Call::Open { ino, .. } => Some(ino),
        _ => None,
    }
}
