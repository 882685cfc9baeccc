//! A discrete-event engine: pending events in order of time, random numbers, waiting lines.
//!
//! Time is an integer number of nanoseconds since the start of the simulation. Events of the same time come in the
//! order in which they were scheduled, so one input and one seed give one result, on every machine: logarithms are
//! `libm`'s, not those of the C library of the machine.
//!
//! Invariants: nothing here reads a clock, does I/O or uses threads. No event is scheduled before the event that is
//! being handled ([`queue::Queue::push`] says what happens then).
//! Callers: `forebay-sim`; `forebay sim phold`.

pub mod ladder;
pub mod phold;
pub mod queue;
pub mod random;
pub mod station;

/// Nanoseconds since the start of a simulation.
pub type TimeNs = u64;

/// One second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Seconds as nanoseconds, rounded to the nearest; what lies beyond [`queue::LAST_NS`], and what is no number, is that.
pub fn ns(seconds: f64) -> u64 {
    let exact = seconds * SECOND_NS as f64;
    if exact.is_nan() || exact >= queue::LAST_NS as f64 {
        return queue::LAST_NS;
    }
    libm::round(exact.max(0.0)) as u64
}

/// Nanoseconds as seconds.
pub fn seconds(time_ns: u64) -> f64 {
    time_ns as f64 / SECOND_NS as f64
}
