//! The server of a buffer: namespace, objects, mover, and the flash they live on.
//!
//! Dependencies inside point one way: `flash` (where the files are) <- `namespace::store`
//! (log and database) and `objects` (data files) <- `namespace` (operations) <- `mover`
//! (staging, sees the buffer through [`mover::tree::BufferTree`]) <- `server` (joins them) <-
//! `ledger` (the buffers that one process serves). `cache` has its data in a `namespace`. `locks` and `descriptors` depend on none of them; `peers` is how
//! the servers of one buffer ask each other, `places` where they are.

pub mod cache;
pub mod descriptors;
pub mod events;
pub mod flash;
#[doc(hidden)]
pub mod fuzzed;
pub mod http;
mod journal_line;
pub mod ledger;
pub mod locks;
mod lost;
pub mod metrics;
pub mod mover;
pub mod namespace;
pub mod net;
pub mod objects;
mod over_tree;
pub mod peers;
pub mod places;
mod server;
pub mod session;
mod step;
mod stripe_object;

pub use server::{Server, ServerOptions, check};
