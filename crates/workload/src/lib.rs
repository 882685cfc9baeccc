//! What an application's I/O looks like, as data: which process moves which bytes of which file, in
//! which order, and what the bytes are.
//!
//! [`language`] is the workload language: a file that a person reads and writes, which can be observed (written from a trace),
//! replayed (`forebay-loadgen`) and predicted (a simulator). [`ior`] is IOR's pattern, transfer by transfer as IOR has it. [`streams`] is
//! what libc makes of calls on a stream.
//! Nothing here does I/O but on the description itself, or reads a clock.
//!
//! Invariants: the same description and seed give the same transfers and bytes on every machine.
//! Callers: `forebay-loadgen`, the command line's `forebay bench`, simulators.

pub mod content;
pub mod document;
pub mod fuzzed;
pub mod ior;
pub mod language;
pub mod patterns;
pub mod random;
pub mod streams;
pub mod units;
