//! The event record: what was staged, failed, made, destroyed, and when, so that afterwards one can
//! prove it. One [`EventLog`] for each buffer, in its store; one for each server, beside its ledger.
//! Format and what a kill leaves: docs/internals/EVENTS.md.
//!
//! Invariants
//! * An event that [`EventLog::record`] has taken survives a kill -9; what was recorded before a
//!   [`EventLog::sync`] that returned survives a power cut too, where the store does.
//! * Numbers grow by one and are never used twice. What could not be written (flash is full) is
//!   counted, and said by the next event that can.
//! * The record takes at most [`EVENT_SEGMENTS`] segments of [`EVENT_SEGMENT_BYTES`]; the oldest
//!   gives way. Room for the segment in use is taken when it is begun, so that a buffer filled to
//!   the brim can still say what is copied out of it.
//!
//! Recorded by the mover, the ledger and the cache; read by the control
//! socket and the ledger.

mod line;
mod log;
mod segment;
#[cfg(test)]
mod tests;

pub use log::{EventLog, keep, read_kept};

/// Most bytes of a segment; one event may reach over it.
pub const EVENT_SEGMENT_BYTES: u64 = 1 << 20;
/// Most segments of a record.
pub const EVENT_SEGMENTS: usize = 16;
