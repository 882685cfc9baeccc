//! The server of a buffer, joined from its parts: sessions of mounts, the network, the ledger of a pool, figures.
//!
//! | crate or module | what it is |
//! | --- | --- |
//! | `forebay-store` | what lies on flash |
//! | `forebay-namespace` | names, inodes and the data of a scratch buffer |
//! | `forebay-mover` | staging |
//! | `forebay-cache` | a PFS directory with its data in a namespace |
//! | `forebay-locks`, `forebay-lease` | locks of mounts, and what they may believe |
//! | `session`, `net` | mounts of other processes and nodes |
//! | `ledger` | the buffers that one process serves |
//! | `metrics`, `http` | figures |
//!
//! `session` <- `net` <- `ledger`; [`Server`] joins the parts of one buffer, and asks its type by [`BufferKind`].

mod buffer_kind;
#[doc(hidden)]
pub mod fuzzed;
pub mod http;
pub mod ledger;
mod lost;
pub mod metrics;
pub mod net;
pub mod places;
mod server;
pub mod session;
#[cfg(test)]
mod shard_tests;

pub use buffer_kind::BufferKind;
pub use server::{Server, ServerOptions, check};
