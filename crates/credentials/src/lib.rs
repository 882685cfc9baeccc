//! As whom the threads of a server act on the PFS, and what the server itself may do.
//!
//! | module | what it does |
//! | --- | --- |
//! | `identity` | threads that act for one requester (the mover) |
//! | `acting` | threads that act for another one with each call (the cache) |
//! | `privileges` | which privileges the server has |
//!
//! Invariant: a thread has never more rights than the requester while it acts for it, but for work on what is the server's own
//! (`identity::as_server`), and is the server again after.

pub mod acting;
pub mod identity;
pub mod privileges;
