//! Pending events: what every queue of them promises, and the binary heap that is the oracle for the others.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The last moment, 292 years from the start: later times are this one.
pub const LAST_NS: u64 = i64::MAX as u64;

/// An event that waits for its time.
#[derive(Clone, Copy, Debug)]
pub struct Entry<E> {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// The how-manieth event that was scheduled: the order of events of the same time.
    pub sequence: u64,
    /// What.
    pub event: E,
}

impl<E> Entry<E> {
    /// What entries are ordered by.
    #[inline]
    pub fn key(&self) -> u128 {
        (u128::from(self.time_ns) << 64) | u128::from(self.sequence)
    }
}

/// Pending events, which come out in order of (time, sequence).
pub trait Queue<E> {
    /// Schedules an event. A time before the last event that came out is raised to that event's time and counted in
    /// [`Queue::late`]: a simulation that does this has a fault.
    fn push(&mut self, time_ns: u64, event: E);
    /// The next event.
    fn pop(&mut self) -> Option<Entry<E>>;
    /// How many wait.
    fn len(&self) -> usize;
    /// Whether none waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// How many events were scheduled before the time of the event that was being handled.
    fn late(&self) -> u64;
}

/// The binary heap of the standard library.
#[derive(Debug)]
pub struct Heap<E> {
    entries: BinaryHeap<Earliest<E>>,
    sequence: u64,
    now_ns: u64,
    late: u64,
}

/// Ordered so that the earliest is the greatest.
#[derive(Debug)]
struct Earliest<E>(Entry<E>);

impl<E> PartialEq for Earliest<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl<E> Eq for Earliest<E> {}

impl<E> PartialOrd for Earliest<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Earliest<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.key().cmp(&self.0.key())
    }
}

impl<E> Default for Heap<E> {
    fn default() -> Self {
        Heap { entries: BinaryHeap::new(), sequence: 0, now_ns: 0, late: 0 }
    }
}

impl<E> Queue<E> for Heap<E> {
    fn push(&mut self, time_ns: u64, event: E) {
        self.late += u64::from(time_ns < self.now_ns);
        let time_ns = time_ns.max(self.now_ns).min(LAST_NS);
        self.entries.push(Earliest(Entry { time_ns, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    fn pop(&mut self) -> Option<Entry<E>> {
        let entry = self.entries.pop()?.0;
        self.now_ns = entry.time_ns;
        Some(entry)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn late(&self) -> u64 {
        self.late
    }
}
