//! The namespace of one shard: its store and the operations on it.

pub mod record;
pub mod store;
