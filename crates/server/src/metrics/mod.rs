//! Counters of what a server does, and their snapshot. Counting is one relaxed addition, on a line of
//! the cache that few threads share; nothing here takes a lock on the way of a call.
//!
//! | module | what it does |
//! | --- | --- |
//! | `calls` | calls of mounts: by kind, bytes, errors |
//! | `sample` | all of a buffer at one moment |
//!
//! Sessions and the mover count; the ledger, the control socket and `http` ask. What each figure
//! means: docs/METRICS.md.

mod calls;
mod sample;

pub use calls::CallCounts;
pub(crate) use sample::of_device;
pub use sample::{of_server, process, started};
