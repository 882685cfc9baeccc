//! The client library: finds the buffer that a path belongs to, and speaks with its server.
//!
//! [`locate`] and [`mounts`] read the kernel's table of mounts, so that they also work when the
//! server is dead. [`Control`] is a connection to the control socket of a store. Everything is
//! blocking, with time limits; nothing is kept between calls. Used by the commands, by the job
//! runner and by tests; the server side of the frames ([`frame`]) is in the mount process.

mod cache_wait;
pub mod control;
pub mod frame;
pub mod ledger;
pub mod locate;
pub mod mountinfo;
pub mod node;
pub mod remote;
pub mod server_process;
mod umask;

pub use cache_wait::{WaitFor, Waited, cache_wait};
pub use control::{ANSWER_TIMEOUT, Control, Unmounting, may_have_ended};
pub use ledger::Ledger;
pub use locate::{
    MountRef, canonical, locate, locate_source, mount_above, mounts, mounts_at, publish,
};
pub use umask::umask;

/// Result of this crate: the error says what failed, on which path, why, and what to do.
pub type Result<T> = std::result::Result<T, forebay_proto::control::ControlError>;
