//! The load generator: runs a workload's transfers on real files and measures them.
//!
//! Ranks are processes, forked before anything else starts, that meet at barriers in shared memory
//! ([`shared`], [`ranks`]); or those of an MPI launcher ([`mpi`]), which ask rank 0 for what others read there ([`far`]) and may move files of
//! netCDF by its library ([`netcdf`]). [`ior`] is what they do; [`residency`] says how much of a file was in the page cache
//! before it was read; [`replay`] is a workload file instead of IOR's phases; [`outcome`] turns the stamps of all ranks into figures, with IOR's definitions.
//!
//! Invariants: every figure comes from the stamps that the ranks took; nothing is averaged before it is
//! reported. A rank that fails or is killed ends the run with its reason, never a barrier that waits for ever.
//! Callers: the command line's `forebay bench`; `forebay-bench`, by processes that are [`held`] ready.

pub mod clocks;
pub mod failed;
mod far;
mod far_host;
pub mod held;
pub mod ior;
pub mod link;
mod log;
pub mod mpi;
pub mod netcdf;
pub mod outcome;
pub mod ranks;
pub mod replay;
pub mod residency;
mod shared;
mod target;
