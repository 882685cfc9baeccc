//! What the answers to attempts gave that their mount may not have heard of, for one session.
//!
//! A call that is done once only is answered again with what it gave ([`forebay_lease::slots`]). Any other is done again: a
//! lookup, an open or a listing whose answer was lost gives once more what nobody will give back. So an attempt says which
//! answer its mount has heard last in the slot ([`Attempt`]), and what later ones gave is taken back.
//!
//! Invariants:
//! * of the attempts in a slot only the last that has begun may keep what it gives;
//! * an attempt that comes behind a later one of its slot is not done;
//! * what was heard is never taken back.
//!
//! Attempts of another session need no look: its connections are not this session's, and what it gave went with it.

use forebay_proto::net::session::{MAX_SLOTS, SlotId};
use forebay_proto::net::{Answer, Attempt, Call};
use forebay_proto::{Errno, Ino, Result};
use parking_lot::Mutex;

/// What an answer gives that its mount gives back some day.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Gave {
    #[default]
    Nothing,
    /// A reference.
    Reference(Ino),
    /// A reference to each.
    References(Vec<Ino>),
    /// An open, by descriptor (`local`) or not.
    Open {
        /// File.
        ino: Ino,
        /// As the mount gives it back.
        local: bool,
    },
}

impl Gave {
    /// What the answer to a call gives that may be done twice.
    pub(super) fn of(call: &Call<'_>, answer: &Answer) -> Gave {
        if call.is_once_only() {
            // It is answered again, or its mount uses its number up and gives back what it hears then.
            return Gave::Nothing;
        }
        match (answer, call) {
            (Answer::Entry { attr, .. }, _) => Gave::Reference(attr.attr.ino),
            (Answer::Listing { entries, .. }, _) => {
                let given = entries.iter().filter(|entry| entry.attr.is_some());
                Gave::References(given.map(|entry| entry.ino).collect())
            }
            (Answer::Taken(all), _) => {
                Gave::References(all.iter().flatten().map(|kept| kept.attr.ino).collect())
            }
            (Answer::Opened { local }, Call::Open { ino, .. }) => {
                Gave::Open { ino: *ino, local: *local }
            }
            (Answer::OpenedStriped(open), Call::Open { ino, .. }) if open.writes => {
                Gave::Open { ino: *ino, local: true }
            }
            _ => Gave::Nothing,
        }
    }
}

#[derive(Default)]
struct Slot {
    /// The last attempt that has begun.
    last: u64,
    /// What it gave.
    gave: Gave,
}

/// The attempts of one session. Each slot has a lock of its own, as calls in several slots do not wait for each other.
pub(super) struct Attempts([Mutex<Slot>; MAX_SLOTS as usize]);

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Attempts {
    /// An attempt begins: what the one before gave that was not heard, to be taken back.
    ///
    /// # Errors
    /// EINVAL for one that comes behind a later one, and for a slot that does not exist.
    pub(super) fn begin(&self, slot: SlotId, attempt: Attempt) -> Result<Gave> {
        if attempt.number == 0 {
            return Ok(Gave::Nothing);
        }
        let mut slot = self.0.get(usize::from(slot.0)).ok_or(Errno::EINVAL)?.lock();
        if attempt.number <= slot.last {
            return Err(Errno::EINVAL);
        }
        let gave = std::mem::take(&mut slot.gave);
        let was_heard = attempt.heard >= slot.last;
        slot.last = attempt.number;
        Ok(if was_heard { Gave::Nothing } else { gave })
    }

    /// It is answered: what of it is to be taken back at once. That is all if a later one has begun meanwhile, which nobody
    /// tells of this one.
    pub(super) fn end(&self, slot: SlotId, attempt: Attempt, gave: Gave) -> Gave {
        let Some(slot) = self.0.get(usize::from(slot.0)) else { return Gave::Nothing };
        let mut slot = slot.lock();
        match attempt.number {
            0 => Gave::Nothing,
            number if number == slot.last => {
                slot.gave = gave;
                Gave::Nothing
            }
            _ => gave,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId(3);

    fn attempt(number: u64, heard: u64) -> Attempt {
        Attempt { number, heard }
    }

    fn gave(ino: u64) -> Gave {
        Gave::Reference(Ino(ino))
    }

    /// An attempt that is answered before the next one.
    fn done(attempts: &Attempts, attempt: Attempt, ino: u64) -> Result<Gave> {
        let unheard = attempts.begin(SLOT, attempt)?;
        assert_eq!(attempts.end(SLOT, attempt, gave(ino)), Gave::Nothing);
        Ok(unheard)
    }

    #[test]
    fn what_was_not_heard_is_taken_back_once_and_what_was_heard_never() {
        let attempts = Attempts::default();
        assert_eq!(done(&attempts, attempt(1, 0), 5), Ok(Gave::Nothing));
        assert_eq!(done(&attempts, attempt(2, 1), 6), Ok(Gave::Nothing), "1 was heard");
        assert_eq!(done(&attempts, attempt(3, 1), 7), Ok(gave(6)), "2 was not");
        // 4 never arrived.
        assert_eq!(done(&attempts, attempt(5, 3), 8), Ok(Gave::Nothing));
        assert_eq!(done(&attempts, attempt(6, 5), 9), Ok(Gave::Nothing));
        let other = attempts.begin(SlotId(2), attempt(1, 0));
        assert_eq!(other, Ok(Gave::Nothing), "another slot counts for itself");
    }

    #[test]
    fn what_comes_late_is_not_done() {
        let attempts = Attempts::default();
        assert_eq!(done(&attempts, attempt(2, 0), 5), Ok(Gave::Nothing));
        assert_eq!(attempts.begin(SLOT, attempt(1, 0)), Err(Errno::EINVAL));
        assert_eq!(attempts.begin(SLOT, attempt(2, 0)), Err(Errno::EINVAL), "the same again");
        assert_eq!(attempts.begin(SLOT, attempt(3, 2)), Ok(Gave::Nothing), "2 counts");
        assert_eq!(attempts.begin(SlotId(MAX_SLOTS), attempt(1, 0)), Err(Errno::EINVAL));
    }

    #[test]
    fn what_ends_behind_its_repetition_is_taken_back_at_once() {
        let attempts = Attempts::default();
        let (first, second) = (attempt(1, 0), attempt(2, 0));
        assert_eq!(attempts.begin(SLOT, first), Ok(Gave::Nothing));
        assert_eq!(attempts.begin(SLOT, second), Ok(Gave::Nothing), "nothing was given yet");
        assert_eq!(attempts.end(SLOT, second, gave(5)), Gave::Nothing);
        assert_eq!(attempts.end(SLOT, first, gave(5)), gave(5));
        assert_eq!(attempts.begin(SLOT, attempt(3, 2)), Ok(Gave::Nothing), "the second counts");
    }

    #[test]
    fn what_is_not_counted_is_done_whenever_it_comes() {
        let attempts = Attempts::default();
        for _ in 0..2 {
            assert_eq!(attempts.begin(SLOT, Attempt::default()), Ok(Gave::Nothing));
            assert_eq!(attempts.end(SLOT, Attempt::default(), gave(5)), Gave::Nothing);
        }
        assert_eq!(done(&attempts, attempt(1, 0), 6), Ok(Gave::Nothing));
    }
}
