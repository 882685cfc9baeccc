//! Exactly once: the last answer in each of a client's slots.
//!
//! A client has one call under way in a slot. It repeats a call, with the same number, when its
//! connection broke before the answer came; the call is then not done again but answered from
//! here, also when the first attempt is still being done by the thread of the broken connection.

use forebay_proto::net::Answer;
use forebay_proto::net::session::{MAX_SLOTS, SlotId};
use forebay_proto::{Errno, Result};
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
enum Last {
    #[default]
    Nothing,
    UnderWay,
    Answered(Answer),
}

#[derive(Default)]
struct Slot {
    seq: u32,
    last: Last,
}

/// A client's slots.
pub(crate) struct Slots {
    slots: Mutex<Vec<Slot>>,
    changed: Condvar,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        let slots = (0..MAX_SLOTS).map(|_| Slot::default()).collect();
        Slots { slots: Mutex::new(slots), changed: Condvar::new() }
    }

    /// Does the call numbered `seq` in the slot, or gives the answer that it had. EINVAL for a
    /// slot that does not exist and for a number older than the last.
    pub(crate) fn once(
        &self,
        slot: SlotId,
        seq: u32,
        work: impl FnOnce() -> Answer,
    ) -> Result<Answer> {
        let at = usize::from(slot.0);
        {
            let mut slots = self.slots.lock();
            loop {
                let state = slots.get_mut(at).ok_or(Errno::EINVAL)?;
                if seq < state.seq {
                    return Err(Errno::EINVAL);
                }
                if seq > state.seq {
                    *state = Slot { seq, last: Last::UnderWay };
                    break;
                }
                match &state.last {
                    Last::Answered(answer) => return Ok(answer.clone()),
                    Last::Nothing => {
                        state.last = Last::UnderWay;
                        break;
                    }
                    Last::UnderWay => self.changed.wait(&mut slots),
                }
            }
        }
        let mut doing = Doing { slots: self, at, seq, answer: Answer::failed(Errno::EIO) };
        doing.answer = work();
        Ok(doing.answer.clone())
    }
}

/// Leaves an answer behind also if the work panicked.
struct Doing<'a> {
    slots: &'a Slots,
    at: usize,
    seq: u32,
    answer: Answer,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        let mut slots = self.slots.slots.lock();
        if let Some(slot) = slots.get_mut(self.at)
            && slot.seq == self.seq
        {
            slot.last = Last::Answered(self.answer.clone());
        }
        self.slots.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn a_repeated_call_is_answered_and_not_done_again() {
        let slots = Slots::new();
        let done = AtomicU32::new(0);
        let call = |slot, seq| {
            slots.once(SlotId(slot), seq, || {
                Answer::Count(u64::from(done.fetch_add(1, Ordering::Relaxed)))
            })
        };
        assert_eq!(call(0, 1), Ok(Answer::Count(0)));
        assert_eq!(call(0, 1), Ok(Answer::Count(0)));
        assert_eq!(call(1, 1), Ok(Answer::Count(1)));
        assert_eq!(call(0, 2), Ok(Answer::Count(2)));
        assert_eq!(call(0, 1), Err(Errno::EINVAL));
        assert_eq!(call(MAX_SLOTS, 1), Err(Errno::EINVAL));
    }

    #[test]
    fn a_call_repeated_while_it_is_done_waits_for_its_answer() {
        let slots = Arc::new(Slots::new());
        let slow = Arc::clone(&slots);
        let (begun, begins) = std::sync::mpsc::channel();
        let first = std::thread::spawn(move || {
            slow.once(SlotId(3), 9, || {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                Answer::Count(42)
            })
        });
        begins.recv().unwrap();
        let repeated = slots.once(SlotId(3), 9, || Answer::Count(0));
        assert_eq!(repeated, Ok(Answer::Count(42)));
        assert_eq!(first.join().unwrap(), repeated);
    }
}
