//! The server of a buffer: namespace, objects, mover, and the flash they live on.
//!
//! Dependencies inside point one way: `flash` (where the files are) <- `namespace::store`
//! (log and database) and `objects` (data files) <- `namespace` (operations) <- `mover`
//! (staging, sees the buffer through [`mover::tree::BufferTree`]) <- `server` (joins them and

//! implements `forebay_proto::FileSystem`) <- `ledger` (the buffers that one process serves).
//! implements `forebay_proto::FileSystem`). `locks` depends on none of them.
pub mod flash;
pub mod ledger;
pub mod locks;
pub mod mover;
pub mod namespace;
pub mod net;
pub mod objects;
pub mod peers;
mod server;
pub mod session;
mod step;

pub use server::{Server, ServerOptions, check};
