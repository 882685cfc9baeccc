//! Tests of shared buffers once more, over a cache whose files are spread over two servers: those in which it
//! matters that names are at one server and data at another one. `Options::new` makes such caches in this
//! module.
//!
//! What a cache promises less stands in the tests themselves, beside `is_cache`, and in docs/SEMANTICS.md.
//! All others run so with FOREBAY_TEST_SERVERS=2 and the module `cached_shared`.
#![allow(clippy::unwrap_used)]

#[path = "shared_coherence.rs"]
mod coherence;
#[path = "shared_faults.rs"]
mod faults;
