//! What the server decides, as functions and small state machines: state, facts and the time come in, a decision goes
//! out. No lock that others hold, no clock, no thread, no file.
//!
//! | module | decides |
//! | --- | --- |
//! | `when` | the policies of directories, as users write them |
//! | `due` | when a dirty file drains, and when one that failed is tried again |
//! | `queue` | which dirty file is next |
//! | `watermarks` | which watermarks are in force |
//! | `pace` | how fast drains go: the limit of the rate, and what they leave to the application |
//! | `room` | what is admitted to flash, how much is kept free, when writers wait |
//! | `eviction` | which clean data goes |
//! | `placement` | which shard a new inode goes to, and which servers a new buffer |
//! | `changed` | nothing: it makes decisions other ones, for tests of who asks for them |
//!
//! How the bytes of a striped file lie on servers is `forebay_proto::layout`, which is pure as well.
//!
//! Invariants: the same calls with the same facts give the same decisions; times are [`Moment`]s, which mean nothing
//! but their distance, so a day passes as fast as the caller says. Called by the cache, the namespace and the ledger,
//! and by whoever wants to know what they would do.

pub mod changed;
pub mod due;
pub mod eviction;
mod moment;
pub mod pace;
pub mod placement;
pub mod queue;
pub mod room;
#[cfg(test)]
mod tests;
pub mod watermarks;
pub mod when;

pub use moment::{Moment, Origin};
