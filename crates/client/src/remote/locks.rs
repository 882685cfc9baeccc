//! Locks of a mount on a server: requests that wait. What is held and what was lost is in `held_locks`.
//!
//! A program that gets a signal does not wait for the server: not for a lock, and not for the end of one. What it leaves
//! there is told *later*, in order, by a thread of its own: an unlock, or that a request is given up. A request that was
//! given up may have been granted: then what the owner held before is locked again as it was, and the rest unlocked.
//! The same where a server does not answer for as long as the mount is patient, and the program's call ends with ETIMEDOUT: the
//! server may go on later, with the session, and nobody else would ever unlock what nobody here holds.
//!
//! A flock of another mode is two steps, as in Linux: what was held goes first, and stays gone if the rest fails or waits.
//!
//! Invariants
//! * An owner's next request waits until what is to be told of it has been told.
//! * What this mount wrote to a file in logs is published before one of its locks there is given back or changed: who gets
//!   the lock next sees it.

use super::held_locks::{HeldLocks, Owner};
use super::logged::Logs;
use super::peer::{Peer, Room, Then};
use forebay_proto::api::{LockUser, LockWaiter, Locks};
use forebay_proto::asked::{self, LOOK};
use forebay_proto::net::session::{LockCall, LockKind, LockSpec, LockState, Recall, Ticket};
use forebay_proto::net::{Answer, Call};
use forebay_proto::{Caller, Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What the server is told later.
#[derive(Clone, Debug)]
enum Told {
    /// An unlock.
    Call(LockCall),
    /// A request was given up: what it may have been granted.
    GivenUp(LockSpec, Option<Ticket>),
}

#[derive(Default)]
struct Later {
    /// In order. Bounded by the requests that programs make, each of which is let go by a signal.
    queue: VecDeque<(Owner, Told)>,
    /// Owners of whom something is to be told, or may be: how often.
    owners: HashMap<Owner, usize>,
    /// A thread tells.
    telling: bool,
}

/// The locks of one mount.
pub(super) struct RemoteLocks {
    me: Weak<RemoteLocks>,
    peer: Arc<Peer>,
    logs: Arc<Logs>,
    next_ticket: AtomicU64,
    waiting: Mutex<HashMap<Ticket, (LockSpec, LockWaiter)>>,
    later: Mutex<Later>,
    /// Owners in `later`: mostly none.
    unsettled: AtomicUsize,
    was_told: Condvar,
}

impl RemoteLocks {
    /// `peer` is the server of shard 0, which keeps the locks of the whole buffer.
    pub(super) fn new(peer: Arc<Peer>, logs: Arc<Logs>) -> Arc<RemoteLocks> {
        Arc::new_cyclic(|me| RemoteLocks {
            me: me.clone(),
            peer,
            logs,
            next_ticket: AtomicU64::new(1),
            waiting: Mutex::default(),
            later: Mutex::default(),
            unsettled: AtomicUsize::new(0),
            was_told: Condvar::new(),
        })
    }

    fn held(&self) -> &HeldLocks {
        &self.peer.held_locks
    }

    fn ask(&self, call: LockCall) -> Result<LockState> {
        state(self.peer.call(&Caller::root(), Call::Lock(call), &[], Room::None)?.answer)
    }

    /// Asks for an owner, after what is to be told of it. If that is given up and the server may have heard it, `told` is
    /// told when that is settled, and what the program is told is in the answer.
    fn ask_for(
        &self,
        owner: Owner,
        call: LockCall,
        told: Told,
    ) -> Result<(LockState, Option<Errno>)> {
        self.wait_told(owner)?;
        let mut was_left = false;
        let done = {
            let mut when_left = || -> Then {
                was_left = true;
                self.enter(owner);
                let (me, told) = (self.me.clone(), told.clone());
                Box::new(move || {
                    if let Some(me) = me.upgrade() {
                        me.tell(owner, told);
                    }
                })
            };
            let call = Call::Lock(call);
            let caller = Caller::root();
            self.peer.call_or_leave(None, &caller, call, &[], Room::None, Some(&mut when_left))
        };
        match done {
            Ok(done) => Ok((state(done.answer)?, None)),
            Err(errno) if was_left => Ok((LockState::Waits, Some(errno))),
            // Not heard: nothing to be told.
            Err(errno) => Err(errno),
        }
    }

    /// Unlocks: that is done here already, and is told the server in any case.
    fn unlock(&self, owner: Owner, call: LockCall) -> Result<()> {
        let why = match self.ask_for(owner, call.clone(), Told::Call(call.clone())) {
            Ok((_, why)) => why,
            Err(errno @ (Errno::EINTR | Errno::ETIMEDOUT)) => {
                self.enter(owner);
                self.tell(owner, Told::Call(call));
                Some(errno)
            }
            Err(errno) => return Err(errno),
        };
        match why {
            None | Some(Errno::EINTR) => Ok(()),
            Some(errno) => Err(errno),
        }
    }

    /// Publishes what this mount wrote to a file in logs, also if its program got a signal: others are about to lock it.
    fn publish(&self, ino: Ino) -> Result<()> {
        asked::part(None, || self.logs.publish(ino, false))
    }

    /// Something is to be told of an owner.
    fn enter(&self, owner: Owner) {
        *self.later.lock().owners.entry(owner).or_insert(0) += 1;
        self.unsettled.fetch_add(1, Ordering::AcqRel);
    }

    fn settled(&self, owner: Owner) {
        let mut later = self.later.lock();
        if let Some(count) = later.owners.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                later.owners.remove(&owner);
            }
            self.unsettled.fetch_sub(1, Ordering::AcqRel);
        }
        self.was_told.notify_all();
    }

    /// Waits until the server has been told all of an owner.
    fn wait_told(&self, owner: Owner) -> Result<()> {
        if self.unsettled.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut later = self.later.lock();
        while later.owners.contains_key(&owner) {
            self.peer.may_wait_on()?;
            let _ = self.was_told.wait_for(&mut later, LOOK);
        }
        Ok(())
    }

    /// Tells the server later; the owner was entered.
    fn tell(&self, owner: Owner, told: Told) {
        let mut later = self.later.lock();
        later.queue.push_back((owner, told));
        if std::mem::replace(&mut later.telling, true) {
            return;
        }
        drop(later);
        let me = self.me.clone();
        let work = move || {
            if let Some(me) = me.upgrade() {
                me.tell_all();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("unlock".into()).spawn(work) {
            tracing::warn!(%error, "cannot start a thread: a lock is given back in the place of its program");
            asked::part(None, || self.tell_all());
        }
    }

    fn tell_all(&self) {
        loop {
            let next = {
                let mut later = self.later.lock();
                let next = later.queue.pop_front();
                later.telling = next.is_some();
                next
            };
            let Some((owner, told)) = next else { return };
            while let Err(error) = self.tell_now(&told) {
                // A session that ends takes all with it that this mount does not hold.
                if error != Errno::ETIMEDOUT || self.peer.is_closing() {
                    tracing::debug!(%error, "the server was not told of the end of a lock");
                    break;
                }
                std::thread::sleep(LOOK);
            }
            self.settled(owner);
        }
    }

    fn tell_now(&self, told: &Told) -> Result<()> {
        match told {
            Told::Call(call) => self.ask(call.clone()).map(drop),
            Told::GivenUp(spec, ticket) => {
                if let Some(ticket) = ticket {
                    self.ask(LockCall::Cancel(*ticket))?;
                }
                let (held, not_held) = self.held().within(spec);
                for spec in held {
                    self.ask(LockCall::Set { spec, wait: None })
                        .inspect_err(|errno| self.note_refused(&spec, *errno))?;
                }
                for spec in not_held {
                    self.ask(LockCall::Unset(spec))?;
                }
                Ok(())
            }
        }
    }

    /// Somebody is in the way of a lock: a flock of another mode is gone then.
    fn note_refused(&self, spec: &LockSpec, errno: Errno) {
        if spec.kind == LockKind::Flock && errno == Errno::EAGAIN {
            self.held().unset(spec);
        }
    }

    /// A request waits, unless its grant was heard first: that is noted when it is no longer here.
    ///
    /// It may also have ended in a session that is over: it was asked for again there, and granted, while the call itself had no
    /// answer yet and was made once more in the next session. What waits there is nobody's, and so would its grant be: it
    /// is given up. `begun_in`: the session in which the call began, if that is known.
    fn note_waiting(&self, spec: &LockSpec, ticket: Ticket, begun_in: Option<u64>) {
        {
            let waiting = self.waiting.lock();
            if waiting.contains_key(&ticket) {
                self.note_refused(spec, Errno::EAGAIN);
                return;
            }
        }
        if begun_in.is_none() || begun_in != self.peer.generation_now() {
            let owner = Owner::of(spec);
            self.enter(owner);
            self.tell(owner, Told::GivenUp(*spec, Some(ticket)));
        }
    }

    /// A request has ended, one way or another; only the first end counts. What it was for, if it was this.
    fn ended(&self, ticket: Ticket, result: Result<()>) -> Option<LockSpec> {
        let (spec, waiter) = self.waiting.lock().remove(&ticket)?;
        if result.is_ok() {
            self.held().set(&spec);
        }
        waiter(result);
        Some(spec)
    }

    /// What a recall tells of requests that waited.
    pub(super) fn heard(&self, recall: &Recall) {
        for &ticket in &recall.granted {
            self.ended(ticket, Ok(()));
        }
        for &(ticket, errno) in &recall.refused {
            self.ended(ticket, Err(Errno(errno)));
        }
    }

    /// In a new session nobody knows of the requests that wait: they are made again.
    pub(super) fn ask_again(&self) {
        let all: Vec<_> = self.waiting.lock().iter().map(|(t, (spec, _))| (*t, *spec)).collect();
        for (ticket, spec) in all {
            if let Err(errno) = self.held().must_not_be_lost(Owner::of(&spec)) {
                self.ended(ticket, Err(errno));
                continue;
            }
            match self.ask(LockCall::Set { spec, wait: Some(ticket) }) {
                Ok(LockState::Free) => drop(self.ended(ticket, Ok(()))),
                // Gone meanwhile: its program may have given it up before the server heard of it here.
                Ok(_) => self.note_waiting(&spec, ticket, None),
                Err(errno) => drop(self.ended(ticket, Err(errno))),
            }
        }
    }
}

fn state(answer: Answer) -> Result<LockState> {
    match answer {
        Answer::Lock(state) => Ok(state),
        _ => Err(Errno::EPROTO),
    }
}

impl Locks for RemoteLocks {
    fn test(&self, spec: &LockSpec) -> Result<Option<LockSpec>> {
        self.wait_told(Owner::of(spec))?;
        match self.ask(LockCall::Test(*spec))? {
            LockState::Held(held) => Ok(Some(held)),
            LockState::Free | LockState::Waits => Ok(None),
        }
    }

    fn set(&self, spec: &LockSpec, waiter: Option<LockWaiter>) -> Result<Option<Ticket>> {
        let owner = Owner::of(spec);
        self.held().must_not_be_lost(owner)?;
        // It may give a lock for writing back for one for reading.
        self.publish(spec.ino)?;
        let Some(waiter) = waiter else {
            let call = LockCall::Set { spec: *spec, wait: None };
            return match self.ask_for(owner, call, Told::GivenUp(*spec, None)) {
                Ok((_, Some(errno))) => Err(errno),
                Ok((_, None)) => {
                    self.held().set(spec);
                    Ok(None)
                }
                Err(errno) => {
                    self.note_refused(spec, errno);
                    Err(errno)
                }
            };
        };
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        let begun_in = self.peer.generation_now();
        // The grant may be heard before the answer to the request.
        self.waiting.lock().insert(ticket, (*spec, waiter));
        let call = LockCall::Set { spec: *spec, wait: Some(ticket) };
        match self.ask_for(owner, call, Told::GivenUp(*spec, Some(ticket))) {
            Ok((_, Some(errno))) => {
                drop(self.waiting.lock().remove(&ticket));
                Err(errno)
            }
            Ok((LockState::Waits, None)) => {
                self.note_waiting(spec, ticket, begun_in);
                Ok(Some(ticket))
            }
            Ok((LockState::Free | LockState::Held(_), _)) => {
                // Nobody calls the waiter of a request that did not wait. One that was made again in a new session
                // may have been called.
                let waited = self.waiting.lock().remove(&ticket).is_none();
                self.held().set(spec);
                Ok(waited.then_some(ticket))
            }
            Err(errno) => {
                drop(self.waiting.lock().remove(&ticket));
                Err(errno)
            }
        }
    }

    fn unset(&self, spec: &LockSpec) -> Result<()> {
        let published = self.publish(spec.ino);
        self.held().unset(spec);
        // The lock goes in any case.
        self.unlock(Owner::of(spec), LockCall::Unset(*spec)).and(published)
    }

    fn cancel(&self, ticket: Ticket) {
        let waiting = self.waiting.lock().remove(&ticket);
        if let Some((spec, waiter)) = waiting {
            let owner = Owner::of(&spec);
            // Its owner's next request comes after this.
            self.enter(owner);
            waiter(Err(Errno::EINTR));
            self.tell(owner, Told::GivenUp(spec, Some(ticket)));
        }
    }

    fn drop_owner(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<()> {
        // Every close asks: only owners that hold something are worth a question.
        let of = Owner { ino, kind, owner };
        if !self.held().drop_owner(of) {
            return Ok(());
        }
        self.unlock(of, LockCall::Drop { ino, kind, owner })
    }

    fn may_use(&self, ino: Ino, user: LockUser) -> Result<()> {
        self.held().may_use(ino, user)
    }
}
