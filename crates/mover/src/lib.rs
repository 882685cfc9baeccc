//! Staging: explicit copies of files and trees between the PFS and the buffer.
//!
//! [`Mover`] takes plans and runs them with threads of its own. What is where:
//!
//! | modules | what they own |
//! | --- | --- |
//! | `engine`, `deferred`, `queued`, `halt` | the plans of a buffer: taken, in their turn, waiting for their release, stopped for an end |
//! | `plan`, `journal`, `record`, `audit` | what is on flash of a plan, and what the buffer's event record is told |
//! | `setup`, `run` | one run of a plan: its phases, made of the components below |
//! | `request` | what was asked for, which does not change |
//! | `walk`, `links` | the source's objects as items, and the further names of those with several |
//! | `worker` | an item to its end, by `copy` (data and checksums) with `holes`, `pieces` and `memory` |
//! | `completion`, `progress`, `fault` | what becomes of items, the counters, what the user is told |
//! | `retry`, `pfs_watch`, `stop` | attempts, whether the PFS is still there, cancel and rate |
//! | `temps`, `dirs`, `bound` | temporary files and their removal, directories to be finished, memory for what waits for the end |
//! | `not_kept`, `dry_run` | what copies lack of root's, what a plan would do |
//! | `commit` | plans that publish a whole tree at once |
//! | `endpoint`, `pfs`, `pfs_target`, `buffer` | the two ends, which act as the requester (`forebay_credentials`) |
//! | `parts`, `delegator`, `delegated`, `proof`, `stripe` | plans that are the work of several servers (docs/internals/STAGING.md) |
//! | `fence` | the buffer, cut off from threads that a PFS holds |
//!
//! Promises: a file appears under its name only whole, fsynced and verified; the PFS is touched
//! only with the requester's rights and never outside the trees named; a plan killed at any
//! point goes on and leaves no temporary file when it has ended.

mod audit;
mod bound;
mod buffer;
mod commit;
mod completion;
mod copy;
mod counts;
mod deferred;
mod delegated;
mod delegator;
mod dirs;
mod dry_run;
mod endpoint;
mod engine;
mod fault;
mod fence;
pub mod fuzzed;
mod halt;
mod holes;
mod journal;
mod links;
mod memory;
mod meta;
mod not_kept;
mod parts;
mod paths;
mod pfs;
mod pfs_target;
mod pfs_watch;
mod pieces;
mod plan;
mod progress;
mod proof;
mod queued;
mod record;
mod request;
mod retry;
mod roots_xattrs;
mod run;
mod setup;
mod stop;
mod stripe;
mod task;
mod temps;
mod unmounted;
mod walk;
mod worker;

#[cfg(test)]
mod tests;

pub use counts::StagingCounts;
pub use engine::{KEEP_FINISHED_PLANS, Mover, MoverOptions, QUEUED_PLANS_MAX, STAGING_WAIT_MAX};
pub use halt::Stuck;
pub use parts::Servers;
pub use pfs::PfsHook;
pub use record::plans_on_record;
