//! That no request waits for ever while others come and go.
//!
//! A request that was overtaken [`OVERTAKEN_OFTEN`] times (others got, after it had come, what it
//! waits for) holds newcomers back for [`FIRST_HOLD`], the next time twice as long, and so on up
//! to [`LONGEST_HOLD`]: sooner or later longer than those who are ahead keep their locks. It is
//! never longer than that, because those ahead may wait for one that is held back, in a way
//! that the table cannot see; Linux, which holds nobody back, would let such a program go on.
//! Requests without a waiter are not held back: EAGAIN is for locks that somebody holds.
//!
//! The timer is a thread that lives only while somebody holds others back.

use super::LockTable;
use parking_lot::{Condvar, Mutex};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Times overtaken after which a request holds newcomers back.
pub(super) const OVERTAKEN_OFTEN: u32 = 64;
/// For how long, the first time.
pub(super) const FIRST_HOLD: Duration = Duration::from_millis(100);
/// And at most.
pub(super) const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// Patience of one waiting request.
pub(super) struct Patience {
    overtaken: u32,
    next_hold: Duration,
    /// Until when it holds newcomers back.
    pub(super) holds_until: Option<Instant>,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { overtaken: 0, next_hold: FIRST_HOLD, holds_until: None }
    }

    /// Somebody else got what this one waits for. True if it now begins to hold others back.
    pub(super) fn overtaken(&mut self) -> bool {
        if self.holds_until.is_some() {
            return false;
        }
        self.overtaken += 1;
        if self.overtaken < OVERTAKEN_OFTEN {
            return false;
        }
        self.overtaken = 0;
        self.holds_until = Some(Instant::now() + self.next_hold);
        self.next_hold = (self.next_hold * 2).min(LONGEST_HOLD);
        true
    }
}

#[derive(Default)]
struct Alarm {
    at: Option<Instant>,
    running: bool,
}

/// Ends holds in time.
#[derive(Default)]
pub(super) struct Timer {
    alarm: Mutex<Alarm>,
    changed: Condvar,
}

impl Timer {
    /// Makes sure that [`LockTable::end_holds`] is called at `at`.
    pub(super) fn wake_at(&self, table: &Weak<LockTable>, at: Instant) {
        let mut alarm = self.alarm.lock();
        if alarm.at.is_none_or(|earlier| at < earlier) {
            alarm.at = Some(at);
            self.changed.notify_one();
        }
        if alarm.running {
            return;
        }
        let table = table.clone();
        let thread = std::thread::Builder::new().name("lock-timer".into());
        match thread.spawn(move || run(&table)) {
            Ok(_) => alarm.running = true,
            // The next call about locks tries again.
            Err(error) => tracing::warn!(%error, "no timer for locks that wait"),
        }
    }

    /// Waits for the time; false when there is no more.
    fn wait(&self) -> bool {
        let mut alarm = self.alarm.lock();
        while let Some(at) = alarm.at {
            if Instant::now() >= at {
                alarm.at = None;
                return true;
            }
            self.changed.wait_until(&mut alarm, at);
        }
        alarm.running = false;
        false
    }
}

fn run(table: &Weak<LockTable>) {
    // The table lives on for at most one hold after everybody else has dropped it.
    while let Some(table) = table.upgrade() {
        if !table.timer.wait() {
            return;
        }
        if let Some(next) = table.end_holds() {
            table.timer.wake_at(&table.me, next);
        }
    }
}
