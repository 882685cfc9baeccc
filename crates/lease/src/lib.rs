//! Leases of a served buffer: who may believe what without asking, how a mount hears that it must stop, and
//! each call of a mount exactly once.
//!
//! | module | what it does |
//! | --- | --- |
//! | `leases` | who may believe what without asking |
//! | `recall` | telling a client what it must stop to believe |
//! | `slots` | each call exactly once, over broken connections and restarts |
//! | `sync` | the locks of these, which a test can schedule |
//!
//! Invariant: nothing here asks a file system or a network; what a slot keeps alive it holds by
//! `forebay_interfaces::references::References`. Called by the server's sessions.

pub mod leases;
pub mod recall;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
pub mod slots;
mod sync;
