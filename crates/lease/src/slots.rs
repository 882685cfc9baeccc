//! Exactly once: the last answer in each of a client's slots.
//!
//! A client has one call under way in a slot. It repeats a call, with the same number, when its
//! connection broke before the answer came; the call is then not done again but answered from
//! here, also when the first attempt is still being done by the thread of the broken connection.
//! After a restart of the server the slots begin with what its log had (`AnswerRecord`).
//!
//! Invariant: an inode is kept for a repetition as long as there may be one: until the slot has another call, or the client
//! has said that it has the answer.

use forebay_interfaces::references::References;
use forebay_proto::net::Answer;
use forebay_proto::net::session::{ClientId, MAX_SLOTS, SessionId, SlotId};
use forebay_proto::{Errno, Ino, Result};
use forebay_store::record::{AnswerRecord, Answered, KeptAnswer};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::sync::{Condvar, Mutex};

/// Most clients whose last answers are remembered after their session; the oldest go.
pub const MAX_OLD_CLIENTS: usize = 1024;

/// A reference that keeps an inode for a call that may be repeated.
pub struct Pin {
    inodes: Arc<dyn References>,
    ino: Ino,
}

impl Pin {
    /// `None` if there is no such inode.
    fn new(inodes: &Arc<dyn References>, ino: Ino) -> Option<Pin> {
        let taken = ino != Ino(0) && inodes.take_reference(ino);
        taken.then(|| Pin { inodes: Arc::clone(inodes), ino })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.inodes.forget(self.ino, 1);
    }
}

/// What is known of an earlier attempt of a call that is to be done now.
pub enum Before {
    /// There was none.
    Nothing,
    /// It was answered in a session that is over: what the answer gave was taken back with it.
    Answered(Answer),
    /// The log of the last server has this of it.
    Recorded(Answered),
}

#[derive(Default)]
enum Last {
    #[default]
    Nothing,
    UnderWay,
    Answered(Answer, SessionId),
    Recorded(Answered, Option<Pin>),
}

#[derive(Default)]
struct Slot {
    seq: u32,
    last: Last,
}

impl Slot {
    fn take_pin(&mut self) -> Option<Pin> {
        match &mut self.last {
            Last::Recorded(_, pin) => pin.take(),
            _ => None,
        }
    }
}

/// A client's slots.
pub struct Slots {
    slots: Mutex<Vec<Slot>>,
    changed: Condvar,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new()
    }
}

impl Slots {
    /// Slots in which no call was made.
    pub fn new() -> Slots {
        let slots = (0..MAX_SLOTS).map(|_| Slot::default()).collect();
        Slots { slots: Mutex::new(slots), changed: Condvar::new() }
    }

    /// What the log had. The inode of an answer is kept until the client has gone on.
    fn record(&self, inodes: &Arc<dyn References>, slot: u16, answer: AnswerRecord) {
        let ino = match answer.what {
            Answered::Done(ino) | Answered::Made(ino) => ino,
            _ => Ino(0),
        };
        if let Some(slot) = self.slots.lock().get_mut(usize::from(slot)) {
            let last = Last::Recorded(answer.what, Pin::new(inodes, ino));
            *slot = Slot { seq: answer.seq, last };
        }
    }

    /// Lets go of the inodes of answers: the client did not come back in time.
    pub fn unpin(&self) {
        let pins: Vec<Pin> = self.slots.lock().iter_mut().filter_map(Slot::take_pin).collect();
        // To let go of an inode may take long.
        drop(pins);
    }

    /// The client has the answers of its last calls in these slots.
    pub fn answered(&self, slots: &[SlotId]) {
        let mut all = self.slots.lock();
        let mut pins = Vec::new();
        for slot in slots {
            pins.extend(all.get_mut(usize::from(slot.0)).and_then(Slot::take_pin));
        }
        drop(all);
        drop(pins);
    }

    /// A call that is not numbered came in a slot after the one numbered `seq`, which has its answer, then.
    pub fn used_after(&self, slot: SlotId, seq: u32) {
        let mut all = self.slots.lock();
        let state = all.get_mut(usize::from(slot.0));
        let state = state.filter(|state| seq.wrapping_sub(state.seq) as i32 >= 0);
        let pin = state.and_then(Slot::take_pin);
        drop(all);
        drop(pin);
    }

