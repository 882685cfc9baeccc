//! The job: the `#DW` lines of a batch script and the seven steps around it.
//!
//! [`script::parse`] turns the bytes of a script into a [`request::JobRequest`] or into the list
//! of everything that is wrong with it; it does no I/O. [`check`] looks at the machine (do the
//! sources exist, has the flash the capacity) before anything starts. Called by
//! `forebay validate` and `forebay run`; the scheduler front ends use the same two.
//!
//! [`hooks`] are the steps as schedulers call them. [`run`] takes a job through the steps.
//!
//! Invariants: a line that can be misread is refused, never guessed at; no shell and no
//! environment takes part in reading a directive.

pub mod check;
pub mod hooks;
pub mod problem;
pub mod request;
pub mod run;
pub mod script;

mod directive;
mod record_file;
mod stage_path;
