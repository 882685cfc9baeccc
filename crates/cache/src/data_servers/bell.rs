//! Wakes the thread of a server that tells the others what they have to know.
//!
//! Invariant: a thread that writes down what is to be sent, and then wakes the sender, is heard, also if the sender is just
//! sending something else. Called by the table of nodes, by what others ask, and at the end.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Rings for one thread.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// There is something to tell, or a server to tell it to.
    pub fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until it rings, or for so long; true if it has rung.
    pub fn wait(&self, longest: Duration) -> bool {
        let mut rung = self.rung.lock();
        if !*rung {
            self.changed.wait_for(&mut rung, longest);
        }
        std::mem::take(&mut *rung)
    }
}