    /// Does the call numbered `seq` in the slot, or gives the answer that it had in this session.
    /// EINVAL for a slot that does not exist and for a number older than the last.
    pub fn once(
        &self,
        slot: SlotId,
        seq: u32,
        session: SessionId,
        work: impl FnOnce(Before) -> Answer,
    ) -> Result<Answer> {
        let at = usize::from(slot.0);
        // The pin is kept while the call is answered anew.
        let (before, _pin) = {
            let mut slots = self.slots.lock();
            loop {
                let state = slots.get_mut(at).ok_or(Errno::EINVAL)?;
                // The count wraps. What the log had may lag behind it by any number of calls that
                // left nothing there.
                let counted = matches!(state.last, Last::UnderWay | Last::Answered(..));
                if counted && (seq.wrapping_sub(state.seq) as i32) < 0 {
                    return Err(Errno::EINVAL);
                }
                if seq != state.seq {
                    *state = Slot { seq, last: Last::UnderWay };
                    break (Before::Nothing, None);
                }
                match std::mem::replace(&mut state.last, Last::UnderWay) {
                    Last::Answered(answer, given_in) if given_in == session => {
                        state.last = Last::Answered(answer.clone(), given_in);
                        return Ok(answer);
                    }
                    Last::Answered(answer, _) => break (Before::Answered(answer), None),
                    Last::Recorded(what, pin) => break (Before::Recorded(what), pin),
                    Last::Nothing => break (Before::Nothing, None),
                    Last::UnderWay => self.changed.wait(&mut slots),
                }
            }
        };
        let answer = Answer::failed(Errno::EIO);
        let mut doing = Doing { slots: self, at, seq, session, answer };
        doing.answer = work(before);
        Ok(doing.answer.clone())
    }
}

/// Leaves an answer behind also if the work panicked.
struct Doing<'a> {
    slots: &'a Slots,
    at: usize,
    seq: u32,
    session: SessionId,
    answer: Answer,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        let mut slots = self.slots.slots.lock();
        if let Some(slot) = slots.get_mut(self.at)
            && slot.seq == self.seq
        {
            slot.last = Last::Answered(self.answer.clone(), self.session);
        }
        self.slots.changed.notify_all();
    }
}

/// Clients without a session that may come back and repeat a call, from the one that has been
/// away longest.
#[derive(Default)]
pub struct OldClients {
    slots: HashMap<ClientId, Arc<Slots>>,
    order: VecDeque<ClientId>,
}

impl OldClients {
    /// Those of the log of the last server, in any order.
    pub fn recorded(inodes: &Arc<dyn References>, answers: Vec<KeptAnswer>) -> OldClients {
        let mut old = OldClients::default();
        for ((client, slot), answer) in answers {
            let client = ClientId(client);
            let slots = old.slots.entry(client).or_insert_with(|| {
                old.order.push_back(client);
                Arc::new(Slots::new())
            });
            slots.record(inodes, slot, answer);
        }
        old
    }

    /// A client's session is over.
    pub fn insert(&mut self, client: ClientId, slots: Arc<Slots>) {
        self.remove(client);
        self.slots.insert(client, slots);
        self.order.push_back(client);
    }

    /// A client has a session again, or has gone for good.
    pub fn remove(&mut self, client: ClientId) -> Option<Arc<Slots>> {
        let slots = self.slots.remove(&client)?;
        self.order.retain(|other| *other != client);
        Some(slots)
    }

