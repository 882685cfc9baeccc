//! Striped files: their objects are on several servers of the buffer (docs/internals/SHARDS.md).
//!
//! | module | what it does |
//! | --- | --- |
//! | `stripes` | the objects, here and on other servers, and all of a file together |
//! | `logged` | files that are written as logs: the index, bringing together |
//! | `file` | a file as a whole, at the server of its inode: size, times, data through this server |
//! | `keep`, `upkeep` | deferred work: removals, interrupted changes, objects without a file |
//!
//! Each uses those above it, but for the thread of `upkeep`, which uses all.
//!
//! Invariants
//! * A server has at most one object of a file. An object is made when it is first written, with
//!   the leave of the inode's server; without it the object has no bytes.
//! * The objects are what the file is: its size and times are read from them, nothing is stored twice.
//! * Changes that the inode's server asks for are done in its order: a late one is refused.
//! * No lock of the namespace is held while another server is asked; answering a question takes
//!   no lock that is held while asking. So servers never wait for each other in a circle.
//!
//! Called by `data`, `attributes`, `removal`, `recover`, and by `session` for the mounts' calls on objects.

mod file;
mod keep;
mod logged;
mod stripes;
#[cfg(test)]
mod tests;
mod upkeep;

pub use file::StripedFiles;
pub(crate) use keep::Keep;
pub(crate) use logged::Indexes;
pub use logged::{Asked, LogWriters, LoggedFiles, Mapped, Now, Published};
pub use stripes::StripeObjects;
pub(crate) use upkeep::Upkeep;
