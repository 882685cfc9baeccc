//! Which of a session's slots a call takes, and its connection with it.
//!
//! A slot's connection has a thread of its own at the server, which follows its client from processor to
//! processor. So a program's call takes the slot that was last used where it is itself. What the mount does by
//! itself takes the one at the back, so that it does not come between two calls of a program.
//!
//! Invariants:
//! * the slots that are not in use are in the list, the one used last at the front;
//! * calls that wait for what other mounts publish never have all slots: each of two mounts could wait for the other one, and
//!   neither could publish.
//!
//! Called by the calls of [`Peer`].

use super::Peer;
use forebay_net::Link;
use forebay_proto::Result;
use forebay_proto::asked::LOOK;
use forebay_proto::net::session::SlotId;
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
    /// The processor that a program's call was last made from.
    cpu: Option<u16>,
    pub(super) link: Option<(Link, u64)>,
    pub(super) body: Vec<u8>,
    /// The call of the last attempt was sent as a whole.
    pub(super) sent: bool,
}

impl Slot {
    pub(super) fn new(id: u16) -> Slot {
        Slot { id: SlotId(id), seq: 0, cpu: None, link: None, body: Vec::new(), sent: false }
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
        let mut slots = self.slots.lock();
        loop {
            let slot = take(&mut slots, by_itself, waits);
            if slot.is_some() {
                return Ok(InUse { peer: self, slot, by_itself });
            }
            if !by_itself || self.is_closing() {
                self.may_wait_on()?;
            }
            let _ = self.slot_free.wait_for(&mut slots, LOOK);
        }
    }
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
