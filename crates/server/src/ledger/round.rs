//! When what waits for other servers is done: the state of the rounds that one thread does until nothing is left
//! (`Ledger::start_rounds`).
//!
//! Invariants: nothing to do, and the thread sleeps; what is asked for during a round is done in a next one. The lock is taken
//! below the record's, or alone, and held for no call.

use forebay_proto::ServerId;
use forebay_proto::control::ControlError;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A member does not look for moved servers more often than this.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// What the thread waits for.
#[derive(Default)]
pub(super) struct Round {
    state: Mutex<RoundState>,
    kicked: Condvar,
}

#[derive(Default)]
struct RoundState {
    soon: bool,
    over: bool,
    /// A member: the leader knows where this server is.
    announced: bool,
    announced_at: Option<Instant>,
    /// What the leader last said against this server.
    refused: Option<ControlError>,
    /// Who is said to be the leader by now.
    follow: Option<ServerId>,
    /// Counts the other members that were asked for the leader.
    asked_others: usize,
    /// A leader: counts changes of the servers, and which count each member was told.
    version: u64,
    told: HashMap<ServerId, u64>,
}

impl Round {
    /// There is something to do.
    pub(super) fn soon(&self) {
        self.state.lock().soon = true;
        self.kicked.notify_all();
    }

    /// Members are to be told of the servers.
    pub(super) fn servers_changed(&self) {
        self.state.lock().version += 1;
        self.soon();
    }

    /// A server could not be reached: the leader may know where it is now.
    pub(super) fn look_for_moved(&self) {
        let mut state = self.state.lock();
        if state.announced_at.is_none_or(|at| at.elapsed() > LOOK_PAUSE) {
            state.announced = false;
            state.soon = true;
            self.kicked.notify_all();
        }
    }

    /// The pool is said to have another leader.
    pub(super) fn follow_soon(&self, leader: ServerId) {
        let mut state = self.state.lock();
        state.follow = Some(leader);
        state.soon = true;
        self.kicked.notify_all();
    }

    /// A leader knows where this server is.
    pub(super) fn is_announced(&self) {
        self.state.lock().announced = true;
    }

    /// The leader knows another server of this one's identity.
    pub(super) fn is_refused(&self, error: ControlError) {
        self.state.lock().refused = Some(error);
    }

    /// No more rounds.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.kicked.notify_all();
    }

    /// Waits for the next round; false if there is none.
    pub(super) fn wait(&self, pause: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        let until = pause.map(|pause| Instant::now() + pause);
        while !state.soon && !state.over {
            match until {
                None => self.kicked.wait(&mut state),
                Some(until) => {
                    if self.kicked.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
        }
        state.soon = false;
        !state.over
    }

    /// What the leader last said against this server.
    pub(super) fn take_refusal(&self) -> Option<ControlError> {
        self.state.lock().refused.take()
    }

    /// Who is said to be the leader by now.
    pub(super) fn take_follow(&self) -> Option<ServerId> {
        self.state.lock().follow.take()
    }

    /// A member is about to announce itself; false if the leader knows already where it is.
    pub(super) fn begins_to_announce(&self) -> bool {
        let mut state = self.state.lock();
        if !state.announced {
            state.announced_at = Some(Instant::now());
        }
        !state.announced
    }

    /// Of the other members, counted round and round, the first that is asked now; `count` are asked.
    pub(super) fn next_others(&self, count: usize) -> usize {
        let mut state = self.state.lock();
        let first = state.asked_others;
        state.asked_others = first.wrapping_add(count);
        first
    }

    /// Counts the changes of the servers.
    pub(super) fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Those of these members that were not told of this version.
    pub(super) fn untold(
        &self,
        version: u64,
        members: impl Iterator<Item = ServerId>,
    ) -> Vec<ServerId> {
        let state = self.state.lock();
        members.filter(|id| state.told.get(id) != Some(&version)).collect()
    }

    /// These members were told of this version.
    pub(super) fn are_told(&self, version: u64, members: impl Iterator<Item = ServerId>) {
        let mut state = self.state.lock();
        for id in members {
            state.told.insert(id, version);
        }
    }
}