    /// Takes the oldest out, if there are more than [`MAX_OLD_CLIENTS`].
    pub fn one_too_many(&mut self) -> Option<ClientId> {
        if self.order.len() <= MAX_OLD_CLIENTS {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.slots.remove(&oldest);
        Some(oldest)
    }

    /// None of them came back in time: nothing is kept for them but their answers.
    pub fn unpin(&self) {
        self.slots.values().for_each(|slots| slots.unpin());
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
            slots.once(SlotId(slot), seq, SessionId(1), |_| {
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
            slow.once(SlotId(3), 9, SessionId(1), |_| {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                Answer::Count(42)
            })
        });
        begins.recv().unwrap();
        let repeated = slots.once(SlotId(3), 9, SessionId(1), |_| Answer::Count(0));
        assert_eq!(repeated, Ok(Answer::Count(42)));
        assert_eq!(first.join().unwrap(), repeated);
    }

    #[test]
    fn the_count_of_calls_wraps() {
        let slots = Slots::new();
        let call =
            |seq, answer| slots.once(SlotId(0), seq, SessionId(1), |_| Answer::Count(answer));
        assert_eq!(call(u32::MAX - 1, 1), Ok(Answer::Count(1)), "a mount older than the server");
        assert_eq!(call(u32::MAX, 2), Ok(Answer::Count(2)));
        assert_eq!(call(0, 3), Ok(Answer::Count(3)));
        assert_eq!(call(u32::MAX, 4), Err(Errno::EINVAL));
        assert_eq!(call(0, 5), Ok(Answer::Count(3)));
    }

    #[test]
    fn a_call_repeated_in_a_new_session_is_told_what_the_old_one_had() {
        let slots = Slots::new();
        slots.once(SlotId(0), 1, SessionId(1), |_| Answer::Count(5)).unwrap();
        let repeated = slots.once(SlotId(0), 1, SessionId(2), |before| {
            assert!(matches!(before, Before::Answered(Answer::Count(5))));
            Answer::Count(6)
        });
        assert_eq!(repeated, Ok(Answer::Count(6)));
        let again = slots.once(SlotId(0), 1, SessionId(2), |_| Answer::Count(7));
        assert_eq!(again, Ok(Answer::Count(6)));
    }

    /// How many references are held.
    #[derive(Default)]
    struct Taken(AtomicU32);

    impl References for Taken {
        fn take_reference(&self, _: Ino) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            true
        }

        fn forget(&self, _: Ino, _: u64) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_the_log_had_is_kept_until_the_client_has_its_answer() {
        let taken = Arc::new(Taken::default());
        let references: Arc<dyn References> = Arc::clone(&taken) as Arc<dyn References>;
        let answers = (0..5u16).map(|slot| {
            let what = Answered::Made(Ino(u64::from(slot) + 7));
            ((3, slot), AnswerRecord { seq: 9, what })
        });
        let mut old = OldClients::recorded(&references, answers.collect());
        let slots = old.remove(ClientId(3)).unwrap();
        let kept = || taken.0.load(Ordering::Relaxed);
        assert_eq!(kept(), 5);
        slots.answered(&[SlotId(4), SlotId(8), SlotId(MAX_SLOTS)]);
        assert_eq!(kept(), 4);
        // A call of before it, as the one that says what a client holds is numbered; and the slot's next.
        slots.used_after(SlotId(0), 8);
        assert_eq!(kept(), 4);
        slots.used_after(SlotId(0), 9);
        slots.used_after(SlotId(1), 10);
        slots.used_after(SlotId(MAX_SLOTS), 10);
        assert_eq!(kept(), 2);
        slots.once(SlotId(2), 10, SessionId(1), |_| Answer::Done).unwrap();
        assert_eq!(kept(), 1);
        // What is known of the call stays.
        let again = slots.once(SlotId(4), 9, SessionId(1), |before| {
            assert!(matches!(before, Before::Recorded(Answered::Made(Ino(11)))));
            Answer::Done
        });
        assert_eq!(again, Ok(Answer::Done));
        slots.unpin();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn of_too_many_clients_the_oldest_go() {
        let mut old = OldClients::default();
        for client in 0..=MAX_OLD_CLIENTS as u64 {
            old.insert(ClientId(client), Arc::new(Slots::new()));
        }
        old.insert(ClientId(0), Arc::new(Slots::new()));
        assert_eq!(old.one_too_many(), Some(ClientId(1)), "0 was there a moment ago");
        assert_eq!(old.one_too_many(), None);
        assert!(old.remove(ClientId(1)).is_none() && old.remove(ClientId(0)).is_some());
    }
}
