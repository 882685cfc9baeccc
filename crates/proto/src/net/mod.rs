//! What crosses a connection between machines or processes: frames ([`frame`]), how both ends
//! prove who they are ([`auth`]), the file-system calls and their answers ([`call`], [`answer`]), sessions
//! and leases ([`session`]), the ledger's questions ([`ledger`]), those to the agents of nodes ([`node`]), and what servers ask each other
//! ([`servers`], [`pool`], [`staging`], [`stripes`], [`tree`]).
//!
//! Format: docs/internals/WIRE.md. Bodies of calls are `postcard`, those of the ledger JSON.
//! Client and server both use this; no I/O happens here.

pub mod answer;
pub mod auth;
pub mod call;
pub mod frame;
pub mod ledger;
pub mod lost;
pub mod node;
pub mod pool;
pub mod servers;
pub mod session;
pub mod staging;
pub mod stripes;
pub mod tree;

pub use answer::{Answer, ListedEntry, Response};
pub use call::{Attempt, Call, GivenBack, Request};
pub use frame::{FrameError, FrameHeader, HEADER_BYTES, Kind};
