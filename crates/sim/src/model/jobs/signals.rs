//! Events that jobs signal and wait for.
//!
//! Invariant: each signal wakes all that wait for any event; who waits for another one waits again.
//! Caller: `steps`.

use std::ops::Range;

/// The events of a program.
#[derive(Debug)]
pub(super) struct Signals {
    /// How often each was signalled.
    counts: Vec<u64>,
    /// Processes that wait for events.
    awaiting: Vec<u32>,
}

impl Signals {
    /// Of so many events.
    pub(super) fn new(events: usize) -> Signals {
        Signals { counts: vec![0; events], awaiting: Vec::new() }
    }

    /// An event is signalled so many times; who goes on.
    pub(super) fn signal(&mut self, event: u32, times: u32) -> impl Iterator<Item = u32> {
        self.counts[event as usize] += u64::from(times);
        self.awaiting.drain(..)
    }

    /// How often an event was signalled.
    pub(super) fn count(&self, event: u32) -> u64 {
        self.counts[event as usize]
    }

    /// A process waits until an event was signalled so often. False if it has been.
    pub(super) fn waits(&mut self, process: u32, event: u32, times: u64) -> bool {
        let waits = self.count(event) < times;
        if waits {
            self.awaiting.push(process);
        }
        waits
    }

    /// The process that has waited longest.
    pub(super) fn first_waiting(&self) -> Option<u32> {
        self.awaiting.first().copied()
    }

    /// These processes are no more.
    pub(super) fn forget(&mut self, processes: &Range<u32>) {
        self.awaiting.retain(|process| !processes.contains(process));
    }
}
