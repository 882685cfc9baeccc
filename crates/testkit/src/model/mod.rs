//! The reference model: a POSIX file system in memory, a generator of random operations, and a
//! run that does each on both and compares the answer and every touched object after every step.
//!
//! What the model says was checked against a plain tmpfs and XFS of the running kernel
//! (`FOREBAY_TEST_RAW=1`), so a difference is the buffer's.

mod attrs;
mod beside;
mod check;
mod data;
mod drive;
mod files;
mod generate;
mod names;
pub mod op;
mod run;
mod shared;
mod state;

pub use beside::run_beside;
pub use data::Data;
pub use drive::{extents, map_write};
pub use run::{Plan, run, run_in};
pub use shared::{SharedPlan, run_shared};
