//! The trace of one process's I/O as a file: its layout, a reader that accepts any bytes, and a writer
//! for tests and converters. docs/internals/TRACE_FORMAT.md describes the format for other programs.
//!
//! Invariants: the layout constants stand in [`layout`] only; the recorder (`crates/preload-trace`)
//! writes by them, [`read`] reads by them. The reader never panics and never takes more memory than a
//! block and the names that it hands out.

pub mod fuzzed;
pub mod layout;
pub mod op;
pub mod read;
pub mod write;

pub use op::{Class, Op};
pub use read::{Event, Header, Item, Process, TraceError};
pub use write::{Who, Writer};
