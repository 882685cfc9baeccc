//! The tests of shared buffers once more, over caches that a server serves: what several mounts may rely on is
//! the same. `Options::new` makes caches in this module.
//!
//! The PFS is a directory on a disk. What a cache promises less stands in the tests themselves, beside
//! `is_cache`, and in docs/SEMANTICS.md.
#![allow(clippy::unwrap_used)]

#[path = "shared_coherence.rs"]
mod coherence;
#[path = "shared_concurrent.rs"]
mod concurrent;
#[path = "shared_faults.rs"]
mod faults;
#[path = "shared_locks.rs"]
mod locks;
