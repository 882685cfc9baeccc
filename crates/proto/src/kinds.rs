//! Kinds that messages, events and figures have in common.

use serde::{Deserialize, Serialize};

/// Where the flash of a buffer is and how its capacity is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// A tmpfs of its own: exact capacity, volatile.
    Tmpfs,
    /// A loop-mounted XFS image, fallocated: within 3 %.
    LoopXfs,
    /// A plain directory, all writes served and counted: exact, no fast path.
    Directory,
}

/// How a copy was verified, and to be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Checksum of the destination read through its page cache.
    Cache,
    /// Read back past the cache (after fsync and dropping it, O_DIRECT where it can).
    Medium,
}
