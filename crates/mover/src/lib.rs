//! Staging: explicit copies of files and trees between the PFS and the buffer.
//!
//! [`Mover`] takes plans and runs them with threads of its own. What is where: `engine` (plans,
//! queue), `plan`, `journal` and `left` (on flash), `run` (the phases), `walk` (source to items),
//! `worker` (an item to its end), `copy` (data and checksums) with `holes`, `pieces` and `memory`, `endpoint`
//! (the two ends) with `pfs`, `pfs_target` and `buffer`, which act as the requester (`forebay_credentials`),
//! `parts`, `delegator` and `delegated` (plans that are the work of several servers, see
//! docs/internals/STAGING.md), `stripe` (files that several servers hold), `completion` (what becomes of an item), `setup`,
//! `stop` (cancel and rate), `dry_run`, `queued` (what is told of plans that wait for their turn), `record` (plans whose
//! server does not run), `halt` and `fence` (ending while a PFS hangs), `progress` and `fault` (what the user is told).
//!
//! Promises: a file appears under its name only whole, fsynced and verified; the PFS is touched
//! only with the requester's rights and never outside the trees named; a plan killed at any
//! point goes on and leaves no temporary file when it has ended.

mod audit;
mod buffer;
mod commit;
mod completion;
mod copy;
mod counts;
mod deferred;
mod delegated;
mod delegator;
mod dry_run;
mod endpoint;
mod engine;
mod fault;
mod fence;
pub mod fuzzed;
mod halt;
mod holes;
mod journal;
mod left;
mod memory;
mod meta;
mod not_kept;
mod parts;
mod paths;
mod pfs;
mod pfs_target;
mod pieces;
mod plan;
mod progress;
mod queued;
mod record;
mod roots_xattrs;
mod run;
mod setup;
mod stop;
mod stripe;
mod task;
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
