//! Connections: frames of [`forebay_proto::net`] over Unix and TCP sockets.
//!
//! | module | what it does |
//! | --- | --- |
//! | `address` | `HOST:PORT` and `unix:PATH` |
//! | `stream` | one socket of either kind; descriptors sent along (Unix) |
//! | `link` | frames on a stream: bounded, checked, one at a time in each direction |
//! | `look` | looks at other processes that nobody can hold up |
//! | `handshake` | both ends prove who they are |
//! | `munge` | users of other nodes, where a site runs MUNGE |
//! | `node` | which node this is |
//! | `peer` | who is at the other end of a Unix socket |
//! | `socket_path` | sockets with long paths |
//! | `pipes` | short frames of a connection on one node |
//! | `seal` | what both ends encrypt for each other |
//!
//! Everything blocks, with time limits. Used by `forebay-client` (who connects) and by
//! `forebay-server` (who accepts); it knows nothing of what is said beyond the greeting.

pub mod address;
pub mod handshake;
pub mod link;
pub mod look;
pub mod munge;
pub mod node;
pub mod peer;
pub mod pipes;
pub mod random;
pub mod seal;
pub mod socket_path;
pub mod stream;

pub use address::ServerAddress;
pub use link::{Link, LinkError};
pub use pipes::Pipes;
pub use stream::Stream;
