//! Which of a session's slots a call takes, and its connection with it.
//!
//! A slot's connection has a thread of its own at the server, which follows its client from processor to
//! processor. So a program's call takes the slot that was last used where it is itself. What the mount does by
//! itself takes the one at the back, so that it does not come between two calls of a program.
//!
//! Invariants:
//! * the slots that are not in use are in the list, the one used last at the front;
//! * each attempt has a number of its own in its slot, and says of which one this mount has the answer: what another answer
//!   gave the server takes back then. As no call of a program may come to the slot for long, a call of the mount's own does;
//! * calls that wait for what other mounts publish never have all slots: each of two mounts could wait for the other one, and
//!   neither could publish.
//!
//! Called by the calls of [`Peer`].

use super::{Peer, Room};
use forebay_net::Link;
use forebay_proto::asked::LOOK;
use forebay_proto::net::session::{MAX_SLOTS, SlotId};
use forebay_proto::net::{Attempt, Call};
use forebay_proto::{Caller, Result};
use std::collections::VecDeque;

/// Slots among which one of the same processor is looked for, those used last: as many as calls are
/// under way at once on a node of few processors.
const SLOTS_LOOKED_AT: usize = 8;
/// Slots that are left for calls which wait for no other mount.
const SPARE_SLOTS: usize = 2;

/// A connection with one call under way.
pub(super) struct Slot {
    pub(super) id: SlotId,
    /// Calls in it that are done once only.
    pub(super) seq: u32,
    /// The last attempt in it.
    pub(super) attempt: Attempt,
    /// The processor that a program's call was last made from.
    cpu: Option<u16>,
    pub(super) link: Option<(Link, u64)>,
    pub(super) body: Vec<u8>,
    /// The call of the last attempt was sent as a whole.
    pub(super) sent: bool,
}

impl Slot {
    pub(super) fn new(id: u16) -> Slot {
        Slot {
            id: SlotId(id),
            seq: 0,
            attempt: Attempt::default(),
            cpu: None,
            link: None,
            body: Vec::new(),
            sent: false,
        }
    }

    /// The answer to the last attempt is here, and what it gave is noted.
    pub(super) fn heard(&mut self) {
        self.attempt.heard = self.attempt.number;
    }

    /// What the server gave last this mount may not know.
    fn is_unheard(&self) -> bool {
        self.attempt.heard != self.attempt.number
    }
}

/// A slot in use, given back at the end.
pub(super) struct InUse<'a> {
    pub(super) peer: &'a Peer,
    pub(super) slot: Option<Slot>,
    pub(super) by_itself: bool,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let mut slots = self.peer.slots.lock();
            match self.by_itself {
                true => slots.push_back(slot),
                false => slots.push_front(slot),
            }
            drop(slots);
            // Not each of those that wait may take it.
            self.peer.slot_free.notify_all();
        }
    }
}

impl Peer {
    /// The slots in which no call is under way: whoever made one there has its answer, or does not want it any more.
    pub(super) fn slots_in_no_use(&self) -> Vec<SlotId> {
        self.slots.lock().iter().map(|slot| slot.id).collect()
    }

    /// A slot that nobody else uses; `by_itself`: for a call that no program asked for; `waits`: for one that may wait for other
    /// mounts. EINTR if nobody waits for it any more, ETIMEDOUT if the server was given up meanwhile.
    pub(super) fn take_slot(&self, by_itself: bool, waits: bool) -> Result<InUse<'_>> {
        // A server that is away is asked where a connection may be left.
        let settles = by_itself && self.lost_since.lock().is_none();
        let mut slots = self.slots.lock();
        loop {
            let slot = match settles {
                true => take_unheard(&mut slots).or_else(|| take(&mut slots, by_itself, waits)),
                false => take(&mut slots, by_itself, waits),
            };
            if slot.is_some() {
                return Ok(InUse { peer: self, slot, by_itself });
            }
            if !by_itself || self.is_closing() {
                self.may_wait_on()?;
            }
            let _ = self.slot_free.wait_for(&mut slots, LOOK);
        }
    }

    /// Has a call made in each slot in which an answer was not heard, if the server is there: it takes back what that gave. No
    /// other call may come to such a slot for long.
    pub(in crate::remote) fn settle_unheard(&self) {
        for _ in 0..MAX_SLOTS {
            let is_settled = !self.slots.lock().iter().any(Slot::is_unheard);
            if is_settled || self.is_away() {
                return;
            }
            if let Err(error) = self.call(&Caller::root(), Call::Renew, &[], Room::None) {
                tracing::debug!(%error, "what answers gave that were not heard is not given back yet");
                return;
            }
        }
    }
}

/// A slot in which the answer to the last attempt was not heard.
fn take_unheard(slots: &mut VecDeque<Slot>) -> Option<Slot> {
    let at = slots.iter().rposition(Slot::is_unheard)?;
    slots.remove(at)
}

fn take(slots: &mut VecDeque<Slot>, by_itself: bool, waits: bool) -> Option<Slot> {
    match by_itself {
        _ if waits && slots.len() <= SPARE_SLOTS => None,
        true => slots.pop_back(),
        false => take_near(slots),
    }
}

/// The slot that was last asked from this processor: its thread at a server of this node is there, too,
/// and what the call moves need not cross to another one. If there is none, the one used last.
fn take_near(slots: &mut VecDeque<Slot>) -> Option<Slot> {
    let cpu = this_cpu();
    let near = slots.iter().take(SLOTS_LOOKED_AT).position(|slot| slot.cpu == cpu);
    let mut slot = slots.remove(near.unwrap_or(0))?;
    slot.cpu = cpu;
    Some(slot)
}

/// The processor that this thread runs on now.
pub(super) fn this_cpu() -> Option<u16> {
    u16::try_from(rustix::thread::sched_getcpu()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_the_mounts_own_goes_where_an_answer_was_not_heard() {
        let mut slots: VecDeque<Slot> = (0..5).map(Slot::new).collect();
        assert!(take_unheard(&mut slots).is_none(), "nothing was asked");
        slots[2].attempt.number += 1;
        let mut slot = take_unheard(&mut slots).unwrap();
        assert_eq!(slot.id, SlotId(2));
        slot.attempt.number += 1;
        assert_eq!(slot.attempt, Attempt { number: 2, heard: 0 });
        slot.heard();
        assert_eq!(slot.attempt, Attempt { number: 2, heard: 2 });
        slots.push_front(slot);
        assert!(take_unheard(&mut slots).is_none() && slots.len() == 5);
    }

    #[test]
    fn calls_that_wait_for_other_mounts_leave_slots_for_those_that_do_not() {
        let mut slots: VecDeque<Slot> = (0..5).map(Slot::new).collect();
        let waiting = std::iter::from_fn(|| take(&mut slots, false, true)).count();
        assert_eq!(waiting, 5 - SPARE_SLOTS);
        assert!(
            take(&mut slots, false, false).is_some() && take(&mut slots, true, false).is_some()
        );
        assert!(take(&mut slots, false, false).is_none());
    }
}
