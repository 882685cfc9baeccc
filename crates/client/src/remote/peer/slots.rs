//! Which of a session's slots a call takes, and its connection with it.
//!
//! A slot's connection has a thread of its own at the server, which follows its client from processor to
//! processor. So a program's call takes the slot that was last used where it is itself. What the mount does by
//! itself takes the one at the back, so that it does not come between two calls of a program.
//!
//! Invariant: the slots that are not in use are in the list, the one used last at the front. Called by the calls of
//! [`Peer`].

use super::Peer;
use forebay_net::Link;
use forebay_proto::Result;
use forebay_proto::asked::LOOK;
use forebay_proto::net::session::SlotId;
use std::collections::VecDeque;

/// Slots among which one of the same processor is looked for, those used last: as many as calls are
/// under way at once on a node of few processors.
const SLOTS_LOOKED_AT: usize = 8;

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
            self.peer.slot_free.notify_one();
        }
    }
}

impl Peer {
    /// The slots in which no call is under way: whoever made one there has its answer, or does not want it any more.
    pub(super) fn slots_in_no_use(&self) -> Vec<SlotId> {
        self.slots.lock().iter().map(|slot| slot.id).collect()
    }

    /// A slot that nobody else uses; `by_itself`: for a call that no program asked for. EINTR if nobody waits for it any
    /// more, ETIMEDOUT if the server was given up meanwhile.
    pub(super) fn take_slot(&self, by_itself: bool) -> Result<InUse<'_>> {
        let mut slots = self.slots.lock();
        loop {
            let slot = match by_itself {
                true => slots.pop_back(),
                false => take_near(&mut slots),
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
