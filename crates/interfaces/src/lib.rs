//! What parts of a server see of each other: the servers of a buffer's other shards ([`peers`]), what sessions hold
//! ([`references`]), and the tree of a
//! buffer as the mover sees it ([`tree`], with the bytes of its files, [`data`]).
//!
//! Invariant: traits and plain types only. So namespace, mover and cache are built without each other.

pub mod data;
pub mod peers;
pub mod references;
pub mod tree;
