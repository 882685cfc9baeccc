//! Counters of what a server does, and their snapshot. Counting is one relaxed addition, on a line of
//! the cache that few threads share; nothing here takes a lock on the way of a call.
//!
//! | module | what it does |
//! | --- | --- |
//! | `calls` | calls of mounts: by kind, bytes, errors |
//! | `sample` | all of a buffer at one moment |
//! | `device`, `process` | the device below a store, and this process |
//!
//! Sessions and the mover count; the ledger, the control socket and `http` ask. What each figure
//! means: docs/METRICS.md.

mod calls;
mod device;
mod process;
mod sample;

pub use calls::CallCounts;
pub(crate) use device::of_device;
pub use process::{process, started};
pub use sample::of_server;
