//! Simulated time: which event comes next, and which processes go on now.
//!
//! Invariants: time never goes back; processes that go on now do so in the order in which that became known, before anything
//! later happens.
//! Callers: the loop of a run (`mod`), and whatever schedules: `traffic`, `jobs`, `buffers`, `failures`.

use super::SimError;
use super::failures::Shared;
use forebay_sim_engine::TimeNs;
use forebay_sim_engine::ladder::Ladder;
use forebay_sim_engine::queue::Queue;
use std::collections::VecDeque;

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A job could start.
    Ready(u32),
    /// A process goes on.
    Go(u32),
    /// All that were to come to a meeting of a job have come.
    Met(u32, u32),
    /// A request comes to its next hop.
    Hop(u32),
    /// A buffer may drain again.
    Pump(u32),
    /// A node of a job fails, if that start of it still runs.
    Fail(u32, u32),
    /// A job that was killed starts again.
    Restart(u32, u32),
    /// An I/O node or buffer node fails.
    Lose(Shared),
    /// A buffer that failed is rebuilt from others, piece by piece.
    Rebuild(u32),
}

/// The clock of a run.
pub(super) struct Clock {
    queue: Ladder<Event>,
    now_ns: TimeNs,
    events: u64,
    /// Repetitions of phases since time went on.
    still: u64,
    /// Processes that go on now, in this order. A list is many times cheaper than events of no delay, and thousands of
    /// processes go on at once where they meet.
    ready: VecDeque<u32>,
    failed: Option<SimError>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock {
            queue: Ladder::default(),
            now_ns: 0,
            events: 0,
            still: 0,
            ready: VecDeque::new(),
            failed: None,
        }
    }

    /// Nanoseconds since the begin of the run.
    #[inline]
    pub(super) fn now_ns(&self) -> TimeNs {
        self.now_ns
    }

    /// Seconds since the begin of the run.
    pub(super) fn now_s(&self) -> f64 {
        self.now_ns as f64 / 1e9
    }

    /// Events that have been handled, with the one that is.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Events that came before their cause.
    pub(super) fn late(&self) -> u64 {
        self.queue.late()
    }

    /// Schedules an event.
    #[inline]
    pub(super) fn at(&mut self, time_ns: TimeNs, event: Event) {
        self.queue.push(time_ns, event);
    }

    /// Schedules an event so many nanoseconds from now.
    #[inline]
    pub(super) fn after(&mut self, ns: u64, event: Event) {
        self.queue.push(self.now_ns.saturating_add(ns), event);
    }

    /// A process goes on now.
    #[inline]
    pub(super) fn goes_on(&mut self, process: u32) {
        self.ready.push_back(process);
    }

    /// Processes go on now, in this order.
    #[inline]
    pub(super) fn go_on(&mut self, processes: impl Iterator<Item = u32>) {
        self.ready.extend(processes);
    }

    /// What happens next; `None`: nothing any more.
    #[inline]
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let event = match self.ready.pop_front() {
            Some(process) => Event::Go(process),
            None => {
                let entry = self.queue.pop()?;
                if entry.time_ns > self.now_ns {
                    (self.now_ns, self.still) = (entry.time_ns, 0);
                }
                entry.event
            }
        };
        self.events += 1;
        Some(event)
    }

    /// A process has ended a repetition; how many have since time went on.
    #[inline]
    pub(super) fn repeats(&mut self) -> u64 {
        self.still += 1;
        self.still
    }

    /// The run cannot go on.
    pub(super) fn fail(&mut self, error: SimError) {
        self.failed = Some(error);
    }

    /// Why the run cannot go on, if so.
    #[inline]
    pub(super) fn failure(&mut self) -> Option<SimError> {
        self.failed.take()
    }
}
